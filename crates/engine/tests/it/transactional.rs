//! Changes and checkpoint in one transaction.

use std::sync::Arc;

use watchkeeper_core::memory::{Checkpoints, TransactionalTable};
use watchkeeper_core::{
    CheckpointStore, Claim, Epoch, ErrorKind, FaultKind, Grade, Grant, LedgerKind, Reason, Resolution, StoreIdentity,
};
use watchkeeper_engine::delivery::parking::{OnReject, Park};
use watchkeeper_engine::group::control::ReplayRequest;
use watchkeeper_engine::listener::ListenerState::{Connecting, Running};
use watchkeeper_engine::settings::CheckpointPolicy;
use watchkeeper_engine::stream::SinkSpec;
use watchkeeper_testkit::faults::{Fault, FaultySink, Gate, Script};

use crate::support::*;
use crate::warnings::Warnings;

/// An instance that writes into the database of its checkpoints.
fn plan(harness: &Harness, name: &str) -> Plan {
    harness.instance(name).into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone())))
}

/// What was written beside the checkpoint.
fn written(harness: &Harness) -> Vec<u64> {
    numbers(&harness.checkpoints.delivered())
}

#[test]
fn changes_and_checkpoint_are_written_together_in_source_order() {
    let harness = Harness::new();
    let a = plan(&harness, "a").stream(|it| it.concurrency = 4).start();
    harness.append_many(20);
    harness.append_barrier();
    harness.append_many(20);
    harness.until("all is written", || {
        assert_eq!(
            written(&harness).last().copied().unwrap_or(0),
            harness.committed(),
            "at no moment is one without the other"
        );
        harness.committed() == 41
    });
    assert_eq!(written(&harness), (1..=41).collect::<Vec<_>>());
    assert_eq!(a.faults.checkpoints.calls("commit"), 1, "only the first checkpoint, which has no changes");
}

#[test]
fn a_transaction_whose_answer_was_lost_takes_effect_once() {
    let harness = Harness::new();
    let a = plan(&harness, "a").stream(|it| it.limits.rows = 2).stream(|it| it.timeouts.write = SECOND).start();
    for _ in 0..4 {
        a.faults.sink.next("write_and_commit", Fault::Lose);
        a.faults.sink.next("write_and_commit", Fault::Reject(ErrorKind::Unavailable));
        a.faults.sink.next("write_and_commit", Fault::HoldAnswer(Gate::default()));
        a.faults.sink.next("write_and_commit", Fault::Good);
    }
    harness.append_many(30);
    harness.until("all is written", || harness.committed() == 30);
    assert_eq!(a.faults.sink.pending("write_and_commit"), 0, "all faults were played");
    assert_eq!(written(&harness), (1..=30).collect::<Vec<_>>());
}

#[test]
fn nothing_is_written_twice_or_lost_over_crashes() {
    let harness = Harness::new();
    for round in 0..5 {
        let a = plan(&harness, "a").stream(|it| it.limits.rows = 3).start();
        harness.append_many(20);
        harness.until("some is written", || written(&harness).len() > round * 20 + 7);
        a.node.kill();
    }
    let _a = plan(&harness, "a").start();
    harness.until("all is written", || harness.committed() == 100);
    assert_eq!(written(&harness), (1..=100).collect::<Vec<_>>());
}

#[test]
fn a_fenced_transaction_ends_the_tenure_and_writes_nothing() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    harness.append(&["a"]);
    harness.until("it is written", || harness.committed() == 1);
    let grant = Grant { key: harness.key(), tenure: harness.world.entropy().tenure(), epoch: Epoch(7) };
    assert!(matches!(memory(harness.checkpoints.claim(&harness.cx(), &grant)), Claim::Claimed(_)));
    harness.append(&["b"]);
    harness.until("it is fenced", || a.state() == Connecting);
    assert_eq!(written(&harness), [1]);
    harness.until("the next tenure writes it", || harness.committed() == 2);
    assert_eq!((written(&harness), harness.checkpoint().unwrap().epoch), (vec![1, 2], Epoch(8)));
}

#[test]
fn a_transaction_has_no_more_changes_than_a_commit_is_wanted_after() {
    let harness = Harness::new();
    let a =
        plan(&harness, "a").stream(|it| it.checkpoint = CheckpointPolicy { events: Some(4), ..it.checkpoint }).start();
    harness.append_many(10);
    harness.until("all is written", || harness.committed() == 10);
    assert_eq!(a.faults.sink.calls("write_and_commit"), 3);
}

