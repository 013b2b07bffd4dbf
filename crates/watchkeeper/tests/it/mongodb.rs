//! A group on a real replica set: leases, checkpoints and records there, and the changes in the transactions of their checkpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use watchkeeper::core::memory::{Log, NewChange};
use watchkeeper::core::options::{Options, Origin, WrittenSetting};
use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper::mongodb::mongodb::error;
use watchkeeper::mongodb::{Apply, Client, Config, Events, Handle, Open, PerChange, Transactional};
use watchkeeper::{
    Change, InstanceSettings, ListenerState, Operation, Running, Seams, SinkSpec, SourceTime, StartAt, Stores,
    StreamSettings, StreamSpec, registry,
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
        self.start_with(name, "events", Events::into("events").expect("a name")).await
    }

    async fn start_with(&self, name: &str, sink_name: &str, apply: impl Apply) -> Running {
        let cx = self.seams.cx();
        let origin = Origin::new("test");
        let mut options = Options::new("group.store", origin.clone());
        options.insert("url", WrittenSetting::text(self.url.as_str(), origin));
        let backend = registry::of_url(&self.url).expect("the build knows MongoDB");
        let offer = backend.store(&cx, &mut options).await.expect("the server is there");
        let stores = Stores {
            leases: offer.leases.expect("it keeps leases"),
            checkpoints: offer.checkpoints.expect("it keeps checkpoints"),
            records: offer.records.expect("it keeps records"),
        };
        let client = Client::open(&cx, Config::new(&self.url).expect("a URL")).await.expect("the server is there");
        let sink = Transactional::open(&cx, client, apply).await.expect("the collections can be made");
        let stream = StreamSpec {
            settings: StreamSettings { start: StartAt::Oldest, ..StreamSettings::new("orders") },
            source: Arc::new(self.log.clone()),
            checkpoints: Some(Arc::new(sink.checkpoints().clone())),
            sinks: vec![SinkSpec::new(sink_name, Arc::new(sink))],
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

/// Counts changes in the open session, and fails after its write every seventh time.
struct Stumbling(AtomicU64);

#[async_trait::async_trait]
impl Handle for Stumbling {
    async fn handle(&self, open: &mut Open<'_>, _change: &Change) -> Result<(), error::Error> {
        let totals = open.database().collection::<Document>("totals");
        let count = totals.update_one(doc! { "_id": "orders" }, doc! { "$inc": { "count": 1 } });
        count.upsert(true).session(open.session()).await?;
        match self.0.fetch_add(1, Ordering::SeqCst) % 7 {
            6 => Err(error::Error::custom("it stumbled")),
            _ => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_in_the_transaction_counts_exactly_once_although_it_stumbles() {
    let set = ReplicaSet::start(1);
    let group = Group { seams: Seams::system(), url: set.url("group"), log: Log::new("log") };
    let cx = group.seams.cx();
    let client = Client::open(&cx, Config::new(&group.url).expect("a URL")).await.expect("the server is there");
    let totals = client.database(&cx).await.expect("it is open").collection::<Document>("totals");
    let counted = async || {
        let total = totals.find_one(doc! {}).await.expect("it can be read");
        total.and_then(|total| total.get_i32("count").ok()).unwrap_or(0)
    };
    let mut appended = 0;
    for name in ["first", "second"] {
        let handler = PerChange(Stumbling(AtomicU64::new(0)));
        let mut running = group.start_with(name, "totals", handler).await;
        // One change in a transaction, so that the ones that stumble come again alone.
        for _ in 0..20 {
            group.append(appended..appended + 1);
            appended += 1;
            let begun = Instant::now();
            while u64::try_from(counted().await).expect("a count") < appended {
                assert!(begun.elapsed() < Duration::from_secs(60), "change {appended} does not arrive");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        running.shutdown();
        running.join().await.expect("it had joined");
        assert_eq!(u64::try_from(counted().await).expect("a count"), appended, "{name}");
    }
}
