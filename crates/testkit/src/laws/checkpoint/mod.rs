//! The laws of [`CheckpointStore`].

mod claim;
mod commit;
mod damage;
mod ledger;

use std::sync::Arc;

use watchkeeper_core::memory::Checkpoints;
use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Entropy, Epoch, ErrorKind, Facts, Grant, LeaseKey,
    LedgerEntry, LedgerKind, LedgerQuery, LedgerRecord, Operation, Pedigree, Position, Reason, SourceTime,
    StoreIdentity, StoredChange, Version,
};

pub use claim::*;
pub use commit::*;
pub use damage::*;
pub use ledger::*;

use super::lawful::{Broken, Law, ensure};
use super::macros::law_list;
use crate::world::World;

/// A checkpoint store on the bench.
#[derive(Debug)]
pub struct CheckpointBench {
    /// The context of all calls.
    pub cx: Cx,
    /// The store.
    pub a: Arc<dyn CheckpointStore>,
    /// The same store, as another client sees it.
    pub b: Arc<dyn CheckpointStore>,
    /// Damages what the store keeps.
    pub damager: Arc<dyn DamageCheckpoint>,
    /// For keys and identities that nobody used before.
    pub entropy: Arc<Entropy>,
}

impl CheckpointBench {
    /// The reference in memory, in virtual time.
    pub fn in_memory(world: &World) -> Self {
        let store = Checkpoints::new(StoreIdentity(world.entropy().uuid()));
        Self::in_world(world, Arc::new(store.clone()), Arc::new(store.clone()), store)
    }

    /// Two clients of one store that keeps everything in `memory`, in virtual time.
    pub fn in_world(
        world: &World,
        a: Arc<dyn CheckpointStore>,
        b: Arc<dyn CheckpointStore>,
        memory: Checkpoints,
    ) -> Self {
        Self { cx: world.cx(), a, b, damager: Arc::new(memory), entropy: world.entropy() }
    }

    pub(crate) fn grant(&self, epoch: u64) -> Grant {
        let key = LeaseKey::new(format!("law/{}", self.entropy.uuid()));
        Grant { key, tenure: self.entropy.tenure(), epoch: Epoch(epoch) }
    }

    /// A later grant of the same key, to another tenure.
    pub(crate) fn successor(&self, grant: &Grant) -> Grant {
        Grant { tenure: self.entropy.tenure(), epoch: grant.epoch.next(), ..grant.clone() }
    }

    /// The same key and epoch, but another tenure.
    pub(crate) fn twin(&self, grant: &Grant) -> Grant {
        Grant { tenure: self.entropy.tenure(), ..grant.clone() }
    }

    /// Claims, and expects to be let in.
    pub(crate) async fn claimed(&self, grant: &Grant) -> Result<Option<Checkpoint>, Broken> {
        match self.a.claim(&self.cx, grant).await? {
            Claim::Claimed(checkpoint) => Ok(checkpoint.map(|checkpoint| *checkpoint)),
            Claim::Behind { newest } => {
                Err(Broken::new(format!("epoch {} is told to be behind {newest}", grant.epoch)))
            }
        }
    }

    /// Claims as the other client, and expects to be behind `newest`.
    async fn behind(&self, grant: &Grant, newest: Epoch) -> Law {
        let answer = self.b.claim(&self.cx, grant).await?;
        ensure!(answer == Claim::Behind { newest }, "a claim behind {newest} was answered with {answer:?}");
        Ok(())
    }

    async fn commit(&self, write: &CheckpointWrite) -> watchkeeper_core::Result<Commit> {
        let answers = self.a.commit(&self.cx, std::slice::from_ref(write)).await?;
        match answers[..] {
            [answer] => Ok(answer),
            _ => Err(watchkeeper_core::Error::internal(format!("one write, but {} answers", answers.len()))),
        }
    }

    async fn ensure_answer(&self, write: &CheckpointWrite, expected: Commit) -> Law {
        let answer = self.commit(write).await?;
        ensure!(answer == expected, "commit {} was answered with {answer:?} instead of {expected:?}", write.seq);
        Ok(())
    }

    pub(crate) async fn committed(&self, write: &CheckpointWrite) -> Law {
        self.ensure_answer(write, Commit::Committed).await
    }

    pub(crate) async fn fenced(&self, write: &CheckpointWrite) -> Law {
        self.ensure_answer(write, Commit::Fenced).await
    }

    async fn already_done(&self, write: &CheckpointWrite) -> Law {
        self.ensure_answer(write, Commit::AlreadyDone).await
    }

