use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use watchkeeper::core::Cx;
use watchkeeper::engine::delivery::backoff::Backoff;
use watchkeeper::sqlite::{ChangeLog, Checkpoints, Client, Config, Leases, RecordStore, Transactional, tools};
use watchkeeper::{
    InstanceSettings, LeaseSettings, Result, RetrySettings, Sink, SinkSpec, StartAt, Stores, StreamSettings, StreamSpec,
};

use super::fault_hooks::FaultHooks;
use super::sink::{Handled, Receipts};

/// How long a lease is.
pub(super) const LEASE: Duration = Duration::from_secs(1);

/// How long at most one that failed leaves the watch to others: while it is barred, and until it looks again.
pub(super) const REST: Duration = Duration::from_millis(1_250);

/// The group's name.
pub(super) const GROUP: &str = "demo";

/// The stream's name, which is the table's too.
pub(super) const STREAM: &str = "orders";

/// The number `n` counts the changes of an order; the time is what the lag is told by.
const ORDERS: &str = "CREATE TABLE orders(id TEXT PRIMARY KEY, n INTEGER NOT NULL, written_micros INTEGER NOT NULL)";

/// A folder with three databases: the application's, the group's, and the one in which changes arrive. They are apart,
/// since a file of SQLite has one writer at a time.
#[derive(Debug, Clone)]
pub(super) struct Workspace {
    folder: PathBuf,
}

impl Workspace {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The application's own database, with the log that triggers fill.
    pub(super) fn shop(&self) -> PathBuf {
        self.folder.join("shop.db")
    }

    /// Leases and records.
    pub(super) fn group(&self) -> PathBuf {
        self.folder.join("group.db")
    }

    /// Where changes arrive, and where the checkpoint is kept.
    pub(super) fn received(&self) -> PathBuf {
        self.folder.join("received.db")
    }

    /// What an instance said on its standard error.
    pub(super) fn log(&self, instance: &str) -> PathBuf {
        self.folder.join(format!("{instance}.log"))
    }

    /// Makes everything, so that nobody waits for tables later.
    pub(super) async fn set_up(&self, cx: &Cx) -> Result<()> {
        let shop = Client::open(cx, Config::new(self.shop())).await?;
        shop.write(cx, |transaction| Ok(transaction.execute_batch(ORDERS)?)).await?;
        tools::install(cx, &shop, &[STREAM]).await?;
        self.stores(cx).await?;
        self.sink(cx, &Arc::default()).await?.check(cx).await.map(drop)
    }

    /// What the group shares.
    pub(super) async fn stores(&self, cx: &Cx) -> Result<Stores> {
        let client = Client::open(cx, Config { evict: true, ..Config::new(self.group()) }).await?;
        let leases = Leases::open(cx, client.clone()).await?;
        let checkpoints = Checkpoints::open(cx, client.clone()).await?;
        let records = RecordStore::open(cx, client.separate(cx).await?).await?;
        Ok(Stores { leases: Arc::new(leases), checkpoints: Arc::new(checkpoints), records: Arc::new(records) })
    }

    /// The one stream: from the log of the orders into the transactional sink.
    pub(super) async fn stream(&self, cx: &Cx, hooks: &Arc<FaultHooks>) -> Result<StreamSpec> {
        let log = Client::open(cx, Config::existing(self.shop())).await?;
        let source = Arc::new(ChangeLog::open(cx, log, STREAM).await?);
        let sink = self.sink(cx, hooks).await?;
        let checkpoints = Some(Arc::new(sink.checkpoints().clone()) as _);
        let sinks = vec![SinkSpec::new("received", Arc::new(Handled::new(sink, Arc::clone(hooks))))];
        Ok(StreamSpec { settings: stream_settings(), source, sinks, checkpoints })
    }

    /// Whoever is stopped inside a transaction of the sink is evicted, since nobody else could write.
    async fn sink(&self, cx: &Cx, hooks: &Arc<FaultHooks>) -> Result<Transactional> {
        let config = Config { evict: true, ..Config::new(self.received()) };
        Transactional::open(cx, Client::open(cx, config).await?, Receipts::new(Arc::clone(hooks))).await
    }
}

fn stream_settings() -> StreamSettings {
    let moment = Duration::from_millis(100);
    let retry = RetrySettings {
        recovery_backoff: Backoff { first: moment, factor: 2, max: Duration::from_secs(1) },
        ..RetrySettings::default()
    };
    StreamSettings { start: StartAt::Oldest, give_up: 2 * LEASE, retry, ..StreamSettings::new(STREAM) }
}

/// A group in which much happens: those who are gone are soon forgotten, and who failed soon stands by again.
pub(super) fn instance_settings(name: &str) -> InstanceSettings {
    InstanceSettings {
        lease: LeaseSettings::new(LEASE),
        heartbeat_every: LEASE / 4,
        unhealthy_after: LEASE,
        bar: LEASE,
        retry_floor: LEASE / 4,
        ..InstanceSettings::new(GROUP, name)
    }
}
