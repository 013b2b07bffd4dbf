//! The laws of [`LeaseStore`].

mod acquire;
mod release;
mod renew;

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::memory::Leases;
use watchkeeper_core::{
    AcquireRequest, Acquired, Address, Candidate, Cx, Entropy, Epoch, Grant, Holder, Lease, LeaseKey, LeaseStore,
    Previous, Renewal,
};

pub use acquire::*;
pub use release::*;
pub use renew::*;

use super::lawful::{Broken, Law, TRIES, ensure};
use super::macros::law_list;
use crate::world::World;

/// A lease store on the bench.
#[derive(Debug)]
pub struct LeaseBench {
    /// The context of all calls.
    pub cx: Cx,
    /// The store.
    pub a: Arc<dyn LeaseStore>,
    /// The same store, as another client sees it.
    pub b: Arc<dyn LeaseStore>,
    /// For keys and identities that nobody used before.
    pub entropy: Arc<Entropy>,
    /// A TTL that is short, yet long enough for a few calls.
    pub ttl: Duration,
}

impl LeaseBench {
    /// The reference in memory, in virtual time.
    pub fn in_memory(world: &World) -> Self {
        let leases = Leases::new(world.clock());
        Self::in_world(world, Arc::new(leases.clone()), Arc::new(leases))
    }

    /// Two clients of one store, in virtual time.
    pub fn in_world(world: &World, a: Arc<dyn LeaseStore>, b: Arc<dyn LeaseStore>) -> Self {
        Self { cx: world.cx(), a, b, entropy: world.entropy(), ttl: Duration::from_secs(2) }
    }

    /// A TTL that does not run out during a law.
    fn long(&self) -> Duration {
        self.ttl * 30
    }

    fn key(&self) -> LeaseKey {
        LeaseKey::new(format!("law/{}", self.entropy.uuid()))
    }

    fn candidate(&self, name: &str) -> Candidate {
        Candidate {
            instance: self.entropy.instance(),
            name: name.to_owned(),
            address: Some(Address(format!("{name}.example:7000").into())),
            tenure: self.entropy.tenure(),
        }
    }

    fn ask(&self, key: &LeaseKey, candidate: &Candidate) -> AcquireRequest {
        let (key, candidate) = (key.clone(), candidate.clone());
        AcquireRequest { key, candidate, ttl: self.long(), floor: Epoch::ZERO, break_holder: None }
    }

    /// Asks for a lease that runs out soon.
    fn brief(&self, key: &LeaseKey, candidate: &Candidate) -> AcquireRequest {
        AcquireRequest { ttl: self.ttl, ..self.ask(key, candidate) }
    }

    async fn granted(&self, ask: &AcquireRequest) -> Result<(Grant, Option<Previous>), Broken> {
        match self.a.try_acquire(&self.cx, ask).await? {
            Acquired::Granted { grant, previous } => {
                ensure!(grant.key == ask.key, "asked for {}, was granted {}", ask.key, grant.key);
                ensure!(grant.tenure == ask.candidate.tenure, "the grant is for another tenure than asked for");
                Ok((grant, previous))
            }
            Acquired::Held(holder) => {
                Err(Broken::new(format!("{} should have been granted but is held: {holder:?}", ask.key)))
            }
        }
    }

    async fn grant(&self, ask: &AcquireRequest) -> Result<Grant, Broken> {
        Ok(self.granted(ask).await?.0)
    }

    /// Asks as the other client, and expects to be refused.
    async fn refused(&self, ask: &AcquireRequest) -> Result<Holder, Broken> {
        match self.b.try_acquire(&self.cx, ask).await? {
            Acquired::Held(holder) => Ok(holder),
            Acquired::Granted { grant, .. } => Err(Broken::new(format!("a held key was granted: {grant:?}"))),
        }
    }

    async fn renew(&self, grant: &Grant, ttl: Duration) -> Result<Renewal, Broken> {
        let leases = [Lease { grant: grant.clone(), ttl }];
        let answers = self.a.renew(&self.cx, &leases).await?;
        let [answer] = answers[..] else { return Err(Broken::new("one renewal, but not one answer")) };
        Ok(answer)
    }

    /// Who holds, as the other client sees it.
    async fn holder(&self, key: &LeaseKey) -> Result<Option<Holder>, Broken> {
        let mut holders = self.b.holders(&self.cx, std::slice::from_ref(key)).await?;
        ensure!(holders.len() == 1, "one key, but {} answers", holders.len());
        Ok(holders.remove(0))
    }

    async fn ensure_held_under(&self, grant: &Grant) -> Law {
        let holder = self.holder(&grant.key).await?;
        let held = holder.map(|holder| (holder.candidate.tenure, holder.epoch));
        ensure!(held == Some((grant.tenure, grant.epoch)), "{grant:?} should hold, but the store says {held:?}");
        Ok(())
    }

    /// Lets the TTL pass, and waits until the store has noticed.
    async fn until_free(&self, key: &LeaseKey) -> Law {
        self.cx.sleep(self.ttl).await;
        for _ in 0..TRIES {
            if self.holder(key).await?.is_none() {
                return Ok(());
            }
            self.cx.sleep(self.ttl / 4).await;
        }
        Err(Broken::new("a lease that nobody renews never expires"))
    }
}

fn ensure_above(grant: &Grant, earlier: Epoch) -> Law {
    ensure!(grant.epoch > earlier, "epoch {} was granted after {earlier}", grant.epoch);
    Ok(())
}

law_list! {
    /// One test per law of lease stores. The argument is a `fn(&LawOf<LeaseBench>) -> Law`.
    lease_laws, lease, LeaseBench, $, [
        l1_free_key_is_granted,
        l1_epoch_is_above_the_floor,
        l1_epochs_are_never_reused,
        l2_held_key_is_refused_with_its_holder,
        l2_refusal_changes_nothing,
        l3_same_tenure_gets_the_same_grant,
        l3_same_grant_names_the_same_previous,
        l3_asking_again_runs_the_lease_anew,
        l3_floor_at_the_epoch_gives_a_new_grant,
        l4_expired_key_is_granted_under_a_higher_epoch,
        l5_break_replaces_that_holder,
        l5_break_of_another_tenure_is_refused,
        l5_break_of_another_epoch_is_refused,
        l6_of_many_at_once_one_is_granted,
        l6_of_many_for_an_expired_key_one_is_granted,
        l7_renewed_lease_runs_from_now,
        l7_renewed_lease_ends,
        l8_only_an_exact_match_is_renewed,
        l8_refused_renewal_prolongs_nothing,
        l9_expired_lease_that_nobody_took_is_renewed,
        l9_expired_lease_that_was_taken_is_lost,
        l10_answers_are_independent,
        l10_nothing_to_renew_is_no_error,
        l11_released_key_is_free_at_once,
        l11_release_by_another_changes_nothing,
        l11_released_lease_is_gone,
        l12_epoch_survives_a_release,
        l13_release_wakes_those_who_wait,
        l13_dropped_wait_loses_no_hint,
        holders_are_reported_in_the_order_of_the_keys,
        separate_clients_see_the_same_leases,
    ]
}
