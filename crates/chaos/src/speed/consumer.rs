//! The consumers that are this program, each in a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use watchkeeper_core::format::{Format, Native};
use watchkeeper_core::{Change, Error, Grade, Result, Sink, StartAt};
use watchkeeper_drill::obey;
use watchkeeper_engine::delivery::executor::{HandlerSettings, HandlerSink, ObserverExecutor};
use watchkeeper_engine::delivery::handler::{HandlerError, handler};
use watchkeeper_engine::delivery::routes::{Operations, Routes};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_file::FileSink;
use watchkeeper_mongodb::mongodb::bson::{Document, RawDocumentBuf, doc};
use watchkeeper_mongodb::mongodb::options::CursorType;
use watchkeeper_mongodb::{Checkpoints, Client, Config, Doing, Feed, Leases, Notes, View};
use watchkeeper_peers::TcpPeers;

use super::history::{Begin, EVENTS};
use super::live::{AT, LIVE, Stopwatch, written_at};
use super::who::By;
use crate::fleet::cx;

/// Said with the first change.
pub(super) const BEGUN: &str = "begun";

/// What a busy consumer works for each change.
const WORK: Duration = Duration::from_micros(10);

/// What to consume, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Errand {
    pub(crate) by: By,
    pub(crate) url: String,
    pub(crate) group: String,
    pub(crate) begin: Begin,
    pub(crate) changes: u64,
    /// Whether what is written from now on is to be read, and how late it is, instead of what was written.
    pub(crate) live: bool,
    /// Where lines are written to.
    pub(crate) folder: PathBuf,
}

impl Errand {
    /// The name of the database, which stands between the last slash and the settings.
    pub(super) fn database(&self) -> &str {
        let path = self.url.rsplit_once('/').map_or("", |(_, path)| path);
        path.split_once('?').map_or(path, |(database, _)| database)
    }

    fn collection(&self) -> &'static str {
        if self.live { LIVE } else { EVENTS }
    }
}

