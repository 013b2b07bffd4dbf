//! A target that is away for everybody: whoever could go on does so soon after it is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use watchkeeper_core::{Epoch, ErrorKind, Grade, Sink, Verdict};
use watchkeeper_engine::delivery::breaker::BreakerSettings;
use watchkeeper_engine::delivery::{ObserverExecutor, Operations, Routes, handler};
use watchkeeper_engine::group::report::StreamActivity;
use watchkeeper_engine::listener::ListenerState::Connecting;
use watchkeeper_testkit::faults::Fault;

use crate::connect::report;
use crate::support::*;

const REFUSED: Fault = Fault::Reject(ErrorKind::Unavailable);

/// Handlers that write to a database, which does not answer while `is_away`.
fn writes_unless(is_away: &Arc<AtomicBool>) -> Arc<dyn Sink> {
    let is_away = Arc::clone(is_away);
    let writes = handler(move |_| {
        let is_away = is_away.load(Ordering::Relaxed);
        async move { if is_away { Err(std::io::Error::other("connection refused").into()) } else { Ok(()) } }
    });
    Arc::new(ObserverExecutor::new(Routes::new().on("*", Operations::ANY, writes)).sink())
}

#[test]
fn a_holder_whose_probe_delivers_keeps_the_watch() {
    let harness = Harness::new();
    let a = harness.instance("a").grade(Grade::Idempotent).stream(|stream| stream.concurrency = 2).start();
    harness.until("a has the watch", || a.is_running());
    let _b = harness.instance("b").grade(Grade::Idempotent).start();
    harness.run_for(6 * SECOND);
    a.faults.sink.always("write", REFUSED);
    harness.append_many(20);
    harness.until("the breaker is open", || a.faults.sink.calls("write") >= 5);
    harness.run_for(9_500 * MILLI);
    // The target is back, and slow: the probe is under way while the other lane waits for longer than `give_up`.
    a.faults.sink.always("write", Fault::Delay(3 * SECOND));
    harness.until("all is committed", || harness.committed() == 20);
    assert_eq!(harness.holder(), Some(("a".to_owned(), Epoch(1))), "it gave the watch up while its probe delivered");
}

#[test]
fn a_checkpoint_store_that_does_not_answer_a_new_holder_is_reported_as_what_does_not_work() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    let faults = plan.faults.clone();
    faults.checkpoints.always("claim", REFUSED);
    let a = plan.start();
    harness.append(&["x"]);
    harness.run_for(10 * SECOND);
    assert!(harness.holder().is_some(), "it has the lease");
    let reported = report(&harness, "a", "orders");
    let trouble = reported.trouble.as_ref().expect("it says what does not work");
    assert_eq!(reported.doing, StreamActivity::Failing);
    assert!(trouble.error.contains("checkpoint store") && trouble.attempts > 2, "{trouble:?}");
    assert!(reported.not_delivering_millis.is_some_and(|millis| millis > 8_000), "{reported:?}");
    faults.checkpoints.heal("claim");
    harness.until("it goes on", || harness.committed() == 1);
    harness.run_for(SECOND);
    let reported = report(&harness, "a", "orders");
    assert_eq!(
        (reported.doing, reported.trouble, reported.not_delivering_millis),
        (StreamActivity::Running, None, None)
    );
    a.stop(&harness);
}

/// How long it takes until a change is committed after the target of both instances was away for `away`, and the longest time for
/// which nobody had the watch meanwhile.
fn outage_of_everybody(away: Duration) -> (Duration, Duration) {
    let (harness, is_away) = (Harness::new(), Arc::new(AtomicBool::new(false)));
    let a = harness.instance("a").into_sink(writes_unless(&is_away)).start();
    harness.until("a has the watch", || a.is_running());
    let _b = harness.instance("b").into_sink(writes_unless(&is_away)).start();
    harness.run_for(6 * SECOND);
    is_away.store(true, Ordering::Relaxed);
    harness.append_many(20);
    let (until, mut vacant, mut longest) = (harness.now() + away, Duration::ZERO, Duration::ZERO);
    let step = 50 * MILLI;
    while harness.now() < until {
        harness.run_for(step);
        vacant = if harness.holder().is_some() { Duration::ZERO } else { vacant + step };
        longest = longest.max(vacant);
    }
    is_away.store(false, Ordering::Relaxed);
    let began = harness.now();
    harness.until("all is committed", || harness.committed() == 20);
    (harness.now().since(began), longest)
}

