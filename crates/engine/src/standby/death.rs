//! Watches the holders, breaks the leases of a process that is proved dead, and removes it from the registry.
//!
//! A lease is broken by exactly its tenure and epoch, and only where late writes do no harm or the operator accepts them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Address, Holder, InstanceId, TenureId, Verdict};

use super::Standby;
use super::acquire::Broken;
use crate::delivery::backoff::Backoff;
use crate::group::registry::Registry;
use crate::instance::Instance;
use crate::settings::FastTakeover;

/// Before a dead instance is removed from the registry again, the first time.
const REMOVE_AGAIN: Duration = Duration::from_millis(100);

impl Standby {
    /// The holder to break, if it is proved dead and this stream allows it.
    pub(super) fn may_break(&self, slot: usize, holder: &Holder) -> Option<Broken> {
        let proved = *self.dead.get(&holder.candidate.instance)?;
        let address = holder.candidate.address.as_ref()?;
        let allowed = match self.instance.settings.takeover {
            FastTakeover::Never => false,
            FastTakeover::Always => true,
            FastTakeover::WhereSafe => {
                let exposed = self.slots[slot]
                    .stream_slot
                    .connected()
                    .and_then(|it| it.spec.grade())
                    .is_none_or(|grade| grade.is_exposed());
                !exposed || self.instance.seams.peers.is_local(address)
            }
        };
        allowed.then_some((holder.candidate.tenure, holder.epoch, proved))
    }

    /// Watches the process that holds, if it can be watched. One watch serves all its streams.
    pub(super) fn watch(&mut self, holder: &Holder) {
        let candidate = &holder.candidate;
        let fast = self.instance.settings.takeover != FastTakeover::Never;
        let Some(address) = candidate.address.clone().filter(|_| fast) else { return };
        let is_me = candidate.instance == self.instance.id;
        if !is_me && !self.dead.contains_key(&candidate.instance) && self.watched.insert(candidate.instance) {
            let watch = watch(Arc::clone(&self.instance), candidate.instance, address, candidate.tenure);
            self.watching.push(Box::pin(watch));
        }
    }

    pub(super) fn judge(&mut self, instance: InstanceId, verdict: Verdict) {
        self.watched.remove(&instance);
        if verdict == Verdict::Dead {
            tracing::info!(dead = %instance, "a holder is proved dead");
            self.dead.insert(instance, self.instance.seams.clock.now());
            self.deregister_dead(instance);
        }
        // Those who hold nothing and are listed no more need not be remembered.
        let holding = self.slots.iter().filter_map(|slot| Some(slot.holder.as_ref()?.candidate.instance));
        let remembered: BTreeSet<_> = holding.chain(self.instance.view.instances()).collect();
        self.dead.retain(|dead, _| remembered.contains(dead) || *dead == instance);
    }

    /// Removes a dead instance from the registry, so that nobody takes it for healthy until its silence is noticed. In parallel with the
    /// work, and again until the records answer or the silence has been noticed.
    fn deregister_dead(&mut self, dead: InstanceId) {
        self.instance.view.forget(dead);
        let instance = Arc::clone(&self.instance);
        let removal = async move {
            let registry = Registry::new(Arc::clone(&instance.records), &instance.settings.group);
            let (seams, until) = (&instance.seams, instance.seams.clock.now() + instance.settings.unhealthy_after);
            let backoff =
                Backoff { first: REMOVE_AGAIN, factor: 2, max: instance.settings.retry_floor.max(REMOVE_AGAIN) };
            let mut attempt = 0;
            while seams.clock.now() < until {
                let cx = instance.cx();
                match cx.run(registry.deregister(&cx, dead)).await {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(%error, "a dead instance is still in the registry; trying again"),
                }
                seams.cx().sleep(backoff.delay(attempt, &seams.entropy)).await;
                attempt += 1;
            }
        };
        self.deregistering.push(Box::pin(removal));
    }
}

/// Watches a process until it is proved dead or nothing can be proved.
async fn watch(instance: Arc<Instance>, id: InstanceId, address: Address, tenure: TenureId) -> (InstanceId, Verdict) {
    let cx = instance.seams.cx();
    let verdict = instance.seams.peers.watch(&cx, &address, tenure).await.unwrap_or(Verdict::Unproven);
    if verdict == Verdict::Unproven {
        cx.sleep(instance.settings.retry_floor).await;
    }
    (id, verdict)
}
