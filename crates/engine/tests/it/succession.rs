//! Who is next: after a hand-over, a pause or a move nobody waits for anybody who has had the watch.

use watchkeeper_core::memory::Log;
use watchkeeper_core::{Epoch, ErrorKind, Grade};
use watchkeeper_engine::checkpoint::operator::{Back, Move};
use watchkeeper_testkit::faults::Fault;

use crate::support::*;

/// What a takeover may take that waits for nobody.
const AT_ONCE: std::time::Duration = std::time::Duration::from_millis(300);

/// `a` on watch, and `b` standing by; one change is committed.
fn pair(harness: &Harness) -> (TestInstance, TestInstance) {
    let a = harness.instance("a").grade(Grade::Fenced).start();
    harness.until("a has the watch", || a.is_running());
    let b = harness.instance("b").grade(Grade::Fenced).start();
    harness.append(&["a"]);
    harness.run_for(6 * SECOND);
    (a, b)
}

/// As `StreamOperator::hand_over` asks for it.
fn hand_over(harness: &Harness, to: Option<&str>) {
    let epoch = harness.holder().map(|(_, epoch)| epoch);
    harness.want(|control| {
        if let Some(to) = to {
            control.preferred = Some(to.to_owned());
        }
        control.hand_over = control.hand_over.max(epoch);
    });
}

/// How long it takes until somebody has the watch under a newer epoch than `before`.
fn vacancy(harness: &Harness, before: Epoch) -> std::time::Duration {
    let began = harness.now();
    harness.until("somebody has the watch", || harness.holder().is_some_and(|(_, epoch)| epoch > before));
    harness.now().since(began)
}

#[test]
fn a_crash_after_a_hand_over_is_relieved_as_fast_as_any() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    hand_over(&harness, Some("b"));
    harness.until("b has the watch", || b.is_running());
    harness.run_for(3 * TTL);
    b.node.kill();
    let took = vacancy(&harness, Epoch(2));
    assert!(took < TTL + SECOND, "its lease and the preference were waited for: {took:?}");
    harness.until("a has the watch", || a.is_running());
}

#[test]
fn an_instance_that_starts_after_a_hand_over_does_not_wait_for_the_preferred_one_either() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    hand_over(&harness, Some("b"));
    harness.until("b has the watch", || b.is_running());
    a.stop(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    b.node.kill();
    let took = vacancy(&harness, Epoch(2));
    assert!(took < TTL + SECOND, "{took:?}");
    harness.until("c has the watch", || c.is_running());
}

#[test]
fn a_preferred_instance_that_does_not_come_is_waited_for_once() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    c.faults.leases.always("holders", Fault::Reject(ErrorKind::Unavailable));
    harness.run_for(6 * SECOND);
    hand_over(&harness, Some("c"));
    let took = vacancy(&harness, Epoch(1));
    assert!(took >= TTL && took < TTL + SECOND, "{took:?}");
    harness.run_for(6 * SECOND);
    let holder = harness.holder().expect("it was taken").0;
    let dies = if holder == "a" { &a } else { &b };
    dies.node.kill();
    let took = vacancy(&harness, Epoch(2));
    assert!(took < TTL + SECOND, "{took:?}");
}

#[test]
fn a_preference_without_a_hand_over_is_for_the_next_takeover() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    harness.want(|control| control.preferred = Some("c".to_owned()));
    harness.run_for(6 * SECOND);
    a.stop(&harness);
    harness.until("c has the watch", || c.is_running());
    harness.run_for(6 * SECOND);
    c.node.kill();
    let took = vacancy(&harness, Epoch(2));
    assert!(took < TTL + SECOND, "{took:?}");
    harness.until("b has the watch", || b.is_running());
}

#[test]
fn a_second_hand_over_is_as_fast_as_the_first() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    hand_over(&harness, Some("b"));
    harness.until("b has the watch", || b.is_running());
    harness.run_for(TTL);
    hand_over(&harness, None);
    let took = vacancy(&harness, Epoch(2));
    assert!(took < AT_ONCE, "{took:?}");
    harness.until("a has the watch", || a.is_running());
    harness.run_for(TTL);
    hand_over(&harness, Some("b"));
    let took = vacancy(&harness, Epoch(3));
    assert!(took < AT_ONCE, "{took:?}");
    harness.until("b has the watch", || b.is_running());
}

