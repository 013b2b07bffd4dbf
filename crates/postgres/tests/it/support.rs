use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use watchkeeper_core::{BootClock, Cx, Entropy, ErrorKind, Result};
use watchkeeper_postgres::{Client, Config};
use watchkeeper_testkit::servers::postgres::{Pooler, Server, Version};

/// A server of each version that all tests of this program share; each test has a database of its own in it.
pub(crate) fn shared(version: Version) -> &'static Server {
    static OLD: OnceLock<Server> = OnceLock::new();
    static NEW: OnceLock<Server> = OnceLock::new();
    let cell = if version == Version::V15 { &OLD } else { &NEW };
    cell.get_or_init(|| Server::start(version))
}

/// A pooler before the newer server, with so few connections that nobody has one for itself.
pub(crate) fn pooler() -> &'static Pooler {
    static POOLER: OnceLock<Pooler> = OnceLock::new();
    POOLER.get_or_init(|| Pooler::start(shared(Version::V18), 4))
}

/// A name that no other test uses.
pub(crate) fn fresh_name() -> String {
    format!("test_{}", Entropy::from_system().uuid().simple())
}

/// A place of its own on a shared server: a schema, or a whole database.
pub(crate) struct Base {
    server: &'static Server,
    pooler: Option<&'static Pooler>,
    database: String,
    schema: String,
}

impl Base {
    /// A schema of its own, which is made quickly; the test's tables lie in it too.
    pub(crate) fn schema(version: Version) -> Self {
        Self { server: shared(version), pooler: None, database: "postgres".to_owned(), schema: fresh_name() }
    }

    /// The same, reached through a pooler.
    pub(crate) fn pooled() -> Self {
        Self { pooler: Some(pooler()), ..Self::schema(Version::V18) }
    }

    /// A database of its own, for tests that look at all of it.
    pub(crate) async fn new(version: Version) -> Self {
        let (server, database) = (shared(version), fresh_name());
        let admin = connect(&server.url("postgres")).await;
        // The template is copied through the log: no checkpoint of the whole server has to be waited for.
        let sql = format!("CREATE DATABASE {database} STRATEGY wal_log");
        admin.batch_execute(&sql).await.expect("a database can be made");
        Self { server, pooler: None, database, schema: "watchkeeper".to_owned() }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.database)
    }

    /// A URL of this user (`name` or `name:password`).
    pub(crate) fn url_of(&self, user: &str) -> String {
        self.server.url_of(user, &self.database)
    }

    pub(crate) fn config(&self) -> Config {
        match self.pooler {
            Some(pooler) => {
                let mut config = self.config_by(&pooler.url(&self.database));
                config.pooled = true;
                config
            }
            None => self.config_of("postgres"),
        }
    }

    /// With so much time for every call that a busy machine is no reason to fail.
    fn config_by(&self, url: &str) -> Config {
        let config = Config::new(url).and_then(|config| config.in_schema(&self.schema));
        let mut config = config.expect("URL and name are good");
        config.timeout = Duration::from_secs(120);
        config
    }

    pub(crate) fn config_of(&self, user: &str) -> Config {
        self.config_by(&self.url_of(user))
    }

    pub(crate) async fn client(&self) -> Client {
        Client::open(&cx(), self.config()).await.expect("the server is there")
    }

    /// A bare connection of the superuser.
    pub(crate) async fn admin(&self) -> tokio_postgres::Client {
        connect(&self.url()).await
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    pub(crate) fn schema_name(&self) -> &str {
        &self.schema
    }

    /// Makes a user that may log in, and nothing else.
    pub(crate) async fn user(&self) -> String {
        let name = fresh_name();
        self.admin().await.batch_execute(&format!("CREATE ROLE {name} LOGIN")).await.expect("the superuser may");
        name
    }

    /// The name of a table for a sink that no other test uses.
    pub(crate) fn table(&self, name: &str) -> String {
        format!("public.{name}_{}", self.schema)
    }
}

/// A bare connection, without anything of ours in between.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}

/// Waits until something is so, for a minute at most.
pub(crate) async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !so().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "after a minute it is not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Asserts the kind of an error, and that it says what to do.
pub(crate) fn assert_error<T: std::fmt::Debug>(answer: Result<T>, kind: ErrorKind, cause: &str) {
    let error = answer.expect_err(cause);
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(cause), "{text:?} does not say {cause:?}");
    assert!(error.advice().is_some(), "{text:?} has no remedy");
    assert!(!text.contains('\n'), "{text:?} has more than one line");
}
