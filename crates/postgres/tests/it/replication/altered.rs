//! Publications that are altered behind a stream's back.

use std::time::{Duration, Instant};

use watchkeeper_core::{ErrorKind, Finding, Pedigree, Position, Severity, Source, StartAt};
use watchkeeper_postgres::Replication;

use super::bench::{Base, LIMITS, Watch, assert_error, cx, on_both};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text); CREATE TABLE others(id int PRIMARY KEY);
    CREATE PUBLICATION changes FOR TABLE things, others";

/// Without another occasion the publication is looked at so often.
const INSPECT_EVERY: Duration = Duration::from_secs(10);

/// All that the publication tells of.
fn unnamed(base: &Base<'_>) -> Replication {
    let mut settings = base.settings();
    settings.tables.clear();
    base.source_with(settings)
}

/// Reads a change, and gives what would be stored.
async fn read(base: &Base<'_>, source: &Replication, start: StartAt) -> (Position, Pedigree) {
    let mut watch = Watch::open(source, start).await;
    base.run("INSERT INTO things SELECT coalesce(max(id), 100) + 1 FROM things").await;
    let batch = watch.batches(1).await.remove(0);
    watch.close().await;
    (batch.end.clone(), batch.pedigree.clone().expect("the pedigree comes with the changes"))
}

async fn vetted(source: &Replication, position: &Position, pedigree: &Pedigree) -> Vec<Finding> {
    source.preflight(&cx(), &StartAt::After(position.clone()), Some(pedigree)).await.expect("the server answers")
}

async fn assert_lost(source: &Replication, position: &Position, pedigree: &Pedigree, cause: &str) {
    assert_error(source.verify(&cx(), position, pedigree).await, ErrorKind::PositionLost, cause);
    let findings = vetted(source, position, pedigree).await;
    let is_it = |found: &Finding| found.severity == Severity::Error && found.what.contains(cause);
    assert!(findings.iter().any(is_it), "{findings:?} do not tell of {cause:?}");
}

/// Does what accepting a gap does, and reads on.
async fn accept(base: &Base<'_>, source: &Replication) -> (Position, Pedigree) {
    let log = source.peek(&cx(), StartAt::Now).await.expect("one can look");
    let to = log.position().expect("it has a place");
    log.close(&cx()).await.expect("it can be closed");
    let pedigree = source.identity(&cx()).await.expect("the server answers");
    source.verify(&cx(), &to, &pedigree).await.expect("the gap is accepted");
    read(base, source, StartAt::After(to)).await
}

const TABLE: &str = "table public.things was taken out of publication changes and put in again";

/// What can be done to a publication that tells of a table, so that something of it may be lost.
const ALTERATIONS: [(&str, &str); 8] = [
    (
        "ALTER PUBLICATION changes DROP TABLE things; INSERT INTO things VALUES (1); ALTER PUBLICATION changes ADD TABLE things",
        TABLE,
    ),
    ("ALTER PUBLICATION changes SET TABLE things WHERE (id > 5), others", TABLE),
    ("ALTER PUBLICATION changes SET TABLE things (id), others", TABLE),
    ("ALTER PUBLICATION changes SET TABLES IN SCHEMA public", TABLE),
    (
        "ALTER PUBLICATION changes SET (publish = 'insert'); UPDATE things SET id = -id;
        ALTER PUBLICATION changes SET (publish = 'insert, update, delete, truncate')",
        "the options of publication changes were altered and altered back",
    ),
    (
        "ALTER PUBLICATION changes DROP TABLES IN SCHEMA public; ALTER PUBLICATION changes ADD TABLES IN SCHEMA public",
        TABLE,
    ),
    (
        "DROP PUBLICATION changes; INSERT INTO things VALUES (2); CREATE PUBLICATION changes FOR TABLES IN SCHEMA public",
        "publication changes was dropped and made anew",
    ),
    (
        "DROP PUBLICATION changes; CREATE PUBLICATION changes FOR ALL TABLES",
        "publication changes was dropped and made anew",
    ),
];

