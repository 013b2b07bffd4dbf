//! Tables that inherit from others.

use watchkeeper_core::{Severity, Source, StartAt};

use super::bench::{Watch, cx, on_both, shown};

const TABLES: &str = "CREATE TABLE things(id int PRIMARY KEY, v text);
    CREATE TABLE special(more int, PRIMARY KEY (id)) INHERITS (things);
    INSERT INTO things VALUES (1, 'parent'); INSERT INTO special VALUES (2, 'child', 7)";

#[test]
fn rows_of_a_child_are_reported_as_its_own_where_it_is_named() {
    on_both(TABLES, async |base| {
        let warned = async |tables: &[&str]| {
            let mut settings = base.settings();
            settings.tables = tables.iter().map(|table| (*table).to_owned()).collect();
            let findings = base.source_with(settings).check(&cx()).await.unwrap();
            findings
                .into_iter()
                .filter(|found| found.severity == Severity::Warning)
                .map(|found| found.what)
                .collect::<Vec<_>>()
        };
        let warning =
            "public.special inherits from public.things, and its rows are not told with those of public.things";
        assert_eq!(warned(&["things"]).await, [warning], "before there is a publication");
        assert_eq!(warned(&["things", "special"]).await, Vec::<String>::new());
        let mut settings = base.settings();
        settings.tables.push("special".to_owned());
        let mut watch = Watch::open(&base.source_with(settings), StartAt::Snapshot).await;
        base.run("UPDATE things SET v = v || '!'").await;
        base.run("TRUNCATE things").await;
        let reported: Vec<_> =
            watch.changes(6).await.iter().map(|change| format!("{} {}", change.namespace(), shown(change))).collect();
        watch.close().await;
        let reads = [
            r#"public.things read {"before":null,"after":{"id":1,"v":"parent"}}"#,
            r#"public.special read {"before":null,"after":{"id":2,"v":"child","more":7}}"#,
        ];
        assert_eq!(reported[..2], reads, "each row comes once");
        assert!(reported[2..4].iter().any(|reported| reported.starts_with("public.special update")), "{reported:?}");
        assert!(reported[4..].iter().all(|reported| reported.contains(" truncate ")), "{reported:?}");
        assert_eq!(warned(&["things"]).await, [warning], "a child that is published is told only where it is wanted");
        assert_eq!(warned(&["things", "special"]).await, Vec::<String>::new());
        base.run("ALTER PUBLICATION changes DROP TABLE special").await;
        assert_eq!(warned(&[]).await, [warning]);
    });
}
