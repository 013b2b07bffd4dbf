//! How the program ends, and what it says on the way.

use rustix::process::Signal;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace};

#[test]
fn an_interrupt_drains_and_releases_like_a_termination() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut running = workspace.start("only");
    running.says(&["to=running"]);
    workspace.order(0..50);
    running.signal(Signal::INT);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    let mut next = workspace.start("next");
    next.says(&["to=running"]);
    crate::workspace::until("all have arrived", || workspace.delivered().len() >= 50);
    next.ends_in_order();
    assert_eq!(workspace.delivered(), Vec::from_iter(0..50), "what was drained does not come again");
}

#[test]
fn a_second_signal_ends_at_once() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
        let mut running = workspace.start("only");
        running.says(&["to=running"]);
        // Nothing can be released while another writer has the store.
        let store = rusqlite::Connection::open(workspace.path("state.db")).expect("the store is a database");
        store.busy_timeout(crate::workspace::PATIENCE).expect("a time-out can be set");
        store.execute_batch("BEGIN IMMEDIATE").expect("the store can be locked");
        running.signal(Signal::TERM);
        running.says(&["draining and releasing", "SIGTERM"]);
        // A signal that comes with the first is the same one: this is sent until it counts.
        crate::workspace::until("it has ended", || {
            running.signal(signal);
            running.has_ended()
        });
        assert_eq!(running.ends(), Some(code), "{:#?}", running.seen);
    }
}

#[test]
fn a_drain_that_is_cut_off_ends_with_an_error_that_says_what_was_abandoned() {
    let file = GOOD.replace("lease = \"30s\"", "lease = \"30s\"\nshutdown_grace = \"500ms\"");
    let sink = "[[stream.sink]]\nname = \"copy\"\nurl = \"sqlite:out.db\"\ntable = \"events\"\n";
    let workspace = Workspace::with(&format!("{file}{sink}"));
    let mut running = workspace.start("only");
    running.says(&["to=running"]);
    let target = rusqlite::Connection::open(workspace.path("out.db")).expect("the target is a database");
    target.busy_timeout(crate::workspace::PATIENCE).expect("a time-out can be set");
    let arrived = |count: i64| {
        let counted = target.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0));
        counted.is_ok_and(|found| found == count)
    };
    workspace.order(0..1);
    crate::workspace::until("the first one arrives", || arrived(1));
    // Nothing can be delivered while another writer has the target.
    target.execute_batch("BEGIN IMMEDIATE").expect("it can be locked");
    workspace.order(1..7);
    running.says(&["a transaction failed"]);
    running.signal(Signal::TERM);
    assert_eq!(running.ends(), Some(1), "{:#?}", running.seen);
    let last = running.seen.last().expect("it says why");
    for part in [
        "error: the shutdown was not completed: stream orders: ",
        "shutdown_grace of 500ms",
        "changes that were read",
        "]; ",
    ] {
        assert!(last.contains(part), "{part:?} is not in {last:?}");
    }
    target.execute_batch("ROLLBACK").expect("it can be unlocked");
    let mut next = workspace.start("next");
    crate::workspace::until("what was abandoned is delivered by the next one", || arrived(7));
    next.ends_in_order();
}

#[test]
fn run_in_json_logs_objects_whose_epochs_are_numbers() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    first.says(&["to=running"]);
    let mut second = Running::start(workspace.command().args(["run", "--json"]));
    let line = second.says(&["\"standing by\"", "\"holder\":\"first\""]);
    let reported: serde_json::Value = serde_json::from_str(&line).expect("every line is an object");
    assert_eq!(reported["epoch"], 1);
    second.ends_in_order();
    first.ends_in_order();
}

#[test]
fn logs_can_be_objects_with_stream_epoch_and_cause() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut running = Running::start(workspace.command().args(["run", "--log-format", "json"]));
    running.says(&["\"to\":\"running\""]);
    running.ends_in_order();
    let objects: Vec<serde_json::Value> =
        running.seen.iter().map(|line| serde_json::from_str(line).expect("every line is an object")).collect();
    let states: Vec<_> = objects.iter().filter(|object| object["message"] == "state").collect();
    let way: Vec<_> = states.iter().map(|state| state["to"].as_str().expect("a state has a name")).collect();
    assert_eq!(way, ["connecting", "running", "connecting", "stopped"]);
    assert_eq!((&states[1]["stream"], &states[1]["epoch"]), (&"orders".into(), &1.into()));
    assert!(states.iter().all(|state| state["cause"].is_string()), "{states:?}");
}

