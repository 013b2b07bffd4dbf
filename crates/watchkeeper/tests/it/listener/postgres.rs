//! The same program, with what listeners share in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use watchkeeper::postgres::deadpool_postgres::{Manager, Pool};
use watchkeeper::postgres::{Config, tokio_postgres};
use watchkeeper::{
    ChangeLogConfig, ChangeLogEntry, ChangeLogListener, Error, FailoverManager, MultiListenerCoordinator,
    ObserverError, PostgresCheckpointStore,
};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::support::{Shop, change_log, number, order, soon};

static SUM: AtomicU64 = AtomicU64::new(0);

async fn process_entries(entries: Vec<ChangeLogEntry>) -> Result<(), ObserverError> {
    let sum: u64 = entries.iter().map(number).sum();
    if SUM.fetch_add(sum, Ordering::Relaxed) + sum == 78 {
        return Err(Error::unavailable("that is all").into());
    }
    Ok(())
}

async fn run(pool: Pool, config: ChangeLogConfig) -> Result<(), ObserverError> {
    // Create coordinator
    let checkpoint_store = Arc::new(PostgresCheckpointStore::new(pool)?);
    let coordinator = MultiListenerCoordinator::new(checkpoint_store);

    // Register listeners
    coordinator.register_listener("listener-1".to_string()).await?;
    coordinator.register_listener("listener-2".to_string()).await?;

    // Get listener for this instance
    let listener_state = coordinator.get_listener_state("listener-1").await?;
    assert_eq!(listener_state, watchkeeper::ListenerState::Initializing);

    // Create failover manager
    let failover = FailoverManager::new(coordinator.clone());
    failover.start_health_monitor().await;

    // Use listener with coordinator
    let listener = ChangeLogListener::new(config).with_coordinator(coordinator.clone())?;

    // Automatic failover happens on failure detection
    loop {
        match listener.next_batch().await {
            Ok(entries) => process_entries(entries).await?,
            Err(ObserverError::ListenerFailover { checkpoint, .. }) => {
                // Failover triggered, checkpoint saved
                eprintln!("Failing over from checkpoint {}", checkpoint);
            }
            Err(e) => return Err(e),
        }
    }
}

#[tokio::test]
async fn a_pool_of_the_application_keeps_what_listeners_share() {
    let server = Server::start(Version::V15);
    let config = Config::new(&server.url("postgres")).expect("it is a URL");
    let manager = Manager::new(config.postgres().clone(), tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(8).build().expect("a pool can be made");
    let shop = Shop::new();
    let app = shop.open().await;
    order(&app, 1..=12).await;
    let log = change_log(shop.path(), "listener-1").await;
    let ended = soon("the last entry", run(pool, log)).await.expect_err("the loop ends by an error only");
    assert_eq!(ended.to_string(), "that is all [WK-UNAVAILABLE]");
    let by_url = PostgresCheckpointStore::connect(&server.url("postgres")).expect("it is a URL");
    let stores = by_url.stores(&watchkeeper::open::cx()).await.expect("the tables are there");
    assert!(stores.leases.profile().wakes, "on connections of its own it hears of releases");
}