    async fn refused_as_a_bug(&self, write: &CheckpointWrite) -> Law {
        let kind = self.commit(write).await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Internal), "commit {} in the wrong place was answered with {kind:?}", write.seq);
        Ok(())
    }

    /// What the other client sees of a key: its checkpoint and its whole ledger.
    pub(crate) async fn seen(&self, key: &LeaseKey) -> Result<ObservedState, Broken> {
        let checkpoint = self.b.load(&self.cx, key).await?;
        let ledger = self.b.ledger(&self.cx, key, &EVERYTHING).await?;
        Ok(ObservedState { checkpoint, ledger })
    }

    pub(crate) async fn ensure_newest(&self, write: &CheckpointWrite) -> Law {
        let stored = self.seen(&write.grant.key).await?.checkpoint;
        let expected = Some(write.to_checkpoint());
        ensure!(stored == expected, "stored is {stored:?} instead of {expected:?}");
        Ok(())
    }
}

/// What is stored under a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedState {
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) ledger: Vec<LedgerRecord>,
}

pub(crate) const EVERYTHING: LedgerQuery = LedgerQuery { after: 0, limit: 1000, open_only: false };

/// A plain step forward.
pub(crate) fn write(grant: &Grant, seq: u64) -> CheckpointWrite {
    CheckpointWrite {
        grant: grant.clone(),
        seq,
        position: Some(position(seq)),
        pedigree: Some(Pedigree(vec![0xfe, 0x00, 0xff].into())),
        reason: Reason::Progress,
        halted: None,
        facts: Facts {
            last_operation: Some(Operation::Update),
            last_event_time: Some(SourceTime(1_700_000_000_000 + seq)),
            updated_at_millis: 1_700_000_000_500,
            processed_by: "law".to_owned(),
            changes: seq * 10,
            failovers: 1,
            letters: 0,
            begun: Some(true),
        },
        ledger: Vec::new(),
        resolve: Vec::new(),
    }
}

fn position(seq: u64) -> Position {
    // Bytes that are no text in any encoding.
    Position::new(vec![0x00, 0xff, 0x80, seq.to_be_bytes()[7]], Some(SourceTime(1_700_000_000_000 + seq)))
}

/// A dead letter that says which one it is.
pub(crate) fn letter(name: &str) -> LedgerEntry {
    let change = StoredChange {
        origin: "law".into(),
        operation: Operation::Insert,
        namespace: "shop.orders".into(),
        key: Some(vec![0x00, 0xc3, 0x28].into()),
        half: 1,
        time: SourceTime(1_700_000_000_000),
        version: Version { time: u64::MAX / 2, ordinal: 3 },
        position: position(9),
        shared: 2,
        body: Some(vec![0x00, 0xff, 0xfe].into()),
    };
    LedgerEntry {
        kind: LedgerKind::DeadLetter,
        sink: "search".to_owned(),
        change_id: name.to_owned(),
        cause: "it said \"no\" – 'never'\n".to_owned(),
        before: Some(position(8)),
        change: Some(change),
    }
}

pub(crate) fn with_letters(write: CheckpointWrite, names: &[&str]) -> CheckpointWrite {
    CheckpointWrite { ledger: names.iter().map(|name| letter(name)).collect(), ..write }
}

law_list! {
    /// One test per law of checkpoint stores. The argument is a `fn(&LawOf<CheckpointBench>) -> Law`.
    checkpoint_laws, checkpoint, CheckpointBench, $, [
        c1_claim_shuts_out_lower_epochs,
        c1_claim_shuts_out_another_tenure_of_the_same_epoch,
        c2_lower_epoch_is_behind,
        c2_equal_epoch_of_another_tenure_is_behind,
        c2_claim_that_is_behind_changes_nothing,
        c3_new_claim_begins_with_seq_zero,
        c3_claiming_again_changes_nothing,
        c4_first_claim_finds_nothing,
        c4_claim_answers_the_newest_checkpoint,
        c4_claim_and_commit_at_once_agree_on_their_order,
        c5_only_the_newest_claim_commits,
        c5_fenced_commit_changes_nothing,
        c6_next_seq_is_written,
        c6_repeated_seq_is_already_done,
        c6_repeated_seq_changes_nothing,
        c6_skipped_seq_is_a_bug_and_changes_nothing,
        c6_lower_seq_is_a_bug_and_changes_nothing,
        c7_ledger_is_written_with_its_commit,
        c7_resolution_is_written_with_its_commit,
        c7_writes_of_a_slice_are_independent,
        c7_bug_in_a_slice_spares_the_others,
        c7_dropped_commit_is_repeated_as_a_whole,
        c8_committed_write_is_seen_by_every_client,
        c8_every_field_survives,
        c9_ledger_is_read_in_the_order_of_its_numbers,
        c9_numbers_are_never_reused,
        c9_query_is_honoured,
        c9_every_field_of_an_entry_survives,
        c10_write_without_a_claim_is_missing_and_changes_nothing,
        c11_damaged_checkpoint_is_never_an_absent_one,
        c11_claim_of_a_damaged_checkpoint_takes_effect,
        keys_are_independent,
        identity_is_the_same_for_every_client,
    ]
}