#[test]
fn less_can_be_logged_and_what_is_no_level_is_refused() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let refused = workspace.run(&["run", "--log", "loud=ly"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--log: ") && refused.err.contains("; write error"), "{refused:?}");
    let mut running = Running::start(workspace.command().args(["run", "--log", "info,watchkeeper_engine=warn"]));
    running.says(&["started"]);
    workspace.order(0..1);
    crate::workspace::until("it has arrived", || workspace.delivered() == [0]);
    running.ends_in_order();
    assert!(!running.seen.iter().any(|line| line.contains("to=running")), "{:#?}", running.seen);
}

#[test]
fn a_store_that_is_busy_is_waited_for_with_one_line() {
    let workspace = Workspace::with(
        &format!("{GOOD}{INTO_FILES}")
            .replace("store = \"sqlite:state.db\"", "store = { url = \"sqlite:state.db\", busy = \"10ms\" }"),
    );
    let store = rusqlite::Connection::open(workspace.path("state.db")).expect("a database can be made");
    store.execute_batch("PRAGMA journal_mode=WAL; BEGIN IMMEDIATE; CREATE TABLE mine(a)").expect("it can be locked");
    let mut running = workspace.start("only");
    running.says(&["the group's store cannot be opened yet", "[WK-UNAVAILABLE]; "]);
    store.execute_batch("COMMIT").expect("it can be unlocked");
    running.says(&["to=running"]);
    running.ends_in_order();
    let reported = running.seen.iter().filter(|line| line.contains("cannot be opened yet")).count();
    assert_eq!(reported, 1, "{:#?}", running.seen);
}

#[test]
fn a_stream_that_halts_is_reported_with_what_to_do_and_the_program_stays() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut running = workspace.start("only");
    running.says(&["to=running"]);
    workspace.order(0..3);
    crate::workspace::until("all have arrived", || workspace.delivered().len() == 3);
    running.ends_in_order();
    // As if the log had been cut off while nobody watched.
    workspace.order(3..6);
    workspace
        .sql("DELETE FROM watchkeeper_changes; UPDATE watchkeeper_meta SET value = 6 WHERE name = 'pruned_through'");
    let mut running = workspace.start("only");
    running.says(&["halted until a person resumes it", "[WK-POSITION-LOST]; accept the gap"]);
    running.says(&["to=stopped"]);
    running.ends_in_order();
    assert_eq!(workspace.delivered(), [0, 1, 2], "nothing is passed over silently");
}

#[test]
fn a_table_that_is_rebuilt_halts_its_stream_until_a_person_accepts_the_gap() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut running = workspace.start("only");
    running.says(&["to=running"]);
    workspace.order(0..3);
    crate::workspace::until("all have arrived", || workspace.delivered().len() == 3);
    workspace.sql("ALTER TABLE orders ADD COLUMN note TEXT");
    running.says(&["WARN", "orders has columns that its changes lack: note"]);
    workspace.sql(
        "BEGIN; CREATE TABLE anew(id INTEGER PRIMARY KEY, item TEXT NOT NULL);
        INSERT INTO anew SELECT id, item FROM orders; DROP TABLE orders; ALTER TABLE anew RENAME TO orders; COMMIT",
    );
    let reported =
        ["orders is no longer logged: its triggers are gone", "[WK-POSITION-LOST]; ", "app.db --table orders"];
    running.says(&reported);
    running.says(&["to=stopped"]);
    workspace.order(3..6);
    let checked = workspace.run(&["check"]);
    assert!(checked.code != Some(0) && checked.out.contains(reported[0]), "{checked:?}");
    let refused = workspace.run(&["accept-gap", "orders", "--yes"]);
    assert!(refused.code != Some(0) && refused.err.contains(reported[0]), "{refused:?}");

    workspace.log_orders();
    workspace.order(6..9);
    let accepted = workspace.run(&["accept-gap", "orders", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    crate::workspace::until("what came after has arrived", || workspace.delivered().len() >= 6);
    running.ends_in_order();
    assert_eq!(workspace.delivered(), [0, 1, 2, 6, 7, 8]);
}

#[test]
fn a_log_is_not_removed_while_a_stream_has_to_read_it() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut running = workspace.start("only");
    running.says(&["to=running"]);
    workspace.order(0..1);
    crate::workspace::until("it has arrived", || workspace.delivered().len() == 1);
    running.ends_in_order();
    workspace.order(1..3);
    let uninstall = ["sqlite", "uninstall", "--db", "app.db", "--table", "orders"];
    let refused = workspace.run(&uninstall);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("shop/orders has 2 changes to read") && refused.err.contains("--yes"), "{refused:?}");
    let done = workspace.run(&[&uninstall[..], &["--yes"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
}
