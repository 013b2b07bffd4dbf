//! What becomes of a logged table: rebuilt, dropped, altered, uninstalled.

use std::time::Duration;

use watchkeeper_core::source::Severity;
use watchkeeper_core::{Batch, ChangeStream, ErrorKind, Limits, Pedigree, Result, Source, StartAt};
use watchkeeper_sqlite::{ChangeLog, Client, tools};

use crate::support::{Folder, assert_error, block_on, column, cx, execute};

const ORDERS: &str = "CREATE TABLE orders(id INTEGER PRIMARY KEY, a)";

/// SQLite's usual way to change what ALTER TABLE cannot.
const REBUILD: &str = "CREATE TABLE orders_new(id INTEGER PRIMARY KEY, a NOT NULL);
    INSERT INTO orders_new SELECT * FROM orders;
    DROP TABLE orders;
    ALTER TABLE orders_new RENAME TO orders";

const LIMITS: Limits = Limits { rows: 100, bytes: 1 << 20, wait: Duration::from_millis(20) };

/// Long enough that a reader who is not woken would be seen to wait.
const PATIENT: Limits = Limits { wait: Duration::from_secs(20), ..LIMITS };

const GONE: &str = "orders is no longer logged: its triggers are gone (was the table rebuilt?)";

async fn shop(folder: &Folder) -> (Client, ChangeLog) {
    let client = folder.client("app.db").await;
    execute(&client, ORDERS).await.unwrap();
    execute(&client, "CREATE TABLE users(id INTEGER PRIMARY KEY)").await.unwrap();
    tools::install(&cx(), &client, &["orders", "users"]).await.unwrap();
    execute(&client, "INSERT INTO orders VALUES (1, 'x')").await.unwrap();
    let log = ChangeLog::open(&cx(), client.clone(), "shop/orders").await.unwrap();
    (client, log)
}

async fn after(log: &ChangeLog, number: u64) -> Result<Box<dyn ChangeStream>> {
    log.open(&cx(), StartAt::After(ChangeLog::position(number, None))).await
}

async fn next(stream: &mut Box<dyn ChangeStream>) -> Result<Batch> {
    stream.next_batch(&cx(), LIMITS).await
}

async fn verify(log: &ChangeLog, number: u64, pedigree: &Pedigree) -> Result<()> {
    log.verify(&cx(), &ChangeLog::position(number, None), pedigree).await
}

fn end(batch: &Batch) -> u64 {
    ChangeLog::number(&batch.end).unwrap()
}

#[test]
fn a_table_that_is_rebuilt_under_a_reader_is_lost_at_once() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let mut stream = after(&log, 0).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 1);
        let cx = cx();
        let (answer, rebuilt) = tokio::join!(stream.next_batch(&cx, PATIENT), execute(&client, REBUILD));
        rebuilt.unwrap();
        assert_error(answer.map(|batch| batch.len()), ErrorKind::PositionLost, GONE);
    });
}

#[test]
fn a_table_that_is_rebuilt_between_two_readers_is_lost_after_what_was_logged() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let pedigree = log.identity(&cx()).await.unwrap();
        execute(&client, REBUILD).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (2, 'not logged')").await.unwrap();
        assert_error(verify(&log, 1, &pedigree).await, ErrorKind::PositionLost, GONE);
        for start in [StartAt::After(ChangeLog::position(1, None)), StartAt::Now, StartAt::Oldest] {
            let answer = log.open(&cx(), start).await.map(drop);
            assert_error(answer, ErrorKind::PositionLost, "app.db --table orders`, then accept the gap");
        }
        // What is in the log comes first.
        verify(&log, 0, &pedigree).await.unwrap();
        let mut stream = after(&log, 0).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 1);
        assert_error(next(&mut stream).await.map(drop), ErrorKind::PositionLost, GONE);
        let found = log.check(&cx()).await.unwrap();
        assert_eq!((found.len(), found[0].severity, found[0].what.as_str()), (1, Severity::Error, GONE));
    });
}

