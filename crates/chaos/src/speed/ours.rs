//! Watchkeeper as a consumer: with lease, lanes and checkpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper_core::{Change, Grade, Result, Sink, Source, StartAt};
use watchkeeper_engine::delivery::executor::{HandlerSettings, HandlerSink, ObserverExecutor};
use watchkeeper_engine::delivery::handler::{HandlerError, handler};
use watchkeeper_engine::delivery::routes::{Operations, Routes};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_peers::TcpPeers;

use super::meter::{Meter, Start};
use super::task::BenchTask;

/// What a busy consumer works for each change.
const WORK: Duration = Duration::from_micros(10);

/// Works as a handler would.
pub(super) fn work() {
    let began = Instant::now();
    while began.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

/// Runs an instance, or a standby of it, until everything was counted.
pub(super) async fn run(
    bench_task: &BenchTask,
    name: &str,
    stores: Stores,
    source: Arc<dyn Source>,
    sink: Arc<dyn Sink>,
    meter: &Meter,
) -> Result<Start> {
    let mut settings = StreamSettings::new("events");
    settings.start = if bench_task.live { StartAt::Now } else { StartAt::Oldest };
    let stream = StreamSpec { settings, source, sinks: vec![SinkSpec::new("sink", sink)], checkpoints: None };
    let peers = Arc::new(TcpPeers::new(watchkeeper_peers::Settings::default())?);
    let seams = Seams { peers, ..Seams::system() };
    let instance = InstanceSettings::new(&bench_task.group, name);
    let start = Start::now();
    let mut running = Running::start(seams, stores, instance, vec![stream]).await?;
    tokio::select! {
        biased;
        () = meter.done.notified() => Ok(start),
        ended = running.join() => ended.map(|()| start),
    }
}

/// A handler that counts, and does with each change what is said.
pub(super) fn counting(
    meter: &Arc<Meter>,
    each: impl Fn(&Meter, &Change) + Send + Sync + 'static,
) -> Result<Arc<HandlerSink>> {
    let meter = Arc::clone(meter);
    let count = handler(move |change: Change| {
        each(&meter, &change);
        meter.add(1);
        async { Ok::<(), HandlerError>(()) }
    });
    let settings = HandlerSettings { grade: Grade::Plain, settle: Duration::ZERO, acts_on_barriers: false };
    let sink = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, count)).with_settings(settings)?.sink();
    Ok(Arc::new(sink))
}
