//! What is wrong with one stream is a matter of that stream: the others run, and commands work.

use serde_json::Value;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, answer, until};

/// The good stream `orders`, and a stream `other` with these settings.
pub(crate) fn beside(other: &str) -> String {
    format!("{GOOD}{INTO_FILES}\n[[stream]]\nname = \"other\"\n{other}")
}

/// A source that nobody answers for.
const UNREACHABLE: &str = "source = \"postgres://x@127.0.0.1:1/x\"\n\n\
    [[stream.sink]]\ntype = \"file\"\nfolder = \".\"\nprefix = \"other\"\n";

/// A sink whose folder is not there.
const NOWHERE: &str = "source = \"sqlite:app.db\"\nstart = \"oldest\"\ncheckpoint = { every = \"50ms\" }\n\n\
    [[stream.sink]]\ntype = \"file\"\nfolder = \"later\"\nprefix = \"other\"\n";

pub(crate) fn status(workspace: &Workspace) -> Value {
    let answer = workspace.run(&["status", "--json"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    serde_json::from_str(&answer.out).expect("it is JSON")
}

pub(crate) fn stream(status: &Value, name: &str) -> Value {
    let streams = status["streams"].as_array().expect("there are streams");
    streams.iter().find(|stream| stream["name"] == name).expect("it is listed").clone()
}

fn is(workspace: &Workspace, name: &str, state: &str) -> bool {
    stream(&status(workspace), name)["state"] == state
}

/// Waits until `orders` delivers and `other` is shown as failing for this cause.
pub(crate) fn assert_apart(workspace: &Workspace, running: &mut Running, cause: &str) {
    workspace.order(1..4);
    until("the good stream delivers", || workspace.delivered() == [1, 2, 3]);
    running.says(&["WARN", "stream=\"other\"", cause]);
    until("the other one is shown as failing", || is(workspace, "other", "failing"));
    let shown = status(workspace);
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(1), "{shown}");
    let other = stream(&shown, "other");
    assert!(other["cause"].as_str().is_some_and(|reported| reported.contains(cause)), "{other}");
    assert_eq!(other["instances"][0]["doing"], "failing", "{other}");
    let trouble = &other["instances"][0]["trouble"];
    assert!(trouble["attempts"].as_u64().is_some_and(|attempts| attempts > 0), "{other}");
    assert!(other["not_delivering_millis"].is_u64() && other["lag_millis"].is_null(), "{other}");
    until("the good one is shown as running", || is(workspace, "orders", "running"));
    let text = workspace.run(&["status"]);
    assert!(text.out.contains("other: failing") && text.out.contains("tried "), "{text:?}");
    assert!(text.out.contains(", has orders, failing: other, version "), "{text:?}");
    assert!(!running.has_ended(), "it goes on");
}

#[test]
fn a_source_that_cannot_be_reached() {
    let workspace = Workspace::with(&beside(UNREACHABLE));
    let mut first = workspace.start("first");
    assert_apart(&workspace, &mut first, "Connection refused");
    first.ends_in_order();
}

#[test]
fn a_folder_that_is_made_later() {
    let workspace = Workspace::with(&beside(NOWHERE));
    let mut first = workspace.start("first");
    assert_apart(&workspace, &mut first, "the folder later does not exist");
    std::fs::create_dir(workspace.path("later")).expect("the folder can be made");
    let delivered = || {
        let text = std::fs::read_to_string(workspace.path("later/other-000001.ndjson")).unwrap_or_default();
        crate::workspace::ids(&text)
    };
    until("the other stream delivers, too", || delivered() == [1, 2, 3]);
    until("it is shown as running", || is(&workspace, "other", "running"));
    first.ends_in_order();
}

/// Its lease is left to an instance that reaches everything.
#[test]
fn a_stream_that_one_instance_cannot_open_runs_on_another() {
    let workspace = Workspace::with(&beside(NOWHERE));
    let mut first = workspace.start("first");
    first.says(&["the folder later does not exist"]);
    std::fs::create_dir(workspace.path("there")).expect("the folder can be made");
    let folder = "WATCHKEEPER__STREAM__OTHER__SINK__0__FOLDER";
    let mut command = workspace.command();
    let command = command.arg("run").env("WATCHKEEPER__INSTANCE__NAME", "second").env(folder, "there");
    let mut second = Running::start(command);
    workspace.order(1..4);
    let delivered = || std::fs::read_to_string(workspace.path("there/other-000001.ndjson")).unwrap_or_default();
    until("the second one delivers", || crate::workspace::ids(&delivered()) == [1, 2, 3]);
    until("both are shown", || {
        let other = stream(&status(&workspace), "other");
        let instances = other["instances"].as_array().cloned().unwrap_or_default();
        let doing = |name: &str, doing: &str| instances.iter().any(|on| on["name"] == name && on["doing"] == doing);
        other["state"] == "running" && doing("first", "failing") && doing("second", "running")
    });
    let text = workspace.run(&["status", "other"]);
    assert!(text.out.contains("fails        on first: "), "{text:?}");
    second.ends_in_order();
    first.ends_in_order();
}

/// Commands that only need the group's store, while a source is gone and a folder is missing.
#[test]
fn commands_need_the_store_only() {
    let workspace = Workspace::with(&beside(NOWHERE));
    std::fs::create_dir(workspace.path("later")).expect("the folder can be made");
    let mut first = workspace.start("first");
    workspace.order(1..4);
    until("both have committed", || {
        let shown = status(&workspace);
        ["orders", "other"].iter().all(|name| stream(&shown, name)["checkpoint"]["changes"] == 3)
    });
    let mut second = workspace.start("second");
    until("a second instance stands by", || stream(&status(&workspace), "orders")["standing_by"][0] == "second");
    // Only for the command: whoever takes the watch needs its source.
    let away = |arguments: &[&str]| {
        let mut command = workspace.command();
        answer(command.args(arguments).env("WATCHKEEPER__STREAM__ORDERS__SOURCE", "sqlite:gone.db"))
    };
    away(&["checkpoint", "set", "orders", "oldest", "--yes"]).assert_refused(2, &["gone.db"]);
    let handed = away(&["handoff", "orders"]);
    assert_eq!(handed.code, Some(0), "{handed:?}");
    assert_eq!(stream(&status(&workspace), "orders")["watch"]["name"], "second");
    second.ends_in_order();
    until("the first one has it again", || {
        let orders = stream(&status(&workspace), "orders");
        orders["watch"]["name"] == "first" && orders["instances"][0]["doing"] == "running"
    });
    // Seen by nobody who has it open, and by everybody who opens it anew.
    std::fs::rename(workspace.path("app.db"), workspace.path("moved.db")).expect("the file can be moved");
    std::fs::rename(workspace.path("later"), workspace.path("gone")).expect("the folder can be moved");
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
        let answer = workspace.run(command);
        assert_eq!(answer.code, Some(0), "{command:?}: {answer:?}");
    }
    first.ends_in_order();
    for command in [&["status"][..], &["checkpoint", "show", "other"], &["resume", "other"]] {
        let answer = workspace.run(command);
        assert_eq!(answer.code, Some(0), "{command:?}: {answer:?}");
    }
    // What asks the log needs it.
    workspace.run(&["checkpoint", "set", "other", "oldest", "--yes"]).assert_refused(2, &["app.db"]);
    std::fs::rename(workspace.path("moved.db"), workspace.path("app.db")).expect("the file can be moved");
    // The folder is still missing: it is the source that is asked.
    let moved = workspace.run(&["checkpoint", "set", "other", "oldest", "--yes"]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
}

/// A halt is lifted without its source.
#[test]
fn a_halted_stream_is_resumed_without_its_source() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    workspace.order(1..2);
    until("it has committed", || stream(&status(&workspace), "orders")["checkpoint"]["changes"] == 1);
    first.ends_in_order();
    let store = rusqlite::Connection::open(workspace.path("state.db")).expect("the store can be opened");
    store.execute("DELETE FROM watchkeeper_checkpoints", []).expect("the checkpoint can be removed");
    drop(store);
    let mut second = workspace.start("second");
    second.says(&["halted until a person resumes it"]);
    until("it is shown as halted by who runs", || {
        let shown = status(&workspace);
        stream(&shown, "orders")["state"] == "halted" && shown["members"][0]["healthy"] == true
    });
    assert_eq!(workspace.run(&["status", "--exit-code"]).code, Some(4));
    second.ends_in_order();
    std::fs::rename(workspace.path("app.db"), workspace.path("moved.db")).expect("the file can be moved");
    assert!(is(&workspace, "orders", "halted"));
    let resumed = workspace.run(&["resume", "orders"]);
    resumed.assert_refused(1, &["halts again at once", "watchkeeper checkpoint set orders 0000000000000001`"]);
    assert!(!resumed.err.contains("app.db"), "the source is not asked: {resumed:?}");
}