#[test]
fn a_loss_is_not_forgotten_by_installing_again() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let pedigree = log.identity(&cx()).await.unwrap();
        execute(&client, REBUILD).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (2, 'not logged')").await.unwrap();
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (3, 'logged')").await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        assert_eq!(log.identity(&cx()).await.unwrap(), pedigree, "what was logged can still be read");

        let mut stream = after(&log, 0).await.unwrap();
        let batch = next(&mut stream).await.unwrap();
        assert_eq!((batch.len(), end(&batch)), (1, 1), "it ends before the loss");
        let lost = "changes of orders before change 2 are not in the log";
        assert_error(next(&mut stream).await.map(drop), ErrorKind::PositionLost, lost);
        assert_error(next(&mut stream).await.map(drop), ErrorKind::PositionLost, lost);

        // Who accepts the gap, by either way, is past it.
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let batch = next(&mut stream).await.unwrap();
        assert_eq!((batch.len(), end(&batch)), (1, 3));
        let stream = log.open(&cx(), StartAt::Now).await.unwrap();
        let mut stream = log.open(&cx(), StartAt::After(stream.position().unwrap())).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 0);
        // Who does not read that table has lost nothing.
        let users = log.only(&cx(), vec!["users".to_owned()]).await.unwrap();
        let mut stream = after(&users, 0).await.unwrap();
        assert_eq!(end(&next(&mut stream).await.unwrap()), 3);
    });
}

#[test]
fn installing_again_what_is_whole_changes_nothing() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let state = "SELECT (SELECT schema_version FROM pragma_schema_version) || ' ' ||
            (SELECT count(*) FROM watchkeeper_changes)";
        let before = column(&client, state).await;
        tools::install(&cx(), &client, &["orders", "USERS"]).await.unwrap();
        assert_eq!(column(&client, state).await, before);
        let mut stream = after(&log, 1).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 0);
    });
}

#[test]
fn a_migration_that_makes_the_triggers_again_loses_nothing() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let triggers = "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'orders'";
        let triggers = column(&client, triggers).await;
        execute(&client, &format!("{REBUILD}; {}", triggers.join(";"))).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (2, 'logged')").await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        let mut stream = after(&log, 0).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 2);
        assert_eq!(next(&mut stream).await.unwrap().len(), 0);
    });
}

#[test]
fn triggers_that_went_with_a_renamed_table_are_gone() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        execute(&client, &format!("ALTER TABLE orders RENAME TO orders_old; {ORDERS}")).await.unwrap();
        assert_error(after(&log, 1).await.map(drop), ErrorKind::PositionLost, GONE);
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        execute(&client, "INSERT INTO orders_old VALUES (2, 'not logged')").await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (3, 'logged')").await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 1);
    });
}

#[test]
fn a_dropped_table_is_lost_until_it_is_no_longer_wanted() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        execute(&client, "DROP TABLE orders").await.unwrap();
        let gone = "orders is no longer logged: the table is gone";
        assert_error(after(&log, 1).await.map(drop), ErrorKind::PositionLost, gone);
        let found = log.check(&cx()).await.unwrap();
        assert!(found[0].what.contains(gone) && found[0].severity == Severity::Error, "{found:?}");
        tools::uninstall(&cx(), &client, &["orders"], tools::Unread::Keep).await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        after(&log, 1).await.map(drop).unwrap();
    });
}