#[test]
fn what_was_altered_while_nobody_read_is_lost_history_until_it_is_accepted() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let (mut position, mut pedigree) = read(base, &source, StartAt::Now).await;
        for (alteration, cause) in ALTERATIONS {
            source.verify(&cx(), &position, &pedigree).await.unwrap();
            assert_eq!(vetted(&source, &position, &pedigree).await, []);
            base.run(alteration).await;
            // Also when it happens between the look and the opening.
            let opened = source.open(&cx(), StartAt::After(position.clone())).await.map(drop);
            assert_error(opened, ErrorKind::PositionLost, cause);
            assert_lost(&base.source(), &position, &pedigree, cause).await;
            (position, pedigree) = accept(base, &base.source()).await;
        }
    });
}

#[test]
fn a_table_that_was_put_back_is_found_as_soon_as_it_is_reported_again() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let opened = Instant::now();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1)").await;
        let pedigree = watch.batches(1).await[0].pedigree.clone().unwrap();
        base.run("ALTER PUBLICATION changes DROP TABLE things; INSERT INTO things VALUES (2)").await;
        base.run("ALTER PUBLICATION changes ADD TABLE things; INSERT INTO things VALUES (3)").await;
        let error = watch.error().await;
        assert!(opened.elapsed() < INSPECT_EVERY, "the log itself was the occasion to look");
        // What is told again does not make the loss forgotten.
        let position = watch.stream.position().unwrap();
        watch.close().await;
        assert_error::<()>(Err(error), ErrorKind::PositionLost, TABLE);
        assert_lost(&base.source(), &position, &pedigree, TABLE).await;
    });
}

#[test]
fn a_table_that_was_put_back_is_found_although_nothing_is_reported() {
    on_both(THINGS, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("ALTER PUBLICATION changes DROP TABLE things; INSERT INTO things VALUES (2)").await;
        base.run("ALTER PUBLICATION changes ADD TABLE things").await;
        assert_error::<()>(Err(watch.error().await), ErrorKind::PositionLost, TABLE);
        watch.close().await;
    });
}

#[test]
fn a_named_table_that_is_not_reported_any_more_ends_the_stream() {
    on_both(THINGS, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("ALTER PUBLICATION changes DROP TABLE things").await;
        assert_error::<()>(Err(watch.error().await), ErrorKind::Config, "does not tell of table public.things");
        watch.close().await;
    });
}

#[test]
fn a_table_that_is_added_is_remembered_while_reading_goes_on() {
    on_both(&format!("{THINGS}; CREATE TABLE third(id int PRIMARY KEY)"), async |base| {
        let source = unnamed(base);
        let mut watch = Watch::open(&source, StartAt::Now).await;
        let first = watch.stream.next_batch(&cx(), LIMITS).await.unwrap().pedigree;
        base.run("ALTER PUBLICATION changes ADD TABLE third").await;
        let mut last = watch.stream.next_batch(&cx(), LIMITS).await.unwrap();
        for _ in 0..60 {
            if last.pedigree != first {
                break;
            }
            last = watch.stream.next_batch(&cx(), LIMITS).await.unwrap();
        }
        let pedigree = last.pedigree.filter(|pedigree| Some(pedigree) != first.as_ref());
        let pedigree = pedigree.expect("the new table is remembered");
        base.run("INSERT INTO third VALUES (1)").await;
        let position = watch.changes(1).await[0].position();
        watch.close().await;
        // Whoever was away longer has not lost anything either.
        source.verify(&cx(), &position, &first.unwrap()).await.unwrap();
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        base.run("ALTER PUBLICATION changes DROP TABLE third; ALTER PUBLICATION changes ADD TABLE third").await;
        assert_lost(&source, &position, &pedigree, "table public.third was taken out").await;
    });
}

#[test]
fn what_the_owner_of_a_publication_takes_out_may_stay_out_but_not_come_back() {
    let alterations = [
        (
            "ALTER PUBLICATION changes DROP TABLE others",
            "does not tell of table public.others any more",
            "ALTER PUBLICATION changes ADD TABLE others",
            "table public.others was taken out",
        ),
        (
            "ALTER PUBLICATION changes SET (publish = 'insert, update, truncate')",
            "does not tell of deletes any more",
            "ALTER PUBLICATION changes SET (publish = 'insert, update, truncate, delete')",
            "did not tell of deletes for a while",
        ),
    ];
    on_both(THINGS, async |base| {
        let (mut position, mut pedigree) = read(base, &unnamed(base), StartAt::Now).await;
        for (away, left, back, cause) in alterations {
            base.run(away).await;
            let findings = vetted(&unnamed(base), &position, &pedigree).await;
            let is_it = |found: &Finding| found.severity == Severity::Warning && found.what.contains(left);
            assert!(findings.iter().any(is_it), "{findings:?} do not tell of {left:?}");
            for _ in 0..2 {
                let source = unnamed(base);
                source.verify(&cx(), &position, &pedigree).await.unwrap();
                (position, pedigree) = read(base, &source, StartAt::After(position)).await;
            }
            assert_eq!(vetted(&unnamed(base), &position, &pedigree).await, [], "it was told before");
            base.run(back).await;
            assert_lost(&unnamed(base), &position, &pedigree, cause).await;
            (position, pedigree) = accept(base, &unnamed(base)).await;
        }
    });
}