#[test]
fn a_row_that_asks_to_be_tried_again_is_not_passed_over_at_once() {
    let harness = Harness::new();
    let a =
        plan(&harness, "a").sink(|it| it.on_reject = OnReject::Skip).stream(|it| it.retry.attempts = Some(4)).start();
    a.faults.sink.refuse_row(id(2), FaultKind::Retry, 3);
    harness.append_many(3);
    harness.until("all is written", || harness.committed() == 3);
    assert_eq!(written(&harness), [1, 2, 3]);
    assert!(harness.ledger().is_empty(), "the fourth attempt was good");
}

#[test]
fn by_default_a_target_that_is_away_is_waited_for_with_a_warning_every_minute() {
    let harness = Harness::new();
    let run = || {
        let a = plan(&harness, "a").start();
        harness.append(&["a"]);
        harness.until("the first change is written", || harness.committed() == 1);
        a.faults.sink.refuse_row(id(3), FaultKind::Retry, 12);
        harness.append(&["b", "c", "d"]);
        harness.run_for(30 * SECOND);
        assert_eq!((a.state(), a.status().halted, a.status().tenures), (Running, false, 1));
        assert_eq!(
            (harness.committed(), harness.ledger().len()),
            (1, 0),
            "the target is still away, and nothing is rejected"
        );
        harness.until("all is written", || harness.committed() == 4);
        assert_eq!((written(&harness), harness.ledger().len()), (vec![1, 2, 3, 4], 0));
    };
    assert_eq!(Warnings::during(run, &["did not take a change", "is repeated"]), 1);
}

#[test]
fn by_default_a_target_that_is_away_here_is_left_to_another_instance() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    a.faults.sink.refuse_row(id(1), FaultKind::Retry, u64::MAX);
    harness.until("it runs", || a.is_running());
    let b = plan(&harness, "b").start();
    harness.append(&["a"]);
    harness.until("the other one writes", || harness.committed() == 1);
    assert_eq!((written(&harness), harness.ledger().len(), b.state()), (vec![1], 0, Running));
}

#[test]
fn a_rejected_row_that_is_skipped_is_in_the_ledger_of_the_transaction_without_it() {
    let harness = Harness::new();
    let a = plan(&harness, "a").sink(|it| it.on_reject = OnReject::Skip).start();
    a.faults.sink.refuse_row(id(2), FaultKind::Reject, 1);
    harness.append(&["a", "b", "c"]);
    harness.until("all is passed", || harness.committed() == 3);
    assert_eq!(written(&harness), [1, 3]);
    let ledger = harness.ledger();
    assert_eq!(
        (ledger.len(), ledger[0].entry.kind, ledger[0].entry.change_id.as_str()),
        (1, LedgerKind::Skipped, &*id(2))
    );
}

#[test]
fn a_dead_letter_parks_its_key_within_the_transaction_and_after_and_is_replayed_in_order() {
    let harness = Harness::new();
    let a = plan(&harness, "a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key }).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k", "other", "k"]);
    harness.until("all is passed", || harness.committed() == 3);
    harness.append(&["k", "other"]);
    harness.until("all is passed", || harness.committed() == 5);
    assert_eq!(written(&harness), [2, 5]);
    let kinds: Vec<_> = harness.ledger().iter().map(|record| record.entry.kind).collect();
    assert_eq!(kinds, [LedgerKind::DeadLetter, LedgerKind::Parked, LedgerKind::Parked]);
    assert_eq!(harness.checkpoint().unwrap().facts.letters, 3);
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("they are replayed", || harness.checkpoint().unwrap().facts.letters == 0);
    assert_eq!(written(&harness), [2, 5, 1, 3, 4]);
    assert!(harness.ledger().iter().all(|record| record.resolution == Some(Resolution::Replayed)));
    harness.append(&["k"]);
    harness.until("the key is free", || written(&harness).contains(&6));
    assert!(a.is_running());
}

#[test]
fn a_dead_letter_that_is_rejected_again_stays_with_all_behind_it() {
    let harness = Harness::new();
    let a = plan(&harness, "a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key }).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 2);
    harness.append(&["k", "k", "other"]);
    harness.until("all is passed", || harness.committed() == 3);
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("it was tried", || harness.control().replay.is_none());
    assert_eq!((written(&harness), harness.checkpoint().unwrap().facts.letters), (vec![3], 2));
    harness.append(&["k"]);
    harness.until("it follows", || harness.committed() == 4);
    assert_eq!((written(&harness), harness.ledger().len(), a.state()), (vec![3], 3, Running));
}

#[test]
fn a_dead_letter_that_is_not_taken_now_is_left_after_its_attempts_and_the_stream_goes_on() {
    let harness = Harness::new();
    let a = plan(&harness, "a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key }).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k", "other"]);
    harness.until("all is passed", || harness.committed() == 2);
    a.faults.sink.refuse_row(id(1), FaultKind::Retry, u64::MAX);
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("it was tried", || harness.control().replay.is_none());
    assert_eq!(harness.checkpoint().unwrap().facts.letters, 1);
    harness.append(&["other"]);
    harness.until("the next one is written", || harness.committed() == 3);
    assert_eq!((written(&harness), a.state(), a.status().tenures), (vec![2, 3], Running, 1));
}

