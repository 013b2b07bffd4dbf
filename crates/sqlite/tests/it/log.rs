//! The change log: what triggers see, and what they would miss.

use std::collections::BTreeMap;
use std::time::Duration;

use watchkeeper_core::source::Severity;
use watchkeeper_core::{Change, ChangeStream, Entropy, ErrorKind, Limits, Operation, Source, StartAt};
use watchkeeper_sqlite::{ChangeLog, Client, Retention, tools};

use crate::support::{Folder, assert_error, block_on, column, cx, execute};

const ITEMS: &str = "CREATE TABLE items(id INTEGER PRIMARY KEY, code TEXT UNIQUE, a INTEGER, b INTEGER, UNIQUE (a, b))";

pub(crate) const LIMITS: Limits = Limits { rows: 100_000, bytes: 1 << 30, wait: Duration::from_millis(20) };

/// Everything in the log, as (operation, key, body).
pub(crate) async fn logged(client: &Client) -> Vec<(Operation, String, String)> {
    let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
    let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
    let batch = std::sync::Arc::new(stream.next_batch(&cx(), LIMITS).await.unwrap());
    let changes = (0..).take(batch.len()).map(|row| Change::new(batch.clone(), row));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("keys and bodies are text");
    changes.map(|change| (change.operation(), text(change.key().unwrap()), text(change.body()))).collect()
}

/// As above, without the bodies.
async fn reported(client: &Client) -> Vec<(Operation, String)> {
    logged(client).await.into_iter().map(|(operation, key, _)| (operation, key)).collect()
}

fn is(operation: Operation, key: &str) -> (Operation, String) {
    (operation, key.to_owned())
}

pub(crate) async fn with_table(folder: &Folder, sql: &str, table: &str) -> Client {
    let client = folder.client("app.db").await;
    execute(&client, sql).await.unwrap();
    tools::install(&cx(), &client, &[table]).await.unwrap();
    client
}

#[test]
fn replace_logs_the_rows_that_it_displaces() {
    use Operation::{Delete, Insert};
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, ITEMS, "items").await;
        execute(&client, "INSERT INTO items VALUES (1, 'x', 1, 1), (2, 'y', 2, 2), (3, 'z', 3, 3)").await.unwrap();
        // In conflict with 1 by its key, with 2 by its code and with 3 by both numbers.
        execute(&client, "INSERT OR REPLACE INTO items VALUES (1, 'y', 3, 3)").await.unwrap();
        let reported = reported(&client).await;
        let mut displaced = reported[3..6].to_vec();
        displaced.sort();
        assert_eq!(displaced, [is(Delete, "[1]"), is(Delete, "[2]"), is(Delete, "[3]")]);
        assert_eq!(reported[6..], [is(Insert, "[1]")]);
    });
}

#[test]
fn an_ignored_insert_and_an_upsert_displace_nothing() {
    use Operation::{Insert, Update};
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, ITEMS, "items").await;
        execute(&client, "INSERT INTO items VALUES (1, 'x', 1, 1)").await.unwrap();
        execute(&client, "INSERT OR IGNORE INTO items VALUES (1, 'y', 2, 2)").await.unwrap();
        execute(&client, "INSERT INTO items VALUES (1, 'x', 9, 9) ON CONFLICT DO UPDATE SET a = 5").await.unwrap();
        execute(&client, "INSERT INTO items VALUES (2, 'z', 2, 2)").await.unwrap();
        assert_eq!(reported(&client).await, [is(Insert, "[1]"), is(Update, "[1]"), is(Insert, "[2]")]);
    });
}

#[test]
fn a_number_that_is_yet_to_be_given_displaces_nothing() {
    use Operation::Insert;
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, ITEMS, "items").await;
        // What SQLite says before the insert for a number that it will give is -1.
        execute(&client, "INSERT INTO items VALUES (-1, 'x', 1, 1)").await.unwrap();
        execute(&client, "INSERT OR REPLACE INTO items(code) VALUES ('y')").await.unwrap();
        assert_eq!(reported(&client).await, [is(Insert, "[-1]"), is(Insert, "[0]")]);
    });
}

