use std::fmt;
use std::time::Duration;

use mongodb::options::{ClientOptions, ConnectionString, HostInfo, ReadConcern, WriteConcern};
use watchkeeper_core::{Error, Options, Renewable, Result};

/// The database that is used when a URL names none.
const DATABASE: &str = "watchkeeper";

/// Which servers and which database, and how long to wait for them.
///
/// It never shows its password: not in debug output, not in errors.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    url: Renewable,
    database: String,
    /// The longest time for one call, when its caller names no shorter one.
    pub timeout: Duration,
    /// With how many URLs it shares that time.
    sharing: u32,
}

/// Only where it leads to.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("place", &self.place()).field("timeout", &self.timeout).finish()
    }
}

impl Config {
    /// The servers and the database of a `mongodb://` or `mongodb+srv://` URL; the database is `watchkeeper` when the URL names
    /// none. Everything that the URL can say (TLS, users, compression, pools) is honoured, but for what safety rests on:
    /// writes and reads are of the majority, and the driver repeats nothing by itself.
    ///
    /// # Errors
    /// `Config` when it is not such a URL. The password does not appear in it.
    pub fn new(url: impl Into<String>) -> Result<Self> {
        let url: String = url.into();
        let parsed = ConnectionString::parse(&url).map_err(|error| unreadable(&url, &error))?;
        let database = parsed.default_database.unwrap_or_else(|| DATABASE.to_owned());
        Ok(Self { url: url.into(), database, timeout: Duration::from_secs(10), sharing: 1 })
    }

    /// The settings `url` and `timeout`.
    ///
    /// # Errors
    /// `Config` with the place where the setting was written.
    pub fn from_options(options: &mut Options) -> Result<Self> {
        let url = options.renewable("url", "\"mongodb://db1,db2,db3/watchkeeper?replicaSet=rs0\"");
        let named = url.and_then(|url| {
            let config = Self::new(url.text());
            let wrong = |error: Error| options.wrong("url", error.message()).remedy(error.advice().unwrap_or_default());
            Ok(Self { url, ..config.map_err(wrong)? })
        });
        // Where errors are collected the other settings are looked at too.
        let mut config = match options.reported(named)? {
            Some(config) => config,
            None => Self::new("mongodb://localhost/watchkeeper")?,
        };
        config.timeout = options.duration("timeout")?.unwrap_or(config.timeout);
        if config.timeout < Duration::from_millis(100) {
            let error = options.wrong("timeout", "no election of servers can be bridged in so short a time");
            options.report(error.remedy("leave it at \"10s\""))?;
        }
        Ok(config)
    }

    /// The same servers, and another database.
    #[must_use]
    pub fn in_database(mut self, database: impl Into<String>) -> Self {
        self.database = database.into();
        self
    }

    /// The same servers, as one of so many URLs that are tried in turn: none may wait so long that nobody hears what it waited for.
    #[must_use]
    pub(crate) fn one_of(mut self, urls: usize) -> Self {
        self.sharing = u32::try_from(urls).unwrap_or(u32::MAX).max(1);
        self
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Servers and database, without user and password.
    pub fn place(&self) -> String {
        let hosts = self.hosts();
        let hosts = if hosts.is_empty() { "mongodb".to_owned() } else { hosts.join(",") };
        format!("{hosts}/{}", self.database)
    }

    /// The servers that the URL names, or the one name that stands for them.
    pub(crate) fn hosts(&self) -> Vec<String> {
        match ConnectionString::parse(self.url.text()).map(|parsed| parsed.host_info) {
            Ok(HostInfo::HostIdentifiers(hosts)) => hosts.iter().map(ToString::to_string).collect(),
            Ok(HostInfo::DnsRecord(name)) => vec![name],
            _ => Vec::new(),
        }
    }

    /// The URL as it is now. What cannot be read again is as before.
    pub(crate) fn read_url(&self) -> String {
        let read = self.url.read_again().unwrap_or_else(|error| {
            tracing::warn!(place = self.place(), %error, "a URL cannot be read again");
            None
        });
        read.unwrap_or_else(|| self.url.text().to_owned())
    }

    /// What the driver is told, with this URL.
    pub(crate) async fn client_options(&self, url: &str) -> Result<ClientOptions, mongodb::error::Error> {
        let mut options = ClientOptions::parse(url).await?;
        options.app_name.get_or_insert_with(|| "watchkeeper".to_owned());
        // Retrying belongs to the engine alone, which knows how much of the lease is left.
        options.retry_writes = Some(false);
        options.retry_reads = Some(false);
        options.max_adaptive_retries = Some(0);
        options.write_concern = Some(WriteConcern::majority());
        options.read_concern = Some(ReadConcern::majority());
        options.connect_timeout.get_or_insert(self.timeout.min(Duration::from_secs(5)));
        // The driver knows why no server can be used: it has to say so before the call is given up.
        options.server_selection_timeout.get_or_insert(self.timeout.mul_f64(0.8) / self.sharing);
        // After a state change the driver believes a server only when it has asked it again.
        options.heartbeat_freq.get_or_insert(Duration::from_secs(1));
        Ok(options)
    }
}

/// The error of a URL that the driver does not understand, in which the URL itself cannot appear.
fn unreadable(url: &str, native: &mongodb::error::Error) -> Error {
    let said = native.kind.to_string();
    let secrets = secrets(url);
    let quotes_a_secret = secrets.iter().any(|secret| said.contains(secret.as_str()));
    let cause = if quotes_a_secret { "this is not a URL of MongoDB".to_owned() } else { said.replace('\n', " ") };
    let scheme =
        "write \"mongodb://host1,host2/database?replicaSet=name\", with signs in a password escaped (@ is %40)";
    Error::config(cause).remedy(scheme)
}

/// Every part of a URL that may be (a part of) a password.
fn secrets(url: &str) -> Vec<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let Some((credentials, _)) = rest.rsplit_once('@') else { return Vec::new() };
    let password = credentials.split_once(':').map_or("", |(_, password)| password);
    password.split(['@', ':', '/', '?', '%', '&']).filter(|part| part.len() > 2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_and_database() {
        let config = Config::new("mongodb://user:hunter2@db1:27018,db2/shop?replicaSet=rs0").expect("it is one");
        assert_eq!(config.place(), "db1:27018,db2:27017/shop");
        assert_eq!(format!("{config:?}"), r#"Config { place: "db1:27018,db2:27017/shop", timeout: 10s }"#);
        assert_eq!(Config::new("mongodb://db1").expect("it is one").database(), "watchkeeper");
    }

    #[test]
    fn a_password_is_never_reported() {
        for url in [
            "mongodb://user:hunter2@db1:notaport/shop",
            "mongodb://user:hunter2@/shop",
            "mongodb://user:hun@hunter2:x/y@db1/shop",
            "mongodb://user:hunter2@db1/shop?w=hunter2x&authMechanism=NONE",
            "mongo://user:hunter2@db1/shop",
        ] {
            let error = Config::new(url).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
            assert!(error.advice().is_some(), "{url}");
        }
    }
}
