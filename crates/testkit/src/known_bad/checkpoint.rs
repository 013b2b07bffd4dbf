use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Epoch, Error, ErrorKind, Grant, LeaseKey,
    LedgerEntry, LedgerQuery, LedgerRecord, Result, StoreIdentity, TenureId,
};

use super::{KnownBad, give_way};
use crate::laws::CheckpointBench;
use crate::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    CommitIgnoresTheEpoch,
    EqualEpochOfAnotherTenureIsAccepted,
    LowerEpochClaims,
    ClaimingAgainResetsSeq,
    ClaimFindsNothing,
    ClaimReadsBeforehand,
    CommitIgnoresSeq,
    RepeatedCommitIsWrittenTwice,
    WrongSeqIsFenced,
    FencedCommitWritesLedger,
    RefusedCommitWritesLedger,
    LedgerIsWrittenAfterwards,
    LedgerIsForgotten,
    ResolutionIsForgotten,
    FirstFencedEndsTheSlice,
    HaltIsForgotten,
    LimitIsIgnored,
    ResolvedCountAsOpen,
    LedgerIsNewestFirst,
    IdentityOfTheConnection,
    MissingRecordIsFenced,
    DamagedCheckpointIsAbsent,
    ClaimOfADamagedCheckpointIsUndone,
    NewClaimKeepsTheCount,
    FirstClaimFindsAnEmptyCheckpoint,
    LoadIsCached,
    OtherClientsSeeNothing,
    KeysAreCutOff,
}

/// Every flaw, with the law that it breaks.
const ALL: [(Flaw, &str); 28] = {
    use Flaw::*;
    [
        (CommitIgnoresTheEpoch, "c1_claim_shuts_out_lower_epochs"),
        (EqualEpochOfAnotherTenureIsAccepted, "c2_equal_epoch_of_another_tenure_is_behind"),
        (LowerEpochClaims, "c2_lower_epoch_is_behind"),
        (ClaimingAgainResetsSeq, "c3_claiming_again_changes_nothing"),
        (ClaimFindsNothing, "c4_claim_answers_the_newest_checkpoint"),
        (ClaimReadsBeforehand, "c4_claim_and_commit_at_once_agree_on_their_order"),
        (CommitIgnoresSeq, "c6_skipped_seq_is_a_bug_and_changes_nothing"),
        (RepeatedCommitIsWrittenTwice, "c6_repeated_seq_changes_nothing"),
        (WrongSeqIsFenced, "c6_lower_seq_is_a_bug_and_changes_nothing"),
        (FencedCommitWritesLedger, "c5_fenced_commit_changes_nothing"),
        (RefusedCommitWritesLedger, "c6_skipped_seq_is_a_bug_and_changes_nothing"),
        (LedgerIsWrittenAfterwards, "c7_dropped_commit_is_repeated_as_a_whole"),
        (LedgerIsForgotten, "c7_ledger_is_written_with_its_commit"),
        (ResolutionIsForgotten, "c7_resolution_is_written_with_its_commit"),
        (FirstFencedEndsTheSlice, "c7_writes_of_a_slice_are_independent"),
        (HaltIsForgotten, "c8_every_field_survives"),
        (LimitIsIgnored, "c9_query_is_honoured"),
        (ResolvedCountAsOpen, "c9_query_is_honoured"),
        (LedgerIsNewestFirst, "c9_ledger_is_read_in_the_order_of_its_numbers"),
        (IdentityOfTheConnection, "identity_is_the_same_for_every_client"),
        (MissingRecordIsFenced, "c10_write_without_a_claim_is_missing_and_changes_nothing"),
        (DamagedCheckpointIsAbsent, "c11_damaged_checkpoint_is_never_an_absent_one"),
        (ClaimOfADamagedCheckpointIsUndone, "c11_claim_of_a_damaged_checkpoint_takes_effect"),
        (NewClaimKeepsTheCount, "c3_new_claim_begins_with_seq_zero"),
        (FirstClaimFindsAnEmptyCheckpoint, "c4_first_claim_finds_nothing"),
        (LoadIsCached, "c6_next_seq_is_written"),
        (OtherClientsSeeNothing, "c8_committed_write_is_seen_by_every_client"),
        (KeysAreCutOff, "keys_are_independent"),
    ]
};

/// Checkpoint stores with one flaw each.
pub fn checkpoints() -> Vec<KnownBad<CheckpointBench>> {
    let bad = |(flaw, breaks)| {
        KnownBad::new(flaw, breaks, move |world| {
            let entropy = world.entropy();
            let inner = Checkpoints::new(StoreIdentity(entropy.uuid()));
            let own = StoreIdentity(entropy.uuid());
            let a = Bad { flaw, inner: inner.clone(), own, is_second: false, state: Arc::default() };
            let b = Bad { own: StoreIdentity(entropy.uuid()), is_second: true, ..a.clone() };
            Box::new(CheckpointBench::in_world(world, Arc::new(a), Arc::new(b), inner))
        })
    };
    ALL.into_iter().map(bad).collect()
}