/// A statement drawn at random, out of all that can meet a conflict.
fn statement(entropy: &Entropy) -> String {
    // With -1, which SQLite says for a number that it has not given yet.
    let n = || entropy.below(7).cast_signed() - 1;
    let or = ["", "OR REPLACE", "OR IGNORE"][usize::try_from(entropy.below(3)).unwrap()];
    let (id, code, a, b, of) = (n(), n(), n(), n(), n());
    match entropy.below(8) {
        0 | 1 => format!("INSERT {or} INTO items VALUES ({id}, 'c{code}', {a}, {b})"),
        2 => format!("INSERT {or} INTO items VALUES ({id}, NULL, {a}, nullif({b}, 3))"),
        3 => format!("INSERT {or} INTO items(code, a, b) VALUES ('c{code}', {a}, NULL)"),
        4 => format!("UPDATE {or} items SET id = {id}, code = 'c{code}' WHERE id = {of}"),
        5 => format!("UPDATE {or} items SET a = {a}, b = {b} WHERE b = {of}"),
        6 => format!("DELETE FROM items WHERE id = {id}"),
        _ => format!("INSERT INTO items VALUES ({id}, 'c{code}', {a}, {b}) ON CONFLICT DO UPDATE SET b = {of}"),
    }
}

/// What the log says is there, when it is played from its beginning.
fn played(log: Vec<(Operation, String, String)>) -> BTreeMap<String, serde_json::Value> {
    let mut rows = BTreeMap::new();
    for (operation, key, body) in log {
        let mut body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let before = rows.remove(&key).unwrap_or(serde_json::Value::Null);
        assert_eq!(body["before"].take(), before, "the row {key} was another before its {operation}");
        if operation != Operation::Delete {
            rows.insert(key, body["after"].take());
        }
    }
    rows
}

/// Whatever happens to a table, playing its log gives the same table.
#[test]
fn the_log_of_random_statements_gives_the_table() {
    for (seed, recursive) in [(1, "OFF"), (2, "OFF"), (3, "ON"), (4, "ON")] {
        let folder = Folder::new();
        block_on(async {
            let client = with_table(&folder, ITEMS, "items").await;
            column(&client, "SELECT 'x' FROM items").await;
            let entropy = Entropy::seeded(seed);
            let statements: Vec<_> = (0..600).map(|_| statement(&entropy)).collect();
            let all = move |transaction: &watchkeeper_sqlite::rusqlite::Transaction<'_>| {
                transaction.pragma_update(None, "recursive_triggers", recursive)?;
                // A refused one is undone by itself, with what its triggers wrote.
                Ok(statements.iter().filter(|sql| transaction.execute_batch(sql).is_ok()).count())
            };
            let done = client.write(&cx(), all).await.unwrap();
            assert!(done > 300, "most statements were refused: {done} are done");
            let rows =
                column(&client, "SELECT json_object('id', id, 'code', code, 'a', a, 'b', b) FROM items ORDER BY id");
            let rows: Vec<serde_json::Value> =
                rows.await.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
            assert!(!rows.is_empty());
            let reported: BTreeMap<_, _> = rows.into_iter().map(|row| (format!("[{}]", row["id"]), row)).collect();
            assert_eq!(played(logged(&client).await), reported, "seed {seed}, recursive triggers {recursive}");
        });
    }
}

