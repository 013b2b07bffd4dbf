//! Rows that somebody deletes from the log.

use watchkeeper_core::{ErrorKind, Source, StartAt};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop, is_quiet, moved_on, read};
use crate::support::{assert_error, block_on, cx};

/// Under a reader that is paused, and for one that opens again.
#[test]
fn rows_that_are_deleted_unread_are_a_loss() {
    for (version, sql) in [
        (Version::V15, "DELETE FROM watchkeeper.log WHERE key = '[2]'"),
        (Version::V18, "DELETE FROM watchkeeper.log"),
        (Version::V15, "TRUNCATE watchkeeper.log"),
        (Version::V18, "SET session_replication_role = replica; TRUNCATE watchkeeper.log"),
    ] {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run("INSERT INTO things VALUES (1)").await;
            let log = shop.log().await;
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            let position = read(&mut *stream, 1).await[0].position();
            shop.run("INSERT INTO things VALUES (2)").await;
            shop.run("INSERT INTO things VALUES (3)").await;
            shop.session().await.batch_execute(sql).await.unwrap();
            shop.run("INSERT INTO things VALUES (4)").await;
            assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "deleted");
            let pedigree = log.identity(&cx()).await.unwrap();
            assert_error(log.verify(&cx(), &position, &pedigree).await, ErrorKind::PositionLost, "deleted");
            let again = log.open(&cx(), StartAt::After(position)).await.map(drop);
            assert_error(again, ErrorKind::PositionLost, "deleted");
            // Whoever begins anew has what is left after the loss.
            let left: &[&[u8]] = if sql.contains("WHERE") { &[b"[3]", b"[4]"] } else { &[b"[4]"] };
            let mut anew = log.peek(&cx(), StartAt::Oldest).await.unwrap();
            let changes = read(&mut *anew, left.len()).await;
            assert!(changes.iter().map(|change| change.key().unwrap()).eq(left.iter().copied()), "{sql}");
        });
    }
}

#[test]
fn rows_that_are_deleted_after_they_were_read_are_no_loss() {
    for sql in ["DELETE FROM watchkeeper.log", "TRUNCATE watchkeeper.log"] {
        block_on(async {
            let shop = Shop::new(Version::V15).await;
            // A transaction that is open all the time, with a lower number than the rows that go.
            let late = shop.session().await;
            late.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
            shop.run("INSERT INTO things VALUES (1)").await;
            let log = shop.log().await;
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            let read_so_far = read(&mut *stream, 1).await[0].batch().end.clone();
            let end = moved_on(&log, &read_so_far).await;
            assert!(is_quiet(&mut *stream).await);
            shop.run(sql).await;
            late.batch_execute("INSERT INTO things VALUES (2); COMMIT").await.unwrap();
            shop.run("INSERT INTO things VALUES (3)").await;
            assert_eq!(read(&mut *stream, 2).await.len(), 2, "{sql}");
            let mut again = log.open(&cx(), StartAt::After(end)).await.unwrap();
            assert_eq!(read(&mut *again, 2).await.len(), 2, "{sql}");
        });
    }
}
