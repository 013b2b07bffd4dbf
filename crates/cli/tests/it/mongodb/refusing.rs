//! Bad input on MongoDB: each has a cause in one line, a remedy and an exit code, and leaves the checkpoint as it is.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use watchkeeper::mongodb::mongodb::bson::spec::BinarySubtype;
use watchkeeper::mongodb::mongodb::bson::{Binary, Document, doc};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings, Standalone};

use super::SourceFixture;
use crate::workspace::until;

/// Asserts that `check` ended with this code and names an error with these parts.
fn assert_found(fixture: &SourceFixture, code: i32, parts: &[&str]) {
    fixture.workspace.run(&["check"]).assert_found(code, parts);
}

#[test]
fn a_server_that_is_no_replica_set() {
    let fixture = SourceFixture::new();
    let alone = Standalone::start();
    fixture.configure_store(&alone.url("shop"), &fixture.orders(""));
    let parts = ["watchkeeper.toml:3: ", "no member of a replica set", "rs.initiate()"];
    fixture.workspace.run(&["run"]).assert_refused(2, &parts);
    assert_found(&fixture, 2, &parts);
    fixture.configure(&format!("source = {{ url = \"{}\", collection = \"orders\" }}\n", alone.url("shop")));
    // It is a matter of the stream that reads it: others run.
    let mut only = fixture.workspace.start("only");
    only.says(&["watchkeeper.toml:9: ", "no member of a replica set"]);
    only.ends_in_order();
}

#[test]
fn a_wrong_password() {
    let fixture = SourceFixture::new();
    let key = fixture.workspace.path("key");
    fixture.workspace.write("key", "c2VjcmV0IG9mIHRoZSBzZXQ=");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let arguments = vec!["--auth".to_owned(), "--keyFile".to_owned(), key.display().to_string()];
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    let url = set.url("shop").replace("mongodb://", "mongodb://keeper:hunter2@");
    fixture.configure_store(&url, &fixture.orders(""));
    let parts = ["watchkeeper.toml:3: ", "access is denied", "WK-DENIED", "correct user and password"];
    let refused = fixture.workspace.run(&["run"]);
    refused.assert_refused(1, &parts);
    assert!(!format!("{refused:?}").contains("hunter2"), "{refused:?}");
    assert_found(&fixture, 1, &parts);
}

#[test]
fn a_checkpoint_that_lies_in_another_store() {
    let (fixture, other) = (SourceFixture::new(), SourceFixture::new());
    fixture.configure(&fixture.orders(""));
    fixture.start("only").ends_in_order();
    let file = std::fs::read_to_string(fixture.workspace.path("watchkeeper.toml")).expect("it is there");
    let into_other = format!("url = \"{}\"\ncollection = \"events\"", other.url);
    fixture.workspace.write("watchkeeper.toml", &file.replace("type = \"file\"\nfolder = \".\"", &into_other));
    let parts = ["has no checkpoint in this store, but began in another one", "WK-CONFIG", "checkpoint show orders"];
    assert_found(&fixture, 2, &parts);
    assert_eq!(other.collections(), ["orders"], "a look makes nothing");
    let mut only = fixture.workspace.start("only");
    only.says(&parts);
    only.ends_in_order();
}

#[test]
fn a_collection_that_is_not_there() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders("").replace("\"orders\" }", "\"ordres\" }"));
    let parts = ["there is no collection \"ordres\"", "correct its name, or write wait = true"];
    assert_found(&fixture, 1, &parts);
    let mut only = fixture.workspace.start("only");
    only.says(&parts);
    only.ends_in_order();
    assert_eq!(fixture.position(), None);
}

#[test]
fn a_collection_of_watchkeepers_own() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders("").replace("\"orders\" }", "[\"orders\", \"watchkeeper_checkpoints\"] }"));
    let parts = ["watchkeeper.toml:9: ", "watchkeeper_checkpoints is a collection of Watchkeeper's own", "WK-CONFIG"];
    assert_found(&fixture, 2, &parts);
    fixture.workspace.run(&["run"]).assert_refused(2, &parts);
}

