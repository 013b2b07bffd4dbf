//! Tables whose rows are told apart by other columns than before.

use std::sync::Arc;

use watchkeeper_core::{Change, ErrorKind, Pedigree, Position, Severity, Source, StartAt};
use watchkeeper_postgres::Replication;

use super::bench::{Base, LIMITS, Watch, assert_error, cx, on_both, shown};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, k int NOT NULL, v text);
    CREATE UNIQUE INDEX by_k ON things (k); CREATE PUBLICATION changes FOR TABLE things";

const BY_K: &str = "ALTER TABLE things REPLICA IDENTITY USING INDEX by_k";
const CAUSE: &str = "the rows of public.things are told apart by (k) from here on, not by (id)";

/// Reads what an insert makes, and gives it with what would be stored.
async fn read(base: &Base<'_>, source: &Replication, start: StartAt, insert: &str) -> (Change, Position, Pedigree) {
    let mut watch = Watch::open(source, start).await;
    base.run(insert).await;
    let change = watch.changes(1).await.remove(0);
    watch.close().await;
    let pedigree = change.batch().pedigree.clone().expect("the pedigree comes with the changes");
    (change.clone(), change.position(), pedigree)
}

async fn assert_lost(source: &Replication, position: &Position, pedigree: &Pedigree, cause: &str) {
    assert_error(source.verify(&cx(), position, pedigree).await, ErrorKind::PositionLost, cause);
    let findings = source.preflight(&cx(), &StartAt::After(position.clone()), Some(pedigree)).await.unwrap();
    assert!(
        findings.iter().any(|found| found.severity == Severity::Error && found.what.contains(cause)),
        "{findings:?}"
    );
}

#[test]
fn another_key_is_lost_history() {
    for (alteration, cause) in [
        (BY_K, CAUSE),
        (
            "ALTER TABLE things DROP CONSTRAINT things_pkey, ADD PRIMARY KEY (id, k)",
            "the rows of public.things are told apart by (id, k) from here on, not by (id)",
        ),
        ("ALTER TABLE things DROP CONSTRAINT things_pkey, ADD PRIMARY KEY (k), REPLICA IDENTITY FULL", CAUSE),
        // It is called as the one before it, but it is another column.
        (
            "ALTER TABLE things DROP CONSTRAINT things_pkey; ALTER TABLE things RENAME id TO old_id;
            ALTER TABLE things RENAME k TO id; ALTER TABLE things ADD PRIMARY KEY (id)",
            "the rows of public.things are told apart by (id) from here on",
        ),
    ] {
        on_both(THINGS, async |base| {
            let source = base.source();
            let (_, position, pedigree) = read(base, &source, StartAt::Now, "INSERT INTO things VALUES (1, 10)").await;
            source.verify(&cx(), &position, &pedigree).await.unwrap();
            let start = StartAt::After(position.clone());
            assert_eq!(source.preflight(&cx(), &start, Some(&pedigree)).await.unwrap(), []);
            base.run(alteration).await;
            // Also when it happens between the look and the opening.
            let opened = source.open(&cx(), start).await.map(drop);
            assert_error(opened, ErrorKind::PositionLost, cause);
            assert_lost(&base.source(), &position, &pedigree, cause).await;
        });
    }
}

#[test]
fn the_same_columns_are_the_same_key_whatever_becomes_of_them() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let insert = "INSERT INTO things VALUES (1, 10)";
        let (first, mut position, mut pedigree) = read(base, &source, StartAt::Now, insert).await;
        for harmless in [
            "ALTER TABLE things DROP CONSTRAINT things_pkey, ADD PRIMARY KEY (id)",
            "ALTER TABLE things REPLICA IDENTITY FULL",
            "CREATE UNIQUE INDEX by_id ON things (id); ALTER TABLE things REPLICA IDENTITY USING INDEX by_id",
            "ALTER TABLE things RENAME id TO nr; ALTER TABLE things ADD more int",
            "ALTER TABLE things RENAME nr TO id; ALTER TABLE things REPLICA IDENTITY DEFAULT",
        ] {
            // What was written before it is told after it.
            base.run("UPDATE things SET k = k + 1").await;
            base.run(harmless).await;
            source.verify(&cx(), &position, &pedigree).await.unwrap();
            let mut watch = Watch::open(&source, StartAt::After(position)).await;
            base.run("UPDATE things SET k = k + 1").await;
            let reported = watch.changes(2).await;
            watch.close().await;
            assert!(reported.iter().all(|change| change.key() == first.key()), "{harmless}");
            position = reported[1].position();
            pedigree = reported[1].batch().pedigree.clone().unwrap();
        }
    });
}

