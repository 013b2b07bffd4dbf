//! One tenure after the other: starting, resuming, failing by scope, leaving in order.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::memory::{Log, TransactionalTable};
use watchkeeper_core::{
    CheckpointStore, Claim, Epoch, ErrorKind, FaultKind, Grade, Grant, LedgerKind, Operation, Reason, Records,
    SinkProfile, Source, StartAt,
};
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::delivery::{HandlerError, HandlerSettings, ObserverExecutor, Operations, Routes, handler};
use watchkeeper_engine::group::control::Control;
use watchkeeper_engine::group::journal::Cause;
use watchkeeper_engine::listener::ListenerState::{Connecting, Recovering, Running, Stopped};
use watchkeeper_engine::settings::OnHistoryLost;
use watchkeeper_testkit::faults::{Fault, Gate, Script};

use crate::support::*;

#[test]
fn the_first_start_is_where_the_settings_say() {
    for (start, expected) in [
        (StartAt::Oldest, vec![1, 2, 3, 4]),
        (StartAt::Now, vec![4]),
        (StartAt::After(Log::position(2, None)), vec![3, 4]),
    ] {
        let harness = Harness::new();
        harness.append(&["a", "b", "c"]);
        let a = harness.instance("a").stream(|it| it.start = start).start();
        harness.until("it runs", || a.is_running());
        harness.run_for(SECOND);
        harness.append(&["d"]);
        harness.until("all is committed", || harness.committed() == 4);
        assert_eq!(harness.delivered(), expected);
    }
}

#[test]
fn a_checkpoint_says_what_people_want_to_see() {
    let harness = Harness::new();
    harness.append(&["a", "b"]);
    harness.append_change(Operation::Delete, Some("a"), b"{}");
    let _a = harness.start("a");
    harness.until("all is committed", || harness.committed() == 3);
    let checkpoint = harness.checkpoint().unwrap();
    assert_eq!((checkpoint.epoch, checkpoint.reason, checkpoint.halted), (Epoch(1), Reason::Progress, None));
    let facts = checkpoint.facts;
    assert_eq!((facts.last_operation, facts.last_event_time.unwrap().0), (Some(Operation::Delete), 3));
    assert_eq!((facts.changes, facts.failovers, facts.processed_by.as_str()), (3, 0, "a"));
    assert!(facts.updated_at_millis > 1_700_000_000_000);
}

#[test]
fn the_next_tenure_resumes_after_the_checkpoint() {
    let harness = Harness::new();
    let (a, _b) = (harness.start("a"), harness.start("b"));
    harness.append(&["a", "b", "c"]);
    harness.until("all is committed", || harness.committed() == 3);
    a.node.kill();
    harness.append(&["d"]);
    harness.until("the rest is committed", || harness.committed() == 4);
    assert_eq!(harness.delivered(), [1, 2, 3, 4], "what was committed is not delivered again");
    let checkpoint = harness.checkpoint().unwrap();
    assert_eq!((checkpoint.epoch, checkpoint.facts.failovers, checkpoint.facts.changes), (Epoch(2), 1, 4));
    assert_eq!(checkpoint.facts.processed_by, "b");
}

#[test]
fn after_a_crash_only_what_was_not_committed_is_delivered_again() {
    let harness = Harness::new();
    let a = harness.instance("a").stream(|it| it.checkpoint.every = 3 * SECOND).start();
    let _b = harness.start("b");
    harness.append(&["a", "b"]);
    harness.until("two are committed", || harness.committed() == 2);
    a.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["c"]);
    harness.until("three are delivered", || harness.delivered().len() == 3);
    a.node.kill();
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1, 2, 3, 3]);
}

#[test]
fn when_the_lease_store_forgets_the_next_grant_is_above_what_was_claimed() {
    let harness = Harness::new();
    // A stream with a long past, of which the lease store knows nothing.
    let grant = Grant { key: harness.key(), tenure: harness.world.entropy().tenure(), epoch: Epoch(1_000) };
    assert!(matches!(memory(harness.checkpoints.claim(&harness.cx(), &grant)), Claim::Claimed(_)));
    let a = harness.start("a");
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    assert_eq!((a.status().epoch, harness.leases.newest_epoch(&harness.key())), (Some(Epoch(1_001)), Epoch(1_001)));
    // And once more, while it has the watch.
    harness.leases.forget();
    let began = harness.now();
    harness.until("it has another grant", || a.status().epoch == Some(Epoch(1_002)));
    assert!(harness.now().since(began) < TTL, "the next renewal finds out");
    harness.append(&["b"]);
    harness.until("it is committed", || harness.committed() == 2);
    assert_eq!((harness.checkpoint().unwrap().epoch, harness.delivered()), (Epoch(1_002), vec![1, 2]));
}

