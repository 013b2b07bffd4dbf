use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use watchkeeper_core::memory::Leases;
use watchkeeper_core::{
    AcquireRequest, Acquired, Cx, Ending, Epoch, Error, Grant, Holder, Lease, LeaseKey, LeaseProfile, LeaseStore,
    Previous, Released, Renewal, Result, TenureId, Wakeups,
};

use super::{KnownBad, give_way};
use crate::laws::LeaseBench;
use crate::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    EpochNotRaised,
    EpochResetByRelease,
    FloorIgnored,
    LooksBeforeItLeaps,
    BreakReplacesAnyHolder,
    BreakIgnoresTheEpoch,
    SameTenureIsGrantedAnew,
    RepeatedGrantForgetsThePrevious,
    AskingAgainKeepsTheOldEnd,
    NeverExpires,
    RenewalMatchesTenureOnly,
    RenewalMatchesKeyOnly,
    RenewalKeepsTheOldEnd,
    RenewalRefusesTheExpired,
    RenewalIsAllOrNothing,
    ReleasedByAnyone,
    ReleaseIsSilent,
    EndingsAreMixedUp,
    HoldersInTheWrongOrder,
    SeparateIsAnotherStore,
    FirstHolderIsReportedAsItsOwnPrevious,
    RefusalRaisesTheEpoch,
    NothingToRenewIsAnError,
    ReleasedKeyStaysHeld,
    ReleasingAgainIsReportedAsReleased,
}

/// Lease stores with one flaw each.
pub fn leases() -> Vec<KnownBad<LeaseBench>> {
    use Flaw::*;
    let all = [
        (EpochNotRaised, "l1_epochs_are_never_reused"),
        (EpochResetByRelease, "l12_epoch_survives_a_release"),
        (FloorIgnored, "l1_epoch_is_above_the_floor"),
        (LooksBeforeItLeaps, "l6_of_many_at_once_one_is_granted"),
        (BreakReplacesAnyHolder, "l5_break_of_another_tenure_is_refused"),
        (BreakIgnoresTheEpoch, "l5_break_of_another_epoch_is_refused"),
        (SameTenureIsGrantedAnew, "l3_same_tenure_gets_the_same_grant"),
        (RepeatedGrantForgetsThePrevious, "l3_same_grant_names_the_same_previous"),
        (AskingAgainKeepsTheOldEnd, "l3_asking_again_runs_the_lease_anew"),
        (NeverExpires, "l4_expired_key_is_granted_under_a_higher_epoch"),
        (RenewalMatchesTenureOnly, "l8_only_an_exact_match_is_renewed"),
        (RenewalMatchesKeyOnly, "l8_refused_renewal_prolongs_nothing"),
        (RenewalKeepsTheOldEnd, "l7_renewed_lease_runs_from_now"),
        (RenewalRefusesTheExpired, "l9_expired_lease_that_nobody_took_is_renewed"),
        (RenewalIsAllOrNothing, "l10_answers_are_independent"),
        (ReleasedByAnyone, "l11_release_by_another_changes_nothing"),
        (ReleaseIsSilent, "l13_release_wakes_those_who_wait"),
        (EndingsAreMixedUp, "l12_epoch_survives_a_release"),
        (HoldersInTheWrongOrder, "holders_are_reported_in_the_order_of_the_keys"),
        (SeparateIsAnotherStore, "separate_clients_see_the_same_leases"),
        (FirstHolderIsReportedAsItsOwnPrevious, "l1_free_key_is_granted"),
        (RefusalRaisesTheEpoch, "l2_refusal_changes_nothing"),
        (NothingToRenewIsAnError, "l10_nothing_to_renew_is_no_error"),
        (ReleasedKeyStaysHeld, "l11_released_key_is_free_at_once"),
        (ReleasingAgainIsReportedAsReleased, "l11_released_lease_is_gone"),
    ];
    let bad = |(flaw, breaks)| {
        KnownBad::new(flaw, breaks, move |world| {
            let inner = Leases::new(world.clock());
            let bad = Bad { flaw, inner, other: Leases::new(world.clock()), shown: Arc::default() };
            Box::new(LeaseBench::in_world(world, Arc::new(bad.clone()), Arc::new(bad)))
        })
    };
    all.into_iter().map(bad).collect()
}

#[derive(Debug, Clone)]
struct Bad {
    flaw: Flaw,
    inner: Leases,
    other: Leases,
    shown: Arc<Mutex<Shown>>,
}

/// Epochs as they are shown, where those differ from the real ones.
#[derive(Debug, Default)]
struct Shown {
    newest: BTreeMap<LeaseKey, Epoch>,
    /// Of each tenure: the shown and the real one.
    pairs: BTreeMap<(LeaseKey, TenureId), (Epoch, Epoch)>,
}

impl Bad {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn disguises(&self) -> bool {
        self.is(Flaw::EpochNotRaised) || self.is(Flaw::EpochResetByRelease)
    }

