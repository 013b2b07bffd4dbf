//! Which servers, which database, which schema, and how long to wait for them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use watchkeeper_core::{Error, Options, Result};

mod address;
mod credentials;
mod environment;
mod ignored_parameters;
mod passfile;
mod service;
mod tls;
mod url;

use address::Parameters;
pub(crate) use credentials::Credentials;
use environment::{EmptyEnvironment, Environment, Process};
use tls::CertificateCheck;
use url::unreadable;

/// Stands for a URL that was refused, so that the settings beside it are looked at too. Nothing of it depends on variables or files, which
/// would be refused once more.
const STAND_IN: &str = "postgres://nobody@localhost/postgres?sslmode=disable";

/// The schema that holds the tables, unless another one is named.
pub(crate) const SCHEMA: &str = "watchkeeper";

/// How connections are made, and where the tables are.
///
/// It never shows its password: not in debug output, not in errors.
#[derive(Clone)]
pub struct Config {
    postgres: tokio_postgres::Config,
    credentials: Credentials,
    /// The settings that it was read from, such as `stream.orders.source`: in logs they name whose connection it is.
    setting: String,
    tls: Arc<ClientConfig>,
    encrypted: bool,
    schema: String,
    /// The longest time for one call, when its caller names no shorter one.
    pub timeout: Duration,
    /// At most so many connections in a pool.
    pub connections: usize,
    /// Whether a pooler in transaction mode (PgBouncer) is in between, through which nobody can LISTEN.
    pub pooled: bool,
}

/// Only where it leads to.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        shown.field("place", &self.place()).field("schema", &self.schema).field("timeout", &self.timeout).finish()
    }
}

impl Config {
    /// The servers and the database of a `postgres://` or `postgresql://` URL, as libpq understands it: with lists of hosts,
    /// a service file (`?service=`), `PG*` variables and `~/.pgpass` for what the URL does not say.
    ///
    /// Two things are stricter than in libpq: `sslmode=require` checks the certificate and its name as `verify-full` does, and
    /// of several hosts one is chosen that can be written to, unless `target_session_attrs` says otherwise.
    ///
    /// # Errors
    /// `Config` when it is not such a URL, or names files that cannot be read. The password does not appear in it.
    pub fn new(url: &str) -> Result<Self> {
        Self::within(url, &Process)
    }

