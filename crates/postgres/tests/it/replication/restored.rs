//! Servers that were restored from a copy of their data folder, on the same timeline.

use watchkeeper_core::{ErrorKind, Position, Source, StartAt};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{Config, Replication, tokio_postgres};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::bench::{Base, LIMITS, Watch, block_on, connect, cx, server};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text); CREATE TABLE others(v text)";

/// More of the log than is held back for the last transaction that was read.
const MUCH: usize = 40 << 20;

/// A server, and another one on a copy of its data as they were before anything was read.
struct Restored {
    original: Server,
    copy: Server,
    name: String,
    settings: Settings,
}

impl Restored {
    fn new(version: Version) -> Self {
        let original = server(version, &[]);
        let (name, settings) = block_on(async {
            let base = Base::new(&original, THINGS).await;
            Watch::open(&base.source(), StartAt::Now).await.close().await;
            let settings = base.settings();
            (base.name, settings)
        });
        original.stop();
        let copy = original.restored();
        original.restart();
        Self { original, copy, name, settings }
    }

    fn source(&self, server: &Server) -> Replication {
        Replication::new(Config::new(&server.url(&self.name)).expect("the URL is one"), self.settings.clone())
    }

    async fn sql(&self, server: &Server) -> tokio_postgres::Client {
        connect(&server.url(&self.name)).await
    }

    /// Lets the restored server live on past `position` with changes of its own, which a stream from there would skip. The stream has to
    /// notice that it never read this history.
    async fn assert_recognised(&self, position: Position) {
        let sql = self.sql(&self.copy).await;
        sql.batch_execute("INSERT INTO things VALUES (1, 'another history')").await.expect("it is a server");
        grow(&sql, 2 * MUCH).await;
        sql.batch_execute("INSERT INTO things VALUES (2, 'another history')").await.expect("it is a server");
        let source = self.source(&self.copy);
        let pedigree = source.identity(&cx()).await.expect("the server answers");
        source.verify(&cx(), &position, &pedigree).await.expect("nothing can be seen yet");
        let mut watch = Watch::open(&source, StartAt::After(position)).await;
        let mut reported = None;
        for _ in 0..30 {
            if let Err(error) = watch.stream.next_batch(&cx(), LIMITS).await {
                reported = Some(error);
                break;
            }
        }
        let error = reported.expect("the stream goes on in another history");
        assert_eq!(error.kind(), ErrorKind::PositionLost, "{error}");
        assert!(error.to_string().contains("where the stream stands"), "{error}");
        watch.close().await;
    }
}

/// Writes so much to the log without a change of the table that is read.
async fn grow(sql: &tokio_postgres::Client, bytes: usize) {
    let text = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 20000)";
    sql.batch_execute("ALTER TABLE others ALTER v SET STORAGE EXTERNAL").await.expect("it is ours");
    let begun = log_end(sql).await;
    while log_end(sql).await < begun + bytes as u64 {
        sql.batch_execute(&format!("INSERT INTO others {text}")).await.expect("it can be written");
    }
}

async fn log_end(sql: &tokio_postgres::Client) -> u64 {
    let row = sql.query_one("SELECT (pg_current_wal_lsn() - '0/0')::text", &[]).await.expect("the server answers");
    row.get::<_, String>(0).parse().expect("a number")
}

/// Reads until the server has told of all that was written, and nothing more comes.
async fn read_to_the_end(watch: &mut Watch, sql: &tokio_postgres::Client) -> Position {
    let end = log_end(sql).await;
    for _ in 0..60 {
        let batch = watch.stream.next_batch(&cx(), LIMITS).await.expect("the stream goes on");
        assert!(batch.is_empty(), "nobody wrote to the table");
        let position = watch.stream.position().expect("a slot has a position");
        let lsn = u64::from_be_bytes(*position.bytes.first_chunk().expect("it begins with its place in the log"));
        if lsn + (16 << 20) > end {
            return position;
        }
    }
    panic!("the stream does not move on");
}