/// Expects that the stream ends because of another key, with nothing told by it.
async fn assert_ends(mut watch: Watch, cause: &str) {
    let error = loop {
        match watch.stream.next_batch(&cx(), LIMITS).await {
            Ok(batch) => {
                let first = (!batch.is_empty()).then(|| shown(&Change::new(Arc::new(batch), 0)));
                assert_eq!(first, None, "a change came by the other key");
            }
            Err(error) => break error,
        }
    };
    assert_error::<()>(Err(error), ErrorKind::PositionLost, cause);
    watch.close().await;
}

#[test]
fn nothing_is_reported_by_another_key_while_reading_goes_on() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 10)").await;
        let first = watch.changes(1).await.remove(0);
        base.run(BY_K).await;
        base.run("UPDATE things SET v = 'new'").await;
        assert_ends(watch, CAUSE).await;
        // It can be given back, but not after something was written.
        base.run("ALTER TABLE things REPLICA IDENTITY DEFAULT").await;
        let pedigree = first.batch().pedigree.clone().unwrap();
        source.verify(&cx(), &first.position(), &pedigree).await.unwrap();
        assert_ends(Watch::open(&source, StartAt::After(first.position())).await, CAUSE).await;
        // Who begins with the oldest that is there has chosen to.
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Oldest).await;
        base.run("UPDATE things SET v = 'newer'").await;
        watch.changes(3).await;
        watch.close().await;
    });
}

#[test]
fn keys_that_were_not_stored_are_not_known() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let (_, position, pedigree) = read(base, &source, StartAt::Now, "INSERT INTO things VALUES (1, 10)").await;
        let text = String::from_utf8(pedigree.0.to_vec()).unwrap();
        let (older, keys) = text.split_once(",\"keys\":").expect("the keys are in it");
        assert!(keys.contains("\"id\"") && keys.len() < 60, "{text}");
        let older = Pedigree(format!("{older}}}}}").into());
        base.run(BY_K).await;
        source.verify(&cx(), &position, &older).await.unwrap();
        let insert = "INSERT INTO things VALUES (2, 20)";
        let (_, position, pedigree) = read(base, &source, StartAt::After(position), insert).await;
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        base.run("ALTER TABLE things REPLICA IDENTITY FULL").await;
        assert_lost(&source, &position, &pedigree, "told apart by (id) from here on, not by (k)").await;
    });
}

const WHOLE: &str =
    "CREATE TABLE things(id int PRIMARY KEY, k int NOT NULL, v text); ALTER TABLE things REPLICA IDENTITY FULL;
    CREATE PUBLICATION changes FOR TABLE things";

#[test]
fn the_key_of_whole_rows_is_found_under_the_name_that_it_had() {
    on_both(WHOLE, async |base| {
        let source = base.source();
        let insert = "INSERT INTO things VALUES (1, 10)";
        let (first, position, pedigree) = read(base, &source, StartAt::Now, insert).await;
        base.run("UPDATE things SET v = 'old'").await;
        base.run(
            "ALTER TABLE things RENAME id TO nr; ALTER TABLE things DROP CONSTRAINT things_pkey, ADD PRIMARY KEY (nr)",
        )
        .await;
        base.run("UPDATE things SET v = 'new'; DELETE FROM things").await;
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        let mut watch = Watch::open(&source, StartAt::After(position)).await;
        let reported = watch.changes(3).await;
        assert!(reported.iter().all(|change| change.key() == first.key()), "a row has one key");
        watch.close().await;
    });
}

#[test]
fn whole_rows_whose_key_is_not_known_any_more_are_lost_history() {
    for alteration in [
        // Each of the two could have been the key.
        "ALTER TABLE things RENAME id TO nr; ALTER TABLE things RENAME k TO n",
        "DROP TABLE things",
    ] {
        on_both(WHOLE, async |base| {
            let mut settings = base.settings();
            settings.tables.clear();
            let source = base.source_with(settings);
            let (_, position, _) = read(base, &source, StartAt::Now, "INSERT INTO things VALUES (1, 10)").await;
            base.run("UPDATE things SET v = 'old'").await;
            base.run(alteration).await;
            let watch = Watch::open(&source, StartAt::After(position)).await;
            assert_ends(watch, "the log has rows of public.things that are older than its key").await;
        });
    }
}
