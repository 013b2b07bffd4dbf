//! Columns that come and go in the source while typed rows of it are written.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::payload::JsonRows;
use watchkeeper_core::{
    Batch, ChangeStream, Limits, OpenedSink, Operation, Sink, SinkContext, Source, StartAt, Transacted,
};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{ChangeLog, Client, Config, Missing, Replication, Rows, VersionedRows};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::sink::{INSERT, SinkFixture, batch_of};
use crate::support::{Base, block_on, connect, cx};

const TABLES: &str = "CREATE TABLE things (id int PRIMARY KEY, v text, place jsonb, n int);
    CREATE TABLE copy (id int PRIMARY KEY, v text DEFAULT 'none', city text, n int)";

/// What is read and where it goes.
pub(crate) struct Flow {
    pub(crate) application: watchkeeper_postgres::tokio_postgres::Client,
    stream: Box<dyn ChangeStream>,
    client: Client,
    fixture: SinkFixture,
    seq: u64,
}

fn rows() -> Rows {
    let rows = Rows::into("public.copy").expect("a name");
    [("id", "id"), ("v", "v"), ("city", "place.city"), ("n", "n")]
        .iter()
        .fold(rows, |rows, (column, field)| rows.column(column, field))
}

impl Flow {
    async fn new(url: &str, source: &dyn Source, start: StartAt, rows: Rows) -> Self {
        Self::between((url, url), source, start, rows).await
    }

    /// From the application's URL to that of the sink.
    pub(crate) async fn between((url, to): (&str, &str), source: &dyn Source, start: StartAt, rows: Rows) -> Self {
        let client = Client::open(&cx(), Config::new(to).expect("a URL")).await.expect("the server is there");
        let fixture = SinkFixture::new(client.clone(), rows).await;
        let stream = source.open(&cx(), start).await.expect("it opens");
        Self { application: connect(url).await, stream, client, fixture, seq: 0 }
    }

    async fn run(&self, sql: &str) {
        self.application.batch_execute(sql).await.expect("the application may");
    }

    /// The next changes. Those of one transaction may come in several batches.
    async fn batch(&mut self) -> Arc<Batch> {
        let limits = Limits { rows: 1_000, bytes: 1 << 30, wait: Duration::from_millis(50) };
        let begun = cx().now();
        while cx().now().since(begun) < Duration::from_secs(60) {
            let batch = self.stream.next_batch(&cx(), limits).await.expect("it can be read");
            if !batch.is_empty() {
                return Arc::new(batch);
            }
        }
        panic!("nothing comes");
    }

    /// Expects that so many changes that statements make are written.
    pub(crate) async fn carry(&mut self, sql: &str, changes: usize) {
        self.run(sql).await;
        let mut through = 0;
        while through < changes {
            let batch = self.batch().await;
            self.seq += 1;
            let answer = self.fixture.deliver(self.seq, &batch).await.expect("the server answers");
            assert!(matches!(answer, Transacted::Committed), "{sql}: {answer:?}");
            through += batch.len();
        }
    }

    /// Expects that the one change that a statement makes is rejected, and why. It is given back, since it was not committed.
    async fn refused(&mut self, sql: &str, cause: &str) -> Arc<Batch> {
        self.run(sql).await;
        let batch = self.batch().await;
        let answer = self.fixture.deliver(self.seq + 1, &batch).await.expect("the server answers");
        let Transacted::Rejected(faults) = answer else { panic!("{sql}: {answer:?}") };
        let (reported, remedy) = (faults[0].error.to_string(), faults[0].error.advice().unwrap_or_default());
        assert!(reported.contains(cause) && !reported.contains('\n'), "{reported}");
        assert!(remedy.contains("missing = \"keep\"") && remedy.contains("columns"), "{remedy}");
        batch
    }

    async fn held(&self) -> Vec<String> {
        let sql = "SELECT concat_ws(' ', id, coalesce(v, '-'), coalesce(city, '-'), n) FROM copy ORDER BY id";
        crate::sink::shown(&self.client, sql).await
    }
}

/// Runs a story on the change log and on the write-ahead log, of both versions.
fn from_both_logs(rows: impl Fn() -> Rows, story: impl AsyncFn(Flow)) {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            base.admin().await.batch_execute(TABLES).await.expect("they are new");
            let client = base.client().await;
            install(&cx(), &client, &["things"], Wake::Silent).await.expect("it can be logged");
            let log = ChangeLog::open(&cx(), client, "it").await.expect("there is a log");
            story(Flow::new(&base.url(), &log, StartAt::Oldest, rows()).await).await;
        });
        // A server of its own: a new slot waits for every transaction of its server.
        let server = Server::start(version);
        block_on(async {
            let url = server.url("postgres");
            connect(&url).await.batch_execute(TABLES).await.expect("they are new");
            let mut settings = Settings::new("columns", "columns");
            settings.tables = vec!["things".to_owned()];
            let source = Replication::new(Config::new(&url).expect("a URL"), settings);
            story(Flow::new(&url, &source, StartAt::Now, rows()).await).await;
        });
    }
}