#[test]
fn a_pipeline_that_the_server_does_not_take() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(", pipeline = '[{\"$mtach\": {}}]'"));
    let parts = ["$mtach", "; correct the stage or the option that the cause names"];
    assert_found(&fixture, 1, &parts);
    let mut only = fixture.workspace.start("only");
    only.says(&parts);
    only.ends_in_order();
    fixture.configure(&fixture.orders(", pipeline = '[{\"$match\": '"));
    fixture.workspace.run(&["run"]).assert_refused(2, &["watchkeeper.toml:9: ", "pipeline", "$match"]);
    assert_eq!(fixture.position(), None);
}

/// A stream with one delivered and committed change that nobody runs.
fn stopped() -> SourceFixture {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let mut only = fixture.start("only");
    fixture.order(&["rope"]);
    until("it arrives", || fixture.delivered() == ["rope"]);
    only.ends_in_order();
    fixture
}

fn position(fixture: &SourceFixture) -> Document {
    fixture.checkpoint().and_then(|stored| stored.get_document("position").ok().cloned()).expect("it is committed")
}

/// Runs the stream, which tells this, and leaves its position and what was delivered as they were.
fn assert_stays(fixture: &SourceFixture, parts: &[&str]) {
    let before = position(fixture);
    // Before anything runs, `check` tells the same.
    assert_found(fixture, 1, &[&["position (mongodb): "], parts].concat());
    let mut only = fixture.workspace.start("only");
    only.says(parts);
    only.ends_in_order();
    assert_eq!(position(fixture), before);
    assert_eq!(fixture.delivered(), ["rope"]);
}

#[test]
fn a_checkpoint_of_another_cluster() {
    let fixture = stopped();
    let set = ReplicaSet::start(1);
    let other = SourceFixture::on(&set);
    fixture.configure(&other.orders(""));
    assert_stays(&fixture, &["another cluster", "WK-POSITION-LOST", "point the stream at the cluster"]);
    let status = fixture.workspace.run(&["status", "--json"]);
    let reported: Value = serde_json::from_str(&status.out).expect("it is JSON");
    assert_eq!(reported["streams"][0]["state"], "halted", "{reported}");
    assert_found(&fixture, 1, &["the stream stands halted", "another cluster", "watchkeeper resume orders"]);
}

