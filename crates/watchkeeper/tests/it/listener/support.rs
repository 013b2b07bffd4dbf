use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use watchkeeper::core::BootClock;
use watchkeeper::sqlite::{ChangeLog, Client, Config, tools};
use watchkeeper::{
    ChangeLogConfig, ChangeLogEntry, ChangeLogListener, Checkpoint, CheckpointStore, Cx, LeaseKey, LeaseManager,
    MultiListenerConfig, MultiListenerCoordinator, SqliteCheckpointStore, Stores,
};

pub(crate) const GROUP: &str = "shop";
pub(crate) const STREAM: &str = "orders";

/// Long enough that a busy machine loses no lease, short enough to wait for.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);

/// Far beyond what anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A shop's database with a log of its orders, and a file that its listeners share.
pub(crate) struct Shop {
    folder: tempfile::TempDir,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder can be made") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state.db")
    }

    pub(crate) fn store(&self) -> Arc<SqliteCheckpointStore> {
        store(self.path())
    }

    /// A coordinator with a connection of its own, as another process would have.
    pub(crate) fn coordinator(&self) -> MultiListenerCoordinator {
        coordinator(self.path(), settings("nobody"))
    }

    pub(crate) fn leases(&self) -> LeaseManager {
        let millis = u64::try_from(LEASE.as_millis()).expect("it is short");
        LeaseManager::new(self.store(), GROUP, millis).expect("the lease is long enough")
    }

    /// Makes the table of orders and its log.
    pub(crate) async fn open(&self) -> Client {
        let app = Client::open(&cx(), Config::new(self.path().join("app.db"))).await.expect("a new file can be opened");
        let table = "CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT)";
        app.write(&cx(), move |transaction| Ok(transaction.execute_batch(table)?)).await.expect("the table is new");
        tools::install(&cx(), &app, &["orders"]).await.expect("the table has a key");
        app
    }

    pub(crate) async fn listener(&self, name: &str, coordinator: &MultiListenerCoordinator) -> ChangeLogListener {
        let config = change_log(self.path(), name).await;
        ChangeLogListener::new(config).with_coordinator(coordinator).expect("the settings are right")
    }

    pub(crate) async fn checkpoint(&self) -> Option<Checkpoint> {
        let key = LeaseKey::new(format!("{GROUP}/{STREAM}/0/0"));
        self.store().load(&cx(), &key).await.expect("the file answers")
    }

    /// How many changes are committed.
    pub(crate) async fn committed(&self) -> u64 {
        self.checkpoint().await.map_or(0, |checkpoint| checkpoint.facts.changes)
    }
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock)).within(PATIENCE)
}

pub(crate) fn store(folder: &Path) -> Arc<SqliteCheckpointStore> {
    Arc::new(SqliteCheckpointStore::new(folder.join("state.db")).expect("the path can work"))
}

pub(crate) fn coordinator(folder: &Path, config: MultiListenerConfig) -> MultiListenerCoordinator {
    let store = store(folder);
    let stores = Stores { leases: store.clone(), checkpoints: store.clone(), records: store };
    MultiListenerCoordinator::configured(stores, GROUP, config).expect("the settings are right")
}

pub(crate) fn settings(name: &str) -> MultiListenerConfig {
    MultiListenerConfig {
        enabled: true,
        listener_id: name.to_owned(),
        lease_duration_ms: 1_500,
        health_check_interval_ms: 200,
        failover_threshold_ms: 2_000,
        max_listeners: 4,
    }
}

/// The orders of the shop in `folder`, five at a time.
pub(crate) async fn change_log(folder: &Path, name: &str) -> ChangeLogConfig {
    let app = Client::open(&cx(), Config::existing(folder.join("app.db"))).await.expect("the shop is open");
    let log = ChangeLog::open(&cx(), app, STREAM).await.expect("orders are logged");
    let mut config = ChangeLogConfig::new(STREAM, Arc::new(log));
    config.batch_size = 5;
    config.patience = Some(PATIENCE);
    config.multi_listener = settings(name);
    config
}

/// Writes orders with these numbers, each a change of its own key.
pub(crate) async fn order(app: &Client, numbers: std::ops::RangeInclusive<u64>) {
    let write = move |transaction: &watchkeeper::sqlite::rusqlite::Transaction<'_>| {
        for number in numbers {
            transaction.execute("INSERT INTO orders VALUES (?1, 'rope')", [number.cast_signed()])?;
        }
        Ok(())
    };
    app.write(&cx(), write).await.expect("the orders are new");
}

/// The number of an order, from the canonical key `[number]`.
pub(crate) fn number(entry: &ChangeLogEntry) -> u64 {
    let key = std::str::from_utf8(entry.key().expect("orders have a key")).expect("a key is text");
    key.trim_matches(['[', ']']).parse().expect("a key is a number")
}

pub(crate) fn numbers(entries: &[ChangeLogEntry]) -> Vec<u64> {
    entries.iter().map(number).collect()
}

/// Waits until `condition` gives something, within [`PATIENCE`].
pub(crate) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = condition().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// What `work` gives, within [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}
