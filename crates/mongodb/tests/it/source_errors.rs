//! What goes wrong while a stream is opened or read, provoked on a real server.

use std::time::Duration;

use watchkeeper_core::{ErrorKind, Limits, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Feed, Scope, Shown, View};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use crate::errors::in_turn;
use crate::source::{LIMITS, Shop, operations, read};
use crate::support::{Base, assert_told, block_on, cx, fail, fresh_name};

/// A feed whose client can be failed apart from all others.
async fn apart(shop: &Shop, view: View) -> (Feed, String) {
    let name = fresh_name();
    (Feed::new(shop.base.named_client(&name).await, view), name)
}

async fn read_code(set: &ReplicaSet, code: i32) -> watchkeeper_core::Result<()> {
    let shop = Shop::on(Base::on(set)).await;
    let (feed, app) = apart(&shop, View::collection("orders")).await;
    let mut stream = feed.open(&cx(), StartAt::Now).await.expect("it opens");
    fail(&shop.client, &app, "getMore", 1, doc! { "errorCode": code }).await;
    for _ in 0..20 {
        stream.next_batch(&cx(), Limits { wait: Duration::from_millis(500), ..LIMITS }).await?;
    }
    Ok(())
}

async fn open_code(set: &ReplicaSet, code: i32) -> watchkeeper_core::Result<()> {
    let shop = Shop::on(Base::on(set)).await;
    let (feed, app) = apart(&shop, View::collection("orders")).await;
    let position = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
    fail(&shop.client, &app, "aggregate", 1, doc! { "errorCode": code }).await;
    feed.open(&cx(), StartAt::After(position)).await.map(drop)
}

#[test]
fn every_code_while_reading_has_its_kind() {
    use ErrorKind::{Config, Corrupt, Denied, PositionLost, Unavailable};
    let rows = [
        (43, Unavailable),
        (237, Unavailable),
        (11601, Unavailable),
        (175, Unavailable),
        (91, Unavailable),
        (189, Unavailable),
        (10107, Unavailable),
        (11600, Unavailable),
        (11602, Unavailable),
        (13436, Unavailable),
        (286, PositionLost),
        (464, PositionLost),
        (136, Unavailable),
        (280, PositionLost),
        (10334, Config),
        (47, Config),
        (13, Denied),
        (50811, Corrupt),
    ];
    in_turn(|set| {
        block_on(async {
            for (code, kind) in rows {
                let error = read_code(set, code).await.expect_err("the server fails");
                assert_eq!(error.kind(), kind, "{code}: {error}");
                assert!(error.advice().is_some(), "{error}");
            }
        })
    });
}

#[test]
fn every_code_while_opening_has_its_kind() {
    use ErrorKind::{Config, Corrupt, Denied, PositionLost, Unavailable};
    let rows = [
        (6, Unavailable),
        (189, Unavailable),
        (11602, Unavailable),
        (286, PositionLost),
        (136, PositionLost),
        (260, Config),
        (50811, Corrupt),
        (26, Config),
        (13, Denied),
        (20, Config),
        (40415, Config),
        (40573, Config),
        (40576, PositionLost),
        (40585, PositionLost),
        (40615, PositionLost),
    ];
    in_turn(|set| {
        block_on(async {
            for (code, kind) in rows {
                let error = open_code(set, code).await.expect_err("the server fails");
                assert_eq!(error.kind(), kind, "{code}: {error}");
                assert!(error.advice().is_some(), "{error}");
            }
        })
    });
}

#[test]
fn a_cursor_that_was_killed_is_opened_again_from_the_last_position_and_nothing_is_lost() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let (feed, app) = apart(&shop, View::collection("orders")).await;
            let mut stream = feed.open(&cx(), StartAt::Now).await.expect("it opens");
            shop.insert(doc! { "_id": 1 }).await;
            let first = read(&mut *stream, 1).await;
            fail(&shop.client, &app, "getMore", 1, doc! { "closeConnection": true }).await;
            shop.insert(doc! { "_id": 2 }).await;
            let mut failed = None;
            for _ in 0..20 {
                match stream.next_batch(&cx(), LIMITS).await {
                    Ok(batch) if batch.is_empty() => {}
                    Ok(_) => break,
                    Err(error) => {
                        failed = Some(error.kind());
                        break;
                    }
                }
            }
            // The change may have been on its way before the connection was closed.
            assert!(failed.is_none_or(|kind| kind == ErrorKind::Unavailable), "{failed:?}");
            let mut again = feed.open(&cx(), StartAt::After(first[0].position())).await.expect("it opens");
            assert_eq!(read(&mut *again, 1).await[0].key(), Some(&b"2"[..]));
        })
    });
}

