//! Renewal: what keeps a tenure alive, and what does not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::memory::Leases;
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Cx, Epoch, ErrorKind, Grant, Holder, Lease, LeaseKey, LeaseProfile,
    LeaseStore, Moment, NoPeers, Released, Renewal, Result, Task, Wakeups,
};
use watchkeeper_engine::hooks::Hooks;
use watchkeeper_engine::keeper::Keeper;
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::LeaseSettings;
use watchkeeper_engine::tenure::{Loss, Tenure};
use watchkeeper_testkit::World;
use watchkeeper_testkit::faults::{Fault, FaultyLeases, Script};

use crate::support::*;

/// A lease store that notes how many leases each renewal was for, and answers as told.
#[derive(Debug, Clone)]
struct Counting {
    inner: Leases,
    rounds: Arc<Mutex<Vec<usize>>>,
    answer: Arc<Mutex<Option<(LeaseKey, Renewal)>>>,
}

#[async_trait]
impl LeaseStore for Counting {
    fn profile(&self) -> LeaseProfile {
        self.inner.profile()
    }
    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        self.inner.try_acquire(cx, ask).await
    }
    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        self.rounds.lock().unwrap().push(leases.len());
        let mut answers = self.inner.renew(cx, leases).await?;
        if let Some((key, renewal)) = self.answer.lock().unwrap().as_ref() {
            let at = leases.iter().position(|lease| lease.grant.key == *key);
            at.into_iter().for_each(|at| answers[at] = *renewal);
        }
        Ok(answers)
    }
    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        self.inner.release(cx, grant).await
    }
    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        self.inner.holders(cx, keys).await
    }
    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        self.inner.wakeups(cx).await
    }
    async fn separate(&self, _cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        Ok(Arc::new(self.clone()))
    }
}

struct Bench {
    world: World,
    script: Script,
    store: Counting,
    settings: LeaseSettings,
    keeper: Keeper,
    _keeping: Task<()>,
}

impl Bench {
    fn new() -> Self {
        let world = World::new(3);
        let store = Counting { inner: Leases::new(world.clock()), rounds: Arc::default(), answer: Arc::default() };
        let script = Script::new().served_by(world.node("server").spawner());
        let leases = Arc::new(FaultyLeases::new(Arc::new(store.clone()), script.clone()));
        let settings = LeaseSettings::new(TTL);
        let spawn = world.node("instance").spawner();
        let seams = Seams { clock: world.clock(), spawn, peers: Arc::new(NoPeers), entropy: world.entropy() };
        let started = Keeper::start(&seams, leases, settings, Hooks::default(), CancellationToken::new());
        let (keeper, keeping) = started.expect("the world has threads");
        Self { world, script, store, settings, keeper, _keeping: keeping }
    }

    fn acting_time(&self) -> Duration {
        self.settings.ttl - self.settings.margin
    }

    /// A tenure that was granted now and is kept.
    fn tenure(&self, key: &str) -> Arc<Tenure> {
        let entropy = self.world.entropy();
        let candidate =
            Candidate { instance: entropy.instance(), name: "a".into(), address: None, tenure: entropy.tenure() };
        let key = LeaseKey::new(key);
        let ask = AcquireRequest { key, candidate, ttl: self.settings.ttl, floor: Epoch::ZERO, break_holder: None };
        let sent = self.world.now();
        let acquired = self.world.block_on(self.store.inner.try_acquire(&self.world.cx(), &ask)).unwrap().unwrap();
        let Acquired::Granted { grant, .. } = acquired else { panic!("{acquired:?}") };
        let tenure = Arc::new(Tenure::new(grant, self.world.clock(), sent, self.acting_time()));
        self.keeper.add(Arc::clone(&tenure));
        tenure
    }

    fn run_for(&self, duration: Duration) {
        self.world.run_for(duration).unwrap();
    }

    /// Runs until the tenure is over; the answer is why and when.
    fn until_over(&self, tenure: &Tenure) -> (Loss, Moment) {
        let loss = self.world.block_on(tenure.over()).unwrap();
        (loss, self.world.now())
    }
}

#[test]
fn a_tenure_lasts_as_long_as_it_is_renewed() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    bench.run_for(60 * SECOND);
    assert_eq!(tenure.loss(), None);
    let rounds = bench.store.rounds.lock().unwrap().len();
    assert!((30..=45).contains(&rounds), "a third of the lease: {rounds} rounds in twelve leases");
}

#[test]
fn one_round_trip_renews_all_streams() {
    let bench = Bench::new();
    let tenures: Vec<_> = (0..20).map(|key| bench.tenure(&format!("stream {key}"))).collect();
    bench.run_for(60 * SECOND);
    assert!(tenures.iter().all(|tenure| tenure.loss().is_none()));
    let rounds = bench.store.rounds.lock().unwrap().clone();
    assert!(rounds.len() <= 45 && rounds.iter().all(|leases| *leases == 20), "{rounds:?}");
}

#[test]
fn the_deadline_counts_from_before_a_renewal_that_is_answered_late() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    // Every renewal takes nearly the time-out of the call.
    let slow = bench.settings.call_timeout - 10 * MILLI;
    bench.script.always("renew", Fault::Delay(slow));
    bench.run_for(20 * SECOND);
    assert_eq!(tenure.loss(), None);
    for _ in 0..200 {
        bench.run_for(50 * MILLI);
        let left = tenure.deadline().since(bench.world.now());
        assert!(
            left <= bench.acting_time() - slow + 50 * MILLI,
            "{left:?} left, though the last answer was {slow:?} late"
        );
    }
}

