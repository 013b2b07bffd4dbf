//! Standing by: what wakes it, whom it relieves, and what people want.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Epoch, ErrorKind, Grade, SinkProfile, Verdict};
use watchkeeper_engine::group::journal::Cause;
use watchkeeper_engine::listener::ListenerState::{Connecting, Running};
use watchkeeper_engine::settings::FastTakeover;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

/// `a` on watch with one change committed, and `b` standing by, both with this sink.
fn pair(harness: &Harness, profile: &SinkProfile, takeover: FastTakeover) -> (TestInstance, TestInstance) {
    let a = harness.instance("a").profile(profile.clone()).start();
    harness.append(&["first"]);
    harness.until("a has the watch", || harness.committed() == 1);
    let b = harness.instance("b").set(|it| it.takeover = takeover).profile(profile.clone()).start();
    harness.run_for(6 * SECOND);
    (a, b)
}

fn usual(harness: &Harness) -> (TestInstance, TestInstance) {
    pair(harness, &SinkProfile::new(Grade::Fenced, Duration::ZERO), FastTakeover::WhereSafe)
}

/// How long it takes until `instance` has the watch and works.
fn takeover(harness: &Harness, instance: &TestInstance) -> Duration {
    let began = harness.now();
    harness.append(&["next"]);
    harness.until("it is written", || instance.faults.sink.calls("write") > 0);
    harness.now().since(began)
}

#[test]
fn a_release_wakes_the_standby_at_once() {
    let harness = Harness::new();
    let (mut a, b) = usual(&harness);
    a.running.shutdown();
    let began = harness.now();
    harness.until("b has the watch", || b.is_running());
    assert!(harness.now().since(began) < 10 * MILLI, "{:?}", harness.now().since(began));
    harness.block_on(a.running.join()).unwrap();
}

#[test]
fn without_wake_ups_a_release_is_found_within_the_retry_floor() {
    let harness = Harness::new();
    let plan = harness.instance("b");
    plan.faults.leases.always("wakeups", Fault::Reject(ErrorKind::Unavailable));
    let a = harness.start("a");
    harness.until("a has the watch", || a.is_running());
    let b = plan.start();
    harness.run_for(6 * SECOND);
    a.running.shutdown();
    let began = harness.now();
    harness.until("b has the watch", || b.is_running());
    assert!(harness.now().since(began) <= SECOND, "{:?}", harness.now().since(began));
}

#[test]
fn one_that_fails_alone_tries_again_soon_at_first_and_then_ever_more_seldom() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.source.always("open", Fault::Reject(ErrorKind::Config));
    let a = plan.start();
    harness.append_many(3);
    harness.run_for(5 * SECOND);
    let soon = a.faults.source.calls("open");
    assert!((2..=4).contains(&soon), "{soon} times in five seconds");
    harness.run_for(3_600 * SECOND);
    let later = a.faults.source.calls("open") - soon;
    assert!((50..=75).contains(&later), "{later} times in an hour, where once a minute is meant");
    a.faults.source.heal("open");
    harness.until("it goes on", || harness.committed() == 3);
    // It has lasted longer than the last wait, so the next failure is met as the first one was.
    harness.run_for(120 * SECOND);
    let before = a.faults.source.calls("open");
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Config));
    harness.run_for(3 * SECOND);
    harness.append_many(1);
    harness.until("it goes on", || harness.committed() == 4);
    assert_eq!(a.faults.source.calls("open"), before + 1);
}

#[test]
fn one_whose_attempts_take_a_while_to_fail_tries_ever_more_seldom_too() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.source.always("open", Fault::Delay(2 * SECOND));
    plan.faults.source.always("next_batch", Fault::Reject(ErrorKind::Config));
    let a = plan.start();
    harness.append_many(3);
    harness.run_for(600 * SECOND);
    let tries = a.faults.source.calls("open");
    assert!((8..=18).contains(&tries), "{tries} times in ten minutes");
}

#[test]
fn a_standby_asks_for_nothing_that_is_held() {
    let harness = Harness::new();
    let (_a, b) = usual(&harness);
    let (asks, looks) = (b.faults.leases.calls("try_acquire"), b.faults.leases.calls("holders"));
    harness.run_for(60 * SECOND);
    assert_eq!((b.faults.leases.calls("try_acquire"), asks), (0, 0));
    let looks = b.faults.leases.calls("holders") - looks;
    assert!((50..=200).contains(&looks), "{looks} looks in a minute");
    assert_eq!(b.status().holder.as_deref(), Some("a"));
}

#[test]
fn a_holder_that_falls_silent_is_relieved_when_its_lease_expires() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    a.node.kill();
    let took = takeover(&harness, &b);
    // It may have renewed up to a third of the lease ago.
    assert!(took > TTL / 2 && took < TTL + 100 * MILLI, "{took:?}");
    assert_eq!(harness.journal()[1].cause, Cause::Expired);
}

