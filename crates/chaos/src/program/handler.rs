//! A program that embeds the library with a handler, which writes lines to a file under its epoch.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use watchkeeper::{
    Change, Error, Grade, HandlerError, HandlerSettings, Operation, Operations, Result, StartAt, Stream, Watchkeeper,
};
use watchkeeper_core::Follower;
use watchkeeper_core::format::{Format, Native};
use watchkeeper_drill::{Event, obey};
use watchkeeper_engine::listener::StreamStatus;
use watchkeeper_engine::settings::CheckpointPolicy;

use crate::fault_hooks::FaultHooks;
use crate::harness::{self, Kind, Target};
use crate::instance::{GROUP, STREAM, emit};
use crate::log;

/// How a handler is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) harness: String,
    pub(crate) place: PathBuf,
    pub(crate) name: String,
    pub(crate) lease: Duration,
    pub(crate) log: Option<PathBuf>,
}

/// Reads the lines that handlers wrote.
pub(crate) fn handled(place: &Path) -> Box<dyn Target> {
    harness::handled_lines(folder(place))
}

fn folder(place: &Path) -> PathBuf {
    place.join("handled")
}

/// Runs one instance until it is asked to end.
pub(crate) async fn run(orders: Orders) -> Result<()> {
    let result = run_until_asked(orders).await;
    if let Err(error) = &result {
        let _ = Event::Failed { cause: error.to_string() }.emit();
    }
    result
}

async fn run_until_asked(orders: Orders) -> Result<()> {
    let cause = |error| Error::internal("a program with a handler could not be prepared").caused_by(error);
    if let Some(folder) = &orders.log {
        log::to(folder, &orders.name).map_err(cause)?;
    }
    obey(|_| {}).map_err(cause)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cause)?;
    let cx = watchkeeper::open::cx();
    let parts = harness::named(&orders.harness, &orders.place)?.parts(&cx, Kind::Fenced, &FaultHooks::new()).await?;
    let status: Arc<Mutex<Option<Follower<StreamStatus>>>> = Arc::default();
    let output = Arc::new(Output::into(&folder(&orders.place)).map_err(cause)?);
    let seen = Arc::clone(&status);
    let handle = move |change: Change| {
        // Asked before anything is awaited: the epoch that this call was made under.
        let status = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = status.as_ref().and_then(|status| status.get().epoch).map(|epoch| epoch.0);
        drop(status);
        let output = Arc::clone(&output);
        async move {
            let epoch = epoch.ok_or_else(|| HandlerError::retry(Error::unavailable("the epoch is not known yet")))?;
            let written = tokio::task::spawn_blocking(move || output.write(epoch, &change)).await;
            written.map_err(HandlerError::retry)?.map_err(HandlerError::retry)
        }
    };
    let operations = Operations::from([Operation::Insert, Operation::Update, Operation::Replace].as_slice());
    let settings = HandlerSettings { grade: Grade::Fenced, settle: Duration::ZERO, acts_on_barriers: false };
    let stream = Stream::new(STREAM, parts.source).start_at(StartAt::Oldest).concurrency(4);
    let stream = stream.on("*", operations, handle).handlers(settings).configure(|settings| {
        settings.checkpoint = CheckpointPolicy { every: Duration::from_millis(20), events: None };
    });
    let builder = Watchkeeper::builder(GROUP).store(parts.stores).named(&orders.name).lease(orders.lease);
    let builder = builder.configure(|settings| {
        settings.heartbeat_every = orders.lease;
        settings.unhealthy_after = orders.lease * 3;
        settings.bar = orders.lease;
    });
    let watch = builder.stream(stream).start().await?;
    let follow = || watch.status(STREAM).ok_or_else(|| Error::internal("the stream is not there"));
    *status.lock().unwrap_or_else(PoisonError::into_inner) = Some(follow()?);
    let mut shown = follow()?;
    let telling = tokio::spawn(async move { while emit(&mut shown).await.is_ok() {} });
    watch
        .until(async {
            terminate.recv().await;
            // As an instance: its end is in order, whatever its last error was.
            telling.abort();
        })
        .await
}

/// The file that handlers append to. It checks the epoch itself.
struct Output {
    lines: PathBuf,
    /// Names the newest epoch, and is locked while lines are written.
    fence: PathBuf,
}

impl Output {
    fn into(folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { lines: folder.join("handled.ndjson"), fence: folder.join("fence") })
    }

    fn write(&self, epoch: u64, change: &Change) -> Result<()> {
        let mut event = Vec::new();
        Native.write(change, &mut event)?;
        let cause = |error| Error::unavailable("the handler's file cannot be written").caused_by(error);
        let mut fence = self.locked().map_err(cause)?;
        let mut newest = String::new();
        fence.read_to_string(&mut newest).map_err(cause)?;
        let newest = newest.trim().parse().unwrap_or(0);
        if epoch < newest {
            let _ = Event::Refused { epoch, changes: 1 }.emit();
            return Err(Error::unavailable("a newer epoch has begun"));
        }
        self.append(epoch, &event).map_err(cause)?;
        if epoch > newest {
            fence.seek(SeekFrom::Start(0)).map_err(cause)?;
            fence.write_all(format!("{epoch:>20}").as_bytes()).map_err(cause)?;
        }
        Ok(())
    }

    /// The fence, locked until it is dropped.
    fn locked(&self) -> std::io::Result<File> {
        let fence = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&self.fence)?;
        fence.lock()?;
        Ok(fence)
    }

    /// One line in one write. What a killed process left incomplete ends here: it was not answered for.
    fn append(&self, epoch: u64, event: &[u8]) -> std::io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.lines)?;
        let mut line = format!("{{\"epoch\":{epoch},\"event\":").into_bytes();
        line.extend_from_slice(event.trim_ascii_end());
        line.extend_from_slice(b"}\n");
        file.write_all(&line)
    }
}
