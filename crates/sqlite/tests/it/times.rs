//! Beginning at a time: nothing that was committed after it is skipped, and no transaction is begun in its middle.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Change, ChangeStream, Source, SourceTime, StartAt};
use watchkeeper_sqlite::rusqlite::Connection;
use watchkeeper_sqlite::{ChangeLog, Client};

use crate::log::{LIMITS, with_table};
use crate::support::{Folder, block_on, column, cx, execute};

const TABLE: &str = "CREATE TABLE orders(id INTEGER PRIMARY KEY, a)";

/// A time that is after everything so far and before everything to come.
async fn between() -> SourceTime {
    tokio::time::sleep(Duration::from_millis(5)).await;
    let millis = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    tokio::time::sleep(Duration::from_millis(5)).await;
    SourceTime(u64::try_from(millis).unwrap())
}

async fn read(stream: &mut dyn ChangeStream) -> Vec<String> {
    let batch = Arc::new(stream.next_batch(&cx(), LIMITS).await.unwrap());
    let changes = (0..).take(batch.len()).map(|row| Change::new(batch.clone(), row));
    changes.map(|change| String::from_utf8(change.key().unwrap().to_vec()).unwrap()).collect()
}

async fn keys(log: &ChangeLog, start: StartAt) -> Vec<String> {
    read(&mut *log.peek(&cx(), start).await.unwrap()).await
}

async fn log(client: &Client) -> ChangeLog {
    ChangeLog::open(&cx(), client.clone(), "it").await.unwrap()
}

#[test]
fn a_transaction_that_was_open_at_the_time_comes_as_a_whole() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "orders").await;
        let application = Connection::open(folder.file("app.db")).unwrap();
        application.execute_batch("BEGIN; INSERT INTO orders VALUES (1, 1)").unwrap();
        let time = between().await;
        application.execute_batch("INSERT INTO orders VALUES (2, 2); COMMIT").unwrap();
        execute(&client, "INSERT INTO orders VALUES (3, 3)").await.unwrap();
        let log = log(&client).await;
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["[1]", "[2]", "[3]"]);
    });
}

#[test]
fn the_last_transaction_of_the_log_may_have_been_committed_after_the_time() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "orders").await;
        let application = Connection::open(folder.file("app.db")).unwrap();
        application.execute_batch("BEGIN; INSERT INTO orders VALUES (1, 1)").unwrap();
        let time = between().await;
        application.execute_batch("COMMIT").unwrap();
        let log = log(&client).await;
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["[1]"]);
        let later = SourceTime(between().await.0 + 60_000);
        assert_eq!(keys(&log, StartAt::Time(later)).await, [""; 0], "it is still to come");
    });
}

/// Whoever reads notes from time to time what was committed: there a start by time can begin.
#[test]
fn a_start_by_time_begins_after_the_last_note_of_a_reader() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "orders").await;
        execute(&client, "INSERT INTO orders VALUES (1, 1)").await.unwrap();
        let log = log(&client).await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(read(&mut *stream).await, ["[1]"]);
        let time = between().await;
        let application = Connection::open(folder.file("app.db")).unwrap();
        application.execute_batch("BEGIN; INSERT INTO orders VALUES (2, 2), (3, 3)").unwrap();
        let amid = between().await;
        application.execute_batch("INSERT INTO orders VALUES (4, 4); COMMIT").unwrap();
        for time in [time, amid] {
            assert_eq!(keys(&log, StartAt::Time(time)).await, ["[2]", "[3]", "[4]"]);
        }
        // A start before all notes is one at the beginning.
        assert_eq!(keys(&log, StartAt::Time(SourceTime(1))).await, ["[1]", "[2]", "[3]", "[4]"]);
        assert!(column(&client, "SELECT name FROM watchkeeper_meta WHERE name LIKE 'log/mark/%'").await.len() == 1);
    });
}
