//! A sink that only counts, in several manners; and checkpoints that cannot be committed.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_core::{
    Batch, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Finding, FlushRejection, Grade, Grant,
    LeaseKey, LedgerQuery, LedgerRecord, OpenedSink, Result, Sink, SinkContext, SinkProfile, SinkWriter, StoreIdentity,
    Written,
};

use crate::tally::Tally;

/// How a sink takes what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinkBehaviour {
    /// At once.
    Takes,
    /// After letting the other tasks run.
    Yields,
    /// Its writes never return.
    NeverWrites,
    /// Its writes return, its flushes never do.
    NeverFlushes,
}

/// Counts rows and forgets them.
#[derive(Debug, Clone)]
pub(crate) struct NullSink {
    manner: SinkBehaviour,
    delivered: Arc<Tally>,
}

impl NullSink {
    /// A sink of this manner that counts into `delivered`.
    pub(crate) fn new(manner: SinkBehaviour, delivered: &Arc<Tally>) -> Self {
        Self { manner, delivered: Arc::clone(delivered) }
    }
}

#[async_trait]
impl Sink for NullSink {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(Grade::Plain, Duration::ZERO)
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, _context: &SinkContext) -> Result<OpenedSink> {
        Ok(OpenedSink::Plain(Arc::new(self.clone())))
    }
}

#[async_trait]
impl SinkWriter for NullSink {
    async fn write(&self, _cx: &Cx, _lane: usize, _batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        match self.manner {
            SinkBehaviour::NeverWrites => pending().await,
            SinkBehaviour::Yields => tokio::task::yield_now().await,
            SinkBehaviour::Takes | SinkBehaviour::NeverFlushes => {}
        }
        self.delivered.add(rows.len() as u64);
        Ok(Written::all(rows))
    }

    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        if self.manner == SinkBehaviour::NeverFlushes {
            pending().await
        }
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

/// Checkpoints whose commits never return, but for the first one, which says that the stream begins; all else works.
#[derive(Debug)]
pub(crate) struct HangingCommits {
    inner: Checkpoints,
    has_begun: AtomicBool,
    attempts: Arc<Tally>,
}

impl HangingCommits {
    /// Over `inner`, counting attempts to commit.
    pub(crate) fn new(inner: Checkpoints, attempts: &Arc<Tally>) -> Self {
        Self { inner, has_begun: AtomicBool::new(false), attempts: Arc::clone(attempts) }
    }
}

#[async_trait]
impl CheckpointStore for HangingCommits {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        self.inner.identity(cx).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        self.inner.claim(cx, grant).await
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            return self.inner.commit(cx, writes).await;
        }
        self.attempts.add(1);
        pending().await
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        self.inner.load(cx, key).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        self.inner.ledger(cx, key, query).await
    }
}
