//! Everything that exists, joined to the changes since, while others write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Change, ChangeStream, ErrorKind, Operation, Position, Source, StartAt, ValueRef};
use watchkeeper_mongodb::mongodb::bson::raw::cstr;
use watchkeeper_mongodb::mongodb::bson::{
    Bson, DateTime, Document, JavaScriptCodeWithScope, RawBson, RawDocumentBuf, doc, oid::ObjectId,
};
use watchkeeper_mongodb::mongodb::options::{Acknowledgment, WriteConcern};
use watchkeeper_mongodb::{Scope, View};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::source::{LIMITS, Shop};
use crate::support::{Base, admin, assert_error, block_on, cx};

/// What a target would have, if it believed everything it is told.
#[derive(Debug, Default, PartialEq)]
struct Mirror(BTreeMap<String, i64>);

impl Mirror {
    /// Applies a change. The number of a document only grows, so a smaller one after a larger one is out of order.
    fn apply(&mut self, change: &Change) {
        let Some(key) = change.key().map(|key| String::from_utf8_lossy(key).into_owned()) else { return };
        let key = format!("{} {key}", change.namespace());
        match change.operation() {
            Operation::Delete => drop(self.0.remove(&key)),
            _ => {
                let reported = ["fullDocument", "updateDescription"].map(|part| match part {
                    "fullDocument" => change.get(&[part, "n"]),
                    _ => change.get(&[part, "updatedFields", "n"]),
                });
                let number = reported.into_iter().find_map(|value| match value.expect("it is BSON") {
                    Some(ValueRef::Int64(number)) => Some(number),
                    _ => None,
                });
                let number = number.unwrap_or_else(|| panic!("{key} has no number"));
                let before = self.0.insert(key.clone(), number);
                assert!(before.is_none_or(|before| before <= number), "{key} went back from {before:?} to {number}");
            }
        }
    }

    async fn of(shop: &Shop, names: &[&str]) -> Self {
        let mut mirror = Self::default();
        for name in names {
            let mut cursor = shop.database.collection::<Document>(name).find(doc! {}).await.expect("it can be read");
            while cursor.advance().await.expect("it can be read") {
                let raw = cursor.current();
                let mut key = Vec::new();
                let id: RawBson = raw.get("_id").expect("BSON").expect("an _id").into();
                let mut whole = RawDocumentBuf::new();
                whole.append(cstr!("_id"), id);
                watchkeeper_mongodb::canonical_key(&whole, &mut key).expect("a key");
                let key = format!("{}.{name} {}", shop.client.config().database(), String::from_utf8_lossy(&key));
                mirror.0.insert(key, raw.get_i64("n").expect("it has a number"));
            }
        }
        mirror
    }
}

async fn next(stream: &mut dyn ChangeStream) -> Vec<Change> {
    let batch = Arc::new(stream.next_batch(&cx(), LIMITS).await.expect("it reads"));
    (0..).take(batch.len()).map(|row| Change::new(Arc::clone(&batch), row)).collect()
}

/// Ids of all types, in no order.
fn mixed_ids() -> Vec<Bson> {
    let mut ids: Vec<Bson> = (0..40).flat_map(|n| [Bson::Int32(n * 3), Bson::Double(f64::from(n) + 0.5)]).collect();
    ids.extend((0..40).map(|n| Bson::from(format!("name-{n}"))));
    ids.extend((0..40).map(|n| Bson::from(doc! { "a": n, "b": "x" })));
    ids.extend((0..40).map(|n| Bson::from(ObjectId::from_bytes([n; 12]))));
    ids.extend((0..10).map(|n| Bson::from(DateTime::from_millis(n))));
    ids.extend([Bson::Null, Bson::Boolean(true), Bson::MinKey, Bson::MaxKey]);
    ids
}

/// Stops the server's journal, and with it what counts as written by a majority, or lets it go on.
async fn hold_back_majority(shop: &Shop, held_back: bool) {
    let mode = if held_back { "alwaysOn" } else { "off" };
    admin(&shop.client, doc! { "configureFailPoint": "pauseJournalFlusherThread", "mode": mode }).await;
}

