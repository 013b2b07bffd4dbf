//! Rows in tables whose columns have types of their own.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    ChangeStream, ErrorKind, Limits, OpenedSink, Operation, Sink, SinkContext, SinkWriter, Source, StartAt, Transacted,
};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{ChangeLog, Client, Config, Replication, Rows, Transactional, VersionedRows};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::sink::{INSERT, Row, SinkFixture, batch, grant, shown};
use crate::support::{Base, assert_error, block_on, connect, cx};

/// Every kind of type that PostgreSQL has, in a table and in one that is like it.
const TYPES: &str = r#"
CREATE TYPE mood AS ENUM ('calm', 'rough sea');
CREATE TABLE things (id bigint, part text, small smallint, whole int, exact numeric, scaled numeric(40, 12), real float8,
    flag bool, words text, short varchar(10), at timestamptz, local timestamp, day date, length interval, doc jsonb, raw json,
    bytes bytea, tag uuid, numbers int[], texts text[], grid int[][], feeling mood, feelings mood[], net inet, span int4range,
    PRIMARY KEY (id, part));
CREATE TABLE copy (LIKE things INCLUDING ALL)"#;

/// Rows with what is easily lost: long numbers, zeros at their ends, quotes, nulls, signs, infinities and bytes that are no text.
const FIRST: &str = r#"
INSERT INTO things VALUES
    (1, 'a', -32768, 2147483647, 12345678901234567890123456789.123456789012345678901234567890, 1.500000000000, 0.1, true,
     E'quote " slash \\ line \n tab \t nul-like \\0 é', 'short', '2026-01-02 03:04:05.678901+02', '0044-03-15 12:00:00 BC', '9999-12-31',
     '1 year 2 mons -3 days 04:05:06.789', '{"a": [1, 2.50, null, {"b": "c"}], "n": 12345678901234567890.10}', '{"z":1,"a":2}',
     '\x00ff5c27', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{1,NULL,-3}', '{"a,b","c\"d",NULL,"null",""}', '{{1,2},{3,4}}',
     'rough sea', '{calm,"rough sea"}', '10.0.0.0/8', '[1,10)'),
    (2, 'a', NULL, NULL, 'NaN', NULL, 'NaN', NULL, '', NULL, 'infinity', '-infinity', 'infinity', '0', '{}', 'true',
     '', NULL, '{}', '{}', '{}', NULL, NULL, '::1', 'empty'),
    (2, 'b', 0, 0, 100, 0, '-Infinity', false, 'b', '', '1969-12-31 23:59:59.999999+00', '2000-02-29', '0001-01-01', '-1 day', '"text"',
     '[]', '\x', '00000000-0000-0000-0000-000000000000', '{0}', '{x}', NULL, 'calm', '{}', '1.2.3.4', '(,)')"#;

/// Everything that can become of a row.
const THEN: &str = "
UPDATE things SET scaled = 2.5, doc = doc || '{\"x\": 1.10}', numbers = numbers || 9 WHERE id = 1;
UPDATE things SET part = 'c' WHERE id = 2 AND part = 'b';
DELETE FROM things WHERE id = 2 AND part = 'a';
INSERT INTO things (id, part, words) VALUES (3, 'large', (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 3000) g));
UPDATE things SET whole = 7 WHERE id = 3";

/// What a table holds, as text.
async fn held(client: &Client, table: &str) -> Vec<String> {
    shown(client, &format!("SELECT t::text FROM {table} t ORDER BY id, part")).await
}

/// Delivers until so many changes are through.
async fn carry(stream: &mut dyn ChangeStream, fixture: &mut SinkFixture, seq: &mut u64, changes: usize) {
    let limits = Limits { rows: 1_000, bytes: 1 << 30, wait: Duration::from_millis(50) };
    let (begun, mut through) = (cx().now(), 0);
    while through < changes {
        assert!(cx().now().since(begun) < Duration::from_secs(60), "{through} of {changes} changes came");
        let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("it can be read"));
        if !batch.is_empty() {
            *seq += 1;
            let answer = fixture.deliver(*seq, &batch).await.expect("the server answers");
            assert!(matches!(answer, Transacted::Committed), "{answer:?}");
            through += batch.len();
        }
    }
}