    /// The epoch to show for a real grant.
    fn show(&self, real: &Grant, floor: Epoch) -> Epoch {
        let mut shown = lock(&self.shown);
        let pair = (real.key.clone(), real.tenure);
        if let Some((same, _)) = shown.pairs.get(&pair).filter(|(_, known)| *known == real.epoch) {
            return *same;
        }
        let newest = shown.newest.get(&real.key).copied().unwrap_or_default();
        let epoch = match self.flaw {
            Flaw::EpochNotRaised => newest.max(floor.next()),
            _ => newest.max(floor).next(),
        };
        shown.newest.insert(real.key.clone(), epoch);
        shown.pairs.insert(pair, (epoch, real.epoch));
        epoch
    }

    fn shown(&self, key: &LeaseKey, tenure: TenureId, real: Epoch) -> Epoch {
        let shown = lock(&self.shown);
        shown.pairs.get(&(key.clone(), tenure)).filter(|(_, known)| *known == real).map_or(real, |(shown, _)| *shown)
    }

    /// The real grant behind a shown one.
    fn real(&self, grant: &Grant) -> Grant {
        if !self.disguises() {
            return grant.clone();
        }
        let shown = lock(&self.shown);
        let pair = shown.pairs.get(&(grant.key.clone(), grant.tenure));
        // An epoch that was never shown is turned into one that was never granted.
        let epoch = pair.filter(|(shown, _)| *shown == grant.epoch).map_or(Epoch(u64::MAX), |(_, real)| *real);
        Grant { epoch, ..grant.clone() }
    }