#[test]
fn what_was_written_just_before_the_stream_begins_is_read_although_no_majority_has_it_yet() {
    let set = ReplicaSet::start(1);
    block_on(async {
        let shop = Shop::on(Base::on(&set)).await;
        shop.insert(doc! { "_id": 1, "n": 1_i64 }).await;
        hold_back_majority(&shop, true).await;
        // The stream begins after this, and a snapshot of what a majority has does not show it.
        let alone = WriteConcern::builder().w(Acknowledgment::Nodes(1)).journal(false).build();
        let (orders, newer) = (shop.orders(), doc! { "$set": { "n": 2_i64 } });
        orders.update_one(doc! { "_id": 1 }, newer).write_concern(alone).await.expect("it is taken");
        let feed = shop.feed(View::collection("orders"));
        let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let mut mirror = Mirror::default();
        // Whoever waits for a majority waits for longer than this.
        if let Ok(changes) = tokio::time::timeout(Duration::from_millis(500), next(&mut *stream)).await {
            changes.iter().for_each(|change| mirror.apply(change));
        }
        hold_back_majority(&shop, false).await;
        // Whatever is written now is read behind everything before it.
        shop.insert(doc! { "_id": 2, "n": 1_i64 }).await;
        while mirror.0.len() < 2 {
            next(&mut *stream).await.iter().for_each(|change| mirror.apply(change));
        }
        assert_eq!(mirror, Mirror::of(&shop, &["orders"]).await);
    });
}

async fn fill(shop: &Shop, name: &str) {
    let documents = mixed_ids().into_iter().map(|id| doc! { "_id": id, "n": 1_i64 });
    shop.database.collection(name).insert_many(documents).await.expect("they are taken");
}

/// Changes something everywhere: updates, deletes, inserts anew.
async fn notify_change(shop: &Shop, name: &str, round: usize) {
    let orders = shop.database.collection::<Document>(name);
    let ids = mixed_ids();
    for at in 0..6 {
        let id = doc! { "_id": ids[(round * 37 + at * 41) % ids.len()].clone() };
        let number = i64::try_from(round).expect("few rounds") * 10 + 2;
        match at {
            0 => drop(orders.delete_one(id).await.expect("it is taken")),
            1 | 2 => {
                let update = doc! { "$set": { "n": number } };
                orders.update_one(id, update).upsert(true).await.expect("it is taken");
            }
            _ => drop(orders.update_one(id, doc! { "$set": { "n": number } }).await.expect("it is taken")),
        }
    }
}

/// Reads a snapshot in small batches while others write, taken over by another after every few batches.
async fn relay(shop: &Shop, view: View, names: &[&str], tenure: usize) -> Mirror {
    let feed = shop.feed(view);
    let limits = watchkeeper_core::Limits { rows: 11, wait: Duration::from_millis(200), ..LIMITS };
    let (mut mirror, mut start) = (Mirror::default(), StartAt::Snapshot);
    let mut round = 0;
    // More tenures than all rows and changes need.
    for _ in 0..300 {
        let mut stream = feed.open(&cx(), start).await.expect("it opens");
        let mut end: Option<Position> = stream.position();
        for _ in 0..tenure {
            round += 1;
            if round < 90 {
                for name in names {
                    notify_change(shop, name, round).await;
                }
            }
            let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("it reads"));
            (0..).take(batch.len()).for_each(|row| mirror.apply(&Change::new(Arc::clone(&batch), row)));
            end = Some(batch.end.clone());
        }
        if round >= 90 && mirror == Mirror::of(shop, names).await {
            return mirror;
        }
        start = StartAt::After(end.expect("a snapshot tells its position"));
    }
    mirror
}

#[test]
fn a_snapshot_and_the_changes_since_make_the_collection() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        let mirror = relay(&shop, View::collection("orders"), &["orders"], 150).await;
        assert_eq!(mirror, Mirror::of(&shop, &["orders"]).await);
    });
}

#[test]
fn a_snapshot_goes_on_wherever_it_was_left() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        fill(&shop, "lines").await;
        let view = View::of(Scope::Collections(vec!["orders".into(), "lines".into()]));
        let mirror = relay(&shop, view, &["orders", "lines"], 3).await;
        assert_eq!(mirror, Mirror::of(&shop, &["orders", "lines"]).await);
    });
}