/// A store with the flaw of this name over `inner`, to see what else notices it; `None` when there is
/// no such flaw.
pub fn flawed_checkpoints(flaw: &str, inner: Checkpoints) -> Option<Arc<dyn CheckpointStore>> {
    let (flaw, _) = ALL.into_iter().find(|(known, _)| format!("{known:?}") == flaw)?;
    let own = StoreIdentity(uuid::Uuid::nil());
    Some(Arc::new(Bad { flaw, inner, own, is_second: false, state: Arc::default() }))
}

#[derive(Debug, Clone)]
struct Bad {
    flaw: Flaw,
    inner: Checkpoints,
    own: StoreIdentity,
    /// Whether it is the other of two clients.
    is_second: bool,
    state: Arc<Mutex<BTreeMap<LeaseKey, Slot>>>,
}

/// What the wrapper remembers of a key.
#[derive(Debug, Default)]
struct Slot {
    newest: Option<Grant>,
    seq: u64,
    /// How far the numbers of the store are ahead of those of the caller.
    ahead: u64,
    first_tenures: BTreeMap<Epoch, TenureId>,
    stray: Vec<LedgerEntry>,
    /// How many commits there were before the newest claim.
    before: u64,
    cached: Option<Checkpoint>,
}

impl Bad {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn with<T>(&self, key: &LeaseKey, observation: impl FnOnce(&mut Slot) -> T) -> T {
        observation(lock(&self.state).entry(key.clone()).or_default())
    }

    fn alter_key(&self, key: &LeaseKey) -> LeaseKey {
        match key.as_str().strip_suffix("/2") {
            Some(cut) if self.is(Flaw::KeysAreCutOff) => LeaseKey::new(cut),
            _ => key.clone(),
        }
    }

    fn alter_grant(&self, grant: &Grant) -> Grant {
        let grant = &Grant { key: self.alter_key(&grant.key), ..grant.clone() };
        if !self.is(Flaw::EqualEpochOfAnotherTenureIsAccepted) {
            return grant.clone();
        }
        let first = |slot: &mut Slot| *slot.first_tenures.entry(grant.epoch).or_insert(grant.tenure);
        Grant { tenure: self.with(&grant.key, first), ..grant.clone() }
    }

    fn note_claim(&self, grant: &Grant) {
        self.with(&grant.key, |slot| {
            let again = slot.newest.as_ref() == Some(grant);
            if again && self.is(Flaw::ClaimingAgainResetsSeq) {
                slot.ahead = slot.seq;
            } else if !again {
                slot.before += slot.seq;
                (slot.newest, slot.seq, slot.ahead) = (Some(grant.clone()), 0, 0);
            }
        });
    }

    fn alter_write(&self, write: &CheckpointWrite) -> CheckpointWrite {
        let mut write = CheckpointWrite { grant: self.alter_grant(&write.grant), ..write.clone() };
        self.with(&write.grant.key.clone(), |slot| match (self.flaw, &slot.newest) {
            (Flaw::CommitIgnoresTheEpoch, Some(newest)) if *newest != write.grant => {
                (write.grant, write.seq) = (newest.clone(), slot.seq + 1);
            }
            (Flaw::CommitIgnoresSeq, Some(newest)) if *newest == write.grant => write.seq = slot.seq + 1,
            (Flaw::ClaimingAgainResetsSeq | Flaw::RepeatedCommitIsWrittenTwice, _) => write.seq += slot.ahead,
            (Flaw::NewClaimKeepsTheCount, _) => write.seq = write.seq.saturating_sub(slot.before),
            (Flaw::LedgerIsForgotten, _) => write.ledger.clear(),
            (Flaw::ResolutionIsForgotten, _) => write.resolve.clear(),
            (Flaw::HaltIsForgotten, _) => write.halted = None,
            _ => {}
        });
        write
    }

