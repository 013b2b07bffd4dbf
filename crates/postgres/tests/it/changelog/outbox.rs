//! Outboxes that do not keep what they promise.

use watchkeeper_core::source::Severity;
use watchkeeper_core::{Change, ErrorKind, Finding, Limits, Source, StartAt};
use watchkeeper_postgres::ChangeLog;
use watchkeeper_postgres::changelog::Columns;
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, read, read_with, received};
use crate::support::{Base, assert_error, block_on, cx};

async fn outbox(base: &Base, columns: Columns) -> ChangeLog {
    ChangeLog::outbox(&cx(), base.client().await, "it", "outbox", columns).await.unwrap()
}

fn about() -> Columns {
    Columns::of_outbox("about")
}

fn of(found: &[Finding], severity: Severity, what: &str) -> bool {
    found.iter().any(|finding| finding.severity == severity && finding.what.contains(what))
}

/// A row without a transaction belongs to no window: it would never be delivered.
#[test]
fn rows_without_a_transaction_are_not_passed_over() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let application = base.admin().await;
        let sql = "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about int, xid xid8);
            CREATE INDEX ON outbox (xid); INSERT INTO outbox (about, xid) VALUES (1, pg_current_xact_id())";
        application.batch_execute(sql).await.unwrap();
        let log = outbox(&base, about()).await;
        let found = log.check(&cx()).await.unwrap();
        assert!(of(&found, Severity::Warning, "\"xid\" of the outbox \"outbox\" may be NULL"), "{found:?}");
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(read(&mut *stream, 1).await.len(), 1);
        application.batch_execute("INSERT INTO outbox (about) VALUES (2)").await.unwrap();
        let found = log.check(&cx()).await.unwrap();
        assert!(of(&found, Severity::Error, "row 2 of the outbox \"outbox\" has no \"xid\""), "{found:?}");
        let mut again = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_error(again.next_batch(&cx(), LIMITS).await, ErrorKind::Corrupt, "row 2 of the outbox");
        application.batch_execute("UPDATE outbox SET xid = pg_current_xact_id() WHERE xid IS NULL").await.unwrap();
        assert_eq!(received(&read(&mut *stream, 1).await)[0].1, "2");
        application.batch_execute("ALTER TABLE outbox ALTER COLUMN xid SET NOT NULL").await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
    });
}

/// The remedy makes a row without a transaction one of the newest transaction; what is newer of its key must not have come before.
#[test]
fn a_row_without_a_transaction_is_not_overtaken_by_newer_ones() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let application = base.admin().await;
        let sql = "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about int, xid xid8 DEFAULT pg_current_xact_id());
            CREATE INDEX ON outbox (xid); INSERT INTO outbox (about) VALUES (1), (2), (3)";
        application.batch_execute(sql).await.unwrap();
        let log = outbox(&base, about()).await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let first = read_with(&mut *stream, 1, Limits { rows: 1, ..LIMITS }).await;
        for sql in ["INSERT INTO outbox (about, xid) VALUES (4, NULL)", "INSERT INTO outbox (about) VALUES (4)"] {
            application.batch_execute(sql).await.unwrap();
        }
        let mut again = log.open(&cx(), StartAt::After(first[0].position())).await.unwrap();
        for stream in [&mut stream, &mut again] {
            assert_eq!(
                numbers(&read(&mut **stream, 2).await),
                [2, 3],
                "the window that was begun before is read to its end"
            );
            for _ in 0..2 {
                assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::Corrupt, "row 4 of the outbox");
            }
        }
        let mut fresh = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_error(fresh.next_batch(&cx(), LIMITS).await, ErrorKind::Corrupt, "row 4 of the outbox");
        application.batch_execute("UPDATE outbox SET xid = pg_current_xact_id() WHERE xid IS NULL").await.unwrap();
        for stream in [&mut stream, &mut again] {
            assert_eq!(numbers(&read(&mut **stream, 2).await), [4, 5]);
        }
        assert_eq!(numbers(&read(&mut *fresh, 5).await), [1, 2, 3, 4, 5]);
    });
}

fn numbers(changes: &[Change]) -> Vec<u64> {
    changes.iter().map(|change| change.version().time).collect()
}

/// Sessions that keep numbers in stock give a later change a lower number, whoever owns the sequence.
#[test]
fn a_sequence_with_a_cache_is_found_by_the_default_of_the_column() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let application = base.admin().await;
        let sql = "CREATE SEQUENCE numbers CACHE 10; CREATE TABLE outbox (id bigint PRIMARY KEY DEFAULT nextval('numbers'), about int,
            xid xid8 NOT NULL DEFAULT pg_current_xact_id()); CREATE INDEX ON outbox (xid)";
        application.batch_execute(sql).await.unwrap();
        for default in ["nextval('numbers')", "nextval('public.numbers'::text)", "nextval('numbers') * 2"] {
            let sql = format!("ALTER TABLE outbox ALTER COLUMN id SET DEFAULT {default}");
            application.batch_execute(&sql).await.unwrap();
            let refused = async {
                let log = ChangeLog::outbox(&cx(), base.client().await, "it", "outbox", about()).await?;
                let found = log.check(&cx()).await?;
                assert!(of(&found, Severity::Error, "keep numbers of the outbox"), "{default}: {found:?}");
                log.open(&cx(), StartAt::Oldest).await.map(drop)
            };
            assert_error(refused.await, ErrorKind::Config, "keep numbers of the outbox");
        }
        application.batch_execute("ALTER SEQUENCE numbers CACHE 1").await.unwrap();
        let log = outbox(&base, about()).await;
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        log.open(&cx(), StartAt::Oldest).await.unwrap();
        // Numbers of which nobody knows where they come from.
        application.batch_execute("ALTER TABLE outbox ALTER COLUMN id DROP DEFAULT").await.unwrap();
        let found = log.check(&cx()).await.unwrap();
        assert!(of(&found, Severity::Note, "no sequence"), "{found:?}");
    });
}

/// What lies before a row that cannot be understood is delivered, and then it is named.
#[test]
fn an_unknown_operation_halts_right_there() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let application = base.admin().await;
        let sql = "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about int, event text,
            xid xid8 NOT NULL DEFAULT pg_current_xact_id()); CREATE INDEX ON outbox (xid);
            INSERT INTO outbox (about, event) VALUES (1, 'insert'), (2, 'Update'), (3, 'Placed'), (4, 'delete')";
        application.batch_execute(sql).await.unwrap();
        let log = outbox(&base, Columns { operation: Some("event".to_owned()), ..about() }).await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let before = read(&mut *stream, 2).await;
        for _ in 0..2 {
            let cause = "change 3 is a \"Placed\", which is no operation";
            assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::Corrupt, cause);
        }
        let mut again = log.open(&cx(), StartAt::After(before[1].position())).await.unwrap();
        assert_error(again.next_batch(&cx(), LIMITS).await, ErrorKind::Corrupt, "change 3");
        application.batch_execute("UPDATE outbox SET event = 'insert' WHERE id = 3").await.unwrap();
        assert_eq!(read(&mut *again, 2).await.len(), 2);
    });
}