#[test]
fn a_halted_stream_is_run_by_nobody_until_a_person_resumes_it() {
    let harness = Harness::new();
    let (a, b) = (harness.start("a"), harness.start("b"));
    for instance in [&a, &b] {
        instance.faults.sink.refuse_row(id(2), FaultKind::Reject, 1);
    }
    harness.append(&["a", "b", "c"]);
    harness.until("it is halted", || harness.control().halted_hint);
    harness.run_for(120 * SECOND);
    assert_eq!(harness.committed(), 1, "what is before the rejected change is committed");
    assert_eq!(harness.delivered(), [1, 3], "the sink took another key in the same call, and that is not committed");
    let halted = harness.checkpoint().unwrap().halted.expect("the checkpoint says so");
    assert_eq!(halted.code, "WK-REJECTED");
    assert!(halted.cause.contains(&id(2)), "{}", halted.cause);
    assert_eq!(harness.holder(), None);
    let asked = a.faults.leases.calls("try_acquire") + b.faults.leases.calls("try_acquire");
    assert!(asked <= 1 + 2 * 2, "the hint saves acquires, but each looks for itself once a minute: {asked}");
    let ran = if a.status().halted { &a } else { &b };
    assert_eq!(ran.state(), Stopped);
    a.faults.sink.refuse_row(id(2), FaultKind::Reject, 0);
    b.faults.sink.refuse_row(id(2), FaultKind::Reject, 0);
    let report = harness.perform(Move::Resume);
    assert_eq!(report.lifted.map(|halted| halted.code), Some("WK-REJECTED".to_owned()));
    let began = harness.now();
    harness.until("the rest is committed", || harness.committed() == 3);
    assert!(harness.now().since(began) < 3 * SECOND);
    assert_eq!(harness.delivered(), [1, 3, 2, 3]);
    assert!(!a.status().halted && !b.status().halted && ran.state() != Stopped);
}

#[test]
fn a_halt_that_only_the_checkpoint_knows_is_respected() {
    let harness = Harness::new();
    let a = harness.start("a");
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["a"]);
    harness.until("it is halted", || a.status().halted);
    a.stop(&harness);
    harness.want(|control| control.halted_hint = false);
    let b = harness.start("b");
    harness.until("it has found out", || b.status().halted);
    assert_eq!((harness.delivered(), b.faults.source.calls("open")), (vec![], 0));
    assert!(harness.control().halted_hint, "the hint is written again");
}

#[test]
fn lost_history_halts_the_stream() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a", "b"]);
    harness.until("two are committed", || harness.committed() == 2);
    a.stop(&harness);
    harness.append(&["c", "d", "e"]);
    harness.log.prune(4);
    let b = harness.start("b");
    harness.until("it is halted", || b.status().halted);
    let checkpoint = harness.checkpoint().unwrap();
    assert_eq!(checkpoint.halted.unwrap().code, "WK-POSITION-LOST");
    assert_eq!((harness.committed(), harness.delivered()), (2, vec![1, 2]), "nothing is skipped quietly");
}

#[test]
fn history_that_is_lost_while_it_is_read_halts_the_stream_too() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a"]);
    harness.until("one is committed", || harness.committed() == 1);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::PositionLost));
    harness.until("it is halted", || a.status().halted);
    assert_eq!(harness.committed(), 1);
}