#[test]
fn what_was_delivered_before_a_crash_and_deleted_since_does_not_stay() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        fill(&shop, "lines").await;
        let feed = shop.feed(View::of(Scope::Collections(vec!["orders".into(), "lines".into()])));
        let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let mut committed = stream.position().expect("it is committed before anything is delivered");
        let mut mirror = Mirror::default();
        // Each time about half of what is there reaches the target, of which only the beginning is committed.
        for round in 0..3_usize {
            let mut rows: Vec<Change> = Vec::new();
            while rows.len() < mixed_ids().len() {
                rows.extend(next(&mut *stream).await);
            }
            rows.iter().for_each(|row| mirror.apply(row));
            drop(stream);
            committed = if round == 0 { committed } else { rows[rows.len() / 8].position() };
            for id in mixed_ids().into_iter().skip(round).step_by(9) {
                shop.orders().delete_one(doc! { "_id": id }).await.expect("it is taken");
            }
            stream = feed.open(&cx(), StartAt::After(committed.clone())).await.expect("it opens");
        }
        let expected = Mirror::of(&shop, &["orders", "lines"]).await;
        for _ in 0..50 {
            if mirror == expected {
                break;
            }
            next(&mut *stream).await.iter().for_each(|change| mirror.apply(change));
        }
        assert_eq!(mirror, expected);
    });
}

/// Reads a snapshot of these collections to its end, and then what is inserted into one of them.
async fn read_past_the_snapshot(shop: &Shop, names: &[&str], late: &str) -> Mirror {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let feed = shop.feed(View { wait: true, ..View::of(Scope::Collections(names)) });
    let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
    shop.database.collection::<Document>("lines").drop().await.expect("it can be dropped");
    let mut mirror = Mirror::default();
    for _ in 0..60 {
        let batch = Arc::new(stream.next_batch(&cx(), LIMITS).await.expect("it reads"));
        (0..).take(batch.len()).for_each(|row| mirror.apply(&Change::new(Arc::clone(&batch), row)));
        if feed.stage(&batch.end).is_none() {
            break;
        }
    }
    let after = doc! { "_id": "late", "n": 2_i64 };
    shop.database.collection::<Document>(late).insert_one(after).await.expect("it is taken");
    for _ in 0..60 {
        next(&mut *stream).await.iter().for_each(|change| mirror.apply(change));
        if mirror.0.keys().any(|key| key.contains("late")) {
            break;
        }
    }
    mirror
}

/// Values of types that drivers seldom write, which may be an `_id`.
fn rare_ids() -> Vec<Bson> {
    let code = |text: &str| Bson::JavaScriptCode(text.to_owned());
    let scoped = |text: &str, scope: Document| {
        Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code: text.to_owned(), scope })
    };
    let pointer = |name: &str, id: &str| {
        let pointer = serde_json::json!({ "$dbPointer": { "$ref": name, "$id": { "$oid": id } } });
        serde_json::from_value::<Bson>(pointer).expect("a pointer")
    };
    let (one, two) = ("070707070707070707070707", "080808080808080808080808");
    vec![
        doc! { "code": code("f()") }.into(),
        doc! { "code": scoped("f()", doc! { "x": 1 }) }.into(),
        doc! { "pointer": pointer("db.c", one) }.into(),
        pointer("z", two),
        pointer("db.c", one),
        pointer("db.c", two),
        code(""),
        code("f()"),
        code("f(1)"),
        scoped("f()", doc! {}),
        scoped("f()", doc! { "x": 1 }),
        scoped("g()", doc! { "x": code("h()") }),
    ]
}

#[test]
fn a_snapshot_ends_behind_ids_of_every_type() {
    block_on(async {
        for id in rare_ids() {
            let shop = Shop::open().await;
            let before = doc! { "_id": 1, "n": 1_i64 };
            shop.orders().insert_many([before, doc! { "_id": id.clone(), "n": 1_i64 }]).await.expect("they are taken");
            let feed = shop.feed(View::collection("orders"));
            let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
            let mut rows = Vec::new();
            for _ in 0..20 {
                rows.extend(next(&mut *stream).await);
                if stream.position().is_some_and(|position| feed.stage(&position).is_none()) {
                    break;
                }
            }
            assert_eq!(rows.len(), 2, "every row comes once, with {id}");
            assert_eq!(stream.position().and_then(|position| feed.stage(&position)), None, "it is over, with {id}");
        }
    });
}

