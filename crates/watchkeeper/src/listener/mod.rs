//! Several listeners to one change log, of which one has the watch.
//!
//! For those who would rather ask for batches than be called: a [`ChangeLogListener`] gives them, a
//! [`MultiListenerCoordinator`] knows all listeners of a group, in this process and in others, and a [`FailoverManager`] looks after
//! them. It is all made of the engine: the same leases, the same fenced checkpoint, the same hand-over; a stream that is listened to
//! here can be paused, moved and looked at as any other. Names, states and heartbeats are kept in the group's records.
//!
//! A checkpoint is an `i64` here: the number of changes of the stream that are committed.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use watchkeeper::listener::{
//!     ChangeLogConfig, ChangeLogListener, FailoverManager, MultiListenerCoordinator, ObserverError, Result, Store,
//! };
//!
//! async fn listen(store: Arc<dyn Store>, config: ChangeLogConfig) -> Result<()> {
//!     let coordinator = MultiListenerCoordinator::new(store);
//!     let failover = FailoverManager::new(coordinator.clone());
//!     // The monitor runs as long as the manager or this guard is kept.
//!     let _monitor = failover.start_health_monitor().await;
//!     let listener = ChangeLogListener::new(config).with_coordinator(coordinator.clone())?;
//!     loop {
//!         match listener.next_batch().await {
//!             Ok(entries) => entries.iter().for_each(|entry| println!("{} {}", entry.checkpoint, entry.id())),
//!             Err(ObserverError::ListenerFailover { checkpoint, .. }) => eprintln!("relieved at {checkpoint}"),
//!             Err(error) => return Err(error),
//!         }
//!     }
//! }
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `changelog` | `ChangeLogListener`: `next_batch`, `ack`, `close` |
//! | `post` | the engine of a listener: one stream, the batches taken and not yet known to be committed, the end of a tenure |
//! | `ack_sink` | the sink: a write offers its rows and returns when they are acknowledged |
//! | `observed` | a checkpoint store that reports what was committed through it |
//! | `coordinator`, `leader` | `MultiListenerCoordinator`: registration, heartbeats, health; the election of a leader, stored as a lease |
//! | `roster`, `handle` | the registered listeners, in records of their own; one listener of this process |
//! | `failover` | notices listeners that fell silent, chooses who takes over, and requests it |
//! | `lease` | a lease on a numbered checkpoint, for callers who renew it themselves |
//! | `state`, `config`, `error`, `metrics` | states with a bound on recoveries; settings; errors; metrics |
//! | `store`, `lazy`, `sqlite`, `postgres` | `Store`, all three contracts in one; stores opened by the first call; SQLite and PostgreSQL as one store |

mod ack_sink;
mod changelog;
mod config;
mod coordinator;
mod error;
mod failover;
mod handle;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod lazy;
mod leader;
mod lease;
mod metrics;
mod observed;
mod post;
#[cfg(feature = "postgres")]
mod postgres;
mod roster;
#[cfg(feature = "sqlite")]
mod sqlite;
mod state;
mod store;

pub use changelog::{ChangeLogEntry, ChangeLogListener};
pub use config::{ChangeLogConfig, MultiListenerConfig};
pub use coordinator::{DEFAULT_GROUP, ListenerHealth, MultiListenerCoordinator};
pub use error::{ObserverError, Result};
pub use failover::{FailoverEvent, FailoverManager, HealthMonitor};
pub use handle::ListenerHandle;
pub use lease::{CheckpointLease, LeaseManager};
#[cfg(feature = "metrics")]
pub use metrics::ListenerMetrics;
#[cfg(feature = "postgres")]
pub use postgres::PostgresCheckpointStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteCheckpointStore;
pub use state::ListenerStateMachine;
pub use store::Store;
pub use watchkeeper_engine::listener::ListenerState;