#[test]
fn bodies_show_the_row_before_and_after_and_what_changed() {
    let folder = Folder::new();
    block_on(async {
        let table = r#"CREATE TABLE "odd ""table""'s"("the key" TEXT PRIMARY KEY, "a'b" ANY, real REAL, same INT)"#;
        let client = with_table(&folder, table, "odd \"table\"'s").await;
        let name = r#""odd ""table""'s""#;
        execute(&client, &format!("INSERT INTO {name} VALUES ('k\"1', x'00ff', 9e999, 7)")).await.unwrap();
        execute(&client, &format!("UPDATE {name} SET \"a'b\" = 'line\n', real = 0.1")).await.unwrap();
        let log = logged(&client).await;
        let body = |at: usize| serde_json::from_str::<serde_json::Value>(&log[at].2).unwrap();
        let infinity = serde_json::json!({ "$numberDouble": "Infinity" });
        let first = serde_json::json!({ "the key": "k\"1", "a'b": { "$hex": "00FF" }, "real": infinity, "same": 7 });
        let second = serde_json::json!({ "the key": "k\"1", "a'b": "line\n", "real": 0.1, "same": 7 });
        assert_eq!(body(0), serde_json::json!({ "before": null, "after": first.clone() }));
        let changed = serde_json::json!({ "before": first, "after": second, "changed": ["a'b", "real"] });
        assert_eq!(body(1), changed);
        assert_eq!(log[1].1, r#"["k\"1"]"#);
    });
}

#[test]
fn keys_that_are_equal_to_the_table_are_equal_in_the_log() {
    use Operation::{Insert, Update};
    let folder = Folder::new();
    block_on(async {
        let table = "CREATE TABLE t(name TEXT COLLATE NOCASE, n, x, PRIMARY KEY (name, n)) WITHOUT ROWID";
        let client = with_table(&folder, table, "t").await;
        execute(&client, "INSERT INTO t VALUES ('Ada', 1, 0); UPDATE t SET name = 'ADA', n = 1.0").await.unwrap();
        assert_eq!(reported(&client).await, [is(Insert, r#"["ada",1]"#), is(Update, r#"["ada",1]"#)]);
    });
}

#[test]
fn tables_that_cannot_be_followed_are_refused_and_nothing_is_installed() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        let tables = "CREATE TABLE good(id INTEGER PRIMARY KEY);
            CREATE TABLE keyless(x);
            CREATE VIEW seen AS SELECT * FROM good;
            CREATE TABLE partial(id INTEGER PRIMARY KEY, x);
            CREATE UNIQUE INDEX some ON partial(x) WHERE x > 0;
            CREATE TABLE computed(id INTEGER PRIMARY KEY, x);
            CREATE UNIQUE INDEX lowered ON computed(lower(x));";
        execute(&client, tables).await.unwrap();
        let cases = [
            ("keyless", "no primary key"),
            ("seen", "it is a view"),
            ("nowhere", "there is no such table"),
            ("partial", "unique index some"),
            ("computed", "unique index lowered"),
            ("watchkeeper_changes", "no table of the application"),
        ];
        for (table, cause) in cases {
            assert_error(tools::install(&cx(), &client, &["good", table]).await, ErrorKind::Config, cause);
            let triggers = column(&client, "SELECT name FROM sqlite_schema WHERE type = 'trigger'").await;
            assert_eq!(triggers, Vec::<String>::new(), "{table} left triggers behind");
        }
        assert_error(ChangeLog::open(&cx(), client.clone(), "it").await, ErrorKind::Config, "no table");
        assert_error(
            tools::uninstall(&cx(), &client, &["good"], tools::Unread::Keep).await,
            ErrorKind::Config,
            "is not logged",
        );
    });
}

#[test]
fn uninstalling_leaves_nothing_and_a_new_log_is_another() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        let log = ChangeLog::open(&cx, client.clone(), "it").await.unwrap();
        let pedigree = log.identity(&cx).await.unwrap();
        tools::uninstall(&cx, &client, &["items"], tools::Unread::Keep).await.unwrap();
        let left = column(&client, "SELECT name FROM sqlite_schema WHERE name LIKE 'watchkeeper%'").await;
        assert_eq!(left, ["watchkeeper_meta"]);
        execute(&client, "INSERT INTO items(code) VALUES ('not logged')").await.unwrap();
        tools::install(&cx, &client, &["items"]).await.unwrap();
        assert_ne!(log.identity(&cx).await.unwrap(), pedigree);
        let answer = log.verify(&cx, &ChangeLog::position(0, None), &pedigree).await;
        assert_error(answer, ErrorKind::PositionLost, "another log");
    });
}