/// The plan with a second sink that is not transactional, and what goes wrong there.
fn with_another(harness: &Harness, first: bool) -> (Plan, Probe, Script) {
    let mut plan = plan(harness, "a");
    let (probe, script) = (Probe::new(harness, MILLI), harness.script());
    let other = SinkSpec::new("other", Arc::new(FaultySink::new(Arc::new(probe.clone()), script.clone())));
    plan.streams[0].sinks.insert(usize::from(!first), other);
    (plan, probe, script)
}

#[test]
fn other_sinks_have_everything_durably_before_the_transaction() {
    for first in [true, false] {
        let harness = Harness::new();
        let (plan, probe, script) = with_another(&harness, first);
        let a = plan.start();
        let gate = Gate::default();
        script.next("flush", Fault::Hold(gate.clone()));
        harness.append(&["a", "b"]);
        harness.until("the other sink is flushed", || gate.arrived() == 1);
        harness.run_for(5 * SECOND);
        assert_eq!((a.faults.sink.calls("write_and_commit"), harness.committed()), (0, 0));
        gate.open();
        harness.until("all is written", || harness.committed() == 2);
        assert_eq!((numbers(&probe.delivered()), written(&harness)), (vec![1, 2], vec![1, 2]));
    }
}

#[test]
fn a_failure_of_another_sink_leaves_no_trace_in_the_transaction() {
    let harness = Harness::new();
    let (plan, probe, script) = with_another(&harness, true);
    let a = plan.start();
    script.next("flush", Fault::Reject(ErrorKind::Unavailable));
    script.next("write", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a", "b"]);
    harness.until("all is written", || harness.committed() == 2);
    assert_eq!(written(&harness), [1, 2]);
    assert_eq!(numbers(&probe.delivered()), [1, 2, 1, 2], "the other one is written again after the failed flush");
    assert_eq!((a.status().tenures, script.calls("open")), (1, 2));
}

#[test]
fn what_another_sink_rejects_is_in_the_ledger_of_the_same_transaction() {
    let harness = Harness::new();
    let (mut plan, probe, script) = with_another(&harness, true);
    plan.streams[0].sinks[0].on_reject = OnReject::DeadLetter { park: Park::Key };
    script.refuse_row(id(1), FaultKind::Reject, 1);
    let _a = plan.start();
    harness.append(&["a", "b"]);
    harness.until("all is written", || harness.committed() == 2);
    assert_eq!((written(&harness), numbers(&probe.delivered())), (vec![1, 2], vec![2]));
    let ledger = harness.ledger();
    assert_eq!((ledger.len(), ledger[0].entry.sink.as_str()), (1, "other"));
    assert_eq!(harness.checkpoint().unwrap().facts.letters, 1);
}

#[test]
fn what_other_sinks_replayed_is_settled_although_the_transaction_rejects_its_own() {
    let harness = Harness::new();
    let (mut plan, probe, script) = with_another(&harness, true);
    plan.streams[0].sinks.iter_mut().for_each(|sink| sink.on_reject = OnReject::DeadLetter { park: Park::Key });
    script.refuse_row(id(1), FaultKind::Reject, 1);
    let a = plan.start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 2);
    harness.append(&["a"]);
    harness.until("it is passed", || harness.committed() == 1);
    assert_eq!(harness.checkpoint().unwrap().facts.letters, 2, "one for each sink");
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("it was tried", || harness.control().replay.is_none());
    assert_eq!((numbers(&probe.delivered()), written(&harness)), (vec![1], vec![]));
    let settled = |sink: &str| harness.ledger().iter().any(|it| it.entry.sink == sink && it.resolution.is_some());
    assert_eq!((settled("other"), settled("table")), (true, false));
    harness.want(|control| control.replay = Some(ReplayRequest { id: 2, sink: None, numbers: Vec::new() }));
    harness.until("the rest is replayed", || written(&harness) == [1]);
    assert_eq!(numbers(&probe.delivered()), [1], "what was settled is not delivered again");
}

