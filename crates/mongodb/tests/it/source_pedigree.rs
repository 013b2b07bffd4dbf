//! Positions that do not belong to the log that answers, or whose history is gone.

use std::time::Duration;

use watchkeeper_core::{
    Change, ErrorKind, Limits, Operation, OperationTime, Pedigree, Position, Source, SourceTime, StartAt,
};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Feed, View};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::errors::in_turn;
use crate::source::{LIMITS, Shop, operations, read, read_patiently};
use crate::support::{Base, Guarded, assert_error, block_on, cx, fail, fresh_name};

const REMEMBERED: &str = "position";

async fn position_of(shop: &Shop) -> Position {
    let mut stream = shop.watch(View::collection("orders")).await;
    shop.insert(doc! { "_id": REMEMBERED }).await;
    read(&mut *stream, 1).await[0].position()
}

#[test]
fn a_position_of_another_cluster_is_lost() {
    let other = ReplicaSet::start(1);
    block_on(async {
        let (here, there) = (Shop::open().await, Shop::on(Base::on(&other)).await);
        let position = position_of(&there).await;
        let pedigree = there.feed(View::collection("orders")).identity(&cx()).await.expect("it is known");
        let feed = here.feed(View::collection("orders"));
        assert_error(feed.verify(&cx(), &position, &pedigree).await, ErrorKind::PositionLost, "another cluster");
    });
}

#[test]
fn a_position_of_the_future_is_lost() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let position = position_of(&shop).await;
        let mut bytes = position.bytes.to_vec();
        // The seconds of its cluster time stand behind three bytes of ours and one of the token.
        let seconds = u32::from_be_bytes(bytes[4..8].try_into().expect("four bytes")) + 30;
        bytes[4..8].copy_from_slice(&seconds.to_be_bytes());
        let future = Position::new(bytes, position.time);
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        assert_error(feed.verify(&cx(), &future, &pedigree).await, ErrorKind::PositionLost, "in the future");
        assert_error(
            feed.open(&cx(), StartAt::After(future)).await.map(drop),
            ErrorKind::PositionLost,
            "in the future",
        );
    });
}

#[test]
fn another_pipeline_is_a_matter_of_settings() {
    block_on(async {
        let shop = Shop::open().await;
        let position = position_of(&shop).await;
        let pedigree = shop.feed(View::collection("orders")).identity(&cx()).await.expect("it is known");
        let pipeline = vec![doc! { "$match": { "operationType": "insert" } }];
        let feed = shop.feed(View { pipeline, ..View::collection("orders") });
        assert_error(
            feed.verify(&cx(), &position, &pedigree).await,
            ErrorKind::Config,
            "another scope, pipeline or options",
        );
    });
}

/// Renames the collection `newer` over the one that is watched.
async fn rename_over(shop: &Shop) {
    shop.database.collection("newer").insert_one(doc! { "_id": 1 }).await.expect("it is taken");
    let database = shop.client.config().database();
    let over = doc! {
        "renameCollection": format!("{database}.newer"), "to": format!("{database}.orders"), "dropTarget": true,
    };
    crate::support::admin(&shop.client, over).await;
}

#[test]
fn a_collection_that_was_dropped_or_replaced_meanwhile_is_reported() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let position = position_of(&shop).await;
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        shop.orders().drop().await.expect("it can be dropped");
        shop.insert(doc! { "_id": 1 }).await;
        feed.verify(&cx(), &position, &pedigree).await.expect("the stream will tell of it");

        let position = position_of(&shop).await;
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        rename_over(&shop).await;
        feed.verify(&cx(), &position, &pedigree).await.expect("the stream will tell of it");
        shop.insert(doc! { "_id": 2 }).await;
        let mut stream = feed.open(&cx(), StartAt::After(position)).await.expect("it opens");
        let changes = read_patiently(&mut *stream, 3).await;
        assert_eq!(operations(&changes), [Operation::Rename, Operation::Invalidate, Operation::Insert]);
    });
}