/// Works as a handler would.
fn work() {
    let began = Instant::now();
    while began.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

/// Counts, and knows when it began and ended.
#[derive(Debug)]
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

/// When consuming began, and how much of the processor was used before.
struct Start(Instant, f64);

impl Start {
    fn now() -> Self {
        Self(Instant::now(), cpu())
    }
}

/// Consumes all that is wanted and tells what that took, from the opening of the stream to the last change.
pub(crate) async fn consume(errand: Errand, name: String) -> Result<()> {
    let orphaned = |error| Error::internal("no orders can be heard").caused_by(error);
    obey(|_| {}).map_err(orphaned)?;
    let client = Client::open(&cx(), Config::new(errand.url.as_str())?).await?;
    let (meter, stopwatch) = (Meter::up_to(errand.changes), Arc::new(Stopwatch::default()));
    let Start(began, used) = match errand.by {
        By::ChangeStream => change_stream(&client, &errand, &meter).await?,
        by if by.is_ours() => watchkeeper(client, &errand, &name, &meter, &stopwatch).await?,
        _ => raw_batches(&client, &errand, &meter, &stopwatch).await?,
    };
    let (seconds, used) = (began.elapsed().as_secs_f64(), cpu() - used);
    let changes = errand.changes as f64;
    let figures = match errand.live {
        true => serde_json::json!({ "late": stopwatch.median_ms() }),
        false => {
            serde_json::json!({ "rate": changes / seconds, "cpu": used / changes * 1e6, "megabytes": megabytes() })
        }
    };
    println!("{figures}");
    // Whoever asked has heard enough, and ends this process.
    std::future::pending().await
}

async fn raw_batches(client: &Client, errand: &Errand, meter: &Meter, stopwatch: &Stopwatch) -> Result<Start> {
    use futures_util::StreamExt;
    let said = |native| client.error(native, Doing::Reading);
    let database = client.database(&cx()).await?;
    let spec = if errand.live {
        doc! {}
    } else {
        doc! { "startAtOperationTime": errand.begin.timestamp() }
    };
    let pipeline = [doc! { "$changeStream": spec }];
    let command = doc! { "aggregate": errand.collection(), "pipeline": pipeline, "cursor": {} };
    let start = Start::now();
    let cursor = database.run_cursor_command(command).cursor_type(CursorType::TailableAwait);
    let mut cursor = cursor.batch().await.map_err(said)?;
    while let Some(batch) = cursor.next().await {
        let batch = batch.map_err(said)?;
        for event in batch.doc_slices().map_err(said)? {
            let event = event.map_err(|error| Error::corrupt("an event").caused_by(error))?;
            // What every consumer needs of an event.
            let event = event.as_document().ok_or_else(|| Error::corrupt("an event"))?;
            let read = (event.get_document("_id").is_ok(), event.get_str("operationType").is_ok());
            if errand.live {
                stopwatch.note(event.get_document("fullDocument").and_then(|document| document.get_i64(AT)).ok());
            }
            if errand.by == By::BusyLoop {
                work();
            }
            if read == (true, true) && meter.add(1) {
                return Ok(start);
            }
        }
    }
    Err(Error::unavailable("the cursor has ended"))
}

async fn change_stream(client: &Client, errand: &Errand, meter: &Meter) -> Result<Start> {
    use futures_util::TryStreamExt;
    let said = |native| client.error(native, Doing::Reading);
    let events = client.database(&cx()).await?.collection::<Document>(EVENTS);
    let start = Start::now();
    let stream = events.watch().start_at_operation_time(errand.begin.timestamp()).await.map_err(said)?;
    let mut stream = stream.with_type::<RawDocumentBuf>();
    while let Some(event) = stream.try_next().await.map_err(said)? {
        if event.get_str("operationType").is_ok() && meter.add(1) {
            return Ok(start);
        }
    }
    Err(Error::unavailable("the stream has ended"))
}

async fn watchkeeper(
    client: Client,
    errand: &Errand,
    name: &str,
    meter: &Arc<Meter>,
    stopwatch: &Arc<Stopwatch>,
) -> Result<Start> {
    let cx = cx();
    let stores = Stores {
        leases: Arc::new(Leases::open(&cx, client.clone()).await?),
        checkpoints: Arc::new(Checkpoints::open(&cx, client.clone()).await?),
        records: Arc::new(Notes::open(&cx, client.clone()).await?),
    };
    let mut settings = StreamSettings::new("events");
    settings.start = if errand.live { StartAt::Now } else { StartAt::Oldest };
    let source = Arc::new(Feed::new(client, View::collection(errand.collection())));
    let sink: Arc<dyn Sink> = match errand.by {
        By::Lines => Arc::new(lines(errand, meter)?),
        _ => Arc::new(counting(errand, meter, stopwatch)?),
    };
    let stream = StreamSpec { settings, source, sinks: vec![SinkSpec::new("sink", sink)], checkpoints: None };
    let peers = Arc::new(TcpPeers::new(watchkeeper_peers::Settings::default())?);
    let seams = Seams { peers, ..Seams::system() };
    let instance = InstanceSettings::new(&errand.group, name);
    let start = Start::now();
    let mut running = Running::start(seams, stores, instance, vec![stream]).await?;
    tokio::select! {
        biased;
        () = meter.done.notified() => Ok(start),
        ended = running.join() => ended.map(|()| start),
    }
}

fn counting(errand: &Errand, meter: &Arc<Meter>, stopwatch: &Arc<Stopwatch>) -> Result<HandlerSink> {
    let (meter, stopwatch) = (Arc::clone(meter), Arc::clone(stopwatch));
    let (live, busy) = (errand.live, errand.by == By::BusyWatchkeeper);
    let count = handler(move |change: Change| {
        if live {
            stopwatch.note(written_at(&change));
        }
        if busy {
            work();
        }
        meter.add(1);
        async { Ok::<(), HandlerError>(()) }
    });
    let settings = HandlerSettings { grade: Grade::Plain, settle: Duration::ZERO, acts_on_barriers: false };
    Ok(ObserverExecutor::new(Routes::new().on("*", Operations::ANY, count)).with_settings(settings)?.sink())
}

/// Lines as users write them, counted when they are made.
fn lines(errand: &Errand, meter: &Arc<Meter>) -> Result<FileSink> {
    let settings = watchkeeper_file::Settings::new(&errand.folder, "events");
    FileSink::new(settings, Arc::new(Counted(Arc::clone(meter))))
}

#[derive(Debug)]
struct Counted(Arc<Meter>);

impl Format for Counted {
    fn name(&self) -> &'static str {
        Native.name()
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()> {
        Native.write(change, out)?;
        self.0.add(1);
        Ok(())
    }
}
