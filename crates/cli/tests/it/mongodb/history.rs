//! Quiet streams keep their place in the oplog, and streams whose place has left it go on as configured. The oplog really rolls
//! over: it has one megabyte, and is cut once a second.

use serde_json::Value;
use watchkeeper::mongodb::mongodb::bson::{Bson, Document, Timestamp, doc};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, Settings};

use super::Harbour;
use crate::desk::until;

/// A set whose oplog is soon full. It is cut only up to the last checkpoint of the storage, which otherwise is made once a minute.
fn forgetful() -> ReplicaSet {
    with_oplog(1)
}

/// A set whose oplog is cut once a second to about so many megabytes.
fn with_oplog(megabytes: u32) -> ReplicaSet {
    let arguments = ["--oplogSize", &megabytes.to_string(), "--syncdelay", "1"].map(str::to_owned).to_vec();
    ReplicaSet::with(&Settings { nodes: 1, arguments, ..Settings::default() })
}

/// The time of the oldest or newest entry of the oplog.
fn entry(harbour: &Harbour, direction: i32) -> Timestamp {
    let oplog = harbour.database.client().database("local").collection::<Document>("oplog.rs");
    let found = harbour.block_on(async { oplog.find_one(doc! {}).sort(doc! { "$natural": direction }).await });
    found.expect("it can be read").expect("it is never empty").get_timestamp("ts").expect("it has a time")
}

/// Writes into another collection until everything that the oplog has now has left it.
fn roll_over(harbour: &Harbour) {
    let newest = entry(harbour, -1);
    let noise = harbour.database.collection::<Document>("noise");
    until("the oplog rolls over", || {
        let many = vec![doc! { "text": "x".repeat(50_000) }; 20];
        harbour.block_on(async { noise.insert_many(many).await }).expect("they are taken");
        entry(harbour, 1) > newest
    });
}

