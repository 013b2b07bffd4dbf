//! What the program does about errors of its source, provoked on a server by fail points.

use watchkeeper::mongodb::mongodb::bson::raw::cstr;
use watchkeeper::mongodb::mongodb::bson::{Document, RawArrayBuf, RawDocumentBuf, doc};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::SourceFixture;
use crate::workspace::{Running, until};

/// The name by which the server tells the source's connections from all others.
const APP: &str = "lookout";

/// Makes the next such command of the source fail.
fn fail(fixture: &SourceFixture, command: &str, code: i32) {
    let data = doc! { "failCommands": [command], "appName": APP, "errorCode": code };
    let point = doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
    fixture
        .block_on(async { fixture.database.client().database("admin").run_command(point).await })
        .expect("it is set");
}

/// A stream whose source can be made to fail, and the instance that runs it.
fn running(set: &ReplicaSet, more: &str) -> (SourceFixture, Running) {
    let fixture = SourceFixture::on(set);
    let source = fixture.orders(more).replace(&fixture.url, &format!("{}&appName={APP}", fixture.url));
    fixture.configure(&source);
    let only = fixture.start("only");
    (fixture, only)
}

#[test]
fn errors_of_the_server_are_bridged_reported_or_halt_the_stream() {
    // Fail points are the server's, so these share one and take turns at it.
    let set = ReplicaSet::start(1);
    what_passes_is_bridged(&set);
    what_a_person_has_to_change_is_reported(&set);
    what_is_lost_halts_the_stream(&set);
    what_is_too_large_halts_the_stream_if_so_configured(&set);
    what_is_too_large_is_skipped_alone(&set);
}

/// A document that servers take although the driver can make no value of its `_id`: six bytes of the old binary subtype, which give
/// their own length as nine.
fn undecodable() -> RawDocumentBuf {
    let mut bytes = vec![0, 0, 0, 0, 5];
    bytes.extend_from_slice(b"_id\0");
    bytes.extend_from_slice(&[6, 0, 0, 0, 2, 9, 0, 0, 0, 0xab, 0xcd]);
    bytes.push(0);
    let length = i32::try_from(bytes.len()).expect("it is short");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    RawDocumentBuf::from_bytes(bytes).expect("a document, at first sight")
}

/// Its key, as it is shown.
const UNDECODABLE_KEY: &str = r#"{"$notBson":"05:060000000209000000abcd"}"#;

#[test]
fn a_change_that_cannot_be_decoded_halts_the_stream_by_name_and_is_skipped_alone() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let mut only = fixture.start("only");
    let whole = |item: &str| RawDocumentBuf::try_from(&doc! { "item": item }).expect("a document");
    let mut documents = RawArrayBuf::new();
    [whole("rope"), undecodable(), whole("tar")].into_iter().for_each(|document| documents.push(document));
    let mut insert = RawDocumentBuf::try_from(&doc! { "insert": "orders" }).expect("a document");
    insert.append(cstr!("documents"), documents);
    fixture.block_on(async { fixture.database.run_raw_command(insert).await }).expect("servers take it");
    let halt = only.says(&["halted", "WK-REJECTED", "rejected change", "skip the change"]);
    only.ends_in_order();
    assert_eq!(fixture.delivered().first().map(String::as_str), Some("rope"), "what comes before it is delivered");
    let skipped = fixture.workspace.run(&["skip", "orders", "--yes"]);
    assert_eq!(skipped.code, Some(0), "{skipped:?}");
    let ledger = fixture.workspace.run(&["dead-letters", "list", "orders", "--all", "--json"]);
    let ledger: serde_json::Value = serde_json::from_str(&ledger.out).expect("it is JSON");
    let [entry] = ledger["letters"].as_array().expect("a list").as_slice() else { panic!("one entry: {ledger}") };
    assert_eq!((&entry["kind"], &entry["operation"]), (&"skipped".into(), &"insert".into()), "{entry}");
    assert_eq!(entry["key"], UNDECODABLE_KEY, "{entry}");
    // The halt names the change that is passed over, and no other.
    let named = format!("rejected change {}: ", entry["change"].as_str().expect("its id"));
    assert!(halt.contains(&named), "{named:?} is not in: {halt}");
    fixture.order(&["sail"]);
    let mut only = fixture.workspace.start("only");
    until("it goes on", || fixture.delivered().last().is_some_and(|last| last == "sail"));
    only.ends_in_order();
    // What comes after the change may have been written before the halt, too; it was not passed over with it.
    let mut delivered = fixture.delivered();
    delivered.dedup();
    assert_eq!(delivered, ["rope", "tar", "sail"]);
}