/// Everything of the ledger of `orders`.
fn ledger(workspace: &Workspace) -> Vec<Value> {
    let listed = workspace.run(&["dead-letters", "list", "orders", "--all", "--json"]);
    let reported: Value = serde_json::from_str(&listed.out).expect("it is JSON");
    reported["letters"].as_array().expect("it is a list").clone()
}

/// What a move came to that was made without its source.
#[track_caller]
fn moved(workspace: &Workspace, arguments: &[&str]) -> Value {
    let answer = workspace.run(&[&["checkpoint"], arguments, &["--yes", "--json"]].concat());
    assert_eq!(answer.code, Some(0), "{answer:?}");
    serde_json::from_str(&answer.out).expect("it is JSON")
}

#[test]
fn a_checkpoint_is_moved_without_its_source() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    for id in 1..6 {
        workspace.order(id..id + 1);
        until("it is committed", || stream(&status(&workspace), "orders")["checkpoint"]["changes"] == id);
    }
    first.ends_in_order();
    std::fs::rename(workspace.path("app.db"), workspace.path("moved.db")).expect("the file can be moved");

    let asked = workspace.run(&["checkpoint", "set", "orders", "0000000000000002"]);
    let unverified = ["The source of orders cannot be reached, so the new position was NOT verified (", "app.db"];
    assert!(unverified.iter().all(|part| asked.err.contains(part)), "a person who is asked is told before: {asked:?}");
    let back = moved(&workspace, &["set", "orders", "0000000000000002"]);
    assert_eq!((&back["before"], &back["after"]), (&"0000000000000005".into(), &"0000000000000002".into()));
    let remark = back["remarks"][0].as_str().expect("there is a remark");
    assert!(unverified.iter().all(|part| remark.contains(part)), "{remark}");
    assert!(remark.ends_with("The stream verifies it when it opens, and halts if it cannot resume there."), "{remark}");
    assert_eq!(
        ledger(&workspace),
        Vec::<Value>::new(),
        "positions are compared without the source: nothing is passed over"
    );

    assert_eq!(moved(&workspace, &["set", "orders", "0000000000000004"])["ledgered"], 1);
    assert_eq!(ledger(&workspace)[0]["kind"], "gap", "{:?}", ledger(&workspace));
    let rewound = moved(&workspace, &["rewind", "orders", "--steps", "1"]);
    assert_eq!(rewound["after"], "0000000000000002", "{rewound}");
    let rewound = moved(&workspace, &["rewind", "orders", "--by", "1"]);
    assert_eq!(rewound["after"], "0000000000000001", "{rewound}");
    assert_eq!(ledger(&workspace).len(), 1);

    for arguments in [
        &["set", "orders", "now"][..],
        &["set", "orders", "snapshot"],
        &["set", "orders", "2026-01-22T10:00:00Z"],
        &["rewind", "orders", "--to", "2026-01-22T10:00:00Z"],
        &["rewind", "orders", "--by", "1h"],
    ] {
        let refused = workspace.run(&[&["checkpoint"], arguments, &["--yes"]].concat());
        let cause = "needs the source of stream orders, which cannot be reached: ";
        refused.assert_refused(2, &[cause, "app.db", "`watchkeeper checkpoint history orders`"]);
    }
    let wrong = workspace.run(&["checkpoint", "set", "orders", "abcd", "--yes"]);
    wrong.assert_refused(2, &["abcd is no position of a source of sqlite"]);
    assert_eq!(stream(&status(&workspace), "orders")["checkpoint"]["position"], "0000000000000001");

    std::fs::rename(workspace.path("moved.db"), workspace.path("app.db")).expect("the file can be moved");
    let mut second = workspace.start("second");
    until("it goes on from there", || workspace.delivered() == [1, 2, 3, 4, 5, 2, 3, 4, 5]);
    second.ends_in_order();
}

