//! What a SCRAM proof is bound to over TLS: the hash of the server's certificate (`tls-server-end-point`, RFC 5929).

use rustls::crypto::hash::Hash;
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};

/// Object identifiers of signature algorithms, each with whether it hashes with SHA-384. The RFC says that MD5 and SHA-1
/// count as SHA-256.
const SHA_256: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], // sha1WithRSAEncryption
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], // sha256WithRSAEncryption
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02],       // ecdsa-with-SHA256
];
const SHA_384: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], // sha384WithRSAEncryption
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03],       // ecdsa-with-SHA384
];

/// The hash of a certificate in DER by the algorithm it was signed with; `None` for one that is not known here, with
/// which a proof is not bound.
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = signature_algorithm(certificate)?;
    let hash: &'static dyn Hash = if SHA_256.contains(&algorithm) {
        TLS13_AES_128_GCM_SHA256.tls13()?.common.hash_provider
    } else if SHA_384.contains(&algorithm) {
        TLS13_AES_256_GCM_SHA384.tls13()?.common.hash_provider
    } else {
        return None;
    };
    Some(hash.hash(certificate).as_ref().to_vec())
}

/// `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { OBJECT IDENTIFIER, … }, … }`
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (outer, _) = element(certificate)?;
    let (_, rest) = element(outer)?;
    let (algorithm, _) = element(rest)?;
    element(algorithm).map(|(identifier, _)| identifier)
}

/// The content of the first element of DER, and what comes after it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, der) = der.split_first()?;
    let (&first, der) = der.split_first()?;
    let (length, der) = if first < 0x80 {
        (usize::from(first), der)
    } else {
        let (length, der) = der.split_at_checked(usize::from(first & 0x7f))?;
        if length.len() > 4 {
            return None;
        }
        (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), der)
    };
    der.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::{end_point, signature_algorithm};

    /// The outline of a certificate whose signature algorithm is `identifier`.
    fn describe(identifier: &[u8]) -> Vec<u8> {
        let mut algorithm = vec![0x06, identifier.len() as u8];
        algorithm.extend(identifier);
        let mut inner = vec![0x30, 0x03, 0x02, 0x01, 0x02, 0x30, algorithm.len() as u8];
        inner.extend(algorithm);
        let mut whole = vec![0x30, 0x81, inner.len() as u8];
        whole.extend(inner);
        whole
    }

    #[test]
    fn the_hash_follows_the_signature() {
        for (identifiers, length) in [(&super::SHA_256[..], 32), (&super::SHA_384[..], 48)] {
            for identifier in identifiers {
                let certificate = describe(identifier);
                assert_eq!(signature_algorithm(&certificate), Some(*identifier));
                assert_eq!(end_point(&certificate).unwrap().len(), length);
            }
        }
    }

    #[test]
    fn what_is_not_known_is_not_bound() {
        assert_eq!(end_point(&describe(&[0x2b, 0x65, 0x70])), None);
        assert_eq!(end_point(&[0x30, 0x85, 1, 1]), None);
        assert_eq!(end_point(&[]), None);
    }
}
