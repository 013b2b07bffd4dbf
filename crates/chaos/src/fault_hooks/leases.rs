use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{
    AcquireRequest, Acquired, Cx, Error, Grant, Holder, Lease, LeaseKey, LeaseProfile, LeaseStore, Released, Renewal,
    Result, Wakeups,
};

use super::FaultHooks;

/// Leases whose renewals are not answered while a write is in hand.
///
/// With self-fencing off, a holder that was paused would still hear from its next renewal that it was replaced. The fence
/// has to hold without that, too.
#[derive(Debug)]
pub(crate) struct UnansweredRenewals {
    pub(crate) leases: Arc<dyn LeaseStore>,
    pub(crate) hooks: Arc<FaultHooks>,
}

#[async_trait]
impl LeaseStore for UnansweredRenewals {
    fn profile(&self) -> LeaseProfile {
        self.leases.profile()
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        self.leases.try_acquire(cx, ask).await
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        if self.hooks.is_full() {
            return Err(Error::unavailable("not heard, on purpose"));
        }
        self.leases.renew(cx, leases).await
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        self.leases.release(cx, grant).await
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        self.leases.holders(cx, keys).await
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        self.leases.wakeups(cx).await
    }

    async fn separate(&self, cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        let (leases, hooks) = (self.leases.separate(cx).await?, Arc::clone(&self.hooks));
        Ok(Arc::new(Self { leases, hooks }))
    }
}
