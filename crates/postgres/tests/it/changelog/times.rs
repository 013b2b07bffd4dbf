//! Beginning at a time: nothing that was committed after it is skipped.

use std::time::Duration;

use watchkeeper_core::{Source, SourceTime, StartAt};
use watchkeeper_postgres::changelog::{Columns, Wake, install};
use watchkeeper_postgres::{ChangeLog, Client, Config};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::support::{LIMITS, Shop, THINGS, is_quiet, received};
use crate::support::{Base, block_on, connect, cx};

/// A server of its own, with a logged table `things`: transactions that others have open there would make what is known less.
struct Alone {
    server: Server,
    client: Client,
    application: tokio_postgres::Client,
}

impl Alone {
    async fn new(version: Version, config: &[&str]) -> Self {
        let config = config.iter().chain(&["autovacuum = off"]).map(|line| (*line).to_owned()).collect();
        let server = Server::with(&ServerSettings { config, ..ServerSettings::new(version) });
        let client = Client::open(&cx(), Config::new(&server.url("postgres")).unwrap()).await.unwrap();
        let application = connect(&server.url("postgres")).await;
        application.batch_execute(THINGS).await.unwrap();
        install(&cx(), &client, &["things"], Wake::Notify).await.unwrap();
        Self { server, client, application }
    }

    async fn session(&self) -> tokio_postgres::Client {
        connect(&self.server.url("postgres")).await
    }

    async fn run(&self, sql: &str) {
        self.application.batch_execute(sql).await.unwrap();
    }

    async fn log(&self) -> ChangeLog {
        ChangeLog::open(&cx(), self.client.clone(), "it").await.unwrap()
    }
}

/// A time of the server that is after everything so far and before everything to come, in whole milliseconds.
async fn between(application: &tokio_postgres::Client) -> SourceTime {
    let millis = "SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM pg_sleep(0.005)";
    let row = application.query_one(millis, &[]).await.unwrap();
    application.batch_execute("SELECT pg_sleep(0.005)").await.unwrap();
    SourceTime(row.get::<_, i64>(0).unsigned_abs())
}

/// The keys of all changes that come, in order.
async fn keys(log: &ChangeLog, start: StartAt) -> Vec<String> {
    let mut stream = log.peek(&cx(), start).await.unwrap();
    let mut keys = Vec::new();
    loop {
        let batch = std::sync::Arc::new(stream.next_batch(&cx(), LIMITS).await.unwrap());
        if batch.is_empty() {
            return keys;
        }
        let changes: Vec<_> =
            (0..).take(batch.len()).map(|row| watchkeeper_core::Change::new(batch.clone(), row)).collect();
        keys.extend(received(&changes).into_iter().map(|(_, key, _)| key));
    }
}

/// A transaction that was open at the time and has rows only from before it.
#[test]
fn a_transaction_that_was_open_at_the_time_is_not_skipped() {
    for version in Version::ALL {
        block_on(async {
            let shop = Alone::new(version, &[]).await;
            shop.run("INSERT INTO things VALUES (1)").await;
            let late = shop.session().await;
            late.batch_execute("BEGIN; INSERT INTO things VALUES (2)").await.unwrap();
            shop.run("INSERT INTO things VALUES (3)").await;
            let time = between(&shop.application).await;
            shop.run("INSERT INTO things VALUES (4)").await;
            late.batch_execute("COMMIT").await.unwrap();
            let log = shop.log().await;
            let found = keys(&log, StartAt::Time(time)).await;
            for wanted in ["[2]", "[4]"] {
                assert!(found.iter().any(|key| key == wanted), "{wanted} was committed after the time: {found:?}");
            }
            assert!(!found.contains(&"[1]".to_owned()), "it is known to have been committed before: {found:?}");
        });
    }
}

/// The same where nothing was logged after the time.
#[test]
fn the_last_transaction_of_the_log_may_have_been_committed_after_the_time() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let late = shop.session().await;
        late.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO things VALUES (1)").await.unwrap();
        let time = between(&shop.application).await;
        late.batch_execute("COMMIT").await.unwrap();
        let log = shop.log().await;
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["[1]"]);
        let later = SourceTime(between(&shop.application).await.0 + 60_000);
        assert!(is_quiet(&mut *log.open(&cx(), StartAt::Time(later)).await.unwrap()).await, "it is still to come");
    });
}