#[test]
fn a_stream_that_is_resumed_after_a_hand_over_is_taken_at_once() {
    let harness = Harness::new();
    let (_a, b) = pair(&harness);
    hand_over(&harness, Some("b"));
    harness.until("b has the watch", || b.is_running());
    harness.want(|control| control.pause());
    harness.until("it is left", || harness.holder().is_none());
    harness.run_for(SECOND);
    harness.want(|control| control.unpause());
    let took = vacancy(&harness, Epoch(2));
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn whoever_left_for_a_pause_takes_the_resumed_stream_at_once_if_nobody_else_does() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    b.faults.leases.always("holders", Fault::Reject(ErrorKind::Unavailable));
    harness.want(|control| control.pause());
    harness.until("it is left", || harness.holder().is_none());
    harness.run_for(SECOND);
    harness.want(|control| control.unpause());
    let took = vacancy(&harness, Epoch(1));
    assert!(took < AT_ONCE, "{took:?}");
    harness.until("a has the watch", || a.is_running());
}

#[test]
fn a_stream_that_was_moved_is_taken_at_once() {
    let harness = Harness::new();
    let (_a, b) = pair(&harness);
    hand_over(&harness, Some("b"));
    harness.until("b has the watch", || b.is_running());
    harness.run_for(SECOND);
    let to = harness.checkpoint().and_then(|checkpoint| checkpoint.position).expect("a change is committed");
    let report = harness.perform(Move::Set(to));
    let took = vacancy(&harness, report.epoch);
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_move_that_is_impossible_is_refused_before_the_stream_is_paused() {
    let harness = Harness::new();
    let (_a, b) = pair(&harness);
    hand_over(&harness, Some("b"));
    harness.until("b has the watch", || b.is_running());
    harness.append_many(3);
    harness.until("it is committed", || harness.committed() == 4);
    let before = (harness.holder(), harness.control());
    let rewind = |steps| Move::Rewind(Back::Steps(steps));
    // Nothing is lost that a gap could be accepted for.
    let gap = Move::AcceptGap { to: Log::position(4, None), cause: "by mistake".to_owned(), leaves_snapshot: false };
    let cases = [
        (harness.log.clone(), rewind(100_000), ErrorKind::Config),
        (harness.log.clone(), gap, ErrorKind::Config),
        (Log::new("another log"), rewind(1), ErrorKind::PositionLost),
    ];
    for (source, requested, expected) in cases {
        let error = harness.try_move(&source, requested.clone()).expect_err("nobody can do that");
        harness.run_for(SECOND);
        assert_eq!((harness.holder(), harness.control()), before, "{requested:?}: the holder has left for nothing");
        assert_eq!(error.kind(), expected, "{requested:?}: {error}");
    }
}

#[test]
fn a_rewind_of_a_stream_that_never_ran_leaves_nothing_behind() {
    let harness = Harness::new();
    let error =
        harness.try_move(&harness.log, Move::Rewind(Back::Steps(1))).expect_err("there is nothing to go back from");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!((harness.control(), harness.holder(), harness.checkpoint()), (Default::default(), None, None));
}

#[test]
fn a_rewind_into_what_the_log_has_pruned_halts_the_stream_if_the_log_cannot_say_so_before() {
    let harness = Harness::new();
    let (a, b) = pair(&harness);
    harness.want(|control| control.pause());
    harness.until("it is left", || harness.holder().is_none());
    harness.want(|control| control.unpause());
    harness.append(&["b"]);
    harness.until("it is committed", || harness.committed() == 2);
    a.stop(&harness);
    b.stop(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    harness.until("c has the watch", || c.is_running());
    // The log in memory prunes what is acknowledged, and verifies only whose position it is given.
    assert_eq!(harness.log.pruned(), 2);
    harness.perform(Move::Rewind(Back::Steps(1)));
    harness.until("it is halted", || c.status().halted);
    let halted = harness.checkpoint().and_then(|checkpoint| checkpoint.halted).expect("the checkpoint says so");
    assert_eq!(halted.code, "WK-POSITION-LOST", "{}", halted.cause);
}
