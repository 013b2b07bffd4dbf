//! What the program does about errors of its source, provoked on a server by fail points.

use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::Harbour;
use crate::desk::{Running, until};

/// The name by which the server tells the source's connections from all others.
const APP: &str = "lookout";

/// Makes the next such command of the source fail.
fn fail(harbour: &Harbour, command: &str, code: i32) {
    let data = doc! { "failCommands": [command], "appName": APP, "errorCode": code };
    let point = doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
    harbour
        .block_on(async { harbour.database.client().database("admin").run_command(point).await })
        .expect("it is set");
}

/// A stream whose source can be made to fail, and the instance that runs it.
fn running(set: &ReplicaSet, more: &str) -> (Harbour, Running) {
    let harbour = Harbour::on(set);
    let source = harbour.orders(more).replace(&harbour.url, &format!("{}&appName={APP}", harbour.url));
    harbour.configure(&source);
    let only = harbour.start("only");
    (harbour, only)
}

#[test]
fn errors_of_the_server_are_bridged_told_or_halt_the_stream() {
    // Fail points are the server's, so these share one and take turns at it.
    let set = ReplicaSet::start(1);
    what_passes_is_bridged(&set);
    what_a_person_has_to_change_is_told(&set);
    what_is_lost_halts_the_stream(&set);
    what_is_too_large_halts_the_stream_if_so_configured(&set);
}

fn what_passes_is_bridged(set: &ReplicaSet) {
    let (harbour, mut only) = running(set, "");
    let mut written = Vec::new();
    for code in ["43", "237", "11602", "136"] {
        fail(&harbour, "getMore", code.parse().expect("a number"));
        only.says(&["to=recovering"]);
        written.push(code);
        harbour.order(&[code]);
        until("it arrives", || harbour.delivered() == written);
    }
    only.ends_in_order();
    assert_eq!(harbour.delivered(), written, "nothing comes twice");
}

fn what_a_person_has_to_change_is_told(set: &ReplicaSet) {
    let (harbour, mut only) = running(set, "");
    for (code, parts) in [(13, ["WK-DENIED", "grant the privilege"]), (20, ["WK-CONFIG", "correct the settings"])] {
        fail(&harbour, "getMore", code);
        only.says(&parts);
    }
    harbour.order(&["rope"]);
    until("it goes on when that is done", || harbour.delivered() == ["rope"]);
    only.ends_in_order();
}

fn what_is_lost_halts_the_stream(set: &ReplicaSet) {
    for code in [286, 280] {
        let (harbour, mut only) = running(set, "");
        harbour.order(&["rope"]);
        until("it arrives", || harbour.delivered() == ["rope"]);
        fail(&harbour, "getMore", code);
        only.says(&["WK-POSITION-LOST", "]; "]);
        assert_resumable(&harbour, only);
    }
}

fn what_is_too_large_halts_the_stream_if_so_configured(set: &ReplicaSet) {
    // An event with the document in it twice.
    let pipeline = r#", pipeline = '[{"$addFields": {"copy": "$fullDocument"}}]'"#;
    let (harbour, mut only) = running(set, &format!("{pipeline}, large_events = \"halt\""));
    let orders = harbour.database.collection::<Document>("orders");
    let documents = [doc! { "item": "rope" }, doc! { "item": "whale", "text": "x".repeat(9 << 20) }];
    harbour.block_on(async { orders.insert_many(documents).await }).expect("orders are taken");
    only.says(&["WK-CORRUPT", "larger than 16 MiB", "insert", ".orders", "large_events"]);
    only.ends_in_order();
    assert_eq!(harbour.delivered(), ["rope"], "what comes before is delivered");
    let file = std::fs::read_to_string(harbour.desk.path("watchkeeper.toml")).expect("it is there");
    harbour.desk.write("watchkeeper.toml", &file.replace("\"halt\"", "\"degrade\""));
    let resumed = harbour.desk.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let mut only = harbour.desk.start("only");
    let lines = || std::fs::read_to_string(harbour.desk.path("orders-000001.ndjson")).unwrap_or_default();
    until("it arrives with what fits", || lines().lines().count() == 2 && lines().contains("\"degraded\""));
    only.ends_in_order();
}

/// Asserts that the stream stands where it stood: nobody runs it until a person says so, and then it goes on.
fn assert_resumable(harbour: &Harbour, mut only: Running) {
    harbour.order(&["tar"]);
    only.ends_in_order();
    assert_eq!(harbour.delivered(), ["rope"]);
    let resumed = harbour.desk.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let mut only = harbour.desk.start("only");
    until("it goes on", || harbour.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}
