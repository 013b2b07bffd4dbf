//! Snapshots that are broken off, and how they are begun anew.

use rustix::process::Signal;
use serde_json::Value;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::lost::is_streaming;
use super::sql;
use crate::workspace::{Workspace, until};

/// So many rows exist before a stream begins.
const ROWS: usize = 1_500;

/// How often the program is killed in the middle of a snapshot.
const DEATHS: usize = 4;

/// A shop with orders that exist, and a slow target for them.
struct Shop {
    _server: Server,
    source: String,
    target: String,
}

impl Shop {
    fn new(version: Version, columns: &str, delay: &str) -> Self {
        let server = Server::start(version);
        let admin = server.url("postgres");
        sql(&admin, "CREATE DATABASE shop STRATEGY wal_log");
        sql(&admin, "CREATE DATABASE reports STRATEGY wal_log");
        let (source, target) = (server.url("shop"), server.url("reports"));
        let rows = format!("INSERT INTO orders SELECT g, 'rope' FROM generate_series(1, {ROWS}) g");
        sql(&source, &format!("CREATE TABLE orders (id bigint PRIMARY KEY, item text); {rows}"));
        let table = format!("CREATE TABLE copy (id bigint PRIMARY KEY, item text{columns})");
        let slowly = format!("BEGIN {delay} RETURN NEW; END");
        let function = format!("CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ {slowly} $$");
        let trigger = "CREATE TRIGGER slowly BEFORE INSERT ON copy FOR EACH ROW EXECUTE FUNCTION slowly()";
        sql(&target, &format!("{table}; {function}; {trigger}"));
        Self { _server: server, source, target }
    }

    /// A stream into `copy`. Only the checkpoints of `rows` are kept beside it.
    fn workspace(&self, mode: &str, lines: &str) -> Workspace {
        let Self { source, target, .. } = self;
        let store = if mode == "rows" { target } else { source };
        Workspace::with(&format!(
            "[group]\nname = \"shop\"\nstore = \"{store}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n\
             start = \"snapshot\"\n{lines}\n\n[stream.source]\nurl = \"{source}\"\nmode = \"replication\"\n\
             slot = \"orders\"\ntables = [\"orders\"]\n\n[[stream.sink]]\nurl = \"{target}\"\nmode = \"{mode}\"\n\
             table = \"copy\"\n"
        ))
    }

    fn be_quick(&self) {
        sql(&self.target, "ALTER TABLE copy DISABLE TRIGGER slowly");
    }

    fn copied(&self) -> usize {
        sql(&self.target, "SELECT count(*)::text FROM copy")[0].parse().expect("a number")
    }

    /// The ids that exist, and those that the target has.
    fn both(&self) -> (Vec<String>, Vec<String>) {
        let ids = |table: &str| format!("SELECT id::text FROM {table} ORDER BY id");
        (sql(&self.source, &ids("orders")), sql(&self.target, &ids("copy")))
    }
}

/// What `status` tells of the stream.
fn status(workspace: &Workspace) -> Value {
    let status = workspace.run(&["status", "--json"]);
    let reported: Value = serde_json::from_str(&status.out).expect("it is JSON");
    reported["streams"][0].clone()
}

/// Whether the stream stands in the middle of a snapshot, behind a transaction that was read in between.
fn is_behind_a_transaction(workspace: &Workspace) -> bool {
    let status = status(workspace);
    let position = status["checkpoint"]["position"].as_str().expect("it has a position");
    let (of_log, of_snapshot) = position.split_at(32);
    let text: String = (0..of_snapshot.len() / 2)
        .filter_map(|at| u8::from_str_radix(&of_snapshot[2 * at..2 * at + 2], 16).ok())
        .map(char::from)
        .collect();
    &of_log[16..] != "0000000000000000" && text.contains("\"reading\":[")
}

/// Kills the program again and again in the middle of a snapshot, and deletes a row each time. In the end the target has what exists.
fn is_finished(shop: &Shop, workspace: &Workspace) {
    let mut behind = 0;
    for death in 0..DEATHS {
        let before = shop.copied();
        let running = workspace.start("mortal");
        until("some rows arrive", || shop.copied() >= before + 60);
        running.signal(Signal::KILL);
        drop(running);
        behind += usize::from(is_behind_a_transaction(workspace));
        // One that has arrived: the snapshot that comes does not have it.
        let gone = sql(&shop.target, "SELECT min(id)::text FROM copy").remove(0);
        sql(
            &shop.source,
            &format!("DELETE FROM orders WHERE id = {gone}; DELETE FROM orders WHERE id = {}", ROWS - death),
        );
        until("the slot is free", || sql(&shop.source, "SELECT 1 FROM pg_replication_slots WHERE active").is_empty());
    }
    assert!(behind > 0, "no checkpoint was in the middle of a snapshot behind a transaction");
    shop.be_quick();
    let mut last = workspace.start("last");
    sql(&shop.source, "INSERT INTO orders VALUES (99999, 'last')");
    until("the rest arrives", || {
        assert_ne!(status(workspace)["state"], "halted", "{}", status(workspace));
        let (exist, copied) = shop.both();
        exist == copied
    });
    last.ends_in_order();
    let (exist, copied) = shop.both();
    assert_eq!((copied.len(), copied), (ROWS + 1 - 2 * DEATHS, exist));
}

