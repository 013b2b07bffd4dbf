//! Sinks that fail: time-outs, the breaker, flushes, rows that are tried again.

use watchkeeper_core::{Epoch, ErrorKind, FaultKind, Grade, LedgerKind, SinkProfile};
use watchkeeper_engine::delivery::backoff::Backoff;
use watchkeeper_engine::delivery::parking::{OnReject, Park};
use watchkeeper_engine::group::journal::Cause;
use watchkeeper_engine::listener::ListenerState::{Connecting, Running};
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

/// An instance whose sink is of this grade and settles in five seconds.
fn settling(harness: &Harness, grade: Grade) -> TestInstance {
    let plan = harness.instance("a").profile(SinkProfile::new(grade, 5 * SECOND));
    plan.stream(|it| it.timeouts.write = 2 * SECOND).start()
}

#[test]
fn after_a_time_out_an_exposed_sink_is_given_time_to_settle_before_the_write_is_repeated() {
    for (grade, at_least) in [(Grade::Plain, 7), (Grade::Idempotent, 7), (Grade::Versioned, 2), (Grade::Fenced, 2)] {
        let harness = Harness::new();
        let a = settling(&harness, grade);
        a.faults.sink.next("write", Fault::Hold(Gate::default()));
        harness.append(&["a"]);
        harness.until("the write hangs", || a.faults.sink.calls("write") == 1);
        let began = harness.now();
        harness.until("it is repeated", || a.faults.sink.calls("write") == 2);
        let waited = harness.now().since(began);
        let at_least = at_least * SECOND;
        assert!(waited >= at_least && waited <= at_least + 200 * MILLI, "{grade:?}: {waited:?}");
        harness.until("it is committed", || harness.committed() == 1);
        assert_eq!((a.state(), a.status().epoch), (Running, Some(Epoch(1))));
    }
}

#[test]
fn a_write_that_surely_had_no_effect_is_repeated_at_once() {
    let harness = Harness::new();
    let a = settling(&harness, Grade::Plain);
    a.faults.sink.next("write", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    harness.until("it is refused", || a.faults.sink.calls("write") == 1);
    let began = harness.now();
    harness.until("it is repeated", || a.faults.sink.calls("write") == 2);
    assert!(harness.now().since(began) <= 100 * MILLI);
}

#[test]
fn the_breaker_opens_after_failures_in_a_row_and_closes_when_the_sink_is_back() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    harness.append_many(3);
    harness.run_for(120 * SECOND);
    let tries = a.faults.sink.calls("write");
    assert!((8..=25).contains(&tries), "{tries} tries in two minutes");
    harness.run_for(120 * SECOND);
    assert!(a.faults.sink.calls("write") - tries <= 10, "it is tried ever less often");
    assert_eq!((a.state(), a.status().epoch, a.status().tenures), (Running, Some(Epoch(1)), 1), "waiting is progress");
    a.faults.sink.heal("write");
    harness.until("all is committed", || harness.committed() == 3);
    let began = harness.now();
    harness.append_many(5);
    harness.until("the rest is committed", || harness.committed() == 8);
    assert!(harness.now().since(began) < 2 * SECOND, "it is closed again");
    assert_eq!(harness.delivered(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn behind_an_open_breaker_the_watch_is_given_up_if_another_instance_could_do_better() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    let b = harness.start("b");
    harness.run_for(6 * SECOND);
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    let began = harness.now();
    harness.until("the other one commits", || harness.committed() == 1);
    let took = harness.now().since(began);
    assert!(took > 10 * SECOND && took < 30 * SECOND, "{took:?}");
    assert_eq!((a.state(), b.state(), harness.journal()[1].cause), (Connecting, Running, Cause::Failed));
    assert!(harness.journal()[1].note.contains("has not answered"), "{}", harness.journal()[1].note);
}

#[test]
fn behind_an_open_breaker_nothing_is_given_up_to_an_instance_that_is_silent() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    let b = harness.start("b");
    harness.run_for(6 * SECOND);
    b.node.kill();
    harness.run_for(70 * SECOND);
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    harness.run_for(60 * SECOND);
    assert_eq!((a.state(), a.status().tenures), (Running, 1));
}

#[test]
fn what_a_failed_flush_may_have_lost_is_written_again() {
    for fault in [Fault::Reject(ErrorKind::Unavailable), Fault::Lose, Fault::Hold(Gate::default())] {
        let harness = Harness::new();
        let a = harness.instance("a").grade(Grade::Versioned).stream(|it| it.timeouts.write = 2 * SECOND).start();
        harness.append(&["a"]);
        harness.until("one is committed", || harness.committed() == 1);
        a.faults.sink.next("flush", fault);
        harness.append(&["b", "c"]);
        harness.until("all is committed", || harness.committed() == 3);
        assert_eq!(harness.delivered(), [1, 2, 3]);
        assert_eq!((a.faults.sink.calls("open"), a.status().tenures), (2, 1), "it was opened again in the same tenure");
    }
}

#[test]
fn after_a_failed_flush_nothing_of_that_opening_is_committed() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    a.faults.sink.next("flush", Fault::Reject(ErrorKind::Unavailable));
    a.faults.sink.always("open", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    harness.run_for(10 * SECOND);
    assert_eq!(harness.committed(), 0);
    assert_eq!(a.faults.sink.calls("flush"), 1, "not even by the last flush of the opening");
    a.faults.sink.heal("open");
    harness.until("it is committed", || harness.committed() == 1);
    assert_eq!(harness.delivered(), [1]);
}

#[test]
fn a_sink_that_is_fenced_ends_the_tenure() {
    let harness = Harness::new();
    let a = harness.instance("a").grade(Grade::Fenced).start();
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    a.faults.sink.next("write", Fault::Reject(ErrorKind::Fenced));
    harness.append(&["b"]);
    harness.until("the tenure is over", || a.state() == Connecting);
    assert_eq!(harness.committed(), 1);
    harness.until("the next one commits", || harness.committed() == 2);
    assert_eq!(harness.checkpoint().unwrap().epoch, Epoch(2));
}

#[test]
fn a_row_is_tried_again_with_growing_pauses_and_those_behind_it_wait() {
    let harness = Harness::new();
    let a = harness.start("a");
    a.faults.sink.refuse_row(id(2), FaultKind::Retry, 4);
    let began = harness.now();
    harness.append(&["a", "b", "c"]);
    harness.until("all is committed", || harness.committed() == 3);
    // 100, 200, 400 and 800 ms, less up to half.
    let took = harness.now().since(began);
    assert!(took >= 750 * MILLI && took <= 3_500 * MILLI, "{took:?}");
    assert_eq!((harness.delivered(), harness.ledger().len()), (vec![1, 2, 3], 0));
}

#[test]
fn what_is_before_a_row_that_is_tried_again_is_committed_meanwhile() {
    let harness = Harness::new();
    let slowly = Backoff { first: 20 * SECOND, factor: 2, max: 60 * SECOND };
    let a = harness.instance("a").stream(|it| it.retry.backoff = slowly).start();
    a.faults.sink.refuse_row(id(3), FaultKind::Retry, 1);
    harness.append(&["a", "b", "c", "d"]);
    harness.run_for(5 * SECOND);
    assert_eq!(harness.committed(), 2);
    harness.until("all is committed", || harness.committed() == 4);
}

#[test]
fn a_target_that_is_away_for_long_is_waited_for_and_loses_no_change() {
    let harness = Harness::new();
    let a = harness.instance("a").start();
    a.faults.sink.refuse_row(id(2), FaultKind::Retry, 12);
    harness.append(&["a", "b", "c"]);
    harness.run_for(60 * SECOND);
    assert_eq!(harness.committed(), 1, "the target is still away");
    assert!(harness.ledger().is_empty(), "no change is rejected meanwhile");
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1, 2, 3]);
}