#[test]
fn a_checkpoint_of_another_pipeline() {
    let fixture = stopped();
    fixture.configure(&fixture.orders(", pipeline = '[{\"$match\": {\"operationType\": \"insert\"}}]'"));
    assert_stays(&fixture, &["another scope, pipeline or options", "WK-CONFIG", "put them back"]);
    // It was no fault of the stream: with the old settings it goes on.
    fixture.configure(&fixture.orders(""));
    fixture.order(&["tar"]);
    let mut only = fixture.workspace.start("only");
    until("it goes on", || fixture.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}

/// Changes the bytes of the stored position: a byte for the kind, two for a length, then the token: a byte for its type, the
/// seconds, and the rest.
fn forge(fixture: &SourceFixture, change: impl FnOnce(&mut Vec<u8>)) {
    let Ok(bytes) = position(fixture).get_binary_generic("bytes").cloned() else { panic!("a position has bytes") };
    let mut forged = bytes;
    change(&mut forged);
    let forged = Binary { subtype: BinarySubtype::Generic, bytes: forged };
    let checkpoints = fixture.database.collection::<Document>("watchkeeper_checkpoints");
    let update = doc! { "$set": { "checkpoint.position.bytes": forged } };
    fixture.block_on(async { checkpoints.update_one(doc! {}, update).await }).expect("it can be changed");
}

/// Where the seconds of a token begin.
const SECONDS_AT: usize = 4;

/// Where what follows the time of a token begins.
const AFTER_TIME: usize = SECONDS_AT + 8;

fn shift_seconds(bytes: &mut [u8], by: i64) {
    let seconds: [u8; 4] = bytes[SECONDS_AT..SECONDS_AT + 4].try_into().expect("four of them");
    let shifted = u32::try_from(i64::from(u32::from_be_bytes(seconds)) + by).expect("a time");
    bytes[SECONDS_AT..SECONDS_AT + 4].copy_from_slice(&shifted.to_be_bytes());
}

#[test]
fn a_checkpoint_of_the_future() {
    let fixture = stopped();
    forge(&fixture, |bytes| shift_seconds(bytes, 3_600));
    assert_stays(&fixture, &["in the future of this cluster", "WK-POSITION-LOST"]);
}

#[test]
fn a_checkpoint_whose_history_is_gone() {
    let fixture = stopped();
    forge(&fixture, |bytes| shift_seconds(bytes, -864_000));
    assert_stays(&fixture, &["the position has left the oplog", "WK-POSITION-LOST", "on_history_lost"]);
}

#[test]
fn a_checkpoint_whose_history_is_gone_and_may_be_passed() {
    let fixture = stopped();
    forge(&fixture, |bytes| shift_seconds(bytes, -864_000));
    let reported = [("gap", "the oldest change"), ("gap_to_now", "from now on"), ("snapshot", "with a snapshot")];
    for (policy, what) in reported {
        fixture.configure(&format!("{}on_history_lost = \"{policy}\"\n", fixture.orders("")));
        let checked = fixture.workspace.run(&["check"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        let line = checked.out.lines().find(|line| line.contains("the position has left the oplog"));
        let line = line.expect("it is told");
        assert!(line.contains("warning: position") && line.contains(what), "{line}");
        assert!(!line.contains("choose what becomes"), "{line}");
    }
}

#[test]
fn a_repair_of_lost_history_that_cannot_be() {
    let fixture = SourceFixture::new();
    let source = [
        fixture.orders(", pipeline = '[{\"$match\": {\"operationType\": \"insert\"}}]'"),
        fixture.orders("").replace("collection = \"orders\"", "scope = \"database\""),
    ];
    for (source, cause) in source.iter().zip(["through a pipeline", "collections that are named"]) {
        fixture.configure(&format!("{source}on_history_lost = \"snapshot\"\n"));
        let parts = ["on_history_lost = \"snapshot\": ", cause];
        assert_found(&fixture, 1, &parts);
        let mut only = fixture.workspace.start("only");
        only.says(&[&["watchkeeper.toml:"], &parts[..]].concat());
        only.ends_in_order();
    }
    assert_eq!(fixture.position(), None);
}

#[test]
fn a_start_at_a_position() {
    let fixture = stopped();
    let Ok(bytes) = position(&fixture).get_binary_generic("bytes").cloned() else { panic!("a position has bytes") };
    let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(fixture.workspace.run(&["checkpoint", "show", "orders"]).out.contains(&shown), "that is how it is shown");
    fixture.order(&["tar"]);
    assert_eq!(fixture.workspace.run(&["checkpoint", "reset", "orders", "--yes"]).code, Some(0));
    fixture.configure(&format!("{}start = \"00ff\"\n", fixture.orders("")));
    assert_found(&fixture, 1, &["start (mongodb): ", "; write a position of this source"]);
    let parts = ["watchkeeper.toml:", "start = \"00ff\" is no position", "; write a position of this source"];
    fixture.workspace.run(&["run"]).assert_refused(2, &parts);
    fixture.configure(&format!("{}start = \"{shown}\"\n", fixture.orders("")));
    assert_eq!(fixture.workspace.run(&["check"]).code, Some(0));
    let mut only = fixture.workspace.start("only");
    until("what came after it arrives", || fixture.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}

#[test]
fn a_damaged_checkpoint() {
    let fixture = stopped();
    forge(&fixture, |bytes| {
        let end = bytes.len() - 2;
        bytes[AFTER_TIME..end].fill(0xff);
    });
    assert_stays(&fixture, &["damaged", "WK-CORRUPT", "an earlier checkpoint"]);
    forge(&fixture, |bytes| bytes.truncate(3));
    assert_eq!(fixture.workspace.run(&["resume", "orders"]).code, Some(0));
    assert_stays(&fixture, &["WK-CORRUPT"]);
}

#[test]
fn a_position_that_is_none_is_not_taken_for_a_checkpoint() {
    let fixture = stopped();
    let before = position(&fixture);
    for (place, code, part) in [("00ff", 1, "WK-CORRUPT"), ("2020-01-01", 2, "the log reaches back to")] {
        fixture.workspace.run(&["checkpoint", "set", "orders", place, "--yes"]).assert_refused(code, &[part]);
        assert_eq!(position(&fixture), before, "{place}");
    }
}

#[test]
fn a_start_before_the_oldest_change() {
    // The oplog is cut only up to the last checkpoint of the storage, which otherwise is made once a minute.
    let arguments = ["--oplogSize", "1", "--syncdelay", "1"].map(str::to_owned).to_vec();
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    let fixture = SourceFixture::on(&set);
    // As long as the first entry of all is there, nothing is missing before it.
    roll_over(&fixture);
    for start in ["1577836800:7", "2020-01-01T00:00:00Z"] {
        fixture.configure(&format!("{}start = \"{start}\"\n", fixture.orders("")));
        assert_found(&fixture, 1, &["start (mongodb): ", "has left the oplog", "WK-POSITION-LOST", "on_history_lost"]);
    }
    let mut only = fixture.workspace.start("only");
    only.says(&["has left the oplog", "WK-POSITION-LOST", "on_history_lost"]);
    only.ends_in_order();
    assert!(fixture.delivered().is_empty());
    assert!(fixture.checkpoint().is_none_or(|stored| stored.get_document("position").is_err()), "nothing is passed");
}

#[test]
fn a_start_that_is_yet_to_come_or_cannot_be() {
    let fixture = SourceFixture::new();
    fixture.configure(&format!("{}start = \"2099-01-01T00:00:00Z\"\n", fixture.orders("")));
    assert_found(&fixture, 2, &["in the future", "WK-CONFIG", "write a time that has passed"]);
    let parts = ["in the future of this cluster", "WK-CONFIG", "start at a time that has been"];
    fixture.configure(&format!("{}start = \"4070908800:1\"\n", fixture.orders("")));
    assert_found(&fixture, 1, &parts);
    let mut only = fixture.workspace.start("only");
    only.says(&parts);
    only.ends_in_order();
    assert_eq!(fixture.position(), None);

    let create = doc! { "create": "log", "capped": true, "size": 1_000_000 };
    fixture.block_on(async { fixture.database.run_command(create).await }).expect("it is taken");
    fixture.configure(&format!("{}start = \"snapshot\"\n", fixture.orders("").replace("\"orders\" }", "\"log\" }")));
    let parts = ["log is a capped collection", "WK-CONFIG", "begin with now or the oldest change"];
    assert_found(&fixture, 1, &parts);
    let mut only = fixture.workspace.start("only");
    only.says(&parts);
    only.ends_in_order();
    assert_eq!(fixture.position(), None);
}

/// Writes until the oldest entry of the oplog is another one.
fn roll_over(fixture: &SourceFixture) {
    let filler = fixture.database.collection::<Document>("filler");
    let oplog = fixture.database.client().database("local").collection::<Document>("oplog.rs");
    let oldest = || {
        let entry = fixture.block_on(async { oplog.find_one(doc! {}).sort(doc! { "$natural": 1 }).await });
        entry.expect("it can be read").and_then(|entry| entry.get_timestamp("ts").ok())
    };
    let first = oldest();
    until("the oplog rolls over", || {
        let text = doc! { "text": "x".repeat(200_000) };
        fixture.block_on(async { filler.insert_one(text).await }).expect("it is taken");
        oldest() != first
    });
}

#[test]
fn a_server_that_takes_no_encrypted_connections() {
    let fixture = SourceFixture::new();
    fixture.configure_store(&format!("{}&tls=true&serverSelectionTimeoutMS=2000", fixture.url), &fixture.orders(""));
    let checked = fixture.workspace.run(&["check"]);
    checked.assert_found(1, &["store (mongodb): ", "tls=true", "takes no encrypted connections"]);
    assert!(!checked.out.contains("name the authority"), "{checked:?}");
}
