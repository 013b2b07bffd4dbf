//! Keeps a change stream watched.
//!
//! Several instances of a service run; for every stream exactly one of them has the watch and the
//! others stand by. When the one on watch is stopped, crashes, hangs or is cut off, another takes over
//! and goes on from the shared checkpoint, with nothing lost and no stale checkpoint let through.
//!
//! This crate is the facade: it decides nothing itself. What nearly everyone needs is at its root: an
//! instance is made by [`Watchkeeper::builder`] in a few lines (see [`builder`]), stores and sources are opened by
//! their address (see [`open`]), and those who would rather pull changes than be called find them in [`pull`]. All
//! else is in two modules:
//!
//! * [`core`] has the vocabulary (changes, positions, names, errors), the contracts that a source, a
//!   sink or a store keeps, the seams to time, tasks and randomness, and a reference of every contract
//!   in memory.
//! * [`engine`] has everything that decides: the instance, its listeners, the pipeline, delivery to
//!   handlers, the group, operators' moves, and election for those who have no stream.
//!
//! A group shares three stores ([`Stores`]); they may be three systems. An instance is started with
//! [`Running::start`] and the streams that it can run, each a source, its sinks and its settings
//! ([`StreamSpec`]). Handlers are one kind of sink: [`Routes`] say which changes each of them gets, and
//! an [`ObserverExecutor`] makes a sink of them.
//!
//! [`peers`] is how the death of an instance is proved. Backends are features: `sqlite`, `mongodb`, `postgres` and `file`, all
//! by default. Those who would rather ask for batches than be called find [`ChangeLogListener`] in [`listener`].
//!
//! This is a stream with everything in memory, without the builder:
//!
//! ```
//! use std::sync::Arc;
//!
//! use tokio::sync::mpsc;
//! use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
//! use watchkeeper::{
//!     CheckpointStore, HandlerError, InstanceSettings, ObserverExecutor, Operation, Result, Routes, Running, Seams,
//!     SinkSpec, SourceTime, StartAt, StoreIdentity, Stores, StreamSettings, StreamSpec, handler,
//! };
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<()> {
//!     let seams = Seams::system();
//!     let checkpoints = Arc::new(Checkpoints::new(StoreIdentity(seams.entropy.uuid())));
//!     let stores = Stores {
//!         leases: Arc::new(Leases::new(seams.clock.clone())),
//!         checkpoints: checkpoints.clone(),
//!         records: Arc::new(RecordStore::new(seams.clock.clone())),
//!     };
//!
//!     // A source with two changes in it.
//!     let log = Log::new("shop");
//!     for body in [r#"{"item":"rope"}"#, r#"{"item":"lamp"}"#] {
//!         let (namespace, key) = ("orders".to_owned(), Some("order 1".into()));
//!         let change = NewChange { operation: Operation::Insert, namespace, key, body: body.into(), first_half: false };
//!         log.append(change, SourceTime(0));
//!     }
//!
//!     // A handler, called with every insert into `orders`.
//!     let (sender, mut arrived) = mpsc::channel(10);
//!     let insert = handler(move |change| {
//!         let sender = sender.clone();
//!         async move {
//!             let body = String::from_utf8_lossy(change.body()).into_owned();
//!             sender.send(body).await.map_err(HandlerError::retry)
//!         }
//!     });
//!     let handlers = ObserverExecutor::new(Routes::new().on("orders", Operation::Insert, insert));
//!
//!     let stream = StreamSpec {
//!         settings: StreamSettings { start: StartAt::Oldest, ..StreamSettings::new("orders") },
//!         source: Arc::new(log),
//!         sinks: vec![SinkSpec::new("handlers", Arc::new(handlers.sink()))],
//!         checkpoints: None,
//!     };
//!     let settings = InstanceSettings::new("shop", "first");
//!     let key = stream.key(&settings.group);
//!     let mut running = Running::start(seams.clone(), stores, settings, vec![stream]).await?;
//!     assert_eq!(arrived.recv().await.as_deref(), Some(r#"{"item":"rope"}"#));
//!     assert_eq!(arrived.recv().await.as_deref(), Some(r#"{"item":"lamp"}"#));
//!
//!     // In order: drain, commit, close, and release last.
//!     running.shutdown();
//!     running.join().await?;
//!     let checkpoint = checkpoints.load(&seams.cx(), &key).await?.expect("it was committed");
//!     assert_eq!(checkpoint.facts.changes, 2);
//!     Ok(())
//! }
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`builder`] | an instance in a few lines |
//! | [`open`] | stores and sources by their address |
//! | `operate` | pausing, handing over and dead letters, from a program |
//! | [`pull`] | a feed of changes with acknowledgement |
//! | `registry` | the backends of a build |
//! | [`listener`] | listeners that ask for batches, and a registry of named listeners |
//!
//! The programs in `examples` are run by `tests/it/examples.rs`.
#![deny(missing_docs)]

pub mod builder;
pub mod listener;
pub mod open;
pub mod operate;
pub mod pull;
pub mod registry;

pub use builder::{Builder, Stream, Watch, Watchkeeper};
pub use operate::{Back, StreamOperator};
pub use registry::backends::*;
pub use watchkeeper_core as core;
pub use watchkeeper_engine as engine;

#[cfg(feature = "metrics")]
pub use listener::ListenerMetrics;
#[cfg(feature = "postgres")]
pub use listener::PostgresCheckpointStore;
#[cfg(feature = "sqlite")]
pub use listener::SqliteCheckpointStore;
pub use listener::{
    ChangeLogConfig, ChangeLogEntry, ChangeLogListener, CheckpointLease, FailoverEvent, FailoverManager, HealthMonitor,
    LeaseManager, ListenerHandle, ListenerHealth, ListenerStateMachine, MultiListenerConfig, MultiListenerCoordinator,
    ObserverError, Store,
};

pub use watchkeeper_core::{
    Batch, Change, ChangeStream, Checkpoint, CheckpointStore, Cx, Epoch, Error, ErrorKind, Follower, Grade, InstanceId,
    LeaseKey, LeaseStore, Operation, OperationTime, Position, Records, Result, Sink, SinkProfile, Source, SourceTime,
    StartAt, StoreIdentity, Update, ValueRef,
};
pub use watchkeeper_engine::delivery::{
    Filter, Handler, HandlerContext, HandlerError, HandlerSettings, HandlerSink, Namespaces, ObserverExecutor,
    OnReject, Operations, Park, Pattern, Routes, handler, handler_with,
};
pub use watchkeeper_engine::election::{Campaign, Term};
pub use watchkeeper_engine::group::report::{StreamActivity, Trouble};
pub use watchkeeper_engine::instance::{Running, Stores};
pub use watchkeeper_engine::listener::{ListenerState, StreamStatus};
pub use watchkeeper_engine::seams::Seams;
pub use watchkeeper_engine::settings::{
    CheckpointPolicy, FastTakeover, InstanceSettings, LeaseSettings, OnHistoryLost, RetrySettings, StreamSettings,
    Timeouts,
};
pub use watchkeeper_engine::stream::{SinkSpec, StreamSpec};

/// The snippets of the guide and the README, run as tests.
#[cfg(all(doctest, feature = "sqlite"))]
mod guide {
    #[doc = include_str!("../../../docs/guide/library.md")]
    struct Library;

    #[doc = include_str!("../../../README.md")]
    struct Readme;
}
