//! What was passed over on purpose: dead letters, skips, gaps.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::change::{Batch, BatchBuilder, Change, Operation, RowParts};
use crate::payload::Payload;
use crate::position::{Position, SourceTime, Version};

/// Why something stands in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LedgerKind {
    /// Rejected by a sink, kept for replay.
    DeadLetter,
    /// Of a parked key: it has to wait until what was rejected before it has been replayed.
    Parked,
    /// Rejected by a sink and given up.
    Skipped,
    /// History was lost here.
    Gap,
    /// History was lost in the middle of a snapshot, and the stream went on without the rest of it: rows that existed before are missing
    /// at the targets until a new snapshot is taken.
    UnfinishedSnapshot,
}

impl LedgerKind {
    /// The name that metrics carry, and files that keep entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead-letter",
            Self::Parked => "parked",
            Self::Skipped => "skipped",
            Self::Gap => "gap",
            Self::UnfinishedSnapshot => "unfinished-snapshot",
        }
    }

    /// Whether an open entry of this kind parks its key.
    pub fn is_letter(self) -> bool {
        matches!(self, Self::DeadLetter | Self::Parked)
    }

    /// Whether an entry of this kind stands for a range of history instead of one change.
    pub fn is_gap(self) -> bool {
        matches!(self, Self::Gap | Self::UnfinishedSnapshot)
    }
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolution {
    /// Delivered after all.
    Replayed,
    /// Given up by a person.
    Purged,
}

/// A change as it is kept in the ledger: everything needed to deliver it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredChange {
    /// The log's identity.
    pub origin: Arc<str>,
    /// What happened.
    pub operation: Operation,
    /// Where.
    pub namespace: Arc<str>,
    /// The canonical key, if it has one.
    pub key: Option<Bytes>,
    /// Which half of a key update.
    pub half: u8,
    /// The source's time.
    pub time: SourceTime,
    /// What targets compare.
    pub version: Version,
    /// The position after it.
    pub position: Position,
    /// How many bytes of the position are no part of the change's id.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub shared: usize,
    /// The payload; `None` when it was too large and has to be read again.
    pub body: Option<Bytes>,
}

/// Bodies above this are read again on replay instead of being kept.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Most sources share nothing.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_nothing(shared: &usize) -> bool {
    *shared == 0
}

impl StoredChange {
    /// Keeps `change`.
    pub fn keep(change: &Change) -> Self {
        let (batch, row) = (change.batch(), change.row());
        let small = change.body().len() <= BODY_BYTES_MAX;
        Self {
            origin: Arc::clone(batch.origin()),
            operation: change.operation(),
            namespace: Arc::clone(batch.namespace(row)),
            key: change.key().map(Bytes::copy_from_slice),
            half: batch.rows()[row as usize].half,
            time: change.time(),
            version: change.version(),
            position: change.position(),
            shared: batch.shared().len(),
            // A copy, so that one kept change does not keep its whole batch in memory.
            body: small.then(|| Bytes::copy_from_slice(change.body())),
        }
    }

    /// The change as a batch of one, decoded by `payload`. `None` when the body was not kept.
    pub fn to_batch(&self, payload: Arc<dyn Payload>) -> Option<Batch> {
        let body = self.body.as_ref()?;
        let (shared, own) = self.position.bytes.split_at_checked(self.shared)?;
        let shared = self.position.bytes.slice_ref(shared);
        let mut builder = BatchBuilder::new(Arc::clone(&self.origin), payload).share(shared);
        let namespace = builder.namespace(&self.namespace);
        builder.push(RowParts {
            operation: self.operation,
            namespace,
            half: self.half,
            committable: true,
            key: self.key.as_deref(),
            position: own,
            body,
            time: self.time,
            version: self.version,
        });
        Some(builder.finish(self.position.clone()))
    }
}

/// One entry, written by the very commit that passes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Why it is here.
    pub kind: LedgerKind,
    /// The sink that did not take it; empty for a gap.
    pub sink: String,
    /// The change's id; empty for a gap.
    pub change_id: String,
    /// What was said about it.
    pub cause: String,
    /// A position before the change, to read it again from.
    pub before: Option<Position>,
    /// The change; `None` for a gap.
    pub change: Option<StoredChange>,
}

impl LedgerEntry {
    /// The code of the error that is its cause, such as `WK-REJECTED`; `None` of an entry that is no error's, such as a parked change.
    pub fn code(&self) -> Option<&str> {
        let code = &self.cause[self.cause.find("[WK-")? + 1..];
        code.split_once(']').map(|(code, _)| code)
    }
}

/// An entry as the store gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerRecord {
    /// Its number under its key: grows in the order of writing, never reused.
    pub number: u64,
    /// What was written.
    pub entry: LedgerEntry,
    /// What became of it; `None` while it is open.
    pub resolution: Option<Resolution>,
}

impl LedgerRecord {
    /// An entry under its number, with what became of it.
    pub fn new(number: u64, entry: LedgerEntry, resolution: Option<Resolution>) -> Self {
        Self { number, entry, resolution }
    }
}

/// Which entries to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerQuery {
    /// Only entries with a number above this.
    pub after: u64,
    /// At most so many, the oldest first.
    pub limit: usize,
    /// Only entries without a resolution.
    pub open_only: bool,
}
