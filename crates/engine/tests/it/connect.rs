//! Streams whose source and sinks cannot be connected to, or not yet.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{ErrorKind, Records};
use watchkeeper_engine::group::registry::{Member, Registry};
use watchkeeper_engine::group::report::{StreamActivity, StreamReport};
use watchkeeper_engine::listener::ListenerState::{Connecting, Initializing, Running};
use watchkeeper_testkit::faults::Fault;

use crate::gate::Gate;
use crate::support::{Harness, SECOND, memory};

/// What the instance of this name tells the group.
fn member(harness: &Harness, name: &str) -> Member {
    let records = memory(harness.notes.list(&harness.cx(), "shop/instances/"));
    let mut members = records.iter().map(|record| serde_json::from_slice::<Member>(&record.bytes).unwrap());
    members.find(|member| member.name == name).expect("it is registered")
}

pub(crate) fn report(harness: &Harness, name: &str, stream: &str) -> StreamReport {
    let reports = member(harness, name).reports;
    reports.into_iter().find(|report| report.stream == stream).expect("it tells of this stream")
}

#[test]
fn a_stream_that_cannot_be_connected_keeps_nothing_else_from_its_work() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::Config, ErrorKind::Internal] {
        let harness = Harness::new();
        let gate = Gate::shut(kind);
        let a = harness.instance("a").and_stream("users").behind("users", &gate).start();
        harness.append(&["x"]);
        harness.until("the other one works", || harness.committed() == 1);
        harness.run_for(90 * SECOND);
        assert_eq!((a.state(), a.status_of("users").state), (Running, Initializing));
        assert_eq!(harness.holder_of("users"), None, "what cannot run is not asked for");
        assert_eq!(member(&harness, "a").streams, ["orders"], "nor offered");
        let reported = report(&harness, "a", "users");
        let trouble = reported.trouble.expect("it says what is wrong");
        assert_eq!(reported.doing, StreamActivity::Failing);
        assert!(trouble.error.contains("the gate is shut"), "{trouble:?}");
        assert!(trouble.lasting_millis > 60_000 && trouble.attempts > 3, "{trouble:?}");
        assert!((8..20).contains(&gate.knocks()), "it is backed off: {}", gate.knocks());
        gate.open();
        harness.until("it works too", || harness.committed_of("users") == 1);
        harness.run_for(SECOND);
        let reported = report(&harness, "a", "users");
        assert_eq!((reported.doing, reported.trouble), (StreamActivity::Running, None));
        a.stop(&harness);
    }
}

#[test]
fn a_stream_that_one_instance_cannot_connect_runs_on_another() {
    let harness = Harness::new();
    let gate = Gate::shut(ErrorKind::Unavailable);
    let a = harness.instance("a").behind("orders", &gate).start();
    harness.run_for(5 * SECOND);
    assert_eq!(harness.holder(), None);
    let b = harness.start("b");
    harness.append(&["x"]);
    harness.until("b works", || harness.committed() == 1);
    assert_eq!(harness.holder().map(|(name, epoch)| (name, epoch.0)), Some(("b".to_owned(), 1)), "no epoch was spent");
    gate.open();
    harness.until("a stands by", || a.state() == Connecting);
    harness.run_for(SECOND);
    assert_eq!(report(&harness, "a", "orders").doing, StreamActivity::Standby);
    b.stop(&harness);
    harness.until("a has it", || a.state() == Running);
}

#[test]
fn an_instance_is_seen_before_its_streams_are_connected_and_ends_without_them() {
    let harness = Harness::new();
    let gate = Gate::shut(ErrorKind::Unavailable);
    let a = harness.instance("a").behind("orders", &gate).start();
    harness.until("it is registered", || !memory(harness.notes.list(&harness.cx(), "shop/instances/")).is_empty());
    harness.until("it says why it does not run", || report(&harness, "a", "orders").doing == StreamActivity::Failing);
    a.stop(&harness);
}

