//! Servers that speak MongoDB's protocol without update pipelines, `$$NOW`, capped collections and transactions: all laws hold.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use watchkeeper_core::{
    AcquireRequest, Acquired, Backend, Candidate, CheckpointStore, Entropy, Epoch, ErrorKind, Inspection, LeaseKey,
    LeaseStore, Options, Origin, Purpose, Records, Released, WrittenSetting,
};
use watchkeeper_mongodb::mongodb::bson::doc;
use watchkeeper_mongodb::{Checkpoints, Client, Config, Events, Leases, MongoDb, RecordStore, Transactional};
use watchkeeper_testkit::laws::{CheckpointBench, Law, LawOf, LeaseBench, RecordsBench};

use crate::refusing_proxy::Proxy;
use crate::support::{Editor, assert_error, block_on, cx, edit, fresh_name, in_order, shared};

const SHORT: Duration = Duration::from_millis(400);

/// Long enough to be told apart from two round trips on a busy machine.
const AGING: Duration = Duration::from_secs(2);

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::start(shared()))
}

async fn client(url: &str) -> Client {
    Client::open(&cx(), Config::new(url).expect("the URL is one")).await.expect("the server is there")
}

mod leases {
    use super::*;

    fn run(law: &LawOf<LeaseBench>) -> Law {
        let url = proxy().url(&fresh_name());
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Leases::open(&cx, client(&url).await).await?);
            let b = Arc::new(Leases::open(&cx, client(&url).await).await?);
            law.holds_on(&LeaseBench { cx, a, b, entropy, ttl: SHORT }).await
        })
    }

    watchkeeper_testkit::lease_laws!(run);
}

mod checkpoints {
    use super::*;

    fn run(law: &LawOf<CheckpointBench>) -> Law {
        let url = proxy().url(&fresh_name());
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Checkpoints::open(&cx, client(&url).await).await?);
            let b = Arc::new(Checkpoints::open(&cx, client(&url).await).await?);
            let damager = Arc::new(Editor(client(&url).await));
            law.holds_on(&CheckpointBench { cx, a, b, damager, entropy }).await
        })
    }

    watchkeeper_testkit::checkpoint_laws!(run);
}

mod records {
    use super::*;

    fn run(law: &LawOf<RecordsBench>) -> Law {
        let url = proxy().url(&fresh_name());
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(RecordStore::open(&cx, client(&url).await).await?);
            let b = Arc::new(RecordStore::open(&cx, client(&url).await).await?);
            law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: AGING }).await
        })
    }

    watchkeeper_testkit::records_laws!(run);
}

#[test]
fn everything_that_is_missing_is_asked_for_once_and_then_done_without() {
    let proxy = Proxy::start(shared());
    let url = proxy.url(&fresh_name());
    block_on(async {
        let client = client(&url).await;
        let leases = Leases::open(&cx(), client.clone()).await.expect("it does without");
        let notes = RecordStore::open(&cx(), client.clone()).await.expect("it does without");
        Checkpoints::open(&cx(), client.clone()).await.expect("it does without");
        assert!(!leases.profile().wakes, "nobody can be told of a release");
        let refused = &proxy.refused;
        let counts =
            || [&refused.pipelines, &refused.capped, &refused.transactions].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts(), [1, 1, 1]);
        let put = notes.put_if(&cx(), "a", None, "x".into()).await.expect("it is taken");
        notes.get(&cx(), "a").await.expect("it can be read");
        // Nobody says that something was written, so everybody looks now and then.
        notes.changed(&cx().within(Duration::from_secs(60))).await.expect("it is time to look");
        assert_eq!(counts(), [1, 1, 1], "after {put:?}");
        let others = [&refused.times, &refused.tails].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(others, [0, 0], "what cannot be done is not tried");
    });
}

fn ask(name: &str, ttl: Duration) -> AcquireRequest {
    let entropy = Entropy::from_system();
    let candidate =
        Candidate { instance: entropy.instance(), name: name.to_owned(), address: None, tenure: entropy.tenure() };
    AcquireRequest { key: LeaseKey::new("orders"), candidate, ttl, floor: Epoch::ZERO, break_holder: None }
}

#[test]
fn a_lease_without_an_epoch_is_granted_again() {
    let url = proxy().url(&fresh_name());
    block_on(async {
        let ttl = Duration::from_millis(300);
        let client = client(&url).await;
        let leases = Leases::open(&cx(), client.clone()).await.expect("it does without");
        leases.try_acquire(&cx(), &ask("holder", ttl)).await.expect("it is free");
        edit(&client, "watchkeeper_leases", &LeaseKey::new("orders"), doc! { "epoch": "garbage" }).await;
        let above = AcquireRequest { floor: Epoch(7), ..ask("next", ttl) };
        let grant = loop {
            match leases.try_acquire(&cx(), &above).await.expect("an answer") {
                Acquired::Granted { grant, .. } => break grant,
                Acquired::Held(holder) => cx().sleep(holder.remaining).await,
            }
        };
        assert!(grant.epoch > Epoch(7), "{grant:?}");
        assert_eq!(leases.release(&cx(), &grant).await.expect("an answer"), Released::Released);
    });
}

