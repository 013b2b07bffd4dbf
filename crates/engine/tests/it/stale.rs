//! Dead letters, and what comes after them at a sink that acts on more than keys.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::memory::TransactionalTable;
use watchkeeper_core::{Cx, FaultKind, Finding, Grade, OpenedSink, Resolution, Result, Sink, SinkContext, SinkProfile};
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::delivery::filter::All;
use watchkeeper_engine::delivery::parking::{OnReject, Park};
use watchkeeper_engine::group::control::ReplayRequest;

use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;
use crate::warnings::Warnings;

/// A sink that acts on changes without a key, as one does that empties its table.
#[derive(Debug)]
struct Acting(TransactionalTable);

#[async_trait]
impl Sink for Acting {
    fn profile(&self) -> SinkProfile {
        SinkProfile { acts_on_barriers: true, ..self.0.profile() }
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.0.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        self.0.open(cx, context).await
    }
}

/// An instance whose sink acts on barriers, with lanes or in transactions.
fn plan(harness: &Harness, in_transactions: bool, park: Park) -> Plan {
    let plan = harness.instance("a").sink(|it| it.on_reject = OnReject::DeadLetter { park });
    if in_transactions {
        return plan.into_sink(Arc::new(Acting(TransactionalTable::new(harness.checkpoints.clone()))));
    }
    plan.profile(SinkProfile { acts_on_barriers: true, ..SinkProfile::new(Grade::Idempotent, Duration::ZERO) })
}

/// What either of them was given.
fn delivered(harness: &Harness) -> Vec<u64> {
    [harness.delivered(), numbers(&harness.checkpoints.delivered())].concat()
}

fn is_halted(harness: &Harness) -> bool {
    harness.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some())
}

fn ask_for_replay(harness: &Harness, request: u64) {
    harness.want(|control| control.replay = Some(ReplayRequest { id: request, sink: None, numbers: Vec::new() }));
}

#[test]
fn a_truncate_behind_dead_letters_halts_the_stream_until_they_are_settled() {
    for (in_transactions, park) in [(false, Park::Key), (false, Park::Change), (true, Park::Key), (true, Park::Change)]
    {
        for at_once in [false, true] {
            let case = format!("in transactions: {in_transactions}, {park:?}, at once: {at_once}");
            let harness = Harness::new();
            let a = plan(&harness, in_transactions, park).start();
            // Once more where the transaction is cut before the truncate.
            let times = 1 + u64::from(in_transactions && at_once);
            a.faults.sink.refuse_row(id(2), FaultKind::Reject, times);
            harness.append(&["a", "k", "b"]);
            if !at_once {
                harness.until("the letter is passed", || harness.committed() == 3);
            }
            harness.append_barrier();
            harness.append(&["c"]);
            harness.until("it is halted", || is_halted(&harness));
            assert_eq!((harness.committed(), delivered(&harness)), (3, vec![1, 3]), "{case}");
            let halted = harness.checkpoint().unwrap().halted.unwrap();
            assert!(halted.cause.contains("truncate") && halted.cause.contains("dead letters wait"), "{halted:?}");
            ask_for_replay(&harness, 1);
            harness.perform(Move::Resume);
            harness.until("all is passed", || harness.committed() == 5);
            assert_eq!(delivered(&harness), [1, 3, 2, 4, 5], "{case}: the letter before what clears it away");
            assert_eq!(harness.ledger().len(), 1, "{case}");
            assert_eq!(harness.ledger()[0].resolution, Some(Resolution::Replayed), "{case}");
        }
    }
}

#[test]
fn a_truncate_that_is_rejected_is_no_dead_letter_that_would_clear_away_what_came_after_it() {
    for in_transactions in [false, true] {
        let harness = Harness::new();
        let a = plan(&harness, in_transactions, Park::Key).start();
        // Once more where the transaction is cut before it.
        a.faults.sink.refuse_row(id(2), FaultKind::Reject, 1 + u64::from(in_transactions));
        harness.append(&["a"]);
        harness.append_barrier();
        harness.append(&["b"]);
        harness.until("it is halted", || is_halted(&harness));
        assert_eq!((harness.committed(), harness.ledger().len(), delivered(&harness)), (1, 0, vec![1]));
        harness.perform(Move::Resume);
        harness.until("all is passed", || harness.committed() == 3);
        assert_eq!(delivered(&harness), [1, 2, 3]);
    }
}

#[test]
fn a_truncate_passes_a_filter_while_no_dead_letters_wait() {
    for in_transactions in [false, true] {
        let harness = Harness::new();
        let _a =
            plan(&harness, in_transactions, Park::Key).sink(|it| it.filter = Some(Arc::new(All::default()))).start();
        harness.append(&["a"]);
        harness.append_barrier();
        harness.append(&["b"]);
        harness.until("all is passed", || harness.committed() == 3);
        assert_eq!(delivered(&harness), [1, 2, 3]);
    }
}

/// How often a replay of one letter, behind which its key went on or waited, was warned of.
fn warned(harness: &Harness, plan: Plan) -> usize {
    let run = || {
        let a = plan.start();
        a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
        harness.append(&["k"]);
        harness.until("it is passed", || harness.committed() == 1);
        harness.append(&["k"]);
        harness.until("all is passed", || harness.committed() == 2);
        ask_for_replay(harness, 1);
        harness.until("all letters are settled", || harness.checkpoint().unwrap().facts.letters == 0);
    };
    Warnings::during(run, &["may have an older row now"])
}

#[test]
fn a_letter_that_may_be_older_than_what_the_target_has_is_reported_when_it_is_replayed() {
    for in_transactions in [false, true] {
        for (park, expected) in [(Park::Key, 0), (Park::Change, 1)] {
            let harness = Harness::new();
            let warned = warned(&harness, plan(&harness, in_transactions, park));
            assert_eq!(warned, expected, "in transactions: {in_transactions}, {park:?}");
        }
    }
    let harness = Harness::new();
    let versioned = plan(&harness, false, Park::Change).grade(Grade::Versioned);
    assert_eq!(warned(&harness, versioned), 0, "the target itself leaves out what is older");
}

#[test]
fn a_sink_that_answers_later_than_its_time_out_is_warned_of_with_what_to_do() {
    let harness = Harness::new();
    let run = || {
        let a = harness.instance("a").start();
        a.faults.sink.next("write", Fault::Hold(Gate::default()));
        harness.append(&["k"]);
        harness.until("it is written", || harness.committed() == 1);
    };
    assert_eq!(Warnings::during(run, &["longer than timeouts.write", "raise"]), 1);
}