/// Changes `things` in every way, and looks after each step whether `copy` is the same.
async fn assert_same(url: &str, source: &dyn Source, start: StartAt) {
    let client = Client::open(&cx(), Config::new(url).expect("a URL")).await.expect("the server is there");
    let application = connect(url).await;
    let mut fixture = SinkFixture::new(client.clone(), Rows::into("public.copy").expect("a name")).await;
    let (mut stream, mut seq) = (source.open(&cx(), start).await.expect("it opens"), 0);
    // The key of one is changed, which is two changes.
    for (sql, changes) in [(FIRST, 3), (THEN, 6), ("TRUNCATE things", 1), (FIRST, 3)] {
        application.batch_execute(sql).await.expect("the application may");
        carry(&mut *stream, &mut fixture, &mut seq, changes).await;
        assert_eq!(held(&client, "copy").await, held(&client, "things").await, "after {sql}");
    }
    assert_eq!(held(&client, "copy").await.len(), 3);
    stream.close(&cx()).await.expect("it can be closed");
}

#[test]
fn rows_of_every_type_arrive_from_the_change_log_as_they_are() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            base.admin().await.batch_execute(TYPES).await.expect("they are new");
            let client = base.client().await;
            install(&cx(), &client, &["things"], Wake::Silent).await.expect("it can be logged");
            let log = ChangeLog::open(&cx(), client, "it").await.expect("there is a log");
            assert_same(&base.url(), &log, StartAt::Oldest).await;
        });
    }
}

#[test]
fn rows_of_every_type_arrive_from_the_write_ahead_log_as_they_are() {
    for version in Version::ALL {
        // A server of its own: a new slot waits for every transaction of its server.
        let server = Server::start(version);
        block_on(async {
            let url = server.url("postgres");
            connect(&url).await.batch_execute(TYPES).await.expect("they are new");
            let mut settings = Settings::new("rows", "rows");
            settings.tables = vec!["things".to_owned()];
            let source = Replication::new(Config::new(&url).expect("a URL"), settings);
            assert_same(&url, &source, StartAt::Now).await;
        });
    }
}