#[test]
fn lost_history_that_is_accepted_leaves_a_gap_in_the_ledger_and_at_the_sinks() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a", "b"]);
    harness.until("two are committed", || harness.committed() == 2);
    a.stop(&harness);
    harness.append(&["c", "d", "e"]);
    harness.log.prune(4);
    let b = harness.instance("b").stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Oldest)).start();
    harness.until("the rest is committed", || harness.committed() == 5);
    assert!(b.is_running());
    let operations: Vec<_> = harness.table.delivered().iter().map(|change| change.operation).collect();
    assert_eq!(operations, [Operation::Insert, Operation::Insert, Operation::Gap, Operation::Insert]);
    assert_eq!(*harness.delivered().last().unwrap(), 5);
    let reported: serde_json::Value =
        serde_json::from_slice(&harness.table.delivered()[2].body).expect("sinks can read it");
    assert!(reported["cause"].as_str().unwrap().contains("pruned through 4"), "{reported}");
    let ledger = harness.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(ledger[0].entry.kind, LedgerKind::Gap);
    assert_eq!(ledger[0].entry.before, Some(Log::position(2, Some(watchkeeper_core::SourceTime(2)))));
    assert!(ledger[0].entry.cause.contains("pruned through 4"), "{}", ledger[0].entry.cause);
}

#[test]
fn a_gap_into_another_log_is_committed_with_the_identity_of_that_log() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a", "b"]);
    harness.until("two are committed", || harness.committed() == 2);
    a.stop(&harness);
    let restored = Harness { log: Log::new("restored"), ..harness.clone() };
    restored.append(&["x", "y"]);
    let b = restored.instance("b").stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Oldest));
    // The gap is told to the sinks and committed before anything more is read.
    b.faults.source.next("next_batch", Fault::Hold(Gate::default()));
    let b = b.start();
    harness.until("the gap is committed", || harness.committed() == 0);
    let expected = memory(restored.log.identity(&harness.cx()));
    assert_eq!(harness.checkpoint().unwrap().pedigree, Some(expected));
    b.node.kill();
    // Whoever goes on from there finds no second one, and would halt if it did.
    let _c = restored.start("c");
    harness.until("the rest is committed", || harness.committed() == 2);
    assert_eq!(harness.ledger().len(), 1);
}

#[test]
fn a_position_of_another_log_is_recognised_before_anything_is_read() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a", "b"]);
    harness.until("two are committed", || harness.committed() == 2);
    a.stop(&harness);
    // A restored server: it accepts the position, and would skip silently.
    let restored = Harness { log: Log::new("restored"), ..harness.clone() };
    restored.append(&["x", "y", "z"]);
    let b = restored.start("b");
    harness.until("it is halted", || b.status().halted);
    assert_eq!((b.faults.source.calls("open"), b.faults.source.calls("next_batch")), (0, 0));
    assert_eq!(harness.checkpoint().unwrap().halted.unwrap().code, "WK-POSITION-LOST");
    assert_eq!(harness.delivered(), [1, 2]);
}

#[test]
fn a_transient_error_is_recovered_from_inside_the_tenure() {
    let harness = Harness::new();
    let a = harness.start("a");
    let states = a.note_states(&harness);
    harness.append(&["a"]);
    harness.until("one is committed", || harness.committed() == 1);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    a.faults.source.times("open", 2, &Fault::Reject(ErrorKind::Unknown));
    harness.run_for(10 * SECOND);
    harness.append(&["b"]);
    harness.until("both are committed", || harness.committed() == 2);
    assert_eq!(states.all(), [Connecting, Running, Recovering, Running]);
    let recovering = states.durations()[2].1;
    // Three waits of at most 100, 300 and 900 milliseconds and at least half of that.
    assert!(recovering >= 650 * MILLI && recovering <= 1_300 * MILLI, "{recovering:?}");
    assert_eq!((harness.delivered(), a.status().tenures, a.status().epoch), (vec![1, 2], 1, Some(Epoch(1))));
}