#[test]
fn a_renamed_column_is_reported_and_a_dropped_one_refused_by_the_database() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        execute(&client, "ALTER TABLE orders RENAME COLUMN a TO b").await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (2, 'y')").await.expect("the application is not disturbed");
        let mut stream = after(&log, 1).await.unwrap();
        let batch = next(&mut stream).await.unwrap();
        assert!(String::from_utf8_lossy(batch.body(0)).contains(r#""a":"y""#), "nothing is lost but the name");
        let found = log.check(&cx()).await.unwrap();
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        assert!(found[0].what.contains("under their old names (a): b"), "{found:?}");
        assert!(found[0].remedy.as_deref().unwrap_or_default().contains("install --db"), "{found:?}");

        // SQLite lets nobody drop a column that a trigger names, so no change can lack it.
        let dropped = execute(&client, "ALTER TABLE orders DROP COLUMN b").await.unwrap_err().to_string();
        assert!(dropped.contains("error in trigger watchkeeper_"), "{dropped}");

        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        execute(&client, "INSERT INTO orders VALUES (3, 'z')").await.unwrap();
        let batch = next(&mut stream).await.unwrap();
        assert!(String::from_utf8_lossy(batch.body(0)).contains(r#""b":"z""#), "and nothing was lost");
    });
}

#[test]
fn a_new_unique_index_is_reported() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        execute(&client, "CREATE UNIQUE INDEX once ON orders(a)").await.unwrap();
        let found = log.check(&cx()).await.unwrap();
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{found:?}");
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
    });
}

#[test]
fn uninstalling_refuses_to_discard_what_somebody_has_not_read() {
    use tools::Unread::{Discard, Keep};
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let mut stream = after(&log, 0).await.unwrap();
        let both = ["orders", "users"];
        for tables in [&both[..1], &both[..]] {
            let answer = tools::uninstall(&cx(), &client, tables, Keep).await;
            assert_error(answer, ErrorKind::Config, "shop/orders has 1 change to read");
        }
        assert_eq!(log.check(&cx()).await.unwrap(), [], "nothing was changed");
        tools::uninstall(&cx(), &client, &["users"], Keep).await.expect("none of its changes is unread");
        let batch = next(&mut stream).await.unwrap();
        stream.acknowledge(&cx(), &batch.end).await.unwrap();

        tools::uninstall(&cx(), &client, &["orders"], Discard).await.unwrap();
        let reported = "was uninstalled";
        assert_error(next(&mut stream).await.map(drop), ErrorKind::PositionLost, reported);
        assert_error(stream.window(&cx()).await, ErrorKind::PositionLost, reported);
        assert_error(stream.close(&cx()).await, ErrorKind::PositionLost, reported);
        assert_error(after(&log, 1).await.map(drop), ErrorKind::PositionLost, reported);
        // Whoever has no position has lost nothing.
        let reported = "no table of this database is logged";
        assert_error(log.identity(&cx()).await, ErrorKind::Config, reported);
        assert_error(log.check(&cx()).await, ErrorKind::Config, reported);
        assert_error(log.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Config, reported);
    });
}

#[test]
fn a_reader_does_not_go_on_in_the_log_that_came_after_its_own() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let mut stream = after(&log, 1).await.unwrap();
        tools::uninstall(&cx(), &client, &["orders", "users"], tools::Unread::Keep).await.unwrap();
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (2, 'y'), (3, 'z')").await.unwrap();
        assert_error(next(&mut stream).await.map(drop), ErrorKind::PositionLost, "another log");
        // One that is opened anew names its changes after the new log.
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().len(), 2);
    });
}

#[test]
fn a_table_that_was_uninstalled_for_a_while_has_a_gap() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = shop(&folder).await;
        let orders = log.clone().only(&cx(), vec!["orders".to_owned()]).await.unwrap();
        tools::uninstall(&cx(), &client, &["orders"], tools::Unread::Keep).await.unwrap();
        let reported = "orders is no longer logged: it was uninstalled";
        assert_error(after(&orders, 1).await.map(drop), ErrorKind::PositionLost, reported);
        after(&log, 1).await.map(drop).expect("the others are logged");
        execute(&client, "INSERT INTO orders VALUES (2, 'not logged')").await.unwrap();
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        for log in [log, orders] {
            let mut stream = after(&log, 1).await.unwrap();
            assert_error(next(&mut stream).await.map(drop), ErrorKind::PositionLost, "not logged for a while");
        }
    });
}
