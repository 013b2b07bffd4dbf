//! Tables of sinks with a dot or a quote in their names.

use watchkeeper_core::{Backend, OpenedSink, Purpose, Sink, Transacted};
use watchkeeper_postgres::{Client, Events, Mirror, Postgres, Rows, Table, Transactional, Versioned, VersionedRows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::backend::options;
use crate::sink::{INSERT, SinkFixture, batch, context, grant, shown};
use crate::support::{Base, assert_error, block_on, cx};

/// Tables as a file names them, and as SQL does.
const TABLES: [(&str, &str); 4] = [
    (r#""a.b""#, r#"public."a.b""#),
    (r#""my.schema"."a.b""#, r#""my.schema"."a.b""#),
    (r#""my.schema".plain"#, r#""my.schema".plain"#),
    (r#"my."say ""it's""""#, r#"my."say ""it's""""#),
];

/// Schemas and tables that a name would lead to if it were split at another dot.
const SCHEMAS: &str = r#"CREATE SCHEMA "my.schema"; CREATE SCHEMA my; CREATE SCHEMA a"#;

/// All tables of the database but ours, with their schemas.
const MADE: &str =
    "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname IN ('public', 'a', 'my', 'my.schema') ORDER BY 1";

/// The sink of a file with these settings.
async fn sink(base: &Base, mode: &str, table: &str) -> watchkeeper_core::Result<watchkeeper_core::Target> {
    let url = base.url();
    let settings = [("url", url.as_str()), ("mode", mode), ("table", table)];
    let mut checked = options(&settings);
    Postgres.check_sink(&cx(), &Purpose::new("g", "s"), &mut checked).await?;
    checked.finish()?;
    Postgres.sink(&cx(), &Purpose::new("g", "s"), &mut options(&settings)).await
}

async fn prepared(version: Version) -> (Base, Client) {
    let base = Base::new(version).await;
    base.admin().await.batch_execute(SCHEMAS).await.expect("they are new");
    let client = base.client().await;
    (base, client)
}

/// Writes one change through a sink that keeps no checkpoint.
async fn write_plain(sink: &impl Sink, client: &Client) {
    let fixture = Transactional::open(&cx(), client.clone(), Events::into("unused").expect("a name")).await;
    let context = context(&fixture.expect("it opens"), &grant(1));
    let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it can be opened") else {
        panic!("the sink opened with transactions");
    };
    let written = writer.write(&cx(), 0, &batch(&[(INSERT, Some("[1]"), r#"{"after":{"id":1}}"#)]), &[0]).await;
    let written = written.expect("the server answers");
    assert!(written.done == 1 && written.rejected.is_empty(), "{written:?}");
    assert!(writer.flush(&cx()).await.expect("it can be flushed").is_empty());
}

async fn commit(fixture: &mut SinkFixture, row: &str) {
    let answer = fixture.transact(1, &[(INSERT, Some("[1]"), row)]).await.expect("the server answers");
    assert!(matches!(answer, Transacted::Committed), "{answer:?}");
}

async fn count(client: &Client, table: &str) -> String {
    shown(client, &format!("SELECT count(*)::text FROM {table}")).await.remove(0)
}

#[test]
fn sinks_make_and_fill_tables_with_a_dot_in_their_names() {
    for version in Version::ALL {
        for mode in ["events", "mirror", "versioned"] {
            for (table, sql) in TABLES {
                block_on(async {
                    let (base, client) = prepared(version).await;
                    sink(&base, mode, table).await.expect("a file may name it");
                    match mode {
                        "events" => {
                            let mut fixture =
                                SinkFixture::new(client.clone(), Events::into(table).expect("a name")).await;
                            commit(&mut fixture, "{}").await;
                        }
                        "mirror" => {
                            let mut fixture =
                                SinkFixture::new(client.clone(), Mirror::into(table).expect("a name")).await;
                            commit(&mut fixture, r#"{"after":{"id":1}}"#).await;
                        }
                        _ => {
                            write_plain(&Versioned::new(client.clone(), Mirror::into(table).expect("a name")), &client)
                                .await
                        }
                    }
                    assert_eq!(count(&client, sql).await, "1", "{mode} {table}");
                    assert_eq!(shown(&client, MADE).await.len(), 1, "{mode} {table}: nothing else was made");
                });
            }
        }
    }
}

#[test]
fn typed_rows_go_into_tables_with_a_dot_in_their_names() {
    for version in Version::ALL {
        for mode in ["rows", "versioned_rows"] {
            for (table, sql) in TABLES {
                block_on(async {
                    let (base, client) = prepared(version).await;
                    base.admin()
                        .await
                        .batch_execute(&format!("CREATE TABLE {sql} (id int PRIMARY KEY)"))
                        .await
                        .expect("new");
                    sink(&base, mode, table).await.expect("a file may name it");
                    let rows = Rows::into(table).expect("a name");
                    if mode == "rows" {
                        commit(&mut SinkFixture::new(client.clone(), rows).await, r#"{"after":{"id":1}}"#).await;
                    } else {
                        let sink = VersionedRows::new(client.clone(), rows).expect("a name for the versions");
                        write_plain(&sink, &client).await;
                        // The table of the versions lies in the same schema, and its name can be read again.
                        let versions = sink.versions().written().to_owned();
                        assert_eq!(Table::new(&versions).expect("a name"), *sink.versions());
                        let beside = match sql.strip_suffix('"') {
                            Some(open) => format!("{open}_versions\""),
                            None => format!("{sql}_versions"),
                        };
                        assert_eq!(count(&client, &beside).await, "1", "{versions}");
                    }
                    assert_eq!(count(&client, sql).await, "1", "{mode} {table}");
                });
            }
        }
    }
}

#[test]
fn names_that_only_look_alike_stay_apart() {
    block_on(async {
        let (base, client) = prepared(Version::V18).await;
        // Tables that a name without quotes would not tell apart.
        for table in [r#"a.b"#, r#""a.b""#, r#""my.schema".x"#, r#"my."schema.x""#] {
            let mut fixture = SinkFixture::new(client.clone(), Events::into(table).expect("a name")).await;
            commit(&mut fixture, "{}").await;
            drop(fixture);
            client.write(&cx(), "DELETE FROM watchkeeper.checkpoints", &[]).await.expect("it is ours");
        }
        let made = [r#""my.schema".x"#, r#"a.b"#, r#"my."schema.x""#, r#"public."a.b""#];
        assert_eq!(shown(&client, MADE).await, made);
        // A table with such a name in the schema of Watchkeeper's own tables is refused, one that is only called so is not.
        let refused = sink(&base, "events", r#""watchkeeper"."a.b""#).await.map(drop);
        assert_error(refused, watchkeeper_core::ErrorKind::Config, "the schema of Watchkeeper's own tables");
        sink(&base, "events", r#""watchkeeper.checkpoints""#).await.expect("it lies in another schema");
        for wrong in ["a.b.c", r#""a.b"#, r#""a"b"#, "", ".", r#""""#] {
            let refused = sink(&base, "events", wrong).await.map(drop);
            assert_error(refused, watchkeeper_core::ErrorKind::Config, "table");
        }
    });
}
