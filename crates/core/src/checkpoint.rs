//! Fenced checkpoints: the one place where a stale writer is refused (G1).

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::change::Operation;
use crate::cx::Cx;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::{LedgerEntry, LedgerQuery, LedgerRecord, Resolution};
use crate::names::{Epoch, Grant, LeaseKey, TenureId};
use crate::position::{Pedigree, Position, SourceTime};

/// The identity of a store: a UUID kept in the database, not its URL. A transactional sink is only
/// used as such when its identity is that of the checkpoint store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity(pub uuid::Uuid);

/// Why a checkpoint was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Reason {
    /// The stream moved on.
    #[default]
    Progress,
    /// The last commit of a tenure that ended in order.
    Final,
    /// An operator's move: it may go back.
    Operator,
    /// The key is closed: its work goes on under other keys.
    Moved,
}

/// Why nobody may run the stream until a person resumes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Halted {
    /// The error's code.
    pub code: String,
    /// Cause and remedy in one line.
    pub cause: String,
    /// The id of the change that nobody takes, if it is one: only that one may be skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

impl Halted {
    /// A halt for an error of this code, and for this change if it is one that nobody takes.
    pub fn new(code: impl Into<String>, cause: impl Into<String>, change: Option<String>) -> Self {
        Self { code: code.into(), cause: cause.into(), change }
    }
}

/// What people want to see of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The last operation before the position.
    pub last_operation: Option<Operation>,
    /// Its time by the source.
    pub last_event_time: Option<SourceTime>,
    /// When it was committed, milliseconds since 1970 by the committing instance's wall clock.
    pub updated_at_millis: u64,
    /// The instance that committed it.
    pub processed_by: String,
    /// Changes of this stream that have been passed, over all tenures.
    pub changes: u64,
    /// How often the watch has passed to another instance that was there to take it over: after a crash, a silence or a failure, and
    /// after a shutdown or a hand-over. Moves by operators and restarts of an instance do not count.
    pub failovers: u64,
    /// Open dead letters and parked changes.
    pub letters: u64,
    /// Whether a position was ever committed: a checkpoint without one is then damaged, and not at its beginning. `None` in
    /// checkpoints of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<bool>,
}

/// The newest committed state of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Where to resume; `None` when nothing has been committed yet but, say, a halt.
    pub position: Option<Position>,
    /// The log that the position belongs to.
    pub pedigree: Option<Pedigree>,
    /// The epoch that committed it.
    pub epoch: Epoch,
    /// The tenure that committed it.
    pub tenure: TenureId,
    /// Its number within that tenure.
    pub seq: u64,
    /// Why it was written.
    pub reason: Reason,
    /// Set while nobody may run the stream.
    pub halted: Option<Halted>,
    /// For people.
    pub facts: Facts,
}

impl Checkpoint {
    /// Stands for a checkpoint that cannot be read, or is missing although the stream has committed before. It has no position and
    /// is halted for `error`, so nobody runs the stream until a person has chosen a position.
    pub fn lost(grant: Option<&Grant>, error: &Error) -> Self {
        let halted = Halted { code: error.kind().code().to_owned(), cause: error.to_string(), change: None };
        Self {
            position: None,
            pedigree: None,
            epoch: grant.map_or(Epoch::ZERO, |grant| grant.epoch),
            tenure: grant.map_or(TenureId(uuid::Uuid::nil()), |grant| grant.tenure),
            seq: 0,
            reason: Reason::Final,
            halted: Some(halted),
            facts: Facts { begun: Some(true), ..Facts::default() },
        }
    }

    /// Whether it has lost the position that was committed with it or before it.
    pub fn has_lost_position(&self) -> bool {
        let facts = &self.facts;
        let begun = || self.pedigree.is_some() || facts.changes > 0 || facts.last_operation.is_some();
        self.position.is_none() && facts.begun.unwrap_or_else(begun)
    }
}

/// A checkpoint to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointWrite {
    /// On whose behalf.
    pub grant: Grant,
    /// The next number of that tenure; the first is 1.
    pub seq: u64,
    /// See [`Checkpoint::position`].
    pub position: Option<Position>,
    /// See [`Checkpoint::pedigree`].
    pub pedigree: Option<Pedigree>,
    /// See [`Checkpoint::reason`].
    pub reason: Reason,
    /// See [`Checkpoint::halted`].
    pub halted: Option<Halted>,
    /// See [`Checkpoint::facts`].
    pub facts: Facts,
    /// What this commit passes over.
    pub ledger: Vec<LedgerEntry>,
    /// Entries of earlier commits that are settled by this one.
    pub resolve: Vec<(u64, Resolution)>,
}

