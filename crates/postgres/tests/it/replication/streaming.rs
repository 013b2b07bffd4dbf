use std::path::Path;

use watchkeeper_core::{Change, ErrorKind, Source, StartAt};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::bench::{Base, LIMITS, Watch, assert_error, block_on, connect, cx, server, shown};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text, w text)";

/// A server that tells transactions before their commit as soon as it can.
fn eager(version: Version) -> Server {
    server(version, &["logical_decoding_work_mem = '64kB'"])
}

/// Reads through another slot, told before the commit, with next to nothing in memory.
fn streaming(base: &Base<'_>, folder: &Path) -> Settings {
    let mut settings = base.settings();
    settings.slot = format!("{}_on", base.name);
    (settings.streaming, settings.spool_memory, settings.spool_folder) = (true, 100_000, folder.to_owned());
    settings
}

fn rows(from: u32, to: u32) -> String {
    format!("INSERT INTO things SELECT g, repeat('v', 200) FROM generate_series({from}, {to}) g")
}

/// The files in `folder` that this process has open, although they have no name any more.
fn spooled(folder: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("a process can look at itself");
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(folder) && target.to_string_lossy().ends_with("(deleted)")).count()
}

fn reported(changes: &[Change]) -> Vec<String> {
    let one = |change: &Change| format!("{} {} {:?}", change.id(), shown(change), change.get(&["xid"]));
    changes.iter().map(one).collect()
}

/// Large transactions beside each other: undone in parts, undone altogether, with tables that change in between.
async fn write(base: &Base<'_>) {
    let (a, b, c) = (connect(&base.url()).await, connect(&base.url()).await, connect(&base.url()).await);
    let run = async |client: &watchkeeper_postgres::tokio_postgres::Client, sql: &str| {
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    };
    for client in [&a, &b, &c] {
        run(client, "BEGIN").await;
    }
    run(&a, &rows(1, 2_000)).await;
    run(&b, &rows(10_001, 12_000)).await;
    run(&c, &rows(20_001, 24_000)).await;
    run(&a, &format!("SAVEPOINT one; {}; SAVEPOINT two; {}", rows(2_001, 4_000), rows(4_001, 5_000))).await;
    run(&a, "ROLLBACK TO one").await;
    run(&a, &format!("{}; SAVEPOINT kept; {}", rows(2_001, 3_000), rows(3_001, 5_000))).await;
    base.run("INSERT INTO things VALUES (30001, 'between')").await;
    run(&b, "UPDATE things SET w = 'changed' WHERE id > 10000; UPDATE things SET id = 40001 WHERE id = 10001").await;
    run(&c, "ROLLBACK").await;
    run(&b, "COMMIT").await;
    run(&a, "COMMIT").await;
    // The first to name a table is a part that is undone, and it has changed the table.
    run(&a, "BEGIN; SAVEPOINT one; ALTER TABLE things ADD COLUMN x int DEFAULT 7").await;
    run(&a, &format!("{}; ROLLBACK TO one; {}", rows(50_001, 52_000), rows(50_001, 51_999))).await;
    run(&a, "COMMIT; TRUNCATE things; INSERT INTO things VALUES (60001, 'last')").await;
}

const WRITTEN: usize = 5_000 + 1 + (2_000 + 2_001 + 2) + (1_999 + 2);

#[test]
fn transactions_reported_before_their_commit_are_reported_as_all_others() {
    for version in Version::ALL {
        let (server, folder) = (eager(version), tempfile::tempdir().unwrap());
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let (off, on) = (base.source(), base.source_with(streaming(&base, folder.path())));
            let mut plain = Watch::open(&off, StartAt::Now).await;
            let mut early = Watch::open(&on, StartAt::Now).await;
            write(&base).await;
            let (plain_reported, early_reported) = (plain.changes(WRITTEN).await, early.changes(WRITTEN).await);
            assert_eq!(reported(&early_reported), reported(&plain_reported));
            let positions = |changes: &[Change]| changes.iter().map(Change::position).collect::<Vec<_>>();
            assert_eq!(positions(&early_reported), positions(&plain_reported));
            plain.close().await;
            early.close().await;
            for middle in [1, 3_000, WRITTEN - 500] {
                let mut again = Watch::open(&on, StartAt::After(early_reported[middle - 1].position())).await;
                assert_eq!(reported(&again.changes(WRITTEN - middle).await), reported(&early_reported[middle..]));
                again.close().await;
            }
        });
        assert_eq!(spooled(folder.path()), 0, "a file is still open");
    }
}

#[test]
fn what_is_not_committed_yet_lies_in_a_file_without_a_name() {
    for version in Version::ALL {
        let (server, folder) = (eager(version), tempfile::tempdir().unwrap());
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let mut watch = Watch::open(&base.source_with(streaming(&base, folder.path())), StartAt::Now).await;
            let writer = connect(&base.url()).await;
            writer.batch_execute(&format!("BEGIN; {}", rows(1, 5_000))).await.unwrap();
            base.run("INSERT INTO things VALUES (6000, 'committed first')").await;
            let first = watch.changes(1).await.remove(0);
            assert!(shown(&first).contains("committed first"), "{}", shown(&first));
            assert_eq!(spooled(folder.path()), 1, "the transaction does not lie in a file");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has a name");
            writer.batch_execute("COMMIT").await.unwrap();
            watch.changes(5_000).await;
            base.run("INSERT INTO things VALUES (6001)").await;
            watch.changes(1).await;
            assert_eq!(spooled(folder.path()), 0, "the file outlives its transaction");
            watch.close().await;
        });
    }
}

#[test]
fn more_than_may_be_laid_aside_is_reported_and_nothing_is_lost() {
    for version in Version::ALL {
        let (server, folder) = (eager(version), tempfile::tempdir().unwrap());
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let mut settings = streaming(&base, folder.path());
            settings.spool_limit = 300_000;
            let small = base.source_with(settings.clone());
            let mut watch = Watch::open(&small, StartAt::Now).await;
            base.run("INSERT INTO things VALUES (6000, 'before')").await;
            base.run(&rows(1, 5_000)).await;
            let before = watch.changes(1).await[0].position();
            let error = watch.error().await;
            assert_error(Err::<(), _>(error), ErrorKind::Config, "spool_limit");
            assert_eq!(watch.stream.position().unwrap(), before);
            watch.close().await;
            (settings.spool_limit, settings.spool_folder) = (u64::MAX, folder.path().join("missing"));
            let mut watch = Watch::open(&base.source_with(settings.clone()), StartAt::After(before.clone())).await;
            for _ in 0..2 {
                assert_eq!(watch.error().await.kind(), ErrorKind::Unavailable);
            }
            assert_eq!(watch.stream.position().unwrap(), before);
            watch.close().await;
            settings.spool_folder = folder.path().to_owned();
            for streams in [true, false] {
                settings.streaming = streams;
                let again = base.source_with(settings.clone());
                let mut watch = Watch::open(&again, StartAt::After(before.clone())).await;
                watch.changes(5_000).await;
                assert!(watch.stream.next_batch(&cx(), LIMITS).await.unwrap().is_empty());
                watch.close().await;
            }
            small.check(&cx()).await.expect("the source is fine");
        });
    }
}
