//! Targets that change, or hide rows, while rows are written into them.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::payload::JsonRows;
use watchkeeper_core::{Batch, ErrorKind, OpenedSink, Operation, Sink, SinkContext, SinkWriter, Transacted};
use watchkeeper_postgres::{Apply, Client, Events, Mirror, Rows, Transactional, VersionedRows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::logged::Logged;
use crate::sink::{INSERT, Row, SinkFixture, batch_of, grant, shown};
use crate::support::{Base, assert_error, block_on, cx};

/// Rows of a source that tells every column.
fn rows(rows: &[Row<'_>]) -> Arc<Batch> {
    batch_of(rows, Arc::new(JsonRows))
}

async fn commit(fixture: &mut SinkFixture, seq: u64, changes: &[Row<'_>]) {
    let answer = fixture.deliver(seq, &rows(changes)).await.expect("the server answers");
    assert!(matches!(answer, Transacted::Committed), "{answer:?}");
}

#[test]
fn a_column_that_comes_while_rows_are_written_is_written_from_the_first_change_that_tells_it() {
    let base = Base::schema(Version::V15);
    let table = base.table("followed");
    block_on(async {
        let admin = base.admin().await;
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter("CREATE TABLE $t (id int PRIMARY KEY, v text, gone int)").await;
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let held = format!("SELECT t::text FROM {table} t ORDER BY id");
        commit(&mut fixture, 1, &[(INSERT, Some("1"), r#"{"id":1,"v":"a","gone":1,"left":0}"#)]).await;
        // A column that came to the target only is not asked of a source that does not tell it yet, also when the table is looked at.
        alter("ALTER TABLE $t ADD x int").await;
        commit(&mut fixture, 2, &[(INSERT, Some("2"), r#"{"id":2,"v":"b","gone":1,"left":0,"other":0}"#)]).await;
        let both: [Row<'_>; 3] = [
            (INSERT, Some("3"), r#"{"id":3,"v":"c","gone":1,"left":0}"#),
            (INSERT, Some("4"), r#"{"id":4,"v":"d","gone":1,"left":0,"x":44}"#),
            (Operation::Update, Some("1"), r#"{"id":1,"v":"a","gone":1,"left":0,"x":11}"#),
        ];
        let answer = fixture.deliver(3, &rows(&both)).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        assert_eq!(fixture.shown(&held).await, ["(1,a,1,11)", "(2,b,1,)", "(3,c,1,)", "(4,d,1,44)"]);
        // One that goes is written no more.
        alter("ALTER TABLE $t DROP gone").await;
        commit(&mut fixture, 4, &[(INSERT, Some("5"), r#"{"id":5,"v":"e","gone":1,"left":0,"x":55}"#)]).await;
        assert_eq!(fixture.shown(&format!("SELECT x::text FROM {table} WHERE id = 5")).await, ["55"]);
        // One that comes after its field is found a second later.
        alter("ALTER TABLE $t ADD \"left\" int").await;
        let begun = std::time::Instant::now();
        for seq in 5.. {
            assert!(begun.elapsed() < Duration::from_secs(30), "the column is not found");
            commit(&mut fixture, seq, &[(INSERT, Some("6"), r#"{"id":6,"v":"f","left":7,"x":66,"gone":1}"#)]).await;
            if fixture.shown(&format!("SELECT \"left\"::text FROM {table} WHERE id = 6 AND \"left\" = 7")).await
                == ["7"]
            {
                break;
            }
        }
    });
}

pub(crate) async fn opened(sink: &dyn Sink, fixture: &SinkFixture) -> Arc<dyn SinkWriter> {
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

#[test]
fn a_column_that_comes_is_written_by_versioned_rows_too() {
    let base = Base::schema(Version::V18);
    let table = base.table("versioned");
    block_on(async {
        let admin = base.admin().await;
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter("CREATE TABLE $t (id int PRIMARY KEY, v text, gone int)").await;
        let client = base.client().await;
        let target = Rows::into(&table).expect("a name");
        let fixture = SinkFixture::new(client.clone(), target.clone()).await;
        let writer = opened(&VersionedRows::new(client.clone(), target).expect("a name"), &fixture).await;
        let put = async |changes: &[Row<'_>]| {
            let (batch, places) = (rows(changes), (0..).take(changes.len()).collect::<Vec<u32>>());
            let written = writer.write(&cx(), 0, &batch, &places).await.expect("the server answers");
            assert!(written.rejected.is_empty(), "{written:?}");
        };
        put(&[(INSERT, Some("1"), r#"{"id":1,"v":"a","gone":1}"#)]).await;
        alter("ALTER TABLE $t ADD x int").await;
        let both: [Row<'_>; 2] = [
            (INSERT, Some("2"), r#"{"id":2,"v":"b","gone":1}"#),
            (INSERT, Some("3"), r#"{"id":3,"v":"c","gone":1,"x":33}"#),
        ];
        put(&both).await;
        alter("ALTER TABLE $t DROP gone").await;
        put(&[(INSERT, Some("4"), r#"{"id":4,"v":"d","gone":1,"x":44}"#)]).await;
        let held = shown(&client, &format!("SELECT t::text FROM {table} t ORDER BY id")).await;
        assert_eq!(held, ["(1,a,)", "(2,b,)", "(3,c,33)", "(4,d,44)"]);
    });
}

#[test]
fn columns_that_come_one_after_another_are_written_also_within_one_batch() {
    let base = Base::schema(Version::V15);
    let (here, there) = (base.table("here"), base.table("there"));
    block_on(async {
        let admin = base.admin().await;
        let client = base.client().await;
        for table in [&here, &there] {
            let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY)");
            admin.batch_execute(&sql).await.expect("it is new");
        }
        let mut fixture = SinkFixture::new(client.clone(), Rows::into(&here).expect("a name")).await;
        let target = Rows::into(&there).expect("a name");
        let writer = opened(&VersionedRows::new(client.clone(), target).expect("a name"), &fixture).await;
        for table in [&here, &there] {
            admin.batch_execute(&format!("ALTER TABLE {table} ADD x int, ADD y int")).await.expect("it may");
        }
        // The source had both later, one after the other: a change is not asked for a column that it could not tell.
        let changes: [Row<'_>; 4] = [
            (INSERT, Some("1"), r#"{"id":1}"#),
            (INSERT, Some("2"), r#"{"id":2,"x":22,"left":0}"#),
            (INSERT, Some("3"), r#"{"id":3,"x":33,"other":0}"#),
            (INSERT, Some("4"), r#"{"id":4,"x":44,"y":444}"#),
        ];
        commit(&mut fixture, 1, &changes).await;
        let written = writer.write(&cx(), 0, &rows(&changes), &[0, 1, 2, 3]).await.expect("the server answers");
        assert!(written.rejected.is_empty(), "{written:?}");
        for table in [&here, &there] {
            let held = shown(&client, &format!("SELECT t::text FROM {table} t ORDER BY id")).await;
            assert_eq!(held, ["(1,,)", "(2,22,)", "(3,33,)", "(4,44,444)"], "{table}");
        }
    });
}

#[test]
fn a_column_that_comes_is_written_also_where_others_are_looked_for_at_the_same_time() {
    let base = Base::schema(Version::V15);
    let (here, there) = (base.table("here"), base.table("there"));
    block_on(async {
        let admin = base.admin().await;
        let client = base.client().await;
        for table in [&here, &there] {
            let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY)");
            admin.batch_execute(&sql).await.expect("it is new");
        }
        let mut fixture = SinkFixture::new(client.clone(), Rows::into(&here).expect("a name")).await;
        let target = Rows::into(&there).expect("a name");
        let writer = opened(&VersionedRows::new(client.clone(), target).expect("a name"), &fixture).await;
        let first: [Row<'_>; 1] = [(INSERT, Some("1"), r#"{"id":1,"left":0}"#)];
        commit(&mut fixture, 1, &first).await;
        writer.write(&cx(), 0, &rows(&first), &[0]).await.expect("the server answers");
        for table in [&here, &there] {
            admin.batch_execute(&format!("ALTER TABLE {table} ADD x int")).await.expect("it may");
        }
        // After so long the table is looked at again for `left`, before it is known that `x` is told, too.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let second: [Row<'_>; 1] = [(INSERT, Some("2"), r#"{"id":2,"left":0,"x":22}"#)];
        commit(&mut fixture, 2, &second).await;
        writer.write(&cx(), 0, &rows(&second), &[0]).await.expect("the server answers");
        for table in [&here, &there] {
            let held = shown(&client, &format!("SELECT t::text FROM {table} t ORDER BY id")).await;
            assert_eq!(held, ["(1,)", "(2,22)"], "{table}");
        }
    });
}

#[test]
fn a_key_that_the_server_cannot_find_rows_by_is_refused_and_one_that_includes_more_is_taken() {
    let base = Base::schema(Version::V15);
    let table = base.table("keyed");
    block_on(async {
        let client = base.client().await;
        let admin = base.admin().await;
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter("CREATE TABLE $t (id int PRIMARY KEY DEFERRABLE, v text)").await;
        let sink = Transactional::open(&cx(), client.clone(), Rows::into(&table).expect("a name")).await;
        let sink = sink.expect("the tables can be made");
        assert_error(sink.check(&cx()).await, ErrorKind::Config, "is DEFERRABLE");
        alter("DROP TABLE $t; CREATE TABLE $t (id int, v text, PRIMARY KEY (id) INCLUDE (v))").await;
        let mut fixture = SinkFixture::new(client, Rows::into(&table).expect("a name")).await;
        commit(&mut fixture, 1, &[(INSERT, Some("1"), r#"{"id":1,"v":"a"}"#)]).await;
        commit(&mut fixture, 2, &[(Operation::Update, Some("1"), r#"{"id":1,"v":"b"}"#)]).await;
        assert_eq!(fixture.shown(&format!("SELECT t::text FROM {table} t")).await, ["(1,b)"]);
    });
}

/// A client of a role that policies apply to.
async fn mate(base: &Base) -> (Client, String) {
    let user = base.user().await;
    let sql = format!(
        "GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}; GRANT USAGE ON SCHEMA {schema} TO {user}",
        schema = base.schema_name()
    );
    let events = Events::into(&base.table("made")).expect("a name");
    Transactional::open(&cx(), base.client().await, events).await.expect("the tables can be made");
    base.admin().await.batch_execute(&sql).await.expect("the superuser may");
    (Client::open(&cx(), base.config_of(&user)).await.expect("the server is there"), user)
}

#[test]
fn a_target_whose_rows_are_hidden_is_refused_and_nothing_is_passed_over_in_silence() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let (client, user) = mate(&base).await;
        let admin = base.admin().await;
        let table = base.table("hidden");
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter(&format!("CREATE TABLE $t (id int PRIMARY KEY, v text); GRANT ALL ON $t TO {user}; CREATE POLICY visible ON $t USING (v <> 'hidden')")).await;
        let mut fixture = SinkFixture::new(client.clone(), Rows::into(&table).expect("a name")).await;
        commit(&mut fixture, 1, &[(INSERT, Some("1"), r#"{"id":1,"v":"hidden"}"#)]).await;
        alter("ALTER TABLE $t ENABLE ROW LEVEL SECURITY").await;
        let deleted = fixture.deliver(2, &rows(&[(Operation::Delete, Some("1"), r#"{"id":1}"#)])).await;
        let remedy = deleted.as_ref().err().and_then(|error| error.advice()).unwrap_or_default().to_owned();
        assert!(remedy.contains("BYPASSRLS"), "{deleted:?}");
        assert_error(deleted, ErrorKind::Denied, "row-level security");
        let rows =
            Transactional::open(&cx(), client.clone(), Rows::into(&table).expect("a name")).await.expect("it opens");
        assert_error(rows.check(&cx()).await, ErrorKind::Config, "hide rows from this role");
        let mirror = base.table("mirrored");
        let made = Mirror::into(&mirror).expect("a name");
        made.prepare(&cx(), &base.client().await).await.expect("it can be made");
        admin.batch_execute(&format!("ALTER TABLE {mirror} ENABLE ROW LEVEL SECURITY")).await.expect("it may");
        assert_error(made.prepare(&cx(), &client).await, ErrorKind::Config, "hide rows from this role");
        alter(&format!("ALTER ROLE {user} BYPASSRLS")).await;
        made.prepare(&cx(), &client).await.expect("it sees all rows");
    });
}

/// Changes of a source with a field `amount` that the target has no column for, each in a batch of its own. By the time of all but the
/// first the column of `item` has another name. The second tells one more field, for which the table is looked at before it is written.
const RENAMED: [Row<'_>; 4] = [
    (INSERT, Some("1"), r#"{"id":1,"item":"one","amount":1}"#),
    (INSERT, Some("2"), r#"{"id":2,"item":"two","amount":2,"other":0}"#),
    (INSERT, Some("3"), r#"{"id":3,"item":"three","amount":3,"other":0}"#),
    (Operation::Update, Some("1"), r#"{"id":1,"item":"ONE","amount":1,"other":0}"#),
];

#[test]
fn a_renamed_column_rejects_changes_also_where_another_field_has_no_column() {
    let base = Base::schema(Version::V15);
    let table = base.table("renamed");
    block_on(async {
        let admin = base.admin().await;
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter("CREATE TABLE $t (id int PRIMARY KEY, item text)").await;
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        commit(&mut fixture, 1, &RENAMED[..1]).await;
        alter("ALTER TABLE $t RENAME item TO thing").await;
        for change in &RENAMED[1..] {
            let answer = fixture.deliver(2, &rows(&[*change])).await.expect("the server answers");
            let Transacted::Rejected(faults) = &answer else { panic!("{change:?}: {answer:?}") };
            assert!(faults[0].error.to_string().contains("\"thing\""), "{faults:?}");
        }
        let held = format!("SELECT t::text FROM {table} t ORDER BY id");
        assert_eq!(fixture.shown(&held).await, ["(1,one)"]);
        // Under its old name it takes the field again.
        alter("ALTER TABLE $t RENAME thing TO item").await;
        let begun = std::time::Instant::now();
        let again = rows(&RENAMED[1..]);
        while !matches!(fixture.deliver(2, &again).await.expect("the server answers"), Transacted::Committed) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the column is not found");
        }
        assert_eq!(fixture.shown(&held).await, ["(1,ONE)", "(2,two)", "(3,three)"]);
    });
}

#[test]
fn a_renamed_column_rejects_changes_of_versioned_rows_too() {
    let base = Base::schema(Version::V18);
    let table = base.table("renamed_v");
    block_on(async {
        let admin = base.admin().await;
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter("CREATE TABLE $t (id int PRIMARY KEY, item text)").await;
        let client = base.client().await;
        let target = Rows::into(&table).expect("a name");
        let fixture = SinkFixture::new(client.clone(), target.clone()).await;
        let writer = opened(&VersionedRows::new(client.clone(), target).expect("a name"), &fixture).await;
        let put = async |change: &Row<'_>| {
            writer.write(&cx(), 0, &rows(&[*change]), &[0]).await.expect("the server answers").rejected
        };
        assert!(put(&RENAMED[0]).await.is_empty());
        alter("ALTER TABLE $t RENAME item TO thing").await;
        for change in &RENAMED[1..] {
            let rejected = put(change).await;
            assert!(
                rejected.len() == 1 && rejected[0].error.to_string().contains("\"thing\""),
                "{change:?}: {rejected:?}"
            );
        }
        let held = shown(&client, &format!("SELECT t::text FROM {table} t ORDER BY id")).await;
        assert_eq!(held, ["(1,one)"]);
    });
}

#[test]
fn a_field_that_loses_its_column_is_warned_of_with_the_stream_and_the_sink() {
    let base = Base::schema(Version::V15);
    let (here, there) = (base.table("dropped"), base.table("dropped_v"));
    block_on(async {
        let admin = base.admin().await;
        for table in [&here, &there] {
            let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, v text, lost int, gone int)");
            admin.batch_execute(&sql).await.expect("it is new");
        }
        let logged = Logged::default();
        let _logging = tracing::subscriber::set_default(logged.clone());
        let client = base.client().await;
        let mut fixture = SinkFixture::new(client.clone(), Rows::into(&here).expect("a name")).await;
        let versioned = VersionedRows::new(client, Rows::into(&there).expect("a name")).expect("a name");
        let writer = opened(&versioned, &fixture).await;
        // One column is missed where the table is looked at for another field, and one where it is written.
        let bodies = [
            ("1", r#"{"id":1,"v":"a","lost":1,"gone":1,"left":0}"#, "lost"),
            ("2", r#"{"id":2,"v":"b","lost":2,"gone":2,"left":0,"other":0}"#, "gone"),
            ("3", r#"{"id":3,"v":"c","lost":3,"gone":3,"left":0,"other":0}"#, "v"),
        ];
        for (seq, (key, body, dropped)) in (1..).zip(bodies) {
            let change = [(INSERT, Some(key), body)];
            commit(&mut fixture, seq, &change).await;
            let written = writer.write(&cx(), 0, &rows(&change), &[0]).await.expect("the server answers");
            assert!(written.rejected.is_empty(), "{written:?}");
            for table in [&here, &there] {
                admin.batch_execute(&format!("ALTER TABLE {table} DROP {dropped}")).await.expect("it may");
            }
        }
        for table in ["dropped_test", "dropped_v_test"] {
            let has = |level: &str, field: &str| {
                let field = format!("field=\"{field}\"");
                logged.has(&["stream=\"orders\"", "sink=\"copy\"", table, level, &field])
            };
            assert!(has("INFO", "left"), "{table}: {:#?}", logged.lines());
            for field in ["lost", "gone"] {
                assert!(has("WARN", field) && !has("INFO", field), "{table}: {:#?}", logged.lines());
            }
        }
    });
}

#[test]
fn a_column_that_comes_behind_one_that_is_not_reported_has_its_own_type_also_beside_a_domain() {
    let base = Base::schema(Version::V15);
    let table = base.table("typed");
    block_on(async {
        let admin = base.admin().await;
        let alter = async |sql: &str| admin.batch_execute(&sql.replace("$t", &table)).await.expect("it may");
        alter("CREATE DOMAIN $t_name AS text; CREATE TABLE $t (id int PRIMARY KEY, v $t_name)").await;
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        commit(&mut fixture, 1, &[(INSERT, Some("1"), r#"{"id":1,"v":"a"}"#)]).await;
        alter("ALTER TABLE $t ADD x real, ADD y numeric").await;
        commit(&mut fixture, 2, &[(INSERT, Some("2"), r#"{"id":2,"v":"b","y":1.23456789012345}"#)]).await;
        assert_eq!(
            fixture.shown(&format!("SELECT t::text FROM {table} t WHERE id = 2")).await,
            ["(2,b,,1.23456789012345)"]
        );
    });
}