#[test]
fn a_collection_that_is_replaced_between_identifying_and_opening_it_is_identified_again() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        for start in [StartAt::Now, StartAt::Snapshot] {
            shop.insert(doc! { "_id": 1 }).await;
            // As an engine does it: positions from there on are stored beside this.
            feed.identity(&cx()).await.expect("it is known");
            shop.orders().drop().await.expect("it can be dropped");
            shop.insert(doc! { "_id": 2 }).await;
            let opened = feed.open(&cx(), start.clone()).await.map(drop);
            assert_error(opened, ErrorKind::Unavailable, "replaced by another collection while it was opened");
            let pedigree = feed.identity(&cx()).await.expect("it is known");
            let stream = feed.open(&cx(), start).await.expect("it opens");
            let position = stream.position().expect("it has one");
            feed.verify(&cx(), &position, &pedigree).await.expect("it is of this collection");
            shop.orders().drop().await.expect("it can be dropped");
        }
    });
}

#[test]
fn a_collection_that_is_replaced_while_it_is_read_is_reported_and_the_next_one_is_read() {
    block_on(async {
        let shop = Shop::open().await;
        // A condition that would hide all but inserts.
        let pipeline = vec![doc! { "$match": { "operationType": "insert" } }];
        let feeds = [View::collection("orders"), View { pipeline, ..View::collection("orders") }];
        let mut streams = Vec::new();
        for view in feeds {
            streams.push(shop.watch(view).await);
        }
        shop.insert(doc! { "_id": 1 }).await;
        rename_over(&shop).await;
        shop.insert(doc! { "_id": 2 }).await;
        use Operation::{Insert, Invalidate, Rename};
        for (stream, expected) in
            streams.iter_mut().zip([&[Insert, Rename, Invalidate, Insert][..], &[Insert, Invalidate, Insert]])
        {
            let changes = read_patiently(&mut **stream, expected.len()).await;
            assert_eq!(operations(&changes), expected);
            assert_eq!(changes.last().and_then(Change::key), Some(&b"2"[..]));
        }
    });
}

/// The end of the collection is also what passes the end of the snapshot. The positions after it belong to the next collection.
#[test]
fn a_collection_that_ends_with_its_snapshot_gives_way_to_the_next_one() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let app = fresh_name();
            let feed = Feed::new(shop.base.named_client(&app).await, View::collection("orders"));
            shop.insert(doc! { "_id": 1 }).await;
            let mut pedigree = feed.identity(&cx()).await.expect("it can be told");
            let mut stream = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
            let rows = Limits { rows: 1, ..LIMITS };
            assert_eq!(stream.next_batch(&cx(), rows).await.expect("it reads").len(), 1);
            // The stream is held back until the end of the collection was read, at a later time than it has told.
            let hang = doc! { "blockConnection": true, "blockTimeMS": 3_000 };
            fail(&shop.client, &app, "getMore", 1, hang).await;
            shop.database.collection("others").insert_one(doc! { "_id": 1 }).await.expect("it is taken");
            let silence = Limits { wait: Duration::from_secs(1), ..LIMITS };
            assert!(stream.next_batch(&cx(), silence).await.expect("it reads").is_empty());
            shop.orders().drop().await.expect("it can be dropped");
            shop.insert(doc! { "_id": 2 }).await;
            let mut changes = Vec::new();
            while changes.last() != Some(&Operation::Insert) {
                let batch = stream.next_batch(&cx(), LIMITS).await.expect("it reads");
                // Stored together, as the engine does it.
                pedigree = batch.pedigree.clone().unwrap_or(pedigree);
                feed.verify(&cx(), &batch.end, &pedigree).await.expect("its own position is good");
                let batch = std::sync::Arc::new(batch);
                changes.extend((0..).take(batch.len()).map(|row| Change::new(batch.clone(), row).operation()));
            }
            assert_eq!(changes, [Operation::Drop, Operation::Invalidate, Operation::Insert]);
        });
    });
}

#[test]
fn a_collection_whose_end_the_stream_will_not_tell_is_lost() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let position = position_of(&shop).await;
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        feed.verify(&cx(), &position, &pedigree).await.expect("nothing has happened");
        let mut lineage: serde_json::Value = serde_json::from_slice(&pedigree.0).expect("it is JSON");
        lineage["collection"] = "00112233445566778899aabbccddeeff".into();
        let other = Pedigree(serde_json::to_vec(&lineage).expect("it is JSON").into());
        assert_error(feed.verify(&cx(), &position, &other).await, ErrorKind::PositionLost, "was replaced");
    });
}

