//! Several listeners to a change log of PostgreSQL, of which one has the watch:
//! `cargo run -p watchkeeper --example listeners postgres://localhost/shop listener-1`, in as many terminals as you like.
//!
//! The tables that it listens to are those of `watchkeeper postgres install --url … --table orders`.

use std::sync::Arc;

use watchkeeper::postgres::deadpool_postgres::{Manager, Pool};
use watchkeeper::postgres::tokio_postgres::NoTls;
use watchkeeper::{
    ChangeLogConfig, ChangeLogListener, Error, FailoverManager, MultiListenerConfig, MultiListenerCoordinator,
    ObserverError, PostgresCheckpointStore, open,
};

/// Takes so many changes as the listener of this name; the answer is what it had.
pub async fn run(url: &str, name: &str, changes: usize) -> Result<Vec<String>, ObserverError> {
    let config = MultiListenerConfig {
        listener_id: name.to_owned(),
        lease_duration_ms: 3_000,
        health_check_interval_ms: 1_000,
        failover_threshold_ms: 6_000,
        ..MultiListenerConfig::default()
    };
    let coordinator = MultiListenerCoordinator::new(Arc::new(PostgresCheckpointStore::new(pool(url)?)?));
    let coordinator = coordinator.with_config(config.clone())?;
    let _monitor = FailoverManager::new(coordinator.clone()).start_health_monitor().await;

    let mut log = ChangeLogConfig::new("orders", open::source(url, "listeners", "orders").await?);
    log.multi_listener = config;
    let listener = ChangeLogListener::new(log).with_coordinator(coordinator)?;
    let mut had = Vec::new();
    while had.len() < changes {
        // Asking for more commits what was taken before.
        match listener.next_batch().await {
            Ok(entries) => {
                had.extend(entries.iter().map(|entry| format!("{} {}", entry.checkpoint, entry.operation())))
            }
            Err(ObserverError::ListenerFailover { checkpoint, .. }) => eprintln!("relieved at {checkpoint}"),
            Err(error) => return Err(error),
        }
    }
    listener.ack().await?;
    listener.close().await?;
    Ok(had)
}

/// A pool as an application has one.
fn pool(url: &str) -> Result<Pool, Error> {
    let config = watchkeeper::postgres::Config::new(url)?;
    let pool = Pool::builder(Manager::new(config.postgres().clone(), NoTls)).max_size(8).build();
    pool.map_err(|error| Error::config("no pool can be made").caused_by(error))
}

#[tokio::main]
async fn main() -> Result<(), ObserverError> {
    let mut words = std::env::args().skip(1);
    let url = words.next().unwrap_or_else(|| "postgres://localhost/shop".to_owned());
    let name = words.next().unwrap_or_else(|| "listener-1".to_owned());
    for line in run(&url, &name, 10).await? {
        println!("{line}");
    }
    Ok(())
}
