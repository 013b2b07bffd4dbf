//! A checkpoint store that tells what was committed through it.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Follower, Grant, Latest, LeaseKey, LedgerQuery,
    LedgerRecord, Result, StoreIdentity,
};

/// The checkpoint store of one stream, and how many of its changes it has seen committed.
#[derive(Debug)]
pub(super) struct Observed {
    store: Arc<dyn CheckpointStore>,
    changes: Latest<u64>,
}

impl Observed {
    pub(super) fn new(store: Arc<dyn CheckpointStore>) -> Self {
        Self { store, changes: Latest::new(0) }
    }

    pub(super) fn follow(&self) -> Follower<u64> {
        self.changes.follow()
    }

    fn see(&self, changes: u64) {
        self.changes.change_if(|seen| std::mem::replace(seen, changes) != changes);
    }
}

#[async_trait]
impl CheckpointStore for Observed {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        self.store.identity(cx).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        let claim = self.store.claim(cx, grant).await?;
        if let Claim::Claimed(checkpoint) = &claim {
            self.see(checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.facts.changes));
        }
        Ok(claim)
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let answers = self.store.commit(cx, writes).await?;
        for (write, answer) in writes.iter().zip(&answers) {
            if *answer != Commit::Fenced {
                self.see(write.facts.changes);
            }
        }
        Ok(answers)
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        self.store.load(cx, key).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        self.store.ledger(cx, key, query).await
    }
}
