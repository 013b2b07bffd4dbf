//! Snapshots that are broken off at random, while rows are written at random.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Batch, Change, ChangeStream, Entropy, Limits, Source, StartAt};
use watchkeeper_postgres::Replication;
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, LIMITS, block_on, cx, shared};
use super::copies::{Copy, changes, value};

const TABLES: [&str; 3] = ["a", "b", "c"];

/// Keys are few, so that they meet.
const KEYS: u64 = 160;

/// How often a stream dies before it may go on to the end.
const DEATHS: u64 = 6;

/// 3, or as many as `WATCHKEEPER_SEEDS` says; on each server, for each kind of target.
fn seeds() -> u64 {
    std::env::var("WATCHKEEPER_SEEDS").map_or(3, |text| text.parse().expect("a number of seeds"))
}

/// What becomes of what was delivered and not committed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Grade {
    /// There is no such thing.
    Transactional,
    /// It is delivered again.
    Plain,
    /// The same, and what a dead instance sent may arrive long after.
    Versioned,
}

/// A stream that dies again and again, its target, and whoever writes.
struct Storm<'a> {
    base: &'a Base<'a>,
    source: Replication,
    dice: Entropy,
    grade: Grade,
    copy: Copy,
    committed: StartAt,
    /// Batches that a dead instance may still have on their way.
    adrift: Vec<Arc<Batch>>,
}

impl<'a> Storm<'a> {
    async fn new(base: &'a Base<'a>, version: Version, grade: Grade, seed: u64) -> Self {
        let mut settings = base.settings();
        settings.tables = TABLES.map(str::to_owned).to_vec();
        settings.streaming = seed % 2 == 1;
        if settings.streaming && version == Version::V18 {
            // Every change is told before its commit.
            let sql = "ALTER DATABASE {} SET debug_logical_replication_streaming = 'immediate'";
            base.run(&sql.replace("{}", &base.name)).await;
        }
        let copy = if grade == Grade::Versioned { Copy::newest() } else { Copy::plain() };
        let (source, dice) = (base.source_with(settings), Entropy::seeded(seed));
        Self { base, source, dice, grade, copy, committed: StartAt::Snapshot, adrift: Vec::new() }
    }

    /// A few transactions of a few statements. A truncate would wait for the snapshot of an open stream, which waits for us.
    async fn write(&self, may_truncate: bool) {
        for _ in 0..self.dice.below(4) {
            let statements: Vec<_> = (0..=self.dice.below(6)).map(|_| self.statement(may_truncate)).collect();
            self.base.run(&format!("BEGIN; {}; COMMIT", statements.join("; "))).await;
        }
    }

    fn statement(&self, may_truncate: bool) -> String {
        let dice = |bound: u64| self.dice.below(bound);
        let (table, id, other, v) = (TABLES[dice(3) as usize], dice(KEYS), dice(KEYS), dice(1 << 32));
        match dice(40) {
            0 | 1 if may_truncate => format!("TRUNCATE {table}"),
            0..4 => format!("DELETE FROM {table} WHERE id BETWEEN {id} AND {}", id + 20),
            4..12 => format!("DELETE FROM {table} WHERE id = {id}"),
            12..20 => format!("UPDATE {table} SET v = '{v}' WHERE id = {id}"),
            20..26 => {
                format!("DELETE FROM {table} WHERE id = {other}; UPDATE {table} SET id = {other} WHERE id = {id}")
            }
            26..28 => {
                format!(
                    "INSERT INTO {table} SELECT g, '{v}' FROM generate_series({id}, {other}) g ON CONFLICT DO NOTHING"
                )
            }
            _ => format!("INSERT INTO {table} VALUES ({id}, '{v}') ON CONFLICT (id) DO UPDATE SET v = excluded.v"),
        }
    }

    async fn open(&self) -> Box<dyn ChangeStream> {
        self.source.open(&cx(), self.committed.clone()).await.expect("the stream opens")
    }