#[test]
fn an_event_that_the_pipeline_hides_since_is_passed_by_its_time() {
    block_on(async {
        let shop = Shop::open().await;
        // What a lookup shows may change: then the event that a token stands for is no longer seen.
        let pipeline = vec![doc! { "$match": { "fullDocument.open": true } }];
        let view = View { pipeline, full_document: Shown::UpdateLookup, ..View::collection("orders") };
        let feed = shop.feed(view.clone());
        let mut stream = shop.watch(view).await;
        // In one transaction, so that all of them have the same time: only the order of tokens tells what was delivered.
        let driver = shop.client.driver(&cx()).await.expect("it is open");
        let mut session = driver.start_session().await.expect("it starts");
        session.start_transaction().await.expect("it begins");
        for id in 1..=2 {
            let order = doc! { "_id": id, "open": true };
            shop.orders().insert_one(order).session(&mut session).await.expect("it is taken");
        }
        let one = || doc! { "_id": 1 };
        let update = doc! { "$set": { "n": 1 } };
        shop.orders().update_one(one(), update).session(&mut session).await.expect("it is taken");
        session.commit_transaction().await.expect("it is committed");
        let changes = read(&mut *stream, 3).await;
        shop.orders().update_one(one(), doc! { "$set": { "open": false } }).await.expect("it is taken");
        shop.insert(doc! { "_id": 3, "open": true }).await;
        let mut again = feed.open(&cx(), StartAt::After(changes[2].position())).await.expect("it opens");
        let rest = read(&mut *again, 1).await;
        assert_eq!(rest[0].key(), Some(&b"3"[..]), "{:?}", operations(&rest));
    });
}

#[test]
fn a_token_of_an_invalidate_is_taken_up_by_start_after() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.orders().drop().await.expect("it can be dropped");
        let changes = read(&mut *stream, 2).await;
        // As a position that was stored without the memory that it is one of an invalidate.
        let mut position = changes[1].position();
        let mut bytes = position.bytes.to_vec();
        bytes[0] = 1;
        position.bytes = bytes.into();
        shop.insert(doc! { "_id": 2 }).await;
        let mut again = feed.open(&cx(), StartAt::After(position)).await.expect("it opens");
        assert_eq!(read(&mut *again, 1).await[0].key(), Some(&b"2"[..]));
    });
}

#[test]
fn an_unknown_collection_is_refused_unless_it_is_waited_for() {
    block_on(async {
        let shop = Shop::open().await;
        let opened = shop.feed(View::collection("ordres")).open(&cx(), StartAt::Now).await.map(drop);
        assert_told(opened, ErrorKind::Config, "there is no collection \"ordres\"");
        let mut stream = shop.watch(View { wait: true, ..View::collection("later") }).await;
        shop.database.collection::<Document>("later").insert_one(doc! { "_id": 1 }).await.expect("it is taken");
        read(&mut *stream, 1).await;
    });
}

#[test]
fn a_damaged_token_is_corrupt_and_of_another_scope_a_matter_of_settings() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.insert(doc! { "_id": 1 }).await;
        let good = read(&mut *stream, 1).await[0].position();
        let mut damaged = good.clone();
        let mut bytes = good.bytes.to_vec();
        bytes[13] = 0xff;
        damaged.bytes = bytes.into();
        assert_told(feed.open(&cx(), StartAt::After(damaged)).await.map(drop), ErrorKind::Corrupt, "damaged");
        let mut idle = shop.watch(View::of(Scope::Database)).await;
        let end =
            idle.next_batch(&cx(), Limits { wait: Duration::from_millis(100), ..LIMITS }).await.expect("it reads").end;
        let pedigree = shop.feed(View::of(Scope::Database)).identity(&cx()).await.expect("it is known");
        let verified = feed.verify(&cx(), &end, &pedigree).await;
        assert_told(verified, ErrorKind::Config, "another scope, pipeline or options");
    });
}
