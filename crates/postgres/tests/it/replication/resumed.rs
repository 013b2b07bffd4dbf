//! Snapshots that are broken off and gone on with.

use std::sync::Arc;

use watchkeeper_core::{Change, Limits, Operation, Source, StartAt};
use watchkeeper_postgres::Replication;

use super::bench::{Base, LIMITS, cx, on_both};
use super::copies::{Copy, changes, value};

const TABLES: [&str; 4] = ["a", "b", "c", "d"];

fn schema() -> String {
    let table = |name: &str| {
        format!(
            "CREATE TABLE {name}(id int PRIMARY KEY, v text);
            INSERT INTO {name} SELECT g, 'old' FROM generate_series(1, 150) g;"
        )
    };
    TABLES.map(table).concat()
}

/// A stream that dies again and again, and its target.
struct RestartedStream<'a> {
    base: &'a Base<'a>,
    source: Replication,
    copy: Copy,
    start: StartAt,
}

impl<'a> RestartedStream<'a> {
    fn new(base: &'a Base<'a>, copy: Copy) -> Self {
        let mut settings = base.settings();
        settings.tables = TABLES.map(str::to_owned).to_vec();
        Self { base, source: base.source_with(settings), copy, start: StartAt::Snapshot }
    }

    /// Opens, and lets `meanwhile` be written. Then delivers and commits until so many changes were `awaited`, and dies.
    async fn until(&mut self, meanwhile: &str, count: usize, awaited: impl Fn(&Change) -> bool) {
        let mut stream = self.source.open(&cx(), self.start.clone()).await.expect("the stream opens");
        self.base.run(meanwhile).await;
        let limits = Limits { rows: 3, ..LIMITS };
        let (mut seen, mut idle) = (0, 0);
        while seen < count {
            assert!(idle < 30, "{seen} of {count} changes came");
            let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("the stream goes on"));
            idle = if batch.is_empty() { idle + 1 } else { 0 };
            self.copy.deliver(&batch).await;
            self.start = StartAt::After(batch.end.clone());
            seen += changes(&batch).filter(|change| awaited(change)).count();
        }
    }

    async fn assert_like(&self, which: &str) {
        self.copy.assert_like(self.base, &TABLES, which).await;
    }
}

fn is_read(table: &str) -> impl Fn(&Change) -> bool {
    let namespace = format!("public.{table}");
    move |change| change.operation() == Operation::Read && change.namespace() == namespace
}

fn is(text: &str) -> impl Fn(&Change) -> bool {
    move |change| value(change).as_deref() == Some(text)
}

/// Everything that can befall rows that were delivered of a table that is to be read again, and rows that were not.
const WRITES: &str = "
    DELETE FROM b WHERE id BETWEEN 1 AND 10;
    UPDATE b SET v = 'new' WHERE id BETWEEN 11 AND 15;
    UPDATE b SET id = id + 1000 WHERE id BETWEEN 16 AND 20;
    BEGIN; DELETE FROM b WHERE id = 21; INSERT INTO b VALUES (21, 'again'); COMMIT;
    DELETE FROM b WHERE id = 22; INSERT INTO b VALUES (22, 'again');
    UPDATE b SET id = 5000 WHERE id = 23; UPDATE b SET id = 23 WHERE id = 5000;
    INSERT INTO b VALUES (6000, 'short'); DELETE FROM b WHERE id = 6000;
    DELETE FROM a WHERE id < 5; UPDATE a SET v = 'new' WHERE id BETWEEN 5 AND 9; UPDATE a SET id = 2000 WHERE id = 10;
    TRUNCATE c; INSERT INTO c VALUES (1, 'fresh');
    ALTER TABLE b ADD COLUMN more text DEFAULT 'more'; DELETE FROM b WHERE id = 24; ALTER TABLE b DROP COLUMN more;
    DELETE FROM d WHERE id < 5";

async fn break_off_everywhere(base: &Base<'_>, copy: Copy) {
    let mut restarted = RestartedStream::new(base, copy);
    restarted.until("", 60, is_read("b")).await;
    base.run(WRITES).await;
    // While it catches up.
    restarted.until("", 4, |change| change.operation() == Operation::Delete && change.namespace() == "public.b").await;
    base.run("DELETE FROM b WHERE id IN (21, 30, 31); INSERT INTO b VALUES (1, 'back'); TRUNCATE c").await;
    // Within the rows that are read anew.
    restarted.until("INSERT INTO b VALUES (2, 'back')", 40, is_read("b")).await;
    base.run("DELETE FROM b WHERE id < 100 AND id % 2 = 1; DELETE FROM a WHERE id = 5").await;
    restarted.until("DELETE FROM b WHERE id = 22", 20, is_read("d")).await;
    base.run("TRUNCATE d; INSERT INTO d VALUES (7, 'fresh'); UPDATE b SET v = 'newer' WHERE id = 26").await;
    restarted.until("INSERT INTO a VALUES (9999, 'last'); DELETE FROM b WHERE id = 28", 1, is("last")).await;
    restarted.until("INSERT INTO a VALUES (9998, 'very last')", 1, is("very last")).await;
    restarted.assert_like("in the end").await;
}

#[test]
fn a_plain_copy_is_whole_after_all_interruptions() {
    on_both(&schema(), async |base| break_off_everywhere(base, Copy::plain()).await);
}

#[test]
fn a_versioned_copy_is_whole_after_all_interruptions() {
    on_both(&schema(), async |base| break_off_everywhere(base, Copy::versioned().await).await);
}

#[test]
fn a_transactional_copy_is_whole_after_all_interruptions() {
    on_both(&schema(), async |base| break_off_everywhere(base, Copy::transactional().await).await);
}
