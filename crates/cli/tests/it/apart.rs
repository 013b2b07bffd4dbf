//! What is wrong with one stream is a matter of that stream: the others run, and commands work.

use serde_json::Value;

use crate::desk::{Desk, GOOD, INTO_FILES, Running, until};

/// The good stream `orders`, and a stream `other` with these settings.
fn beside(other: &str) -> String {
    format!("{GOOD}{INTO_FILES}\n[[stream]]\nname = \"other\"\n{other}")
}

/// A source that nobody answers for.
const UNREACHABLE: &str = "source = \"postgres://x@127.0.0.1:1/x\"\n\n\
    [[stream.sink]]\ntype = \"file\"\nfolder = \".\"\nprefix = \"other\"\n";

/// A sink whose folder is not there.
const NOWHERE: &str = "source = \"sqlite:app.db\"\nstart = \"oldest\"\ncheckpoint = { every = \"50ms\" }\n\n\
    [[stream.sink]]\ntype = \"file\"\nfolder = \"later\"\nprefix = \"other\"\n";

fn status(desk: &Desk) -> Value {
    let answer = desk.run(&["status", "--json"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    serde_json::from_str(&answer.out).expect("it is JSON")
}

fn stream(status: &Value, name: &str) -> Value {
    let streams = status["streams"].as_array().expect("there are streams");
    streams.iter().find(|stream| stream["name"] == name).expect("it is listed").clone()
}

fn is(desk: &Desk, name: &str, state: &str) -> bool {
    stream(&status(desk), name)["state"] == state
}

/// Waits until `orders` delivers and `other` is shown as failing for this cause.
fn assert_apart(desk: &Desk, running: &mut Running, cause: &str) {
    desk.order(1..4);
    until("the good stream delivers", || desk.delivered() == [1, 2, 3]);
    running.says(&["WARN", "stream=\"other\"", cause]);
    until("the other one is shown as failing", || is(desk, "other", "failing"));
    let shown = status(desk);
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(1), "{shown}");
    let other = stream(&shown, "other");
    assert!(other["cause"].as_str().is_some_and(|told| told.contains(cause)), "{other}");
    assert_eq!(other["instances"][0]["doing"], "failing", "{other}");
    let trouble = &other["instances"][0]["trouble"];
    assert!(trouble["attempts"].as_u64().is_some_and(|attempts| attempts > 0), "{other}");
    until("the good one is shown as running", || is(desk, "orders", "running"));
    let text = desk.run(&["status"]);
    assert!(text.out.contains("other: failing") && text.out.contains("tried "), "{text:?}");
    assert!(!running.has_ended(), "it goes on");
}

#[test]
fn a_source_that_can_not_be_reached() {
    let desk = Desk::with(&beside(UNREACHABLE));
    let mut first = desk.start("first");
    assert_apart(&desk, &mut first, "Connection refused");
    first.ends_in_order();
}

#[test]
fn a_folder_that_is_made_later() {
    let desk = Desk::with(&beside(NOWHERE));
    let mut first = desk.start("first");
    assert_apart(&desk, &mut first, "the folder later does not exist");
    std::fs::create_dir(desk.path("later")).expect("the folder can be made");
    let delivered = || {
        let text = std::fs::read_to_string(desk.path("later/other-000001.ndjson")).unwrap_or_default();
        crate::desk::ids(&text)
    };
    until("the other stream delivers, too", || delivered() == [1, 2, 3]);
    until("it is shown as running", || is(&desk, "other", "running"));
    first.ends_in_order();
}

/// Its lease is left to an instance that reaches everything.
#[test]
fn a_stream_that_one_instance_can_not_open_runs_on_another() {
    let desk = Desk::with(&beside(NOWHERE));
    let mut first = desk.start("first");
    first.says(&["the folder later does not exist"]);
    std::fs::create_dir(desk.path("there")).expect("the folder can be made");
    let folder = "WATCHKEEPER__STREAM__OTHER__SINK__0__FOLDER";
    let mut command = desk.command();
    let command = command.arg("run").env("WATCHKEEPER__INSTANCE__NAME", "second").env(folder, "there");
    let mut second = Running::start(command);
    desk.order(1..4);
    let delivered = || std::fs::read_to_string(desk.path("there/other-000001.ndjson")).unwrap_or_default();
    until("the second one delivers", || crate::desk::ids(&delivered()) == [1, 2, 3]);
    until("both are shown", || {
        let other = stream(&status(&desk), "other");
        let instances = other["instances"].as_array().cloned().unwrap_or_default();
        let doing = |name: &str, doing: &str| instances.iter().any(|on| on["name"] == name && on["doing"] == doing);
        other["state"] == "running" && doing("first", "failing") && doing("second", "running")
    });
    let text = desk.run(&["status", "other"]);
    assert!(text.out.contains("fails        on first: "), "{text:?}");
    second.ends_in_order();
    first.ends_in_order();
}

/// Commands that only need the group's store, while a source is gone and a folder is missing.
#[test]
fn commands_need_the_store_only() {
    let desk = Desk::with(&beside(NOWHERE));
    std::fs::create_dir(desk.path("later")).expect("the folder can be made");
    let mut first = desk.start("first");
    desk.order(1..4);
    until("both have committed", || {
        let shown = status(&desk);
        ["orders", "other"].iter().all(|name| stream(&shown, name)["checkpoint"]["changes"] == 3)
    });
    // Seen by nobody who has it open, and by everybody who opens it anew.
    std::fs::rename(desk.path("app.db"), desk.path("moved.db")).expect("the file can be moved");
    std::fs::rename(desk.path("later"), desk.path("gone")).expect("the folder can be moved");
    for command in [
        &["status"][..],
        &["status", "orders"],
        &["why", "orders"],
        &["why", "other"],
        &["checkpoint", "show", "orders"],
        &["checkpoint", "show", "other"],
        &["checkpoint", "history", "other"],
        &["dead-letters", "list", "other"],
        &["pause", "orders"],
        &["pause", "other"],
        &["resume", "orders"],
    ] {
        let answer = desk.run(command);
        assert_eq!(answer.code, Some(0), "{command:?}: {answer:?}");
    }
    first.ends_in_order();
    for command in [&["status"][..], &["checkpoint", "show", "other"], &["resume", "other"]] {
        let answer = desk.run(command);
        assert_eq!(answer.code, Some(0), "{command:?}: {answer:?}");
    }
    // What asks the log needs it.
    desk.run(&["checkpoint", "set", "other", "oldest", "--yes"]).assert_refused(2, &["app.db"]);
    std::fs::rename(desk.path("moved.db"), desk.path("app.db")).expect("the file can be moved");
    // The folder is still missing: it is the source that is asked.
    let moved = desk.run(&["checkpoint", "set", "other", "oldest", "--yes"]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
}

/// A halt is lifted without its source.
#[test]
fn a_halted_stream_is_resumed_without_its_source() {
    let desk = Desk::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = desk.start("first");
    desk.order(1..2);
    until("it has committed", || stream(&status(&desk), "orders")["checkpoint"]["changes"] == 1);
    first.ends_in_order();
    let store = rusqlite::Connection::open(desk.path("state.db")).expect("the store can be opened");
    store.execute("DELETE FROM watchkeeper_checkpoints", []).expect("the checkpoint can be removed");
    drop(store);
    let mut second = desk.start("second");
    second.says(&["halted until a person resumes it"]);
    second.ends_in_order();
    std::fs::rename(desk.path("app.db"), desk.path("moved.db")).expect("the file can be moved");
    assert!(is(&desk, "orders", "halted"));
    let resumed = desk.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(resumed.out.contains("The halt of orders is lifted"), "{resumed:?}");
}