/// Writes until the oplog has rolled over a position.
async fn roll_over(shop: &Shop, position: &Position) {
    let large = doc! { "text": "x".repeat(50_000) };
    let feed = shop.feed(View::collection("orders"));
    let pedigree = feed.identity(&cx()).await.expect("it is known");
    for _ in 0..2_000 {
        let many = vec![large.clone(); 20];
        shop.database.collection::<Document>("noise").insert_many(many).await.expect("it is taken");
        if feed.verify(&cx(), position, &pedigree).await.is_err() {
            return;
        }
    }
    panic!("the oplog does not roll over");
}

#[test]
fn a_position_that_has_left_the_oplog_is_lost() {
    // The oplog is cut only up to the last checkpoint of the storage, which otherwise is made once a minute.
    let arguments = ["--oplogSize", "1", "--syncdelay", "1"].map(str::to_owned).to_vec();
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    block_on(async {
        let shop = Shop::on(Base::on(&set)).await;
        let feed = shop.feed(View::collection("orders"));
        let position = position_of(&shop).await;
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        roll_over(&shop, &position).await;
        assert_error(feed.verify(&cx(), &position, &pedigree).await, ErrorKind::PositionLost, "left the oplog");
        let time = SourceTime(position.time.expect("it has one").0 - 3_600_000);
        // Unverified, the server says so with its first answer.
        let mut stream = feed.open(&cx(), StartAt::After(position)).await.expect("it opens");
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "left the oplog");
        assert_error(feed.open(&cx(), StartAt::Time(time)).await.map(drop), ErrorKind::PositionLost, "left the oplog");
        let seconds = u32::try_from(time.0 / 1_000).expect("it fits");
        let operation = StartAt::Operation(OperationTime { seconds, increment: 1 });
        let found = feed.preflight(&cx(), &operation, None).await.expect("it can be looked at");
        assert!(found.iter().any(|finding| finding.what.contains("left the oplog")), "{found:?}");
        assert_error(feed.open(&cx(), operation).await.map(drop), ErrorKind::PositionLost, "left the oplog");
        // The oplog may still be cut while it is read; then the oldest change is another one.
        let mut found = None;
        for n in 0..500 {
            shop.insert(doc! { "_id": n }).await;
            let mut oldest = match feed.open(&cx(), StartAt::Oldest).await {
                Ok(oldest) => oldest,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    continue;
                }
            };
            match oldest.next_batch(&cx(), LIMITS).await {
                Ok(batch) => {
                    found = Some((oldest, batch));
                    break;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::PositionLost),
            }
        }
        let (mut oldest, batch) = found.expect("the oplog comes to rest");
        assert!(!batch.is_empty());
        let window = oldest.window(&cx()).await.expect("it is known");
        assert!(window.oldest.is_some() && window.oldest <= window.newest, "{window:?}");
    });
}

