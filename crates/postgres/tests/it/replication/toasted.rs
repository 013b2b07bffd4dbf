//! Large values that are not sent because they did not change.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Batch, ChangeStream, Limits, OpenedSink, Sink, SinkContext, Source, StartAt, Transacted};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{Client, Config, Mirror, Replication, Rows, Versioned, VersionedRows};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::sink::{SinkFixture, grant, shown};
use crate::support::{block_on, connect, cx};

const TABLES: &str = "CREATE TABLE things (id int PRIMARY KEY, n int, large text);
    ALTER TABLE things ALTER COLUMN large SET STORAGE EXTERNAL; CREATE TABLE copy (LIKE things INCLUDING ALL)";

/// A server of its own with these tables, and a client in a schema of this name.
async fn client(server: &Server, schema: &str) -> Client {
    let config = Config::new(&server.url("postgres")).and_then(|config| config.in_schema(schema));
    Client::open(&cx(), config.expect("a URL")).await.expect("the server is there")
}

fn source(server: &Server) -> Replication {
    let mut settings = Settings::new("toasted", "toasted");
    settings.tables = vec!["things".to_owned()];
    Replication::new(Config::new(&server.url("postgres")).expect("a URL"), settings)
}

/// Batches with so many changes in all.
async fn batches(stream: &mut dyn ChangeStream, changes: usize) -> Vec<Arc<Batch>> {
    let limits = Limits { rows: 1_000, bytes: 1 << 30, wait: Duration::from_millis(50) };
    let (begun, mut read) = (cx().now(), Vec::<Arc<Batch>>::new());
    while read.iter().map(|batch| batch.len()).sum::<usize>() < changes {
        assert!(cx().now().since(begun) < Duration::from_secs(60), "{read:?} of {changes} changes came");
        let batch = stream.next_batch(&cx(), limits).await.expect("it can be read");
        if !batch.is_empty() {
            read.push(Arc::new(batch));
        }
    }
    read
}

#[test]
fn a_row_keeps_its_large_values_when_its_key_changes() {
    let server = Server::start(Version::V18);
    block_on(async {
        let application = connect(&server.url("postgres")).await;
        application.batch_execute(TABLES).await.expect("they are new");
        let client_of_rows = client(&server, "of_rows").await;
        let rows = SinkFixture::new(client_of_rows.clone(), Rows::into("public.copy").expect("a name")).await;
        let mirror = Mirror::into("public.mirrored").expect("a name");
        let mirror = SinkFixture::new(client(&server, "of_mirror").await, mirror).await;
        let mut stages = [rows, mirror];
        let mut stream = source(&server).open(&cx(), StartAt::Now).await.expect("it opens");
        let mut seq = 0;
        for (sql, changes) in [
            ("INSERT INTO things VALUES (1, 1, repeat('x', 5000)), (2, 1, repeat('y', 6000))", 2),
            ("UPDATE things SET id = 3 WHERE id = 1", 2),
            ("UPDATE things SET n = 2 WHERE id = 3", 1),
            // There and back, with updates in between, of rows that this very transaction has made too.
            (
                "BEGIN; UPDATE things SET id = 1 WHERE id = 3; UPDATE things SET n = 5 WHERE id = 1;
                UPDATE things SET id = 4, n = 6 WHERE id = 1; INSERT INTO things VALUES (7, 1, repeat('z', 7000));
                UPDATE things SET id = 8 WHERE id = 7; UPDATE things SET id = 7 WHERE id = 2; COMMIT",
                10,
            ),
            ("UPDATE things SET id = id + 100", 6),
        ] {
            application.batch_execute(sql).await.expect("the application may");
            for batch in batches(&mut *stream, changes).await {
                seq += 1;
                for fixture in &mut stages {
                    let answer = fixture.deliver(seq, &batch).await.expect("the server answers");
                    assert!(matches!(answer, Transacted::Committed), "{sql}: {answer:?}");
                }
            }
            let row = "concat_ws(' ', id, n, length(large), left(large, 1))";
            let held =
                async |table: &str| shown(&client_of_rows, &format!("SELECT {row} FROM {table} ORDER BY id")).await;
            let there = held("things").await;
            assert_eq!(held("copy").await, there, "after {sql}");
            let documents = "(SELECT (json_populate_record(NULL::things, document)).* FROM mirrored) AS m";
            assert_eq!(held(documents).await, there, "after {sql}");
        }
        stream.close(&cx()).await.expect("it can be closed");
    });
}

/// What was there before the stream began is not in the target, so that nothing could be taken from there.
#[test]
fn values_that_are_nowhere_to_be_taken_from_are_no_nulls() {
    let server = Server::start(Version::V15);
    block_on(async {
        let application = connect(&server.url("postgres")).await;
        application.batch_execute(TABLES).await.expect("they are new");
        application.batch_execute("INSERT INTO things VALUES (1, 1, repeat('x', 5000))").await.expect("it is new");
        let client_of_rows = client(&server, "of_rows").await;
        let rows = || Rows::into("public.copy").expect("a name");
        let mirrored = |name: &str| Mirror::into(name).expect("a name");
        let of_rows = SinkFixture::new(client_of_rows.clone(), rows()).await;
        let of_mirror = SinkFixture::new(client(&server, "of_mirror").await, mirrored("public.mirrored")).await;
        let mut stages = [of_rows, of_mirror];
        let context = SinkContext {
            grant: grant(1),
            stream: "orders".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes: 1,
            store: stages[0].sink.checkpoints().store_identity(),
        };
        let elsewhere: [Box<dyn Sink>; 2] = [
            Box::new(Versioned::new(client_of_rows.clone(), mirrored("public.versioned"))),
            Box::new(VersionedRows::new(client_of_rows.clone(), rows()).expect("a name")),
        ];
        let mut stream = source(&server).open(&cx(), StartAt::Now).await.expect("it opens");
        for (sql, changes, wrong) in
            [("UPDATE things SET n = 2", 1, 0), ("UPDATE things SET id = 2", 2, 1), ("UPDATE things SET n = 3", 1, 0)]
        {
            application.batch_execute(sql).await.expect("the application may");
            let batches = batches(&mut *stream, changes).await;
            let [batch] = &batches[..] else { panic!("{batches:?}") };
            for fixture in &mut stages {
                let answer = fixture.deliver(1, batch).await.expect("the server answers");
                let Transacted::Rejected(faults) = answer else { panic!("{sql}: {answer:?}") };
                assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [wrong], "{sql}");
                let (reported, remedy) = (faults[0].error.to_string(), faults[0].error.advice().unwrap_or_default());
                assert!(reported.contains("leaves out large values"), "{reported}");
                assert!(remedy.contains("REPLICA IDENTITY FULL"), "{remedy}");
            }
            for sink in &elsewhere {
                let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it opens") else {
                    panic!("plain")
                };
                let rows: Vec<u32> = (0..).take(batch.len()).collect();
                let written = writer.write(&cx(), 0, batch, &rows).await.expect("the server answers");
                assert_eq!(written.rejected.iter().map(|fault| fault.row).collect::<Vec<_>>(), [wrong], "{sql}");
                assert!(written.rejected[0].error.to_string().contains("leaves out large values"));
            }
        }
        for table in ["copy", "mirrored", "versioned WHERE deleted IS NULL"] {
            assert_eq!(shown(&client_of_rows, &format!("SELECT count(*)::text FROM {table}")).await, ["0"], "{table}");
        }
        stream.close(&cx()).await.expect("it can be closed");
    });
}
