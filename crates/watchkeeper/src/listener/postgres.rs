//! A PostgreSQL database as the one store of a group.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use watchkeeper_core::{Cx, LeaseProfile, Result};
use watchkeeper_engine::instance::Stores;
use watchkeeper_postgres::deadpool_postgres::Pool;
use watchkeeper_postgres::{Checkpoints, Client, Config, Leases, RecordStore};

/// Leases, checkpoints and records in one PostgreSQL database, in the schema `watchkeeper`.
///
/// It is opened, and its tables are made where they are missing, by the first call; until that has worked every call tries it again.
///
/// A pool is one of [`deadpool_postgres`](watchkeeper_postgres::deadpool_postgres). Why not one of sqlx is told
/// [there](watchkeeper_postgres). Leases are renewed through the same pool, so let it have a few connections more than the application
/// itself ever takes; and nobody can LISTEN on a pool, so that others hear of a release only when they look, once in a second.
/// [`connect`](Self::connect) has neither need.
#[derive(Debug, Clone)]
pub struct PostgresCheckpointStore {
    client: Client,
    opened: Arc<OnceCell<Stores>>,
}

impl PostgresCheckpointStore {
    /// On a pool of connections of the application.
    ///
    /// # Errors
    /// `Config` when it cannot work; as yet every pool can.
    pub fn new(pool: Pool) -> Result<Self> {
        Ok(Self::of(Client::of_pool(pool, "watchkeeper")))
    }

    /// On connections of its own, to the database of a `postgres://` URL.
    ///
    /// # Errors
    /// `Config` when it is not such a URL.
    pub fn connect(url: &str) -> Result<Self> {
        Ok(Self::with_config(Config::new(url)?))
    }

    /// On connections of its own, made by these settings.
    pub fn with_config(config: Config) -> Self {
        Self::of(Client::lazy(config))
    }

    fn of(client: Client) -> Self {
        Self { client, opened: Arc::default() }
    }

    /// The three roles of the database.
    pub async fn stores(&self, cx: &Cx) -> Result<&Stores> {
        self.opened.get_or_try_init(|| self.open(cx)).await
    }

    /// That of [`Leases`], which is known before the database is reached.
    fn lease_profile(&self) -> LeaseProfile {
        LeaseProfile { shortest: Duration::from_millis(100), wakes: self.client.can_listen() }
    }

    async fn open(&self, cx: &Cx) -> Result<Stores> {
        let client = &self.client;
        Ok(Stores {
            leases: Arc::new(Leases::open(cx, client.clone()).await?),
            checkpoints: Arc::new(Checkpoints::open(cx, client.clone()).await?),
            records: Arc::new(RecordStore::open(cx, client.clone()).await?),
        })
    }
}

super::lazy::store!(PostgresCheckpointStore);
