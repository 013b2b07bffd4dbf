use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_core::{
    Batch, CheckpointStore, CheckpointWrite, Commit, Cx, Epoch, Error, ErrorKind, Finding, Grant, LeaseKey, OpenedSink,
    Result, Sink, SinkContext, SinkProfile, TenureId, Transacted, TransactionalWriter,
};

use super::{KnownBad, give_way};
use crate::laws::TransactionalBench;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    CheckpointWithoutChanges,
    ChangesWithoutCheckpoint,
    ChangesAreReversed,
    StaleIsAccepted,
    StaleIsRefusedTooLate,
    RefusedCheckpointKeepsItsChanges,
    NoChangesNoCheckpoint,
    EpochIsOnlyRead,
    RepeatedTakesEffectTwice,
    RepeatedIsFenced,
    NamesAnotherStore,
}

/// Transactional sinks with one flaw each.
pub fn transactional_sinks() -> Vec<KnownBad<dyn TransactionalBench>> {
    use Flaw::*;
    let all = [
        (CheckpointWithoutChanges, "t1_changes_and_checkpoint_are_written_together"),
        (ChangesWithoutCheckpoint, "t1_changes_and_checkpoint_are_written_together"),
        (ChangesAreReversed, "t1_changes_and_checkpoint_are_written_together"),
        (StaleIsAccepted, "t1_nothing_from_an_older_grant"),
        (StaleIsRefusedTooLate, "t1_nothing_from_an_older_grant"),
        (RefusedCheckpointKeepsItsChanges, "t1_refused_checkpoint_refuses_its_changes"),
        (NoChangesNoCheckpoint, "t2_checkpoint_is_written_without_changes"),
        (EpochIsOnlyRead, "t2_claim_and_transaction_at_once_agree_on_their_order"),
        (RepeatedTakesEffectTwice, "t3_repeated_transaction_takes_effect_once"),
        (RepeatedIsFenced, "t3_repeated_transaction_takes_effect_once"),
        (NamesAnotherStore, "identity_is_that_of_the_checkpoint_store"),
    ];
    let bad = |(flaw, breaks)| {
        KnownBad::new(flaw, breaks, move |world| {
            <dyn TransactionalBench>::around(world, |store, inner| Arc::new(Bad { flaw, store, inner }))
        })
    };
    all.into_iter().map(bad).collect()
}

#[derive(Debug)]
struct Bad {
    flaw: Flaw,
    store: Checkpoints,
    inner: Arc<dyn Sink>,
}

#[async_trait]
impl Sink for Bad {
    fn profile(&self) -> SinkProfile {
        let mut profile = self.inner.profile();
        if self.flaw == Flaw::NamesAnotherStore {
            profile.store = Some(watchkeeper_core::StoreIdentity(uuid::Uuid::nil()));
        }
        profile
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.inner.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let opened = self.inner.open(cx, context).await?;
        let OpenedSink::Transactional(inner) = opened else { return Ok(opened) };
        let (flaw, store) = (self.flaw, self.store.clone());
        Ok(OpenedSink::Transactional(Box::new(BadWriter { flaw, store, inner })))
    }
}

#[derive(Debug)]
struct BadWriter {
    flaw: Flaw,
    store: Checkpoints,
    inner: Box<dyn TransactionalWriter>,
}

impl BadWriter {
    /// Writes the changes, whatever becomes of the checkpoint: with one of a key that nobody looks at.
    async fn deliver(&mut self, cx: &Cx, batch: &Arc<Batch>, rows: &[u32], write: &CheckpointWrite) -> Result<()> {
        let aside = LeaseKey::new("aside");
        let newest = self.store.claimed(&aside).map_or(Epoch::ZERO, |(epoch, _)| epoch);
        let grant = Grant { key: aside, tenure: TenureId(uuid::Uuid::nil()), epoch: newest.next() };
        self.store.claim(cx, &grant).await?;
        let aside = CheckpointWrite { grant, seq: 1, ..write.clone() };
        self.inner.write_and_commit(cx, batch, rows, &aside).await?;
        Ok(())
    }

    /// Looks whether the grant is the newest, writes, and only then writes the checkpoint.
    async fn read_then_write(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        let claimed = self.store.claimed(&write.grant.key);
        if claimed != Some((write.grant.epoch, write.grant.tenure)) {
            return Ok(Transacted::Fenced);
        }
        give_way().await;
        let answers = self.store.commit(cx, std::slice::from_ref(write)).await?;
        if answers[0] == Commit::AlreadyDone {
            return Ok(Transacted::AlreadyDone);
        }
        self.deliver(cx, batch, rows, write).await?;
        Ok(Transacted::Committed)
    }
}

#[async_trait]
impl TransactionalWriter for BadWriter {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        let mut altered = rows.to_vec();
        match self.flaw {
            Flaw::CheckpointWithoutChanges => altered.clear(),
            Flaw::ChangesAreReversed => altered.reverse(),
            Flaw::NoChangesNoCheckpoint if rows.is_empty() => return Ok(Transacted::Committed),
            Flaw::EpochIsOnlyRead => return self.read_then_write(cx, batch, rows, write).await,
            Flaw::ChangesWithoutCheckpoint => {
                self.deliver(cx, batch, rows, write).await?;
                return Ok(Transacted::Committed);
            }
            _ => {}
        }
        let answer = self.inner.write_and_commit(cx, batch, &altered, write).await;
        let bug = |error: &Error| error.kind() == ErrorKind::Internal;
        match (self.flaw, &answer) {
            (Flaw::StaleIsAccepted, Ok(Transacted::Fenced)) => {
                self.deliver(cx, batch, rows, write).await?;
                return Ok(Transacted::Committed);
            }
            (Flaw::StaleIsRefusedTooLate, Ok(Transacted::Fenced))
            | (Flaw::RepeatedTakesEffectTwice, Ok(Transacted::AlreadyDone)) => {
                self.deliver(cx, batch, rows, write).await?;
            }
            (Flaw::RefusedCheckpointKeepsItsChanges, Err(error)) if bug(error) => {
                self.deliver(cx, batch, rows, write).await?;
            }
            (Flaw::RepeatedIsFenced, Ok(Transacted::AlreadyDone)) => return Ok(Transacted::Fenced),
            _ => {}
        }
        answer
    }

    async fn close(&mut self, cx: &Cx) -> Result<()> {
        self.inner.close(cx).await
    }
}
