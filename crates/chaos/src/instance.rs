//! The child: one instance of the group, which tells what happens to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use watchkeeper_core::{Error, Follower, Result, StartAt};
use watchkeeper_drill::{Event, Order, obey};
use watchkeeper_engine::hooks::{Hooks, Mutant};
use watchkeeper_engine::instance::Running;
use watchkeeper_engine::listener::StreamStatus;
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{CheckpointPolicy, InstanceSettings, LeaseSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_peers::TcpPeers;

use crate::fault_hooks::{FaultHooks, Handled, UnansweredRenewals};
use crate::harness::{self, InstanceParts, Kind};
use crate::log;

/// The group and its one stream.
pub(crate) const GROUP: &str = "chaos";
pub(crate) const STREAM: &str = "orders";

/// How a child is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) harness: String,
    pub(crate) place: PathBuf,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) lease: Duration,
    pub(crate) self_fencing: bool,
    /// Where to log to.
    pub(crate) log: Option<PathBuf>,
}

/// Runs one instance until it is told to end.
pub(crate) async fn run(orders: Orders) -> Result<()> {
    let outcome = run_reporting(orders).await;
    if let Err(error) = &outcome {
        let _ = Event::Failed { cause: error.to_string() }.emit();
    }
    outcome
}

async fn run_reporting(orders: Orders) -> Result<()> {
    let cause = |error| Error::internal("an instance of the drill could not be prepared").caused_by(error);
    if let Some(folder) = &orders.log {
        log::to(folder, &orders.name).map_err(cause)?;
    }
    let hooks = FaultHooks::new();
    let stop = Arc::new(tokio::sync::Notify::new());
    let (theirs, stopped) = (Arc::clone(&hooks), Arc::clone(&stop));
    obey(move |order| match order {
        Order::Stop => stopped.notify_one(),
        order => theirs.take(order),
    })
    .map_err(cause)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cause)?;
    let mut running = start(&orders, &hooks).await?;
    let mut status = running.status(STREAM).ok_or_else(|| Error::internal("the stream is not there"))?;
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            () = stop.notified() => break,
            ended = running.join() => return ended,
            changed = emit(&mut status) => changed?,
        }
    }
    running.shutdown();
    running.join().await
}

async fn start(orders: &Orders, hooks: &Arc<FaultHooks>) -> Result<Running> {
    let peers = Arc::new(TcpPeers::new(watchkeeper_peers::Settings::default())?);
    let seams = Seams { peers, ..Seams::system() };
    let cx = seams.cx();
    let mut parts = harness::named(&orders.harness, &orders.place)?.parts(&cx, orders.kind, hooks).await?;
    if !orders.self_fencing {
        parts.stores.leases = Arc::new(UnansweredRenewals { leases: parts.stores.leases, hooks: Arc::clone(hooks) });
    }
    let stores = parts.stores.clone();
    let stream = stream(parts, hooks, orders.lease);
    Running::start(seams, stores, settings(orders), vec![stream]).await
}

fn settings(orders: &Orders) -> InstanceSettings {
    let mut settings = InstanceSettings::new(GROUP, &orders.name);
    settings.lease = LeaseSettings::new(orders.lease);
    settings.heartbeat_every = orders.lease;
    settings.unhealthy_after = orders.lease * 3;
    // Long enough for the others to have it, short enough to be there for the next fault.
    settings.bar = orders.lease;
    settings.hooks = Hooks::breaking((!orders.self_fencing).then_some(Mutant::NoSelfFencing));
    settings
}

fn stream(parts: InstanceParts, hooks: &Arc<FaultHooks>, lease: Duration) -> StreamSpec {
    let mut settings = StreamSettings::new(STREAM);
    settings.start = StartAt::Oldest;
    // As usual, but in proportion to the lease: whoever has one that outlasts an election waits for the end of it.
    settings.give_up = settings.give_up.max(2 * lease);
    settings.checkpoint = CheckpointPolicy { every: Duration::from_millis(20), events: None };
    let sink = Arc::new(Handled { sink: parts.sink, hooks: Arc::clone(hooks) });
    let sinks = vec![SinkSpec::new("target", sink)];
    StreamSpec { settings, source: parts.source, sinks, checkpoints: parts.checkpoints }
}

/// Tells where the stream stands, and waits until it stands elsewhere.
pub(crate) async fn emit(status: &mut Follower<StreamStatus>) -> Result<()> {
    let now = status.see().clone();
    let state = Event::State {
        stream: now.stream,
        state: now.state.to_string(),
        epoch: now.epoch.map(|epoch| epoch.0),
        holder: now.holder,
        error: now.last_error,
        deadlines_hit: now.deadlines_hit,
    };
    state.emit().map_err(|error| Error::unavailable("nobody listens").caused_by(error))?;
    status.changed().await.map_err(|_| Error::internal("the stream is gone"))
}
