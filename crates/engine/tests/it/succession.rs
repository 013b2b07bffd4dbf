//! Who is next: after a hand-over, a pause or a move nobody waits for anybody who has had the watch.

use watchkeeper_core::memory::Log;
use watchkeeper_core::{Epoch, ErrorKind, Grade};
use watchkeeper_engine::checkpoint::operator::{Back, Move};
use watchkeeper_testkit::faults::Fault;

use crate::support::*;

/// What a takeover may take that waits for nobody.
const AT_ONCE: std::time::Duration = std::time::Duration::from_millis(300);

/// `a` on watch, and `b` standing by; one change is committed.
fn pair(rig: &Rig) -> (Actor, Actor) {
    let a = rig.instance("a").grade(Grade::Fenced).start();
    rig.until("a has the watch", || a.is_running());
    let b = rig.instance("b").grade(Grade::Fenced).start();
    rig.append(&["a"]);
    rig.run_for(6 * SECOND);
    (a, b)
}

/// As `StreamOperator::hand_over` asks for it.
fn hand_over(rig: &Rig, to: Option<&str>) {
    let epoch = rig.holder().map(|(_, epoch)| epoch);
    rig.want(|control| {
        if let Some(to) = to {
            control.preferred = Some(to.to_owned());
        }
        control.hand_over = control.hand_over.max(epoch);
    });
}

/// How long it takes until somebody has the watch under a newer epoch than `before`.
fn vacancy(rig: &Rig, before: Epoch) -> std::time::Duration {
    let began = rig.now();
    rig.until("somebody has the watch", || rig.holder().is_some_and(|(_, epoch)| epoch > before));
    rig.now().since(began)
}

#[test]
fn a_crash_after_a_hand_over_is_relieved_as_fast_as_any() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    hand_over(&rig, Some("b"));
    rig.until("b has the watch", || b.is_running());
    rig.run_for(3 * TTL);
    b.node.kill();
    let took = vacancy(&rig, Epoch(2));
    assert!(took < TTL + SECOND, "its lease and the preference were waited for: {took:?}");
    rig.until("a has the watch", || a.is_running());
}

#[test]
fn an_instance_that_starts_after_a_hand_over_does_not_wait_for_the_preferred_one_either() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    hand_over(&rig, Some("b"));
    rig.until("b has the watch", || b.is_running());
    a.stop(&rig);
    let c = rig.instance("c").grade(Grade::Fenced).start();
    rig.run_for(6 * SECOND);
    b.node.kill();
    let took = vacancy(&rig, Epoch(2));
    assert!(took < TTL + SECOND, "{took:?}");
    rig.until("c has the watch", || c.is_running());
}

#[test]
fn a_preferred_instance_that_does_not_come_is_waited_for_once() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    let c = rig.instance("c").grade(Grade::Fenced).start();
    c.faults.leases.always("holders", Fault::Reject(ErrorKind::Unavailable));
    rig.run_for(6 * SECOND);
    hand_over(&rig, Some("c"));
    let took = vacancy(&rig, Epoch(1));
    assert!(took >= TTL && took < TTL + SECOND, "{took:?}");
    rig.run_for(6 * SECOND);
    let holder = rig.holder().expect("it was taken").0;
    let dies = if holder == "a" { &a } else { &b };
    dies.node.kill();
    let took = vacancy(&rig, Epoch(2));
    assert!(took < TTL + SECOND, "{took:?}");
}

#[test]
fn a_preference_without_a_hand_over_is_for_the_next_takeover() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    let c = rig.instance("c").grade(Grade::Fenced).start();
    rig.run_for(6 * SECOND);
    rig.want(|control| control.preferred = Some("c".to_owned()));
    rig.run_for(6 * SECOND);
    a.stop(&rig);
    rig.until("c has the watch", || c.is_running());
    rig.run_for(6 * SECOND);
    c.node.kill();
    let took = vacancy(&rig, Epoch(2));
    assert!(took < TTL + SECOND, "{took:?}");
    rig.until("b has the watch", || b.is_running());
}

#[test]
fn a_second_hand_over_is_as_fast_as_the_first() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    hand_over(&rig, Some("b"));
    rig.until("b has the watch", || b.is_running());
    rig.run_for(TTL);
    hand_over(&rig, None);
    let took = vacancy(&rig, Epoch(2));
    assert!(took < AT_ONCE, "{took:?}");
    rig.until("a has the watch", || a.is_running());
    rig.run_for(TTL);
    hand_over(&rig, Some("b"));
    let took = vacancy(&rig, Epoch(3));
    assert!(took < AT_ONCE, "{took:?}");
    rig.until("b has the watch", || b.is_running());
}