#[test]
fn a_snapshot_of_ids_of_rare_types_goes_on_wherever_it_was_left() {
    block_on(async {
        let shop = Shop::open().await;
        let documents = rare_ids().into_iter().map(|id| doc! { "_id": id, "n": 1_i64 });
        shop.orders().insert_many(documents).await.expect("they are taken");
        let feed = shop.feed(View::collection("orders"));
        let one = watchkeeper_core::Limits { rows: 1, wait: Duration::from_millis(200), ..LIMITS };
        let (mut start, mut mirror, mut rows) = (StartAt::Snapshot, Mirror::default(), 0);
        for _ in 0..10 * rare_ids().len() {
            let mut stream = feed.open(&cx(), start).await.expect("it opens");
            let batch = Arc::new(stream.next_batch(&cx(), one).await.expect("it reads"));
            (0..).take(batch.len()).for_each(|row| mirror.apply(&Change::new(Arc::clone(&batch), row)));
            rows += batch.len();
            if feed.stage(&batch.end).is_none() {
                break;
            }
            start = StartAt::After(batch.end.clone());
        }
        assert_eq!(mirror, Mirror::of(&shop, &["orders"]).await);
        assert_eq!(rows, rare_ids().len(), "every row comes once");
    });
}

#[test]
fn a_snapshot_passes_over_a_collection_that_is_dropped_before_its_turn() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        fill(&shop, "lines").await;
        fill(&shop, "notes").await;
        let names = ["orders", "lines", "notes"];
        let mirror = read_past_the_snapshot(&shop, &names, "lines").await;
        assert_eq!(mirror, Mirror::of(&shop, &names).await);
    });
}

#[test]
fn a_snapshot_does_not_wait_for_a_collection_that_is_missing() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        let names = ["later", "orders"];
        let mirror = read_past_the_snapshot(&shop, &names, "later").await;
        assert_eq!(mirror, Mirror::of(&shop, &names).await);
        let mirror = read_past_the_snapshot(&shop, &["alone"], "alone").await;
        assert_eq!(mirror, Mirror::of(&shop, &["alone"]).await);
    });
}

#[test]
fn a_snapshot_may_take_longer_than_the_oplog_reaches_back() {
    const ROWS: i64 = 100_000;
    let arguments = ["--oplogSize", "16", "--syncdelay", "1"].map(str::to_owned).to_vec();
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    block_on(async {
        let shop = Shop::on(Base::on(&set)).await;
        let documents: Vec<Document> = (0..ROWS).map(|id| doc! { "_id": id, "n": 1_i64 }).collect();
        shop.orders().insert_many(documents).await.expect("they are taken");
        let feed = shop.feed(View::collection("orders"));
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let begin = stream.position().expect("it is known");
        let (mut mirror, mut end, mut outlived) = (Mirror::default(), begin.clone(), false);
        let limits = watchkeeper_core::Limits { rows: 500, wait: Duration::from_millis(200), ..LIMITS };
        for round in 1..=3_000_i64 {
            let noise = vec![doc! { "text": "x".repeat(50_000) }; 10];
            shop.database.collection::<Document>("noise").insert_many(noise).await.expect("they are taken");
            let changed = doc! { "_id": round * 37 % ROWS };
            shop.orders().update_one(changed, doc! { "$set": { "n": round + 1 } }).await.expect("it is taken");
            shop.orders().delete_one(doc! { "_id": round * 41 % ROWS }).await.expect("it is taken");
            let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("it reads"));
            (0..).take(batch.len()).for_each(|row| mirror.apply(&Change::new(Arc::clone(&batch), row)));
            end = batch.end.clone();
            if feed.stage(&end).is_none() {
                break;
            }
            if round % 20 == 0 {
                outlived |= feed.verify(&cx(), &begin, &pedigree).await.is_err();
                feed.verify(&cx(), &end, &pedigree).await.expect("where it stands now is still there");
                stream = feed.open(&cx(), StartAt::After(end.clone())).await.expect("it opens");
            }
        }
        assert!(feed.stage(&end).is_none(), "the snapshot did not end");
        assert!(outlived, "the oplog did not roll over while the snapshot ran");
        let expected = Mirror::of(&shop, &["orders"]).await;
        for _ in 0..50 {
            if mirror == expected {
                break;
            }
            next(&mut *stream).await.iter().for_each(|change| mirror.apply(change));
        }
        assert_eq!(mirror, expected);
    });
}