#[test]
fn batches_carry_a_fresh_proof_of_their_history() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        let mut proofs = Vec::new();
        let until = std::time::Instant::now() + Duration::from_secs(30);
        for n in 0.. {
            if std::time::Instant::now() >= until {
                break;
            }
            shop.insert(doc! { "_id": n }).await;
            let limits = Limits { wait: Duration::from_millis(200), ..LIMITS };
            let batch = stream.next_batch(&cx(), limits).await.expect("it reads");
            if let Some(pedigree) = &batch.pedigree {
                feed.verify(&cx(), &batch.end, pedigree).await.expect("its own position is good");
                proofs.push(pedigree.clone());
            } else {
                // A proof is looked for once in a while only.
                stream.next_batch(&cx(), limits).await.expect("it reads");
            }
            proofs.dedup();
            if proofs.len() > 1 {
                return;
            }
        }
        panic!("{} proofs were seen", proofs.len());
    });
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("it can be read").map(|entry| entry.expect("it can be read")) {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("it is known").is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_name() != "mongod.lock" {
            std::fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}

#[test]
fn data_that_were_restored_from_a_backup_are_recognised() {
    let set = ReplicaSet::start(1);
    let backup = tempfile::tempdir().expect("a folder can be made");
    let (data, copied) = (set.data(0), backup.path().join("data"));
    let base = Base::on(&set);
    block_on(async {
        let shop = Shop::on(base).await;
        shop.insert(doc! { "_id": "before the backup" }).await;
        set.kill(0);
        copy(&data, &copied);
        set.restart(0);
        set.primary();
        let shop = shop.again().await;
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.insert(doc! { "_id": "after the backup" }).await;
        read(&mut *stream, 1).await;
        // An idle token: the server itself would accept it for ever.
        let silence = stream.next_batch(&cx(), LIMITS).await.expect("it reads");
        let feed = shop.feed(View::collection("orders"));
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        feed.verify(&cx(), &silence.end, &pedigree).await.expect("nothing has happened yet");
        set.kill(0);
        std::fs::remove_dir_all(&data).expect("it can be removed");
        copy(&copied, &data);
        set.restart(0);
        set.primary();
        let shop = shop.again().await;
        shop.insert(doc! { "_id": "after the restore" }).await;
        let verified = shop.feed(View::collection("orders")).verify(&cx(), &silence.end, &pedigree).await;
        assert_error(verified, ErrorKind::PositionLost, "restored from a backup");
    });
}

#[test]
fn restored_data_are_recognised_by_the_last_event_where_the_oplog_may_not_be_read() {
    block_on(async {
        let guarded = Guarded::start().await;
        let set = guarded.set();
        let resource = doc! { "db": "shop", "collection": "" };
        let actions = ["find", "changeStream", "listCollections"];
        guarded.user("reader", vec![doc! { "resource": resource, "actions": &actions[..] }]).await;
        let write = async |what: &str| {
            let keeper = guarded.client("keeper", "shop").await;
            let orders = keeper.database(&cx()).await.expect("it is there").collection::<Document>("orders");
            orders.insert_one(doc! { "_id": what }).await.expect("it is taken");
        };
        let feed = async || Feed::new(guarded.client("reader", "shop").await, View::collection("orders"));
        // Whoever may not read the oplog is told of the end of a collection all the same.
        write("of the first").await;
        let reader = feed().await;
        let first = reader.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
        let pedigree = reader.identity(&cx()).await.expect("it is known");
        let keeper = guarded.client("keeper", "shop").await.database(&cx()).await.expect("it is there");
        keeper.collection::<Document>("orders").drop().await.expect("it can be dropped");
        write("of the second").await;
        reader.verify(&cx(), &first, &pedigree).await.expect("the stream will tell of it");

        let backup = tempfile::tempdir().expect("a folder can be made");
        let (data, copied) = (set.data(0), backup.path().join("data"));
        set.kill(0);
        copy(&data, &copied);
        set.restart(0);
        set.primary();

        let reader = feed().await;
        let mut stream = reader.open(&cx(), StartAt::Now).await.expect("it opens");
        write("after the backup").await;
        let mut pedigree = None;
        for _ in 0..30 {
            let batch = stream.next_batch(&cx(), LIMITS).await.expect("it reads");
            pedigree = batch.pedigree.clone().or(pedigree);
            if !batch.is_empty() {
                break;
            }
        }
        // An idle token: the server itself would accept it for ever.
        let silence = stream.next_batch(&cx(), LIMITS).await.expect("it reads");
        assert!(silence.is_empty());
        let pedigree = silence.pedigree.or(pedigree).expect("it has one");
        // Whoever takes over on a quiet stream hands on what it was told.
        let next = feed().await;
        next.verify(&cx(), &silence.end, &pedigree).await.expect("nothing has happened yet");
        let pedigree = next.identity(&cx()).await.expect("it is known");

        set.kill(0);
        std::fs::remove_dir_all(&data).expect("it can be removed");
        copy(&copied, &data);
        set.restart(0);
        set.primary();
        write("after the restore").await;
        let verified = feed().await.verify(&cx(), &silence.end, &pedigree).await;
        assert_error(verified, ErrorKind::PositionLost, "restored from a backup");
    });
}