#[test]
fn after_ten_recoveries_without_a_commit_another_instance_tries() {
    let harness = Harness::new();
    let a = harness.start("a");
    a.faults.source.always("open", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    harness.until("it recovers", || a.state() == Recovering);
    let b = harness.start("b");
    harness.until("the other one delivers", || harness.committed() == 1);
    assert_eq!(a.faults.source.calls("open"), 11);
    let journal = harness.journal();
    assert_eq!((journal[1].from.as_deref(), journal[1].to.as_str(), journal[1].cause), (Some("a"), "b", Cause::Failed));
    // It leaves the stream to the other one, and comes back at once when that is not there any more.
    a.faults.source.heal("open");
    harness.run_for(50 * SECOND);
    assert_eq!((a.status().tenures, a.faults.leases.calls("try_acquire")), (1, 1), "it stays away");
    let left = harness.now();
    b.stop(&harness);
    harness.until("it comes back", || a.is_running());
    let away = harness.now().since(left);
    assert!(away < SECOND, "{away:?}");
}

#[test]
fn recoveries_are_counted_anew_after_a_commit() {
    let harness = Harness::new();
    let a = harness.start("a");
    let _b = harness.start("b");
    for round in 1..=3 {
        harness.append(&["a"]);
        harness.until("it is committed", || harness.committed() == round);
        a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
        a.faults.source.times("open", 7, &Fault::Reject(ErrorKind::Unavailable));
        harness.until("the faults are over", || a.faults.source.pending("open") == 0);
    }
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 4);
    assert_eq!(harness.checkpoint().unwrap().epoch, Epoch(1));
}

#[test]
fn what_is_denied_here_is_left_to_another_instance_at_once() {
    for kind in [ErrorKind::Denied, ErrorKind::Config] {
        let harness = Harness::new();
        let a = harness.start("a");
        harness.until("it runs", || a.is_running());
        let b = harness.start("b");
        harness.run_for(SECOND);
        a.faults.source.always("next_batch", Fault::Reject(kind));
        let began = harness.now();
        harness.append(&["a"]);
        harness.until("it is committed", || harness.committed() == 1);
        assert!(harness.now().since(began) < 4 * SECOND);
        assert_eq!((a.state(), b.state()), (Connecting, Running));
        assert_eq!(harness.journal()[1].cause, Cause::Failed);
        assert!(a.status().last_error.unwrap().contains("next_batch is refused"));
        harness.run_for(50 * SECOND);
        assert_eq!(a.faults.leases.calls("try_acquire"), 1, "it stays away");
    }
}

/// A sink of handlers: `verdict` is asked for every change, and what it lets through is in the table.
fn handlers(
    harness: &Harness,
    verdict: impl Fn(u64) -> Result<(), HandlerError> + Send + Sync + 'static,
) -> Arc<dyn watchkeeper_core::Sink> {
    let (table, verdict) = (harness.table.clone(), Arc::new(verdict));
    let handle = handler(move |change| {
        let (table, verdict) = (table.clone(), Arc::clone(&verdict));
        async move {
            verdict(change.version().time)?;
            take(&table, &change).await;
            Ok(())
        }
    });
    let settings = HandlerSettings { settle: Duration::ZERO, ..HandlerSettings::default() };
    let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, handle));
    Arc::new(executor.with_settings(settings).unwrap().sink())
}

/// Puts a change into a table as if a sink had.
async fn take(table: &watchkeeper_core::memory::Table, change: &watchkeeper_core::Change) {
    use watchkeeper_core::{Cx, Grant, LeaseKey, OpenedSink, Sink, SinkContext, StoreIdentity, TenureId};
    let sink = watchkeeper_core::memory::TableSink::new(table.clone(), Grade::Plain);
    let tenure = TenureId(uuid::Uuid::nil());
    let context = SinkContext {
        grant: Grant { key: LeaseKey::new("h"), tenure, epoch: Epoch(0) },
        stream: "orders".into(),
        sink: "handlers".into(),
        partition: 0,
        lanes: 1,
        store: StoreIdentity(uuid::Uuid::nil()),
    };
    let cx = Cx::new(Arc::new(watchkeeper_core::BootClock));
    let OpenedSink::Plain(writer) = sink.open(&cx, &context).await.unwrap() else { return };
    writer.write(&cx, 0, change.batch(), &[change.row()]).await.unwrap();
    writer.flush(&cx).await.unwrap();
}