#[test]
fn a_fatal_row_releases_at_once() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    harness.until("it runs", || a.is_running());
    let b = plan(&harness, "b").start();
    a.faults.sink.refuse_row(id(1), FaultKind::Fatal, 1);
    harness.append(&["a"]);
    harness.until("the other one writes", || harness.committed() == 1);
    assert_eq!((written(&harness), a.state(), b.state()), (vec![1], Connecting, Running));
}

#[test]
fn a_shutdown_finishes_the_transaction_under_way_and_begins_no_other() {
    let harness = Harness::new();
    let a = plan(&harness, "a").stream(|it| it.limits.rows = 2).start();
    let gate = Gate::default();
    a.faults.sink.next("write_and_commit", Fault::Hold(gate.clone()));
    harness.append_many(10);
    harness.until("a transaction is under way", || gate.arrived() == 1);
    a.running.shutdown();
    harness.run_for(SECOND);
    assert!(harness.holder().is_some());
    gate.open();
    a.stop(&harness);
    assert_eq!((written(&harness), harness.committed(), harness.holder()), (vec![1, 2], 2, None));
}

#[test]
fn a_transaction_that_hangs_does_not_hold_a_shutdown_for_longer_than_its_grace() {
    let harness = Harness::new();
    let a = plan(&harness, "a").set(|it| it.shutdown_grace = 3 * SECOND).start();
    a.faults.sink.always("write_and_commit", Fault::Hold(Gate::default()));
    harness.append(&["a"]);
    harness.until("it hangs", || a.faults.sink.calls("write_and_commit") == 1);
    let began = harness.now();
    a.stop(&harness);
    let took = harness.now().since(began);
    assert!(took >= 3 * SECOND && took < 4 * SECOND, "{took:?}");
    assert_eq!(harness.holder(), None);
}

#[test]
fn a_store_that_does_not_answer_is_left_to_another_instance_after_a_while() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    harness.until("it runs", || a.is_running());
    let b = plan(&harness, "b").start();
    harness.run_for(6 * SECOND);
    a.faults.sink.always("write_and_commit", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    let began = harness.now();
    harness.until("the other one writes", || harness.committed() == 1);
    let took = harness.now().since(began);
    assert!(took > 10 * SECOND && took < 40 * SECOND && b.is_running(), "{took:?}");
}

#[test]
fn a_transaction_that_is_given_up_in_doubt_ends_the_tenure_although_the_source_had_failed_before() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    harness.until("it runs", || a.is_running());
    let b = plan(&harness, "b").start();
    harness.run_for(6 * SECOND);
    // Done, and not known to be for longer than that is waited for.
    a.faults.sink.next("write_and_commit", Fault::Lose);
    a.faults.sink.always("write_and_commit", Fault::Reject(ErrorKind::Unavailable));
    // After the read that is under way.
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    harness.until("it is done", || harness.committed() == 1);
    // Whoever reads again without knowing that the first one was done would pass these with it.
    harness.append(&["b", "c"]);
    harness.until("it is given up", || a.faults.source.calls("open") > 1 || b.is_running());
    a.faults.sink.heal("write_and_commit");
    harness.until("all is written", || harness.committed() == 3);
    assert_eq!(written(&harness), [1, 2, 3]);
    assert_eq!((a.faults.source.calls("open"), b.status().epoch), (1, Some(Epoch(2))), "another one goes on");
}

#[test]
fn a_transactional_sink_in_another_store_than_the_checkpoint_is_refused() {
    let harness = Harness::new();
    let elsewhere = Checkpoints::new(StoreIdentity(harness.world.entropy().uuid()));
    let a = harness.instance("a").into_sink(Arc::new(TransactionalTable::new(elsewhere.clone()))).start();
    harness.append(&["a"]);
    harness.until("it has failed", || a.status().last_error.is_some());
    let said = a.status().last_error.unwrap();
    assert!(said.contains("WK-CONFIG") && said.contains("checkpoint"), "{said}");
    assert_eq!((elsewhere.delivered().len(), harness.committed()), (0, 0));
}

#[test]
fn a_halt_and_its_end_go_through_the_same_store() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    harness.append(&["a"]);
    harness.until("it is written", || harness.committed() == 1);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Corrupt));
    harness.until("it is halted", || a.status().halted);
    assert_eq!(harness.checkpoint().unwrap().reason, Reason::Final);
    harness.perform(watchkeeper_engine::checkpoint::operator::Move::Resume);
    harness.append(&["b"]);
    harness.until("it goes on", || harness.committed() == 2);
    assert_eq!(written(&harness), [1, 2]);
    assert_eq!(plan(&harness, "x").streams[0].grade(), Some(Grade::Transactional));
}
