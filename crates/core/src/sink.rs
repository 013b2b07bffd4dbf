//! Where changes go.
//!
//! `Written` reports a prefix of the rows: what was accepted before a bad row is not written again, and attempts count
//! against that row only. `SinkContext::store` tells a sink where the checkpoint is kept; `OpenedSink` is the writer
//! that fits, and the engine checks that the identities agree.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::change::{Batch, Change};
use crate::checkpoint::{CheckpointWrite, StoreIdentity};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::names::Grant;
use crate::source::Finding;

/// What a target does with a stale or repeated write. Ordered from the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Grade {
    /// Takes what comes: duplicates may be seen, and for `settle` also writes out of turn.
    Plain,
    /// As plain, but a repeated write has no further effect.
    Idempotent,
    /// Never lets an older version overwrite a newer one.
    Versioned,
    /// Checks the epoch itself.
    Fenced,
    /// Is the checkpoint's own store: changes and checkpoint in one transaction.
    Transactional,
}

impl Grade {
    /// Whether a write that arrives late, from a tenure that has ended, can do harm. If it can,
    /// takeovers wait for `settle`.
    pub fn is_exposed(self) -> bool {
        self < Self::Versioned
    }
}

/// What a sink is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkProfile {
    /// See [`Grade`].
    pub grade: Grade,
    /// The longest time for which a sent request may still take effect.
    pub settle: Duration,
    /// At most so many rows in one write.
    pub rows_max: usize,
    /// Whether it acts on barriers (drops a table, say), which then must see all keys.
    pub acts_on_barriers: bool,
    /// Whether it can only take changes that tell the whole row: a mirror of documents can do nothing with a difference.
    pub whole_rows: bool,
    /// Whether it keeps rows as they are at the source, so that it is wrong as soon as one change of them is kept from it.
    /// Filters and sources that hide changes of rows are then refused, and what changes the meaning of a name
    /// ([`Operation::redefines_names`](crate::Operation::redefines_names)) passes every filter that keeps rows of that name.
    pub mirrors: bool,
    /// Whether what a write accepted is durable already, so that a flush costs nothing. The engine then flushes after every piece
    /// of a batch, and what the source's bytes took is free for the next ones at once.
    pub durable_writes: bool,
    /// Set when the sink can write changes and checkpoint in one transaction: the store it does so in.
    pub store: Option<StoreIdentity>,
}

impl SinkProfile {
    /// A profile of this grade and settle time, without limits.
    pub fn new(grade: Grade, settle: Duration) -> Self {
        let (rows_max, acts_on_barriers, whole_rows, mirrors) = (usize::MAX, false, false, false);
        Self { grade, settle, rows_max, acts_on_barriers, whole_rows, mirrors, durable_writes: false, store: None }
    }
}

/// What a sink writes to, where that can be missing and is made then: a table, say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkTarget {
    /// What tells it from every other target, also of other databases. Instances that know the same target by different addresses
    /// should agree on it.
    pub identity: String,
    /// Its name for people: `table orders in mirror.db`.
    pub name: String,
}

/// On whose behalf a sink is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkContext {
    /// The grant under which everything is written.
    pub grant: Grant,
    /// The stream's name.
    pub stream: String,
    /// The sink's name within the stream.
    pub sink: String,
    /// The partition, counted from 0.
    pub partition: u32,
    /// How many lanes will write.
    pub lanes: usize,
    /// Where this stream's checkpoint is kept. A sink may open as transactional only into this one.
    pub store: StoreIdentity,
}

/// What a fault asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Try this row again later: its target does not take it now.
    Retry,
    /// The code that takes the row panicked: try it again, but count it against the row.
    Panic,
    /// The target will never take it: apply the policy.
    Reject,
    /// This instance must not go on: release at once.
    Fatal,
}

/// A row that was not delivered.
#[derive(Debug)]
pub struct Fault {
    /// Which row of the batch.
    pub row: u32,
    /// What to do.
    pub kind: FaultKind,
    /// Why.
    pub error: Error,
}

/// How far a write came.
#[derive(Debug, Default)]
pub struct Written {
    /// How many of the call's rows are dealt with: accepted, or named in `rejected`. Always a prefix;
    /// the engine asks again for the rest.
    pub done: usize,
    /// Rows of that prefix that the target will never take.
    pub rejected: Vec<Fault>,
    /// Why it stopped before the first row that is not done, if it did: `Retry` or `Fatal`.
    pub stopped: Option<Fault>,
}

impl Written {
    /// All `rows` were accepted.
    pub fn all(rows: &[u32]) -> Self {
        Self { done: rows.len(), ..Self::default() }
    }
}

/// A row that turned out to be rejected after its write had been accepted.
#[derive(Debug)]
pub struct FlushRejection {
    /// [`Batch::seq`].
    pub batch_seq: u64,
    /// Which row of it.
    pub row: u32,
    /// Why.
    pub error: Error,
}

/// Why a sink that mirrors rejects this rename: no change tells where the rows went, and which are there instead.
pub fn rename_rejection(change: &Change) -> Error {
    let to = change.renamed_to().map(|name| format!(" to {name}")).unwrap_or_default();
    Error::config(format!("{} was renamed{to}, which a mirror cannot follow", change.namespace()))
        .remedy(
            "empty the mirror and read everything anew with `watchkeeper checkpoint set STREAM snapshot`, or skip this change if the \
             mirror may keep what it has",
        )
}