#[test]
fn a_document_whose_id_is_too_large_halts_the_stream_and_is_skipped_alone() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let mut only = fixture.start("only");
    fixture.order(&["rope"]);
    let orders = fixture.database.collection::<Document>("orders");
    let whale = doc! { "_id": "x".repeat(5_000_000), "item": "whale" };
    fixture.block_on(async { orders.insert_one(whale).await }).expect("it is taken");
    fixture.order(&["tar"]);
    only.says(&["halted", "the _id of a document is too large", "insert of ", ".orders", "watchkeeper skip orders"]);
    only.ends_in_order();
    assert_eq!(fixture.delivered(), ["rope"]);
    let skipped = fixture.workspace.run(&["skip", "orders", "--yes"]);
    assert_eq!(skipped.code, Some(0), "{}", &skipped.err[..skipped.err.len().min(2_000)]);
    let mut only = fixture.workspace.start("only");
    until("it goes on behind it", || fixture.delivered() == ["rope", "tar"]);
    fixture.order(&["sail"]);
    until("and further", || fixture.delivered() == ["rope", "tar", "sail"]);
    only.ends_in_order();
}

fn what_passes_is_bridged(set: &ReplicaSet) {
    let (fixture, mut only) = running(set, "");
    let mut written = Vec::new();
    for code in ["43", "237", "11602", "136"] {
        fail(&fixture, "getMore", code.parse().expect("a number"));
        only.says(&["to=recovering"]);
        written.push(code);
        fixture.order(&[code]);
        until("it arrives", || fixture.delivered() == written);
    }
    only.ends_in_order();
    assert_eq!(fixture.delivered(), written, "nothing comes twice");
}

fn what_a_person_has_to_change_is_reported(set: &ReplicaSet) {
    let (fixture, mut only) = running(set, "");
    for (code, parts) in [(13, ["WK-DENIED", "grant the privilege"]), (20, ["WK-CONFIG", "correct the settings"])] {
        fail(&fixture, "getMore", code);
        only.says(&parts);
    }
    fixture.order(&["rope"]);
    until("it goes on when that is done", || fixture.delivered() == ["rope"]);
    only.ends_in_order();
}

fn what_is_lost_halts_the_stream(set: &ReplicaSet) {
    for code in [286, 280] {
        let (fixture, mut only) = running(set, "");
        fixture.order(&["rope"]);
        until("it arrives", || fixture.delivered() == ["rope"]);
        fail(&fixture, "getMore", code);
        only.says(&["WK-POSITION-LOST", "]; "]);
        assert_resumable(&fixture, only);
    }
}

/// A stream that has delivered `rope`, and stands halted before a document that is too large to be told.
fn halted_before_the_whale(set: &ReplicaSet) -> SourceFixture {
    // An event with the document in it twice.
    let pipeline = r#", pipeline = '[{"$addFields": {"copy": "$fullDocument"}}]'"#;
    let (fixture, mut only) = running(set, &format!("{pipeline}, large_events = \"halt\""));
    let orders = fixture.database.collection::<Document>("orders");
    let whale = doc! { "_id": "whale", "item": "whale", "text": "x".repeat(9 << 20) };
    let documents = [doc! { "item": "rope" }, whale, doc! { "item": "tar" }];
    fixture.block_on(async { orders.insert_many(documents).await }).expect("orders are taken");
    only.says(&["WK-CORRUPT", "larger than 16 MiB", "insert", "whale", "large_events", "watchkeeper skip orders"]);
    only.ends_in_order();
    assert_eq!(fixture.delivered(), ["rope"], "what comes before is delivered");
    fixture
}

fn what_is_too_large_is_skipped_alone(set: &ReplicaSet) {
    let fixture = halted_before_the_whale(set);
    let skipped = fixture.workspace.run(&["skip", "orders", "--yes"]);
    assert_eq!(skipped.code, Some(0), "{skipped:?}");
    assert!(skipped.out.contains("\"whale\""), "{skipped:?}");
    let mut only = fixture.workspace.start("only");
    until("it goes on behind it", || fixture.delivered() == ["rope", "tar"]);
    only.ends_in_order();
    let ledger = fixture.workspace.run(&["dead-letters", "list", "orders", "--all", "--json"]);
    let ledger: serde_json::Value = serde_json::from_str(&ledger.out).expect("it is JSON");
    let [entry] = ledger["letters"].as_array().expect("a list").as_slice() else { panic!("one entry: {ledger}") };
    assert_eq!((&entry["kind"], &entry["key"]), (&"skipped".into(), &"\"whale\"".into()), "{entry}");
}

fn what_is_too_large_halts_the_stream_if_so_configured(set: &ReplicaSet) {
    let fixture = halted_before_the_whale(set);
    let file = std::fs::read_to_string(fixture.workspace.path("watchkeeper.toml")).expect("it is there");
    fixture.workspace.write("watchkeeper.toml", &file.replace("\"halt\"", "\"degrade\""));
    let resumed = fixture.workspace.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let mut only = fixture.workspace.start("only");
    let lines = || std::fs::read_to_string(fixture.workspace.path("orders-000001.ndjson")).unwrap_or_default();
    until("it arrives with what fits", || lines().lines().count() == 3 && lines().contains("\"degraded\""));
    only.ends_in_order();
}

/// Asserts that the stream stands where it stood: nobody runs it until a person says so, and then it goes on.
fn assert_resumable(fixture: &SourceFixture, mut only: Running) {
    fixture.order(&["tar"]);
    only.ends_in_order();
    assert_eq!(fixture.delivered(), ["rope"]);
    let resumed = fixture.workspace.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let mut only = fixture.workspace.start("only");
    until("it goes on", || fixture.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}