    /// Delivers the next batch, of random size, and commits it, or not. Whether it had a row with this value.
    async fn step(&mut self, stream: &mut dyn ChangeStream, awaited: &str) -> bool {
        let rows = 1 + self.dice.below(60) as usize;
        let limits = Limits { rows, wait: Duration::from_millis(50), ..LIMITS };
        let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("the stream goes on"));
        self.copy.deliver(&batch).await;
        if self.grade == Grade::Transactional || self.dice.below(2) == 0 {
            self.committed = StartAt::After(batch.end.clone());
            stream.acknowledge(&cx(), &batch.end).await.expect("it is heard");
        }
        let is_awaited = changes(&batch).any(|change| value(&change).as_deref() == Some(awaited));
        self.adrift.push(batch);
        is_awaited
    }

    /// Delivers a part of the next batch and commits the position in its middle: the last thing that an instance does.
    async fn step_halfway(&mut self, stream: &mut dyn ChangeStream) {
        let limits = Limits { rows: 60, wait: Duration::from_millis(50), ..LIMITS };
        let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("the stream goes on"));
        let rows = 1 + self.dice.below(60) as usize;
        let Some((count, last)) = changes(&batch).take(rows).enumerate().filter(|(_, change)| is_end(change)).last()
        else {
            return;
        };
        self.copy.deliver_first(&batch, count + 1);
        self.committed = StartAt::After(last.position());
        stream.acknowledge(&cx(), &last.position()).await.expect("it is heard");
    }

    /// What was on its way arrives now, where that must not matter.
    async fn arrive_late(&mut self) {
        if self.grade != Grade::Versioned {
            return self.adrift.clear();
        }
        for batch in std::mem::take(&mut self.adrift) {
            if self.dice.below(3) == 0 {
                self.copy.deliver(&batch).await;
            }
        }
    }

    async fn rage(&mut self) {
        let which = format!("{:?}", self.grade);
        let mut stream = self.open().await;
        self.committed = StartAt::After(stream.position().expect("it is known before anything is delivered"));
        for death in 0..=DEATHS {
            for _ in 0..self.dice.below(9) {
                if self.dice.below(3) == 0 {
                    self.write(false).await;
                }
                self.step(&mut *stream, "").await;
            }
            self.step_halfway(&mut *stream).await;
            drop(stream);
            self.write(true).await;
            stream = self.open().await;
            if death % 2 == 1 {
                self.arrive_late().await;
            }
        }
        self.base.run("INSERT INTO a VALUES (9999, 'last')").await;
        for _ in 0..10_000 {
            if self.step(&mut *stream, "last").await {
                self.arrive_late().await;
                self.copy.assert_like(self.base, &TABLES, &which).await;
                return stream.close(&cx()).await.expect("a stream can be closed");
            }
        }
        panic!("{which}: the last change does not come");
    }
}

/// Whether a position may be committed after this change.
fn is_end(change: &Change) -> bool {
    change.batch().rows()[change.row() as usize].committable
}

fn schema() -> String {
    let table = |name: &str| {
        format!(
            "CREATE TABLE {name}(id int PRIMARY KEY, v text);
            INSERT INTO {name} SELECT g, 'old' FROM generate_series(1, {KEYS}) g;"
        )
    };
    TABLES.map(table).concat()
}

fn survive(grade: Grade) {
    for version in Version::ALL {
        for seed in 0..seeds() {
            println!("{grade:?} on {version:?}, seed {seed}");
            block_on(async {
                let base = Base::new(shared(version), &schema()).await;
                Storm::new(&base, version, grade, seed).await.rage().await;
                base.done().await;
            });
        }
    }
}

#[test]
fn a_plain_copy_survives_a_storm() {
    survive(Grade::Plain);
}

#[test]
fn a_versioned_copy_survives_a_storm() {
    survive(Grade::Versioned);
}

#[test]
fn a_transactional_copy_survives_a_storm() {
    survive(Grade::Transactional);
}
