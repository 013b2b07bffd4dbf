//! Bad input on PostgreSQL: each has a cause in one line, a remedy and an exit code, and leaves the checkpoint as it is.

use serde_json::Value;
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::{database, delivered, from_orders, order, shared, sql};
use crate::workspace::{Workspace, until};

/// A stream of the table `orders`, and where it is.
struct SourceFixture {
    workspace: Workspace,
    url: String,
}

const REPLICATION: &str = "mode = \"replication\"\nslot = \"SLOT\"\n";

impl SourceFixture {
    /// The write-ahead log of this database, read through a slot with its name.
    fn replicated(url: &str) -> Self {
        let name = url.rsplit('/').next().expect("a URL names its database");
        Self { workspace: from_orders(url, &REPLICATION.replace("SLOT", name)), url: url.to_owned() }
    }

    /// The log that triggers fill.
    fn logged(url: &str) -> Self {
        let fixture = Self { workspace: from_orders(url, ""), url: url.to_owned() };
        let made = fixture.workspace.run(&["postgres", "install", "--url", url, "--table", "orders"]);
        assert_eq!(made.code, Some(0), "{made:?}");
        fixture
    }

    fn slot(&self) -> &str {
        self.url.rsplit('/').next().expect("a URL names its database")
    }

    fn sql(&self, statements: &str) -> Vec<String> {
        sql(&self.url, statements)
    }

    /// Everything that is committed of the stream, but for its halt.
    fn checkpoint(&self) -> Vec<String> {
        if self.sql("SELECT 1 FROM pg_tables WHERE schemaname = 'watchkeeper' AND tablename = 'checkpoints'").is_empty()
        {
            return Vec::new();
        }
        self.sql(
            "SELECT checkpoint ->> 'position' FROM watchkeeper.checkpoints WHERE checkpoint -> 'position' IS NOT NULL",
        )
    }

    /// Delivers and commits one order, and stops.
    fn stopped(self) -> Self {
        let mut only = self.workspace.start("only");
        let sql = "SELECT count(*)::text FROM pg_replication_slots WHERE active AND confirmed_flush_lsn IS NOT NULL
            AND database = current_database()";
        until("the source is open", || self.desk_is_logged() || self.sql(sql) == ["1"]);
        order(&self.url, 1..2);
        until("it arrives", || delivered(&self.url) == [1]);
        only.ends_in_order();
        assert_eq!(self.checkpoint().len(), 1, "it is committed");
        self
    }

    fn desk_is_logged(&self) -> bool {
        !self.sql("SELECT 1 FROM pg_tables WHERE schemaname = 'watchkeeper' AND tablename = 'log'").is_empty()
    }

    /// Runs the stream, which tells this with a remedy in one line, and leaves its position and what was delivered as they were.
    fn assert_stays(&self, parts: &[&str]) {
        let (before, had) = (self.checkpoint(), delivered(&self.url));
        let mut only = self.workspace.start("only");
        let line = only.says(parts);
        assert!(line.contains("; "), "no remedy: {line}");
        only.ends_in_order();
        assert_eq!(self.checkpoint(), before);
        assert_eq!(delivered(&self.url), had);
    }

    /// The same, after which nobody runs it until a person resumes it. `check` tells both.
    fn assert_halts(&self, parts: &[&str]) {
        self.assert_found(1, &[&["position (postgres): "], parts].concat());
        self.assert_stays(parts);
        self.assert_found(1, &["the stream stands halted", parts[0], "watchkeeper resume orders"]);
        let status = self.workspace.run(&["status", "--json"]);
        let reported: Value = serde_json::from_str(&status.out).expect("it is JSON");
        assert_eq!(reported["streams"][0]["state"], "halted", "{reported}");
    }

    /// Asserts that `check` ends with this code and names an error with these parts and a remedy.
    fn assert_found(&self, code: i32, parts: &[&str]) {
        self.workspace.run(&["check"]).assert_found(code, parts);
    }
}

