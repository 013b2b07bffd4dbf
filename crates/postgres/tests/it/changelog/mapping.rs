//! Outboxes: tables that an application fills itself.

use watchkeeper_core::source::Severity;
use watchkeeper_core::{ErrorKind, Operation, Source, StartAt, Window};
use watchkeeper_postgres::ChangeLog;
use watchkeeper_postgres::changelog::Columns;
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, read, received};
use crate::support::{Base, assert_error, block_on, cx};

fn named(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn a_wrong_mapping_is_reported_in_one_line() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let client = base.client().await;
        let sql = "CREATE TABLE outbox (id bigint PRIMARY KEY, about text, said text, at timestamp)";
        base.admin().await.batch_execute(sql).await.unwrap();
        let open =
            async |table: &str, columns: Columns| ChangeLog::outbox(&cx(), client.clone(), "it", table, columns).await;
        let about = Columns::of_outbox("about");
        assert_error(open("nowhere", about.clone()).await, ErrorKind::Config, "there is no table nowhere");
        assert_error(open("outbox", about.clone()).await, ErrorKind::Config, "no column \"xid\" to take `xid` from");
        base.admin().await.batch_execute("ALTER TABLE outbox ADD COLUMN xid bigint").await.unwrap();
        assert_error(open("outbox", about.clone()).await, ErrorKind::Config, "is bigint, which cannot be its `xid`");
        let remedy = "ALTER TABLE outbox DROP COLUMN xid; ALTER TABLE outbox ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id()";
        base.admin().await.batch_execute(remedy).await.unwrap();
        assert_error(open("outbox", Columns::of_outbox("abuot")).await, ErrorKind::Config, "no column \"abuot\"");
        let said = Columns { after: named("said"), ..about.clone() };
        assert_error(open("outbox", said).await, ErrorKind::Config, "is text, which cannot be its `after`");
        let at = Columns { time: named("at"), ..about.clone() };
        assert_error(open("outbox", at).await, ErrorKind::Config, "cannot be its `time`");
        let log = open("outbox", about).await.unwrap();
        let found = log.check(&cx()).await.unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].severity, found[1].severity), (Severity::Warning, Severity::Note));
        assert!(found[0].what.contains("no index on \"xid\""), "{found:?}");
        assert!(found[1].what.contains("no sequence is known that numbers \"id\""), "{found:?}");
    });
}

#[test]
fn rows_of_an_outbox_are_events() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let admin = base.admin().await;
        let sql =
            "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, kind text, about uuid, said json,
            event text, at timestamptz NOT NULL DEFAULT now(), xid xid8 NOT NULL DEFAULT pg_current_xact_id()); CREATE INDEX ON outbox (xid)";
        admin.batch_execute(sql).await.unwrap();
        let columns = Columns { entity: named("kind"), after: named("said"), ..Columns::of_outbox("about") };
        let open = async |columns| {
            ChangeLog::outbox(&cx(), base.client().await, "it", "public.outbox", columns).await.unwrap()
        };
        let timed = open(Columns { time: named("at"), ..columns.clone() }).await;
        let log = open(columns.clone()).await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let key = "00000000-0000-0000-0000-00000000000a";
        let write =
            format!("INSERT INTO outbox (kind, about, said, event) VALUES ('order', '{key}', '{{\"a\":1}}', 'Placed')");
        admin.batch_execute(&write).await.unwrap();
        let changes = read(&mut *stream, 1).await;
        let body = r#"{"before":null,"after":{"a":1}}"#.to_owned();
        assert_eq!(received(&changes), [(Operation::Insert, key.to_owned(), body)]);
        assert_eq!(changes[0].namespace(), "order");
        // How long rows stay is up to the application: those that are there do not tell how long history is.
        let mut timed = timed.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(timed.window(&cx()).await.unwrap(), Window::default());
        let only = open(columns.clone()).await.only(&cx(), vec!["invoice".to_owned()]).await.unwrap();
        let mut none = only.open(&cx(), StartAt::Oldest).await.unwrap();
        let batch = none.next_batch(&cx(), LIMITS).await.unwrap();
        assert!(batch.is_empty());
        assert_eq!(only.compare(&changes[0].position(), &batch.end), Some(std::cmp::Ordering::Less), "it passed by");
        // A column of other words is no operation.
        let wrong = open(Columns { operation: named("event"), ..columns }).await;
        let mut stream = wrong.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_error(
            stream.next_batch(&cx(), LIMITS).await,
            ErrorKind::Corrupt,
            "is a \"Placed\", which is no operation",
        );
        // A column that goes while it is read.
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        admin.batch_execute("ALTER TABLE outbox DROP COLUMN said").await.unwrap();
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::Config, "is no longer what `columns` says");
    });
}

/// The numbers of an outbox are the versions of its changes.
#[test]
fn numbers_of_an_outbox_that_begin_anew_are_found() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let admin = base.admin().await;
        let sql = "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about int,
            xid xid8 NOT NULL DEFAULT pg_current_xact_id()); CREATE INDEX ON outbox (xid); INSERT INTO outbox (about) VALUES (1), (2), (3)";
        admin.batch_execute(sql).await.unwrap();
        let columns = Columns::of_outbox("about");
        let log = ChangeLog::outbox(&cx(), base.client().await, "it", "outbox", columns).await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let position = read(&mut *stream, 3).await[2].position();
        // Those that were read may go.
        admin.batch_execute("TRUNCATE outbox; INSERT INTO outbox (about) VALUES (4)").await.unwrap();
        let preflight = async || log.preflight(&cx(), &StartAt::After(position.clone()), None).await.unwrap();
        assert_eq!(preflight().await, []);
        admin.batch_execute("TRUNCATE outbox RESTART IDENTITY; INSERT INTO outbox (about) VALUES (5)").await.unwrap();
        let found = preflight().await;
        assert_eq!(found.len(), 1, "{found:?}");
        let (what, remedy) = (&found[0].what, found[0].remedy.as_deref().unwrap_or_default());
        assert!(what.contains("its numbers are at 1: they began anew"), "{what}");
        assert_eq!(remedy, "let them go on: SELECT setval('outbox_id_seq', 3)");
        admin.batch_execute(remedy.split_once(": ").unwrap().1).await.unwrap();
        assert_eq!(preflight().await, []);
    });
}