/// A target of changes.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// use async_trait::async_trait;
/// use watchkeeper_core::{
///     Batch, Change, Cx, Finding, FlushRejection, Grade, OpenedSink, Result, Sink, SinkContext, SinkProfile, SinkWriter,
///     Written,
/// };
///
/// /// Collects the ids of changes.
/// #[derive(Debug, Clone, Default)]
/// struct Ids(Arc<Mutex<Vec<String>>>);
///
/// #[async_trait]
/// impl Sink for Ids {
///     fn profile(&self) -> SinkProfile {
///         // Nothing that was sent can take effect later, so the next holder need not wait for it.
///         SinkProfile::new(Grade::Idempotent, Duration::ZERO)
///     }
///
///     async fn check(&self, _: &Cx) -> Result<Vec<Finding>> {
///         Ok(Vec::new())
///     }
///
///     async fn open(&self, _: &Cx, _: &SinkContext) -> Result<OpenedSink> {
///         Ok(OpenedSink::Plain(Arc::new(self.clone())))
///     }
/// }
///
/// #[async_trait]
/// impl SinkWriter for Ids {
///     async fn write(&self, _: &Cx, _lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
///         let ids = rows.iter().map(|row| Change::new(Arc::clone(batch), *row).id().to_string());
///         self.0.lock().expect("nobody panics with it").extend(ids);
///         Ok(Written::all(rows))
///     }
///
///     async fn flush(&self, _: &Cx) -> Result<Vec<FlushRejection>> {
///         Ok(Vec::new())
///     }
///
///     async fn close(&self, _: &Cx) -> Result<()> {
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// What it is. Known without a connection, except for the identity of its store.
    fn profile(&self) -> SinkProfile;

    /// Looks at reachability, privileges and settings.
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>>;

    /// Opens a writer for a new tenure.
    ///
    /// # Behavior
    /// * K1: a fenced target refuses every older epoch from here on.
    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink>;

    /// What [`open`](Self::open) makes where it is missing. The engine notes which ones a stream has written to.
    fn target(&self) -> Option<SinkTarget> {
        None
    }

    /// As [`open`](Self::open), without making a [`target`](Self::target) that is missing: `None` then. The engine opens a sink so if its
    /// stream has a position: what was delivered before it would be missing in a target that is made anew.
    ///
    /// # Behavior
    /// As [`open`](Self::open).
    async fn open_existing(&self, cx: &Cx, context: &SinkContext) -> Result<Option<OpenedSink>> {
        self.open(cx, context).await.map(Some)
    }

    /// Hears that the instance has ended in order: it opens no writer any more, whoever still holds its handle.
    fn instance_ended(&self) {}
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Arc<S> {
    fn profile(&self) -> SinkProfile {
        (**self).profile()
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        (**self).check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        (**self).open(cx, context).await
    }

    fn target(&self) -> Option<SinkTarget> {
        (**self).target()
    }

    async fn open_existing(&self, cx: &Cx, context: &SinkContext) -> Result<Option<OpenedSink>> {
        (**self).open_existing(cx, context).await
    }

    fn instance_ended(&self) {
        (**self).instance_ended();
    }
}

/// An open sink.
#[derive(Debug)]
pub enum OpenedSink {
    /// Written through lanes, made durable by flushes.
    Plain(Arc<dyn SinkWriter>),
    /// Written with the checkpoint in one transaction.
    Transactional(Box<dyn TransactionalWriter>),
}

/// Writes through lanes.
#[async_trait]
pub trait SinkWriter: Send + Sync + std::fmt::Debug {
    /// Accepts rows, in order; it may buffer them. A writer that takes them one by one answers with those that are done after
    /// [`Cx::progress_every`], so that they can be committed while the others wait.
    ///
    /// # Behavior
    /// * K2: rows of one lane take effect in the order of the calls and of `rows`. One call per lane is
    ///   in flight; lanes run beside each other.
    /// * K3: what is answered as done is durable after the next flush, or is rejected by it.
    /// * K4: with epochs or versions, a stale write is without effect.
    ///
    /// # Errors
    /// Nothing is known of any row: the engine repeats the whole call unchanged.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may have written any part.
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written>;

    /// Returns when everything accepted before the call is durable. Runs beside later writes.
    ///
    /// # Errors
    /// Everything since the last good flush has to be written again; the engine reopens.
    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>>;

    /// Ends writing in order, after a last flush.
    async fn close(&self, cx: &Cx) -> Result<()>;
}

/// The answer to a transaction.
#[derive(Debug)]
pub enum Transacted {
    /// Changes and checkpoint are written.
    Committed,
    /// They had been written before: the answer was lost.
    AlreadyDone,
    /// A newer grant has claimed; nothing was written.
    Fenced,
    /// These rows cannot be written; nothing was written. The engine repeats without them.
    Rejected(Vec<Fault>),
}

/// Writes changes and checkpoint together: exactly once.
#[async_trait]
pub trait TransactionalWriter: Send + std::fmt::Debug {
    /// One transaction: rows in order, then the checkpoint by the rules of
    /// [`CheckpointStore::commit`](crate::CheckpointStore::commit).
    ///
    /// # Behavior
    /// * T1: all or nothing, and nothing from an older (epoch, tenure).
    /// * T2: the checkpoint row is always *written*; reading the epoch alone would be write skew.
    /// * T3: repeated unchanged after an unknown answer, it takes effect once.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may have committed.
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted>;

    /// Ends writing in order.
    async fn close(&mut self, cx: &Cx) -> Result<()>;
}