#[test]
fn a_target_that_is_back_for_everybody_gets_its_changes_soon() {
    let (took, vacant) = outage_of_everybody(30 * SECOND);
    assert!(took < 10 * SECOND && vacant < SECOND, "after {took:?}, and nobody had the watch for {vacant:?}");
    // After a long outage it takes as long as the breaker is open at most.
    for away in [50, 80, 140, 300] {
        let (took, vacant) = outage_of_everybody(away * SECOND);
        let waits = BreakerSettings::default().open_max + SECOND;
        assert!(took < waits && vacant < SECOND, "{away} s: {took:?}, and nobody had the watch for {vacant:?}");
    }
}

/// `a` barred, since the source was denied to it, and `b`, which has relieved it.
fn barred(harness: &Harness) -> (TestInstance, TestInstance) {
    let a = harness.instance("a").grade(Grade::Fenced).start();
    harness.until("a has the watch", || a.is_running());
    let b = harness.instance("b").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Denied));
    harness.append(&["a"]);
    harness.until("a is barred", || a.state() == Connecting);
    harness.until("b has the watch", || b.is_running());
    (a, b)
}

#[test]
fn of_instances_that_are_all_barred_the_one_that_was_barred_first_tries_again_first_and_soon() {
    let harness = Harness::new();
    let (a, b) = barred(&harness);
    harness.run_for(3 * SECOND);
    b.faults.source.next("next_batch", Fault::Reject(ErrorKind::Denied));
    harness.append(&["b"]);
    harness.until("b is barred", || b.state() == Connecting);
    let began = harness.now();
    harness.until("a has the watch again", || a.is_running());
    assert!(harness.now().since(began) < 500 * MILLI, "{:?}", harness.now().since(began));
    harness.until("all is committed", || harness.committed() == 2);
}

#[test]
fn instances_that_are_all_barred_again_and_again_try_ever_more_seldom() {
    let harness = Harness::new();
    let plans = ["a", "b"].map(|name| harness.instance(name));
    plans.iter().for_each(|plan| plan.faults.source.always("open", Fault::Reject(ErrorKind::Config)));
    let instances = plans.map(Plan::start);
    let opens = || instances.iter().map(|instance| instance.faults.source.calls("open")).sum::<u64>();
    harness.run_for(20 * SECOND);
    let soon = opens();
    assert!((4..=14).contains(&soon), "{soon} times in twenty seconds");
    harness.run_for(600 * SECOND);
    let later = opens() - soon;
    assert!((10..=40).contains(&later), "{later} times in ten minutes");
}

#[test]
fn a_bar_is_over_when_nobody_else_is_there_any_more() {
    let harness = Harness::new();
    let (a, b) = barred(&harness);
    harness.run_for(3 * SECOND);
    let began = harness.now();
    b.stop(&harness);
    harness.until("a has the watch again", || a.is_running());
    assert!(harness.now().since(began) < 500 * MILLI, "{:?}", harness.now().since(began));
}

#[test]
fn a_bar_is_over_at_once_when_the_only_other_instance_is_proved_dead() {
    let harness = Harness::new();
    let (a, b) = barred(&harness);
    harness.run_for(3 * SECOND);
    b.node.kill();
    harness.town.judge("b", Verdict::Dead);
    let began = harness.now();
    harness.until("a has the watch again", || a.is_running());
    assert!(harness.now().since(began) < 50 * MILLI, "{:?}", harness.now().since(began));
}

#[test]
fn a_bar_is_over_when_nobody_takes_the_watch() {
    let harness = Harness::new();
    let (a, b) = barred(&harness);
    // It stays in the registry, and counts as healthy for a minute.
    b.node.kill();
    let began = harness.now();
    harness.until("a has the watch again", || a.is_running());
    let waited = harness.now().since(began);
    assert!(
        waited >= TTL && waited < 2 * TTL + SECOND,
        "another instance may go first for a lease, not longer: {waited:?}"
    );
}