#[test]
fn a_holder_that_is_proved_dead_is_relieved_at_once() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    a.node.kill();
    harness.town.judge("a", Verdict::Dead);
    let took = takeover(&harness, &b);
    assert!(took < 10 * MILLI, "{took:?}");
    assert_eq!(b.status().epoch, Some(Epoch(2)));
    let takeover = harness.journal().pop().unwrap();
    assert_eq!((takeover.cause, takeover.vacant_millis < 100), (Cause::Crashed, true));
}

#[test]
fn what_is_not_proved_waits_for_the_lease() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    a.node.kill();
    harness.town.judge("a", Verdict::Unproven);
    harness.run_for(TTL / 2);
    assert_eq!((b.state(), harness.holder()), (Connecting, Some(("a".to_owned(), Epoch(1)))));
    harness.until("b has the watch", || b.is_running());
    harness.run_for(SECOND);
    assert_eq!(harness.journal()[1].cause, Cause::Expired);
    assert!(harness.town.watches("a") > 1, "it was watched again after the first verdict");
}

#[test]
fn only_the_holder_that_is_proved_dead_is_broken() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    harness.run_for(SECOND);
    a.node.kill();
    b.node.pause();
    harness.until("c has the watch", || c.is_running());
    // Only now is b told that a, which it saw holding, is dead.
    harness.town.judge("a", Verdict::Dead);
    b.node.resume();
    harness.run_for(3 * TTL);
    assert_eq!((c.state(), b.state()), (Running, Connecting));
    assert_eq!(harness.holder(), Some(("c".to_owned(), Epoch(2))));
}

#[test]
fn one_watch_serves_all_streams_of_a_process() {
    let harness = Harness::new();
    let a = harness.instance("a").grade(Grade::Fenced).and_stream("users").and_stream("items").start();
    harness.until("a has all", || ["orders", "users", "items"].iter().all(|name| a.status_of(name).state == Running));
    let b = harness.instance("b").grade(Grade::Fenced).and_stream("users").and_stream("items").start();
    harness.run_for(30 * SECOND);
    assert_eq!(harness.town.watches("a"), 1);
    a.node.kill();
    harness.town.judge("a", Verdict::Dead);
    let began = harness.now();
    harness.until("b has all", || ["orders", "users", "items"].iter().all(|name| b.status_of(name).state == Running));
    assert!(harness.now().since(began) < 10 * MILLI);
}

#[test]
fn a_dead_holder_of_an_exposed_sink_is_broken_only_where_that_is_safe_or_asked_for() {
    let exposed = SinkProfile::new(Grade::Plain, Duration::ZERO);
    for (takeover_setting, local, fast) in [
        (FastTakeover::WhereSafe, false, false),
        (FastTakeover::WhereSafe, true, true),
        (FastTakeover::Always, false, true),
        (FastTakeover::Never, true, false),
    ] {
        let harness = Harness::new();
        if local {
            harness.town.move_in("a");
        }
        let (a, b) = pair(&harness, &exposed, takeover_setting);
        a.node.kill();
        harness.town.judge("a", Verdict::Dead);
        let took = takeover(&harness, &b);
        assert_eq!(took < 10 * MILLI, fast, "{takeover_setting:?}, local {local}: {took:?}");
    }
}

#[test]
fn nobody_is_watched_where_takeovers_are_never_fast() {
    let harness = Harness::new();
    let _pair = pair(&harness, &SinkProfile::new(Grade::Fenced, Duration::ZERO), FastTakeover::Never);
    harness.run_for(30 * SECOND);
    assert_eq!(harness.town.watches("a"), 0);
}

#[test]
fn after_a_break_an_exposed_sink_is_written_only_when_the_dead_holders_calls_have_settled() {
    let harness = Harness::new();
    let settle = 4 * SECOND;
    harness.town.move_in("a");
    let (a, b) = pair(&harness, &SinkProfile::new(Grade::Plain, settle), FastTakeover::WhereSafe);
    a.node.kill();
    harness.town.judge("a", Verdict::Dead);
    let began = harness.now();
    harness.append(&["next"]);
    harness.until("b has the lease", || harness.holder() == Some(("b".to_owned(), Epoch(2))));
    assert!(harness.now().since(began) < 10 * MILLI, "the lease is taken at once");
    harness.run_for(settle - 100 * MILLI);
    assert_eq!(b.faults.sink.calls("write"), 0);
    harness.until("b writes", || b.faults.sink.calls("write") == 1);
    assert!(harness.now().since(began) < settle + 100 * MILLI, "{:?}", harness.now().since(began));
}