    fn within(url: &str, around: &dyn Environment) -> Result<Self> {
        let known = address::gather(url, around)?;
        let trust = CertificateCheck::of(known.get("sslmode").map(String::as_str))?;
        let tls = Arc::new(tls::client(trust, &known, around)?);
        let mut postgres = driver(&known)?;
        let sockets_only =
            postgres.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) && !postgres.get_hosts().is_empty();
        let encrypted = trust != CertificateCheck::Off && !sockets_only;
        postgres.ssl_mode(match trust {
            _ if !encrypted => SslMode::Disable,
            CertificateCheck::Any | CertificateCheck::Off => SslMode::Prefer,
            CertificateCheck::Authority | CertificateCheck::Full => SslMode::Require,
        });
        let timeout = Duration::from_secs(10);
        let schema = SCHEMA.to_owned();
        let credentials = Credentials::new(url.to_owned().into(), &postgres);
        Ok(Self {
            postgres,
            credentials,
            setting: String::new(),
            tls,
            encrypted,
            schema,
            timeout,
            connections: 8,
            pooled: false,
        })
    }

    /// The settings `url`, `schema`, `timeout`, `connections` and `pooled`.
    ///
    /// # Errors
    /// `Config` with the place where the setting was written.
    pub fn from_options(options: &mut Options) -> Result<Self> {
        let url = options.renewable("url", "\"postgres://user@host/database\"");
        let named = url.and_then(|url| {
            let config = Self::new(url.text());
            let wrong = |error: Error| options.wrong("url", error.message()).remedy(error.advice().unwrap_or_default());
            let config = config.map_err(wrong)?;
            Ok(Self { credentials: Credentials::new(url, &config.postgres), ..config })
        });
        // Where errors are collected the other settings are looked at too.
        let mut config = match options.reported(named)? {
            Some(config) => config,
            None => Self::within(STAND_IN, &EmptyEnvironment)?,
        };
        config.setting = options.path().to_owned();
        if let Some(schema) = options.text("schema")? {
            let to_error = |error: Error| options.wrong("schema", error.message()).remedy("write \"watchkeeper\"");
            let moved = config.clone().in_schema(schema).map_err(to_error);
            config = options.reported(moved)?.unwrap_or(config);
        }
        config.timeout = options.duration("timeout")?.unwrap_or(config.timeout);
        if config.timeout < Duration::from_millis(100) {
            let error = options.wrong("timeout", "no server answers reliably in so short a time");
            options.report(error.remedy("leave it at \"10s\""))?;
        }
        config.connections = options.size("connections")?.unwrap_or(config.connections);
        if config.connections == 0 {
            let error = options.wrong("connections", "nothing works without a connection");
            options.report(error.remedy("leave it at 8"))?;
        }
        config.pooled = options.flag("pooled")?.unwrap_or(config.pooled);
        Ok(config)
    }

    /// The same servers and database, and another schema.
    ///
    /// # Errors
    /// `Config` when it is no name for one.
    pub fn in_schema(mut self, schema: impl Into<String>) -> Result<Self> {
        let schema = schema.into();
        // Channels of NOTIFY are named after it, and a name has at most 63 bytes.
        let plain = schema.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if schema.is_empty() || schema.len() > 48 || !plain {
            let cause = "the schema needs a name of 1 to 48 letters, digits and underscores";
            return Err(Error::config(cause).remedy("write \"watchkeeper\""));
        }
        self.schema = schema;
        Ok(self)
    }

    /// The same servers, and another database.
    #[must_use]
    pub fn in_database(mut self, database: &str) -> Self {
        self.postgres.dbname(database);
        self
    }

    /// The schema that holds the tables.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The database.
    pub fn database(&self) -> &str {
        self.postgres.get_dbname().unwrap_or_default()
    }

    /// The user that asks.
    pub fn user(&self) -> &str {
        self.postgres.get_user().unwrap_or_default()
    }

    /// What the driver is told. The password may have changed since: see `credentials`.
    pub fn postgres(&self) -> &tokio_postgres::Config {
        &self.postgres
    }

    /// The settings that it was read from; empty for a configuration made by code.
    pub(crate) fn setting(&self) -> &str {
        &self.setting
    }

    /// The password as it was read last.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// What the driver is told now, with the password as it was read last.
    pub(crate) fn current(&self) -> tokio_postgres::Config {
        let mut postgres = self.postgres.clone();
        if let Some(password) = self.credentials.password() {
            postgres.password(password);
        }
        postgres
    }

    /// How TLS is done, if it is.
    pub fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.encrypted.then(|| Arc::clone(&self.tls))
    }

    pub(crate) fn connector(&self) -> tokio_postgres_rustls::MakeRustlsConnect {
        tokio_postgres_rustls::MakeRustlsConnect::new((*self.tls).clone())
    }

    /// Servers and database, without user and password.
    pub fn place(&self) -> String {
        let (hosts, ports) = (self.postgres.get_hosts(), self.postgres.get_ports());
        let port = |n: usize| ports.get(n).or(ports.first()).copied().unwrap_or(5432);
        let named = hosts.iter().enumerate().map(|(n, host)| match host {
            Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(n)),
            Host::Tcp(name) => format!("{name}:{}", port(n)),
            Host::Unix(path) => format!("{}:{}", path.display(), port(n)),
        });
        let mut named: Vec<String> = named.collect();
        if named.is_empty() {
            named.extend(self.postgres.get_hostaddrs().iter().enumerate().map(|(n, at)| format!("{at}:{}", port(n))));
        }
        format!("{}/{}", named.join(","), self.database())
    }
}

/// What the driver takes by the same names.
const AS_THEY_ARE: [&str; 16] = [
    "user",
    "password",
    "dbname",
    "options",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "channel_binding",
    "load_balance_hosts",
    "application_name",
    "sslnegotiation",
    "keepalives_retries",
];

