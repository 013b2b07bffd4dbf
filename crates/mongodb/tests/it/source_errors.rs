//! What goes wrong while a stream is opened or read, provoked on a real server.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use watchkeeper_core::{Change, ChangeStream, ErrorKind, Limits, Operation, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::raw::cstr;
use watchkeeper_mongodb::mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use watchkeeper_mongodb::mongodb::options::{ReadPreference, SelectionCriteria};
use watchkeeper_mongodb::{Client, Config, Feed, Scope, Shown, View};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use crate::errors::in_turn;
use crate::refusing_proxy::Proxy;
use crate::source::{LIMITS, Shop, operations, read};
use crate::support::{Base, assert_error, block_on, cx, fail, fresh_name};

/// A feed whose client can be failed apart from all others.
async fn apart(shop: &Shop, view: View) -> (Feed, String) {
    let name = fresh_name();
    (Feed::new(shop.base.named_client(&name).await, view), name)
}

/// What a stream does about an error of its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// It finds a way round by itself.
    GoesOn,
    /// It tells this, and reads on from the same position when it is opened again.
    Tells(ErrorKind),
}

/// Code, and what is done about it while reading and while opening. Every row of the table that a server can be made to say.
fn rows() -> Vec<(i32, Action, Action)> {
    use Action::{GoesOn, Tells};
    use ErrorKind::{Config, Corrupt, Denied, PositionLost, Unavailable};
    let again = [
        43, 237, 11601, 175, 6, 7, 63, 89, 91, 96, 133, 150, 189, 234, 262, 317, 365, 9001, 10107, 11600, 11602, 13388,
        13435, 13436, 50915,
    ];
    let gone = [286, 464, 40576, 40585, 40615, 280];
    let wrong = [260, 26, 20, 40415, 40573, 47];
    let both = |kind: ErrorKind| move |code: i32| (code, Tells(kind), Tells(kind));
    let mut rows: Vec<_> = again.map(both(Unavailable)).to_vec();
    rows.extend(gone.map(both(PositionLost)));
    rows.extend(wrong.map(both(Config)));
    rows.extend([13, 18].map(both(Denied)));
    rows.push(both(Corrupt)(50811));
    // It may have been about the cursor alone: only opening tells whether the position is lost.
    rows.push((136, Tells(Unavailable), Tells(PositionLost)));
    rows.push((10334, GoesOn, GoesOn));
    rows
}

/// How a server is made to say a code. Some of them come with a word about what is stale.
fn saying(code: i32) -> Document {
    let mut how = doc! { "errorCode": code };
    let at = watchkeeper_mongodb::mongodb::bson::Timestamp { time: 1, increment: 1 };
    let epoch = watchkeeper_mongodb::mongodb::bson::oid::ObjectId::new();
    let version = |name: &str| {
        doc! { name: at, format!("{name}Epoch"): epoch, format!("{name}Timestamp"): at }
    };
    let mut info = doc! { "ns": "shop.orders", "shardId": "first" };
    info.extend(version("vReceived"));
    info.extend(version("vWanted"));
    if [63, 150, 13388].contains(&code) {
        how.insert("errorExtraInfo", info);
    }
    how
}

/// A stream that is opened again and again from where it was, and all that came out of it.
struct RestartedStream {
    shop: Shop,
    feed: Feed,
    app: String,
    position: watchkeeper_core::Position,
    delivered: Vec<String>,
    written: usize,
}

impl RestartedStream {
    async fn on(set: &ReplicaSet) -> Self {
        let shop = Shop::on(Base::on(set)).await;
        let (feed, app) = apart(&shop, View::collection("orders")).await;
        let position = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
        Self { shop, feed, app, position, delivered: Vec::new(), written: 0 }
    }

    async fn write(&mut self) {
        self.shop.insert(doc! { "_id": i64::try_from(self.written).expect("few") }).await;
        self.written += 1;
    }