#[test]
fn after_an_expiry_or_a_break_of_a_graded_sink_nothing_is_waited_for() {
    let harness = Harness::new();
    let (a, b) = pair(&harness, &SinkProfile::new(Grade::Versioned, 60 * SECOND), FastTakeover::WhereSafe);
    a.node.kill();
    harness.town.judge("a", Verdict::Dead);
    assert!(takeover(&harness, &b) < 10 * MILLI);
}

#[test]
fn a_paused_stream_is_left_in_order_and_run_by_nobody() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    let writes = a.faults.sink.calls("write");
    harness.append(&["b"]);
    harness.until("it is written", || a.faults.sink.calls("write") > writes);
    harness.want(|control| control.pause());
    harness.until("it is left", || harness.holder().is_none());
    assert_eq!(harness.committed(), 2, "what was read is committed");
    harness.append(&["c"]);
    harness.run_for(60 * SECOND);
    assert_eq!((harness.holder(), a.state(), b.state()), (None, Connecting, Connecting));
    for one in [&a, &b] {
        let lasting = one.status().not_delivering.expect("nobody delivers it");
        assert!(lasting > 55 * SECOND && lasting < 65 * SECOND, "{lasting:?}");
        assert_eq!(one.status().trouble, None, "nothing is wrong with it");
    }
    harness.want(|control| control.unpause());
    harness.until("all is committed", || harness.committed() == 3);
    harness.run_for(10 * SECOND);
    assert_eq!((a.status().not_delivering, b.status().not_delivering), (None, None));
    assert_eq!(harness.journal()[1].cause, Cause::Operator);
}

#[test]
fn a_stream_runs_again_after_an_operators_program_was_killed_in_the_middle_of_a_move() {
    let harness = Harness::new();
    let (_a, _b) = usual(&harness);
    let tenure = harness.world.entropy().tenure();
    harness.want(|control| control.begin_move(tenure, Some(20 * SECOND)));
    let began = harness.now();
    harness.until("it is left", || harness.holder().is_none());
    harness.append(&["b"]);
    harness.run_for(19 * SECOND);
    assert_eq!(harness.holder(), None, "the program may still be there");
    harness.until("it runs again", || harness.committed() == 2);
    let took = harness.now().since(began);
    assert!(took < 20 * SECOND + TTL + SECOND, "{took:?}");
}

#[test]
fn a_hand_over_brings_another_instance_on_watch() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    harness.want(|control| control.hand_over = Some(Epoch(1)));
    let began = harness.now();
    harness.until("b has the watch", || b.is_running());
    assert!(harness.now().since(began) < 50 * MILLI, "{:?}", harness.now().since(began));
    harness.run_for(60 * SECOND);
    assert_eq!((a.state(), harness.holder()), (Connecting, Some(("b".to_owned(), Epoch(2)))), "it is asked for once");
}

#[test]
fn a_hand_over_back_to_one_that_has_just_left_is_as_fast_as_any() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    harness.want(|control| control.hand_over = Some(Epoch(1)));
    harness.until("b has the watch", || b.is_running());
    let began = harness.now();
    harness.want(|control| {
        control.preferred = Some("a".to_owned());
        control.hand_over = b.status().epoch;
    });
    harness.until("a has the watch", || a.is_running());
    assert!(harness.now().since(began) < SECOND, "{:?}", harness.now().since(began));
}

#[test]
fn whoever_handed_over_relieves_a_successor_that_dies_soon() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    harness.want(|control| control.hand_over = Some(Epoch(1)));
    harness.until("b has the watch", || b.is_running());
    harness.run_for(100 * MILLI);
    assert_eq!(harness.town.watches("b"), 1, "a knows the new holder long before its own next look");
    b.node.kill();
    harness.town.judge("b", Verdict::Dead);
    let began = harness.now();
    harness.until("a has the watch again", || a.status().epoch == Some(Epoch(3)));
    assert!(harness.now().since(began) < 50 * MILLI, "{:?}", harness.now().since(began));
}

#[test]
fn a_hand_over_to_nobody_comes_back_under_a_newer_epoch() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    harness.want(|control| control.hand_over = Some(Epoch(1)));
    harness.until("it runs again", || a.status().epoch == Some(Epoch(2)));
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
}

#[test]
fn a_free_lease_is_left_to_the_preferred_instance() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    harness.want(|control| control.preferred = Some("c".to_owned()));
    harness.run_for(6 * SECOND);
    assert!(a.is_running(), "a preference takes the watch from nobody");
    a.stop(&harness);
    harness.until("c has the watch", || c.is_running());
    harness.run_for(3 * TTL);
    assert_eq!((c.state(), b.state()), (Running, Connecting));
}

