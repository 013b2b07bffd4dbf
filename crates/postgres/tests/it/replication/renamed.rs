use watchkeeper_core::{Change, Operation, StartAt};

use super::bench::{Base, Watch, on_both, shown};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text); INSERT INTO things VALUES (1, 'old'); CREATE TABLE others(id int PRIMARY KEY, v text)";

fn named(changes: &[Change]) -> Vec<(&str, String)> {
    changes.iter().map(|change| (change.namespace(), shown(change))).collect()
}

/// The stream of the table `things` alone, of a publication that tells of all.
fn chosen(base: &Base<'_>) -> watchkeeper_postgres::Replication {
    let mut settings = base.settings();
    settings.tables = vec!["things".to_owned()];
    base.source_with(settings)
}

#[test]
fn what_is_written_under_another_name_for_a_while_is_reported() {
    on_both(THINGS, async |base| {
        let source = chosen(base);
        // It was not described under its own name before.
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run(
            "BEGIN; ALTER TABLE things RENAME TO things_tmp; UPDATE things_tmp SET v = 'meanwhile'; INSERT INTO things_tmp VALUES (2, 'new');
            ALTER TABLE things_tmp RENAME TO things; COMMIT",
        )
        .await;
        base.run("INSERT INTO others VALUES (1, 'not wanted')").await;
        base.run("INSERT INTO things VALUES (3, 'after')").await;
        let changes = watch.changes(3).await;
        assert!(changes.iter().all(|change| change.namespace() == "public.things"), "{:?}", named(&changes));
        assert_eq!(
            changes.iter().map(Change::operation).collect::<Vec<_>>(),
            [Operation::Update, Operation::Insert, Operation::Insert]
        );
        watch.close().await;
    });
}

#[test]
fn it_is_reported_as_well_when_nobody_was_there() {
    on_both(THINGS, async |base| {
        let source = chosen(base);
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("UPDATE things SET v = 'before'").await;
        let change = watch.changes(1).await.remove(0);
        watch.close().await;
        base.run("ALTER TABLE things RENAME TO things_tmp").await;
        base.run("INSERT INTO things_tmp VALUES (2, 'meanwhile')").await;
        base.run("ALTER TABLE things_tmp RENAME TO things").await;
        base.run("INSERT INTO things VALUES (3, 'after')").await;
        let mut again = Watch::open(&source, StartAt::After(change.position())).await;
        let changes = again.changes(2).await;
        assert!(changes.iter().all(|change| change.namespace() == "public.things"), "{:?}", named(&changes));
        again.close().await;
    });
}
