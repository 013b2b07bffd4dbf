use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use watchkeeper::core::format;
use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper::file::{FileSink, Settings};
use watchkeeper::{
    CheckpointPolicy, HandlerError, HandlerSettings, InstanceSettings, ListenerState, ObserverExecutor, Operation,
    Operations, Routes, Running, Seams, SinkSpec, SourceTime, StartAt, StoreIdentity, Stores, StreamSettings,
    StreamSpec, handler,
};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("watchkeeper-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Changes `0..` of three keys.
fn append(log: &Log, bodies: std::ops::Range<u64>) {
    for body in bodies {
        let change = NewChange {
            operation: Operation::Insert,
            namespace: "shop.orders".to_owned(),
            key: Some(format!("key {}", body % 3).into()),
            body: body.to_string().into(),
            first_half: false,
        };
        log.append(change, SourceTime(body));
    }
}

/// A stream into files, and into a handler that tells how far it is.
fn stream(log: &Log, folder: &Path, reported: mpsc::Sender<String>) -> StreamSpec {
    let tell = handler(move |change| {
        let reported = reported.clone();
        async move { reported.send(String::from_utf8_lossy(change.body()).into_owned()).await.map_err(HandlerError::retry) }
    });
    let at_once = HandlerSettings { settle: Duration::ZERO, ..HandlerSettings::default() };
    let handlers = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, tell)).with_settings(at_once);
    let handlers = handlers.expect("handlers may be plain");
    let native = format::named("native").expect("the format is known").into();
    let files = FileSink::new(Settings::new(folder, "orders"), native).expect("the settings are good");
    let mut settings = StreamSettings { start: StartAt::Oldest, ..StreamSettings::new("orders") };
    settings.checkpoint = CheckpointPolicy { every: Duration::from_millis(20), ..settings.checkpoint };
    settings.retry.recovery_backoff.first = Duration::from_millis(20);
    StreamSpec {
        settings,
        source: Arc::new(log.clone()),
        sinks: vec![SinkSpec::new("files", Arc::new(files)), SinkSpec::new("told", Arc::new(handlers.sink()))],
        checkpoints: None,
    }
}

async fn until(running: &Running, state: ListenerState) {
    let mut status = running.status("orders").expect("the stream is there");
    while status.see().state != state {
        status.changed().await.expect("the instance is running");
    }
}

async fn arrival(reported: &mut mpsc::Receiver<String>, body: &str) {
    while reported.recv().await.expect("the handlers live as long as their streams") != body {}
}

#[tokio::test]
async fn files_outlast_a_full_disk_and_a_relief_with_every_change_once() {
    let folder = Folder::new("relief");
    let file = folder.0.join("orders-000001.ndjson");
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link can be made");
    let (seams, log) = (Seams::system(), Log::new("log"));
    let stores = Stores {
        leases: Arc::new(Leases::new(Arc::clone(&seams.clock))),
        checkpoints: Arc::new(Checkpoints::new(StoreIdentity(seams.entropy.uuid()))),
        records: Arc::new(RecordStore::new(Arc::clone(&seams.clock))),
    };
    let (sender, mut reported) = mpsc::channel(1_000);
    let start = async |name: &str| {
        let streams = vec![stream(&log, &folder.0, sender.clone())];
        let started = Running::start(seams.clone(), stores.clone(), InstanceSettings::new("shop", name), streams).await;
        started.expect("the settings are right")
    };

    let mut first = start("first").await;
    append(&log, 0..5);
    until(&first, ListenerState::Recovering).await;
    std::fs::remove_file(&file).expect("the link can be removed");
    append(&log, 5..9);
    arrival(&mut reported, "8").await;

    let mut second = start("second").await;
    until(&second, ListenerState::Connecting).await;
    first.shutdown();
    first.join().await.expect("it had joined");
    append(&log, 9..12);
    arrival(&mut reported, "11").await;
    second.shutdown();
    second.join().await.expect("it had joined");

    let text = std::fs::read_to_string(&file).expect("the file is there");
    let number = |line: &str| -> Option<u64> {
        serde_json::from_str::<serde_json::Value>(line).expect("a line is JSON")["document"].as_u64()
    };
    let numbers: Vec<u64> = text.lines().map(|line| number(line).expect("every line has its number")).collect();
    for key in 0..3 {
        let of_key: Vec<u64> = numbers.iter().copied().filter(|n| n % 3 == key).collect();
        let expected: Vec<u64> = (0..12).filter(|n| n % 3 == key).collect();
        assert_eq!(of_key, expected, "key {key} of {numbers:?}");
    }
}