#[test]
fn rows_of_an_outbox_whose_transaction_was_open_at_the_time_are_not_skipped() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let application = base.admin().await;
        application.batch_execute(OUTBOX).await.unwrap();
        let late = base.admin().await;
        late.batch_execute("BEGIN; INSERT INTO outbox (about) VALUES (1)").await.unwrap();
        let time = between(&application).await;
        application.batch_execute("INSERT INTO outbox (about) VALUES (2)").await.unwrap();
        late.batch_execute("COMMIT").await.unwrap();
        let log = ChangeLog::outbox(&cx(), base.client().await, "it", "outbox", columns()).await.unwrap();
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["1", "2"]);
    });
}

const OUTBOX: &str =
    "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about int, at timestamptz NOT NULL DEFAULT clock_timestamp(),
        xid xid8 NOT NULL DEFAULT pg_current_xact_id()); CREATE INDEX ON outbox (xid)";

fn columns() -> Columns {
    Columns { time: Some("at".to_owned()), ..Columns::of_outbox("about") }
}

/// A server that keeps the times of commits tells which transactions ended before the time.
#[test]
fn times_of_commits_tell_where_to_begin() {
    block_on(async {
        let alone = Alone::new(Version::V15, &["track_commit_timestamp = on"]).await;
        let application = &alone.application;
        application.batch_execute(OUTBOX).await.unwrap();
        application.batch_execute("INSERT INTO outbox (about) VALUES (1)").await.unwrap();
        let late = alone.session().await;
        late.batch_execute("BEGIN; INSERT INTO outbox (about) VALUES (2)").await.unwrap();
        let time = between(application).await;
        late.batch_execute("COMMIT").await.unwrap();
        application.batch_execute("INSERT INTO outbox (about) VALUES (3)").await.unwrap();
        let log = ChangeLog::outbox(&cx(), alone.client.clone(), "it", "outbox", columns()).await.unwrap();
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["2", "3"]);
        let later = between(application).await;
        assert_eq!(keys(&log, StartAt::Time(later)).await, [""; 0]);
    });
}

/// Takes a log back to what it was before the third step of its schema.
const OLDER: &str = "DROP TRIGGER watchkeeper_deleted ON watchkeeper.log; DROP TRIGGER watchkeeper_emptied ON watchkeeper.log;
    DROP FUNCTION watchkeeper.log_deleted(), watchkeeper.log_emptied(), watchkeeper.log_note_deletion(xid8, bigint);
    ALTER TABLE watchkeeper.log DROP COLUMN oldest_open; ALTER TABLE watchkeeper.log_tables DROP COLUMN lost;
    CREATE INDEX log_losses ON watchkeeper.log (id) WHERE operation = 'lost'; UPDATE watchkeeper.meta SET value = '2' WHERE name = 'schema/log'";

/// A log of an older version does not say which transactions were open: it is read from its beginning.
#[test]
fn a_log_of_an_older_version_is_read_and_brought_up_to_date() {
    block_on(async {
        let shop = Alone::new(Version::V15, &[]).await;
        shop.run(OLDER).await;
        shop.run("INSERT INTO things VALUES (1)").await;
        let time = between(&shop.application).await;
        shop.run("INSERT INTO things VALUES (2)").await;
        let log = shop.log().await;
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["[1]", "[2]"]);
        let found = log.check(&cx()).await.unwrap();
        assert!(found.iter().any(|finding| finding.what.contains("would be skipped without notice")), "{found:?}");
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["[1]", "[2]"], "rows from before say nothing");
        shop.run("INSERT INTO things VALUES (3)").await;
        shop.run("INSERT INTO things VALUES (4)").await;
        let time = between(&shop.application).await;
        assert_eq!(keys(&log, StartAt::Time(time)).await, ["[4]"], "the last one may have been committed since");
        shop.run(OLDER).await;
        watchkeeper_postgres::changelog::uninstall(
            &cx(),
            &shop.client,
            &["things"],
            watchkeeper_postgres::changelog::Unread::Discard,
        )
        .await
        .unwrap();
        shop.run(&format!("DROP TABLE things; {THINGS}")).await;
    });
}

/// A note of a reader tells which transactions had ended then, also where rows do not.
#[test]
fn a_mark_of_a_reader_tells_where_to_begin() {
    block_on(async {
        let shop = Alone::new(Version::V18, &[]).await;
        shop.run("INSERT INTO things VALUES (1)").await;
        shop.run("INSERT INTO watchkeeper.log_marks SELECT pg_current_snapshot()").await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let time = between(&shop.application).await;
        shop.run("INSERT INTO things VALUES (2)").await;
        assert_eq!(keys(&shop.log().await, StartAt::Time(time)).await, ["[2]"]);
    });
}