#[test]
fn a_new_column_is_found_and_taken_up() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        let log = ChangeLog::open(&cx, client.clone(), "it").await.unwrap();
        assert_eq!(log.check(&cx).await.unwrap(), []);
        execute(&client, "ALTER TABLE items ADD COLUMN note TEXT").await.unwrap();
        let findings = log.check(&cx).await.unwrap();
        assert_eq!(findings.iter().map(|finding| finding.severity).collect::<Vec<_>>(), [Severity::Warning]);
        tools::install(&cx, &client, &["items"]).await.unwrap();
        assert_eq!(log.check(&cx).await.unwrap(), []);
        execute(&client, "INSERT INTO items(note) VALUES ('seen')").await.unwrap();
        let body = logged(&client).await.remove(0).2;
        assert!(body.contains(r#""note":"seen""#), "{body}");
    });
}

async fn reader(client: &Client, consumer: &str, abandoned: Duration) -> Box<dyn ChangeStream> {
    let retention = Retention { rewind: Duration::ZERO, abandoned };
    let log = ChangeLog::open(&cx(), client.clone(), consumer).await.unwrap().keep(retention);
    log.open(&cx(), StartAt::Oldest).await.unwrap()
}

#[test]
fn pruning_stays_below_the_slowest_consumer() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        for id in 1..=9 {
            execute(&client, &format!("INSERT INTO items(id) VALUES ({id})")).await.unwrap();
        }
        let (mut fast, mut slow) =
            (reader(&client, "fast", Duration::MAX).await, reader(&client, "slow", Duration::MAX).await);
        slow.acknowledge(&cx, &ChangeLog::position(3, None)).await.unwrap();
        slow.close(&cx).await.unwrap();
        fast.acknowledge(&cx, &ChangeLog::position(7, None)).await.unwrap();
        fast.close(&cx).await.unwrap();
        let left = column(&client, "SELECT CAST(seq AS TEXT) FROM watchkeeper_changes").await;
        assert_eq!(left, ["4", "5", "6", "7", "8", "9"]);
        let log = ChangeLog::open(&cx, client.clone(), "late").await.unwrap();
        let answer = log.open(&cx, StartAt::After(ChangeLog::position(2, None))).await.map(drop);
        assert_error(answer, ErrorKind::PositionLost, "pruned through 3");
        log.open(&cx, StartAt::After(ChangeLog::position(3, None))).await.map(drop).unwrap();
        let answer = log.open(&cx, StartAt::After(ChangeLog::position(10, None))).await.map(drop);
        assert_error(answer, ErrorKind::PositionLost, "after the newest one");
    });
}

#[test]
fn an_abandoned_consumer_does_not_hold_the_log_for_ever() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        execute(&client, "INSERT INTO items(id) VALUES (1), (2), (3)").await.unwrap();
        reader(&client, "gone", Duration::MAX).await.close(&cx).await.unwrap();
        execute(&client, "UPDATE watchkeeper_consumers SET seen_millis = seen_millis - 7200000").await.unwrap();
        let mut alive = reader(&client, "alive", Duration::from_secs(3_600)).await;
        alive.acknowledge(&cx, &ChangeLog::position(3, None)).await.unwrap();
        alive.close(&cx).await.unwrap();
        let left = column(&client, "SELECT CAST(seq AS TEXT) FROM watchkeeper_changes").await;
        assert_eq!(left, Vec::<String>::new());
        // The numbers go on although all rows are gone.
        execute(&client, "INSERT INTO items(id) VALUES (4)").await.unwrap();
        let left = column(&client, "SELECT CAST(seq AS TEXT) FROM watchkeeper_changes").await;
        assert_eq!(left, ["4"]);
    });
}