    /// Reads until everything is there, or something fails.
    async fn read(&mut self, stream: &mut dyn ChangeStream) -> watchkeeper_core::Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while self.delivered.len() < self.written {
            assert!(Instant::now() < until, "{} of {} came", self.delivered.len(), self.written);
            let batch = Arc::new(stream.next_batch(&cx(), LIMITS).await?);
            for row in (0..).take(batch.len()) {
                let key = Change::new(Arc::clone(&batch), row).key().map(<[u8]>::to_vec).expect("it has one");
                self.delivered.push(String::from_utf8(key).expect("it is a text"));
            }
            self.position = batch.end.clone();
        }
        Ok(())
    }

    async fn open(&self) -> watchkeeper_core::Result<Box<dyn ChangeStream>> {
        self.feed.open(&cx(), StartAt::After(self.position.clone())).await
    }

    /// Reads while the server says this code, once. What was on its way before is read before.
    async fn meet(&mut self, code: i32) -> watchkeeper_core::Result<()> {
        let mut stream = self.open().await.expect("it opens");
        // With a cursor that has answered once: what a server says before that is about the position.
        self.write().await;
        self.read(&mut *stream).await?;
        fail(&self.shop.client, &self.app, "getMore", 1, saying(code)).await;
        for _ in 0..3 {
            self.write().await;
            self.read(&mut *stream).await?;
        }
        Ok(())
    }

    async fn assert_nothing_lost(mut self) {
        self.write().await;
        let mut stream = self.open().await.expect("it opens");
        self.read(&mut *stream).await.expect("nothing fails any more");
        assert_eq!(self.delivered, (0..self.written).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}

fn assert_action(code: i32, expected: Action, answer: watchkeeper_core::Result<()>) {
    let found = match &answer {
        Ok(()) => Action::GoesOn,
        Err(error) => Action::Tells(error.kind()),
    };
    assert_eq!(found, expected, "{code}: {answer:?}");
    assert!(answer.as_ref().err().is_none_or(|error| error.advice().is_some()), "{answer:?}");
}

#[test]
fn every_code_while_reading_has_its_action_and_nothing_is_lost() {
    in_turn(|set| {
        block_on(async {
            let mut restarted = RestartedStream::on(set).await;
            for (code, reading, _) in rows() {
                assert_action(code, reading, restarted.meet(code).await);
            }
            restarted.assert_nothing_lost().await;
        })
    });
}

#[test]
fn every_code_while_opening_has_its_action_and_nothing_is_lost() {
    in_turn(|set| {
        block_on(async {
            let mut restarted = RestartedStream::on(set).await;
            for (code, _, opening) in rows() {
                restarted.write().await;
                fail(&restarted.shop.client, &restarted.app, "aggregate", 1, saying(code)).await;
                assert_action(code, opening, restarted.open().await.map(drop));
            }
            restarted.assert_nothing_lost().await;
        })
    });
}

#[test]
fn an_oplog_that_rolls_over_below_a_new_cursor_is_a_lost_position_only_the_second_time() {
    in_turn(|set| {
        block_on(async {
            let mut restarted = RestartedStream::on(set).await;
            for (times, expected) in [(1, Action::GoesOn), (2, Action::Tells(ErrorKind::PositionLost))] {
                restarted.write().await;
                fail(&restarted.shop.client, &restarted.app, "getMore", times, saying(136)).await;
                let mut stream = restarted.open().await.expect("it opens");
                assert_action(136, expected, restarted.read(&mut *stream).await);
            }
            restarted.assert_nothing_lost().await;
        })
    });
}

#[test]
fn an_error_that_passes_while_a_stream_is_opened_is_not_blamed_on_its_position() {
    in_turn(|set| {
        block_on(async {
            let mut restarted = RestartedStream::on(set).await;
            // None of these is in the table, and none says anything about a position.
            for code in [134, 8, 211, 222, 1] {
                restarted.write().await;
                fail(&restarted.shop.client, &restarted.app, "aggregate", 1, saying(code)).await;
                assert_action(code, Action::GoesOn, restarted.open().await.map(drop));
                // The same with the first answer of the cursor.
                fail(&restarted.shop.client, &restarted.app, "getMore", 1, saying(code)).await;
                let mut stream = restarted.open().await.expect("it opens");
                assert_action(code, Action::GoesOn, restarted.read(&mut *stream).await);
                drop(stream);
                // It refuses whatever else is tried, too.
                fail(&restarted.shop.client, &restarted.app, "aggregate", 2, saying(code)).await;
                let refused = restarted.open().await.map(drop).expect_err("the server refuses everything");
                assert_ne!(refused.kind(), ErrorKind::Corrupt, "{code}: {refused}");
                assert!(!refused.message().contains("damaged"), "{code}: {refused}");
            }
            restarted.assert_nothing_lost().await;
        })
    });
}

/// A feed behind a proxy that can refuse to open streams after a position, and such a position.
async fn behind_proxy(set: &ReplicaSet) -> (Shop, Proxy, Feed, StartAt) {
    let shop = Shop::on(Base::on(set)).await;
    let proxy = Proxy::start(set);
    let config = Config::new(proxy.url(shop.client.config().database())).expect("it is one");
    let client = Client::open(&cx(), config).await.expect("it answers");
    let feed = Feed::new(client, View::collection("orders"));
    let position = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
    (shop, proxy, feed, StartAt::After(position))
}

#[test]
fn an_error_that_outlasts_two_openings_is_not_blamed_on_the_position() {
    in_turn(|set| {
        block_on(async {
            let (shop, proxy, feed, start) = behind_proxy(set).await;
            shop.insert(doc! { "_id": 1 }).await;
            // Each opening tries three times.
            proxy.refused.resumptions_left.store(6, SeqCst);
            for _ in 0..2 {
                let refused = feed.open(&cx(), start.clone()).await.map(drop);
                assert_error(refused, ErrorKind::Unavailable, "refuses to go on from the stored position");
            }
            let mut stream = feed.open(&cx(), start).await.expect("the error has passed");
            assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"1"[..]));
        })
    });
}