#[test]
fn columns_are_taken_from_the_fields_that_are_named() {
    let base = Base::schema(Version::V18);
    let table = base.table("towns");
    block_on(async {
        let sql = format!(
            "CREATE TABLE {table} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, city text, address jsonb,
                seen timestamptz NOT NULL DEFAULT '2026-01-01', loud text GENERATED ALWAYS AS (upper(city)) STORED)"
        );
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let rows = Rows::into(&table).expect("a name").column("id", "_id").column("city", "address.city");
        let mut fixture = SinkFixture::new(base.client().await, rows.column("address", "address")).await;
        let first = r#"{"_id":7,"address":{"city":"Brest","n":1.10}}"#;
        let changes: [Row<'_>; 3] = [
            (INSERT, Some("7"), first),
            (INSERT, Some("8"), r#"{"_id":8,"address":null}"#),
            (INSERT, Some("9"), r#"{"_id":9}"#),
        ];
        fixture.committed(1, &changes).await;
        let observation =
            format!("SELECT concat_ws(' ', id, city, loud, address, seen::date) FROM {table} ORDER BY id");
        let reported = [r#"7 Brest BREST {"n": 1.10, "city": "Brest"} 2026-01-01"#, "8 2026-01-01", "9 2026-01-01"];
        assert_eq!(fixture.shown(&observation).await, reported);
        // Documents tell of a deleted one its key alone.
        fixture.committed(2, &[(Operation::Delete, Some("7"), r#"{"documentKey":{"_id":7}}"#)]).await;
        fixture.committed(3, &[(Operation::Delete, Some("8"), r#"{"_id":8}"#)]).await;
        assert_eq!(fixture.shown(&observation).await, ["9 2026-01-01"]);
    });
}

#[test]
fn a_value_that_does_not_fit_its_column_is_found_among_many() {
    let base = Base::schema(Version::V15);
    let table = base.table("typed");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let good: [Row<'_>; 2] = [(INSERT, Some("1"), r#"{"id":1,"n":1}"#), (INSERT, Some("2"), r#"{"id":2,"n":2}"#)];
        for (wrong, code) in [
            (r#"{"id":3,"n":"three"}"#, "22P02"),
            (r#"{"id":3,"n":3000000000}"#, "22003"),
            (r#"{"id":3}"#, "23502"),
            (r#"{"n":3}"#, "does not tell its key"),
        ] {
            let rows = [good[0], (INSERT, Some("3"), wrong), good[1]];
            let answer = fixture.transact(1, &rows).await.expect("the server answers");
            let Transacted::Rejected(faults) = answer else { panic!("{wrong}: {answer:?}") };
            assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [1], "{wrong}");
            assert!(faults[0].error.to_string().contains(code), "{}", faults[0].error);
        }
        fixture.committed(1, &good).await;
        assert_eq!(fixture.shown(&format!("SELECT n::text FROM {table} ORDER BY id")).await, ["1", "2"]);
    });
}

#[test]
fn a_table_that_rows_cannot_be_written_into_is_reported_why() {
    let base = Base::schema(Version::V15);
    let table = base.table("towns");
    block_on(async {
        let check = async |rows: Rows| {
            let sink = Transactional::open(&cx(), base.client().await, rows).await.expect("the tables can be made");
            sink.check(&cx()).await
        };
        let rows = || Rows::into(&table).expect("a name");
        assert_error(check(rows()).await, ErrorKind::Config, "there is no table");
        let admin = base.admin().await;
        let sql =
            format!("CREATE TABLE {table} (id int, city text, loud text GENERATED ALWAYS AS (upper(city)) STORED)");
        admin.batch_execute(&sql).await.expect("it is new");
        assert_error(check(rows()).await, ErrorKind::Config, "has no primary key");
        admin.batch_execute(&format!("ALTER TABLE {table} ADD PRIMARY KEY (id)")).await.expect("it is empty");
        check(rows()).await.expect("now it can");
        assert_error(check(rows().column("city", "city")).await, ErrorKind::Config, "is taken from nothing");
        let id = || rows().column("id", "id");
        assert_error(check(id().column("town", "city")).await, ErrorKind::Config, "has no column \"town\"");
        assert_error(check(id().column("loud", "city")).await, ErrorKind::Config, "computes \"loud\"");
    });
}

pub(crate) async fn opened(sink: &VersionedRows, fixture: &SinkFixture) -> Arc<dyn SinkWriter> {
    let context = SinkContext {
        grant: grant(1),
        stream: "orders".to_owned(),
        sink: "copy".to_owned(),
        partition: 0,
        lanes: 1,
        store: fixture.sink.checkpoints().store_identity(),
    };
    let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it opens") else { panic!("plain") };
    writer
}

pub(crate) async fn write(writer: &dyn SinkWriter, changes: &[Row<'_>]) -> Vec<u32> {
    let batch = batch(changes);
    let rows: Vec<u32> = (0..).take(batch.len()).collect();
    let written = writer.write(&cx(), 0, &batch, &rows).await.expect("the server answers");
    assert_eq!(written.done, rows.len());
    written.rejected.iter().map(|fault| fault.row).collect()
}

#[test]
fn rows_elsewhere_let_no_older_version_win() {
    let base = Base::schema(Version::V15);
    let table = base.table("typed");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let client = base.client().await;
        let rows = Rows::into(&table).expect("a name");
        let fixture = SinkFixture::new(client.clone(), rows.clone()).await;
        let sink = VersionedRows::new(client.clone(), rows).expect("a name");
        let writer = opened(&sink, &fixture).await;
        // Versions count from 1 in every batch.
        let newer: [Row<'_>; 4] = [
            (INSERT, Some("9"), r#"{"id":9,"n":9}"#),
            (INSERT, Some("1"), r#"{"id":1,"n":2}"#),
            (Operation::Delete, Some("2"), r#"{"id":2}"#),
            (INSERT, Some("3"), r#"{"id":3,"n":"three"}"#),
        ];
        assert_eq!(write(&*writer, &newer).await, [3], "what does not fit is told, the rest is written");
        let older: [Row<'_>; 2] = [(INSERT, Some("1"), r#"{"id":1,"n":1}"#), (INSERT, Some("2"), r#"{"id":2,"n":1}"#)];
        assert_eq!(write(&*writer, &older).await, [0_u32; 0]);
        // The same versions as the newer ones have, as when a change is delivered again.
        let equal: [Row<'_>; 3] = [
            (INSERT, Some("9"), r#"{"id":9,"n":1}"#),
            (INSERT, Some("1"), r#"{"id":1,"n":1}"#),
            (INSERT, Some("2"), r#"{"id":2,"n":1}"#),
        ];
        assert_eq!(write(&*writer, &equal).await, [0_u32; 0]);
        let observation = format!("SELECT id || ' ' || n FROM {table} ORDER BY id");
        assert_eq!(
            shown(&client, &observation).await,
            ["1 2", "9 9"],
            "the older insert did not bring back what was deleted"
        );
        // A truncate takes away what is older than it, and lets nothing older come.
        let nothing = r#"{"id":5,"n":5}"#;
        let filler = (INSERT, Some("5"), nothing);
        write(
            &*writer,
            &[
                filler,
                filler,
                filler,
                filler,
                (Operation::Truncate, None, ""),
                (INSERT, Some("6"), r#"{"id":6,"n":6}"#),
            ],
        )
        .await;
        assert_eq!(shown(&client, &observation).await, ["6 6"]);
        write(&*writer, &older).await;
        assert_eq!(shown(&client, &observation).await, ["6 6"]);
    });
}

/// Two who write the same rows at once, the one newer versions than the other: the newer win, whoever comes first.
#[test]
fn the_newest_version_wins_among_writers_at_the_same_time() {
    let base = Base::schema(Version::V18);
    let table = base.table("raced");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let client = base.client().await;
        let rows = Rows::into(&table).expect("a name");
        let fixture = SinkFixture::new(client.clone(), rows.clone()).await;
        let sink = VersionedRows::new(client.clone(), rows).expect("a name");
        let (one, two) = (opened(&sink, &fixture).await, opened(&sink, &fixture).await);
        for round in 0..30 {
            let ids: Vec<String> = (0..20).map(|n| (round * 20 + n).to_string()).collect();
            let inserts: Vec<String> = ids.iter().map(|id| format!(r#"{{"id":{id},"n":1}}"#)).collect();
            let deletes: Vec<String> = ids.iter().map(|id| format!(r#"{{"id":{id}}}"#)).collect();
            let older: Vec<Row<'_>> =
                ids.iter().zip(&inserts).map(|(id, body)| (INSERT, Some(id.as_str()), body.as_str())).collect();
            let gone = ids.iter().zip(&deletes).map(|(id, body)| (Operation::Delete, Some(id.as_str()), body.as_str()));
            let newer: Vec<Row<'_>> = older.iter().copied().chain(gone).collect();
            let (a, b) = tokio::join!(write(&*one, &older), write(&*two, &newer));
            assert!(a.is_empty() && b.is_empty());
        }
        assert_eq!(shown(&client, &format!("SELECT id::text FROM {table}")).await, Vec::<String>::new());
    });
}

#[test]
fn many_rows_are_written_by_few_statements() {
    let base = Base::schema(Version::V18);
    let table = base.table("counted");
    block_on(async {
        let sql = format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL); CREATE TABLE {table}_statements (x int);
            CREATE FUNCTION {table}_count() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO {table}_statements VALUES (1); RETURN NULL; END $$;
            CREATE TRIGGER counted AFTER INSERT OR DELETE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_count()"
        );
        base.admin().await.batch_execute(&sql).await.expect("they are new");
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let bodies: Vec<(String, String)> =
            (0..9_000).map(|n| ((n % 3_000).to_string(), format!(r#"{{"id":{},"n":{n}}}"#, n % 3_000))).collect();
        let mut rows: Vec<Row<'_>> =
            bodies.iter().map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
        rows.extend(bodies[..1_000].iter().map(|(key, body)| (Operation::Delete, Some(key.as_str()), body.as_str())));
        let begun = std::time::Instant::now();
        fixture.committed(1, &rows).await;
        let together = begun.elapsed();
        assert_eq!(fixture.shown(&format!("SELECT count(*)::text FROM {table}_statements")).await, ["2"]);
        assert_eq!(fixture.shown(&format!("SELECT count(*) || ' ' || min(n) FROM {table}")).await, ["2000 7000"]);
        let begun = std::time::Instant::now();
        for (seq, row) in (2..).zip(&rows[..200]) {
            fixture.committed(seq, std::slice::from_ref(row)).await;
        }
        println!(
            "{:?} for a change of 10,000 that come together, {:?} for one alone",
            together / 10_000,
            begun.elapsed() / 200
        );
    });
}

/// Tried again it would take as long, so that a person has to be told what to change.
#[test]
fn a_transaction_that_takes_too_long_names_what_bounds_it() {
    let base = Base::schema(Version::V15);
    let table = base.table("slow");
    block_on(async {
        let sql = format!(
            "CREATE TABLE {table} (id int PRIMARY KEY); CREATE FUNCTION {table}_slowly() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$;
            CREATE TRIGGER slowly BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_slowly()"
        );
        base.admin().await.batch_execute(&sql).await.expect("they are new");
        let mut config = base.config();
        config.timeout = Duration::from_secs(3);
        let client = Client::open(&cx(), config).await.expect("the server is there");
        let mut fixture = SinkFixture::new(client, Rows::into(&table).expect("a name")).await;
        let error = fixture.transact(1, &[(INSERT, Some("1"), r#"{"id":1}"#)]).await.expect_err("it takes a minute");
        let (reported, remedy) = (error.to_string(), error.advice().unwrap_or_default().to_owned());
        assert!(reported.contains("1 changes in one transaction take longer than the lease leaves"), "{reported}");
        assert!(remedy.contains("`batch`") && remedy.contains("`lease`"), "{remedy}");
        // The server itself has ended it, so that less can be tried at once, in the same tenure.
        assert!(error.is_late() && error.kind() == ErrorKind::Unavailable, "{error:?}");
    });
}
