//! What a store that does not answer for a moment, or a bar, costs the next takeover: little.

use std::time::Duration;

use watchkeeper_core::{Epoch, ErrorKind, Grade, Verdict};
use watchkeeper_engine::listener::ListenerState::Connecting;
use watchkeeper_testkit::faults::Fault;

use crate::support::*;

const REFUSED: Fault = Fault::Reject(ErrorKind::Unavailable);

/// `a` on watch, and `b` standing by.
fn pair(harness: &Harness) -> (TestInstance, TestInstance) {
    let a = harness.instance("a").grade(Grade::Fenced).start();
    harness.until("a has the watch", || a.is_running());
    let b = harness.instance("b").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    (a, b)
}

/// How long it takes until `b` has the watch after `a` was told to leave.
fn takeover(harness: &Harness, a: &TestInstance, b: &TestInstance) -> Duration {
    let began = harness.now();
    a.running.shutdown();
    harness.until("b has the watch", || b.is_running());
    harness.now().since(began)
}

#[test]
fn a_look_or_an_ask_that_is_not_answered_is_repeated_soon() {
    for call in ["holders", "try_acquire"] {
        for fault in [REFUSED, Fault::Lose] {
            let harness = Harness::new();
            let (a, b) = pair(&harness);
            b.faults.leases.next(call, fault.clone());
            let took = takeover(&harness, &a, &b);
            assert_eq!(b.faults.leases.pending(call), 0, "{call}");
            assert!(took < 100 * MILLI, "{call}, {fault:?}: {took:?}");
        }
    }
}

#[test]
fn a_store_that_is_down_is_asked_less_and_less_often() {
    let harness = Harness::new();
    let (_a, b) = pair(&harness);
    b.faults.leases.always("holders", REFUSED);
    let before = b.faults.leases.calls("holders");
    harness.run_for(60 * SECOND);
    let looks = b.faults.leases.calls("holders") - before;
    assert!((50..=140).contains(&looks), "{looks} looks in a minute");
}

#[test]
fn a_standby_that_could_not_listen_listens_again_soon() {
    let harness = Harness::new();
    let a = harness.instance("a").grade(Grade::Fenced).start();
    harness.until("a has the watch", || a.is_running());
    let plan = harness.instance("b").grade(Grade::Fenced);
    plan.faults.leases.times("wakeups", 3, &REFUSED);
    let b = plan.start();
    harness.run_for(SECOND);
    assert_eq!(b.faults.leases.pending("wakeups"), 0, "it has tried four times within a second");
    let took = takeover(&harness, &a, &b);
    assert!(took < 10 * MILLI, "it hears of the release: {took:?}");
}

#[test]
fn a_release_that_is_not_answered_is_repeated() {
    for fault in [REFUSED, Fault::Reject(ErrorKind::Unknown), Fault::Lose] {
        let harness = Harness::new();
        let (a, b) = pair(&harness);
        a.faults.leases.next("release", fault.clone());
        let took = takeover(&harness, &a, &b);
        assert!(took < 200 * MILLI, "{fault:?}: {took:?}");
        harness.run_for(TTL);
        assert_eq!(b.status().epoch, Some(Epoch(2)), "the second release takes nothing from the next holder");
    }
}

#[test]
fn a_store_that_does_not_take_a_release_does_not_hold_up_the_end() {
    let harness = Harness::new();
    let (mut a, b) = pair(&harness);
    a.faults.leases.always("release", REFUSED);
    let began = harness.now();
    a.running.shutdown();
    harness.block_on(a.running.join()).expect("it ends in order");
    assert!(harness.now().since(began) < SECOND, "{:?}", harness.now().since(began));
    assert_eq!(a.faults.leases.calls("release"), 3);
    harness.until("b has the watch when the lease expires", || b.is_running());
}

/// `a` barred for `bar`, since the source is denied to it, and `b`, which has relieved it.
fn barred(harness: &Harness, bar: Duration) -> (TestInstance, TestInstance) {
    let a = harness.instance("a").grade(Grade::Fenced).set(|it| it.bar = bar).start();
    harness.until("a has the watch", || a.is_running());
    let b = harness.instance("b").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Denied));
    harness.append(&["a"]);
    harness.until("a is barred", || a.state() == Connecting);
    (a, b)
}

#[test]
fn a_bar_ends_when_it_ends() {
    // Whatever the rhythm of the looks.
    for bar in [7_100, 7_300, 7_500, 7_700, 7_900].map(|millis| millis * MILLI) {
        let harness = Harness::new();
        let (a, b) = barred(&harness, bar);
        let since = harness.now();
        harness.until("b has the watch", || b.is_running());
        // It stays in the registry, so `a` leaves the stream to it for as long as the bar lasts.
        b.node.kill();
        harness.until("a has the watch again", || a.is_running());
        let away = harness.now().since(since);
        assert!(away >= bar - MILLI && away < bar + 10 * MILLI, "{away:?} instead of {bar:?}");
    }
}

#[test]
fn whoever_is_barred_watches_the_holder_and_relieves_it_when_the_bar_ends() {
    let harness = Harness::new();
    let bar = 2 * SECOND;
    // It counts as healthy, so that the stream could be left to it, and never takes anything.
    let c = harness.instance("c").grade(Grade::Fenced);
    c.faults.leases.always("holders", REFUSED);
    let _c = c.start();
    let (a, b) = barred(&harness, bar);
    let since = harness.now();
    harness.until("b has the watch", || b.is_running());
    harness.until("b is watched", || harness.town.watches("b") == 1);
    assert!(harness.now().since(since) < 100 * MILLI, "{:?}", harness.now().since(since));
    harness.run_for(SECOND);
    b.node.kill();
    harness.town.judge("b", Verdict::Dead);
    harness.until("a has the watch again", || a.is_running());
    let away = harness.now().since(since);
    assert!(away >= bar - MILLI && away < bar + 10 * MILLI, "neither before nor long after: {away:?}");
}

#[test]
fn a_desk_that_could_not_listen_hears_soon_again_what_people_want() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    a.faults.records.times("changed", 3, &REFUSED);
    // Something is written, so that it looks and waits again.
    harness.want(|control| control.preferred = None);
    harness.until("the faults are over", || a.faults.records.pending("changed") == 0);
    harness.run_for(500 * MILLI);
    let began = harness.now();
    harness.want(|control| control.hand_over = Some(Epoch(1)));
    harness.until("b has the watch", || b.is_running());
    assert!(harness.now().since(began) < 50 * MILLI, "{:?}", harness.now().since(began));
}
