//! Temporary folders, clocks and batches.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;
use watchkeeper_core::clock::Sleep;
use watchkeeper_core::format::{self, Format};
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, BootClock, Clock, Cx, Epoch, Grant, LeaseKey, Moment, OpenedSink, Operation, Payload,
    Position, Result, RowParts, Sink, SinkContext, SinkWriter, SourceTime, StoreIdentity, TenureId, Version,
};
use watchkeeper_file::{FileSink, Settings};

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("watchkeeper-file-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.file(name), content).expect("a file can be written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).expect("the file is text")
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings::new(&self.0, "out")
    }

    /// The names of the data files, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the folder can be listed");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name is text"));
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".ndjson")).collect();
        names.sort();
        names
    }

    /// All lines of all data files, in order, each of them whole.
    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        let all: String = self.names().iter().map(|name| self.read(name)).collect();
        assert!(all.is_empty() || all.ends_with('\n'), "an incomplete last line: {all}");
        all.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// The `n` of all lines, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.lines().iter().map(|line| line["document"]["n"].as_u64().expect("every line has its n")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A clock that moves only when it is told to.
#[derive(Debug, Clone)]
pub(crate) struct ManualClock(Arc<watch::Sender<Moment>>);

impl ManualClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Moment::from_nanos(1))))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now = *now + by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        *self.0.borrow()
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        let mut now = self.0.subscribe();
        Box::pin(async move {
            let _ = now.wait_for(|now| *now >= moment).await;
        })
    }

    fn wall_millis(&self) -> u64 {
        0
    }
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without I/O needs nothing").block_on(test)
}

pub(crate) fn format(name: &str) -> Arc<dyn Format> {
    format::named(name).expect("the name is known").into()
}

pub(crate) fn sink(settings: Settings) -> FileSink {
    FileSink::new(settings, format("native")).expect("the settings are good")
}

/// On behalf of stream `orders` under this epoch.
pub(crate) fn context(epoch: u64) -> SinkContext {
    SinkContext {
        grant: Grant {
            key: LeaseKey::new("shop/orders/0/0"),
            tenure: TenureId(Uuid::from_u128(epoch.into())),
            epoch: Epoch(epoch),
        },
        stream: "orders".to_owned(),
        sink: "file".to_owned(),
        partition: 0,
        lanes: 2,
        store: StoreIdentity(Uuid::nil()),
    }
}

pub(crate) async fn open_as(sink: &dyn Sink, cx: &Cx, context: &SinkContext) -> Result<Arc<dyn SinkWriter>> {
    match sink.open(cx, context).await? {
        OpenedSink::Plain(writer) => Ok(writer),
        OpenedSink::Transactional(_) => panic!("a sink of lines is not transactional"),
    }
}

pub(crate) async fn open(sink: &dyn Sink, epoch: u64) -> Arc<dyn SinkWriter> {
    open_as(sink, &cx(), &context(epoch)).await.expect("the sink opens")
}

/// A batch of inserts with these bodies.
pub(crate) fn batch_of(payload: Arc<dyn Payload>, bodies: &[&[u8]]) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("log".into(), payload);
    let namespace = builder.namespace("shop.orders");
    for (at, body) in bodies.iter().enumerate() {
        builder.push(RowParts {
            operation: Operation::Insert,
            namespace,
            half: 0,
            committable: true,
            key: Some(b"k"),
            position: &[7, u8::try_from(at % 256).expect("below 256")],
            body,
            time: SourceTime(1_700_000_000_007),
            version: Version::default(),
        });
    }
    Arc::new(builder.finish(Position::new(vec![9], None)))
}

/// Writes a change per number, without a flush.
pub(crate) async fn write(writer: &dyn SinkWriter, cx: &Cx, lane: usize, numbers: &[u64]) -> Result<()> {
    let bodies: Vec<String> = numbers.iter().map(|n| format!(r#"{{"n":{n}}}"#)).collect();
    let bodies: Vec<&[u8]> = bodies.iter().map(|body| body.as_bytes()).collect();
    let rows: Vec<u32> = (0..).take(bodies.len()).collect();
    let written = writer.write(cx, lane, &batch_of(Arc::new(JsonPayload), &bodies), &rows).await?;
    assert_eq!((written.done, written.rejected.len()), (rows.len(), 0));
    Ok(())
}

/// Writes a change per number and flushes.
pub(crate) async fn put(writer: &dyn SinkWriter, numbers: &[u64]) -> Result<()> {
    write(writer, &cx(), 0, numbers).await?;
    writer.flush(&cx()).await.map(drop)
}
