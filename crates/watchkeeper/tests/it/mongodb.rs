//! A group on a real replica set: leases, checkpoints and records there, and the changes in the transactions of their checkpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper::core::memory::{Log, NewChange};
use watchkeeper::core::options::{Options, Origin, Written};
use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper::mongodb::{Client, Config, Events, Transactional};
use watchkeeper::{
    InstanceSettings, ListenerState, Operation, Running, Seams, SinkSpec, SourceTime, StartAt, Stores, StreamSettings,
    StreamSpec, registry,
};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

struct Group {
    seams: Seams,
    url: String,
    log: Log,
}

impl Group {
    fn append(&self, bodies: std::ops::Range<u64>) {
        for body in bodies {
            let change = NewChange {
                operation: Operation::Insert,
                namespace: "shop.orders".to_owned(),
                key: Some(format!("key {}", body % 3).into()),
                body: format!(r#"{{"n":{body}}}"#).into(),
                first_half: false,
            };
            self.log.append(change, SourceTime(body));
        }
    }

    async fn start(&self, name: &str) -> Running {
        let cx = self.seams.cx();
        let origin = Origin::new("test");
        let mut options = Options::new("group.store", origin.clone());
        options.insert("url", Written::text(self.url.as_str(), origin));
        let backend = registry::of_url(&self.url).expect("the build knows MongoDB");
        let offer = backend.store(&cx, &mut options).await.expect("the server is there");
        let stores = Stores {
            leases: offer.leases.expect("it keeps leases"),
            checkpoints: offer.checkpoints.expect("it keeps checkpoints"),
            records: offer.records.expect("it keeps records"),
        };
        let client = Client::open(&cx, Config::new(&self.url).expect("a URL")).await.expect("the server is there");
        let events = Events::into("events").expect("a name");
        let sink = Transactional::open(&cx, client, events).await.expect("the collections can be made");
        let stream = StreamSpec {
            settings: StreamSettings { start: StartAt::Oldest, ..StreamSettings::new("orders") },
            source: Arc::new(self.log.clone()),
            checkpoints: Some(Arc::new(sink.checkpoints().clone())),
            sinks: vec![SinkSpec::new("events", Arc::new(sink))],
        };
        let settings = InstanceSettings::new("shop", name);
        Running::start(self.seams.clone(), stores, settings, vec![stream]).await.expect("the settings are right")
    }

    /// What arrived, in order, once there are `count`.
    async fn arrived(&self, count: u64) -> Vec<i64> {
        let cx = self.seams.cx();
        let client = Client::open(&cx, Config::new(&self.url).expect("a URL")).await.expect("the server is there");
        let events = client.database(&cx).await.expect("it is open").collection::<Document>("events");
        let begun = Instant::now();
        while events.count_documents(doc! {}).await.expect("the collection can be read") < count {
            assert!(begun.elapsed() < Duration::from_secs(20), "not all of {count} changes arrive");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut cursor = events.find(doc! {}).sort(doc! { "_id": 1 }).await.expect("the collection can be read");
        let mut found = Vec::new();
        while cursor.advance().await.expect("the collection can be read") {
            let event: Document = cursor.deserialize_current().expect("an event is a document");
            found.push(event.get_document("event").expect("a body").get_i64("n").expect("n"));
        }
        found
    }
}

async fn until(running: &Running, state: ListenerState) {
    let mut status = running.status("orders").expect("the stream is there");
    while status.see().state != state {
        status.changed().await.expect("the instance is running");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watch_is_handed_over_on_mongodb_and_every_change_arrives_once() {
    let set = ReplicaSet::start(1);
    let group = Group { seams: Seams::system(), url: set.url("group"), log: Log::new("log") };
    let mut first = group.start("first").await;
    group.append(0..500);
    assert_eq!(group.arrived(500).await, (0..500).collect::<Vec<_>>());
    let mut second = group.start("second").await;
    until(&second, ListenerState::Connecting).await;
    first.shutdown();
    first.join().await.expect("it had joined");
    group.append(500..600);
    until(&second, ListenerState::Running).await;
    assert_eq!(group.arrived(600).await, (0..600).collect::<Vec<_>>());
    second.shutdown();
    second.join().await.expect("it had joined");
}