/// Whatever fails on whoever has the lease is told, for as long as it lasts.
#[test]
fn a_holder_tells_what_it_cannot_do_and_when_it_can_again() {
    for part in ["write", "flush", "commit", "next_batch"] {
        let harness = Harness::new();
        let a = harness.start("a");
        harness.append(&["x"]);
        harness.until("it works", || harness.committed() == 1);
        harness.until("it says so", || report(&harness, "a", "orders").doing == StreamActivity::Running);
        let script = match part {
            "commit" => &a.faults.checkpoints,
            "next_batch" => &a.faults.source,
            _ => &a.faults.sink,
        };
        script.always(part, Fault::Reject(ErrorKind::Unavailable));
        harness.append(&["y"]);
        harness.until("it is told", || {
            let reported = report(&harness, "a", "orders");
            let is_tried =
                reported.trouble.is_some_and(|trouble| trouble.attempts > 2 && trouble.lasting_millis > 1_000);
            reported.doing == StreamActivity::Recovering && is_tried
        });
        let waits = report(&harness, "a", "orders").undelivered_millis.is_some();
        assert_eq!(waits, matches!(part, "write" | "flush"), "{part}");
        script.heal(part);
        harness.until("it goes on", || harness.committed() == 2);
        harness.until("it is well", || {
            let reported = report(&harness, "a", "orders");
            (reported.doing, reported.trouble, reported.undelivered_millis) == (StreamActivity::Running, None, None)
        });
        a.stop(&harness);
    }
}

/// Since when and how often is counted over all attempts: over bars, tenures and openings.
#[test]
fn an_outage_lasts_until_the_stream_delivers_again() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["x"]);
    harness.until("it works", || harness.committed() == 1);
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Denied));
    harness.append(&["y"]);
    let trouble = || report(&harness, "a", "orders").trouble;
    harness.until("it is told", || trouble().is_some());
    let mut last = 0;
    for _ in 0..180 {
        harness.run_for(SECOND);
        let reported = trouble().expect("it does not deliver, whatever is tried");
        assert!(reported.lasting_millis >= last, "it went back from {last}: {reported:?}");
        last = reported.lasting_millis;
    }
    assert!(a.status().tenures > 3, "{:?}", a.status());
    let reported = trouble().expect("it does not deliver");
    assert!(reported.lasting_millis > 170_000 && reported.attempts > 3, "{reported:?}");
    assert_eq!(report(&harness, "a", "orders").not_delivering_millis, Some(reported.lasting_millis));
    a.faults.sink.heal("write");
    harness.until("it delivers", || harness.committed() == 2);
    harness.until("it says so", || {
        let reported = report(&harness, "a", "orders");
        (reported.doing, reported.trouble, reported.not_delivering_millis) == (StreamActivity::Running, None, None)
    });
    a.stop(&harness);
}

/// A source that answers again and has nothing new leads to no commit.
#[test]
fn an_outage_ends_when_an_idle_source_answers_again() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["x"]);
    harness.until("it works", || harness.committed() == 1);
    for _ in 0..2 {
        a.faults.source.always("next_batch", Fault::Reject(ErrorKind::Unavailable));
        harness.until("it is told", || report(&harness, "a", "orders").trouble.is_some());
        harness.run_for(30 * SECOND);
        let reported = report(&harness, "a", "orders");
        let lasting = reported.not_delivering_millis.expect("it does not deliver");
        assert!((20_000..35_000).contains(&lasting), "each outage is counted for itself: {reported:?}");
        a.faults.source.heal("next_batch");
        harness.until("it says that it works", || {
            let reported = report(&harness, "a", "orders");
            (reported.doing, reported.trouble, reported.not_delivering_millis) == (StreamActivity::Running, None, None)
        });
    }
    assert_eq!(harness.committed(), 1);
    a.stop(&harness);
}

/// Whoever takes the stream over goes on with the time that the last holder has counted.
#[test]
fn an_outage_is_handed_over() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["x"]);
    harness.until("it works", || harness.committed() == 1);
    let b = harness.start("b");
    harness.run_for(6 * SECOND);
    for instance in [&a, &b] {
        instance.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    }
    harness.append(&["y"]);
    harness.run_for(20 * SECOND);
    let before = report(&harness, "a", "orders").not_delivering_millis.expect("it does not deliver");
    assert!(before > 10_000, "{before}");
    a.stop(&harness);
    harness.until("b has it, and fails", || {
        let reported = report(&harness, "b", "orders");
        reported.epoch.is_some() && reported.trouble.is_some_and(|trouble| trouble.lasting_millis >= before)
    });
    harness.run_for(10 * SECOND);
    let reported = report(&harness, "b", "orders");
    assert!(reported.not_delivering_millis > Some(before + 5_000), "{reported:?}");
    b.faults.sink.heal("write");
    harness.until("it says that it works", || report(&harness, "b", "orders").not_delivering_millis.is_none());
    assert_eq!(harness.committed(), 2);
    b.stop(&harness);
}

