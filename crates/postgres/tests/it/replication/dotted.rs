//! Tables with a dot in their names, read from the write-ahead log by a publication.

use watchkeeper_core::{ErrorKind, Operation, Source, StartAt};

use super::bench::{Watch, assert_error, cx, on_both, operations};

/// Names that a split at another dot would mix up.
const TABLES: &str = r#"CREATE TABLE "a.b" (id int PRIMARY KEY); CREATE SCHEMA a; CREATE TABLE a.b (id int PRIMARY KEY);
    CREATE SCHEMA "my.schema"; CREATE TABLE "my.schema".t (id int PRIMARY KEY);
    CREATE SCHEMA my; CREATE TABLE my."schema.t" (id int PRIMARY KEY); INSERT INTO "a.b" VALUES (0)"#;

#[test]
fn changes_of_a_table_with_a_dot_in_its_name_are_read() {
    on_both(TABLES, async |base| {
        for (n, named) in [r#""a.b""#, r#"public."a.b""#, "public.a.b"].into_iter().enumerate() {
            let mut settings = base.settings();
            settings.tables = vec![named.to_owned()];
            let mut watch = Watch::open(&base.source_with(settings), StartAt::Now).await;
            base.run(&format!(
                r#"INSERT INTO a.b VALUES ({n}); INSERT INTO "a.b" VALUES ({n} + 1); DELETE FROM "a.b" WHERE id > 0"#
            ))
            .await;
            let changes = watch.changes(2).await;
            assert_eq!(operations(&changes), [Operation::Insert, Operation::Delete], "{named}");
            assert!(changes.iter().all(|change| change.namespace() == "public.a.b"), "{named}");
            watch.close().await;
        }
        let published = "SELECT string_agg(schemaname || ' ' || tablename, ', ') FROM pg_publication_tables";
        assert_eq!(base.ask(published).await, "public a.b");
    });
}

#[test]
fn a_snapshot_of_a_table_with_a_dot_in_its_name_is_read() {
    on_both(TABLES, async |base| {
        let mut settings = base.settings();
        settings.tables = vec![r#""a.b""#.to_owned()];
        let mut watch = Watch::open(&base.source_with(settings), StartAt::Snapshot).await;
        base.run(r#"INSERT INTO "a.b" VALUES (1)"#).await;
        let changes = watch.changes(2).await;
        assert!(changes.iter().all(|change| change.namespace() == "public.a.b"));
        watch.close().await;
    });
}

/// A change names its table `schema.table`, which has one meaning only as long as no schema has a dot in its name.
#[test]
fn a_schema_with_a_dot_in_its_name_is_refused() {
    on_both(TABLES, async |base| {
        let refused = async |tables: &[&str]| {
            let mut settings = base.settings();
            settings.tables = tables.iter().map(|table| (*table).to_owned()).collect();
            let source = base.source_with(settings);
            let findings = source.check(&cx()).await;
            assert_error(source.open(&cx(), StartAt::Now).await, ErrorKind::Config, "has a dot in its name");
            findings
        };
        drop(refused(&[r#""my.schema".t"#]).await);
        assert_eq!(
            base.ask("SELECT count(*)::text FROM pg_publication").await,
            "0",
            "that of my.\"schema.t\" was not made"
        );
        base.run("CREATE PUBLICATION changes FOR ALL TABLES").await;
        let findings = refused(&[]).await.unwrap();
        assert!(findings.iter().any(|finding| finding.what.contains("my.schema.t has a dot")), "{findings:?}");
    });
}