impl CheckpointWrite {
    /// The checkpoint that this write makes.
    pub fn to_checkpoint(&self) -> Checkpoint {
        Checkpoint {
            position: self.position.clone(),
            pedigree: self.pedigree.clone(),
            epoch: self.grant.epoch,
            tenure: self.grant.tenure,
            seq: self.seq,
            reason: self.reason,
            halted: self.halted.clone(),
            facts: self.facts.clone(),
        }
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// From here on an older (epoch, tenure) can write nothing. The newest checkpoint, if any.
    Claimed(Option<Box<Checkpoint>>),
    /// A newer epoch has claimed before, or another tenure this one: acquire again above `newest`.
    Behind {
        /// The newest claimed epoch.
        newest: Epoch,
    },
}

/// The answer to one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// Written.
    Committed,
    /// This very write had been written before: its answer was lost.
    AlreadyDone,
    /// A newer grant has claimed. Nothing was written, and nothing ever will be.
    Fenced,
}

/// Keeps checkpoints and the ledger.
#[async_trait]
pub trait CheckpointStore: Send + Sync + std::fmt::Debug {
    /// The identity of the database behind this store.
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity>;

    /// Claims a key for a grant: the first thing a new holder does.
    ///
    /// # Behavior
    /// * C1: atomic. After `Claimed` no commit of a lower epoch, or of another tenure at the same
    ///   epoch, is accepted.
    /// * C2: an epoch below the newest claimed one, or equal to it with another tenure, is `Behind`.
    /// * C3: a new claim begins with seq 0; claiming again with the same (epoch, tenure) changes nothing.
    /// * C4: the answer is the newest committed checkpoint, read in the same atomic step.
    /// * C11: a stored checkpoint that cannot be read is a `Corrupt` error, here and in [`load`](Self::load), never an absent one.
    ///   The claim has taken effect nevertheless, so that a commit by the same grant can replace what is damaged.
    ///
    /// # Cancel safety
    /// Repeatable: a dropped claim may have happened, and can be claimed again by the same tenure.
    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim>;

    /// Commits checkpoints, with an answer each in the same order.
    ///
    /// # Behavior
    /// * C5: accepted only from the newest claimed (epoch, tenure); all else is `Fenced`, and changes
    ///   nothing.
    /// * C6: seq = stored + 1 is written; seq = stored is `AlreadyDone` and changes nothing; any other
    ///   seq is an `Internal` error and changes nothing.
    /// * C7: a write is atomic with its ledger entries and resolutions, and independent of the other
    ///   writes of the slice.
    /// * C8: a committed write is durable.
    /// * C10: a write for a key of which there is no claim is a `Corrupt` error, not `Fenced`, and changes nothing: whoever commits
    ///   has claimed before, so the record was removed.
    ///
    /// # Errors
    /// `Unknown` when any of them may have been written: repeat unchanged.
    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>>;

    /// The newest checkpoint, for people. A holder uses what its claim answered.
    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>>;

    /// Entries of the ledger, in the order of their numbers (C9).
    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>>;
}

/// The error of a commit whose key has no record (C10). `place` names the store.
pub fn missing_record(place: impl std::fmt::Display, key: &LeaseKey) -> Error {
    Error::corrupt(format!("{place}: the checkpoint of {key} was removed"))
        .remedy("find out who removed it before the stream is resumed; what keeps checkpoints is not to be edited")
}

/// One answer for a slice whose writes were each tried, whatever became of the others (C7). For stores that write them one by one.
///
/// # Errors
/// The first error, but `Unknown` instead of `Unavailable` when any of them may have been written.
pub fn one_answer(answers: Vec<Result<Commit>>) -> Result<Vec<Commit>> {
    let may_be_written = |answer: &Result<Commit>| match answer {
        Ok(commit) => *commit == Commit::Committed,
        Err(error) => error.kind() == ErrorKind::Unknown,
    };
    let written = answers.iter().any(may_be_written);
    let answers: Result<Vec<Commit>> = answers.into_iter().collect();
    answers.map_err(|error| match error.kind() {
        // "Unavailable" would promise that nothing was changed by any of them.
        ErrorKind::Unavailable if written => Error::unknown("a part of the slice may be written").caused_by(error),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(answers: Vec<Result<Commit>>) -> ErrorKind {
        one_answer(answers).expect_err("one of them failed").kind()
    }

    #[test]
    fn unavailable_is_reported_only_when_nothing_was_written() {
        let unavailable = || Err(Error::unavailable("busy"));
        assert_eq!(kind(vec![Ok(Commit::Fenced), unavailable(), Ok(Commit::AlreadyDone)]), ErrorKind::Unavailable);
        assert_eq!(kind(vec![unavailable(), Ok(Commit::Committed)]), ErrorKind::Unknown);
        assert_eq!(kind(vec![unavailable(), Err(Error::unknown("the disk"))]), ErrorKind::Unknown);
    }

    #[test]
    fn a_bug_is_reported_whatever_became_of_the_others() {
        assert_eq!(kind(vec![Ok(Commit::Committed), Err(Error::internal("skipped"))]), ErrorKind::Internal);
    }
}
