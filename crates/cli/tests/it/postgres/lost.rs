//! What `on_history_lost` does after the server has really invalidated the slot.

use serde_json::Value;
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::{delivered, order, sql};
use crate::workspace::{Workspace, until};

/// A server that gives up a slot as soon as a few segments of the log were written after it.
fn forgetful(version: Version) -> Server {
    let mut settings = ServerSettings::new(version);
    let lines = ["max_slot_wal_keep_size = '1MB'", "min_wal_size = '32MB'", "max_wal_size = '32MB'"];
    settings.config.extend(lines.map(str::to_owned));
    Server::with(&settings)
}

/// A stream of the table `orders` into the table `events`.
fn reading(url: &str, policy: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nstart = \"oldest\"\n\
         on_history_lost = \"{policy}\"\n\n[stream.source]\nurl = \"{url}\"\nmode = \"replication\"\nslot = \"orders\"\n\
         tables = [\"orders\"]\n\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ))
}

/// Whether the slot is read, and not that which was lost.
pub(super) fn is_streaming(url: &str) -> bool {
    let read = "SELECT 1 FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
        WHERE s.slot_name = 'orders' AND s.wal_status <> 'lost' AND r.state = 'streaming'";
    sql(url, read).len() == 1
}

/// Writes to the log until the server has given up the slot, which nobody reads.
pub(super) fn invalidate(url: &str) {
    until("the server gives it up", || {
        sql(url, "SELECT pg_switch_wal()");
        sql(url, "CREATE TABLE filler (x int); DROP TABLE filler");
        sql(url, "CHECKPOINT");
        sql(url, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'orders'") == ["lost"]
    });
}

/// Delivers order 1, loses the history in which orders 2 to 4 were made, and goes on with orders 5 to 7. All that was delivered.
fn goes_on(version: Version, policy: &str) -> Vec<u64> {
    let server = forgetful(version);
    sql(&server.url("postgres"), "CREATE DATABASE shop STRATEGY wal_log");
    let url = server.url("shop");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, item text)");
    let workspace = reading(&url, policy);
    let mut first = workspace.start("first");
    until("the slot is read", || is_streaming(&url));
    order(&url, 1..2);
    until("it arrives", || delivered(&url) == [1]);
    first.ends_in_order();
    order(&url, 2..5);
    invalidate(&url);
    let checked = workspace.run(&["check"]);
    assert!(checked.out.contains("as on_history_lost says"), "{checked:?}");
    let mut second = workspace.start("second");
    second.says(&["history is lost; going on as configured, with a gap", "was invalidated by the server"]);
    until("a new slot is read", || is_streaming(&url));
    order(&url, 5..8);
    until("what follows arrives", || delivered(&url).contains(&7));
    second.ends_in_order();
    let noted = sql(&url, "SELECT concat_ws(' ', entry ->> 'kind', entry ->> 'cause') FROM watchkeeper.ledger");
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert!(noted[0].starts_with("gap ") && noted[0].contains("was invalidated by the server"), "{noted:?}");
    let status = workspace.run(&["status", "--json"]);
    let reported: Value = serde_json::from_str(&status.out).expect("it is JSON");
    assert_eq!(reported["streams"][0]["unfinished_snapshots"], Value::Array(Vec::new()), "{reported}");
    // The gap was told to the target, too.
    assert_eq!(sql(&url, "SELECT count(*)::text FROM events WHERE operation = 'gap'"), ["1"]);
    // It is a stream like any other again.
    let mut third = workspace.start("third");
    order(&url, 8..9);
    until("it goes on", || delivered(&url).last() == Some(&8));
    third.ends_in_order();
    delivered(&url)
}

#[test]
fn a_gap_goes_on_with_the_oldest_change_that_a_new_slot_has() {
    for version in Version::ALL {
        assert_eq!(goes_on(version, "gap"), [1, 5, 6, 7, 8], "{version:?}");
    }
}

#[test]
fn a_gap_goes_on_with_what_happens_from_now_on() {
    for version in Version::ALL {
        assert_eq!(goes_on(version, "gap_to_now"), [1, 5, 6, 7, 8], "{version:?}");
    }
}

#[test]
fn a_gap_is_repaired_by_a_snapshot() {
    for version in Version::ALL {
        assert_eq!(goes_on(version, "snapshot"), [1, 1, 2, 3, 4, 5, 6, 7, 8], "{version:?}");
    }
}