#[test]
fn failed_renewals_are_tolerated_until_the_deadline_and_tried_again_soon() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    bench.run_for(10 * SECOND);
    bench.script.always("renew", Fault::Reject(ErrorKind::Unavailable));
    let before = bench.script.calls("renew");
    let deadline = tenure.deadline();
    bench.run_for(deadline.since(bench.world.now()) - 50 * MILLI);
    assert_eq!(tenure.loss(), None);
    assert!(bench.script.calls("renew") >= before + 5, "it is tried again much sooner than the next one is due");
    bench.script.heal("renew");
    let other = bench.tenure("other");
    bench.run_for(10 * SECOND);
    bench.script.times("renew", 5, &Fault::Reject(ErrorKind::Unavailable));
    bench.run_for(30 * SECOND);
    assert_eq!((other.loss(), bench.script.pending("renew")), (None, 0), "five failures in a row are survived");
}

#[test]
fn a_tenure_that_cannot_be_renewed_ends_within_a_tick_of_its_deadline_and_before_its_lease() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    bench.run_for(10 * SECOND);
    bench.script.always("renew", Fault::Reject(ErrorKind::Unavailable));
    let deadline = tenure.deadline();
    let (loss, at) = bench.until_over(&tenure);
    assert_eq!(loss, Loss::Deadline);
    assert!(at >= deadline && at <= deadline + bench.settings.tick());
    let holder = bench.world.block_on(bench.store.inner.holders(&bench.world.cx(), &[LeaseKey::new("orders")]));
    assert!(holder.unwrap().unwrap()[0].is_some(), "by the store's clock it still holds");
}

#[test]
fn an_answer_after_the_deadline_does_not_revive() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    bench.run_for(10 * SECOND);
    // The instance stands still over its deadline; meanwhile the store renews.
    let deadline = tenure.deadline();
    bench.script.always("renew", Fault::Reject(ErrorKind::Unavailable));
    bench.run_for(deadline.since(bench.world.now()) - MILLI);
    bench.script.heal("renew");
    bench.script.next("renew", Fault::Delay(100 * MILLI));
    bench.run_for(20 * SECOND);
    assert_eq!(tenure.loss(), Some(Loss::Deadline));
}

#[test]
fn what_the_store_says_is_lost_is_over_and_the_others_are_not() {
    let bench = Bench::new();
    let (lost, kept) = (bench.tenure("lost"), bench.tenure("kept"));
    *bench.store.answer.lock().unwrap() = Some((LeaseKey::new("lost"), Renewal::Lost));
    let began = bench.world.now();
    let (loss, at) = bench.until_over(&lost);
    assert_eq!(loss, Loss::Taken);
    assert!(at <= began + bench.settings.renew_every + bench.settings.tick(), "with the next renewal");
    bench.run_for(30 * SECOND);
    assert_eq!(kept.loss(), None);
}

#[test]
fn what_the_store_could_not_tell_is_not_lost_until_the_deadline() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    bench.run_for(2 * TTL);
    *bench.store.answer.lock().unwrap() = Some((LeaseKey::new("orders"), Renewal::Unknown));
    let deadline = tenure.deadline();
    bench.run_for(deadline.since(bench.world.now()) - MILLI);
    assert_eq!(tenure.loss(), None);
    let (loss, _) = bench.until_over(&tenure);
    assert_eq!(loss, Loss::Deadline);
}

#[test]
fn a_call_that_does_not_end_gives_up_the_watch() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    let call_progress = tenure.progress().call_progress("dispatcher");
    let began = bench.world.now();
    // A thread that is blocked: the call is marked, and nobody polls it.
    let _stuck = tenure.call(&call_progress, 2 * SECOND);
    let (loss, at) = bench.until_over(&tenure);
    assert_eq!(loss, Loss::Stalled);
    let due = began + 2 * SECOND + bench.settings.stall_grace;
    assert!(at > due && at <= due + 2 * bench.settings.tick());
    let before = bench.store.rounds.lock().unwrap().len();
    bench.run_for(4 * TTL);
    assert_eq!(bench.store.rounds.lock().unwrap().len(), before, "it is not renewed any more");
}

#[test]
fn waiting_is_progress_however_long() {
    let bench = Bench::new();
    let tenure = bench.tenure("orders");
    let call_progress = tenure.progress().call_progress("reader");
    drop(tenure.call(&call_progress, SECOND));
    bench.world.block_on(tenure.sleep(600 * SECOND)).unwrap();
    assert_eq!(tenure.loss(), None);
}

#[test]
fn what_is_removed_is_renewed_no_more() {
    let bench = Bench::new();
    let (removed, kept) = (bench.tenure("removed"), bench.tenure("kept"));
    bench.run_for(10 * SECOND);
    bench.keeper.remove(removed.grant().tenure);
    bench.store.rounds.lock().unwrap().clear();
    bench.run_for(10 * SECOND);
    assert!(bench.store.rounds.lock().unwrap().iter().all(|leases| *leases == 1));
    assert_eq!((removed.loss(), kept.loss()), (Some(Loss::Deadline), None));
}