#[test]
fn a_handlers_fatal_error_releases_at_once_and_another_instance_goes_on() {
    let harness = Harness::new();
    let fatal = |number: u64| if number == 3 { Err(HandlerError::fatal("no licence here")) } else { Ok(()) };
    let a = harness.instance("a").into_sink(handlers(&harness, fatal)).start();
    harness.until("it runs", || a.is_running());
    let b = harness.instance("b").into_sink(handlers(&harness, |_| Ok(()))).start();
    harness.run_for(SECOND);
    let began = harness.now();
    harness.append(&["a", "b", "c", "d"]);
    harness.until("all is committed", || harness.committed() == 4);
    assert!(harness.now().since(began) < 2 * SECOND, "neither the lease nor a back-off was waited for");
    assert_eq!(harness.delivered(), [1, 2, 3, 4], "what the first one had taken is committed");
    assert!(b.is_running() && !a.status().halted);
    let takeover = harness.journal().pop().unwrap();
    assert_eq!((takeover.cause, takeover.vacant_millis < 100), (Cause::Failed, true));
    assert!(takeover.note.contains("no licence here"), "{}", takeover.note);
}

#[test]
fn a_change_that_is_fatal_on_two_instances_halts_the_stream() {
    let harness = Harness::new();
    let fatal = |number: u64| if number == 2 { Err(HandlerError::fatal("poison")) } else { Ok(()) };
    let names = ["a", "b", "c"];
    let instances = names.map(|name| harness.instance(name).into_sink(handlers(&harness, fatal)).start());
    harness.append(&["a", "b", "c"]);
    harness.until("it is halted", || instances.iter().any(|instance| instance.status().halted));
    harness.run_for(120 * SECOND);
    let tenures: u64 = instances.iter().map(|instance| instance.status().tenures).sum();
    assert_eq!(tenures, 2, "it did not tour the group");
    let halted = harness.checkpoint().unwrap().halted.unwrap();
    assert!(halted.cause.contains(&id(2)) && halted.cause.contains("on 2 instances"), "{}", halted.cause);
    assert_eq!((harness.delivered(), harness.committed()), (vec![1], 1));
}

#[test]
fn resuming_gives_a_fatal_change_another_chance_on_two_instances() {
    let harness = Harness::new();
    let fatal = |number: u64| if number == 1 { Err(HandlerError::fatal("poison")) } else { Ok(()) };
    let instances = ["a", "b"].map(|name| harness.instance(name).into_sink(handlers(&harness, fatal)).start());
    harness.append(&["a"]);
    harness.until("it is halted", || harness.control().halted_hint);
    harness.perform(Move::Resume);
    harness.until("it is halted again", || harness.control().halted_hint);
    let tenures: u64 = instances.iter().map(|instance| instance.status().tenures).sum();
    assert_eq!(tenures, 4, "two before and two after");
}

#[test]
fn a_shutdown_delivers_and_commits_everything_that_was_read_and_releases_last() {
    let harness = Harness::new();
    let a = harness.instance("a").stream(|it| it.checkpoint.every = 3600 * SECOND).start();
    harness.append_many(50);
    harness.until("it has read them", || a.faults.sink.calls("write") > 0);
    let gate = Gate::default();
    a.faults.checkpoints.next("commit", Fault::Hold(gate.clone()));
    a.running.shutdown();
    harness.until("the last commit is under way", || gate.arrived() == 1);
    harness.run_for(SECOND);
    assert_eq!(harness.holder(), Some(("a".to_owned(), Epoch(1))), "the lease is held until the commit is done");
    assert_eq!(harness.delivered().len(), 50);
    gate.open();
    a.stop(&harness);
    assert_eq!((harness.committed(), harness.holder()), (50, None));
    assert_eq!(harness.checkpoint().unwrap().reason, Reason::Final);
}

#[test]
fn a_shutdown_closes_sinks_and_source_before_the_release() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    let gate = Gate::default();
    a.faults.leases.next("release", Fault::Hold(gate.clone()));
    let (sink, source) = (a.faults.sink.clone(), a.faults.source.clone());
    a.running.shutdown();
    harness.until("it releases", || gate.arrived() == 1);
    assert_eq!((sink.calls("close"), source.calls("close")), (1, 1));
    gate.open();
    a.stop(&harness);
}

#[test]
fn a_shutdown_ends_all_states_and_leaves_the_group() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    let states = a.note_states(&harness);
    a.stop(&harness);
    harness.run_for(MILLI);
    assert_eq!(states.all().last(), Some(&Stopped));
    let records = memory(Records::list(&harness.notes, &harness.cx(), "shop/instances/"));
    assert_eq!(records, []);
}

