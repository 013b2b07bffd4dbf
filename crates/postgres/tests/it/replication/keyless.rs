use watchkeeper_core::{ErrorKind, Source, StartAt};
use watchkeeper_postgres::Replication;
use watchkeeper_postgres::replication::Keyless;

use super::bench::{Base, Watch, assert_error, cx, on_both};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text); INSERT INTO things VALUES (1, 'old')";

/// Of a publication of all tables.
async fn of_all(base: &Base<'_>, keyless: Keyless) -> Replication {
    let mut settings = base.settings();
    settings.publication = format!("{}_all", base.name);
    settings.tables.clear();
    settings.keyless = keyless;
    base.sql.batch_execute(&format!("CREATE PUBLICATION {} FOR ALL TABLES", settings.publication)).await.ok();
    base.source_with(settings)
}

#[test]
fn rows_that_nothing_tells_apart_are_refused_or_passed_over_as_the_settings_say() {
    on_both(THINGS, async |base| {
        let strict = of_all(base, Keyless::Refuse).await;
        let mut watch = Watch::open(&strict, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (2, 'before')").await;
        let before = watch.changes(1).await.remove(0);
        base.run("CREATE TABLE copy AS SELECT * FROM things").await;
        let error = watch.error().await;
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("public.copy"), "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("keyless = \"pass\"")), "{error}");
        watch.close().await;
        // What was written before the table got its key has none for ever.
        base.run("ALTER TABLE copy ADD PRIMARY KEY (id); INSERT INTO copy VALUES (9, 'with a key')").await;
        let mut again = Watch::open(&strict, StartAt::After(before.position())).await;
        assert_eq!(again.error().await.kind(), ErrorKind::Config);
        again.close().await;
        let lenient = of_all(base, Keyless::Pass).await;
        let mut passing = Watch::open(&lenient, StartAt::After(before.position())).await;
        let change = passing.changes(1).await.remove(0);
        assert_eq!((change.namespace(), change.key().map(|key| key.ends_with(b"9"))), ("public.copy", Some(true)));
        passing.close().await;
    });
}

#[test]
fn a_snapshot_passes_over_tables_without_a_key_if_it_may() {
    on_both(&format!("{THINGS}; CREATE TABLE plain(id int); INSERT INTO plain VALUES (1)"), async |base| {
        let strict = of_all(base, Keyless::Refuse).await;
        assert_error(strict.open(&cx(), StartAt::Snapshot).await, ErrorKind::Config, "public.plain");
        let lenient = of_all(base, Keyless::Pass).await;
        let findings = lenient.check(&cx()).await.unwrap();
        assert!(findings.iter().any(|finding| finding.what.contains("table public.plain has no key")), "{findings:?}");
        let mut watch = Watch::open(&lenient, StartAt::Snapshot).await;
        base.run("INSERT INTO plain VALUES (2); INSERT INTO things VALUES (2, 'new')").await;
        let reported: Vec<_> = watch.changes(2).await.iter().map(|change| change.namespace().to_owned()).collect();
        assert_eq!(reported, ["public.things", "public.things"]);
        watch.close().await;
    });
}
