//! Who leads a group: a lease that anyone may take on behalf of the one who was elected.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Cx, Entropy, Epoch, Grant, Holder, Lease, LeaseKey, LeaseStore, Result,
};

use super::handle::identity;

/// The leadership of a group.
#[derive(Debug)]
pub(super) struct Leadership {
    leases: Arc<dyn LeaseStore>,
    key: LeaseKey,
    ttl: Duration,
    entropy: Entropy,
}

/// What came of proposing a leader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Proposed {
    /// It leads now.
    Elected,
    /// Another one was faster; its word counts.
    Leads(String),
}

impl Leadership {
    pub(super) fn new(leases: Arc<dyn LeaseStore>, group: &str, ttl: Duration) -> Self {
        let key = LeaseKey::new(format!("{group}/listening/leader"));
        Self { leases, key, ttl, entropy: Entropy::from_system() }
    }

    /// Who leads, and under which fencing token.
    pub(super) async fn holder(&self, cx: &Cx) -> Result<Option<Holder>> {
        let holders = cx.run(self.leases.holders(cx, std::slice::from_ref(&self.key))).await?;
        Ok(holders.into_iter().next().flatten())
    }

    /// Takes the lease on behalf of `listener_id`, if it is free.
    pub(super) async fn propose(&self, cx: &Cx, listener_id: &str) -> Result<Proposed> {
        let (instance, name, tenure) = (identity(listener_id), listener_id.to_owned(), self.entropy.tenure());
        let candidate = Candidate { instance, name, address: None, tenure };
        let ask =
            AcquireRequest { key: self.key.clone(), candidate, ttl: self.ttl, floor: Epoch::ZERO, break_holder: None };
        Ok(match cx.run(self.leases.try_acquire(cx, &ask)).await? {
            Acquired::Granted { .. } => Proposed::Elected,
            Acquired::Held(holder) => Proposed::Leads(holder.candidate.name),
        })
    }

    /// Renews the lease if the leader is one of those who are kept alive here.
    pub(super) async fn keep(&self, cx: &Cx, is_ours: impl Fn(&str) -> bool) -> Result<()> {
        if let Some(grant) = self.led_by(cx, is_ours).await? {
            cx.run(self.leases.renew(cx, &[Lease { grant, ttl: self.ttl }])).await?;
        }
        Ok(())
    }

    /// Gives the lease back if `listener_id` leads.
    pub(super) async fn resign(&self, cx: &Cx, listener_id: &str) -> Result<()> {
        if let Some(grant) = self.led_by(cx, |name| name == listener_id).await? {
            cx.run(self.leases.release(cx, &grant)).await?;
        }
        Ok(())
    }

    /// The grant of the leader, if that one is meant.
    async fn led_by(&self, cx: &Cx, is_meant: impl Fn(&str) -> bool) -> Result<Option<Grant>> {
        let holder = self.holder(cx).await?.filter(|holder| is_meant(&holder.candidate.name));
        Ok(holder.map(|holder| Grant { key: self.key.clone(), tenure: holder.candidate.tenure, epoch: holder.epoch }))
    }
}