/// Where nobody else can run a stream, an instance tries again much sooner than it would otherwise leave the stream to others.
#[test]
fn the_next_try_that_is_reported_is_the_one_that_is_made() {
    let harness = Harness::new();
    let plans = [harness.instance("a"), harness.instance("b")];
    let instances = plans.map(|plan| {
        plan.faults.source.always("open", Fault::Reject(ErrorKind::Config));
        plan.start()
    });
    let next_try = |name: &str| report(&harness, name, "orders").trouble.and_then(|trouble| trouble.next_try_millis);
    harness.run_for(SECOND / 10);
    harness.until("both wait", || ["a", "b"].iter().all(|name| next_try(name).is_some()));
    // They hear of each other.
    harness.run_for(SECOND / 2);
    for _ in 0..2 {
        for (instance, name) in instances.iter().zip(["a", "b"]) {
            harness.until("it waits", || next_try(name).is_some());
            let (opened, stated) = (instance.faults.source.calls("open"), next_try(name).expect("it waits"));
            assert!(stated <= 16_000, "{name} tries again sooner than in {stated} ms");
            harness.run_for(Duration::from_millis(stated + 100));
            assert!(instance.faults.source.calls("open") > opened, "{name} did not try within {stated} ms");
        }
    }
    for instance in instances {
        instance.faults.source.heal("open");
        instance.stop(&harness);
    }
}

/// An instance that cannot open a stream counts for itself, and not for the stream that another one delivers.
#[test]
fn what_fails_on_one_instance_is_no_outage_of_a_stream_that_another_delivers() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["x"]);
    harness.until("it works", || harness.committed() == 1);
    harness.run_for(6 * SECOND);
    let gate = Gate::shut(ErrorKind::Unavailable);
    let b = harness.instance("b").behind("orders", &gate).start();
    harness.run_for(60 * SECOND);
    let reported = report(&harness, "b", "orders");
    assert_eq!((reported.doing, reported.not_delivering_millis), (StreamActivity::Failing, None));
    assert!(reported.trouble.is_some_and(|trouble| trouble.lasting_millis > 50_000 && trouble.attempts > 3));
    a.stop(&harness);
    harness.run_for(20 * SECOND);
    let lasting = report(&harness, "b", "orders").not_delivering_millis.expect("nobody delivers");
    assert!((10_000..30_000).contains(&lasting), "since the other one left: {lasting}");
    b.stop(&harness);
}

#[test]
fn an_instance_may_have_a_thousand_streams_that_all_have_long_errors() {
    let harness = Harness::new();
    let names: Vec<_> = (0..1_000).map(|number| format!("stream-{number:04}")).collect();
    let gate = Gate::shut_with(ErrorKind::Unavailable, &"x".repeat(100_000));
    let start = |name: &str| {
        let plan =
            names.iter().fold(harness.instance(name), |plan, stream| plan.and_stream(stream).behind(stream, &gate));
        plan.start()
    };
    let (a, b) = (start("a"), start("b"));
    harness.append(&["x"]);
    harness.until("the stream that is well works", || harness.committed() == 1);
    harness.run_for(90 * SECOND);
    let cx = harness.cx();
    let registry = Registry::new(Arc::new(harness.notes.clone()), "shop");
    let listed = memory(registry.list(&cx));
    assert_eq!(listed.len(), 2);
    for one in &listed {
        assert!(one.healthy && one.age < 30 * SECOND, "it is heard of: {:?}", one.age);
        assert_eq!(one.member.reports.len(), 1_001);
        let failing = one.member.reports.iter().filter(|report| report.doing == StreamActivity::Failing);
        assert_eq!(failing.filter(|report| report.trouble.is_some()).count(), 1_000);
    }
    gate.open();
    harness.until("all work", || names.iter().all(|name| harness.committed_of(name) == 1));
    a.stop(&harness);
    b.stop(&harness);
}