#[test]
fn rows_are_reported_as_reads_each_once_and_then_the_stream_goes_on() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let mut rows: Vec<Change> = Vec::new();
        while rows.len() < mixed_ids().len() {
            rows.extend(next(&mut *stream).await);
        }
        assert!(rows.iter().all(|row| row.operation() == Operation::Read && row.key().is_some()));
        let mut keys: Vec<_> = rows.iter().map(Change::key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), mixed_ids().len());
        let line = crate::source::text(&watchkeeper_core::format::Debezium, &rows[0]);
        assert!(line.contains(r#""op":"r""#) && line.contains(r#""snapshot":"true""#), "{line}");
        for pair in rows.windows(2) {
            let order = feed.compare(&pair[0].position(), &pair[1].position());
            assert_eq!(order, Some(std::cmp::Ordering::Less), "{:?} against {:?}", pair[0].key(), pair[1].key());
        }
        // When the stream has passed the snapshot, positions are tokens alone again.
        let mut changes = Vec::new();
        for n in 0..30_i64 {
            shop.insert(doc! { "_id": format!("late-{n}"), "n": n }).await;
            changes.extend(next(&mut *stream).await);
        }
        assert!(changes.iter().all(|change| change.operation() == Operation::Insert));
        let last = changes.last().expect("changes were read");
        assert_eq!(last.position().bytes[0], 1);
        assert_eq!(feed.compare(&rows[0].position(), &last.position()), Some(std::cmp::Ordering::Less));
    });
}

#[test]
fn a_document_that_fills_an_answer_does_not_end_the_snapshot() {
    block_on(async {
        let shop = Shop::open().await;
        for n in 0..3 {
            shop.insert(doc! { "_id": n, "n": 1_i64, "text": "x".repeat(15_000_000) }).await;
        }
        let feed = shop.feed(View::collection("orders"));
        let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let mut rows: Vec<Change> = Vec::new();
        for _ in 0..10 {
            rows.extend(next(&mut *stream).await);
        }
        let keys: Vec<_> = rows.iter().filter_map(Change::key).collect();
        assert_eq!(keys, [b"0", b"1", b"2"]);
    });
}

#[test]
fn what_cannot_be_read_as_a_snapshot_is_refused() {
    block_on(async {
        let shop = Shop::open().await;
        let open = async |view: View| shop.feed(view).open(&cx(), StartAt::Snapshot).await.map(drop);
        assert_error(open(View::of(Scope::Database)).await, ErrorKind::Config, "collections that are named");
        let pipeline = vec![doc! { "$match": { "operationType": "insert" } }];
        let seen = View { pipeline, ..View::collection("orders") };
        assert_error(open(seen).await, ErrorKind::Config, "through a pipeline");
        let create = doc! { "create": "names", "collation": { "locale": "de", "strength": 2 } };
        shop.database.run_command(create).await.expect("it is taken");
        assert_error(open(View::collection("names")).await, ErrorKind::Config, "has a collation");
        let create = doc! { "create": "log", "capped": true, "size": 1_000_000 };
        shop.database.run_command(create).await.expect("it is taken");
        assert_error(open(View::collection("log")).await, ErrorKind::Config, "log is a capped collection");
    });
}

#[test]
fn how_far_a_snapshot_is_stands_in_its_positions() {
    block_on(async {
        let shop = Shop::open().await;
        fill(&shop, "orders").await;
        let count = mixed_ids().len() as u64;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let begun = feed.stage(&stream.position().expect("it has one")).expect("it begins with a snapshot");
        assert_eq!((begun.done, begun.of), (0, Some(count)), "{begun:?}");
        assert_eq!(begun.what, "snapshot: reading orders, 1 of 1");
        let mut rows: Vec<Change> = Vec::new();
        while (rows.len() as u64) < count {
            rows.extend(next(&mut *stream).await);
        }
        let done: Vec<u64> = rows.iter().map(|row| feed.stage(&row.position()).expect("of a snapshot").done).collect();
        assert_eq!(done, (1..=count).collect::<Vec<_>>());
        // Taken up where it was left, it goes on counting.
        drop(stream);
        let half = rows[rows.len() / 2].position();
        let mut stream = feed.open(&cx(), StartAt::After(half.clone())).await.expect("it opens");
        let more = next(&mut *stream).await;
        let more = more.first().map(|row| feed.stage(&row.position()).expect("of a snapshot"));
        let before = feed.stage(&half).expect("of a snapshot").done;
        assert!(more.is_none_or(|stage| stage.done == before + 1 && stage.of == Some(count)));
        assert_eq!(shop.feed(View::collection("orders")).stage(&shop_token(&shop).await), None);
    });
}

/// A position that has nothing to do with a snapshot.
async fn shop_token(shop: &Shop) -> watchkeeper_core::Position {
    let stream = shop.watch(View::collection("orders")).await;
    stream.position().expect("it has one")
}
