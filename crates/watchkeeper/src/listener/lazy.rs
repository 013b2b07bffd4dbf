//! Stores that are opened by their first call.

/// Implements the three contracts for a type with `stores(cx)`, which opens it, and `lease_profile()`, which is known before.
macro_rules! store {
    ($store:ty) => {
        const _: () = {
            use std::sync::Arc;

            use async_trait::async_trait;
            use bytes::Bytes;
            use watchkeeper_core::{
                AcquireRequest, Acquired, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Grant,
                Holder, Lease, LeaseKey, LeaseProfile, LeaseStore, LedgerQuery, LedgerRecord, PutOutcome, Record,
                Records, Released, Renewal, Result, Revision, StoreIdentity, Wakeups,
            };

            #[async_trait]
            impl LeaseStore for $store {
                fn profile(&self) -> LeaseProfile {
                    self.lease_profile()
                }

                async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
                    self.stores(cx).await?.leases.try_acquire(cx, ask).await
                }

                async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
                    self.stores(cx).await?.leases.renew(cx, leases).await
                }

                async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
                    self.stores(cx).await?.leases.release(cx, grant).await
                }

                async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
                    self.stores(cx).await?.leases.holders(cx, keys).await
                }

                async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
                    self.stores(cx).await?.leases.wakeups(cx).await
                }

                async fn separate(&self, cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
                    self.stores(cx).await?.leases.separate(cx).await
                }
            }

            #[async_trait]
            impl CheckpointStore for $store {
                async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
                    self.stores(cx).await?.checkpoints.identity(cx).await
                }

                async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
                    self.stores(cx).await?.checkpoints.claim(cx, grant).await
                }

                async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
                    self.stores(cx).await?.checkpoints.commit(cx, writes).await
                }

                async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
                    self.stores(cx).await?.checkpoints.load(cx, key).await
                }

                async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
                    self.stores(cx).await?.checkpoints.ledger(cx, key, query).await
                }
            }

            #[async_trait]
            impl Records for $store {
                async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
                    self.stores(cx).await?.records.get(cx, name).await
                }

                async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
                    self.stores(cx).await?.records.list(cx, prefix).await
                }

                async fn put_if(
                    &self,
                    cx: &Cx,
                    name: &str,
                    expected: Option<Revision>,
                    bytes: Bytes,
                ) -> Result<PutOutcome> {
                    self.stores(cx).await?.records.put_if(cx, name, expected, bytes).await
                }

                async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
                    self.stores(cx).await?.records.delete_if(cx, name, expected).await
                }

                async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
                    self.stores(cx).await?.records.append(cx, log, bytes, keep).await
                }

                async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
                    self.stores(cx).await?.records.tail(cx, log, limit).await
                }

                async fn changed(&self, cx: &Cx) -> Result<()> {
                    self.stores(cx).await?.records.changed(cx).await
                }
            }
        };
    };
}

pub(super) use store;
