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
fn plan(harness: &Harness, name: &str) -> Plan {
    harness.instance(name).into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone())))
}

fn written(harness: &Harness) -> Vec<u64> {
    numbers(&harness.checkpoints.delivered())
}

/// One more sink of the stream, with what it was given and its faults.
fn beside(harness: &Harness, plan: &mut Plan) -> (Probe, Script) {
    let (probe, script) = (Probe::new(harness, MILLI), harness.script());
    let other = SinkSpec::new("other", Arc::new(FaultySink::new(Arc::new(probe.clone()), script.clone())));
    plan.streams[0].sinks.push(other);
    (probe, script)
}

/// The change that the halt names.
fn named(harness: &Harness) -> Option<String> {
    harness.checkpoint().and_then(|checkpoint| checkpoint.halted).and_then(|halted| halted.change)
}

/// Skips this change, up to the position after the change `last`.
fn skip(harness: &Harness, number: u64, last: u64) {
    let (sink, cause) = ("table".to_owned(), "nobody takes it".to_owned());
    let entry =
        LedgerEntry { kind: LedgerKind::Skipped, sink, change_id: id(number), cause, before: None, change: None };
    harness.perform(Move::Skip { entry: Box::new(entry), to: Log::position(last, None) });
}

#[test]
fn what_comes_before_a_rejected_change_is_committed_and_only_that_change_is_skipped() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    for bad in [5, 6, 9] {
        a.faults.sink.refuse_row(id(bad), FaultKind::Reject, ALWAYS);
    }
    harness.append_many(12);
    for bad in [5, 6, 9] {
        harness.until("it is halted", || harness.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
        assert_eq!((harness.committed(), named(&harness)), (bad - 1, Some(id(bad))));
        skip(&harness, bad, bad);
    }
    harness.until("all is passed", || harness.committed() == 12);
    assert_eq!(written(&harness), [1, 2, 3, 4, 7, 8, 10, 11, 12]);
    assert_eq!(harness.ledger().len(), 3);
    let calls = a.faults.sink.calls("write_and_commit");
    harness.append_many(200);
    harness.until("all is written", || harness.committed() == 212);
    let calls = a.faults.sink.calls("write_and_commit") - calls;
    assert!(calls < 20, "what comes later is not cut smaller: {calls} transactions");
}

#[test]
fn halves_that_cannot_be_distinguished_are_halted_before_together() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    a.faults.sink.refuse_row(id(3), FaultKind::Reject, ALWAYS);
    harness.append(&["a"]);
    harness.append_row(Operation::Delete, Some("old"), b"{}", true);
    harness.append_row(Operation::Insert, Some("new"), b"{}", false);
    harness.append(&["b"]);
    harness.until("it is halted", || a.status().halted);
    assert_eq!((written(&harness), harness.committed(), named(&harness)), (vec![1], 1, Some(id(3))));
    skip(&harness, 3, 3);
    harness.until("all is passed", || harness.committed() == 4);
    assert_eq!(written(&harness), [1, 4]);
}

#[test]
fn what_comes_before_a_fatal_change_is_committed_before_the_watch_is_given_up() {
    let harness = Harness::new();
    let (a, b) = (plan(&harness, "a"), plan(&harness, "b"));
    for faults in [&a.faults, &b.faults] {
        faults.sink.refuse_row(id(3), FaultKind::Fatal, ALWAYS);
    }
    let (_a, _b) = (a.start(), b.start());
    harness.append_many(4);
    harness.until("it is halted", || named(&harness).is_some());
    assert_eq!((written(&harness), harness.committed(), named(&harness)), (vec![1, 2], 2, Some(id(3))));
    skip(&harness, 3, 3);
    harness.until("all is passed", || harness.committed() == 4);
    assert_eq!(written(&harness), [1, 2, 4]);
}

#[test]
fn what_comes_before_a_change_that_another_sink_rejects_is_committed_in_the_transaction_too() {
    let harness = Harness::new();
    let mut plan = plan(&harness, "a");
    let (probe, script) = beside(&harness, &mut plan);
    let a = plan.start();
    script.refuse_row(id(3), FaultKind::Reject, ALWAYS);
    harness.append_many(4);
    harness.until("it is halted", || a.status().halted);
    assert_eq!((written(&harness), harness.committed(), named(&harness)), (vec![1, 2], 2, Some(id(3))));
    skip(&harness, 3, 3);
    harness.until("all is passed", || harness.committed() == 4);
    assert_eq!(written(&harness), [1, 2, 4]);
    assert!(!numbers(&probe.delivered()).contains(&3));
}

#[test]
fn what_comes_before_a_change_that_one_of_several_sinks_rejects_reaches_the_others() {
    for concurrency in [1, 4] {
        let harness = Harness::new();
        let mut plan = harness.instance("a").stream(|it| it.concurrency = concurrency);
        let (probe, _) = beside(&harness, &mut plan);
        let a = plan.start();
        for bad in [7, 15] {
            a.faults.sink.refuse_row(id(bad), FaultKind::Reject, ALWAYS);
        }
        harness.append_many(20);
        for bad in [7, 15] {
            harness
                .until("it is halted", || harness.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
            assert_eq!((harness.committed(), named(&harness)), (bad - 1, Some(id(bad))), "{concurrency} lanes");
            skip(&harness, bad, bad);
        }
        harness.until("all is passed", || harness.committed() == 20);
        let expected: Vec<u64> = (1..=20).filter(|number| ![7, 15].contains(number)).collect();
        for mut delivered in [harness.delivered(), numbers(&probe.delivered())] {
            delivered.sort_unstable();
            delivered.dedup();
            assert_eq!(delivered, expected, "{concurrency} lanes");
        }
    }
}

#[test]
fn what_comes_before_a_rejected_change_reaches_the_other_sinks_in_order() {
    let harness = Harness::new();
    let mut plan = harness.instance("a");
    let (probe, _) = beside(&harness, &mut plan);
    let a = plan.start();
    a.faults.sink.refuse_row(id(5), FaultKind::Reject, ALWAYS);
    harness.append(&["k"; 6]);
    harness.until("it is halted", || a.status().halted);
    assert_eq!((harness.committed(), numbers(&probe.delivered())), (4, vec![1, 2, 3, 4]));
}

#[test]
fn a_lane_that_is_behind_finishes_what_comes_before_a_change_that_another_lane_rejects() {
    for other in ["b", "c", "d", "e", "f", "g"] {
        let harness = Harness::new();
        let a = harness.instance("a").stream(|it| (it.concurrency, it.limits.rows) = (4, 1)).start();
        let gate = Gate::default();
        a.faults.sink.next("write", Fault::Hold(gate.clone()));
        a.faults.sink.refuse_row(id(4), FaultKind::Reject, ALWAYS);
        harness.append(&["a", "a", "a", other, "a", other]);
        harness.until("the first lane is held", || gate.arrived() == 1);
        harness.run_for(SECOND);
        gate.open();
        harness.until("it is halted", || a.status().halted);
        assert_eq!((harness.committed(), named(&harness)), (3, Some(id(4))), "beside key {other}");
    }
}
