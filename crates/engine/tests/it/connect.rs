//! Streams whose source and sinks can not be connected to, or not yet.

use watchkeeper_core::{ErrorKind, Records};
use watchkeeper_engine::group::registry::Member;
use watchkeeper_engine::group::report::{Doing, StreamReport};
use watchkeeper_engine::listener::ListenerState::{Connecting, Initializing, Running};
use watchkeeper_testkit::faults::Fault;

use crate::gate::Gate;
use crate::support::{Rig, SECOND, memory};

/// What the instance of this name tells the group.
fn member(rig: &Rig, name: &str) -> Member {
    let records = memory(rig.notes.list(&rig.cx(), "shop/instances/"));
    let mut members = records.iter().map(|record| serde_json::from_slice::<Member>(&record.bytes).unwrap());
    members.find(|member| member.name == name).expect("it is registered")
}

pub(crate) fn report(rig: &Rig, name: &str, stream: &str) -> StreamReport {
    let reports = member(rig, name).reports;
    reports.into_iter().find(|report| report.stream == stream).expect("it tells of this stream")
}

#[test]
fn a_stream_that_can_not_be_connected_keeps_nothing_else_from_its_work() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::Config, ErrorKind::Internal] {
        let rig = Rig::new();
        let gate = Gate::shut(kind);
        let a = rig.instance("a").and_stream("users").behind("users", &gate).start();
        rig.append(&["x"]);
        rig.until("the other one works", || rig.committed() == 1);
        rig.run_for(90 * SECOND);
        assert_eq!((a.state(), a.status_of("users").state), (Running, Initializing));
        assert_eq!(rig.holder_of("users"), None, "what can not run is not asked for");
        assert_eq!(member(&rig, "a").streams, ["orders"], "nor offered");
        let told = report(&rig, "a", "users");
        let trouble = told.trouble.expect("it says what is wrong");
        assert_eq!(told.doing, Doing::Failing);
        assert!(trouble.error.contains("the gate is shut"), "{trouble:?}");
        assert!(trouble.lasting_millis > 60_000 && trouble.attempts > 3, "{trouble:?}");
        assert!((8..20).contains(&gate.knocks()), "it is backed off: {}", gate.knocks());
        gate.open();
        rig.until("it works too", || rig.committed_of("users") == 1);
        rig.run_for(SECOND);
        let told = report(&rig, "a", "users");
        assert_eq!((told.doing, told.trouble), (Doing::Running, None));
        a.stop(&rig);
    }
}

#[test]
fn a_stream_that_one_instance_can_not_connect_runs_on_another() {
    let rig = Rig::new();
    let gate = Gate::shut(ErrorKind::Unavailable);
    let a = rig.instance("a").behind("orders", &gate).start();
    rig.run_for(5 * SECOND);
    assert_eq!(rig.holder(), None);
    let b = rig.start("b");
    rig.append(&["x"]);
    rig.until("b works", || rig.committed() == 1);
    assert_eq!(rig.holder().map(|(name, epoch)| (name, epoch.0)), Some(("b".to_owned(), 1)), "no epoch was spent");
    gate.open();
    rig.until("a stands by", || a.state() == Connecting);
    rig.run_for(SECOND);
    assert_eq!(report(&rig, "a", "orders").doing, Doing::Standby);
    b.stop(&rig);
    rig.until("a has it", || a.state() == Running);
}

#[test]
fn an_instance_is_seen_before_its_streams_are_connected_and_ends_without_them() {
    let rig = Rig::new();
    let gate = Gate::shut(ErrorKind::Unavailable);
    let a = rig.instance("a").behind("orders", &gate).start();
    rig.until("it is registered", || !memory(rig.notes.list(&rig.cx(), "shop/instances/")).is_empty());
    rig.until("it says why it does not run", || report(&rig, "a", "orders").doing == Doing::Failing);
    a.stop(&rig);
}

/// Whatever fails on whoever has the lease is told, for as long as it lasts.
#[test]
fn a_holder_tells_what_it_can_not_do_and_when_it_can_again() {
    for part in ["write", "flush", "commit", "next_batch"] {
        let rig = Rig::new();
        let a = rig.start("a");
        rig.append(&["x"]);
        rig.until("it works", || rig.committed() == 1);
        rig.until("it says so", || report(&rig, "a", "orders").doing == Doing::Running);
        let script = match part {
            "commit" => &a.faults.checkpoints,
            "next_batch" => &a.faults.source,
            _ => &a.faults.sink,
        };
        script.always(part, Fault::Reject(ErrorKind::Unavailable));
        rig.append(&["y"]);
        rig.until("it is told", || {
            let told = report(&rig, "a", "orders");
            let is_tried = told.trouble.is_some_and(|trouble| trouble.attempts > 2 && trouble.lasting_millis > 1_000);
            told.doing == Doing::Recovering && is_tried
        });
        let waits = report(&rig, "a", "orders").undelivered_millis.is_some();
        assert_eq!(waits, matches!(part, "write" | "flush"), "{part}");
        script.heal(part);
        rig.until("it goes on", || rig.committed() == 2);
        rig.until("it is well", || {
            let told = report(&rig, "a", "orders");
            (told.doing, told.trouble, told.undelivered_millis) == (Doing::Running, None, None)
        });
        a.stop(&rig);
    }
}