    async fn holder(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Holder>> {
        Ok(self.inner.holders(cx, std::slice::from_ref(key)).await?.remove(0))
    }

    async fn alter_ask(&self, cx: &Cx, ask: &AcquireRequest) -> Result<AcquireRequest> {
        let mut ask = ask.clone();
        let holder = self.holder(cx, &ask.key).await?;
        let current = holder.as_ref().map(|holder| (holder.candidate.tenure, holder.epoch));
        let own = holder.filter(|holder| holder.candidate.tenure == ask.candidate.tenure);
        let breaks = ask.break_holder.map(|(tenure, _)| tenure);
        match self.flaw {
            Flaw::FloorIgnored => ask.floor = Epoch::ZERO,
            Flaw::NeverExpires => ask.ttl *= 10_000,
            Flaw::BreakReplacesAnyHolder if breaks.is_some() => ask.break_holder = current,
            Flaw::BreakIgnoresTheEpoch if breaks == current.map(|(tenure, _)| tenure) => ask.break_holder = current,
            Flaw::SameTenureIsGrantedAnew => {
                ask.floor = own.map_or(ask.floor, |holder| holder.epoch.max(ask.floor));
            }
            Flaw::AskingAgainKeepsTheOldEnd => ask.ttl = own.map_or(ask.ttl, |holder| holder.remaining),
            Flaw::LooksBeforeItLeaps if current.is_none() => {
                give_way().await;
                let holder = self.holder(cx, &ask.key).await?;
                ask.break_holder = holder.map(|holder| (holder.candidate.tenure, holder.epoch));
            }
            _ if self.disguises() => {
                ask.break_holder = ask.break_holder.map(|broken| self.real_break(&ask.key, broken))
            }
            _ => {}
        }
        Ok(ask)
    }

    fn real_break(&self, key: &LeaseKey, (tenure, epoch): (TenureId, Epoch)) -> (TenureId, Epoch) {
        (tenure, self.real(&Grant { key: key.clone(), tenure, epoch }).epoch)
    }

    fn alter_previous(&self, grant: &Grant, previous: Option<Previous>) -> Option<Previous> {
        let mut previous = previous?;
        match self.flaw {
            Flaw::EndingsAreMixedUp if previous.ending == Ending::Released => previous.ending = Ending::Expired,
            Flaw::RepeatedGrantForgetsThePrevious => {
                let known = (grant.key.clone(), grant.tenure);
                if lock(&self.shown).pairs.insert(known, (grant.epoch, grant.epoch)).is_some() {
                    return None;
                }
            }
            _ if self.disguises() => {
                previous.epoch = self.shown(&grant.key, previous.candidate.tenure, previous.epoch);
            }
            _ => {}
        }
        Some(previous)
    }

    async fn alter_lease(&self, cx: &Cx, lease: &Lease) -> Result<Option<Lease>> {
        let mut lease = Lease { grant: self.real(&lease.grant), ttl: lease.ttl };
        let holder = self.holder(cx, &lease.grant.key).await?;
        match (self.flaw, holder) {
            (Flaw::NeverExpires, _) => lease.ttl *= 10_000,
            (Flaw::RenewalRefusesTheExpired, None) => return Ok(None),
            (Flaw::RenewalKeepsTheOldEnd, Some(holder)) => lease.ttl = holder.remaining,
            (Flaw::RenewalMatchesTenureOnly, Some(holder)) if holder.candidate.tenure == lease.grant.tenure => {
                lease.grant.epoch = holder.epoch;
            }
            (Flaw::RenewalMatchesKeyOnly, Some(holder)) => {
                (lease.grant.tenure, lease.grant.epoch) = (holder.candidate.tenure, holder.epoch);
            }
            _ => {}
        }
        Ok(Some(lease))
    }
}

#[async_trait]
impl LeaseStore for Bad {
    fn profile(&self) -> LeaseProfile {
        self.inner.profile()
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        let altered = self.alter_ask(cx, ask).await?;
        Ok(match self.inner.try_acquire(cx, &altered).await? {
            Acquired::Granted { grant, previous } => {
                let mut previous = self.alter_previous(&grant, previous);
                if self.is(Flaw::FirstHolderIsReportedAsItsOwnPrevious) && previous.is_none() {
                    let candidate = ask.candidate.clone();
                    previous = Some(Previous {
                        candidate,
                        epoch: grant.epoch,
                        ending: Ending::Expired,
                        vacant: Default::default(),
                    });
                }
                let epoch = if self.disguises() { self.show(&grant, ask.floor) } else { grant.epoch };
                Acquired::Granted { grant: Grant { epoch, ..grant }, previous }
            }
            Acquired::Held(holder) if self.is(Flaw::RefusalRaisesTheEpoch) && ask.floor > holder.epoch => {
                let raised = AcquireRequest {
                    candidate: holder.candidate.clone(),
                    break_holder: Some((holder.candidate.tenure, holder.epoch)),
                    ttl: holder.remaining,
                    ..ask.clone()
                };
                self.inner.try_acquire(cx, &raised).await?;
                Acquired::Held(holder)
            }
            Acquired::Held(mut holder) => {
                holder.epoch = self.shown(&ask.key, holder.candidate.tenure, holder.epoch);
                Acquired::Held(holder)
            }
        })
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        if leases.is_empty() && self.is(Flaw::NothingToRenewIsAnError) {
            return Err(Error::internal("a statement without rows"));
        }
        let mut answers = Vec::new();
        for lease in leases {
            let Some(lease) = self.alter_lease(cx, lease).await? else {
                answers.push(Renewal::Lost);
                continue;
            };
            answers.extend(self.inner.renew(cx, &[lease]).await?);
        }
        if self.is(Flaw::RenewalIsAllOrNothing) && answers.contains(&Renewal::Lost) {
            answers.fill(Renewal::Lost);
        }
        Ok(answers)
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let mut grant = self.real(grant);
        let holder = self.holder(cx, &grant.key).await?;
        if let Some(holder) = holder.filter(|_| self.is(Flaw::ReleasedByAnyone)) {
            (grant.tenure, grant.epoch) = (holder.candidate.tenure, holder.epoch);
        }
        let is_own = holder_of(&grant, self.holder(cx, &grant.key).await?);
        if is_own && self.is(Flaw::ReleasedKeyStaysHeld) {
            return Ok(Released::Released);
        }
        let again = (grant.key.clone(), grant.tenure);
        if self.is(Flaw::ReleasingAgainIsReportedAsReleased) {
            let released = (grant.epoch, grant.epoch);
            let mut shown = lock(&self.shown);
            if !is_own && shown.pairs.get(&again) == Some(&released) {
                return Ok(Released::Released);
            }
            if is_own {
                shown.pairs.insert(again, released);
            }
        }
        let answer = self.inner.release(cx, &grant).await?;
        if self.is(Flaw::EpochResetByRelease) && answer == Released::Released {
            lock(&self.shown).newest.remove(&grant.key);
        }
        Ok(answer)
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let mut holders = self.inner.holders(cx, keys).await?;
        for (key, holder) in keys.iter().zip(&mut holders) {
            if let Some(holder) = holder {
                holder.epoch = self.shown(key, holder.candidate.tenure, holder.epoch);
            }
        }
        if self.is(Flaw::HoldersInTheWrongOrder) {
            holders.sort_by_key(|holder| holder.as_ref().map(|holder| holder.epoch));
        }
        Ok(holders)
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        if self.is(Flaw::ReleaseIsSilent) {
            return Ok(Box::new(Silence));
        }
        self.inner.wakeups(cx).await
    }

    async fn separate(&self, _cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        if self.is(Flaw::SeparateIsAnotherStore) {
            return Ok(Arc::new(self.other.clone()));
        }
        Ok(Arc::new(self.clone()))
    }
}

/// Whether this grant is the one that holds.
fn holder_of(grant: &Grant, holder: Option<Holder>) -> bool {
    holder.is_some_and(|holder| (holder.candidate.tenure, holder.epoch) == (grant.tenure, grant.epoch))
}

struct Silence;

#[async_trait]
impl Wakeups for Silence {
    async fn next(&mut self, _cx: &Cx) -> Result<()> {
        std::future::pending().await
    }
}