#[test]
fn a_restored_server_is_recognised_after_much_unrelated_log() {
    for version in Version::ALL {
        let restored = Restored::new(version);
        block_on(async {
            let sql = restored.sql(&restored.original).await;
            let mut watch = Watch::open(&restored.source(&restored.original), StartAt::Oldest).await;
            sql.batch_execute("INSERT INTO things VALUES (1, 'read')").await.expect("it is ours");
            watch.changes(1).await;
            grow(&sql, MUCH).await;
            let position = read_to_the_end(&mut watch, &sql).await;
            watch.close().await;
            restored.assert_recognised(position).await;
        });
    }
}

#[test]
fn a_restored_server_is_recognised_by_a_stream_that_has_read_no_change() {
    for version in Version::ALL {
        let restored = Restored::new(version);
        block_on(async {
            let sql = restored.sql(&restored.original).await;
            let mut watch = Watch::open(&restored.source(&restored.original), StartAt::Now).await;
            let mut positions = Vec::new();
            // The server is asked to write something that can be recognised.
            while positions.len() < 60 && positions.iter().all(|position| !has_proof(position)) {
                watch.stream.next_batch(&cx(), LIMITS).await.expect("the stream goes on");
                positions.push(watch.stream.position().expect("a slot has a position"));
            }
            let position = positions.pop().expect("there is one");
            assert!(has_proof(&position), "nothing tells this log from another one");
            // Others' messages are none of ours.
            let message = "SELECT pg_logical_emit_message(true, 'an application', 'hello')";
            sql.batch_execute(message).await.expect("anybody may");
            watch.close().await;
            restored.assert_recognised(position).await;
        });
    }
}

#[test]
fn a_restored_server_is_recognised_after_a_large_transaction() {
    for version in Version::ALL {
        let restored = Restored::new(version);
        block_on(async {
            let sql = restored.sql(&restored.original).await;
            let mut watch = Watch::open(&restored.source(&restored.original), StartAt::Oldest).await;
            let rows = "INSERT INTO things SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, 3000) g";
            sql.batch_execute(rows).await.expect("it is ours");
            watch.changes(3000).await;
            let mut position = watch.stream.position().expect("a slot has a position");
            for _ in 0..60 {
                if has_proof(&position) {
                    break;
                }
                watch.stream.next_batch(&cx(), LIMITS).await.expect("the stream goes on");
                position = watch.stream.position().expect("a slot has a position");
            }
            watch.close().await;
            restored.assert_recognised(position).await;
        });
    }
}

/// Whether a position lies behind a change, by which its log is recognised.
fn has_proof(position: &Position) -> bool {
    position.bytes[8..16] != [0; 8]
}

/// Without the right to write into the log the stream goes on as before, and `check` says what is missing.
#[test]
fn who_may_not_write_messages_is_reported_what_is_not_recognised() {
    for version in Version::ALL {
        let server = server(version, &[]);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let denied = "DO $$ DECLARE f regprocedure; BEGIN
                FOR f IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message' LOOP
                    EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || f || ' FROM PUBLIC'; END LOOP; END $$";
            base.run(&format!(
                "{denied}; CREATE ROLE reader LOGIN REPLICATION; CREATE PUBLICATION changes FOR TABLE things"
            ))
            .await;
            let url = server.url_of("reader", &base.name);
            let source = Replication::new(Config::new(&url).expect("the URL is one"), base.settings());
            let findings = source.check(&cx()).await.expect("it can be looked at");
            let found = findings.iter().find(|finding| finding.what.contains("pg_logical_emit_message"));
            let found = found.unwrap_or_else(|| panic!("{findings:?}"));
            assert!(found.what.contains("restored"), "{found:?}");
            assert!(found.remedy.as_ref().is_some_and(|remedy| remedy.contains("GRANT EXECUTE")), "{found:?}");
            let mut watch = Watch::open(&source, StartAt::Now).await;
            base.run("INSERT INTO things VALUES (1, 'a')").await;
            assert_eq!(watch.changes(1).await.len(), 1);
            grow(&base.sql, MUCH).await;
            base.run("INSERT INTO things VALUES (2, 'b')").await;
            assert_eq!(watch.changes(1).await.len(), 1);
            watch.close().await;
            let all = base.source().check(&cx()).await.expect("it can be looked at");
            assert!(all.iter().all(|finding| !finding.what.contains("pg_logical_emit_message")), "{all:?}");
            base.done().await;
        });
    }
}
