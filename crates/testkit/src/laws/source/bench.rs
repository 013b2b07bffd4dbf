use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::memory::{Log, NewChange};
use watchkeeper_core::{
    Batch, ChangeStream, Clock, Cx, Limits, Operation, Position, Result, Source, SourceTime, StartAt, Version,
};

use crate::laws::lawful::{Broken, TRIES, ensure};
use crate::world::World;

/// A source on the bench, with the means to make changes that it will tell of.
///
/// The bench of each law is fresh: no other changes happen in what it watches. Keys are small numbers,
/// each of which stands for one row or document.
#[async_trait]
pub trait SourceBench: Send + Sync {
    /// The context of all calls.
    fn cx(&self) -> &Cx;

    /// The source.
    fn source(&self) -> Arc<dyn Source>;

    /// Makes a new one with this key.
    async fn insert(&self, key: u64) -> Result<()>;

    /// Changes the one with this key; each update is a different one.
    async fn update(&self, key: u64) -> Result<()>;

    /// Removes the one with this key.
    async fn delete(&self, key: u64) -> Result<()>;

    /// Gives the one with key `from` the key `to`. `false` where keys cannot be changed.
    async fn update_key(&self, _from: u64, _to: u64) -> Result<bool> {
        Ok(false)
    }

    /// Makes a change without a key, like a truncate. `false` where there is none.
    async fn barrier(&self) -> Result<bool> {
        Ok(false)
    }

    /// Loses the history up to now, as a log that is full does. `false` where that cannot be done.
    async fn lose_history(&self) -> Result<bool> {
        Ok(false)
    }

    /// How long a change may need until it can be read.
    fn patience(&self) -> Duration {
        Duration::from_millis(250)
    }
}

/// A row as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadRow {
    pub(super) id: String,
    pub(super) operation: Operation,
    pub(super) key: Option<Bytes>,
    pub(super) half: u8,
    pub(super) committable: bool,
    pub(super) position: Position,
    pub(super) version: Version,
}

pub(super) fn rows_of(batch: &Batch) -> Vec<ReadRow> {
    let rows = (0u32..).zip(batch.rows());
    rows.map(|(n, row)| ReadRow {
        id: batch.id(n).to_string(),
        operation: row.operation,
        key: batch.key(n).map(Bytes::copy_from_slice),
        half: row.half,
        committable: row.committable,
        position: batch.position(n),
        version: row.version,
    })
    .collect()
}

pub(super) fn ids(rows: &[ReadRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

impl dyn SourceBench + '_ {
    pub(super) fn limits(&self, rows: usize) -> Limits {
        Limits { rows, bytes: 1 << 20, wait: self.patience() }
    }

    pub(super) async fn open(&self, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.source().open(self.cx(), start).await
    }

    /// Reads `count` rows, and the batches they came in; more than that is an error.
    pub(super) async fn read(
        &self,
        stream: &mut dyn ChangeStream,
        limits: Limits,
        count: usize,
    ) -> Result<Vec<Batch>, Broken> {
        let (mut batches, mut rows) = (Vec::new(), 0);
        for _ in 0..count + TRIES {
            if rows >= count {
                break;
            }
            let batch = stream.next_batch(self.cx(), limits).await?;
            rows += batch.len();
            batches.push(batch);
        }
        ensure!(rows == count, "{count} changes were made, {rows} read");
        Ok(batches)
    }

    pub(super) async fn read_rows(&self, stream: &mut dyn ChangeStream, count: usize) -> Result<Vec<ReadRow>, Broken> {
        let batches = self.read(stream, self.limits(100), count).await?;
        Ok(batches.iter().flat_map(rows_of).collect())
    }

    /// What another opening reads after `position`, when `count` rows are expected and no more.
    pub(super) async fn read_after(&self, position: &Position, count: usize) -> Result<Vec<ReadRow>, Broken> {
        let mut stream = self.open(StartAt::After(position.clone())).await?;
        let rows = self.read_rows(&mut *stream, count).await?;
        let more = stream.next_batch(self.cx(), self.limits(100)).await?;
        ensure!(more.is_empty(), "{} changes too many were read", more.len());
        stream.close(self.cx()).await?;
        Ok(rows)
    }

    /// The position from which everything that a law does can be read again.
    pub(super) async fn beginning(&self) -> Result<Position, Broken> {
        let mut stream = self.open(StartAt::Now).await?;
        let batch = stream.next_batch(self.cx(), self.limits(100)).await?;
        ensure!(batch.is_empty(), "before anything happened {} changes were read", batch.len());
        stream.close(self.cx()).await?;
        Ok(batch.end)
    }

    /// Makes nine changes of three keys.
    pub(super) async fn make_nine(&self) -> Result<(), Broken> {
        for key in 1..=3 {
            self.insert(key).await?;
        }
        for key in 1..=3 {
            self.update(key).await?;
        }
        for key in 1..=3 {
            self.delete(key).await?;
        }
        Ok(())
    }
}

/// The reference in memory.
pub(super) struct LogBench {
    cx: Cx,
    clock: Arc<dyn Clock>,
    log: Log,
    source: Arc<dyn Source>,
}

impl dyn SourceBench {
    /// The reference in memory, in virtual time.
    pub fn in_memory(world: &World) -> Box<dyn SourceBench> {
        Self::around(world, |log| Arc::new(log))
    }

    /// What `wrap` makes of the reference in memory, in virtual time.
    pub fn around(world: &World, wrap: impl FnOnce(Log) -> Arc<dyn Source>) -> Box<dyn SourceBench> {
        let log = Log::new("laws");
        let source = wrap(log.clone());
        Box::new(LogBench { cx: world.cx(), clock: world.clock(), log, source })
    }
}

impl LogBench {
    fn append(&self, operation: Operation, key: Option<u64>, first_half: bool) {
        let key = key.map(|key| Bytes::copy_from_slice(&key.to_be_bytes()));
        let (namespace, body) = ("laws".to_owned(), Bytes::from_static(br#"{"n":1}"#));
        let change = NewChange { operation, namespace, key, body, first_half };
        self.log.append(change, SourceTime(self.clock.wall_millis()));
    }
}

#[async_trait]
impl SourceBench for LogBench {
    fn cx(&self) -> &Cx {
        &self.cx
    }

    fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.source)
    }

    async fn insert(&self, key: u64) -> Result<()> {
        self.append(Operation::Insert, Some(key), false);
        Ok(())
    }

    async fn update(&self, key: u64) -> Result<()> {
        self.append(Operation::Update, Some(key), false);
        Ok(())
    }

    async fn delete(&self, key: u64) -> Result<()> {
        self.append(Operation::Delete, Some(key), false);
        Ok(())
    }

    async fn update_key(&self, from: u64, to: u64) -> Result<bool> {
        self.append(Operation::Delete, Some(from), true);
        self.append(Operation::Insert, Some(to), false);
        Ok(true)
    }

    async fn barrier(&self) -> Result<bool> {
        self.append(Operation::Truncate, None, false);
        Ok(true)
    }

    async fn lose_history(&self) -> Result<bool> {
        self.log.prune(self.log.newest());
        Ok(true)
    }
}