#[test]
fn a_column_that_is_dropped_or_renamed_in_flight_is_reported_and_empties_nothing() {
    from_both_logs(rows, async |mut flow| {
        flow.carry("INSERT INTO things VALUES (1, 'one', '{\"city\": \"Brest\"}', 1), (2, 'two', '{}', 1)", 2).await;
        assert_eq!(flow.held().await, ["1 one Brest 1", "2 two - 1"]);
        flow.run("ALTER TABLE things DROP COLUMN v").await;
        let cause = "\"public\".\"copy\" has a column \"v\", but public.things reports no column \"v\" (any more) to fill it from";
        let first = flow.refused("UPDATE things SET n = 2 WHERE id = 1", cause).await;
        assert_eq!(flow.held().await, ["1 one Brest 1", "2 two - 1"], "nothing was written");
        // A person mends the target, and the stream goes on where it stood.
        let repaired = [("id", "id"), ("city", "place.city"), ("n", "n")];
        let repaired =
            repaired.iter().fold(Rows::into("public.copy").expect("a name"), |rows, (a, b)| rows.column(a, b));
        flow.fixture = SinkFixture::newer(flow.client.clone(), repaired, 2).await;
        let answer = flow.fixture.deliver(1, &first).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        flow.seq = 1;
        assert_eq!(flow.held().await, ["1 one Brest 2", "2 two - 1"]);
        // The same for the inside of a field.
        flow.run("ALTER TABLE things RENAME place TO address").await;
        let cause = "\"public\".\"copy\" has a column \"city\", but public.things reports no column \"place\" (any more) to fill it from";
        flow.refused("UPDATE things SET n = 3 WHERE id = 1", cause).await;
        assert_eq!(flow.held().await, ["1 one Brest 2", "2 two - 1"]);
    });
}

#[test]
fn what_is_missing_is_kept_where_that_is_asked_for() {
    from_both_logs(
        || rows().missing(Missing::Keep),
        async |mut flow| {
            flow.carry("INSERT INTO things VALUES (1, 'one', '{\"city\": \"Brest\"}', 1), (2, 'two', '{}', 1)", 2)
                .await;
            // What is told and what is missing of one row may come together: here they do, in one transaction of the source.
            let both = "BEGIN; UPDATE things SET v = 'last' WHERE id = 1; ALTER TABLE things DROP COLUMN v;
                UPDATE things SET n = 2; INSERT INTO things VALUES (3, '{}', 1); COMMIT";
            flow.carry(both, 4).await;
            assert_eq!(flow.held().await, ["1 last Brest 2", "2 two - 2", "3 none - 1"]);
            // A row takes it along to another key, and one that comes again begins anew.
            flow.carry("UPDATE things SET id = 4 WHERE id = 1", 2).await;
            assert_eq!(flow.held().await, ["2 two - 2", "3 none - 1", "4 last Brest 2"]);
            flow.carry("BEGIN; DELETE FROM things WHERE id = 2; INSERT INTO things VALUES (2, '{}', 7); COMMIT", 2)
                .await;
            assert_eq!(flow.held().await, ["2 none - 7", "3 none - 1", "4 last Brest 2"]);
            // Where the target has no such row, its new key gets the default.
            flow.run("DELETE FROM copy WHERE id = 4").await;
            flow.carry("UPDATE things SET id = 5 WHERE id = 4", 2).await;
            assert_eq!(flow.held().await, ["2 none - 7", "3 none - 1", "5 none Brest 2"]);
        },
    );
}

#[test]
fn what_is_missing_is_reported_or_kept_elsewhere_too() {
    let base = Base::schema(Version::V18);
    let table = base.table("typed");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, n int DEFAULT 7, v text)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let client = base.client().await;
        let rows = || Rows::into(&table).expect("a name");
        let fixture = SinkFixture::new(client.clone(), rows()).await;
        let context = SinkContext {
            grant: fixture.grant.clone(),
            stream: "orders".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes: 1,
            store: fixture.sink.checkpoints().store_identity(),
        };
        let change = |id: &'static str, body: &'static str| batch_of(&[(INSERT, Some(id), body)], Arc::new(JsonRows));
        let written = async |missing: Missing, batch: &Arc<Batch>| {
            let sink = VersionedRows::new(client.clone(), rows().missing(missing)).expect("a name");
            let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it opens") else {
                panic!("plain")
            };
            writer.write(&cx(), 0, batch, &[0]).await.expect("the server answers")
        };
        let lacking = change("1", r#"{"id":1,"v":"a"}"#);
        let reported = written(Missing::Refuse, &lacking).await;
        let cause = reported.rejected.first().map(|fault| fault.error.to_string()).unwrap_or_default();
        assert!(cause.contains("shop.orders reports no column \"n\""), "{cause}");
        let observation = format!("SELECT id || ' ' || n || ' ' || v FROM {table} ORDER BY id");
        assert_eq!(fixture.shown(&observation).await, Vec::<String>::new());
        assert!(written(Missing::Keep, &lacking).await.rejected.is_empty());
        assert_eq!(fixture.shown(&observation).await, ["1 7 a"]);
        // Neither the key nor what documents lack is a column that went.
        let keyless = written(Missing::Keep, &change("2", r#"{"n":1,"v":"a"}"#)).await;
        assert!(keyless.rejected[0].error.to_string().contains("does not tell its key"));
        let document = crate::sink::batch(&[(INSERT, Some("3"), r#"{"id":3,"v":"c"}"#)]);
        assert!(written(Missing::Refuse, &document).await.rejected.is_empty());
        assert_eq!(fixture.shown(&format!("SELECT v FROM {table} WHERE n IS NULL")).await, ["c"]);
        let deleted = batch_of(&[(Operation::Delete, Some("9"), r#"{"id":9}"#)], Arc::new(JsonRows));
        assert!(written(Missing::Refuse, &deleted).await.rejected.is_empty(), "a key is all that a delete needs");
    });
}
