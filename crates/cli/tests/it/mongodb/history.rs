//! Quiet streams keep their place in the oplog, and streams whose place has left it go on as configured. The oplog really rolls
//! over: it has one megabyte, and is cut once a second.

use serde_json::Value;
use watchkeeper::mongodb::mongodb::bson::{Bson, Document, Timestamp, doc};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use super::SourceFixture;
use crate::workspace::until;

/// A set whose oplog is soon full. It is cut only up to the last checkpoint of the storage, which otherwise is made once a minute.
fn forgetful() -> ReplicaSet {
    with_oplog(1)
}

/// A set whose oplog is cut once a second to about so many megabytes.
fn with_oplog(megabytes: u32) -> ReplicaSet {
    let arguments = ["--oplogSize", &megabytes.to_string(), "--syncdelay", "1"].map(str::to_owned).to_vec();
    ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() })
}

/// The time of the oldest or newest entry of the oplog.
fn entry(fixture: &SourceFixture, direction: i32) -> Timestamp {
    let oplog = fixture.database.client().database("local").collection::<Document>("oplog.rs");
    let found = fixture.block_on(async { oplog.find_one(doc! {}).sort(doc! { "$natural": direction }).await });
    found.expect("it can be read").expect("it is never empty").get_timestamp("ts").expect("it has a time")
}

/// Writes into another collection until everything that the oplog has now has left it.
fn roll_over(fixture: &SourceFixture) {
    let newest = entry(fixture, -1);
    let noise = fixture.database.collection::<Document>("noise");
    until("the oplog rolls over", || {
        let many = vec![doc! { "text": "x".repeat(50_000) }; 20];
        fixture.block_on(async { noise.insert_many(many).await }).expect("they are taken");
        entry(fixture, 1) > newest
    });
}

/// What has arrived: operations, with the items of the orders.
fn delivered(fixture: &SourceFixture) -> Vec<String> {
    let text = std::fs::read_to_string(fixture.workspace.path("orders-000001.ndjson")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let shown = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("a line is JSON");
        let operation = event["operationType"].as_str().or(event["operation"].as_str()).unwrap_or("?").to_owned();
        match event["fullDocument"]["item"].as_str() {
            Some(item) => format!("{operation} {item}"),
            None => operation,
        }
    };
    whole.lines().map(shown).collect()
}

