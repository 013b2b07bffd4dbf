//! A log whose file was restored from a backup.

use std::time::Duration;

use watchkeeper_core::{ErrorKind, Position, Source, SourceTime, StartAt};
use watchkeeper_sqlite::{ChangeLog, Client, Retention, rusqlite};

use crate::log::{LIMITS, with_table};
use crate::support::{Folder, assert_error, block_on, column, cx, execute};

const ORDERS: &str = "CREATE TABLE orders(id INTEGER PRIMARY KEY)";

/// Inserts so many rows, of which each is one change.
pub(crate) async fn grow(client: &Client, rows: u32) {
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
        INSERT INTO orders SELECT NULL FROM n"
    );
    execute(client, &sql).await.unwrap();
}

/// Copies one database over another within SQLite, as `.backup` and `.restore` do.
pub(crate) fn copy(folder: &Folder, from: &str, to: &str) {
    let from = rusqlite::Connection::open(folder.file(from)).unwrap();
    let mut to = rusqlite::Connection::open(folder.file(to)).unwrap();
    let backup = rusqlite::backup::Backup::new(&from, &mut to).unwrap();
    backup.run_to_completion(1_000, Duration::ZERO, None).unwrap();
}

/// The wall clock moves on by more than the log can tell apart.
pub(crate) fn let_a_millisecond_pass() {
    let began = std::time::SystemTime::now();
    while began.elapsed().is_ok_and(|passed| passed < Duration::from_millis(3)) {
        std::thread::yield_now();
    }
}

/// A log that stands at change 30 and has a backup of change 5.
pub(crate) async fn at_thirty(folder: &Folder) -> (Client, ChangeLog) {
    let client = with_table(folder, ORDERS, "orders").await;
    grow(&client, 5).await;
    copy(folder, "app.db", "backup.db");
    grow(&client, 25).await;
    let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
    (client, log)
}

#[test]
fn a_backup_that_was_written_to_again_is_not_what_was_read() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = at_thirty(&folder).await;
        let pedigree = log.identity(&cx()).await.unwrap();
        let end = log.open(&cx(), StartAt::Oldest).await.unwrap().next_batch(&cx(), LIMITS).await.unwrap().end;
        assert_eq!(ChangeLog::number(&end).unwrap(), 30);
        log.verify(&cx(), &end, &pedigree).await.unwrap();
        let_a_millisecond_pass();
        copy(&folder, "backup.db", "app.db");
        assert_error(log.verify(&cx(), &end, &pedigree).await, ErrorKind::PositionLost, "after the newest one, 5");
        grow(&client, 35).await;
        let cause = "change 30 is not the one that was read";
        assert_error(log.verify(&cx(), &end, &pedigree).await, ErrorKind::PositionLost, cause);
        let opened = log.open(&cx(), StartAt::After(end.clone())).await.map(drop);
        assert_error(opened, ErrorKind::PositionLost, cause);
        // Without a time there is nothing to compare.
        for time in [None, Some(SourceTime(0))] {
            let position = Position { time, ..end.clone() };
            log.verify(&cx(), &position, &pedigree).await.unwrap();
        }
    });
}

#[test]
fn every_position_that_is_given_out_can_be_reported_from_that_of_a_backup() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = at_thirty(&folder).await;
        execute(&client, "CREATE TABLE others(id INTEGER PRIMARY KEY)").await.unwrap();
        watchkeeper_sqlite::tools::install(&cx(), &client, &["others"]).await.unwrap();
        let others = log.clone().only(&cx(), vec!["others".to_owned()]).await.unwrap();
        let mut passing = others.peek(&cx(), StartAt::Oldest).await.unwrap();
        let passed = passing.next_batch(&cx(), LIMITS).await.unwrap();
        let waited = passing.next_batch(&cx(), LIMITS).await.unwrap();
        assert_eq!((passed.len(), waited.len()), (0, 0));
        let now = log.peek(&cx(), StartAt::Now).await.unwrap().position().unwrap();
        let given = [passed.end, waited.end, now];
        let_a_millisecond_pass();
        copy(&folder, "backup.db", "app.db");
        grow(&client, 35).await;
        for position in given {
            let opened = log.peek(&cx(), StartAt::After(position)).await.map(drop);
            assert_error(opened, ErrorKind::PositionLost, "change 30 is not the one that was read");
        }
    });
}

#[test]
fn a_backup_restored_under_a_reader_is_noticed_whether_it_has_grown_or_not() {
    for (grown, cause) in [(0, "after the newest one, 5"), (25, "not the one that was read"), (35, "not the one that")]
    {
        let folder = Folder::new();
        block_on(async {
            let (client, log) = at_thirty(&folder).await;
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 30);
            let_a_millisecond_pass();
            copy(&folder, "backup.db", "app.db");
            if grown > 0 {
                grow(&client, grown).await;
            }
            assert_error(stream.next_batch(&cx(), LIMITS).await.map(drop), ErrorKind::PositionLost, cause);
        });
    }
}

#[test]
fn an_acknowledgement_of_what_was_read_before_lets_nothing_of_a_backup_go() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = at_thirty(&folder).await;
        let log = log.keep(Retention { rewind: Duration::ZERO, abandoned: Duration::MAX });
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let end = stream.next_batch(&cx(), LIMITS).await.unwrap().end;
        let_a_millisecond_pass();
        copy(&folder, "backup.db", "app.db");
        grow(&client, 35).await;
        stream.acknowledge(&cx(), &end).await.unwrap();
        stream.close(&cx()).await.unwrap();
        assert_eq!(column(&client, "SELECT CAST(count(*) AS TEXT) FROM watchkeeper_changes").await, ["40"]);
    });
}
