//! Rows that somebody deletes from the log.

use watchkeeper_core::{ErrorKind, Limits, Source, StartAt};
use watchkeeper_sqlite::rusqlite::Connection;
use watchkeeper_sqlite::{ChangeLog, tools};

use crate::log::{LIMITS, with_table};
use crate::support::{Folder, assert_error, block_on, cx, execute};

const TABLE: &str = "CREATE TABLE orders(id INTEGER PRIMARY KEY, a)";
const ONE: Limits = Limits { rows: 1, ..LIMITS };

#[test]
fn rows_that_are_deleted_unread_are_a_loss() {
    for sql in ["DELETE FROM watchkeeper_changes", "DELETE FROM watchkeeper_changes WHERE seq = 2"] {
        let folder = Folder::new();
        block_on(async {
            let client = with_table(&folder, TABLE, "orders").await;
            execute(&client, "INSERT INTO orders VALUES (1, 1), (2, 2), (3, 3)").await.unwrap();
            let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            let position = stream.next_batch(&cx(), ONE).await.unwrap().end;
            Connection::open(folder.file("app.db")).unwrap().execute_batch(sql).unwrap();
            execute(&client, "INSERT INTO orders VALUES (4, 4)").await.unwrap();
            assert_error(stream.next_batch(&cx(), ONE).await, ErrorKind::PositionLost, "deleted");
            let again = log.open(&cx(), StartAt::After(position)).await.map(drop);
            assert_error(again, ErrorKind::PositionLost, "deleted");
            assert!(!log.peek(&cx(), StartAt::Oldest).await.unwrap().next_batch(&cx(), ONE).await.unwrap().is_empty());
        });
    }
}

#[test]
fn rows_that_are_deleted_after_they_were_read_are_no_loss() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "orders").await;
        execute(&client, "INSERT INTO orders VALUES (1, 1), (2, 2), (3, 3)").await.unwrap();
        let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        stream.next_batch(&cx(), Limits { rows: 2, ..LIMITS }).await.unwrap();
        execute(&client, "DELETE FROM watchkeeper_changes WHERE seq <= 2").await.unwrap();
        assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 1);
        tools::prune(&cx(), &client, 3).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (4, 4)").await.unwrap();
        assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 1);
    });
}

/// A log that an older version of this program made gets its guard when it is opened.
#[test]
fn a_log_without_a_guard_gets_one() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, TABLE, "orders").await;
        execute(&client, "DROP TRIGGER watchkeeper_deleted").await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (1, 1), (2, 2)").await.unwrap();
        let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        stream.next_batch(&cx(), ONE).await.unwrap();
        execute(&client, "DELETE FROM watchkeeper_changes").await.unwrap();
        assert_error(stream.next_batch(&cx(), ONE).await, ErrorKind::PositionLost, "deleted");
    });
}
