//! Parameters of libpq that are not followed here: harmless with some values, and refused with others, since whoever writes
//! them relies on them.

use watchkeeper_core::{Error, Result};

use super::address::Parameters;

/// A parameter that is not followed.
struct IgnoredParameter {
    name: &'static str,
    /// The variable that gives it when nothing nearer does.
    variable: Option<&'static str>,
    /// The values with which it makes no difference that it is not.
    harmless: IgnoredValues,
    /// What to write instead of any other.
    remedy: &'static str,
}

/// Values that may be left unheard, in small letters.
enum IgnoredValues {
    Any,
    These(&'static [&'static str]),
}

use IgnoredValues::{Any, These};

const fn word(
    name: &'static str,
    variable: Option<&'static str>,
    harmless: IgnoredValues,
    remedy: &'static str,
) -> IgnoredParameter {
    IgnoredParameter { name, variable, harmless, remedy }
}

/// What has no effect without Kerberos needs no remedy.
const NONE: &str = "leave it out";
const NO: &[&str] = &["0", "no", "off", "false"];
const OAUTH: &str = "leave it out, and use a password or a certificate: OAuth is not supported";
const REVOKED: &str = "leave it out if that is acceptable: lists of revoked certificates are not read";
const SECRETS: &str = "leave it out, and give the password: keys of SCRAM are not supported";

const WORDS: [IgnoredParameter; 26] = [
    word(
        "client_encoding",
        Some("PGCLIENTENCODING"),
        These(&["utf8", "utf-8", "unicode", "auto"]),
        "leave it out: texts are always sent and read as UTF-8",
    ),
    word("gssdelegation", Some("PGGSSDELEGATION"), Any, NONE),
    word(
        "gssencmode",
        Some("PGGSSENCMODE"),
        These(&["disable", "prefer"]),
        "write gssencmode=disable, and sslmode=verify-full: TLS encrypts, Kerberos is not supported",
    ),
    word("gsslib", Some("PGGSSLIB"), Any, NONE),
    word("krbsrvname", Some("PGKRBSRVNAME"), Any, NONE),
    word("max_protocol_version", Some("PGMAXPROTOCOLVERSION"), Any, NONE),
    word(
        "min_protocol_version",
        Some("PGMINPROTOCOLVERSION"),
        These(&["3.0"]),
        "leave it out: version 3.0 of the protocol is spoken",
    ),
    word("oauth_client_id", None, These(&[]), OAUTH),
    word("oauth_client_secret", None, These(&[]), OAUTH),
    word("oauth_issuer", None, These(&[]), OAUTH),
    word("oauth_scope", None, These(&[]), OAUTH),
    word(
        "replication",
        None,
        These(NO),
        "leave it out: mode = \"replication\" beside the url reads the write-ahead log",
    ),
    word(
        "require_auth",
        Some("PGREQUIREAUTH"),
        These(&[]),
        "leave it out, or write channel_binding=require, which lets only SCRAM over TLS pass",
    ),
    word(
        "requirepeer",
        Some("PGREQUIREPEER"),
        These(&[]),
        "leave it out; over TCP, sslmode=verify-full makes sure who answers",
    ),
    word("requiressl", Some("PGREQUIRESSL"), These(&["0"]), "write sslmode=verify-full"),
    word("scram_client_key", None, These(&[]), SECRETS),
    word("scram_server_key", None, These(&[]), SECRETS),
    word(
        "ssl_max_protocol_version",
        Some("PGSSLMAXPROTOCOLVERSION"),
        These(&["tlsv1.3"]),
        "leave it out: TLS 1.2 and 1.3 are spoken",
    ),
    word(
        "ssl_min_protocol_version",
        Some("PGSSLMINPROTOCOLVERSION"),
        These(&["tlsv1", "tlsv1.1", "tlsv1.2"]),
        "write TLSv1.2, which is the oldest that is spoken, and let the server ask for more",
    ),
    word(
        "sslcertmode",
        Some("PGSSLCERTMODE"),
        These(&["allow"]),
        "leave it out: a certificate that is there is sent if the server asks for one",
    ),
    word("sslcompression", Some("PGSSLCOMPRESSION"), Any, NONE),
    word("sslcrl", Some("PGSSLCRL"), These(&[]), REVOKED),
    word("sslcrldir", Some("PGSSLCRLDIR"), These(&[]), REVOKED),
    word("sslkeylogfile", None, These(&[]), "leave it out: keys of sessions are not written down"),
    word("sslpassword", None, These(&[]), "leave it out, and name a key without a password as sslkey"),
    word("sslsni", Some("PGSSLSNI"), These(&["1"]), "leave it out: the name of the host is always told"),
];

/// Whether libpq knows a parameter by this name that is not followed here.
pub(super) fn has(name: &str) -> bool {
    WORDS.iter().any(|word| word.name == name)
}

/// The variables that give them.
pub(super) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORDS.iter().filter_map(|word| Some((word.name, word.variable?)))
}

/// Takes out what makes no difference, and refuses what would. Values are not repeated: some of them are secrets.
pub(super) fn settle(known: &mut Parameters) -> Result<()> {
    for word in &WORDS {
        let Some(value) = known.remove(word.name) else { continue };
        let is_harmless = match word.harmless {
            Any => true,
            These(values) => values.contains(&value.to_ascii_lowercase().as_str()),
        };
        if !is_harmless {
            let cause = format!("PostgreSQL's parameter {} is not followed here with this value", word.name);
            return Err(Error::config(cause).remedy(word.remedy));
        }
    }
    Ok(())
}
