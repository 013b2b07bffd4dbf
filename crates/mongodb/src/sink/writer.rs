//! The transactions of a sink.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, Change, CheckpointStore, CheckpointWrite, Commit, Cx, Error, ErrorKind, Fault, FaultKind, Result,
    Transacted, TransactionalWriter,
};

use super::{Apply, Failure, Open, is_duplicate};
use crate::checkpoint::{CheckpointSession, Checkpoints};

/// Writes changes and their checkpoint together, for one grant.
pub(super) struct Writer {
    checkpoints: Checkpoints,
    apply: Arc<dyn Apply>,
    checkpoint_session: CheckpointSession,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("seat", &self.checkpoint_session).finish_non_exhaustive()
    }
}

/// What has come of a transaction.
enum Attempt {
    Ended(Transacted),
    /// The change at this place cannot be applied.
    Rejected(usize, Error),
}

/// Why a transaction was given up.
enum RollbackCause {
    /// The change at this place cannot be applied.
    Rejected(usize, Error),
    /// The checkpoint is not the next one of the newest claim.
    NotNext,
    Failed(Error),
}

impl From<Error> for RollbackCause {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Writer {
    pub(super) fn new(checkpoints: Checkpoints, apply: Arc<dyn Apply>, checkpoint_session: CheckpointSession) -> Self {
        Self { checkpoints, apply, checkpoint_session }
    }

    /// Changes first, the checkpoint last, since whoever claims has to wait from there on.
    async fn fill(
        &mut self,
        cx: &Cx,
        changes: &[Change],
        write: &CheckpointWrite,
        in_order: bool,
    ) -> Result<(), RollbackCause> {
        let client = self.checkpoints.client().clone();
        let cx = client.bounded(cx);
        let mut open = Open { cx: cx.clone(), client, write, session: self.checkpoint_session.session()?, in_order };
        self.apply.apply(&mut open, changes).await?;
        match self.checkpoint_session.checkpoint(&cx, write).await? {
            true => Ok(()),
            false => Err(RollbackCause::NotNext),
        }
    }

    /// One transaction with these changes.
    async fn attempt(
        &mut self,
        cx: &Cx,
        changes: &[Change],
        write: &CheckpointWrite,
        in_order: bool,
    ) -> Result<Attempt> {
        let changed = || Error::unavailable("the checkpoint was changed meanwhile");
        if !self.checkpoint_session.begin(cx).await? {
            // Claimed by a newer grant, or removed.
            return self.resolve_unanswered(cx, write).await?.ok_or_else(changed).map(Attempt::Ended);
        }
        let undone = match self.fill(cx, changes, write, in_order).await {
            Ok(()) => return self.checkpoint_session.commit(cx).await.map(|()| Attempt::Ended(Transacted::Committed)),
            Err(undone) => undone,
        };
        self.checkpoint_session.abort(cx).await;
        match undone {
            RollbackCause::Failed(error) => Err(error),
            RollbackCause::NotNext => self.resolve_unanswered(cx, write).await?.ok_or_else(changed).map(Attempt::Ended),
            RollbackCause::Rejected(at, error) => {
                let inspected = self.resolve_unanswered(cx, write).await?;
                Ok(inspected.map_or(Attempt::Rejected(at, error), Attempt::Ended))
            }
        }
    }

    /// What has become of a write that was not taken for the next one, or whose changes cannot be applied: perhaps because
    /// they had been applied before.
    async fn resolve_unanswered(&self, cx: &Cx, write: &CheckpointWrite) -> Result<Option<Transacted>> {
        let answer = self.checkpoints.standing(cx, write).await?;
        Ok(answer.map(|commit| match commit {
            Commit::Committed => Transacted::Committed,
            Commit::AlreadyDone => Transacted::AlreadyDone,
            Commit::Fenced => Transacted::Fenced,
        }))
    }
}

impl From<Failure> for RollbackCause {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(at, error) => Self::Rejected(at, error),
            // Nothing was committed, so nothing is changed.
            Failure::Failed(error) if error.kind() == ErrorKind::Unknown => {
                Self::Failed(Error::unavailable(error.message().to_owned()).caused_by(error))
            }
            Failure::Failed(error) => Self::Failed(error),
        }
    }
}

#[async_trait]
impl TransactionalWriter for Writer {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        if rows.is_empty() {
            let answers = self.checkpoints.commit(cx, std::slice::from_ref(write)).await?;
            return Ok(match answers.first() {
                Some(Commit::Committed) => Transacted::Committed,
                Some(Commit::AlreadyDone) => Transacted::AlreadyDone,
                _ => Transacted::Fenced,
            });
        }
        let changes: Vec<Change> = rows.iter().map(|row| Change::new(Arc::clone(batch), *row)).collect();
        let mut attempt = self.attempt(cx, &changes, write, false).await?;
        if matches!(&attempt, Attempt::Rejected(_, error) if is_duplicate(error)) && self.apply.merges_changes() {
            // Values of a unique index may have moved from one document to another, as the source could let them.
            attempt = self.attempt(cx, &changes, write, true).await?;
        }
        let (at, error) = match attempt {
            Attempt::Ended(ended) => return Ok(ended),
            Attempt::Rejected(at, error) => (at, error),
        };
        let row = rows.get(at).copied().ok_or_else(|| Error::internal("a change was rejected that was not there"))?;
        Ok(Transacted::Rejected(vec![Fault { row, kind: FaultKind::Reject, error }]))
    }

    async fn close(&mut self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
