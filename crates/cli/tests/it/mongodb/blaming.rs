//! Codes of lost history from calls that are not the source's change stream: nothing is passed over.

use watchkeeper::mongodb::mongodb::bson::{Bson, Document, doc};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::SourceFixture;
use crate::workspace::until;

/// The names by which the server tells connections apart.
const SOURCE: &str = "reading";
const SINK: &str = "writing";

/// Makes the next such command of these connections fail, on this collection if one is named. The answer is how often the fail point has struck
/// before.
fn fail(fixture: &SourceFixture, app: &str, (command, code): (&str, i32), namespace: Option<&str>) -> i64 {
    let mut data = doc! { "failCommands": [command], "appName": app, "errorCode": code };
    if let Some(namespace) = namespace {
        data.insert("namespace", namespace);
    }
    configure(fixture, doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data })
}

/// How often the fail point has struck; from now on it does not.
fn strikes(fixture: &SourceFixture) -> i64 {
    configure(fixture, doc! { "configureFailPoint": "failCommand", "mode": "off" })
}

/// Configures the fail point. The server tells how often it has struck so far.
fn configure(fixture: &SourceFixture, point: Document) -> i64 {
    let admin = fixture.database.client().database("admin");
    let answer = fixture.block_on(async { admin.run_command(point).await }).expect("it is set");
    match answer.get("count") {
        Some(Bson::Int32(count)) => i64::from(*count),
        Some(Bson::Int64(count)) => *count,
        other => panic!("the server does not count: {other:?}"),
    }
}

/// Runs a stream into a collection, fails one call, and expects every document to be copied.
fn passes_over_nothing(set: &ReplicaSet, mode: &str, app: &str, call: (&str, i32), namespace: Option<&str>) {
    let case = format!("{mode}: {} {} {}", app, call.0, call.1);
    let fixture = SourceFixture::on(set);
    let (source, sink) = (format!("{}&appName={SOURCE}", fixture.url), format!("{}&appName={SINK}", fixture.url));
    fixture.workspace.write(
        "watchkeeper.toml",
        &format!(
            "[group]\nname = \"shop\"\nstore = \"{}\"\nlease = \"30s\"\n\n[[stream]]\nname = \"orders\"\n\
             checkpoint = {{ every = \"50ms\" }}\non_history_lost = \"gap_to_now\"\n\
             source = {{ url = \"{source}\", collection = \"orders\", full_document = \"updateLookup\" }}\n\n\
             [[stream.sink]]\ntype = \"mongodb\"\nurl = \"{sink}\"\ncollection = \"copies\"\nmode = \"{mode}\"\n",
            fixture.url
        ),
    );
    let mut first = fixture.start("first");
    fixture.order(&["rope"]);
    until(&case, || copies(&fixture) == 1);
    first.ends_in_order();
    // Written while nobody runs: an instance that goes on with "now" passes over them.
    fixture.order(&["tar", "sail", "oar"]);
    let before = fail(&fixture, app, call, namespace);
    let mut second = fixture.workspace.start("second");
    fixture.order(&["lamp"]);
    until(&format!("{case}: all are copied"), || copies(&fixture) == 5);
    assert_eq!(strikes(&fixture) - before, 1, "{case}: the call was made to fail");
    second.ends_in_order();
    let ledger = fixture.workspace.run(&["dead-letters", "list", "orders", "--all", "--json"]);
    assert!(!ledger.out.contains("gap"), "{case}: {ledger:?}");
    let wrong = |line: &&String| line.contains("history is lost") || line.contains("WK-POSITION-LOST");
    assert_eq!(second.seen.iter().find(wrong), None, "{case}");
}

fn copies(fixture: &SourceFixture) -> u64 {
    let copies = fixture.database.collection::<Document>("copies");
    fixture.block_on(async { copies.count_documents(doc! {}).await }).expect("they can be counted")
}

#[test]
fn codes_of_lost_history_from_sinks_and_stores_pass_over_nothing() {
    let set = ReplicaSet::start(1);
    for code in [286, 136, 280] {
        passes_over_nothing(&set, "versioned", SINK, ("update", code), None);
        passes_over_nothing(&set, "mirror", SINK, ("findAndModify", code), None);
        passes_over_nothing(&set, "mirror", SINK, ("update", code), None);
    }
}

#[test]
fn codes_of_lost_history_from_a_look_at_the_oplog_pass_over_nothing() {
    let set = ReplicaSet::start(1);
    for code in [286, 136] {
        passes_over_nothing(&set, "versioned", SOURCE, ("find", code), Some("local.oplog.rs"));
    }
}