#[test]
fn a_target_that_is_away_here_is_left_to_another_instance() {
    let harness = Harness::new();
    let a = harness.instance("a").start();
    a.faults.sink.refuse_row(id(2), FaultKind::Retry, u64::MAX);
    harness.append(&["a", "b", "c"]);
    harness.until("the first change is committed", || harness.committed() == 1);
    let _b = harness.instance("b").start();
    harness.until("the other instance takes over and delivers the rest", || harness.committed() == 3);
    assert!(harness.ledger().is_empty());
}

#[test]
fn a_panic_on_the_same_change_again_and_again_counts_against_it() {
    let harness = Harness::new();
    let a = harness.instance("a").sink(|it| it.on_reject = OnReject::Skip).start();
    a.faults.sink.refuse_row(id(2), FaultKind::Panic, u64::MAX);
    harness.append(&["a", "b", "c"]);
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1, 3]);
    assert!(harness.ledger()[0].entry.cause.contains("given up after 5 attempts"));
}

#[test]
fn a_row_that_was_tried_often_enough_is_rejected() {
    let harness = Harness::new();
    let plan = harness.instance("a").sink(|it| it.on_reject = OnReject::Skip);
    let a = plan.stream(|it| it.retry.attempts = Some(5)).start();
    a.faults.sink.refuse_row(id(2), FaultKind::Retry, u64::MAX);
    harness.append(&["a", "b", "c"]);
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1, 3]);
    let ledger = harness.ledger();
    assert_eq!(
        (ledger.len(), ledger[0].entry.kind, ledger[0].entry.change_id.as_str()),
        (1, LedgerKind::Skipped, &*id(2))
    );
    assert!(ledger[0].entry.cause.contains("given up after 5 attempts"), "{}", ledger[0].entry.cause);
    assert_eq!(a.faults.sink.calls("write"), 6, "five attempts, and then the rest");
}

#[test]
fn a_rejected_change_that_is_skipped_stands_in_the_ledger_and_parks_nothing() {
    let harness = Harness::new();
    let a = harness.instance("a").sink(|it| it.on_reject = OnReject::Skip).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["a", "a", "b"]);
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [2, 3]);
    assert_eq!(harness.ledger().iter().map(|it| it.entry.kind).collect::<Vec<_>>(), [LedgerKind::Skipped]);
    assert_eq!(harness.checkpoint().unwrap().facts.letters, 0);
}

#[test]
fn what_one_sink_rejects_the_others_still_get() {
    let harness = Harness::new();
    let mut plan = harness.instance("a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key });
    let other = Probe::new(&harness, MILLI);
    plan.streams[0].sinks.push(watchkeeper_engine::stream::SinkSpec::new("other", std::sync::Arc::new(other.clone())));
    let a = plan.start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["a", "b", "a"]);
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(numbers(&other.delivered()), [1, 2, 3]);
    assert!(harness.ledger().iter().all(|record| record.entry.sink == "table"));
}

#[test]
fn a_sink_that_never_ends_a_call_and_a_process_that_is_well_keep_the_watch() {
    let harness = Harness::new();
    let a = harness.instance("a").grade(Grade::Versioned).stream(|it| it.timeouts.write = 3 * SECOND).start();
    a.faults.sink.times("write", 4, &Fault::Hold(Gate::default()));
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    assert_eq!((a.status().tenures, a.faults.sink.calls("write")), (1, 5), "time-outs end calls; nobody is stuck");
}