/// Gaps in the ledger of the stream.
fn gaps(fixture: &SourceFixture) -> usize {
    let listed = fixture.workspace.run(&["dead-letters", "list", "orders", "--all", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    listed.out.matches("\"gap\"").count()
}

/// Whether the checkpoint has left this position, and the snapshot too if there is one: what is written before the last look at a
/// collection is told by a row, and not by a change.
fn has_left(fixture: &SourceFixture, lost: &Document) -> bool {
    let moved = fixture.position().is_some_and(|position| position != *lost);
    moved && stage(fixture).is_null()
}

/// Delivers one order, loses the history of a second while nothing runs, writes a third, and goes on.
fn go_on_after_a_loss(set: &ReplicaSet, policy: &str) -> (SourceFixture, crate::workspace::Running, Document) {
    let fixture = SourceFixture::on(set);
    fixture.configure(&format!("on_history_lost = \"{policy}\"\n{}", fixture.orders("")));
    let mut first = fixture.start("first");
    fixture.order(&["rope"]);
    until("it arrives", || delivered(&fixture) == ["insert rope"]);
    first.ends_in_order();
    let lost = fixture.position().expect("it has delivered something");
    fixture.order(&["tar"]);
    roll_over(&fixture);
    fixture.order(&["sail"]);
    let second = fixture.workspace.start("second");
    (fixture, second, lost)
}

#[test]
fn a_stream_whose_history_is_lost_goes_on_as_configured() {
    let set = forgetful();
    a_stream_halts_until_the_gap_is_accepted(&set);
    for (policy, expected) in [
        ("gap", &["insert rope", "gap", "insert sail", "insert oak"][..]),
        ("gap_to_now", &["insert rope", "gap", "insert oak"]),
        ("snapshot", &["insert rope", "gap", "read rope", "read tar", "read sail", "insert oak"]),
    ] {
        let (fixture, mut second, lost) = go_on_after_a_loss(&set, policy);
        let before_the_last = &expected[..expected.len() - 1];
        until(&format!("{policy}: what is left arrives"), || delivered(&fixture) == before_the_last);
        until(&format!("{policy}: it has a place again"), || has_left(&fixture, &lost));
        fixture.order(&["oak"]);
        until(&format!("{policy}: changes arrive again"), || delivered(&fixture) == expected);
        second.ends_in_order();
        assert_eq!(gaps(&fixture), 1, "{policy}");
        // It has a place again, and the gap is behind it.
        let mut third = fixture.workspace.start("third");
        fixture.order(&["elm"]);
        until("it goes on", || delivered(&fixture).last().is_some_and(|last| last == "insert elm"));
        third.ends_in_order();
        assert_eq!((delivered(&fixture).len(), gaps(&fixture)), (expected.len() + 1, 1), "{policy}");
    }
}

fn a_stream_halts_until_the_gap_is_accepted(set: &ReplicaSet) {
    let (fixture, mut second, _) = go_on_after_a_loss(set, "halt");
    second.says(&["halted", "WK-POSITION-LOST", "left the oplog"]);
    second.ends_in_order();
    assert_eq!(delivered(&fixture), ["insert rope"]);
    let accepted = fixture.workspace.run(&["accept-gap", "orders", "--to", "oldest", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let mut third = fixture.workspace.start("third");
    until("what is left arrives", || delivered(&fixture).last().is_some_and(|last| last == "insert sail"));
    third.ends_in_order();
    assert_eq!(gaps(&fixture), 1);
}

/// The time of the stored position, in milliseconds.
fn checkpoint_time(fixture: &SourceFixture) -> i64 {
    let position = fixture.checkpoint().and_then(|stored| stored.get_document("position").ok().cloned());
    position.and_then(|position| position.get_i64("time").ok()).expect("it has a time")
}

/// The cluster time of the stored position, which its token begins with: a byte for the kind of position, two for a length, a byte
/// for the token's type, and the time with its number within the second. Several thousand entries of the oplog may have one second.
fn checkpoint_cluster_time(fixture: &SourceFixture) -> Option<Timestamp> {
    let position = fixture.position()?;
    let Ok(bytes) = position.get_binary_generic("bytes") else { panic!("a position has bytes") };
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    Some(Timestamp { time: number(4), increment: number(8) })
}

#[test]
fn the_checkpoint_of_a_quiet_stream_moves_with_what_others_write() {
    let set = forgetful();
    let fixture = SourceFixture::on(&set);
    fixture.configure(&fixture.orders(""));
    let mut first = fixture.start("first");
    roll_over(&fixture);
    // The place where it began is gone; the one that it comes to is not.
    let newest = i64::from(entry(&fixture, -1).time) * 1_000;
    until("the checkpoint moves", || checkpoint_time(&fixture) > newest);
    first.ends_in_order();
    fixture.order(&["rope"]);
    let mut second = fixture.workspace.start("second");
    until("it arrives", || delivered(&fixture) == ["insert rope"]);
    second.ends_in_order();
    assert_eq!(gaps(&fixture), 0);
}

#[test]
fn a_stream_is_not_stuck_while_the_server_searches_for_its_next_change() {
    let set = ReplicaSet::start(1);
    let fixture = SourceFixture::on(&set);
    fixture.configure(&format!("timeouts = {{ open = \"2s\" }}\n{}", fixture.orders("")));
    fixture.start("first").ends_in_order();
    let elsewhere = fixture.database.collection::<Document>("elsewhere");
    for _ in 0..60 {
        fixture.block_on(async { elsewhere.insert_many(vec![doc! {}; 1_000]).await }).expect("they are taken");
    }
    fixture.order(&["rope"]);
    // The server rests after every thousand entries, as if there were many millions, until the search was seen.
    let data = doc! { "namespace": "local.oplog.rs", "waitForMillis": 500 };
    let admin = fixture.database.client().database("admin");
    let rest = |mode: &str| {
        let rest = doc! { "configureFailPoint": "setYieldAllLocksWait", "mode": mode, "data": data.clone() };
        fixture.block_on(async { admin.run_command(rest).await }).expect("it is set");
    };
    rest("alwaysOn");
    let mut second = fixture.workspace.start("second");
    second.says(&["scanning the oplog", "behind_s"]);
    let begun = search_until(&fixture, |search| search["done"].as_u64() > Some(0));
    let text = fixture.workspace.run(&["status"]).out;
    assert!(text.contains("  busy with    scanning the oplog") && text.contains("000 entries\n"), "{text}");
    search_until(&fixture, |search| search["done"].as_u64() > begun["done"].as_u64());
    rest("off");
    until("it arrives", || delivered(&fixture) == ["insert rope"]);
    until("nothing is searched any more", || stage(&fixture).is_null());
    second.ends_in_order();
    assert!(!second.seen.iter().any(|line| line.contains("to=recovering")), "{:#?}", second.seen);
}

/// Inserts orders with these numbers.
fn fill(fixture: &SourceFixture, numbers: std::ops::Range<usize>) {
    let orders = fixture.database.collection::<Document>("orders");
    let documents = numbers.map(|number| doc! { "_id": i64::try_from(number).expect("few"), "item": "rope" });
    fixture.block_on(async { orders.insert_many(documents).await }).expect("they are taken");
}

/// Configures what becomes of the program's reads of the collection that it makes a snapshot of.
fn on_reading_orders(fixture: &SourceFixture, mode: Bson, how: Document) {
    let mut data = doc! { "failCommands": ["find"], "namespace": format!("{}.orders", fixture.database.name()) };
    data.extend(how);
    let point = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let admin = fixture.database.client().database("admin");
    fixture.block_on(async { admin.run_command(point).await }).expect("it is set");
}

/// Whether the last line of the file tells of the order `last`.
fn ends_with_last(fixture: &SourceFixture) -> bool {
    let text = std::fs::read_to_string(fixture.workspace.path("orders-000001.ndjson")).unwrap_or_default();
    text.ends_with('\n') && text.lines().last().is_some_and(|line| line.contains("\"last\""))
}

/// The keys of what the lines of the file tell, in their order.
fn keys(fixture: &SourceFixture) -> Vec<String> {
    let text = std::fs::read_to_string(fixture.workspace.path("orders-000001.ndjson")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let key = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("a line is JSON");
        event["documentKey"]["_id"].to_string()
    };
    whole.lines().map(key).collect()
}

#[test]
fn a_snapshot_goes_on_when_the_oplog_no_longer_reaches_back_to_its_beginning() {
    // Three ranges of a snapshot have so many rows.
    const ROWS: usize = 15_000;
    let set = with_oplog(8);
    let fixture = SourceFixture::on(&set);
    let mut rows = 2 * ROWS;
    fill(&fixture, 0..rows);
    // Each range of rows takes its time, so that the oplog rolls over meanwhile.
    let slow = doc! { "blockConnection": true, "blockTimeMS": 800 };
    on_reading_orders(&fixture, "alwaysOn".into(), slow);
    fixture.configure(&format!("start = \"snapshot\"\n{}", fixture.orders("")));
    let mut only = fixture.start("only");
    let begun = entry(&fixture, -1);
    let noise = fixture.database.collection::<Document>("noise");
    while entry(&fixture, 1) <= begun {
        // Behind what was read, and more than is read meanwhile: the snapshot cannot end before the oplog has rolled over.
        fill(&fixture, rows..rows + ROWS);
        rows += ROWS;
        let many = vec![doc! { "text": "x".repeat(50_000) }; 10];
        fixture.block_on(async { noise.insert_many(many).await }).expect("they are taken");
        // Never so much at once that the stream itself falls out of the oplog.
        let newest = entry(&fixture, -1);
        until("the stream has passed it", || checkpoint_cluster_time(&fixture) >= Some(newest));
    }
    // The stream has passed all that was written: behind the end of the snapshot everything would have arrived.
    assert!(keys(&fixture).len() < rows, "the snapshot was over before the oplog rolled over");
    on_reading_orders(&fixture, "off".into(), doc! {});
    let late = doc! { "_id": "late", "item": "oar" };
    let orders = fixture.database.collection::<Document>("orders");
    fixture.block_on(async { orders.insert_one(late).await }).expect("it is taken");
    only.says(&["everything that existed was read"]);
    let last = doc! { "_id": "last", "item": "elm" };
    fixture.block_on(async { orders.insert_one(last).await }).expect("it is taken");
    until("all is delivered", || ends_with_last(&fixture));
    only.ends_in_order();
    let mut keys = keys(&fixture);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), rows + 2, "every order, the late one and the last one");
    assert_eq!(gaps(&fixture), 0);
    assert!(!only.seen.iter().any(|line| line.contains("WK-POSITION-LOST")), "{:#?}", only.seen);
}

#[test]
fn a_snapshot_that_was_broken_off_until_its_position_is_lost_halts_and_is_begun_anew() {
    const ROWS: usize = 12_000;
    let set = forgetful();
    let fixture = SourceFixture::on(&set);
    fill(&fixture, 0..ROWS);
    // Ranges after the first cannot be read.
    on_reading_orders(&fixture, doc! { "skip": 1 }.into(), doc! { "errorCode": 91 });
    fixture.configure(&format!("start = \"snapshot\"\n{}", fixture.orders("")));
    let mut first = fixture.start("first");
    until("a part of the snapshot is committed", || stage(&fixture)["done"].as_u64() > Some(0));
    first.ends_in_order();
    on_reading_orders(&fixture, "off".into(), doc! {});
    let delivered_first = keys(&fixture).len();
    assert!((1..ROWS).contains(&delivered_first), "{delivered_first}");
    roll_over(&fixture);

    let remedy = "`watchkeeper accept-gap orders --to snapshot`";
    let mut second = fixture.workspace.start("second");
    second.says(&["halted", "WK-POSITION-LOST", "left the oplog", "its snapshot is not finished", remedy]);
    second.ends_in_order();
    assert_eq!(keys(&fixture).len(), delivered_first, "nothing is passed over");
    let refused = fixture.workspace.run(&["accept-gap", "orders", "--to", "now", "--yes"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("in the middle of a snapshot"), "{refused:?}");

    let accepted = fixture.workspace.run(&["accept-gap", "orders", "--to", "snapshot", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let mut third = fixture.workspace.start("third");
    third.says(&["everything that existed was read"]);
    let last = doc! { "_id": "last", "item": "elm" };
    let orders = fixture.database.collection::<Document>("orders");
    fixture.block_on(async { orders.insert_one(last).await }).expect("it is taken");
    until("it goes on with the changes", || ends_with_last(&fixture));
    third.ends_in_order();
    let mut anew = keys(&fixture).split_off(delivered_first);
    anew.retain(|key| key != "null");
    anew.sort();
    anew.dedup();
    assert_eq!(anew.len(), ROWS + 1, "every order again, and the last one");
    assert_eq!(gaps(&fixture), 1);
}

/// What the stream is busy with, by its status.
fn stage(fixture: &SourceFixture) -> Value {
    let status = fixture.workspace.run(&["status", "--json"]);
    let status: Value = serde_json::from_str(&status.out).expect("the answer is JSON");
    status["streams"][0]["stage"].clone()
}

/// Waits until the search of the oplog that the status shows is as expected.
fn search_until(fixture: &SourceFixture, mut expected: impl FnMut(&Value) -> bool) -> Value {
    let mut search = Value::Null;
    until("the status shows the search", || {
        search = stage(fixture);
        expected(&search)
    });
    let what = search["what"].as_str().expect("it is named");
    assert!(what.starts_with("scanning the oplog for the next change, "), "{search}");
    assert!(what.ends_with("s behind the newest operation"), "{search}");
    assert_eq!(search["unit"], "entries", "{search}");
    search
}
