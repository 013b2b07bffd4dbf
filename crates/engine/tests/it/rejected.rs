//! A stream that halts for a change stands right before it, so that skipping that change loses no other one.

use std::sync::Arc;

use watchkeeper_core::memory::{Log, TransactionalTable};
use watchkeeper_core::{FaultKind, LedgerEntry, LedgerKind, Operation};
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::stream::SinkSpec;
use watchkeeper_testkit::faults::{Fault, FaultySink, Gate, Script};

use crate::support::*;

const ALWAYS: u64 = u64::MAX;

/// An instance that writes into the database of its checkpoints.
fn plan(rig: &Rig, name: &str) -> Plan {
    rig.instance(name).into_sink(Arc::new(TransactionalTable::new(rig.checkpoints.clone())))
}

fn written(rig: &Rig) -> Vec<u64> {
    numbers(&rig.checkpoints.delivered())
}

/// One more sink of the stream, with what it was given and its faults.
fn beside(rig: &Rig, plan: &mut Plan) -> (Probe, Script) {
    let (probe, script) = (Probe::new(rig, MILLI), rig.script());
    let other = SinkSpec::new("other", Arc::new(FaultySink::new(Arc::new(probe.clone()), script.clone())));
    plan.streams[0].sinks.push(other);
    (probe, script)
}

/// The change that the halt names.
fn named(rig: &Rig) -> Option<String> {
    rig.checkpoint().and_then(|checkpoint| checkpoint.halted).and_then(|halted| halted.change)
}

/// Skips this change, up to the position after the change `last`.
fn skip(rig: &Rig, number: u64, last: u64) {
    let (sink, cause) = ("table".to_owned(), "nobody takes it".to_owned());
    let entry =
        LedgerEntry { kind: LedgerKind::Skipped, sink, change_id: id(number), cause, before: None, change: None };
    rig.perform(Move::Skip { entry: Box::new(entry), to: Log::position(last, None) });
}

#[test]
fn what_comes_before_a_rejected_change_is_committed_and_only_that_change_is_skipped() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    for bad in [5, 6, 9] {
        a.faults.sink.refuse_row(id(bad), FaultKind::Reject, ALWAYS);
    }
    rig.append_many(12);
    for bad in [5, 6, 9] {
        rig.until("it is halted", || rig.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
        assert_eq!((rig.committed(), named(&rig)), (bad - 1, Some(id(bad))));
        skip(&rig, bad, bad);
    }
    rig.until("all is passed", || rig.committed() == 12);
    assert_eq!(written(&rig), [1, 2, 3, 4, 7, 8, 10, 11, 12]);
    assert_eq!(rig.ledger().len(), 3);
    let calls = a.faults.sink.calls("write_and_commit");
    rig.append_many(200);
    rig.until("all is written", || rig.committed() == 212);
    let calls = a.faults.sink.calls("write_and_commit") - calls;
    assert!(calls < 20, "what comes later is not cut smaller: {calls} transactions");
}

#[test]
fn halves_that_can_not_be_told_apart_are_halted_before_together() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    a.faults.sink.refuse_row(id(3), FaultKind::Reject, ALWAYS);
    rig.append(&["a"]);
    rig.append_row(Operation::Delete, Some("old"), b"{}", true);
    rig.append_row(Operation::Insert, Some("new"), b"{}", false);
    rig.append(&["b"]);
    rig.until("it is halted", || a.status().halted);
    assert_eq!((written(&rig), rig.committed(), named(&rig)), (vec![1], 1, Some(id(3))));
    skip(&rig, 3, 3);
    rig.until("all is passed", || rig.committed() == 4);
    assert_eq!(written(&rig), [1, 4]);
}

