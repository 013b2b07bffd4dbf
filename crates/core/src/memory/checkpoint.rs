use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use super::lock;
use super::sink::Delivered;
use crate::checkpoint::{Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, StoreIdentity, missing_record};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::ledger::{LedgerQuery, LedgerRecord};
use crate::names::{Epoch, Grant, LeaseKey, TenureId};

/// Checkpoints in memory, with room for what a transactional sink writes beside them.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    identity: StoreIdentity,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    slots: BTreeMap<LeaseKey, Slot>,
    pub(super) delivered: Vec<Delivered>,
}

#[derive(Debug, Default)]
struct Slot {
    claimed: Option<Claimed>,
    checkpoint: Option<Checkpoint>,
    ledger: Vec<LedgerRecord>,
    /// Whether the stored checkpoint cannot be read.
    damaged: bool,
}

#[derive(Debug, Clone, Copy)]
struct Claimed {
    epoch: Epoch,
    tenure: TenureId,
    seq: u64,
}

/// The ledger of a key.
pub type Ledgered = Vec<LedgerRecord>;

impl Checkpoints {
    /// An empty store with this identity.
    pub fn new(identity: StoreIdentity) -> Self {
        Self { identity, state: Arc::default() }
    }

    /// The newest claimed epoch and tenure of `key`.
    pub fn claimed(&self, key: &LeaseKey) -> Option<(Epoch, TenureId)> {
        let state = lock(&self.state);
        let claimed = state.slots.get(key)?.claimed?;
        Some((claimed.epoch, claimed.tenure))
    }

    /// Removes the claim and the checkpoint of `key`, as someone who edits the store would. The ledger stays.
    pub fn remove(&self, key: &LeaseKey) {
        if let Some(slot) = self.state().slots.get_mut(key) {
            (slot.claimed, slot.checkpoint, slot.damaged) = (None, None, false);
        }
    }

    /// Makes the stored checkpoint of `key` unreadable, until the next commit replaces it.
    pub fn damage(&self, key: &LeaseKey) {
        self.state().slots.entry(key.clone()).or_default().damaged = true;
    }

    /// Replaces the stored checkpoint of `key`, as someone who edits the store would.
    pub fn edit(&self, key: &LeaseKey, edit: impl FnOnce(&mut Checkpoint)) {
        if let Some(checkpoint) = self.state().slots.get_mut(key).and_then(|slot| slot.checkpoint.as_mut()) {
            edit(checkpoint);
        }
    }

    /// What transactional sinks wrote, in order.
    pub fn delivered(&self) -> Vec<Delivered> {
        lock(&self.state).delivered.clone()
    }

    pub(super) fn store_identity(&self) -> StoreIdentity {
        self.identity
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Commits one write by the rules C5 to C7 and C10.
    pub(super) fn commit(&mut self, write: &CheckpointWrite) -> Result<Commit> {
        let slot = self.slots.entry(write.grant.key.clone()).or_default();
        let Some(claimed) = slot.claimed.as_mut() else { return Err(missing_record("memory", &write.grant.key)) };
        if claimed.epoch != write.grant.epoch || claimed.tenure != write.grant.tenure {
            return Ok(Commit::Fenced);
        }
        if write.seq == claimed.seq {
            return Ok(Commit::AlreadyDone);
        }
        if write.seq != claimed.seq + 1 {
            let (got, stored) = (write.seq, claimed.seq);
            return Err(Error::internal(format!("commit {got} after {stored} of one tenure")));
        }
        claimed.seq = write.seq;
        slot.checkpoint = Some(write.to_checkpoint());
        slot.damaged = false;
        slot.note(write);
        Ok(Commit::Committed)
    }
}

impl Slot {
    fn read(&self) -> Result<Option<Checkpoint>> {
        match self.damaged {
            true => Err(Error::corrupt("memory: the checkpoint cannot be read").remedy("set the checkpoint")),
            false => Ok(self.checkpoint.clone()),
        }
    }

    fn note(&mut self, write: &CheckpointWrite) {
        for (number, resolution) in &write.resolve {
            if let Some(record) = self.ledger.iter_mut().find(|record| record.number == *number) {
                record.resolution = Some(*resolution);
            }
        }
        for entry in &write.ledger {
            let number = self.ledger.last().map_or(1, |last| last.number + 1);
            self.ledger.push(LedgerRecord { number, entry: entry.clone(), resolution: None });
        }
    }
}

#[async_trait]
impl CheckpointStore for Checkpoints {
    async fn identity(&self, _cx: &Cx) -> Result<StoreIdentity> {
        Ok(self.identity)
    }

    async fn claim(&self, _cx: &Cx, grant: &Grant) -> Result<Claim> {
        let mut state = self.state();
        let slot = state.slots.entry(grant.key.clone()).or_default();
        let checkpoint = slot.read();
        match slot.claimed {
            Some(claimed) if claimed.epoch == grant.epoch && claimed.tenure == grant.tenure => {}
            Some(claimed) if claimed.epoch >= grant.epoch => return Ok(Claim::Behind { newest: claimed.epoch }),
            _ => slot.claimed = Some(Claimed { epoch: grant.epoch, tenure: grant.tenure, seq: 0 }),
        }
        Ok(Claim::Claimed(checkpoint?.map(Box::new)))
    }

    async fn commit(&self, _cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let mut state = self.state();
        // Every write is tried, whatever became of the others (C7).
        let answers: Vec<_> = writes.iter().map(|write| state.commit(write)).collect();
        answers.into_iter().collect()
    }

    async fn load(&self, _cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        self.state().slots.get(key).map_or(Ok(None), Slot::read)
    }

    async fn ledger(&self, _cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Ledgered> {
        let state = self.state();
        let records = state.slots.get(key).map_or(&[][..], |slot| &slot.ledger);
        let wanted =
            |record: &&LedgerRecord| record.number > query.after && !(query.open_only && record.resolution.is_some());
        Ok(records.iter().filter(wanted).take(query.limit).cloned().collect())
    }
}
