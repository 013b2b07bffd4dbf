//! Where a server is and who asks it, gathered as libpq does: from the URL, a service file, `PG*` variables, `~/.pgpass`.

use std::collections::BTreeMap;
use std::path::Path;

use watchkeeper_core::{Error, Result};

use super::environment::Environment;
use super::ignored_parameters;
use super::passfile::password_of;
use super::service::service_of;
use super::url::from_url;

/// What is known about a connection, by libpq's names of parameters.
pub(super) type Parameters = BTreeMap<String, String>;

/// Parameters and the variables that give them when nothing nearer does.
const VARIABLES: [(&str, &str); 18] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("options", "PGOPTIONS"),
    ("application_name", "PGAPPNAME"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
];

/// Parameters without a variable.
const FURTHER: [&str; 8] = [
    "service",
    "servicefile",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "fallback_application_name",
];

/// Everything that is known: what the URL says, then the service, then the variables, then what goes without saying.
pub(super) fn gather(url: &str, around: &dyn Environment) -> Result<Parameters> {
    let mut known = from_url(url)?;
    if let Some(service) = known.remove("service").or_else(|| around.variable("PGSERVICE")) {
        let file = known.remove("servicefile").or_else(|| around.variable("PGSERVICEFILE"));
        for (name, value) in service_of(&service, file, around)? {
            known.entry(name).or_insert(value);
        }
    }
    for (name, variable) in VARIABLES.into_iter().chain(ignored_parameters::variables()) {
        if let Some(value) = around.variable(variable).filter(|value| !value.is_empty()) {
            known.entry(name.to_owned()).or_insert(value);
        }
    }
    known.retain(|_, value| !value.is_empty());
    known.remove("servicefile");
    ignored_parameters::settle(&mut known)?;
    complete(&mut known, around)?;
    Ok(known)
}

/// What libpq assumes.
fn complete(known: &mut Parameters, around: &dyn Environment) -> Result<()> {
    if !known.contains_key("user") {
        let user = around.variable("USER").or_else(|| around.variable("LOGNAME"));
        let missing = || {
            Error::config("the URL of PostgreSQL names no user")
                .remedy("write \"postgres://user@host/database\", or set PGUSER")
        };
        known.insert("user".to_owned(), user.ok_or_else(missing)?);
    }
    let user = known["user"].clone();
    known.entry("dbname".to_owned()).or_insert(user);
    if !known.contains_key("host") && !known.contains_key("hostaddr") {
        let port = known.get("port").map_or("5432", String::as_str);
        let sockets = Path::new("/var/run/postgresql");
        let local = sockets.join(format!(".s.PGSQL.{port}")).exists();
        let host = if local { sockets.display().to_string() } else { "localhost".to_owned() };
        known.insert("host".to_owned(), host);
    }
    if !known.contains_key("password")
        && let Some(password) = password_of(known, around)
    {
        known.insert("password".to_owned(), password);
    }
    known.remove("passfile");
    if let Some(name) = known.remove("fallback_application_name") {
        known.entry("application_name".to_owned()).or_insert(name);
    }
    Ok(())
}

/// Refuses a parameter that nobody knows.
pub(super) fn require_known(name: &str) -> Result<()> {
    if FURTHER.contains(&name) || ignored_parameters::has(name) || VARIABLES.iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    // Only letters are repeated: what stands here may be a part of a password.
    let shown = if name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_') { name } else { "…" };
    let known = VARIABLES.iter().map(|(name, _)| *name).chain(FURTHER);
    let known = known.collect::<Vec<_>>().join(", ");
    Err(Error::config(format!("PostgreSQL's parameter {shown:?} is not known here")).remedy(format!("known: {known}")))
}

#[cfg(test)]
mod tests {
    use super::super::environment::scripted::{environment, write};
    use super::*;

    #[test]
    fn the_nearest_word_counts() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let text = "[other]\nhost=no\n[shop]\n# a word\nhost=service\nport=6000\ndbname=service\n[more]\nuser=no\n";
        let file = write(folder.path(), "services", text, 0o644);
        let variables =
            [("PGSERVICEFILE", file.as_str()), ("PGPORT", "7000"), ("PGUSER", "variable"), ("PGAPPNAME", "a")];
        let known = gather("postgres:///url?service=shop", &environment(&variables)).expect("it is one");
        let value = |name: &str| known.get(name).map(String::as_str);
        assert_eq!(value("dbname"), Some("url"));
        assert_eq!((value("host"), value("port")), (Some("service"), Some("6000")));
        assert_eq!((value("user"), value("application_name")), (Some("variable"), Some("a")));
        let error = gather("postgres://?service=none", &environment(&variables)).expect_err("there is none");
        assert!(error.to_string().contains("none") && error.advice().is_some(), "{error}");
    }

    #[test]
    fn words_of_libpq_that_change_nothing_are_taken() {
        let url = "postgres://u@h/d?gssencmode=prefer&krbsrvname=postgres&sslcompression=0&client_encoding=UTF8\
            &ssl_min_protocol_version=TLSv1.2&sslsni=1&replication=false&keepalives_count=3&connect_timeout=5&ssl=true";
        let known =
            gather(url, &environment(&[("PGGSSENCMODE", "disable"), ("PGCLIENTENCODING", "utf8")])).expect("it is one");
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        assert_eq!(names, ["connect_timeout", "dbname", "host", "keepalives_count", "sslmode", "user"]);
    }

    #[test]
    fn words_of_libpq_that_cannot_be_kept_are_refused() {
        for word in [
            "gssencmode=require",
            "sslcrl=/hunter2",
            "sslcrldir=/hunter2",
            "requirepeer=hunter2",
            "require_auth=scram-sha-256",
            "sslpassword=hunter2",
            "client_encoding=LATIN1",
            "replication=database",
            "ssl_min_protocol_version=TLSv1.3",
            "oauth_client_secret=hunter2",
            "scram_client_key=hunter2",
            "sslsni=0",
        ] {
            let error = gather(&format!("postgres://u@h/d?{word}"), &environment(&[])).expect_err(word);
            let name = word.split('=').next().unwrap_or_default();
            assert!(error.to_string().contains(name) && error.advice().is_some(), "{word}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{word}: {error:?}");
        }
        let variables = [("PGREQUIREPEER", "postgres"), ("PGGSSENCMODE", "require")];
        assert!(
            gather("postgres://u@h/d?gssencmode=disable", &environment(&variables[1..])).is_ok(),
            "the nearer one counts"
        );
        assert!(gather("postgres://u@h/d", &environment(&variables[1..])).is_err());
        assert!(gather("postgres://u@h/d", &environment(&variables[..1])).is_err());
    }
}