#[test]
fn a_stream_that_is_resumed_after_a_hand_over_is_taken_at_once() {
    let rig = Rig::new();
    let (_a, b) = pair(&rig);
    hand_over(&rig, Some("b"));
    rig.until("b has the watch", || b.is_running());
    rig.want(|control| control.pause());
    rig.until("it is left", || rig.holder().is_none());
    rig.run_for(SECOND);
    rig.want(|control| control.unpause());
    let took = vacancy(&rig, Epoch(2));
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn whoever_left_for_a_pause_takes_the_resumed_stream_at_once_if_nobody_else_does() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    b.faults.leases.always("holders", Fault::Reject(ErrorKind::Unavailable));
    rig.want(|control| control.pause());
    rig.until("it is left", || rig.holder().is_none());
    rig.run_for(SECOND);
    rig.want(|control| control.unpause());
    let took = vacancy(&rig, Epoch(1));
    assert!(took < AT_ONCE, "{took:?}");
    rig.until("a has the watch", || a.is_running());
}

#[test]
fn a_stream_that_was_moved_is_taken_at_once() {
    let rig = Rig::new();
    let (_a, b) = pair(&rig);
    hand_over(&rig, Some("b"));
    rig.until("b has the watch", || b.is_running());
    rig.run_for(SECOND);
    let to = rig.checkpoint().and_then(|checkpoint| checkpoint.position).expect("a change is committed");
    let report = rig.perform(Move::Set(to));
    let took = vacancy(&rig, report.epoch);
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_move_that_is_impossible_is_refused_before_the_stream_is_paused() {
    let rig = Rig::new();
    let (_a, b) = pair(&rig);
    hand_over(&rig, Some("b"));
    rig.until("b has the watch", || b.is_running());
    rig.append_many(3);
    rig.until("it is committed", || rig.committed() == 4);
    let before = (rig.holder(), rig.control());
    let rewind = |steps| Move::Rewind(Back::Steps(steps));
    // Nothing is lost that a gap could be accepted for.
    let gap = Move::AcceptGap { to: Log::position(4, None), cause: "by mistake".to_owned(), leaves_snapshot: false };
    let cases = [
        (rig.log.clone(), rewind(100_000), ErrorKind::Config),
        (rig.log.clone(), gap, ErrorKind::Config),
        (Log::new("another log"), rewind(1), ErrorKind::PositionLost),
    ];
    for (source, wish, expected) in cases {
        let error = rig.try_move(&source, wish.clone()).expect_err("nobody can do that");
        rig.run_for(SECOND);
        assert_eq!((rig.holder(), rig.control()), before, "{wish:?}: the holder has left for nothing");
        assert_eq!(error.kind(), expected, "{wish:?}: {error}");
    }
}

#[test]
fn a_rewind_of_a_stream_that_never_ran_leaves_nothing_behind() {
    let rig = Rig::new();
    let error = rig.try_move(&rig.log, Move::Rewind(Back::Steps(1))).expect_err("there is nothing to go back from");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!((rig.control(), rig.holder(), rig.checkpoint()), (Default::default(), None, None));
}

#[test]
fn a_rewind_into_what_the_log_has_pruned_halts_the_stream_if_the_log_cannot_say_so_before() {
    let rig = Rig::new();
    let (a, b) = pair(&rig);
    rig.want(|control| control.pause());
    rig.until("it is left", || rig.holder().is_none());
    rig.want(|control| control.unpause());
    rig.append(&["b"]);
    rig.until("it is committed", || rig.committed() == 2);
    a.stop(&rig);
    b.stop(&rig);
    let c = rig.instance("c").grade(Grade::Fenced).start();
    rig.until("c has the watch", || c.is_running());
    // The log in memory prunes what is acknowledged, and verifies only whose position it is given.
    assert_eq!(rig.log.pruned(), 2);
    rig.perform(Move::Rewind(Back::Steps(1)));
    rig.until("it is halted", || c.status().halted);
    let halted = rig.checkpoint().and_then(|checkpoint| checkpoint.halted).expect("the checkpoint says so");
    assert_eq!(halted.code, "WK-POSITION-LOST", "{}", halted.cause);
}
