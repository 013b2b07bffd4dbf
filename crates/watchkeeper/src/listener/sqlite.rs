//! A SQLite file as the one store of a group.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use watchkeeper_core::{Cx, LeaseProfile, Result};
use watchkeeper_engine::instance::Stores;
use watchkeeper_sqlite::{Checkpoints, Client, Config, Leases, RecordStore};

/// Leases, checkpoints and records in one SQLite file, for several processes on one machine.
///
/// The file is opened, and made where it is missing, by the first call; until that has worked every call tries it
/// again. Keep it apart from the application's own database, whose long transactions would hold up renewals.
#[derive(Debug, Clone)]
pub struct SqliteCheckpointStore {
    config: Config,
    opened: Arc<OnceCell<Stores>>,
}

impl SqliteCheckpointStore {
    /// The file at `path`.
    ///
    /// # Errors
    /// `Config` when the path cannot work.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        Self::with_config(Config::new(path))
    }

    /// A file, and how to wait for it.
    ///
    /// # Errors
    /// `Config` when it cannot work.
    pub fn with_config(config: Config) -> Result<Self> {
        config.validate()?;
        Ok(Self { config, opened: Arc::default() })
    }

    /// The three roles of the file.
    pub async fn stores(&self, cx: &Cx) -> Result<&Stores> {
        self.opened.get_or_try_init(|| self.open(cx)).await
    }

    /// That of [`Leases`], which is known before the file is opened.
    fn lease_profile(&self) -> LeaseProfile {
        LeaseProfile { shortest: Duration::from_millis(100), wakes: true }
    }

    async fn open(&self, cx: &Cx) -> Result<Stores> {
        let client = Client::open(cx, self.config.clone()).await?;
        Ok(Stores {
            leases: Arc::new(Leases::open(cx, client.clone()).await?),
            checkpoints: Arc::new(Checkpoints::open(cx, client.clone()).await?),
            records: Arc::new(RecordStore::open(cx, client).await?),
        })
    }
}

super::lazy::store!(SqliteCheckpointStore);