#[test]
fn a_position_that_nobody_verified_halts_the_stream_if_it_is_wrong() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    workspace.order(1..2);
    until("it has committed", || stream(&status(&workspace), "orders")["checkpoint"]["changes"] == 1);
    first.ends_in_order();
    std::fs::rename(workspace.path("app.db"), workspace.path("moved.db")).expect("the file can be moved");
    moved(&workspace, &["set", "orders", "00000000000000ff"]);
    std::fs::rename(workspace.path("moved.db"), workspace.path("app.db")).expect("the file can be moved");
    let mut second = workspace.start("second");
    second.says(&["halted until a person resumes it", "after the newest one"]);
    second.ends_in_order();

    std::fs::rename(workspace.path("app.db"), workspace.path("moved.db")).expect("the file can be moved");
    let reset = moved(&workspace, &["reset", "orders"]);
    assert!(reset["after"].is_null() && reset["lifted"]["cause"].is_string(), "{reset}");
    std::fs::rename(workspace.path("moved.db"), workspace.path("app.db")).expect("the file can be moved");
    let mut third = workspace.start("third");
    until("it begins where its settings say", || workspace.delivered() == [1, 1]);
    third.ends_in_order();
}

#[test]
fn a_stream_that_has_not_committed_needs_its_source_to_be_moved() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    std::fs::rename(workspace.path("app.db"), workspace.path("moved.db")).expect("the file can be moved");
    let refused = workspace.run(&["checkpoint", "set", "orders", "0000000000000001", "--yes"]);
    let cause = "before the stream has committed one, needs the source of stream orders, which cannot be reached: ";
    refused.assert_refused(2, &[cause, "app.db"]);
}
