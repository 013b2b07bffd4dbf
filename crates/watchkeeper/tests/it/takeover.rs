use std::sync::Arc;

use tokio::sync::mpsc;
use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper::{
    Checkpoint, CheckpointStore, HandlerError, InstanceSettings, ListenerState, ObserverExecutor, Operation,
    Operations, Routes, Running, Seams, SinkSpec, SourceTime, StartAt, StoreIdentity, Stores, StreamSettings,
    StreamSpec, handler,
};

const STREAM: &str = "orders";

/// A group's stores and a log, all in memory, and where the handlers of both instances send what they get.
struct Group {
    seams: Seams,
    log: Log,
    leases: Leases,
    checkpoints: Checkpoints,
    records: RecordStore,
    sender: mpsc::Sender<(&'static str, String)>,
    arrived: mpsc::Receiver<(&'static str, String)>,
}

impl Group {
    fn new() -> Self {
        let seams = Seams::system();
        let (sender, arrived) = mpsc::channel(100);
        Self {
            log: Log::new("log"),
            leases: Leases::new(Arc::clone(&seams.clock)),
            checkpoints: Checkpoints::new(StoreIdentity(seams.entropy.uuid())),
            records: RecordStore::new(Arc::clone(&seams.clock)),
            seams,
            sender,
            arrived,
        }
    }

    fn append(&self, bodies: std::ops::Range<u32>) {
        for body in bodies {
            let change = NewChange {
                operation: Operation::Insert,
                namespace: STREAM.to_owned(),
                key: Some(format!("key {}", body % 3).into()),
                body: body.to_string().into(),
                first_half: false,
            };
            self.log.append(change, SourceTime(u64::from(body)));
        }
    }

    fn stream(&self, instance: &'static str) -> StreamSpec {
        let sender = self.sender.clone();
        let tell = handler(move |change| {
            let sender = sender.clone();
            async move {
                let body = String::from_utf8_lossy(change.body()).into_owned();
                sender.send((instance, body)).await.map_err(HandlerError::retry)
            }
        });
        let handlers = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, tell));
        StreamSpec {
            settings: StreamSettings { start: StartAt::Oldest, ..StreamSettings::new(STREAM) },
            source: Arc::new(self.log.clone()),
            sinks: vec![SinkSpec::new("handlers", Arc::new(handlers.sink()))],
            checkpoints: None,
        }
    }

    async fn start(&self, instance: &'static str) -> Running {
        let stores = Stores {
            leases: Arc::new(self.leases.clone()),
            checkpoints: Arc::new(self.checkpoints.clone()),
            records: Arc::new(self.records.clone()),
        };
        let settings = InstanceSettings::new("shop", instance);
        let started = Running::start(self.seams.clone(), stores, settings, vec![self.stream(instance)]).await;
        started.expect("the settings are right")
    }

    /// Waits for as many changes as `bodies` has, and for exactly those.
    async fn expect(&mut self, instance: &'static str, bodies: std::ops::Range<u32>) {
        for body in bodies {
            assert_eq!(self.arrived.recv().await, Some((instance, body.to_string())));
        }
    }

    async fn checkpoint(&self) -> Checkpoint {
        let key = self.stream("nobody").key("shop");
        let loaded = self.checkpoints.load(&self.seams.cx(), &key).await;
        loaded.expect("memory answers").expect("something was committed")
    }
}

async fn until(running: &Running, state: ListenerState) {
    let mut status = running.status(STREAM).expect("the stream is there");
    while status.see().state != state {
        status.changed().await.expect("the instance is running");
    }
}

#[tokio::test]
async fn the_second_instance_goes_on_where_the_first_has_left() {
    let mut group = Group::new();
    let mut first = group.start("first").await;
    group.append(0..5);
    group.expect("first", 0..5).await;

    let mut second = group.start("second").await;
    until(&second, ListenerState::Connecting).await;
    first.shutdown();
    first.join().await.expect("it had joined");
    let handed_over = group.checkpoint().await;
    assert_eq!(handed_over.facts.changes, 5);

    group.append(5..9);
    group.expect("second", 5..9).await;
    second.shutdown();
    second.join().await.expect("it had joined");
    let last = group.checkpoint().await;
    assert_eq!((last.facts.changes, last.facts.processed_by.as_str()), (9, "second"));
    assert!(last.epoch > handed_over.epoch);
    assert!(group.arrived.try_recv().is_err(), "nothing came twice");
}

#[tokio::test]
async fn wrong_settings_are_refused_before_anything_starts() {
    let group = Group::new();
    let stores = Stores {
        leases: Arc::new(group.leases.clone()),
        checkpoints: Arc::new(group.checkpoints.clone()),
        records: Arc::new(group.records.clone()),
    };
    let streams = vec![group.stream("first"), group.stream("first")];
    let refused = Running::start(group.seams.clone(), stores, InstanceSettings::new("shop", "first"), streams).await;
    let error = refused.expect_err("two streams have one name");
    assert_eq!(error.kind(), watchkeeper::ErrorKind::Config);
    assert!(error.to_string().contains("name them apart"), "{error}");
}
