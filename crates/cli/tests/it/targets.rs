//! Tables of sinks that are removed while streams write to them.

use std::ops::Range;

use serde_json::Value;

use crate::postgres;
use crate::workspace::{GOOD, INTO_FILES, PATIENCE, Workspace, until};

const MIRROR: &str = "[[stream.sink]]\nurl = \"sqlite:mirror.db\"\ntable = \"orders_copy\"\nmode = \"mirror\"\n";

/// A stream into these sinks, with instances that try again soon.
fn into(sinks: &str) -> String {
    format!("{}{sinks}", GOOD.replace("30s", "1s"))
}

/// Runs statements on the sink's file.
fn target(workspace: &Workspace, sql: &str) {
    let target = rusqlite::Connection::open(workspace.path("mirror.db")).expect("the target is a database");
    target.busy_timeout(PATIENCE).expect("a time-out can be set");
    target.execute_batch(sql).expect("the statements are good");
}

/// How many rows of the sink's file this query counts; none as long as there is no such table.
fn count(workspace: &Workspace, query: &str) -> i64 {
    let Ok(target) = rusqlite::Connection::open(workspace.path("mirror.db")) else { return 0 };
    target.busy_timeout(PATIENCE).expect("a time-out can be set");
    target.query_row(query, [], |row| row.get(0)).unwrap_or(0)
}

fn copied(workspace: &Workspace) -> i64 {
    count(workspace, "SELECT count(*) FROM orders_copy")
}

fn tables(workspace: &Workspace) -> i64 {
    count(workspace, "SELECT count(*) FROM sqlite_schema WHERE name = 'orders_copy'")
}

/// The stream as `status` shows it.
fn shown(workspace: &Workspace) -> Value {
    let status = workspace.run(&["status", "--json"]);
    let all: Value = serde_json::from_str(&status.out).expect("it is JSON");
    all["streams"][0].clone()
}

/// Waits until the stream is halted because a table is missing that it has written to.
fn until_missing(workspace: &Workspace, parts: &[&str]) {
    until("the stream is halted", || shown(workspace)["state"] == "halted");
    let status = workspace.run(&["status", "--exit-code"]);
    assert_eq!(status.code, Some(4), "{status:?}");
    let parts = ["is missing, although stream \"orders\" has written to it", "checkpoint reset orders"]
        .into_iter()
        .chain(parts.iter().copied());
    parts.for_each(|part| assert!(status.out.contains(part), "{part:?} is not in {status:?}"));
}

#[test]
fn a_mirror_in_sqlite_that_is_dropped_is_not_made_anew() {
    let workspace = Workspace::with(&into(MIRROR));
    let (mut first, mut second) = (workspace.start("first"), workspace.start("second"));
    workspace.order(0..5);
    until("they arrive", || copied(&workspace) == 5);
    target(&workspace, "DROP TABLE orders_copy");
    workspace.order(5..7);
    until_missing(&workspace, &["table orders_copy in mirror.db"]);
    assert_eq!(tables(&workspace), 0, "nothing is made anew");

    let resumed = workspace.run(&["resume", "orders"]);
    resumed.assert_refused(1, &["orders is not running: it halted again at once", "orders_copy", "[WK-CORRUPT]"]);
    until_missing(&workspace, &[]);
    assert_eq!(tables(&workspace), 0, "also not when the stream is resumed");

    let reset = workspace.run(&["checkpoint", "reset", "orders", "--yes"]);
    assert_eq!(reset.code, Some(0), "{reset:?}");
    workspace.order(7..8);
    until("what the source still has is delivered", || {
        count(&workspace, "SELECT count(*) FROM orders_copy WHERE body LIKE '%\"id\":7%'") == 1
    });
    for instance in [&mut first, &mut second] {
        instance.ends_in_order();
    }
    // After the reset it is known as before.
    target(&workspace, "DROP TABLE orders_copy");
    let _again = workspace.start("again");
    workspace.order(8..9);
    until_missing(&workspace, &["table orders_copy in mirror.db"]);
    assert_eq!(tables(&workspace), 0, "nothing is made anew");
}

