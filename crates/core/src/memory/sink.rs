use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::checkpoint::Checkpoints;
use super::lock;
use crate::change::{Batch, Operation};
use crate::checkpoint::{CheckpointWrite, Commit};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::names::{Epoch, Grant, TenureId};
use crate::position::Version;
use crate::sink::{
    FlushRejection, Grade, OpenedSink, Sink, SinkContext, SinkProfile, SinkWriter, Transacted, TransactionalWriter,
    Written,
};
use crate::source::Finding;

/// A change as it arrived at a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Under which epoch it was written.
    pub epoch: Epoch,
    /// By which tenure.
    pub tenure: TenureId,
    /// Its deterministic id.
    pub id: String,
    /// What happened.
    pub operation: Operation,
    /// Where.
    pub namespace: Arc<str>,
    /// To what; `None` for a barrier.
    pub key: Option<Bytes>,
    /// Its version.
    pub version: Version,
    /// The payload.
    pub body: Bytes,
}

impl Delivered {
    /// Row `row` of `batch`, written under `grant`.
    pub fn of(batch: &Batch, row: u32, grant: &Grant) -> Self {
        let parts = &batch.rows()[row as usize];
        Self {
            epoch: grant.epoch,
            tenure: grant.tenure,
            id: batch.id(row).to_string(),
            operation: parts.operation,
            namespace: Arc::clone(batch.namespace(row)),
            key: batch.key(row).map(Bytes::copy_from_slice),
            version: parts.version,
            body: Bytes::copy_from_slice(batch.body(row)),
        }
    }
}

/// The target behind a [`TableSink`]: what it took, in order.
#[derive(Debug, Clone, Default)]
pub struct Table {
    state: Arc<Mutex<TableState>>,
}

#[derive(Debug, Default)]
struct TableState {
    /// The newest epoch that opened it; only a fenced target looks at it.
    epoch: Epoch,
    newest: BTreeMap<(Arc<str>, Bytes), Version>,
    newest_of_all: Version,
    /// The ids of what it took; only an idempotent target looks at them.
    known: BTreeSet<String>,
    delivered: Vec<Delivered>,
    refused: u64,
}

impl Table {
    /// What took effect, in order.
    pub fn delivered(&self) -> Vec<Delivered> {
        lock(&self.state).delivered.clone()
    }

    /// How many writes were refused or without effect.
    pub fn refused(&self) -> u64 {
        lock(&self.state).refused
    }

    fn take(&self, grade: Grade, rows: Vec<Delivered>) -> Result<()> {
        let mut state = lock(&self.state);
        for row in rows {
            if grade == Grade::Fenced && row.epoch < state.epoch {
                state.refused += 1;
                return Err(Error::fenced("a newer epoch has opened this target"));
            }
            let without_effect = match grade {
                Grade::Versioned => state.is_stale(&row),
                Grade::Idempotent => !state.known.insert(row.id.clone()),
                Grade::Plain | Grade::Fenced | Grade::Transactional => false,
            };
            if without_effect {
                state.refused += 1;
            } else {
                state.delivered.push(row);
            }
        }
        Ok(())
    }
}

impl TableState {
    fn is_stale(&mut self, row: &Delivered) -> bool {
        // A change without a key is a write to every key: one that comes late must not undo any.
        let newest = match &row.key {
            Some(key) => self.newest.entry((Arc::clone(&row.namespace), key.clone())).or_default(),
            None => &mut self.newest_of_all,
        };
        let stale = row.version <= *newest;
        *newest = row.version.max(*newest);
        self.newest_of_all = self.newest_of_all.max(row.version);
        stale
    }
}

/// A sink of any grade below transactional. Writes are buffered per lane and take effect at a flush.
#[derive(Debug, Clone)]
pub struct TableSink {
    table: Table,
    profile: SinkProfile,
}

impl TableSink {
    /// A sink of this grade into `table`.
    pub fn new(table: Table, grade: Grade) -> Self {
        Self { table, profile: SinkProfile::new(grade, Duration::ZERO) }
    }

    /// The same sink with another profile.
    #[must_use]
    pub fn with_profile(mut self, profile: SinkProfile) -> Self {
        self.profile = profile;
        self
    }
}

#[async_trait]
impl Sink for TableSink {
    fn profile(&self) -> SinkProfile {
        self.profile.clone()
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let mut state = lock(&self.table.state);
        state.epoch = state.epoch.max(context.grant.epoch);
        let buffers = Mutex::new(vec![Vec::new(); context.lanes.max(1)]);
        let (table, grade, grant) = (self.table.clone(), self.profile.grade, context.grant.clone());
        Ok(OpenedSink::Plain(Arc::new(TableWriter { table, grade, grant, buffers })))
    }
}

#[derive(Debug)]
struct TableWriter {
    table: Table,
    grade: Grade,
    grant: Grant,
    /// One per lane, so that a flush beside a write sees whole calls.
    buffers: Mutex<Vec<Vec<Delivered>>>,
}

#[async_trait]
impl SinkWriter for TableWriter {
    async fn write(&self, _cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let delivered = rows.iter().map(|row| Delivered::of(batch, *row, &self.grant));
        lock(&self.buffers)[lane].extend(delivered);
        Ok(Written::all(rows))
    }

    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        let buffered: Vec<_> = lock(&self.buffers).iter_mut().flat_map(std::mem::take).collect();
        self.table.take(self.grade, buffered)?;
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

/// A transactional sink into the database of a [`Checkpoints`].
#[derive(Debug, Clone)]
pub struct TransactionalTable {
    store: Checkpoints,
}

impl TransactionalTable {
    /// A sink into the database of `store`.
    pub fn new(store: Checkpoints) -> Self {
        Self { store }
    }
}

#[async_trait]
impl Sink for TransactionalTable {
    fn profile(&self) -> SinkProfile {
        let mut profile = SinkProfile::new(Grade::Transactional, Duration::ZERO);
        profile.store = Some(self.store.store_identity());
        profile
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        if context.store != self.store.store_identity() {
            return Err(Error::config("the checkpoint is not kept in this sink's database")
                .remedy("keep the stream's checkpoint in the store of its transactional sink"));
        }
        let (store, grant) = (self.store.clone(), context.grant.clone());
        Ok(OpenedSink::Transactional(Box::new(TransactionalTableWriter { store, grant })))
    }
}

#[derive(Debug)]
struct TransactionalTableWriter {
    store: Checkpoints,
    grant: Grant,
}

#[async_trait]
impl TransactionalWriter for TransactionalTableWriter {
    async fn write_and_commit(
        &mut self,
        _cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        let mut state = self.store.state();
        match state.commit(write)? {
            Commit::Committed => {
                let delivered = rows.iter().map(|row| Delivered::of(batch, *row, &self.grant));
                state.delivered.extend(delivered);
                Ok(Transacted::Committed)
            }
            Commit::AlreadyDone => Ok(Transacted::AlreadyDone),
            Commit::Fenced => Ok(Transacted::Fenced),
        }
    }

    async fn close(&mut self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