#[test]
fn a_preferred_instance_that_does_not_take_the_lease_or_is_not_there_is_not_waited_for() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    let c = harness.instance("c").grade(Grade::Fenced).start();
    c.faults.leases.always("holders", Fault::Reject(ErrorKind::Unavailable));
    harness.run_for(6 * SECOND);
    harness.want(|control| control.preferred = Some("c".to_owned()));
    harness.run_for(SECOND);
    a.stop(&harness);
    let began = harness.now();
    harness.until("b has the watch", || b.is_running());
    let waited = harness.now().since(began);
    assert!(waited >= TTL && waited < TTL + 2 * SECOND, "{waited:?}");

    harness.want(|control| control.preferred = Some("nobody".to_owned()));
    let d = harness.instance("d").grade(Grade::Fenced).start();
    harness.run_for(6 * SECOND);
    b.stop(&harness);
    let began = harness.now();
    harness.until("d has the watch", || d.is_running());
    assert!(harness.now().since(began) < SECOND);
}

#[test]
fn an_acquire_whose_answer_was_lost_is_the_same_grant() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.leases.next("try_acquire", Fault::Lose);
    let a = plan.start();
    let began = harness.now();
    harness.until("it runs", || a.is_running());
    assert!(
        harness.now().since(began) <= 2 * SECOND,
        "it need not wait for its own lease: {:?}",
        harness.now().since(began)
    );
    assert_eq!(a.status().epoch, Some(Epoch(1)));
}

#[test]
fn a_grant_is_answered_for_before_its_holder_hears_of_it() {
    let harness = Harness::new();
    let (plan, gate) = (harness.instance("a"), Gate::default());
    plan.faults.leases.next("try_acquire", Fault::HoldAnswer(gate));
    let a = plan.start();
    harness.until("it is granted", || harness.holder_of("orders").is_some());
    let tenure = harness.holder_of("orders").unwrap().candidate.tenure;
    assert!(!a.is_running(), "the answer is held");
    assert!(harness.town.answers("a", tenure));
}

#[test]
fn an_acquire_that_is_granted_after_its_time_out_is_the_same_grant() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.leases.next("try_acquire", Fault::HoldAnswer(Gate::default()));
    let a = plan.start();
    harness.until("it runs", || a.is_running());
    assert_eq!(a.status().epoch, Some(Epoch(1)));
    harness.run_for(3 * TTL);
    assert_eq!((a.state(), a.status().epoch), (Running, Some(Epoch(1))));
}

#[test]
fn a_lease_store_that_is_down_for_a_while_costs_a_standby_nothing() {
    let harness = Harness::new();
    let (a, b) = usual(&harness);
    for call in ["holders", "try_acquire", "wakeups"] {
        b.faults.leases.always(call, Fault::Reject(ErrorKind::Unavailable));
    }
    harness.run_for(30 * SECOND);
    a.stop(&harness);
    harness.run_for(30 * SECOND);
    for call in ["holders", "try_acquire", "wakeups"] {
        b.faults.leases.heal(call);
    }
    let began = harness.now();
    harness.until("b has the watch", || b.is_running());
    assert!(harness.now().since(began) <= SECOND);
}

/// The names of the instances that the registry lists.
fn listed(harness: &Harness) -> Vec<String> {
    let registry = watchkeeper_engine::group::registry::Registry::new(Arc::new(harness.notes.clone()), "shop");
    let mut names: Vec<_> = memory(registry.list(&harness.cx())).into_iter().map(|listed| listed.member.name).collect();
    names.sort();
    names
}

#[test]
fn everyone_who_is_proved_dead_leaves_the_registry_at_once_even_if_the_records_fail_meanwhile() {
    let harness = Harness::new();
    let a = harness.instance("a").grade(Grade::Fenced).start();
    harness.until("a has the watch", || a.is_running());
    let b = {
        let mut plan = harness.instance("b").grade(Grade::Fenced);
        plan.streams[0].settings.name = "others".to_owned();
        plan.start()
    };
    harness.until("b has the other one", || harness.holder_of("others").is_some());
    let plan = harness.instance("c").grade(Grade::Fenced).and_stream("others");
    let c = plan.start();
    harness.until("both are watched", || harness.town.watches("a") > 0 && harness.town.watches("b") > 0);
    assert_eq!(listed(&harness), ["a", "b", "c"]);
    // The first removal takes a while, and the second is refused at first.
    c.faults.records.next("delete_if", Fault::Delay(200 * MILLI));
    c.faults.records.times("delete_if", 2, &Fault::Reject(ErrorKind::Unavailable));
    a.node.kill();
    b.node.kill();
    harness.town.judge("a", Verdict::Dead);
    harness.town.judge("b", Verdict::Dead);
    let began = harness.now();
    harness.until("neither is listed as healthy", || listed(&harness) == ["c"]);
    assert!(harness.now().since(began) < 5 * SECOND, "{:?}", harness.now().since(began));
    assert_eq!(c.faults.records.pending("delete_if"), 0);
}
