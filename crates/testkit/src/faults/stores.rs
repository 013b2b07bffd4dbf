use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::{
    AcquireRequest, Acquired, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Grant, Holder, Lease,
    LeaseKey, LeaseProfile, LeaseStore, LedgerQuery, LedgerRecord, PutOutcome, Record, Records, Released, Renewal,
    Result, Revision, StoreIdentity, Wakeups,
};

use super::script::Script;

/// A lease store with faults.
#[derive(Debug, Clone)]
pub struct FaultyLeases {
    inner: Arc<dyn LeaseStore>,
    script: Script,
}

impl FaultyLeases {
    /// `inner`, failing as `script` says.
    pub fn new(inner: Arc<dyn LeaseStore>, script: Script) -> Self {
        Self { inner, script }
    }
}

#[async_trait]
impl LeaseStore for FaultyLeases {
    fn profile(&self) -> LeaseProfile {
        self.inner.profile()
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        let (inner, own, ask) = (Arc::clone(&self.inner), cx.clone(), ask.clone());
        self.script.play(cx, "try_acquire", async move { inner.try_acquire(&own, &ask).await }).await
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        let (inner, own, leases) = (Arc::clone(&self.inner), cx.clone(), leases.to_vec());
        self.script.play(cx, "renew", async move { inner.renew(&own, &leases).await }).await
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let (inner, own, grant) = (Arc::clone(&self.inner), cx.clone(), grant.clone());
        self.script.play(cx, "release", async move { inner.release(&own, &grant).await }).await
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let (inner, own, keys) = (Arc::clone(&self.inner), cx.clone(), keys.to_vec());
        self.script.play(cx, "holders", async move { inner.holders(&own, &keys).await }).await
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "wakeups", async move { inner.wakeups(&own).await }).await
    }

    async fn separate(&self, cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        let separate = self.script.play(cx, "separate", async move { inner.separate(&own).await }).await?;
        Ok(Arc::new(Self { inner: separate, script: self.script.clone() }))
    }
}

/// A checkpoint store with faults.
#[derive(Debug, Clone)]
pub struct FaultyCheckpoints {
    inner: Arc<dyn CheckpointStore>,
    script: Script,
}

impl FaultyCheckpoints {
    /// `inner`, failing as `script` says.
    pub fn new(inner: Arc<dyn CheckpointStore>, script: Script) -> Self {
        Self { inner, script }
    }
}

#[async_trait]
impl CheckpointStore for FaultyCheckpoints {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "identity", async move { inner.identity(&own).await }).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        let (inner, own, grant) = (Arc::clone(&self.inner), cx.clone(), grant.clone());
        self.script.play(cx, "claim", async move { inner.claim(&own, &grant).await }).await
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let (inner, own, writes) = (Arc::clone(&self.inner), cx.clone(), writes.to_vec());
        self.script.play(cx, "commit", async move { inner.commit(&own, &writes).await }).await
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let (inner, own, key) = (Arc::clone(&self.inner), cx.clone(), key.clone());
        self.script.play(cx, "load", async move { inner.load(&own, &key).await }).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        let (inner, own, key, query) = (Arc::clone(&self.inner), cx.clone(), key.clone(), *query);
        self.script.play(cx, "ledger", async move { inner.ledger(&own, &key, &query).await }).await
    }
}

/// Records with faults.
#[derive(Debug, Clone)]
pub struct FaultyRecords {
    inner: Arc<dyn Records>,
    script: Script,
}

impl FaultyRecords {
    /// `inner`, failing as `script` says.
    pub fn new(inner: Arc<dyn Records>, script: Script) -> Self {
        Self { inner, script }
    }
}

#[async_trait]
impl Records for FaultyRecords {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        let (inner, own, name) = (Arc::clone(&self.inner), cx.clone(), name.to_owned());
        self.script.play(cx, "get", async move { inner.get(&own, &name).await }).await
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let (inner, own, prefix) = (Arc::clone(&self.inner), cx.clone(), prefix.to_owned());
        self.script.play(cx, "list", async move { inner.list(&own, &prefix).await }).await
    }

    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        let (inner, own, name) = (Arc::clone(&self.inner), cx.clone(), name.to_owned());
        self.script.play(cx, "put_if", async move { inner.put_if(&own, &name, expected, bytes).await }).await
    }

    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let (inner, own, name) = (Arc::clone(&self.inner), cx.clone(), name.to_owned());
        self.script.play(cx, "delete_if", async move { inner.delete_if(&own, &name, expected).await }).await
    }

    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        let (inner, own, log) = (Arc::clone(&self.inner), cx.clone(), log.to_owned());
        self.script.play(cx, "append", async move { inner.append(&own, &log, bytes, keep).await }).await
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        let (inner, own, log) = (Arc::clone(&self.inner), cx.clone(), log.to_owned());
        self.script.play(cx, "tail", async move { inner.tail(&own, &log, limit).await }).await
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "changed", async move { inner.changed(&own).await }).await
    }
}