#[test]
fn a_lease_is_taken_only_by_one_who_has_seen_it_unchanged_for_its_whole_time() {
    let url = proxy().url(&fresh_name());
    block_on(async {
        let ttl = Duration::from_millis(600);
        let holder = Leases::open(&cx(), client(&url).await).await.expect("it does without");
        let Acquired::Granted { grant, .. } = holder.try_acquire(&cx(), &ask("holder", ttl)).await.expect("an answer")
        else {
            panic!("it is free");
        };
        // Long after it should have been renewed, by whatever clock.
        cx().sleep(ttl * 2).await;
        let late = Leases::open(&cx(), client(&url).await).await.expect("it does without");
        let began = cx().now();
        let answer = late.try_acquire(&cx(), &ask("late", ttl)).await.expect("an answer");
        assert!(matches!(answer, Acquired::Held(_)), "it was seen for the first time, yet: {answer:?}");
        let taken = loop {
            match late.try_acquire(&cx(), &ask("late", ttl)).await.expect("an answer") {
                Acquired::Granted { grant, previous } => break (grant, previous),
                Acquired::Held(reported) => cx().sleep(reported.remaining / 4).await,
            }
        };
        assert!(cx().now().since(began) >= ttl, "it was not watched for its whole time");
        assert!(taken.0.epoch > grant.epoch && taken.1.is_some_and(|previous| previous.epoch == grant.epoch));
        assert_eq!(holder.release(&cx(), &grant).await.expect("an answer"), Released::NotHeld);
    });
}

#[test]
fn a_ledger_that_was_committed_and_not_yet_carried_is_reported() {
    use watchkeeper_core::{LedgerEntry, LedgerKind, LedgerQuery};
    let url = proxy().url(&fresh_name());
    block_on(async {
        let client = client(&url).await;
        let checkpoints = Checkpoints::open(&cx(), client.clone()).await.expect("it does without");
        let key = LeaseKey::new("orders");
        let grant =
            watchkeeper_core::Grant { key: key.clone(), tenure: Entropy::from_system().tenure(), epoch: Epoch(1) };
        checkpoints.claim(&cx(), &grant).await.expect("it is free");
        let entry = |cause: &str| LedgerEntry {
            kind: LedgerKind::Gap,
            sink: String::new(),
            change_id: String::new(),
            cause: cause.to_owned(),
            before: None,
            change: None,
        };
        let mut write = crate::sink::write(&grant, 1);
        write.ledger = vec![entry("first")];
        checkpoints.commit(&cx(), std::slice::from_ref(&write)).await.expect("it is taken");
        // As if the writer had died right after its commit.
        let database = client.database(&cx()).await.expect("it is open");
        let (stored, ledger) = (
            database.collection::<watchkeeper_mongodb::mongodb::bson::Document>("watchkeeper_checkpoints"),
            database.collection::<watchkeeper_mongodb::mongodb::bson::Document>("watchkeeper_ledger"),
        );
        let carried = in_order(&client, "watchkeeper_ledger").await;
        let tenure = grant.tenure.to_string();
        let outbox = doc! { "of": { "tenure": tenure, "seq": 1_i64 }, "entries": carried, "settled": [] };
        ledger.delete_many(doc! {}).await.expect("it is taken");
        stored.update_one(doc! {}, doc! { "$set": { "outbox": outbox } }).await.expect("it is taken");

        let query = LedgerQuery { after: 0, limit: 10, open_only: false };
        let causes = async || {
            let reported = checkpoints.ledger(&cx(), &key, &query).await.expect("it can be read");
            reported.into_iter().map(|record| (record.number, record.entry.cause)).collect::<Vec<_>>()
        };
        assert_eq!(causes().await, [(1, "first".to_owned())]);
        assert!(!in_order(&client, "watchkeeper_checkpoints").await[0].contains_key("outbox"), "it was emptied");
        write.seq = 2;
        write.ledger = vec![entry("second")];
        checkpoints.commit(&cx(), &[write]).await.expect("it is taken");
        assert_eq!(causes().await, [(1, "first".to_owned()), (2, "second".to_owned())]);
    });
}

fn options(settings: &[(&str, &str)]) -> Options {
    let place = Origin::new("watchkeeper.toml:9");
    let mut options = Options::new("stream.orders", place.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, place.clone()));
    }
    options
}

#[test]
fn what_is_missing_is_reported_where_it_matters() {
    let url = proxy().url(&fresh_name());
    block_on(async {
        let sink = Transactional::open(&cx(), client(&url).await, Events::into("events").expect("a name")).await;
        assert_error(sink, ErrorKind::Config, "these servers have no transactions");
        let found = MongoDb.check_store(&cx(), &mut options(&[("url", &url)])).await.expect("it can be looked at");
        assert!(found.iter().any(|found| found.what.contains("leases are judged by observation")), "{found:?}");
        let purpose = Purpose::new("shop", "orders");
        for (mode, what) in [("events", "no transactions"), ("versioned", "no updates by pipelines")] {
            let mut options = options(&[("url", &url), ("collection", "copies"), ("mode", mode)]);
            let Inspection { findings, .. } =
                MongoDb.check_sink(&cx(), &purpose, &mut options).await.expect("it can be looked at");
            assert!(findings.iter().any(|found| found.what.contains(what)), "{mode}: {findings:?}");
        }
    });
}
