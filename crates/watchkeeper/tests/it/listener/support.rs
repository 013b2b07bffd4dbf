use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use watchkeeper::core::BootClock;
use watchkeeper::listener::Store;
use watchkeeper::{
    ChangeLogEntry, ChangeLogListener, Checkpoint, Cx, LeaseKey, LeaseManager, MultiListenerConfig,
    MultiListenerCoordinator,
};

use super::servers::{App, Servers};

pub(crate) const GROUP: &str = "shop";
pub(crate) const STREAM: &str = "orders";

/// Long enough that a busy machine loses no lease, short enough to wait for.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);

/// Far beyond what anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A shop's database with a log of its orders, and a store that its listeners share.
pub(crate) struct Shop {
    /// For what processes tell each other, and for the files of a shop that has no server.
    folder: tempfile::TempDir,
    servers: Servers,
}

impl Shop {
    pub(crate) fn in_files() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let servers = Servers::Files(folder.path().to_owned());
        Self { folder, servers }
    }

    /// A database of its own, on a server that all shops of this program share.
    pub(crate) async fn in_postgres() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let shop = Self { folder, servers: Servers::database().await };
        // Its tables are made now: leases are counted from before the first call, which would otherwise do it.
        assert_eq!(shop.checkpoint().await, None);
        shop
    }

    /// Another one of the same kind, of which this one knows nothing.
    pub(crate) async fn another(&self) -> Self {
        if matches!(self.servers, Servers::Files(_)) { Self::in_files() } else { Self::in_postgres().await }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state.db")
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.servers.store()
    }

    /// A coordinator with connections of its own, as another process would have.
    pub(crate) fn coordinator(&self) -> MultiListenerCoordinator {
        self.servers.coordinator(settings("nobody"))
    }

    pub(crate) fn leases(&self) -> LeaseManager {
        let millis = u64::try_from(LEASE.as_millis()).expect("it is short");
        LeaseManager::new(self.store(), GROUP, millis).expect("the lease is long enough")
    }

    /// Makes the table of orders and its log.
    pub(crate) async fn open(&self) -> App {
        self.servers.open().await
    }

    pub(crate) async fn listener(&self, name: &str, coordinator: &MultiListenerCoordinator) -> ChangeLogListener {
        let config = self.servers.change_log(name).await;
        ChangeLogListener::new(config).with_coordinator(coordinator).expect("the settings are right")
    }

    pub(crate) async fn checkpoint(&self) -> Option<Checkpoint> {
        let key = LeaseKey::new(format!("{GROUP}/{STREAM}/0/0"));
        self.store().load(&cx(), &key).await.expect("the store answers")
    }

    /// How many changes are committed.
    pub(crate) async fn committed(&self) -> u64 {
        self.checkpoint().await.map_or(0, |checkpoint| checkpoint.facts.changes)
    }
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock)).within(PATIENCE)
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

/// A test per function and store: each is given a shop that nobody else has.
macro_rules! on_each_store {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($crate::listener::support::Shop::in_files()).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($crate::listener::support::Shop::in_postgres().await).await;
                }
            )*
        }
    };
}

pub(crate) use on_each_store;
