//! The consumers, each in a process of its own.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use watchkeeper_core::{Error, Grade, Result, StartAt};
use watchkeeper_drill::obey;
use watchkeeper_engine::delivery::executor::{HandlerSettings, HandlerSink, ObserverExecutor};
use watchkeeper_engine::delivery::handler::{HandlerError, handler};
use watchkeeper_engine::delivery::routes::{Operations, Routes};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_mongodb::mongodb::bson::{Document, RawDocumentBuf, doc};
use watchkeeper_mongodb::mongodb::options::CursorType;
use watchkeeper_mongodb::{Checkpoints, Client, Config, Doing, Feed, Leases, Notes, View};
use watchkeeper_peers::TcpPeers;

use super::history::{Begin, EVENTS};
use crate::fleet::cx;

/// Said with the first change.
pub(super) const BEGUN: &str = "begun";

/// Who consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The driver's raw batches in a loop: the practical limit.
    RawBatches,
    /// The driver's change stream of raw documents.
    ChangeStream,
    /// Ours.
    Watchkeeper,
}

impl By {
    pub(super) const ALL: [Self; 3] = [Self::RawBatches, Self::ChangeStream, Self::Watchkeeper];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RawBatches => "raw-batches",
            Self::ChangeStream => "change-stream",
            Self::Watchkeeper => "watchkeeper",
        }
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::RawBatches => "driver, raw batches",
            Self::ChangeStream => "driver, ChangeStream<RawDocument>",
            Self::Watchkeeper => "Watchkeeper, counting handler",
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|by| by.name() == text).ok_or_else(|| format!("there is no consumer {text:?}"))
    }
}

/// What to consume, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Errand {
    pub(crate) by: By,
    pub(crate) url: String,
    pub(crate) group: String,
    pub(crate) begin: Begin,
    pub(crate) changes: u64,
}

/// Counts, and knows when it began and ended.
struct Meter {
    count: AtomicU64,
    wanted: u64,
    done: Notify,
}

/// CPU time of all threads of this process.
fn cpu() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// The most memory that this process ever had.
fn megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1_024.0
}

impl Meter {
    fn up_to(wanted: u64) -> Arc<Self> {
        Arc::new(Self { count: AtomicU64::new(0), wanted, done: Notify::new() })
    }

    /// Counts; whether that was the last.
    fn add(&self, more: u64) -> bool {
        let before = self.count.fetch_add(more, Ordering::AcqRel);
        if before == 0 {
            println!("{BEGUN}");
        }
        let last = before + more >= self.wanted;
        if last {
            self.done.notify_one();
        }
        last
    }
}

/// Consumes all that is wanted and tells what that took, from the opening to the last change.
pub(crate) async fn consume(errand: Errand, name: String) -> Result<()> {
    let orphaned = |error| Error::internal("no orders can be heard").caused_by(error);
    obey(|_| {}).map_err(orphaned)?;
    let client = Client::open(&cx(), Config::new(errand.url.as_str())?).await?;
    let meter = Meter::up_to(errand.changes);
    let (began, used) = (Instant::now(), cpu());
    match errand.by {
        By::RawBatches => raw_batches(&client, &errand, &meter).await?,
        By::ChangeStream => change_stream(&client, &errand, &meter).await?,
        By::Watchkeeper => watchkeeper(client, &errand, &name, &meter).await?,
    }
    let (seconds, used) = (began.elapsed().as_secs_f64(), cpu() - used);
    let changes = errand.changes as f64;
    let figures =
        serde_json::json!({ "rate": changes / seconds, "cpu": used / changes * 1e6, "megabytes": megabytes() });
    println!("{figures}");
    // Whoever asked has heard enough, and ends this process.
    std::future::pending().await
}

async fn raw_batches(client: &Client, errand: &Errand, meter: &Meter) -> Result<()> {
    use futures_util::StreamExt;
    let said = |native| client.error(native, Doing::Reading);
    let database = client.database(&cx()).await?;
    let stage = doc! { "$changeStream": { "startAtOperationTime": errand.begin.timestamp() } };
    let command = doc! { "aggregate": EVENTS, "pipeline": [stage], "cursor": {} };
    let cursor = database.run_cursor_command(command).cursor_type(CursorType::TailableAwait);
    let mut cursor = cursor.batch().await.map_err(said)?;
    while let Some(batch) = cursor.next().await {
        let batch = batch.map_err(said)?;
        for event in batch.doc_slices().map_err(said)? {
            let event = event.map_err(|error| Error::corrupt("an event").caused_by(error))?;
            // What every consumer needs of an event.
            let event = event.as_document().ok_or_else(|| Error::corrupt("an event"))?;
            let read = (event.get_document("_id").is_ok(), event.get_str("operationType").is_ok());
            if read == (true, true) && meter.add(1) {
                return Ok(());
            }
        }
    }
    Err(Error::unavailable("the cursor has ended"))
}

async fn change_stream(client: &Client, errand: &Errand, meter: &Meter) -> Result<()> {
    use futures_util::TryStreamExt;
    let said = |native| client.error(native, Doing::Reading);
    let events = client.database(&cx()).await?.collection::<Document>(EVENTS);
    let stream = events.watch().start_at_operation_time(errand.begin.timestamp()).await.map_err(said)?;
    let mut stream = stream.with_type::<RawDocumentBuf>();
    while let Some(event) = stream.try_next().await.map_err(said)? {
        if event.get_str("operationType").is_ok() && meter.add(1) {
            return Ok(());
        }
    }
    Err(Error::unavailable("the stream has ended"))
}

async fn watchkeeper(client: Client, errand: &Errand, name: &str, meter: &Arc<Meter>) -> Result<()> {
    let cx = cx();
    let stores = Stores {
        leases: Arc::new(Leases::open(&cx, client.clone()).await?),
        checkpoints: Arc::new(Checkpoints::open(&cx, client.clone()).await?),
        records: Arc::new(Notes::open(&cx, client.clone()).await?),
    };
    let mut settings = StreamSettings::new("events");
    settings.start = StartAt::Oldest;
    let source = Arc::new(Feed::new(client, View::collection(EVENTS)));
    let sinks = vec![SinkSpec::new("count", Arc::new(counting(meter)?))];
    let stream = StreamSpec { settings, source, sinks, checkpoints: None };
    let peers = Arc::new(TcpPeers::new(watchkeeper_peers::Settings::default())?);
    let seams = Seams { peers, ..Seams::system() };
    let instance = InstanceSettings::new(&errand.group, name);
    let mut running = Running::start(seams, stores, instance, vec![stream]).await?;
    tokio::select! {
        biased;
        () = meter.done.notified() => Ok(()),
        ended = running.join() => ended,
    }
}

fn counting(meter: &Arc<Meter>) -> Result<HandlerSink> {
    let meter = Arc::clone(meter);
    let count = handler(move |_| {
        meter.add(1);
        async { Ok::<(), HandlerError>(()) }
    });
    let settings = HandlerSettings { grade: Grade::Plain, settle: Duration::ZERO, acts_on_barriers: false };
    Ok(ObserverExecutor::new(Routes::new().on("*", Operations::ANY, count)).with_settings(settings)?.sink())
}
