//! Whom to believe when a server shows its certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use watchkeeper_core::{Error, Result};

use super::address::Parameters;
use super::environment::Environment;

/// Where systems keep the certificates that they trust.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// What is asked of a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateCheck {
    /// No encryption.
    Off,
    /// Encryption where the server has it. It keeps listeners out, not impostors.
    Any,
    /// A certificate by an authority that is trusted, for whatever name.
    Authority,
    /// A certificate by an authority that is trusted, for the name of the host.
    Full,
}

impl CertificateCheck {
    /// By libpq's words. `require` is as strict as `verify-full` here: who asks for TLS asks for the right server.
    pub(super) fn of(mode: Option<&str>) -> Result<Self> {
        match mode {
            Some("disable") => Ok(Self::Off),
            None | Some("allow" | "prefer") => Ok(Self::Any),
            Some("verify-ca") => Ok(Self::Authority),
            Some("require" | "verify-full") => Ok(Self::Full),
            Some(_) => Err(Error::config("the sslmode is none that PostgreSQL knows")
                .remedy("write verify-full, verify-ca, prefer or disable")),
        }
    }
}

/// How TLS is done. It is also made where encryption is off, since a connector is asked for in any case.
pub(super) fn client(trust: CertificateCheck, known: &Parameters, around: &dyn Environment) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = verifier(trust, known, around, &provider)?;
    let wrong = |error| Error::internal("TLS cannot be set up").caused_by(error);
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(wrong)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut client = match own_certificate(trust, known, around)? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            Error::config(format!("the client's certificate and key cannot be used: {error}"))
                .remedy("correct sslcert and sslkey: both have to be PEM, and belong together")
        })?,
        None => builder.with_no_client_auth(),
    };
    client.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(client)
}

fn verifier(
    trust: CertificateCheck,
    known: &Parameters,
    around: &dyn Environment,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>> {
    let signatures = Signatures(Arc::clone(provider));
    // As libpq: who names a root certificate wants it to be looked at.
    let trust = if trust == CertificateCheck::Any && known.contains_key("sslrootcert") {
        CertificateCheck::Authority
    } else {
        trust
    };
    if matches!(trust, CertificateCheck::Off | CertificateCheck::Any) {
        return Ok(Arc::new(AnyCertificate(signatures)));
    }
    let file = roots_file(known, around)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&file, "sslrootcert")? {
        // A bundle may hold certificates of kinds that nobody here understands.
        let _ = roots.add(certificate);
    }
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let authorities = builder.build().map_err(|error| {
        Error::config(format!("{} holds no certificate of an authority: {error}", file.display()))
            .remedy("name the certificate of the authority that signed the server's, in PEM, as sslrootcert")
    })?;
    if trust == CertificateCheck::Full {
        return Ok(authorities);
    }
    Ok(Arc::new(AnyName(authorities)))
}

fn roots_file(known: &Parameters, around: &dyn Environment) -> Result<PathBuf> {
    match known.get("sslrootcert").map(String::as_str) {
        Some(named) if named != "system" => return Ok(PathBuf::from(named)),
        None => {
            let own = around.home().map(|home| home.join(".postgresql/root.crt"));
            if let Some(own) = own.filter(|own| own.exists()) {
                return Ok(own);
            }
        }
        Some(_) => {}
    }
    let named = around.variable("SSL_CERT_FILE").map(PathBuf::from);
    let found = named.into_iter().chain(SYSTEM.map(PathBuf::from)).find(|file| file.exists());
    found.ok_or_else(|| {
        Error::config("this system has no list of authorities to trust")
            .remedy("name the certificate of the authority that signed the server's as sslrootcert")
    })
}

fn certificates(file: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| {
        Error::config(format!("{parameter}: {} cannot be read: {error}", file.display()))
            .remedy("name a file of certificates in PEM that this user can read")
    })
}

type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The client's certificate, if it has one: as named, else where libpq looks.
fn own_certificate(trust: CertificateCheck, known: &Parameters, around: &dyn Environment) -> Result<Option<Own>> {
    if trust == CertificateCheck::Off {
        return Ok(None);
    }
    let usual = |name: &str| around.home().map(|home| home.join(".postgresql").join(name));
    let named = known.get("sslcert").map(PathBuf::from);
    let Some(file) = named.or_else(|| usual("postgresql.crt").filter(|file| file.exists())) else { return Ok(None) };
    let key_file = known.get("sslkey").map(PathBuf::from).or_else(|| usual("postgresql.key"));
    let missing = || Error::config("sslcert is there, and no sslkey").remedy("name the file of its key as sslkey");
    let key_file = key_file.ok_or_else(missing)?;
    let key = PrivateKeyDer::from_pem_file(&key_file).map_err(|error| {
        Error::config(format!("sslkey: {} cannot be read: {error}", key_file.display()))
            .remedy("name a file with a private key in PEM, without a password")
    })?;
    Ok(Some((certificates(&file, "sslcert")?, key)))
}

/// Checks signatures, which prove that the server has the key of the certificate that it shows.
#[derive(Debug)]
struct Signatures(Arc<CryptoProvider>);

/// Believes any certificate.
#[derive(Debug)]
struct AnyCertificate(Signatures);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Believes a certificate of a trusted authority for whatever name it was made.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is what is looked at last, so everything else was right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