/// What has arrived: operations, with the items of the orders.
fn delivered(harbour: &Harbour) -> Vec<String> {
    let text = std::fs::read_to_string(harbour.desk.path("orders-000001.ndjson")).unwrap_or_default();
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
fn gaps(harbour: &Harbour) -> usize {
    let listed = harbour.desk.run(&["dead-letters", "list", "orders", "--all", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    listed.out.matches("\"gap\"").count()
}

/// Whether the checkpoint has left this position, and the snapshot too if there is one: what is written before the last look at a
/// collection is told by a row, and not by a change.
fn has_left(harbour: &Harbour, lost: &Document) -> bool {
    let moved = harbour.position().is_some_and(|position| position != *lost);
    moved && stage(harbour).is_null()
}

/// Delivers one order, loses the history of a second while nothing runs, writes a third, and goes on.
fn go_on_after_a_loss(set: &ReplicaSet, policy: &str) -> (Harbour, crate::desk::Running, Document) {
    let harbour = Harbour::on(set);
    harbour.configure(&format!("on_history_lost = \"{policy}\"\n{}", harbour.orders("")));
    let mut first = harbour.start("first");
    harbour.order(&["rope"]);
    until("it arrives", || delivered(&harbour) == ["insert rope"]);
    first.ends_in_order();
    let lost = harbour.position().expect("it has delivered something");
    harbour.order(&["tar"]);
    roll_over(&harbour);
    harbour.order(&["sail"]);
    let second = harbour.desk.start("second");
    (harbour, second, lost)
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
        let (harbour, mut second, lost) = go_on_after_a_loss(&set, policy);
        let before_the_last = &expected[..expected.len() - 1];
        until(&format!("{policy}: what is left arrives"), || delivered(&harbour) == before_the_last);
        until(&format!("{policy}: it has a place again"), || has_left(&harbour, &lost));
        harbour.order(&["oak"]);
        until(&format!("{policy}: changes arrive again"), || delivered(&harbour) == expected);
        second.ends_in_order();
        assert_eq!(gaps(&harbour), 1, "{policy}");
        // It has a place again, and the gap is behind it.
        let mut third = harbour.desk.start("third");
        harbour.order(&["elm"]);
        until("it goes on", || delivered(&harbour).last().is_some_and(|last| last == "insert elm"));
        third.ends_in_order();
        assert_eq!((delivered(&harbour).len(), gaps(&harbour)), (expected.len() + 1, 1), "{policy}");
    }
}

fn a_stream_halts_until_the_gap_is_accepted(set: &ReplicaSet) {
    let (harbour, mut second, _) = go_on_after_a_loss(set, "halt");
    second.says(&["halted", "WK-POSITION-LOST", "left the oplog"]);
    second.ends_in_order();
    assert_eq!(delivered(&harbour), ["insert rope"]);
    let accepted = harbour.desk.run(&["accept-gap", "orders", "--to", "oldest", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let mut third = harbour.desk.start("third");
    until("what is left arrives", || delivered(&harbour).last().is_some_and(|last| last == "insert sail"));
    third.ends_in_order();
    assert_eq!(gaps(&harbour), 1);
}

/// The time of the stored position, in milliseconds.
fn checkpoint_time(harbour: &Harbour) -> i64 {
    let position = harbour.checkpoint().and_then(|stored| stored.get_document("position").ok().cloned());
    position.and_then(|position| position.get_i64("time").ok()).expect("it has a time")
}

#[test]
fn the_checkpoint_of_a_quiet_stream_moves_with_what_others_write() {
    let set = forgetful();
    let harbour = Harbour::on(&set);
    harbour.configure(&harbour.orders(""));
    let mut first = harbour.start("first");
    roll_over(&harbour);
    // The place where it began is gone; the one that it comes to is not.
    let newest = i64::from(entry(&harbour, -1).time) * 1_000;
    until("the checkpoint moves", || checkpoint_time(&harbour) > newest);
    first.ends_in_order();
    harbour.order(&["rope"]);
    let mut second = harbour.desk.start("second");
    until("it arrives", || delivered(&harbour) == ["insert rope"]);
    second.ends_in_order();
    assert_eq!(gaps(&harbour), 0);
}

#[test]
fn a_stream_is_not_stuck_while_the_server_searches_for_its_next_change() {
    let set = ReplicaSet::start(1);
    let harbour = Harbour::on(&set);
    harbour.configure(&format!("timeouts = {{ open = \"2s\" }}\n{}", harbour.orders("")));
    harbour.start("first").ends_in_order();
    let elsewhere = harbour.database.collection::<Document>("elsewhere");
    for _ in 0..60 {
        harbour.block_on(async { elsewhere.insert_many(vec![doc! {}; 1_000]).await }).expect("they are taken");
    }
    harbour.order(&["rope"]);
    // The server rests after every thousand entries, as if there were many millions, until the search was seen.
    let data = doc! { "namespace": "local.oplog.rs", "waitForMillis": 500 };
    let admin = harbour.database.client().database("admin");
    let rest = |mode: &str| {
        let rest = doc! { "configureFailPoint": "setYieldAllLocksWait", "mode": mode, "data": data.clone() };
        harbour.block_on(async { admin.run_command(rest).await }).expect("it is set");
    };
    rest("alwaysOn");
    let mut second = harbour.desk.start("second");
    second.says(&["scanning the oplog", "behind_s"]);
    let begun = search_until(&harbour, |search| search["done"].as_u64() > Some(0));
    let text = harbour.desk.run(&["status"]).out;
    assert!(text.contains("  busy with    scanning the oplog") && text.contains("000 entries\n"), "{text}");
    search_until(&harbour, |search| search["done"].as_u64() > begun["done"].as_u64());
    rest("off");
    until("it arrives", || delivered(&harbour) == ["insert rope"]);
    until("nothing is searched any more", || stage(&harbour).is_null());
    second.ends_in_order();
    assert!(!second.seen.iter().any(|line| line.contains("to=recovering")), "{:#?}", second.seen);
}

/// Inserts orders with these numbers.
fn fill(harbour: &Harbour, numbers: std::ops::Range<usize>) {
    let orders = harbour.database.collection::<Document>("orders");
    let documents = numbers.map(|number| doc! { "_id": i64::try_from(number).expect("few"), "item": "rope" });
    harbour.block_on(async { orders.insert_many(documents).await }).expect("they are taken");
}

/// Configures what becomes of the program's reads of the collection that it makes a snapshot of.
fn on_reading_orders(harbour: &Harbour, mode: Bson, how: Document) {
    let mut data = doc! { "failCommands": ["find"], "namespace": format!("{}.orders", harbour.database.name()) };
    data.extend(how);
    let point = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let admin = harbour.database.client().database("admin");
    harbour.block_on(async { admin.run_command(point).await }).expect("it is set");
}

/// Whether the last line of the file tells of the order `last`.
fn ends_with_last(harbour: &Harbour) -> bool {
    let text = std::fs::read_to_string(harbour.desk.path("orders-000001.ndjson")).unwrap_or_default();
    text.ends_with('\n') && text.lines().last().is_some_and(|line| line.contains("\"last\""))
}

/// The keys of what the lines of the file tell, in their order.
fn keys(harbour: &Harbour) -> Vec<String> {
    let text = std::fs::read_to_string(harbour.desk.path("orders-000001.ndjson")).unwrap_or_default();
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
    let harbour = Harbour::on(&set);
    let mut rows = 2 * ROWS;
    fill(&harbour, 0..rows);
    // Each range of rows takes its time, so that the oplog rolls over meanwhile.
    let slow = doc! { "blockConnection": true, "blockTimeMS": 800 };
    on_reading_orders(&harbour, "alwaysOn".into(), slow);
    harbour.configure(&format!("start = \"snapshot\"\n{}", harbour.orders("")));
    let mut only = harbour.start("only");
    let begun = entry(&harbour, -1);
    let noise = harbour.database.collection::<Document>("noise");
    while entry(&harbour, 1) <= begun {
        // Behind what was read, and more than is read meanwhile: the snapshot can not end before the oplog has rolled over.
        fill(&harbour, rows..rows + ROWS);
        rows += ROWS;
        let many = vec![doc! { "text": "x".repeat(50_000) }; 10];
        harbour.block_on(async { noise.insert_many(many).await }).expect("they are taken");
        // Never so much at once that the stream itself falls out of the oplog.
        let newest = i64::from(entry(&harbour, -1).time) * 1_000;
        until("the stream has passed it", || checkpoint_time(&harbour) >= newest);
    }
    // The stream has passed all that was written: behind the end of the snapshot everything would have arrived.
    assert!(keys(&harbour).len() < rows, "the snapshot was over before the oplog rolled over");
    on_reading_orders(&harbour, "off".into(), doc! {});
    let late = doc! { "_id": "late", "item": "oar" };
    let orders = harbour.database.collection::<Document>("orders");
    harbour.block_on(async { orders.insert_one(late).await }).expect("it is taken");
    only.says(&["everything that existed was read"]);
    let last = doc! { "_id": "last", "item": "elm" };
    harbour.block_on(async { orders.insert_one(last).await }).expect("it is taken");
    until("all is delivered", || ends_with_last(&harbour));
    only.ends_in_order();
    let mut keys = keys(&harbour);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), rows + 2, "every order, the late one and the last one");
    assert_eq!(gaps(&harbour), 0);
    assert!(!only.seen.iter().any(|line| line.contains("WK-POSITION-LOST")), "{:#?}", only.seen);
}

#[test]
fn a_snapshot_that_was_broken_off_until_its_position_is_lost_halts_and_is_begun_anew() {
    const ROWS: usize = 12_000;
    let set = forgetful();
    let harbour = Harbour::on(&set);
    fill(&harbour, 0..ROWS);
    // Ranges after the first can not be read.
    on_reading_orders(&harbour, doc! { "skip": 1 }.into(), doc! { "errorCode": 91 });
    harbour.configure(&format!("start = \"snapshot\"\n{}", harbour.orders("")));
    let mut first = harbour.start("first");
    until("a part of the snapshot is committed", || stage(&harbour)["done"].as_u64() > Some(0));
    first.ends_in_order();
    on_reading_orders(&harbour, "off".into(), doc! {});
    let delivered_first = keys(&harbour).len();
    assert!((1..ROWS).contains(&delivered_first), "{delivered_first}");
    roll_over(&harbour);

    let remedy = "`watchkeeper accept-gap orders --to snapshot`";
    let mut second = harbour.desk.start("second");
    second.says(&["halted", "WK-POSITION-LOST", "left the oplog", "its snapshot is not finished", remedy]);
    second.ends_in_order();
    assert_eq!(keys(&harbour).len(), delivered_first, "nothing is passed over");
    let refused = harbour.desk.run(&["accept-gap", "orders", "--to", "now", "--yes"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("in the middle of a snapshot"), "{refused:?}");

    let accepted = harbour.desk.run(&["accept-gap", "orders", "--to", "snapshot", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let mut third = harbour.desk.start("third");
    third.says(&["everything that existed was read"]);
    let last = doc! { "_id": "last", "item": "elm" };
    let orders = harbour.database.collection::<Document>("orders");
    harbour.block_on(async { orders.insert_one(last).await }).expect("it is taken");
    until("it goes on with the changes", || ends_with_last(&harbour));
    third.ends_in_order();
    let mut anew = keys(&harbour).split_off(delivered_first);
    anew.retain(|key| key != "null");
    anew.sort();
    anew.dedup();
    assert_eq!(anew.len(), ROWS + 1, "every order again, and the last one");
    assert_eq!(gaps(&harbour), 1);
}

/// What the stream is busy with, by its status.
fn stage(harbour: &Harbour) -> Value {
    let status = harbour.desk.run(&["status", "--json"]);
    let status: Value = serde_json::from_str(&status.out).expect("the answer is JSON");
    status["streams"][0]["stage"].clone()
}

/// Waits until the search of the oplog that the status shows is as expected.
fn search_until(harbour: &Harbour, mut expected: impl FnMut(&Value) -> bool) -> Value {
    let mut search = Value::Null;
    until("the status shows the search", || {
        search = stage(harbour);
        expected(&search)
    });
    let what = search["what"].as_str().expect("it is named");
    assert!(what.starts_with("scanning the oplog for the next change, "), "{search}");
    assert!(what.ends_with("s behind the newest operation"), "{search}");
    assert_eq!(search["unit"], "entries", "{search}");
    search
}
