//! A program as one would write it first, with its loop ended from within.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use watchkeeper::{
    ChangeLogConfig, ChangeLogEntry, ChangeLogListener, Error, FailoverManager, MultiListenerCoordinator,
    ObserverError, SqliteCheckpointStore,
};

use super::support::{Shop, number, soon};

static SUM: AtomicU64 = AtomicU64::new(0);

async fn process_entries(entries: Vec<ChangeLogEntry>) -> Result<(), ObserverError> {
    let sum: u64 = entries.iter().map(number).sum();
    if SUM.fetch_add(sum, Ordering::Relaxed) + sum == 78 {
        return Err(Error::unavailable("that is all").into());
    }
    Ok(())
}

async fn run(pool: &Path, config: ChangeLogConfig) -> Result<(), ObserverError> {
    // Create coordinator
    let checkpoint_store = Arc::new(SqliteCheckpointStore::new(pool)?);
    let coordinator = MultiListenerCoordinator::new(checkpoint_store);

    // Register listeners
    coordinator.register_listener("listener-1".to_string()).await?;
    coordinator.register_listener("listener-2".to_string()).await?;

    // Get listener for this instance
    let listener_state = coordinator.get_listener_state("listener-1").await?;
    assert_eq!(listener_state, watchkeeper::ListenerState::Initializing);

    // Create failover manager
    let failover = FailoverManager::new(coordinator.clone());
    let _monitor = failover.start_health_monitor().await;

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
async fn the_first_program_that_one_would_write_works() {
    let shop = Shop::in_files();
    let app = shop.open().await;
    app.order(1..=12).await;
    let config = shop.servers().change_log("listener-1").await;
    let ended = soon("the last entry", run(&shop.state(), config)).await.expect_err("the loop ends by an error only");
    assert_eq!(ended.to_string(), "that is all [WK-UNAVAILABLE]");
}