/// A database with the table that is read.
fn orders(name: &str) -> String {
    let url = database(name);
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, item text)");
    url
}

/// A server of its own with these settings, and a database in it with the table that is read.
fn server(lines: &[&str]) -> (Server, String) {
    let mut settings = ServerSettings::new(Version::V15);
    settings.config.extend(lines.iter().map(|line| (*line).to_owned()));
    let server = Server::with(&settings);
    sql(&server.url("postgres"), "CREATE DATABASE shop STRATEGY wal_log");
    let url = server.url("shop");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, item text)");
    (server, url)
}

#[test]
fn a_server_whose_wal_level_is_not_logical() {
    let (_server, url) = server(&["wal_level = replica"]);
    let fixture = SourceFixture::replicated(&url);
    let parts = ["wal_level is replica", "ALTER SYSTEM SET wal_level = logical"];
    fixture.assert_found(2, &parts);
    fixture.assert_stays(&parts);
    assert_eq!(fixture.checkpoint(), Vec::<String>::new());
}

#[test]
fn a_slot_that_is_missing() {
    let fixture = SourceFixture::replicated(&orders("slot_missing")).stopped();
    fixture.sql(&format!("SELECT pg_drop_replication_slot('{}')", fixture.slot()));
    fixture.assert_halts(&["is not there any more", "WK-POSITION-LOST", "watchkeeper accept-gap"]);
}

#[test]
fn a_check_takes_nothing_from_one_that_runs() {
    let fixture = SourceFixture::replicated(&orders("looked_at")).stopped();
    let mut only = fixture.workspace.start("only");
    let reader =
        || fixture.sql("SELECT active_pid::text FROM pg_replication_slots WHERE database = current_database()");
    until("the slot is in use", || reader().len() == 1);
    let (before, slots) = (reader(), "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()");
    let checked = fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert_eq!((reader(), fixture.sql(slots).len()), (before, 1), "{checked:?}");
    order(&fixture.url, 2..3);
    until("it goes on", || delivered(&fixture.url) == [1, 2]);
    only.ends_in_order();
}