#[test]
fn what_is_acknowledged_stays_for_the_rewind_window() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        execute(&client, "INSERT INTO items(id) VALUES (1), (2)").await.unwrap();
        execute(&client, "UPDATE watchkeeper_changes SET millis = millis - 7200000 WHERE seq = 1").await.unwrap();
        let log = ChangeLog::open(&cx, client.clone(), "it").await.unwrap();
        let mut stream = log.open(&cx, StartAt::Oldest).await.unwrap();
        stream.acknowledge(&cx, &ChangeLog::position(2, None)).await.unwrap();
        stream.close(&cx).await.unwrap();
        let left = column(&client, "SELECT CAST(seq AS TEXT) FROM watchkeeper_changes").await;
        assert_eq!(left, ["2"], "by default an hour is kept");
    });
}

#[test]
fn another_opening_from_now_on_does_not_let_go_what_is_still_unread() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        execute(&client, "INSERT INTO items(id) VALUES (1), (2), (3)").await.unwrap();
        let holder = reader(&client, "it", Duration::MAX).await;
        let log = ChangeLog::open(&cx, client.clone(), "it").await.unwrap();
        log.open(&cx, StartAt::Now).await.unwrap().close(&cx).await.unwrap();
        let mut other = reader(&client, "other", Duration::MAX).await;
        other.acknowledge(&cx, &ChangeLog::position(3, None)).await.unwrap();
        other.close(&cx).await.unwrap();
        let left = column(&client, "SELECT CAST(seq AS TEXT) FROM watchkeeper_changes").await;
        assert_eq!(left, ["1", "2", "3"]);
        holder.close(&cx).await.unwrap();
    });
}

#[test]
fn pruning_goes_on_over_many_small_steps() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), with_table(&folder, ITEMS, "items").await);
        let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1700)
            INSERT INTO items(id) SELECT i FROM n";
        execute(&client, many).await.unwrap();
        let mut stream = reader(&client, "it", Duration::MAX).await;
        stream.acknowledge(&cx, &ChangeLog::position(1_699, None)).await.unwrap();
        stream.close(&cx).await.unwrap();
        let left = column(&client, "SELECT CAST(seq AS TEXT) FROM watchkeeper_changes").await;
        assert_eq!(left, ["1700"]);
    });
}

#[test]
fn one_who_looks_on_holds_nothing_back_and_moves_nobody() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, ITEMS, "items").await;
        execute(&client, "INSERT INTO items VALUES (1, 'x', 1, 1), (2, 'y', 2, 2)").await.unwrap();
        let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
        let mut looking = log.peek(&cx(), StartAt::Oldest).await.unwrap();
        let batch = looking.next_batch(&cx(), LIMITS).await.unwrap();
        assert_eq!(batch.len(), 2);
        looking.acknowledge(&cx(), &batch.end).await.unwrap();
        looking.close(&cx()).await.unwrap();
        assert!(column(&client, "SELECT name FROM watchkeeper_consumers").await.is_empty(), "nobody consumes");

        let consuming = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let mut looking = log.peek(&cx(), StartAt::Now).await.unwrap();
        let newest = ChangeLog::number(&looking.position().unwrap()).unwrap();
        assert_eq!(newest, ChangeLog::number(&batch.end).unwrap());
        looking.acknowledge(&cx(), &batch.end).await.unwrap();
        looking.close(&cx()).await.unwrap();
        let acknowledged = column(&client, "SELECT CAST(acknowledged AS TEXT) FROM watchkeeper_consumers").await;
        assert_eq!(acknowledged, ["0"], "the consumer stands where it stood");
        consuming.close(&cx()).await.unwrap();
    });
}