#[test]
fn a_sink_that_hangs_does_not_hold_a_shutdown_for_longer_than_its_grace() {
    let harness = Harness::new();
    let a = harness.instance("a").set(|it| it.shutdown_grace = 4 * SECOND).grade(Grade::Versioned).start();
    a.faults.sink.always("write", Fault::Hold(Gate::default()));
    harness.append(&["a"]);
    harness.until("it writes", || a.faults.sink.calls("write") == 1);
    let began = harness.now();
    a.stop(&harness);
    let took = harness.now().since(began);
    assert!(took >= 4 * SECOND && took < 5 * SECOND, "{took:?}");
    assert_eq!((harness.committed(), harness.holder()), (0, None), "nothing was committed, and the lease is free");
}

#[test]
fn after_calls_to_an_exposed_sink_were_abandoned_the_release_waits_until_they_have_settled() {
    let harness = Harness::new();
    let (grace, settle) = (2 * SECOND, 3 * SECOND);
    let exposed = SinkProfile::new(Grade::Idempotent, settle);
    let a = harness.instance("a").set(|it| it.shutdown_grace = grace).profile(exposed.clone()).start();
    harness.until("it runs", || a.is_running());
    let b = harness.instance("b").profile(exposed).start();
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate));
    harness.append(&["a"]);
    harness.until("it writes", || a.faults.sink.calls("write") == 1);
    let began = harness.now();
    a.running.shutdown();
    harness.run_for(grace + settle - 10 * MILLI);
    assert_eq!(harness.holder(), Some(("a".to_owned(), Epoch(1))));
    harness.until("the other one runs", || b.is_running());
    assert!(harness.now().since(began) < grace + settle + 100 * MILLI);
    harness.until("it is committed", || harness.committed() == 1);
    assert_eq!(b.faults.sink.calls("write"), 1, "the other one delivers it");
}

#[test]
fn a_holder_that_was_stopped_past_its_lease_writes_and_commits_nothing_more() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    let b = harness.start("b");
    harness.run_for(SECOND);
    a.node.pause();
    harness.append(&["b", "c"]);
    harness.until("the other one has the watch", || harness.committed() == 3);
    let (writes, flushes) = (a.faults.sink.calls("write"), a.faults.sink.calls("flush"));
    let commits = a.faults.checkpoints.calls("commit");
    a.node.resume();
    harness.append(&["d"]);
    harness.until("it is committed", || harness.committed() == 4);
    harness.run_for(2 * TTL);
    assert_eq!((a.faults.sink.calls("write"), a.faults.sink.calls("flush")), (writes, flushes));
    assert_eq!(a.faults.checkpoints.calls("commit"), commits);
    assert_eq!((a.state(), b.state(), harness.delivered()), (Connecting, Running, vec![1, 2, 3, 4]));
}

#[test]
fn the_journal_tells_who_relieved_whom_why_and_after_how_long() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("a runs", || a.is_running());
    let b = harness.start("b");
    harness.run_for(6 * SECOND);
    a.stop(&harness);
    harness.until("b runs", || b.is_running());
    let c = harness.start("c");
    harness.run_for(6 * SECOND);
    // Silent for a whole lease; the next one looks just after.
    b.node.kill();
    harness.until("c runs", || c.is_running());
    let d = harness.start("d");
    harness.run_for(6 * SECOND);
    let epoch = c.status().epoch;
    harness.want(|control| control.hand_over = epoch);
    harness.until("d runs", || d.is_running());
    harness.run_for(SECOND);
    let journal = harness.journal();
    let reported: Vec<_> =
        journal.iter().map(|it| (it.epoch.0, it.from.as_deref(), it.to.as_str(), it.cause)).collect();
    assert_eq!(
        reported,
        [
            (1, None, "a", Cause::First),
            (2, Some("a"), "b", Cause::Released),
            (3, Some("b"), "c", Cause::Expired),
            (4, Some("c"), "d", Cause::Operator),
        ]
    );
    assert!(journal.iter().all(|takeover| takeover.vacant_millis < 100), "{journal:?}");
    assert_eq!((journal[1].note.as_str(), journal[3].note.as_str()), ("shut down", "asked to hand over"));
}