/// Since when and how often is counted over all attempts: over bars, tenures and openings.
#[test]
fn an_outage_lasts_until_the_stream_delivers_again() {
    let rig = Rig::new();
    let a = rig.start("a");
    rig.append(&["x"]);
    rig.until("it works", || rig.committed() == 1);
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Denied));
    rig.append(&["y"]);
    let trouble = || report(&rig, "a", "orders").trouble;
    rig.until("it is told", || trouble().is_some());
    let mut last = 0;
    for _ in 0..180 {
        rig.run_for(SECOND);
        let told = trouble().expect("it does not deliver, whatever is tried");
        assert!(told.lasting_millis >= last, "it went back from {last}: {told:?}");
        last = told.lasting_millis;
    }
    assert!(a.status().tenures > 3, "{:?}", a.status());
    let told = trouble().expect("it does not deliver");
    assert!(told.lasting_millis > 170_000 && told.attempts > 3, "{told:?}");
    assert_eq!(report(&rig, "a", "orders").not_delivering_millis, Some(told.lasting_millis));
    a.faults.sink.heal("write");
    rig.until("it delivers", || rig.committed() == 2);
    rig.until("it says so", || {
        let told = report(&rig, "a", "orders");
        (told.doing, told.trouble, told.not_delivering_millis) == (Doing::Running, None, None)
    });
    a.stop(&rig);
}

/// A source that answers again and has nothing new leads to no commit.
#[test]
fn an_outage_ends_when_an_idle_source_answers_again() {
    let rig = Rig::new();
    let a = rig.start("a");
    rig.append(&["x"]);
    rig.until("it works", || rig.committed() == 1);
    for _ in 0..2 {
        a.faults.source.always("next_batch", Fault::Reject(ErrorKind::Unavailable));
        rig.until("it is told", || report(&rig, "a", "orders").trouble.is_some());
        rig.run_for(30 * SECOND);
        let told = report(&rig, "a", "orders");
        let lasting = told.not_delivering_millis.expect("it does not deliver");
        assert!((20_000..35_000).contains(&lasting), "each outage is counted for itself: {told:?}");
        a.faults.source.heal("next_batch");
        rig.until("it says that it works", || {
            let told = report(&rig, "a", "orders");
            (told.doing, told.trouble, told.not_delivering_millis) == (Doing::Running, None, None)
        });
    }
    assert_eq!(rig.committed(), 1);
    a.stop(&rig);
}

/// Whoever takes the stream over goes on with the time that the last holder has counted.
#[test]
fn an_outage_is_handed_over() {
    let rig = Rig::new();
    let a = rig.start("a");
    rig.append(&["x"]);
    rig.until("it works", || rig.committed() == 1);
    let b = rig.start("b");
    rig.run_for(6 * SECOND);
    for actor in [&a, &b] {
        actor.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    }
    rig.append(&["y"]);
    rig.run_for(20 * SECOND);
    let before = report(&rig, "a", "orders").not_delivering_millis.expect("it does not deliver");
    assert!(before > 10_000, "{before}");
    a.stop(&rig);
    rig.until("b has it, and fails", || {
        let told = report(&rig, "b", "orders");
        told.epoch.is_some() && told.trouble.is_some_and(|trouble| trouble.lasting_millis >= before)
    });
    rig.run_for(10 * SECOND);
    let told = report(&rig, "b", "orders");
    assert!(told.not_delivering_millis > Some(before + 5_000), "{told:?}");
    b.faults.sink.heal("write");
    rig.until("it says that it works", || report(&rig, "b", "orders").not_delivering_millis.is_none());
    assert_eq!(rig.committed(), 2);
    b.stop(&rig);
}

/// An instance that can not open a stream counts for itself, and not for the stream that another one delivers.
#[test]
fn what_fails_on_one_instance_is_no_outage_of_a_stream_that_another_delivers() {
    let rig = Rig::new();
    let a = rig.start("a");
    rig.append(&["x"]);
    rig.until("it works", || rig.committed() == 1);
    rig.run_for(6 * SECOND);
    let gate = Gate::shut(ErrorKind::Unavailable);
    let b = rig.instance("b").behind("orders", &gate).start();
    rig.run_for(60 * SECOND);
    let told = report(&rig, "b", "orders");
    assert_eq!((told.doing, told.not_delivering_millis), (Doing::Failing, None));
    assert!(told.trouble.is_some_and(|trouble| trouble.lasting_millis > 50_000 && trouble.attempts > 3));
    a.stop(&rig);
    rig.run_for(20 * SECOND);
    let lasting = report(&rig, "b", "orders").not_delivering_millis.expect("nobody delivers");
    assert!((10_000..30_000).contains(&lasting), "since the other one left: {lasting}");
    b.stop(&rig);
}
