//! Much at once: large transactions, many changes, and what befalls whole collections.

use watchkeeper_core::{Change, ChangeStream, Limits, Operation, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Scope, View};

use crate::source::{LIMITS, Shop, operations, read_patiently, read_to_the_end};
use crate::source_ways::spacious;
use crate::support::{Base, admin, block_on, cx};

/// Reads `count` changes with the `_id`s 0, 1, 2, … from a stream that is opened again after some of them.
async fn assert_all_in_order(shop: &Shop, mut stream: Box<dyn ChangeStream>, count: i32, reopen_at: &[i32]) {
    let feed = shop.feed(View::collection("orders"));
    let limits = Limits { rows: 999, ..LIMITS };
    let (mut seen, mut silent) = (0, 0);
    while seen < count {
        let batch = std::sync::Arc::new(stream.next_batch(&cx(), limits).await.expect("it reads"));
        silent = if batch.is_empty() { silent + 1 } else { 0 };
        assert!(silent < 30, "nothing comes after {seen}");
        for row in (0..).take(batch.len()) {
            let change = Change::new(std::sync::Arc::clone(&batch), row);
            assert_eq!(change.key(), Some(seen.to_string().as_bytes()));
            seen += 1;
            if reopen_at.contains(&seen) {
                // What was read after it is forgotten, as by a process that dies.
                stream = feed.open(&cx(), StartAt::After(change.position())).await.expect("it opens");
                break;
            }
        }
    }
    assert_eq!(seen, count);
}

#[test]
fn an_id_above_64_kib_is_a_position_to_go_on_from() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        let long = |sign: &str| sign.repeat(70_000);
        for sign in ["a", "b", "c"] {
            shop.insert(doc! { "_id": long(sign) }).await;
        }
        let changes = read_patiently(&mut *stream, 3).await;
        let key = |sign: &str| format!("\"{}\"", long(sign)).into_bytes();
        assert!(changes[0].key() == Some(&key("a")), "the first is told first");
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        feed.verify(&cx(), &changes[0].position(), &pedigree).await.expect("it is one of this log");
        let mut again = feed.open(&cx(), StartAt::After(changes[0].position())).await.expect("it opens");
        assert!(read_patiently(&mut *again, 2).await[0].key() == Some(&key("b")), "the next is told next");
        // The progress of a snapshot has such an `_id`, too.
        let mut rows = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let first = read_patiently(&mut *rows, 3).await[0].position();
        let mut rest = feed.open(&cx(), StartAt::After(first)).await.expect("it opens");
        assert!(read_patiently(&mut *rest, 2).await[0].key() == Some(&key("b")), "the rest is read");
    });
}

#[test]
fn a_transaction_of_ten_thousand_writes_is_reported_whole_and_in_order() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let stream = shop.watch(View::collection("orders")).await;
        let driver = shop.client.driver(&cx()).await.expect("it is open");
        let mut session = driver.start_session().await.expect("it starts");
        session.start_transaction().await.expect("it begins");
        let orders: Vec<Document> = (0..10_000).map(|n| doc! { "_id": n }).collect();
        shop.orders().insert_many(orders).session(&mut session).await.expect("they are taken");
        session.commit_transaction().await.expect("it is committed");
        assert_all_in_order(&shop, stream, 10_000, &[1, 4_321, 9_999]).await;
    });
}

#[test]
fn a_hundred_thousand_changes_are_reported_in_order() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let stream = shop.watch(View::collection("orders")).await;
        for part in 0..10 {
            let orders: Vec<Document> = (part * 10_000..(part + 1) * 10_000).map(|n| doc! { "_id": n }).collect();
            shop.orders().insert_many(orders).await.expect("they are taken");
        }
        assert_all_in_order(&shop, stream, 100_000, &[33_333, 66_666]).await;
    });
}

#[test]
fn a_stream_goes_on_after_its_collection_was_renamed_away() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.insert(doc! { "_id": 1 }).await;
        let name = shop.client.config().database();
        let away = doc! { "renameCollection": format!("{name}.orders"), "to": format!("{name}.old") };
        admin(&shop.client, away).await;
        let changes = read_patiently(&mut *stream, 3).await;
        use Operation::{Insert, Invalidate, Rename};
        assert_eq!(operations(&changes), [Insert, Rename, Invalidate]);
        shop.insert(doc! { "_id": 2 }).await;
        assert_eq!(read_patiently(&mut *stream, 1).await[0].key(), Some(&b"2"[..]));
        let mut again = feed.open(&cx(), StartAt::After(changes[0].position())).await.expect("it opens");
        assert_eq!(operations(&read_patiently(&mut *again, 3).await), [Rename, Invalidate, Insert]);
    });
}

#[test]
fn streams_go_on_after_their_database_was_dropped_and_made_again() {
    block_on(async {
        use Operation::{Drop, DropDatabase, Insert, Invalidate};
        let shop = Shop::open().await;
        let mut of_collection = shop.watch(View::collection("orders")).await;
        let mut of_database = shop.watch(View::of(Scope::Database)).await;
        shop.insert(doc! { "_id": 1 }).await;
        shop.database.drop().await.expect("it can be dropped");
        assert_eq!(operations(&read_to_the_end(&mut *of_collection).await), [Insert, Drop, Invalidate]);
        assert_eq!(operations(&read_to_the_end(&mut *of_database).await), [Insert, Drop, DropDatabase, Invalidate]);
        shop.insert(doc! { "_id": 2 }).await;
        for stream in [&mut of_collection, &mut of_database] {
            assert_eq!(read_patiently(&mut **stream, 1).await[0].key(), Some(&b"2"[..]));
        }
    });
}