#[test]
fn a_position_that_is_refused_for_seconds_is_damaged() {
    in_turn(|set| {
        block_on(async {
            let (_shop, proxy, feed, start) = behind_proxy(set).await;
            proxy.refused.resumptions_left.store(usize::MAX, SeqCst);
            let begun = Instant::now();
            let refused = loop {
                match feed.open(&cx(), start.clone()).await.map(drop) {
                    Err(error) if error.kind() == ErrorKind::Unavailable => {}
                    refused => break refused,
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "it is never told");
            };
            assert_error(refused, ErrorKind::Corrupt, "the stored position is damaged");
            assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
            proxy.refused.resumptions_left.store(0, SeqCst);
            feed.open(&cx(), start).await.expect("and taken again when the server takes it");
        })
    });
}

/// Kills the open cursors on the orders that clients of this name have.
async fn kill_cursors_of(shop: &Shop, app: &str) {
    let stages = vec![
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": { "appName": app, "cursor.cursorId": { "$exists": true } } },
    ];
    let admin = shop.database.client().database("admin");
    let id = |it: &Bson| it.as_document()?.get_document("cursor").ok()?.get_i64("cursorId").ok();
    let since = Instant::now();
    // A cursor between waiting and working is listed as neither.
    let cursors: Vec<i64> = loop {
        let list = doc! { "aggregate": 1, "pipeline": stages.clone(), "cursor": {} };
        let found = admin.run_command(list).await.expect("they are listed");
        let operations =
            found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).expect("a batch");
        let cursors: Vec<i64> = operations.iter().filter_map(id).collect();
        if !cursors.is_empty() {
            break cursors;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{found}");
    };
    let kill = doc! { "killCursors": "orders", "cursors": cursors.clone() };
    let answer = shop.database.run_command(kill).await.expect("they can be killed");
    assert_eq!(answer.get_array("cursorsKilled").map_or(0, Vec::len), cursors.len(), "{answer}");
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
            kill_cursors_of(&shop, &app).await;
            shop.insert(doc! { "_id": 2 }).await;
            let error = loop {
                match stream.next_batch(&cx(), LIMITS).await {
                    // An answer may have been on its way.
                    Ok(batch) => assert!(batch.is_empty(), "what comes after the kill is read by another cursor"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let mut again = feed.open(&cx(), StartAt::After(first[0].position())).await.expect("it opens");
            assert_eq!(read(&mut *again, 1).await[0].key(), Some(&b"2"[..]));
        })
    });
}

#[test]
fn an_event_that_the_pipeline_hides_since_is_passed_by_its_time() {
    // Without a first batch the server says only with the second answer that it does not find the event.
    for batch_size in [2_000, 0] {
        pass_a_hidden_event(batch_size);
    }
}

