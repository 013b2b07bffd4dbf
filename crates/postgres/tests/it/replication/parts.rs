use watchkeeper_core::{ErrorKind, Finding, Operation, Source, StartAt};

use super::bench::{Watch, assert_error, cx, on_both, operations};

/// A table whose rows are told apart by an index, in the whole and in its first part.
const THINGS: &str =
    "CREATE TABLE things(id int, part int, code text NOT NULL, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
    CREATE TABLE things_0 PARTITION OF things FOR VALUES IN (0);
    CREATE UNIQUE INDEX things_code ON things(code, part);
    ALTER TABLE things REPLICA IDENTITY USING INDEX things_code;
    ALTER TABLE things_0 REPLICA IDENTITY USING INDEX things_0_code_part_idx";

#[test]
fn a_partition_that_tells_its_rows_apart_by_other_columns_is_refused() {
    on_both(THINGS, async |base| {
        let mut settings = base.settings();
        settings.tables = vec!["things".to_owned()];
        let source = base.source_with(settings);
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 0, 'a'), (2, 0, 'b'); DELETE FROM things WHERE id = 1").await;
        assert_eq!(watch.changes(3).await.len(), 3);
        base.run("CREATE TABLE things_1 PARTITION OF things FOR VALUES IN (1)").await;
        base.run("INSERT INTO things VALUES (3, 1, 'c')").await;
        assert_eq!(watch.changes(1).await.len(), 1);
        base.run("DELETE FROM things WHERE id = 3").await;
        let error = watch.error().await;
        assert_eq!(error.kind(), ErrorKind::PositionLost);
        assert!(error.to_string().contains("a partition of public.things"), "{error}");
        watch.close().await;
        let findings = source.check(&cx()).await.unwrap();
        assert!(findings.iter().any(|finding| finding.what.starts_with("partition things_1 ")), "{findings:?}");
        assert_error(source.open(&cx(), StartAt::Now).await, ErrorKind::Config, "partition things_1");
        base.run("ALTER TABLE things_1 REPLICA IDENTITY USING INDEX things_1_code_part_idx").await;
        let mut again = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (4, 1, 'd'); DELETE FROM things WHERE id = 4").await;
        assert_eq!(again.changes(2).await.len(), 2);
        again.close().await;
    });
}

/// The server does not publish a TRUNCATE of one partition under the name of the whole table.
#[test]
fn a_partitioned_table_is_warned_of() {
    let schema = "CREATE TABLE things(id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
        CREATE TABLE things_0 PARTITION OF things FOR VALUES IN (0); CREATE TABLE plain(id int PRIMARY KEY)";
    on_both(schema, async |base| {
        let warned = async |tables: &[&str]| {
            let mut settings = base.settings();
            settings.tables = tables.iter().map(|table| (*table).to_owned()).collect();
            let findings = base.source_with(settings).check(&cx()).await.unwrap();
            let about = |finding: &Finding| finding.what.contains("TRUNCATE of one partition");
            let found: Vec<_> = findings.into_iter().filter(about).collect();
            for finding in &found {
                assert!(finding.what.contains("public.things"), "{finding:?}");
                let remedy = finding.remedy.as_deref().unwrap_or_default();
                assert!(remedy.contains("publish_via_partition_root = false"), "{finding:?}");
            }
            found.len()
        };
        assert_eq!(warned(&["things"]).await, 1, "before the publication is made");
        assert_eq!(warned(&["plain"]).await, 0);
        base.run("CREATE PUBLICATION changes FOR TABLE things, plain WITH (publish_via_partition_root = true)").await;
        assert_eq!(warned(&["things", "plain"]).await, 1);
        // It is so: the row stays.
        let mut settings = base.settings();
        settings.tables = vec!["things".to_owned()];
        let mut watch = Watch::open(&base.source_with(settings), StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 0); TRUNCATE things_0; INSERT INTO things VALUES (2, 0)").await;
        assert_eq!(operations(&watch.changes(2).await), [Operation::Insert, Operation::Insert]);
        watch.close().await;
        base.run("ALTER PUBLICATION changes SET (publish_via_partition_root = false)").await;
        assert_eq!(warned(&["things_0", "plain"]).await, 0);
    });
}
