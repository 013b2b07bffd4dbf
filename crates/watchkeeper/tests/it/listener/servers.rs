//! What a shop stands on: files of SQLite, or a database of PostgreSQL.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use watchkeeper::listener::Store;
use watchkeeper::postgres::changelog::{Unread, Wake, install, prune};
use watchkeeper::postgres::deadpool_postgres::{Manager, Pool};
use watchkeeper::postgres::tokio_postgres::{NoTls, connect};
use watchkeeper::{
    ChangeLogConfig, MultiListenerConfig, MultiListenerCoordinator, PostgresCheckpointStore, SqliteCheckpointStore,
    Stores, postgres, sqlite,
};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::support::{GROUP, PATIENCE, STREAM, cx, settings};

/// Where everything is kept. It can be told to another process.
#[derive(Debug, Clone)]
pub(crate) enum Servers {
    /// In files of this folder.
    Files(PathBuf),
    /// In the database of this URL.
    Database(String),
}

/// What orders are written with.
pub(crate) enum App {
    Files(sqlite::Client),
    Database(postgres::Client),
}

impl Servers {
    /// A new database.
    pub(crate) async fn database() -> Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        let server = SERVER.get_or_init(|| Server::start(Version::V15));
        let name = format!("shop_{}", watchkeeper::core::Entropy::from_system().uuid().simple());
        let (session, connection) = connect(&server.url("postgres"), NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        // The template is copied through the log: no checkpoint of the whole server has to be waited for.
        let sql = format!("CREATE DATABASE {name} STRATEGY wal_log");
        session.batch_execute(&sql).await.expect("a database can be made");
        Self::Database(server.url(&name))
    }

    /// As a word on a command line.
    pub(crate) fn reported(&self) -> String {
        match self {
            Self::Files(folder) => folder.display().to_string(),
            Self::Database(url) => url.clone(),
        }
    }

    /// What [`told`](Self::told) said.
    pub(crate) fn heard(word: String) -> Self {
        if word.starts_with("postgres://") { Self::Database(word) } else { Self::Files(word.into()) }
    }

    /// The store, on connections of its own. That of PostgreSQL is on a pool, as an application has one.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Files(folder) => {
                Arc::new(SqliteCheckpointStore::new(folder.join("state.db")).expect("the path can work"))
            }
            Self::Database(url) => Arc::new(PostgresCheckpointStore::new(pool(url)).expect("every pool can work")),
        }
    }

    pub(crate) fn coordinator(&self, config: MultiListenerConfig) -> MultiListenerCoordinator {
        let store = self.store();
        let stores = Stores { leases: store.clone(), checkpoints: store.clone(), records: store };
        MultiListenerCoordinator::configured(stores, GROUP, config).expect("the settings are right")
    }

    /// Makes the table of orders and its log.
    pub(crate) async fn open(&self) -> App {
        match self {
            Self::Files(folder) => {
                let app = sqlite::Client::open(&cx(), sqlite::Config::new(folder.join("app.db"))).await;
                let app = app.expect("a new file can be opened");
                let table = "CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT)";
                app.write(&cx(), move |open| Ok(open.execute_batch(table)?)).await.expect("the table is new");
                sqlite::tools::install(&cx(), &app, &["orders"]).await.expect("the table has a key");
                App::Files(app)
            }
            Self::Database(url) => {
                let app = client(url).await;
                let table = "CREATE TABLE orders(id bigint PRIMARY KEY, item text)";
                app.write(&cx(), table, &[]).await.expect("the table is new");
                install(&cx(), &app, &["orders"], Wake::Notify).await.expect("the table has a key");
                App::Database(app)
            }
        }
    }

    /// The orders, five at a time.
    pub(crate) async fn change_log(&self, name: &str) -> ChangeLogConfig {
        let source: Arc<dyn watchkeeper::Source> = match self {
            Self::Files(folder) => {
                let app = sqlite::Client::open(&cx(), sqlite::Config::existing(folder.join("app.db"))).await;
                let log = sqlite::ChangeLog::open(&cx(), app.expect("the shop is open"), STREAM).await;
                Arc::new(log.expect("orders are logged"))
            }
            Self::Database(url) => {
                let log = postgres::ChangeLog::open(&cx(), client(url).await, STREAM).await;
                Arc::new(log.expect("orders are logged"))
            }
        };
        let mut config = ChangeLogConfig::new(STREAM, source);
        config.batch_size = 5;
        config.patience = Some(PATIENCE);
        config.multi_listener = settings(name);
        config
    }
}

impl App {
    /// Writes orders with these numbers, each a change of its own key.
    pub(crate) async fn order(&self, numbers: RangeInclusive<u64>) {
        let (first, last) = (numbers.start().cast_signed(), numbers.end().cast_signed());
        match self {
            Self::Files(app) => {
                let write = move |open: &sqlite::rusqlite::Transaction<'_>| {
                    for number in first..=last {
                        open.execute("INSERT INTO orders VALUES (?1, 'rope')", [number])?;
                    }
                    Ok(())
                };
                app.write(&cx(), write).await.expect("the orders are new");
            }
            Self::Database(app) => {
                let sql = format!("INSERT INTO orders SELECT g, 'rope' FROM generate_series({first}, {last}) g");
                app.write(&cx(), &sql, &[]).await.expect("the orders are new");
            }
        }
    }

    /// Prunes the first eight changes, or (in a database, which has no part of a log) all there are, whoever has not read them.
    pub(crate) async fn forget(&self) {
        match self {
            Self::Files(app) => sqlite::tools::prune(&cx(), app, 8).await,
            Self::Database(app) => prune(&cx(), app, Unread::Discard).await.map(drop),
        }
        .expect("the log can be pruned");
    }
}

async fn client(url: &str) -> postgres::Client {
    let config = postgres::Config::new(url).expect("it is a URL");
    postgres::Client::open(&cx(), config).await.expect("the server is there")
}

/// A pool as an application makes it.
pub(crate) fn pool(url: &str) -> Pool {
    let config = postgres::Config::new(url).expect("it is a URL");
    let manager = Manager::new(config.postgres().clone(), NoTls);
    Pool::builder(manager).max_size(8).build().expect("a pool can be made")
}