    async fn commit_one(&self, cx: &Cx, original: &CheckpointWrite) -> Result<Commit> {
        let mut write = self.alter_write(original);
        let key = write.grant.key.clone();
        let late =
            if self.is(Flaw::LedgerIsWrittenAfterwards) { std::mem::take(&mut write.ledger) } else { Vec::new() };
        let mut answer = self.inner.commit(cx, std::slice::from_ref(&write)).await.map(|answers| answers[0]);
        if matches!(answer, Ok(Commit::AlreadyDone)) && self.is(Flaw::RepeatedCommitIsWrittenTwice) {
            write.seq += 1;
            self.inner.commit(cx, std::slice::from_ref(&write)).await?;
            self.with(&key, |slot| slot.ahead += 1);
        }
        let is_bug = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Internal);
        let fenced = matches!(answer, Ok(Commit::Fenced));
        let strays = match self.flaw {
            Flaw::FencedCommitWritesLedger => fenced,
            Flaw::RefusedCommitWritesLedger => is_bug,
            _ => false,
        };
        if strays {
            self.with(&key, |slot| slot.stray.extend(original.ledger.clone()));
        }
        if is_bug && self.is(Flaw::WrongSeqIsFenced) {
            answer = Ok(Commit::Fenced);
        }
        let is_missing = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt);
        if is_missing && self.is(Flaw::MissingRecordIsFenced) {
            answer = Ok(Commit::Fenced);
        }
        if matches!(answer, Ok(Commit::Committed)) {
            self.with(&key, |slot| slot.seq = write.seq);
            if !late.is_empty() {
                give_way().await;
                self.with(&key, |slot| slot.stray.extend(late));
            }
        }
        answer
    }

    /// The answer of a store that takes what it cannot read for nothing.
    fn absent_if_damaged<T>(&self, answer: Result<T>, absent: T) -> Result<T> {
        match answer {
            Err(error) if error.kind() == ErrorKind::Corrupt && self.is(Flaw::DamagedCheckpointIsAbsent) => Ok(absent),
            answer => answer,
        }
    }

    /// As the caller counts.
    fn alter_checkpoint(&self, key: &LeaseKey, checkpoint: Option<Checkpoint>) -> Option<Checkpoint> {
        let mut checkpoint = checkpoint?;
        if self.is(Flaw::RepeatedCommitIsWrittenTwice) {
            checkpoint.seq -= self.with(key, |slot| slot.ahead);
        }
        Some(checkpoint)
    }
}

#[async_trait]
impl CheckpointStore for Bad {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        if self.is(Flaw::IdentityOfTheConnection) { Ok(self.own) } else { self.inner.identity(cx).await }
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        let grant = self.alter_grant(grant);
        let beforehand = self.inner.load(cx, &grant.key).await;
        if self.is(Flaw::ClaimReadsBeforehand) {
            give_way().await;
        }
        if self.is(Flaw::ClaimOfADamagedCheckpointIsUndone)
            && let Err(error) = beforehand
        {
            return Err(error);
        }
        let beforehand = beforehand.ok().flatten().map(Box::new);
        let answer = self.inner.claim(cx, &grant).await;
        if answer.is_err() {
            // A damaged checkpoint: the claim has taken effect (C11).
            self.note_claim(&grant);
        }
        Ok(match self.absent_if_damaged(answer, Claim::Claimed(None))? {
            Claim::Claimed(found) => {
                self.note_claim(&grant);
                match self.flaw {
                    Flaw::ClaimFindsNothing => Claim::Claimed(None),
                    Flaw::ClaimReadsBeforehand => Claim::Claimed(beforehand),
                    Flaw::FirstClaimFindsAnEmptyCheckpoint if found.is_none() => {
                        let mut empty = Checkpoint::lost(Some(&grant), &Error::corrupt("nothing is there"));
                        empty.halted = None;
                        Claim::Claimed(Some(Box::new(empty)))
                    }
                    _ => Claim::Claimed(self.alter_checkpoint(&grant.key, found.map(|found| *found)).map(Box::new)),
                }
            }
            Claim::Behind { newest } if self.is(Flaw::LowerEpochClaims) && grant.epoch < newest => {
                Claim::Claimed(beforehand)
            }
            behind => behind,
        })
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let mut answers = Vec::new();
        for write in writes {
            let ended = self.is(Flaw::FirstFencedEndsTheSlice)
                && answers.iter().any(|answer| matches!(answer, Ok(Commit::Fenced)));
            answers.push(if ended { Ok(Commit::Fenced) } else { self.commit_one(cx, write).await });
        }
        answers.into_iter().collect()
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let key = &self.alter_key(key);
        let checkpoint = self.absent_if_damaged(self.inner.load(cx, key).await, None)?;
        match self.flaw {
            Flaw::OtherClientsSeeNothing if self.is_second => return Ok(None),
            Flaw::LoadIsCached => {
                return Ok(self.with(key, |slot| {
                    slot.cached = slot.cached.take().or(checkpoint);
                    slot.cached.clone()
                }));
            }
            _ => {}
        }
        Ok(self.alter_checkpoint(key, checkpoint))
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        let (mut query, key) = (*query, &self.alter_key(key));
        match self.flaw {
            Flaw::LimitIsIgnored => query.limit = usize::MAX,
            Flaw::ResolvedCountAsOpen => query.open_only = false,
            _ => {}
        }
        let mut records = self.inner.ledger(cx, key, &query).await?;
        let stray = self.with(key, |slot| slot.stray.clone());
        let last = records.last().map_or(0, |record| record.number);
        let strays = (last + 1..).zip(stray).map(|(number, entry)| LedgerRecord::new(number, entry, None));
        records.extend(strays.filter(|record| record.number > query.after));
        if self.is(Flaw::LedgerIsNewestFirst) {
            records.reverse();
        }
        Ok(records)
    }
}