#[test]
fn the_journal_counts_the_time_without_a_holder() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("a runs", || a.is_running());
    a.node.kill();
    harness.run_for(TTL + 20 * SECOND);
    let b = harness.start("b");
    harness.until("b runs", || b.is_running());
    harness.run_for(SECOND);
    let takeover = harness.journal().pop().unwrap();
    assert_eq!(takeover.cause, Cause::Expired);
    assert!((20_000..25_000).contains(&takeover.vacant_millis), "{takeover:?}");
}

#[test]
fn a_checkpoint_store_that_one_instance_cannot_reach_is_left_to_another() {
    for call in ["claim", "commit"] {
        let harness = Harness::new();
        let plan = harness.instance("a");
        plan.faults.checkpoints.always(call, Fault::Reject(ErrorKind::Unavailable));
        let a = plan.start();
        harness.append(&["a"]);
        harness.until("it has the lease", || harness.holder().is_some());
        let b = harness.start("b");
        let began = harness.now();
        harness.until("the other one commits", || harness.committed() == 1);
        let took = harness.now().since(began);
        assert!(took < 60 * SECOND && b.is_running() && !a.is_running(), "{call}: {took:?}");
        harness.run_for(SECOND);
        assert_eq!(harness.journal().pop().unwrap().cause, Cause::Failed, "{call}");
    }
}

#[test]
fn whatever_does_not_answer_a_shutdown_ends_in_time() {
    type Break = fn(&Faults);
    let hangs = |script: &Script, call| script.always(call, Fault::Hold(Gate::default()));
    let breaks: [(&str, Break); 7] = [
        ("claim", |it| it.checkpoints.always("claim", Fault::Reject(ErrorKind::Unavailable))),
        ("identity", |it| it.checkpoints.always("identity", Fault::Hold(Gate::default()))),
        ("commit", |it| it.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable))),
        ("open", |it| it.source.always("open", Fault::Hold(Gate::default()))),
        ("next_batch", |it| it.source.always("next_batch", Fault::Hold(Gate::default()))),
        ("sink", |it| it.sink.always("write", Fault::Reject(ErrorKind::Unavailable))),
        ("halt", |it| {
            it.sink.refuse_row(id(1), FaultKind::Reject, u64::MAX);
            it.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
        }),
    ];
    for (what, break_it) in breaks {
        let harness = Harness::new();
        let a = harness.start("a");
        break_it(&a.faults);
        harness.append(&["a"]);
        harness.run_for(20 * SECOND);
        hangs(&a.faults.source, "close");
        let began = harness.now();
        a.stop(&harness);
        let took = harness.now().since(began);
        // The grace, and what release notice and release take at most.
        assert!(took <= 10 * SECOND + TTL, "{what}: {took:?}");
    }
}

#[test]
fn an_instance_that_crashed_has_said_nothing() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("a runs", || a.is_running());
    // A release notice of an earlier tenure.
    harness.want(Control::pause);
    harness.until("a has left", || harness.holder().is_none());
    harness.want(Control::unpause);
    harness.until("a runs again", || a.is_running());
    let b = harness.start("b");
    harness.run_for(6 * SECOND);
    a.node.kill();
    harness.until("b runs", || b.is_running());
    harness.run_for(SECOND);
    let last = harness.journal().pop().unwrap();
    assert_eq!((last.from.as_deref(), last.cause, last.note.as_str()), (Some("a"), Cause::Expired, ""));
}

/// A source that cannot go on halts its stream right behind what it has read, however slow the sink is.
#[test]
fn what_was_read_is_delivered_before_the_source_halts_the_stream() {
    for (kind, is_transactional) in
        [ErrorKind::Corrupt, ErrorKind::PositionLost].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let harness = Harness::new();
        harness.append_many(3);
        let plan = harness.instance("a");
        let plan = match is_transactional {
            true => plan.into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone()))),
            false => plan,
        };
        let call = if is_transactional { "write_and_commit" } else { "write" };
        plan.faults.sink.always(call, Fault::Delay(2 * SECOND));
        plan.faults.source.next("next_batch", Fault::Good);
        plan.faults.source.next("next_batch", Fault::Reject(kind));
        let a = plan.start();
        harness.until("the stream is halted", || a.status().halted);
        assert_eq!(harness.committed(), 3, "{kind:?}, transactional: {is_transactional}");
        a.stop(&harness);
    }
}