#[test]
fn what_does_not_concern_the_named_tables_may_come_and_go() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let (position, pedigree) = read(base, &source, StartAt::Now).await;
        base.run("ALTER PUBLICATION changes DROP TABLE others; ALTER PUBLICATION changes ADD TABLE others").await;
        base.run("ALTER TABLE things RENAME COLUMN v TO w; ALTER TABLE things ADD x int").await;
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        assert_eq!(vetted(&source, &position, &pedigree).await, []);
        read(base, &source, StartAt::After(position)).await;
    });
}

#[test]
fn a_stream_may_be_given_another_publication() {
    on_both(&format!("{THINGS}; CREATE PUBLICATION more FOR TABLE things"), async |base| {
        let (position, pedigree) = read(base, &base.source(), StartAt::Now).await;
        let mut settings = base.settings();
        settings.publication = "more".to_owned();
        let source = base.source_with(settings);
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        let (position, pedigree) = read(base, &source, StartAt::After(position)).await;
        base.run("ALTER PUBLICATION changes DROP TABLE things; ALTER PUBLICATION changes ADD TABLE things").await;
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        base.run("ALTER PUBLICATION more DROP TABLE things; ALTER PUBLICATION more ADD TABLE things").await;
        assert_lost(&source, &position, &pedigree, "table public.things was taken out of publication more").await;
    });
}

#[test]
fn a_part_that_was_reported_through_its_whole_is_not_reported_all_along_by_itself() {
    let parts = "CREATE TABLE whole(id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE things PARTITION OF whole FOR VALUES FROM (0) TO (1000); CREATE PUBLICATION changes FOR TABLE whole";
    on_both(parts, async |base| {
        let source = base.source();
        let (position, pedigree) = read(base, &source, StartAt::Now).await;
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        base.run("ALTER PUBLICATION changes DROP TABLE whole; ALTER PUBLICATION changes ADD TABLE things").await;
        assert_lost(&source, &position, &pedigree, TABLE).await;
    });
}

#[test]
fn a_pedigree_of_an_older_version_is_taken_as_it_is() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let (position, pedigree) = read(base, &source, StartAt::Now).await;
        let text = String::from_utf8(pedigree.0.to_vec()).unwrap();
        let (older, rest) = text.split_once(",\"publication\"").expect("the publication is in it");
        assert!(rest.contains("things") && !rest.contains("others"), "{text}");
        let older = Pedigree(format!("{older}}}").into());
        base.run("ALTER PUBLICATION changes DROP TABLE things; ALTER PUBLICATION changes ADD TABLE things").await;
        source.verify(&cx(), &position, &older).await.unwrap();
        assert_eq!(vetted(&source, &position, &older).await, []);
        // From then on it is known.
        let (position, pedigree) = read(base, &source, StartAt::After(position)).await;
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        base.run("ALTER PUBLICATION changes DROP TABLE things; ALTER PUBLICATION changes ADD TABLE things").await;
        assert_lost(&source, &position, &pedigree, TABLE).await;
    });
}

#[test]
fn a_publication_that_is_made_with_the_first_reader_is_known_from_its_first_change_on() {
    on_both("CREATE TABLE things(id int PRIMARY KEY)", async |base| {
        let source = base.source();
        let before = source.identity(&cx()).await.unwrap();
        assert!(!String::from_utf8_lossy(&before.0).contains("publication"));
        let (position, pedigree) = read(base, &source, StartAt::Now).await;
        source.verify(&cx(), &position, &before).await.unwrap();
        base.run("ALTER PUBLICATION changes DROP TABLE things; ALTER PUBLICATION changes ADD TABLE things").await;
        assert_lost(&source, &position, &pedigree, TABLE).await;
    });
}
