//! Numbers with a fraction, which the application's SQLite writes into the log, whatever its version.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use watchkeeper_core::source::Severity;
use watchkeeper_core::{Entropy, Operation, Source};
use watchkeeper_sqlite::{ChangeLog, Client, tools};

use crate::log::{logged, with_table};
use crate::support::{Folder, block_on, column, cx, execute};

const TABLE: &str = "CREATE TABLE t(id REAL PRIMARY KEY NOT NULL, n INTEGER)";

/// Numbers of every size and of as many digits as there are.
fn numbers() -> Vec<f64> {
    let entropy = Entropy::seeded(7);
    let known = [
        0.1,
        0.1 + 0.2,
        -0.5,
        12.34,
        1.0,
        1e15,
        1e16,
        1e22,
        1e300,
        5e-324,
        -5e-324,
        f64::MIN_POSITIVE,
        f64::MAX,
        f64::MIN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::EPSILON,
        1.0 + f64::EPSILON,
        1.0 - f64::EPSILON,
        1.5 * 2f64.powi(62),
        1.5 * 2f64.powi(63),
        2f64.powi(-10),
        1.5 * 2f64.powi(-11),
    ];
    let drawn = (0..3_000).map(|_| f64::from_bits(entropy.next())).filter(|number| !number.is_nan());
    let parts = (0..3_000).map(|_| entropy.next() as f64 / 2f64.powi(64) * 10f64.powi(entropy.below(44) as i32 - 22));
    known.into_iter().chain(drawn).chain(parts).collect()
}

/// An application in Python, whose SQLite is that of the system.
fn run_application(folder: &Folder, numbers: &[f64]) {
    let mut bits = String::new();
    for number in numbers {
        let _ = writeln!(bits, "{}", number.to_bits());
    }
    std::fs::write(folder.file("bits"), bits).unwrap();
    let script = "import sqlite3, struct, sys
db = sqlite3.connect(sys.argv[1])
for n, line in enumerate(open(sys.argv[2])):
    db.execute('INSERT INTO t VALUES (?, ?)', (struct.unpack('<d', struct.pack('<Q', int(line)))[0], n))
db.commit()";
    let files = [folder.file("app.db"), folder.file("bits")];
    let done = Command::new("python3").args(["-c", script]).args(files).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The number after a part of a text. A parser of JSON may round it otherwise than the standard library.
fn number(text: &str, after: &str) -> f64 {
    let (_, text) = text.split_once(after).unwrap();
    let text = text.strip_prefix(r#"{"$numberDouble":""#).unwrap_or(text);
    text[..text.find([',', '}', ']', '"']).unwrap()].parse().unwrap()
}

#[test]
fn numbers_arrive_bit_by_bit_from_the_sqlite_of_the_system() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "t").await;
        let numbers = numbers();
        run_application(&folder, &numbers);
        let log = logged(&client).await;
        assert_eq!(log.len(), numbers.len());
        for ((_, key, body), written) in log.iter().zip(&numbers) {
            let read = number(body, r#""after":{"id":"#);
            assert_eq!(read.to_bits(), written.to_bits(), "{written:e} arrived as {read:e}");
            assert_eq!(number(key, "["), *written, "{written:e} has the key {key}");
        }
        let keys: BTreeSet<_> = log.iter().map(|(_, key, _)| key).collect();
        assert_eq!(keys.len(), log.len(), "two rows have one key");
    });
}

/// What sinks have stored under a key has to be found again.
#[test]
fn keys_are_written_as_an_exact_sqlite_writes_them() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "t").await;
        let numbers = "0.1, -0.5, 12.34, 0.0001, 0.00001, 1.25e-7, 0.30000000000000004, 123456789012.5, 1e300, -2.5e-200, 48.137154, 7.0";
        for number in numbers.split(", ") {
            execute(&client, &format!("INSERT INTO t(id) VALUES ({number})")).await.unwrap();
        }
        let keys = "SELECT '[' || iif(id = 7, '7', json_quote(id)) || ']' FROM t ORDER BY rowid";
        let logged: Vec<_> = logged(&client).await.into_iter().map(|(_, key, _)| key).collect();
        assert_eq!(logged, column(&client, keys).await);
    });
}

#[test]
fn a_row_keeps_its_key_through_updates_and_replacements() {
    use Operation::{Delete, Insert, Update};
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "t").await;
        let sql = "INSERT INTO t VALUES (0.1, 1); UPDATE t SET n = 2; REPLACE INTO t VALUES (0.1, 3); DELETE FROM t";
        execute(&client, sql).await.unwrap();
        let reported: Vec<_> = logged(&client).await.into_iter().map(|(operation, key, _)| (operation, key)).collect();
        let is = |operation| (operation, "[0.1]".to_owned());
        assert_eq!(reported, [is(Insert), is(Update), is(Delete), is(Insert), is(Delete)]);
    });
}

/// Makes a trigger of the table as an earlier version made it.
async fn make_old(client: &Client) {
    let sql = "DROP TRIGGER watchkeeper_after_delete_t; CREATE TRIGGER watchkeeper_after_delete_t AFTER DELETE ON t BEGIN
        INSERT INTO watchkeeper_changes(tbl, op, key, before, millis) VALUES ('t', 'delete', json_array(OLD.id), json_object('n', OLD.n), 0); END";
    execute(client, sql).await.unwrap();
}

#[test]
fn triggers_of_an_earlier_version_are_noticed_and_made_anew() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "t").await;
        make_old(&client).await;
        let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
        let found = log.check(&cx()).await.unwrap();
        assert_eq!(found.iter().map(|finding| finding.severity).collect::<Vec<_>>(), [Severity::Warning]);
        assert!(found[0].what.contains("another version of Watchkeeper made them"), "{}", found[0].what);
        assert!(found[0].remedy.as_ref().unwrap().contains("watchkeeper sqlite install"), "{found:?}");
        tools::install(&cx(), &client, &["t"]).await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
    });
}
