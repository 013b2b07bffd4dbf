//! Instances that are not heard of, stores that take nothing, and what people are told of either.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, assert_no_repetition, until};

/// [`GOOD`] with heartbeats that are missed soon, and leases that end soon.
fn brisk() -> String {
    GOOD.replace("lease = \"30s\"", "lease = \"2s\"\nheartbeat_every = \"300ms\"") + INTO_FILES
}

fn shown(workspace: &Workspace) -> Value {
    let answer = workspace.run(&["status", "--json"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    serde_json::from_str(&answer.out).expect("it is JSON")
}

#[test]
fn a_stream_whose_instances_are_all_silent_is_unmanned() {
    let workspace = Workspace::with(&brisk());
    let only = workspace.start("only");
    until("it runs", || shown(&workspace)["streams"][0]["state"] == "running");
    drop(only);
    until("it is unmanned", || shown(&workspace)["streams"][0]["state"] == "unmanned");
    let reported = shown(&workspace);
    let (orders, member) = (&reported["streams"][0], &reported["members"][0]);
    assert_eq!((&orders["standing_by"], &orders["health"]), (&serde_json::json!([]), &"down".into()), "{reported}");
    assert_eq!((&member["healthy"], &member["heartbeat_millis"]), (&false.into(), &300.into()), "{reported}");
    assert_eq!(workspace.run(&["status", "--exit-code"]).code, Some(4));
    let text = workspace.run(&["status"]).out;
    assert!(text.contains("orders: unmanned") && text.contains("only: silent for "), "{text}");
    assert!(text.contains(", expected every 300 ms") && !text.contains("stands by"), "{text}");
    let why = workspace.run(&["why", "orders"]).out;
    assert!(why.contains("unmanned") && why.contains("only is silent for "), "{why}");
    let checked = workspace.run(&["check"]);
    let line = "warning: instance: no running instance has this stream: only is silent for ";
    assert!(checked.code == Some(0) && checked.out.contains(line), "{checked:?}");
    assert!(!checked.out.contains("all is well"), "{checked:?}");
}

#[test]
fn an_instance_that_hangs_does_not_stand_by() {
    let workspace = Workspace::with(&brisk());
    let mut first = workspace.start("first");
    until("it runs", || shown(&workspace)["streams"][0]["state"] == "running");
    let mut second = workspace.start("second");
    until("it stands by", || shown(&workspace)["streams"][0]["standing_by"][0] == "second");
    second.signal(Signal::STOP);
    until("nobody counts on it", || shown(&workspace)["streams"][0]["standing_by"] == serde_json::json!([]));
    let text = workspace.run(&["status"]).out;
    assert!(text.contains("  second: silent for "), "{text}");
    assert_eq!(workspace.run(&["check"]).code, Some(0));
    second.signal(Signal::CONT);
    until("it stands by again", || shown(&workspace)["streams"][0]["standing_by"][0] == "second");
    second.ends_in_order();
    first.ends_in_order();
}

#[test]
fn a_check_finds_a_store_that_takes_no_writes() {
    let workspace = Workspace::with(&(GOOD.replace("sqlite:state.db", "sqlite:small/state.db") + INTO_FILES));
    std::fs::create_dir(workspace.path("small")).expect("a folder can be made");
    let mut only = workspace.start("only");
    workspace.order(0..1);
    until("it is delivered", || workspace.delivered() == [0]);
    // It reads and writes all the same, and nothing of the check stays behind.
    workspace.run(&["check"]).assert_well();
    let store = rusqlite::Connection::open(workspace.path("small/state.db")).expect("it can be opened");
    let names = "SELECT count(*) FROM watchkeeper_records WHERE name LIKE '%check%'";
    assert_eq!(store.query_row(names, [], |row| row.get::<_, i64>(0)).expect("it can be read"), 0);
    only.says(&["to=running"]);
    // The same files on a disk without any room, as a process that was killed left them.
    let setup = "cp -r small copy && mount -t tmpfs -o size=2m small small && cp copy/* small/ && \
                 dd if=/dev/zero of=small/ballast bs=4k 2>/dev/null; true";
    let checked = crate::workspace::answer(&mut workspace.command_after(setup, &["check"]));
    checked.assert_found(1, &["store (sqlite)", "it takes no writes", "full"]);
    only.ends_in_order();
}

#[test]
fn a_store_that_does_not_answer_is_logged_once_and_that_it_answers_again_too() {
    let workspace = Workspace::with(&brisk());
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    workspace.order(0..1);
    until("it is delivered", || workspace.delivered() == [0]);
    let store = rusqlite::Connection::open(workspace.path("state.db")).expect("it can be opened");
    store.busy_timeout(crate::workspace::PATIENCE).expect("a time-out can be set");
    store.execute_batch("BEGIN IMMEDIATE").expect("nobody writes for long");
    workspace.order(1..2);
    let lost = only.says(&["to=connecting"]);
    assert!(lost.contains("instance=\"only\""), "{lost}");
    store.execute_batch("ROLLBACK").expect("it has begun");
    let over = only.says(&["INFO", "the store answers again", "after=\""]);
    assert!(over.contains(" s\""), "{over}");
    until("it is delivered when the store answers", || workspace.delivered() == [0, 1]);
    only.ends_in_order();
    assert_no_repetition(&only.seen);
    // Whether a commit fails first, or the lease is lost first, is up to chance: an outage that is logged has an end.
    let count = |what: &str| only.seen.iter().filter(|line| line.contains(what)).count();
    assert_eq!(count("the stream does not deliver"), count("the stream delivers again"), "{:#?}", only.seen);
    let is_named = |line: &&String| line.contains("instance=\"only\"");
    assert!(only.seen.iter().all(|line| is_named(&line)), "{:#?}", only.seen);
    let by_itself =
        only.seen.iter().find(|line| line.contains("standing by stream") && line.contains("holder=\"only\""));
    assert_eq!(by_itself, None, "nobody stands by for itself");
}

#[test]
fn a_stream_that_cannot_be_opened_is_logged_once_and_that_it_delivers_too() {
    let workspace = Workspace::new();
    workspace.write("watchkeeper.toml", &format!("{GOOD}{INTO_FILES}"));
    let mut only = workspace.start("only");
    until("it was tried thrice", || {
        workspace.path("state.db").exists()
            && workspace
                .run(&["status", "--json"])
                .out
                .parse::<Value>()
                .is_ok_and(|reported| reported["streams"][0]["instances"][0]["trouble"]["attempts"].as_u64() >= Some(3))
    });
    workspace.log_orders();
    workspace.order(0..1);
    only.says(&["INFO", "the stream delivers again", "after=\""]);
    only.ends_in_order();
    assert_no_repetition(&only.seen);
    let running = only.seen.iter().filter(|line| line.contains("from=connecting to=running")).count();
    assert_eq!(running, 1, "{:#?}", only.seen);
}

#[test]
fn what_waited_at_the_last_heartbeat_and_is_committed_since_is_not_shown_as_waiting() {
    let config = GOOD.replace("lease = \"30s\"", "lease = \"30s\"\nheartbeat_every = \"1500ms\"");
    let workspace = Workspace::with(&(config.replace("every = \"50ms\"", "every = \"5s\"") + INTO_FILES));
    let mut only = workspace.start("only");
    until("it runs", || shown(&workspace)["streams"][0]["state"] == "running");
    workspace.order(0..1);
    until("it waits", || shown(&workspace)["streams"][0]["undelivered_millis"].is_u64());
    let mut last = Value::Null;
    until("it is committed", || {
        last = shown(&workspace)["streams"][0].clone();
        last["checkpoint"]["changes"] == 1
    });
    assert!(last["undelivered_millis"].is_null() && last["lag_millis"].as_u64().unwrap_or(0) == 0, "{last}");
    only.ends_in_order();
}

#[test]
fn objects_in_the_log_name_the_instance_too() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut command = workspace.command();
    let mut only =
        Running::start(command.args(["run", "--log-format", "json"]).env("WATCHKEEPER__INSTANCE__NAME", "only"));
    only.says(&["\"to\":\"running\""]);
    only.ends_in_order();
    for line in &only.seen {
        let object: Value = serde_json::from_str(line).expect("every line is an object");
        assert_eq!(object["instance"], "only", "{line}");
    }
}

#[test]
fn servers_that_do_not_answer_are_waited_for_at_once_and_reported_in_plain_words() {
    let config = "[group]\nname = \"shop\"\nstore = \"mongodb://127.0.0.1:1/state\"\n\n[[stream]]\nname = \"orders\"\n\
                  source = { url = \"mongodb://127.0.0.1:1/shop\", collection = \"orders\" }\n\n\
                  [[stream.sink]]\nname = \"copy\"\nurl = \"mongodb://127.0.0.1:1/copy\"\ncollection = \"orders\"\n";
    let workspace = Workspace::with(config);
    let began = Instant::now();
    let checked = workspace.run(&["check"]);
    // Each part is waited for ten seconds at most.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    for part in ["store (mongodb)", "source (mongodb)", "sink copy (mongodb)"] {
        checked.assert_found(1, &[part, "127.0.0.1:1: Connection refused"]);
    }
    for internal in ["Topology", "labels", "Kind: ", "os error"] {
        assert!(!checked.out.contains(internal), "{checked:?}");
    }
}

#[test]
fn the_history_is_listed_from_the_newest_checkpoint_also_after_one_was_lost() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let deliver = |ids: std::ops::Range<u64>| {
        let (mut only, last) = (workspace.start("only"), ids.end - 1);
        workspace.order(ids);
        until("all is delivered", || workspace.delivered().last() == Some(&last));
        only.ends_in_order();
    };
    (0..3).for_each(|id| deliver(id..id + 1));
    let position = shown(&workspace)["streams"][0]["checkpoint"]["position"].as_str().expect("it has one").to_owned();
    let store = rusqlite::Connection::open(workspace.path("state.db")).expect("it can be opened");
    store.execute_batch("DELETE FROM watchkeeper_checkpoints").expect("it can be removed");
    let set = workspace.run(&["checkpoint", "set", "orders", &position, "--yes"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    deliver(3..4);
    let listed = workspace.run(&["checkpoint", "history", "orders"]);
    let times: Vec<_> = listed.out.lines().filter(|line| line.contains("  epoch ")).map(|line| &line[..24]).collect();
    let mut sorted = times.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    assert!(times.len() > 2 && times == sorted, "{listed:?}");
    assert!(listed.out.contains("  1 change  epoch "), "{listed:?}");
}
