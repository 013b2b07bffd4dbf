//! Elections without a stream.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use watchkeeper_core::memory::Leases;
use watchkeeper_core::{Epoch, ErrorKind, LeaseKey, NoPeers};
use watchkeeper_engine::election::Campaign;
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::LeaseSettings;
use watchkeeper_engine::tenure::Loss;
use watchkeeper_testkit::World;
use watchkeeper_testkit::faults::{Fault, FaultyLeases, Script};

use crate::support::*;

struct Poll {
    world: World,
    leases: Leases,
}

impl Poll {
    fn new() -> Self {
        let world = World::new(5).limited_to(600 * SECOND);
        Self { leases: Leases::new(world.clock()), world }
    }

    fn campaign(&self, name: &str) -> (Campaign, Script) {
        let script = Script::new().served_by(self.world.node("server").spawner());
        let leases = Arc::new(FaultyLeases::new(Arc::new(self.leases.clone()), script.clone()));
        let spawn = self.world.node(name).spawner();
        let seams = Seams { clock: self.world.clock(), spawn, peers: Arc::new(NoPeers), entropy: self.world.entropy() };
        let campaign = Campaign::new(seams, leases, LeaseSettings::new(TTL), LeaseKey::new("leader"), name);
        (self.block_on(campaign).expect("good settings"), script)
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.world.block_on(future).expect("it comes to an end")
    }

    fn run_for(&self, duration: Duration) {
        self.world.run_for(duration).unwrap();
    }
}

#[test]
fn one_wins_and_leads_for_as_long_as_it_is_renewed() {
    let poll = Poll::new();
    let ((a, _), (b, _)) = (poll.campaign("a"), poll.campaign("b"));
    let term = poll.block_on(a.win());
    let mut other = Box::pin(b.win());
    for _ in 0..20 {
        poll.run_for(3 * SECOND);
        assert!(term.is_leader() && (&mut other).now_or_never().is_none());
    }
    assert_eq!(term.epoch(), Epoch(1));
    assert!(term.tenure().cx().check().is_ok());
}

#[test]
fn who_resigns_wakes_the_next_at_once_and_epochs_grow() {
    let poll = Poll::new();
    let ((a, _), (b, _)) = (poll.campaign("a"), poll.campaign("b"));
    let term = poll.block_on(a.win());
    let standing = async {
        let term = b.win().await;
        (term.epoch(), poll.world.now())
    };
    let resigning = async {
        poll.world.cx().sleep(20 * SECOND).await;
        let tenure = Arc::clone(term.tenure());
        term.resign().await.unwrap();
        (tenure, poll.world.now())
    };
    let ((epoch, won), (tenure, resigned)) = poll.block_on(async { tokio::join!(standing, resigning) });
    assert_eq!((epoch, tenure.loss()), (Epoch(2), Some(Loss::Released)));
    assert!(won.since(resigned) < 10 * MILLI, "{:?}", won.since(resigned));
}

#[test]
fn a_term_that_cannot_be_renewed_is_lost_before_the_next_begins() {
    let poll = Poll::new();
    let ((a, script), (b, _)) = (poll.campaign("a"), poll.campaign("b"));
    let term = poll.block_on(a.win());
    poll.run_for(10 * SECOND);
    script.always("renew", Fault::Reject(ErrorKind::Unavailable));
    let (loss, lost, next, won) = poll.block_on(async {
        let lost = async { (term.lost().await, poll.world.now()) };
        let won = async { (b.win().await.epoch(), poll.world.now()) };
        let ((loss, lost), (next, won)) = tokio::join!(lost, won);
        (loss, lost, next, won)
    });
    assert_eq!((loss, next, term.is_leader()), (Loss::Deadline, Epoch(2), false));
    assert!(lost < won, "no moment has two leaders");
}

#[test]
fn a_term_that_was_taken_is_lost_with_the_next_renewal() {
    let poll = Poll::new();
    let (a, _) = poll.campaign("a");
    let term = poll.block_on(a.win());
    poll.leases.forget();
    let began = poll.world.now();
    assert_eq!(poll.block_on(term.lost()), Loss::Taken);
    assert!(poll.world.now().since(began) <= TTL / 2);
    drop(term);
    let again = poll.block_on(a.win());
    assert!(again.is_leader());
}

#[test]
fn a_term_outlives_its_campaign_and_is_still_renewed() {
    let poll = Poll::new();
    let (a, _) = poll.campaign("a");
    let term = poll.block_on(a.win());
    drop(a);
    poll.run_for(20 * SECOND);
    assert!(term.is_leader(), "it is renewed for as long as it is held");
    fn spawnable<T: Send + 'static>(_: &T) {}
    spawnable(&term);
}

#[test]
fn a_term_that_is_dropped_expires() {
    let poll = Poll::new();
    let ((a, _), (b, _)) = (poll.campaign("a"), poll.campaign("b"));
    let term = poll.block_on(a.win());
    poll.run_for(20 * SECOND);
    let tenure = Arc::clone(term.tenure());
    drop(term);
    assert!(tenure.loss().is_some());
    let began = poll.world.now();
    let next = poll.block_on(b.win());
    let waited = poll.world.now().since(began);
    assert!(waited > TTL / 2 && waited <= TTL + 10 * MILLI, "{waited:?}");
    assert_eq!(next.epoch(), Epoch(2));
}

#[test]
fn a_win_whose_answer_was_lost_is_the_same_term() {
    let poll = Poll::new();
    let (a, script) = poll.campaign("a");
    script.next("try_acquire", Fault::Lose);
    script.next("try_acquire", Fault::Reject(ErrorKind::Unavailable));
    let term = poll.block_on(a.win());
    assert_eq!((term.epoch(), script.calls("try_acquire")), (Epoch(1), 3));
    poll.run_for(60 * SECOND);
    assert!(term.is_leader());
}

#[test]
fn epochs_grow_with_every_term_also_of_the_same_candidate() {
    let poll = Poll::new();
    let (a, _) = poll.campaign("a");
    for epoch in 1..=5 {
        let term = poll.block_on(a.win());
        assert_eq!(term.epoch(), Epoch(epoch));
        poll.block_on(term.resign()).unwrap();
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let poll = Poll::new();
    let spawn = poll.world.node("a").spawner();
    let seams = Seams { clock: poll.world.clock(), spawn, peers: Arc::new(NoPeers), entropy: poll.world.entropy() };
    let settings = LeaseSettings { margin: Duration::ZERO, ..LeaseSettings::new(TTL) };
    let refused = Campaign::new(seams, Arc::new(poll.leases.clone()), settings, LeaseKey::new("leader"), "a");
    assert_eq!(poll.block_on(refused).unwrap_err().kind(), ErrorKind::Config);
}