#[test]
fn an_operation_time_makes_no_slot() {
    for fixture in [SourceFixture::replicated(&orders("untimely")), SourceFixture::logged(&orders("untimely_log"))] {
        let file = std::fs::read_to_string(fixture.workspace.path("watchkeeper.toml")).expect("it is there");
        fixture.workspace.write("watchkeeper.toml", &file.replace("\"oldest\"", "\"1700000000:7\""));
        let parts = ["has no operation times", "WK-CONFIG", "start at a time such as"];
        let parts = [&["watchkeeper.toml:"][..], &parts].concat();
        fixture.assert_found(2, &parts);
        fixture.workspace.run(&["check", "--offline"]).assert_found(2, &parts);
        fixture.workspace.run(&["run", "--log", "error"]).assert_refused(2, &parts);
        let slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()";
        assert_eq!((fixture.sql(slots), fixture.checkpoint()), (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_slot_that_was_made_anew() {
    let fixture = SourceFixture::replicated(&orders("slot_anew")).stopped();
    let slot = fixture.slot();
    fixture.sql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    order(&fixture.url, 2..3);
    fixture.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    fixture.assert_halts(&["has passed", "WK-POSITION-LOST", "the slot was made anew"]);
    // A person accepts it: the gap stands in the ledger, and it goes on.
    let accepted = fixture.workspace.run(&["accept-gap", "orders", "--to", "now", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let noted = fixture.sql("SELECT entry ->> 'kind' FROM watchkeeper.ledger");
    assert_eq!(noted.len(), 1, "{noted:?}");
    let mut only = fixture.workspace.start("only");
    until("the slot is in use", || {
        fixture.sql(&format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active")).len() == 1
    });
    order(&fixture.url, 3..4);
    until("it goes on", || delivered(&fixture.url).contains(&3));
    only.ends_in_order();
}

#[test]
fn a_slot_that_the_server_has_invalidated() {
    let (_server, url) = server(&["max_slot_wal_keep_size = '1MB'", "min_wal_size = '32MB'", "max_wal_size = '32MB'"]);
    let fixture = SourceFixture::replicated(&url).stopped();
    until("the server gives it up", || {
        fixture.sql("SELECT pg_switch_wal()");
        fixture.sql("CREATE TABLE filler (x int)");
        fixture.sql("DROP TABLE filler");
        fixture.sql("CHECKPOINT");
        fixture.sql("SELECT wal_status FROM pg_replication_slots") == ["lost"]
    });
    fixture.assert_halts(&["was invalidated by the server", "WK-POSITION-LOST", "watchkeeper accept-gap"]);
}

#[test]
fn a_rewind_below_the_slot() {
    let fixture = SourceFixture::replicated(&orders("rewound")).stopped();
    let mut only = fixture.workspace.start("only");
    order(&fixture.url, 2..6);
    until("they arrive", || delivered(&fixture.url).len() == 5);
    only.ends_in_order();
    let before = fixture.checkpoint();
    // Positions that the slot has confirmed are not kept by the server, unless `rewind` asks for it.
    let steps = fixture.workspace.run(&["checkpoint", "rewind", "orders", "--steps", "1", "--yes"]);
    steps.assert_refused(1, &["has passed", "WK-POSITION-LOST"]);
    assert_eq!(fixture.checkpoint(), before);
    let mut only = fixture.workspace.start("only");
    order(&fixture.url, 6..7);
    until("it goes on from where it stood", || delivered(&fixture.url).len() == 6);
    only.ends_in_order();
    assert_eq!(delivered(&fixture.url), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_dump_that_was_restored_in_the_place_of_the_log() {
    let fixture = SourceFixture::logged(&orders("restored")).stopped();
    fixture.sql(
        "CREATE TABLE watchkeeper.copy (LIKE watchkeeper.log INCLUDING ALL);
         INSERT INTO watchkeeper.copy OVERRIDING SYSTEM VALUE SELECT * FROM watchkeeper.log;
         DROP TABLE watchkeeper.log; ALTER TABLE watchkeeper.copy RENAME TO log",
    );
    fixture.assert_halts(&["was a dump restored?", "WK-POSITION-LOST"]);
}

#[test]
fn a_backup_that_was_restored_in_the_place_of_the_server() {
    let (server, url) = server(&[]);
    // The group's store is elsewhere: it has not gone back.
    let store = database("backup_store");
    let workspace = |source: &str| {
        Workspace::with(&format!(
            "[group]\nname = \"shop\"\nstore = \"{store}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n\
             start = \"oldest\"\n\n[stream.source]\nurl = \"{source}\"\ntables = [\"orders\"]\n\
             mode = \"replication\"\nslot = \"shop\"\n\n[[stream.sink]]\nurl = \"{store}\"\ntable = \"events\"\n"
        ))
    };
    let unreachable = workspace(&url);
    let deliver = |id: u64| {
        let mut only = unreachable.start("only");
        until("the slot is in use", || {
            sql(&url, "SELECT 1 FROM pg_replication_slots WHERE active AND confirmed_flush_lsn IS NOT NULL").len() == 1
        });
        order(&url, id..id + 1);
        until("it arrives", || delivered(&store).last() == Some(&id));
        only.ends_in_order();
    };
    deliver(1);
    server.stop();
    let restored = server.restored();
    server.restart();
    sql(&url, "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)");
    deliver(2);
    let read = "SELECT checkpoint ->> 'position' FROM watchkeeper.checkpoints";
    let before = sql(&store, read);
    let workspace = workspace(&restored.url("shop"));
    workspace.run(&["check"]).assert_found(1, &["position (postgres): ", "restored from a backup", "WK-POSITION-LOST"]);
    let mut only = workspace.start("only");
    only.says(&["restored from a backup", "WK-POSITION-LOST", "; "]);
    only.ends_in_order();
    assert_eq!((sql(&store, read), delivered(&store)), (before, vec![1, 2]));
}

#[test]
fn a_user_without_the_privilege_to_replicate() {
    let url = orders("unprivileged");
    sql(&url, "CREATE ROLE landlubber LOGIN; GRANT SELECT ON orders TO landlubber");
    let workspace = Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n\n[stream.source]\n\
         url = \"{}\"\ntables = [\"orders\"]\nmode = \"replication\"\n\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n",
        shared().url_of("landlubber", "unprivileged")
    ));
    let fixture = SourceFixture { workspace, url };
    let parts = ["must be superuser or replication role", "42501", "WK-DENIED", "ALTER ROLE … REPLICATION"];
    fixture.assert_found(1, &parts);
    fixture.assert_stays(&parts);
    assert_eq!(fixture.checkpoint(), Vec::<String>::new());
}

#[test]
fn a_table_without_a_replica_identity() {
    let url = orders("unidentified");
    sql(&url, "ALTER TABLE orders REPLICA IDENTITY NOTHING");
    let fixture = SourceFixture::replicated(&url);
    let parts = ["public.orders has no key that its rows can be told apart by"];
    fixture.assert_found(1, &parts);
    fixture.assert_stays(&parts);
    assert_eq!(fixture.checkpoint(), Vec::<String>::new());
}

#[test]
fn a_table_without_a_primary_key() {
    let url = database("keyless");
    sql(&url, "CREATE TABLE orders (id bigint, item text)");
    let fixture = SourceFixture::replicated(&url);
    let parts = ["public.orders has no key that its rows can be told apart by"];
    fixture.assert_found(1, &parts);
    fixture.assert_stays(&parts);
    let made = fixture.workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    made.assert_refused(2, &["the table orders has no primary key", "ADD PRIMARY KEY"]);
    assert_eq!(fixture.checkpoint(), Vec::<String>::new());
}

#[test]
fn a_column_that_is_dropped_in_flight() {
    for (name, logged) in [("dropped_logged", true), ("dropped_replicated", false)] {
        let url = orders(name);
        let fixture = if logged { SourceFixture::logged(&url) } else { SourceFixture::replicated(&url) }.stopped();
        // Written while nobody reads, before and after the column goes.
        fixture.sql("INSERT INTO orders VALUES (2, 'rope')");
        fixture.sql("ALTER TABLE orders DROP COLUMN item");
        fixture.sql("INSERT INTO orders VALUES (3)");
        let mut only = fixture.workspace.start("only");
        until("they arrive", || delivered(&url).len() == 3);
        only.ends_in_order();
        assert_eq!(delivered(&url), [1, 2, 3], "{name}");
        let items = sql(&url, "SELECT coalesce(event -> 'after' ->> 'item', 'none') FROM events ORDER BY number");
        assert_eq!(items, ["none", "rope", "none"], "{name}: each as it was written");
    }
}

#[test]
fn a_wrong_mapping() {
    let url = orders("mapped");
    sql(
        &url,
        "CREATE TABLE outbox (id bigserial PRIMARY KEY, about text, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    );
    let workspace = Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\n\n[[stream]]\nname = \"orders\"\n\n[stream.source]\nurl = \"{url}\"\n\
         outbox = \"outbox\"\ncolumns = {{ key = \"abuot\" }}\n\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ));
    let fixture = SourceFixture { workspace, url };
    let parts = ["watchkeeper.toml:", "no column \"abuot\" to take `key` from"];
    fixture.assert_found(2, &parts);
    // It is a matter of the stream that reads it: others run, and commands work.
    fixture.workspace.start("first").says(&["no column \"abuot\" to take `key` from"]);
    assert_eq!(fixture.workspace.run(&["status"]).code, Some(0));
}
