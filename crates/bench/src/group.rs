//! A group in memory: what an instance is started in.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use watchkeeper_core::memory::{Checkpoints, Leases, RecordStore};
use watchkeeper_core::{
    BootClock, Checkpoint, CheckpointStore, Clock, Cx, Entropy, Error, Result, Sink, Source, StartAt,
};
use watchkeeper_core::{LeaseKey, StoreIdentity};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};

/// Worker threads of the runtime, besides the keeper's own thread.
pub(crate) const WORKERS: usize = 2;

/// The runtime that the program uses, small.
pub(crate) fn runtime() -> Result<Runtime> {
    built(Builder::new_multi_thread().worker_threads(WORKERS))
}

/// A runtime on the calling thread alone.
pub(crate) fn single_thread() -> Result<Runtime> {
    built(&mut Builder::new_current_thread())
}

fn built(builder: &mut Builder) -> Result<Runtime> {
    let runtime = builder.enable_time().build();
    runtime.map_err(|error| Error::unavailable("could not start a runtime").caused_by(error))
}

/// Stores in memory that instances share.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) stores: Stores,
    pub(crate) checkpoints: Checkpoints,
}

impl Group {
    /// Empty stores.
    pub(crate) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(BootClock);
        let checkpoints = Checkpoints::new(StoreIdentity(Entropy::from_system().uuid()));
        let stores = Stores {
            leases: Arc::new(Leases::new(Arc::clone(&clock))),
            checkpoints: Arc::new(checkpoints.clone()),
            records: Arc::new(RecordStore::new(clock)),
        };
        Self { stores, checkpoints }
    }

    /// Starts an instance with the usual settings, on the runtime of the caller.
    pub(crate) async fn start(&self, name: &str, streams: Vec<StreamSpec>) -> Result<Running> {
        let settings = InstanceSettings::new("bench", name);
        Running::start(Seams::system(), self.stores.clone(), settings, streams).await
    }

    /// The newest checkpoint of a stream.
    pub(crate) async fn checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>> {
        let key = LeaseKey::new(format!("bench/{stream}/0/0"));
        self.checkpoints.load(&Cx::new(Arc::new(BootClock)), &key).await
    }
}

/// A stream with the usual settings from the oldest change of `source` to one sink.
pub(crate) fn stream(name: &str, source: impl Source + 'static, sink: impl Sink + 'static) -> StreamSpec {
    let settings = StreamSettings { start: StartAt::Oldest, ..StreamSettings::new(name) };
    let sinks = vec![SinkSpec::new("null", Arc::new(sink))];
    StreamSpec { settings, source: Arc::new(source), sinks, checkpoints: None }
}