fn pass_a_hidden_event(batch_size: u32) {
    block_on(async {
        let shop = Shop::open().await;
        // What a lookup shows may change: then the event that a token stands for is no longer seen.
        let pipeline = vec![doc! { "$match": { "fullDocument.open": true } }];
        let view = View { pipeline, full_document: Shown::UpdateLookup, batch_size, ..View::collection("orders") };
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
fn an_id_that_is_no_text_does_not_stop_a_stream() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        insert_spoilt(&shop, &doc! { "insert": "orders", "documents": [{ "_id": "????" }] }).await;
        shop.insert(doc! { "_id": 2 }).await;
        let changes = read(&mut *stream, 2).await;
        assert_eq!(changes[0].key(), Some(&br#"{"$notUtf8":"ffffffff"}"#[..]));
        let mut again = feed.open(&cx(), StartAt::After(changes[0].position())).await.expect("it opens");
        assert_eq!(read(&mut *again, 1).await[0].key(), Some(&b"2"[..]));
    });
}

/// The keys of a snapshot, read in batches of one row, each by another reader that goes on behind the row before.
async fn keys_of_snapshot(feed: &Feed, rows: usize) -> Vec<String> {
    let (mut start, mut keys) = (StartAt::Snapshot, Vec::new());
    for _ in 0..rows {
        let mut snapshot = feed.open(&cx(), start).await.expect("it opens");
        let batch = snapshot.next_batch(&cx(), Limits { rows: 1, ..LIMITS }).await.expect("it reads");
        assert_eq!(batch.len(), 1, "behind {keys:?}");
        start = StartAt::After(batch.end.clone());
        let change = Change::new(Arc::new(batch), 0);
        keys.push(String::from_utf8_lossy(change.key().expect("it has one")).into_owned());
    }
    keys
}

#[test]
fn an_id_that_is_no_value_does_not_stop_a_snapshot() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        for id in [Bson::from("a"), "z".into(), doc! { "a": "z" }.into(), true.into()] {
            shop.insert(doc! { "_id": id }).await;
        }
        let documents =
            doc! { "insert": "orders", "documents": [{ "_id": "?1" }, { "_id": "b?" }, { "_id": { "a": "?" } }] };
        insert_spoilt(&shop, &documents).await;
        insert_broken_binary(&shop).await;
        let expected = [
            r#""a""#,
            r#"{"$notUtf8":"62ff"}"#,
            r#""z""#,
            r#"{"$notUtf8":"ff31"}"#,
            r#"{"a":"z"}"#,
            r#"{"a":{"$notUtf8":"ff"}}"#,
            r#"{"$notBson":"05:060000000209000000abcd"}"#,
            "true",
        ];
        assert_eq!(keys_of_snapshot(&feed, expected.len()).await, expected);
        // And in one go, with what happens meanwhile.
        let mut snapshot = feed.open(&cx(), StartAt::Snapshot).await.expect("it opens");
        let rows = read(&mut *snapshot, expected.len()).await;
        assert!(rows.iter().all(|row| row.operation() == Operation::Read));
        insert_spoilt(&shop, &doc! { "insert": "orders", "documents": [{ "_id": "?2" }] }).await;
        assert_eq!(read(&mut *snapshot, 1).await[0].key(), Some(&br#"{"$notUtf8":"ff32"}"#[..]));
    });
}

/// Runs a command whose every `?` is a byte that no text in UTF-8 has.
async fn insert_spoilt(shop: &Shop, insert: &Document) {
    let insert = RawDocumentBuf::try_from(insert).expect("a document");
    let spoilt = insert.as_bytes().iter().map(|byte| if *byte == b'?' { 0xff } else { *byte }).collect();
    let spoilt = RawDocumentBuf::from_bytes(spoilt).expect("a document");
    shop.database.run_raw_command(spoilt).await.expect("servers take it");
}

#[test]
fn an_id_that_is_no_value_does_not_stop_a_stream() {
    block_on(async {
        let shop = Shop::open().await;
        let pipeline = vec![doc! { "$replaceRoot": { "newRoot": { "_id": "$_id", "id": "$documentKey._id" } } }];
        for pipeline in [Vec::new(), pipeline] {
            let view = View { pipeline, ..View::collection("orders") };
            let feed = shop.feed(view.clone());
            let mut stream = shop.watch(view).await;
            insert_broken_binary(&shop).await;
            shop.insert(doc! { "_id": 2 }).await;
            let changes = read(&mut *stream, 2).await;
            assert_eq!(changes[0].key(), Some(&br#"{"$notBson":"05:060000000209000000abcd"}"#[..]));
            let mut again = feed.open(&cx(), StartAt::After(changes[0].position())).await.expect("it opens");
            assert_eq!(read(&mut *again, 1).await[0].key(), Some(&b"2"[..]));
            shop.orders().delete_many(doc! {}).await.expect("it is taken");
        }
    });
}

/// Inserts a document whose `_id` is a binary of the old subtype that contradicts itself about its length.
async fn insert_broken_binary(shop: &Shop) {
    let mut document = vec![0, 0, 0, 0, 5];
    document.extend_from_slice(b"_id\0");
    // Six bytes of the old subtype: a length of nine, and two bytes more.
    document.extend_from_slice(&[6, 0, 0, 0, 2, 9, 0, 0, 0, 0xab, 0xcd]);
    document.push(0);
    let length = i32::try_from(document.len()).expect("it is short");
    document[..4].copy_from_slice(&length.to_le_bytes());
    let document = RawDocumentBuf::from_bytes(document).expect("a document, at first sight");
    let mut insert = RawDocumentBuf::try_from(&doc! { "insert": "orders" }).expect("a document");
    let mut documents = watchkeeper_mongodb::mongodb::bson::RawArrayBuf::new();
    documents.push(document);
    insert.append(cstr!("documents"), documents);
    shop.database.run_raw_command(insert).await.expect("servers take it");
}

#[test]
fn an_unknown_collection_is_refused_unless_it_is_waited_for() {
    block_on(async {
        let shop = Shop::open().await;
        let opened = shop.feed(View::collection("ordres")).open(&cx(), StartAt::Now).await.map(drop);
        assert_error(opened, ErrorKind::Config, "there is no collection \"ordres\"");
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
        assert_error(feed.open(&cx(), StartAt::After(damaged)).await.map(drop), ErrorKind::Corrupt, "damaged");
        let mut idle = shop.watch(View::of(Scope::Database)).await;
        let end =
            idle.next_batch(&cx(), Limits { wait: Duration::from_millis(100), ..LIMITS }).await.expect("it reads").end;
        let pedigree = shop.feed(View::of(Scope::Database)).identity(&cx()).await.expect("it is known");
        let verified = feed.verify(&cx(), &end, &pedigree).await;
        assert_error(verified, ErrorKind::Config, "another scope, pipeline or options");
    });
}

#[test]
fn what_cannot_be_watched_is_reported_with_what_to_do() {
    block_on(async {
        let shop = Shop::open().await;
        let view = doc! { "create": "rich", "viewOn": "orders", "pipeline": [] };
        shop.database.run_command(view).await.expect("it is taken");
        let open = async |view: View| shop.feed(view).open(&cx(), StartAt::Now).await.map(drop);
        let series = doc! { "create": "weather", "timeseries": { "timeField": "at" } };
        shop.database.run_command(series).await.expect("it is taken");
        for (wait, names) in [(false, &["rich"][..]), (false, &["orders", "rich"]), (true, &["weather", "orders"])] {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let refused = open(View { wait, ..View::of(Scope::Collections(names)) }).await;
            assert_error(refused, ErrorKind::Config, "a view or a time series has no change stream");
        }
        for stage in [doc! { "$group": { "_id": 1 } }, doc! { "$mtach": {} }] {
            let refused = open(View { pipeline: vec![stage], ..View::collection("orders") }).await;
            assert_error(refused, ErrorKind::Config, "]; correct the stage or the option");
        }
    });
}

#[test]
fn servers_that_do_not_fit_the_url_are_reported_with_what_to_do() {
    block_on(async {
        let shop = Shop::open().await;
        let soon = |url: &str| format!("{url}&serverSelectionTimeoutMS=500");
        let (start, rest) = shop.base.url().split_once("replicaSet=").expect("it names the set");
        let other = Config::new(soon(&format!("{start}replicaSet=other_{rest}"))).expect("it is one");
        let refused = Client::open(&cx(), other).await;
        assert_error(refused, ErrorKind::Config, "of another replica set than the one that replicaSet= names");
        let config = Config::new(soon(shop.base.url())).expect("it is one");
        let client = Client::open(&cx(), config).await.expect("it answers");
        let secondary = ReadPreference::Secondary { options: None };
        let read_preference = Some(SelectionCriteria::ReadPreference(secondary));
        let feed = Feed::new(client, View { read_preference, ..View::collection("orders") });
        let refused = feed.open(&cx(), StartAt::Now).await.map(drop);
        assert_error(refused, ErrorKind::Unavailable, "]; start one, or write read_preference");
    });
}