#[test]
fn a_snapshot_into_versioned_rows_is_finished_although_it_is_interrupted() {
    for version in Version::ALL {
        // Lanes are done at different times, so that checkpoints lie in the middle of batches.
        let delay = "IF NEW.id % 50 = 0 THEN PERFORM pg_sleep(0.1); END IF;";
        let shop = Shop::new(version, "", delay);
        let lines = "concurrency = 3\ncheckpoint = { every = \"20ms\" }\nbatch = { rows = 100 }";
        is_finished(&shop, &shop.workspace("versioned_rows", lines));
    }
}

#[test]
fn a_snapshot_into_slow_transactional_rows_is_finished_although_it_is_interrupted() {
    for version in Version::ALL {
        let shop = Shop::new(version, "", "PERFORM pg_sleep(0.005);");
        is_finished(&shop, &shop.workspace("rows", ""));
    }
}

/// A row that the target refuses: the advice is what helps, and the stream goes on from there over any number of restarts.
#[test]
fn a_snapshot_that_halts_at_a_row_goes_on_when_the_target_is_corrected() {
    let shop = Shop::new(Version::V15, ", CONSTRAINT small CHECK (id <> 3)", "");
    let workspace = shop.workspace("rows", "");
    sql(&shop.source, "DELETE FROM orders WHERE id > 5");
    let mut first = workspace.start("first");
    first.says(&["the stream is halted", "WK-REJECTED", "on_reject = ", "watchkeeper resume orders"]);
    assert!(first.seen.iter().all(|line| !line.contains("watchkeeper skip")), "{:#?}", first.seen);
    sql(&shop.source, "INSERT INTO orders VALUES (6, 'late')");
    let refused = workspace.run(&["skip", "orders", "--yes"]);
    refused.assert_refused(
        2,
        &["rows of an unfinished snapshot cannot be skipped one by one", "watchkeeper resume orders"],
    );
    sql(&shop.target, "ALTER TABLE copy DROP CONSTRAINT small");
    let resumed = workspace.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    until("all is copied", || shop.copied() == 6);
    until("nothing is left of the snapshot", || {
        status(&workspace)["checkpoint"]["position"].as_str().is_some_and(|position| position.len() == 32)
    });
    first.ends_in_order();
    for name in ["second", "third"] {
        let mut again = workspace.start(name);
        let id = if name == "second" { 7 } else { 8 };
        until("it reads again", || status(&workspace)["state"] == "running" && is_streaming(&shop.source));
        sql(&shop.source, &format!("INSERT INTO orders VALUES ({id}, 'later')"));
        until("it goes on", || {
            assert_ne!(status(&workspace)["state"], "halted", "{}", status(&workspace));
            shop.copied() == id
        });
        again.ends_in_order();
    }
}

/// Kills the program in the middle of its snapshot, and drops the slot.
fn lose_history(shop: &Shop, workspace: &Workspace) {
    let running = workspace.start("mortal");
    until("some rows arrive", || shop.copied() > 100);
    running.signal(Signal::KILL);
    drop(running);
    assert!(shop.copied() < ROWS, "it was too late");
    drop_slot(shop);
    shop.be_quick();
}

fn drop_slot(shop: &Shop) {
    until("the slot is free", || sql(&shop.source, "SELECT 1 FROM pg_replication_slots WHERE active").is_empty());
    sql(&shop.source, "SELECT pg_drop_replication_slot('orders')");
}

/// A stream whose history is lost in the middle of its snapshot, and that is halted.
fn broken_off(shop: &Shop) -> Workspace {
    let workspace = shop.workspace("rows", "batch = { rows = 100 }");
    lose_history(shop, &workspace);
    let remedy = "`watchkeeper accept-gap orders --to snapshot`";
    workspace.run(&["check"]).assert_found(1, &["is not there any more", "accept-gap orders --to snapshot"]);
    let mut halting = workspace.start("halting");
    halting.says(&["the stream is halted", "is not there any more", remedy]);
    halting.ends_in_order();
    for to in ["now", "oldest"] {
        workspace
            .run(&["accept-gap", "orders", "--to", to, "--yes"])
            .assert_refused(2, &["in the middle of a snapshot", remedy, "--leave-snapshot-unfinished"]);
    }
    assert_eq!(status(&workspace)["state"], "halted");
    workspace
}

