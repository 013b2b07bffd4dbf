//! From a granted lease to a claimed checkpoint.
//!
//! The claim is repeated until it is answered, the tenure is over, a shutdown is requested, or (after `give_up`)
//! another healthy instance could reach the store. `Claim::Behind` means that the lease store has lost its epochs: the
//! lease is acquired again above the newest claimed epoch, for the same tenure.

use std::sync::Arc;

use watchkeeper_core::{
    AcquireRequest, Acquired, Checkpoint, Claim, Component, Epoch, Error, ErrorKind, Grant, Moment,
};

use super::watch::Watch;
use crate::hooks::Mutant;
use crate::tenure::{Tenure, run_for};

/// A tenure that nobody older can write against any more.
#[derive(Debug)]
pub struct Claimed {
    /// The tenure.
    pub tenure: Arc<Tenure>,
    /// The newest committed checkpoint.
    pub checkpoint: Option<Checkpoint>,
}

/// Why a claim came to nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotClaimed {
    /// The lease is gone, or was lost while asking.
    Lost,
    /// The stored checkpoint cannot be read. The claim has taken effect.
    Damaged(Arc<Tenure>, Error),
    /// The store refuses this instance, or is not to be reached from here.
    Failed(Arc<Tenure>, Error),
}

/// What fails while a claim is not answered.
const PART: &str = "claim";

/// Grants that may turn out to be behind before it is given up: the lease store lost its data at most
/// once in a while, and each new grant is above what the claim answered.
const GRANTS_MAX: usize = 4;

impl Watch {
    /// Claims the checkpoint for a granted lease. While the claim is behind, the lease store has lost
    /// its data: the lease is asked for again, above the newest claimed epoch.
    pub(super) async fn claim(&self, grant: Grant, sent: Moment) -> Result<Claimed, NotClaimed> {
        let (mut grant, mut sent) = (grant, sent);
        for _ in 0..GRANTS_MAX {
            let tenure = self.take_up(grant.clone(), sent);
            match self.claim_once(&tenure).await {
                Ok(Claim::Claimed(checkpoint)) => {
                    let checkpoint = checkpoint.map(|checkpoint| *checkpoint);
                    return Ok(Claimed { tenure, checkpoint });
                }
                Ok(Claim::Behind { newest }) => {
                    tracing::warn!(
                        stream = self.stream_slot.name(),
                        newest = newest.0,
                        epoch = grant.epoch.0,
                        "the lease store has lost epochs; asking again above them"
                    );
                    (grant, sent) = self.ask_above(&tenure, newest).await?;
                }
                Err(_) if tenure.loss().is_some() => return Err(self.lost(&tenure)),
                Err(error) if error.kind() == ErrorKind::Corrupt => return Err(NotClaimed::Damaged(tenure, error)),
                Err(error) => return Err(NotClaimed::Failed(tenure, error)),
            }
        }
        let tenure = self.take_up(grant, sent);
        Err(NotClaimed::Failed(tenure, Error::internal("the lease store grants epochs that were claimed before")))
    }

    fn lost(&self, tenure: &Tenure) -> NotClaimed {
        self.put_down(tenure);
        NotClaimed::Lost
    }

    async fn claim_once(&self, tenure: &Tenure) -> Result<Claim, Error> {
        let settings = &self.spec.settings;
        let call_progress = tenure.progress().call_progress("claim");
        let (mut attempt, began) = (0, self.instance.seams.clock.now());
        loop {
            let call = tenure.call(&call_progress, settings.timeouts.commit);
            let answer = call.run(&Component::Checkpoints, self.checkpoints.claim(call.cx(), tenure.grant())).await;
            drop(call);
            match answer {
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
                        && tenure.loss().is_none()
                        && !self.should_give_up(began) =>
                {
                    self.stream_slot.fail(PART, &error);
                    let delay = settings.retry.backoff.delay(attempt, &self.instance.seams.entropy);
                    attempt += 1;
                    tenure.sleep(delay).await;
                }
                answer => {
                    if answer.is_ok() {
                        self.stream_slot.health.mark_recovered(PART);
                    }
                    return answer;
                }
            }
        }
    }

    /// Whether a store that does not answer here is left to others, who may reach it.
    fn should_give_up(&self, began: Moment) -> bool {
        let waited = self.instance.seams.clock.now().since(began);
        let patience = self.spec.settings.give_up;
        self.is_shutting_down() || (waited > patience && self.instance.view.has_healthy_peer(self.stream_slot.name()))
    }

    /// Asks for the lease again, for the same tenure, above `newest`.
    async fn ask_above(&self, tenure: &Arc<Tenure>, newest: Epoch) -> Result<(Grant, Moment), NotClaimed> {
        let instance = &self.instance;
        let floor = if instance.settings.hooks.breaks(Mutant::FloorIgnored) { Epoch::ZERO } else { newest };
        let ask = AcquireRequest {
            key: self.stream_slot.key.clone(),
            candidate: instance.candidate(tenure.grant().tenure),
            ttl: instance.settings.lease.ttl,
            floor,
            break_holder: None,
        };
        let cx = tenure.cx().within(instance.settings.lease.call_timeout);
        let sent = cx.now();
        match run_for(&cx, &Component::Leases, instance.leases.try_acquire(&cx, &ask)).await {
            Ok(Acquired::Granted { grant, .. }) => {
                self.put_down(tenure);
                Ok((grant, sent))
            }
            Ok(Acquired::Held(_)) => Err(self.lost(tenure)),
            Err(_) if tenure.loss().is_some() => Err(self.lost(tenure)),
            Err(error) => Err(NotClaimed::Failed(Arc::clone(tenure), error)),
        }
    }
}