#[test]
fn what_comes_before_a_fatal_change_is_committed_before_the_watch_is_given_up() {
    let rig = Rig::new();
    let (a, b) = (plan(&rig, "a"), plan(&rig, "b"));
    for faults in [&a.faults, &b.faults] {
        faults.sink.refuse_row(id(3), FaultKind::Fatal, ALWAYS);
    }
    let (_a, _b) = (a.start(), b.start());
    rig.append_many(4);
    rig.until("it is halted", || named(&rig).is_some());
    assert_eq!((written(&rig), rig.committed(), named(&rig)), (vec![1, 2], 2, Some(id(3))));
    skip(&rig, 3, 3);
    rig.until("all is passed", || rig.committed() == 4);
    assert_eq!(written(&rig), [1, 2, 4]);
}

#[test]
fn what_comes_before_a_change_that_another_sink_rejects_is_committed_in_the_transaction_too() {
    let rig = Rig::new();
    let mut plan = plan(&rig, "a");
    let (probe, script) = beside(&rig, &mut plan);
    let a = plan.start();
    script.refuse_row(id(3), FaultKind::Reject, ALWAYS);
    rig.append_many(4);
    rig.until("it is halted", || a.status().halted);
    assert_eq!((written(&rig), rig.committed(), named(&rig)), (vec![1, 2], 2, Some(id(3))));
    skip(&rig, 3, 3);
    rig.until("all is passed", || rig.committed() == 4);
    assert_eq!(written(&rig), [1, 2, 4]);
    assert!(!numbers(&probe.delivered()).contains(&3));
}

#[test]
fn what_comes_before_a_change_that_one_of_several_sinks_rejects_reaches_the_others() {
    for concurrency in [1, 4] {
        let rig = Rig::new();
        let mut plan = rig.instance("a").stream(|it| it.concurrency = concurrency);
        let (probe, _) = beside(&rig, &mut plan);
        let a = plan.start();
        for bad in [7, 15] {
            a.faults.sink.refuse_row(id(bad), FaultKind::Reject, ALWAYS);
        }
        rig.append_many(20);
        for bad in [7, 15] {
            rig.until("it is halted", || rig.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
            assert_eq!((rig.committed(), named(&rig)), (bad - 1, Some(id(bad))), "{concurrency} lanes");
            skip(&rig, bad, bad);
        }
        rig.until("all is passed", || rig.committed() == 20);
        let expected: Vec<u64> = (1..=20).filter(|number| ![7, 15].contains(number)).collect();
        for mut delivered in [rig.delivered(), numbers(&probe.delivered())] {
            delivered.sort_unstable();
            delivered.dedup();
            assert_eq!(delivered, expected, "{concurrency} lanes");
        }
    }
}

#[test]
fn what_comes_before_a_rejected_change_reaches_the_other_sinks_in_order() {
    let rig = Rig::new();
    let mut plan = rig.instance("a");
    let (probe, _) = beside(&rig, &mut plan);
    let a = plan.start();
    a.faults.sink.refuse_row(id(5), FaultKind::Reject, ALWAYS);
    rig.append(&["k"; 6]);
    rig.until("it is halted", || a.status().halted);
    assert_eq!((rig.committed(), numbers(&probe.delivered())), (4, vec![1, 2, 3, 4]));
}

#[test]
fn a_lane_that_is_behind_finishes_what_comes_before_a_change_that_another_lane_rejects() {
    for other in ["b", "c", "d", "e", "f", "g"] {
        let rig = Rig::new();
        let a = rig.instance("a").stream(|it| (it.concurrency, it.limits.rows) = (4, 1)).start();
        let gate = Gate::default();
        a.faults.sink.next("write", Fault::Hold(gate.clone()));
        a.faults.sink.refuse_row(id(4), FaultKind::Reject, ALWAYS);
        rig.append(&["a", "a", "a", other, "a", other]);
        rig.until("the first lane is held", || gate.arrived() == 1);
        rig.run_for(SECOND);
        gate.open();
        rig.until("it is halted", || a.status().halted);
        assert_eq!((rig.committed(), named(&rig)), (3, Some(id(4))), "beside key {other}");
    }
}