/// Runs the stream until its target has what exists.
fn completes(shop: &Shop, workspace: &Workspace) {
    let mut only = workspace.start("only");
    until("everything arrives", || {
        let (exist, copied) = shop.both();
        exist == copied
    });
    sql(&shop.source, "INSERT INTO orders VALUES (99999, 'last')");
    until("what changes arrives, too", || shop.copied() == ROWS + 1);
    only.ends_in_order();
}

#[test]
fn a_snapshot_that_was_broken_off_is_begun_anew() {
    for version in Version::ALL {
        let shop = Shop::new(version, "", "PERFORM pg_sleep(0.002);");
        let workspace = broken_off(&shop);
        let accepted = workspace.run(&["accept-gap", "orders", "--to", "snapshot", "--yes"]);
        assert_eq!(accepted.code, Some(0), "{accepted:?}");
        assert_eq!(workspace.run(&["check"]).code, Some(0));
        completes(&shop, &workspace);
        assert_eq!(status(&workspace)["unfinished_snapshots"], Value::Array(Vec::new()));
        assert_eq!(sql(&shop.target, "SELECT entry ->> 'kind' FROM watchkeeper.ledger"), ["gap"]);
    }
}

#[test]
fn a_snapshot_that_is_left_unfinished_is_reported_until_another_one_is_taken() {
    let shop = Shop::new(Version::V18, "", "PERFORM pg_sleep(0.002);");
    let workspace = broken_off(&shop);
    let leave =
        ["accept-gap", "orders", "--to", "now", "--leave-snapshot-unfinished", "--cause", "in a hurry", "--yes"];
    let accepted = workspace.run(&leave);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let mut only = workspace.start("only");
    until("it goes on", || is_streaming(&shop.source));
    sql(&shop.source, "INSERT INTO orders VALUES (88888, 'later')");
    until("it arrives", || !sql(&shop.target, "SELECT 1 FROM copy WHERE id = 88888").is_empty());
    assert!(shop.copied() < ROWS, "the rest of the snapshot is missing");
    let reported = status(&workspace);
    assert_eq!(
        (&reported["state"], &reported["unfinished_snapshots"][0]["cause"]),
        (&"running".into(), &"in a hurry".into())
    );
    let said = workspace.run(&["status"]);
    let line = said.out.lines().find(|line| line.contains("incomplete")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(line.contains("in a hurry") && line.contains("watchkeeper checkpoint set orders snapshot"), "{line}");
    let set = workspace.run(&["checkpoint", "set", "orders", "snapshot", "--yes"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    until("everything arrives", || {
        let (exist, copied) = shop.both();
        exist == copied
    });
    assert_eq!(status(&workspace)["unfinished_snapshots"], Value::Array(Vec::new()));
    only.ends_in_order();
}

/// The policy does not ask: what it leaves out is told, and repaired as soon as the policy is another one.
#[test]
fn a_snapshot_that_the_policy_leaves_unfinished_is_reported_until_another_one_is_taken() {
    let shop = Shop::new(Version::V18, "", "PERFORM pg_sleep(0.002);");
    let lines = |policy: &str| format!("on_history_lost = \"{policy}\"\nbatch = {{ rows = 100 }}");
    let workspace = shop.workspace("rows", &lines("gap_to_now"));
    lose_history(&shop, &workspace);
    let mut only = workspace.start("only");
    only.says(&["history is lost; going on as configured, with a gap"]);
    until("it goes on", || is_streaming(&shop.source));
    let kinds = || sql(&shop.target, "SELECT entry ->> 'kind' FROM watchkeeper.ledger ORDER BY number");
    assert_eq!(kinds(), ["unfinished-snapshot"]);
    assert_eq!(status(&workspace)["unfinished_snapshots"].as_array().map(Vec::len), Some(1));
    only.ends_in_order();
    assert!(shop.copied() < ROWS, "the rest of the snapshot is missing");
    drop_slot(&shop);
    let config = std::fs::read_to_string(workspace.path("watchkeeper.toml")).expect("the desk has a configuration");
    workspace.write("watchkeeper.toml", &config.replace("gap_to_now", "snapshot"));
    completes(&shop, &workspace);
    assert_eq!(kinds(), ["unfinished-snapshot", "gap"]);
    assert_eq!(status(&workspace)["unfinished_snapshots"], Value::Array(Vec::new()));
}