fn driver(known: &Parameters) -> Result<tokio_postgres::Config> {
    let mut known = known.clone();
    if let Some(count) = known.remove("keepalives_count") {
        known.insert("keepalives_retries".to_owned(), count);
    }
    known.entry("application_name".to_owned()).or_insert_with(|| "watchkeeper".to_owned());
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let pairs = AS_THEY_ARE.iter().filter_map(|name| Some(format!("{name}='{}'", quoted(known.get(*name)?))));
    let text = pairs.collect::<Vec<_>>().join(" ");
    let parsed = text.parse::<tokio_postgres::Config>();
    let mut postgres = parsed.map_err(|error| {
        // Its cause names the parameter, never the value.
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        unreadable(cause)
    })?;
    if postgres.get_connect_timeout().is_none() {
        postgres.connect_timeout(Duration::from_secs(5));
    }
    // libpq counts it in milliseconds.
    if let Some(millis) = known.get("tcp_user_timeout") {
        let millis = millis.parse().map_err(|_| unreadable("tcp_user_timeout is no number of milliseconds"))?;
        postgres.tcp_user_timeout(Duration::from_millis(millis));
    }
    postgres.target_session_attrs(session_attrs(known.get("target_session_attrs").map(String::as_str), &postgres)?);
    Ok(postgres)
}

/// Of several hosts the one that can be written to, unless something else is said.
fn session_attrs(said: Option<&str>, postgres: &tokio_postgres::Config) -> Result<TargetSessionAttrs> {
    let hosts = postgres.get_hosts().len().max(postgres.get_hostaddrs().len());
    match said {
        None if hosts > 1 => Ok(TargetSessionAttrs::ReadWrite),
        None | Some("any") => Ok(TargetSessionAttrs::Any),
        Some("read-write" | "primary") => Ok(TargetSessionAttrs::ReadWrite),
        Some("read-only" | "standby") => Ok(TargetSessionAttrs::ReadOnly),
        Some("prefer-standby") => {
            Err(Error::config("target_session_attrs=prefer-standby leads to servers that take no writes")
                .remedy("write target_session_attrs=read-write"))
        }
        Some(_) => Err(Error::config("target_session_attrs is none that libpq knows")
            .remedy("write target_session_attrs=read-write, or leave it out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_and_database() {
        let config = Config::within("postgres://u:hunter2@db1:6000,db2/shop", &EmptyEnvironment).expect("it is one");
        assert_eq!(config.place(), "db1:6000,db2:5432/shop");
        assert_eq!(config.postgres().get_password(), Some(b"hunter2".as_slice()));
        assert_eq!(config.postgres().get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(
            format!("{config:?}"),
            r#"Config { place: "db1:6000,db2:5432/shop", schema: "watchkeeper", timeout: 10s }"#
        );
        let odd = Config::within("postgres://u:it's%5Codd%20@db1/a%20b", &EmptyEnvironment).expect("it is one");
        assert_eq!(odd.postgres().get_password(), Some(br"it's\odd ".as_slice()));
        assert_eq!(odd.database(), "a b");
    }

    #[test]
    fn who_asks_for_tls_gets_it_or_nothing() {
        let mode = |url: &str| Config::within(url, &EmptyEnvironment).map(|config| config.postgres().get_ssl_mode());
        assert_eq!(mode("postgres://u@h/d").expect("it is one"), SslMode::Prefer);
        assert_eq!(mode("postgres://u@h/d?sslmode=disable").expect("it is one"), SslMode::Disable);
        assert_eq!(mode("postgres://u@%2Ftmp/d?sslmode=prefer").expect("it is one"), SslMode::Disable);
        let error = mode("postgres://u@h/d?sslmode=verify-full&sslrootcert=/nowhere/ca.pem").expect_err("no file");
        assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
        assert!(mode("postgres://u@h/d?sslmode=maybe").is_err());
        let error = mode("postgres://u@a,b/d?target_session_attrs=prefer-standby").expect_err("it takes no writes");
        assert!(error.advice().is_some_and(|advice| advice.contains("read-write")), "{error}");
    }
}