#[test]
fn a_sink_that_an_old_stream_is_given_has_its_table_made() {
    let workspace = Workspace::with(&into(INTO_FILES));
    let mut only = workspace.start("only");
    workspace.order(0..3);
    until("they arrive", || workspace.delivered() == [0, 1, 2]);
    only.ends_in_order();

    let events = "[[stream.sink]]\nurl = \"sqlite:state.db\"\ntable = \"events\"\n";
    workspace.write("watchkeeper.toml", &into(&format!("{INTO_FILES}{events}")));
    let mut only = workspace.start("only");
    workspace.order(3..5);
    let arrived = || {
        let store = rusqlite::Connection::open(workspace.path("state.db")).expect("the store is a database");
        store.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).unwrap_or(0)
    };
    until("they arrive in the new table", || arrived() == 2);
    only.ends_in_order();
}

/// A stream from a table of PostgreSQL into its sink in the same database.
fn in_postgres(name: &str, sink: &str) -> (String, Workspace) {
    let url = postgres::database(name);
    postgres::sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY)");
    let workspace = Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"1s\"\n\n[[stream]]\nname = \"orders\"\n\
         start = \"snapshot\"\ncheckpoint = {{ every = \"50ms\" }}\n\n\
         [stream.source]\nurl = \"{url}\"\ntables = [\"orders\"]\n\
         mode = \"replication\"\nslot = \"{name}\"\n\n\
         [[stream.sink]]\nurl = \"{url}\"\ntable = \"target\"\n{sink}"
    ));
    (url, workspace)
}

fn is_made_only_by_a_reset(name: &str, sink: &str, rows: Range<u64>) {
    let (url, workspace) = in_postgres(name, sink);
    let there = || postgres::sql(&url, "SELECT to_regclass('target') IS NOT NULL") == ["t"];
    let keys = || postgres::sql(&url, "SELECT count(DISTINCT key) FROM target").join("");
    postgres::order(&url, rows.clone());
    let mut only = workspace.start("only");
    until("they arrive", || there() && keys() == rows.end.to_string());
    until("the snapshot is committed", || shown(&workspace)["checkpoint"]["changes"] == rows.end);
    postgres::sql(&url, "DROP TABLE target");
    postgres::order(&url, rows.end..rows.end + 2);
    until_missing(&workspace, &["table target in "]);
    assert!(!there(), "nothing is made anew");
    let reset = workspace.run(&["checkpoint", "reset", "orders", "--yes"]);
    assert_eq!(reset.code, Some(0), "{reset:?}");
    until("all are delivered again", || there() && keys() == (rows.end + 2).to_string());
    only.ends_in_order();
}

#[test]
fn events_in_postgres_that_are_dropped_are_not_made_anew() {
    is_made_only_by_a_reset("dropped_events", "", 0..3);
}

#[test]
fn a_mirror_in_postgres_that_is_dropped_is_not_made_anew() {
    is_made_only_by_a_reset("dropped_mirror", "mode = \"mirror\"\n", 0..3);
}

#[test]
fn a_versioned_mirror_in_postgres_that_is_dropped_is_not_made_anew() {
    is_made_only_by_a_reset("dropped_versioned", "mode = \"versioned\"\n", 0..3);
}

#[test]
fn a_file_that_is_removed_while_it_is_written_is_named() {
    let workspace = Workspace::with(&into(INTO_FILES));
    let mut only = workspace.start("only");
    workspace.order(0..3);
    until("they arrive", || workspace.delivered() == [0, 1, 2]);
    until("they are committed", || shown(&workspace)["checkpoint"]["changes"] == 3);
    std::fs::remove_file(workspace.path("orders-000001.ndjson")).expect("it is there");
    workspace.order(3..5);
    only.says(&["WARN", "orders-000001.ndjson", "lines written to it up to now are gone"]);
    only.says(&["orders-000001.ndjson was removed or replaced while it was written"]);
    until("the rest arrives in a new file", || workspace.delivered() == [3, 4]);
    only.ends_in_order();
}
