//! Faults that a review of the engine found, each as the shortest story in which it shows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use watchkeeper_core::memory::{Log, TableSink, TransactionalTable};
use watchkeeper_core::{
    Batch, ChangeStream, CheckpointStore, Cx, Epoch, Error, ErrorKind, Fault as RowFault, FaultKind, Finding,
    FlushRejection, Grade, LedgerKind, OpenedSink, Operation, Payload, Pedigree, Position, Resolution, Result, Sink,
    SinkContext, SinkProfile, SinkWriter, Source, StartAt, Verdict, Written,
};
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::delivery::{ObserverExecutor, OnReject, Operations, Park, Routes, handler};
use watchkeeper_engine::group::control::ReplayRequest;
use watchkeeper_engine::group::journal::Cause;
use watchkeeper_engine::settings::{FastTakeover, OnHistoryLost};
use watchkeeper_engine::stream::SinkSpec;
use watchkeeper_testkit::faults::{Fault, FaultySink, Gate};

use crate::support::*;

const DEAD_LETTERS: OnReject = OnReject::DeadLetter { park: Park::Key };

/// What a sink does beside keeping a table.
#[derive(Debug, Clone)]
enum HandlerMode {
    /// It panics when it is opened, while this is set.
    PanicWhenOpened(Arc<AtomicBool>),
    /// It loses what was written and panics at so many flushes.
    PanicAtFlushes(Arc<AtomicU64>),
    /// It rejects these rows of the first batch, at a flush and in this order.
    RejectAtFlush(Vec<u32>),
    /// It rejects every row when it is written.
    RejectAll,
}

/// A table sink that buffers by itself.
#[derive(Debug)]
struct Moody(TableSink, HandlerMode);

/// What a write accepted: its lane, its batch and its rows.
type Accepted = (usize, Arc<Batch>, Vec<u32>);

#[derive(Debug)]
struct MoodyWriter {
    table: Arc<dyn SinkWriter>,
    mode: HandlerMode,
    buffer: Mutex<Vec<Accepted>>,
}

fn moody(harness: &Harness, mode: HandlerMode) -> Arc<dyn Sink> {
    Arc::new(Moody(TableSink::new(harness.table.clone(), Grade::Plain), mode))
}

#[async_trait]
impl Sink for Moody {
    fn profile(&self) -> SinkProfile {
        self.0.profile()
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.0.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        if let HandlerMode::PanicWhenOpened(now) = &self.1 {
            assert!(!now.load(Ordering::Relaxed), "on purpose: the sink panics when it is opened");
        }
        let OpenedSink::Plain(table) = self.0.open(cx, context).await? else { panic!("a table is plain") };
        Ok(OpenedSink::Plain(Arc::new(MoodyWriter { table, mode: self.1.clone(), buffer: Mutex::default() })))
    }
}

fn no_taste(row: u32) -> RowFault {
    RowFault { row, kind: FaultKind::Reject, error: Error::config("not to my taste") }
}

#[async_trait]
impl SinkWriter for MoodyWriter {
    async fn write(&self, _cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        if let HandlerMode::RejectAll = self.mode {
            let rejected = rows.iter().copied().map(no_taste).collect();
            return Ok(Written { rejected, ..Written::all(rows) });
        }
        self.buffer.lock().unwrap().push((lane, Arc::clone(batch), rows.to_vec()));
        Ok(Written::all(rows))
    }

    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>> {
        let buffer = std::mem::take(&mut *self.buffer.lock().unwrap());
        if let HandlerMode::PanicAtFlushes(left) = &self.mode {
            let due = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            assert!(due.is_err(), "on purpose: the sink panics in flush");
        }
        let bad: &[u32] = if let HandlerMode::RejectAtFlush(rows) = &self.mode { rows } else { &[] };
        let mut rejections = Vec::new();
        for (lane, batch, rows) in buffer {
            let is_bad = |row: &u32| batch.seq == 0 && bad.contains(row);
            let good: Vec<u32> = rows.iter().copied().filter(|row| !is_bad(row)).collect();
            let here = bad.iter().filter(|row| is_bad(row) && rows.contains(row));
            rejections.extend(here.map(|row| FlushRejection {
                batch_seq: batch.seq,
                row: *row,
                error: no_taste(*row).error,
            }));
            self.table.write(cx, lane, &batch, &good).await?;
        }
        self.table.flush(cx).await?;
        Ok(rejections)
    }

    async fn close(&self, cx: &Cx) -> Result<()> {
        self.table.close(cx).await
    }
}

/// The ids of the ledger and why they are there, in order.
fn letters(harness: &Harness) -> Vec<(LedgerKind, String)> {
    harness.ledger().into_iter().map(|record| (record.entry.kind, record.entry.change_id)).collect()
}

fn replay(harness: &Harness) {
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
}

/// Asks the instance to end, and says how long that took.
fn time_to_stop(harness: &Harness, instance: TestInstance) -> std::time::Duration {
    let began = harness.now();
    instance.stop(harness);
    harness.now().since(began)
}

#[test]
fn every_rejection_of_a_flush_is_taken_in_whatever_their_order() {
    for rows in [vec![2, 7], vec![7, 2]] {
        let harness = Harness::new();
        harness.append_many(10);
        let a = harness.instance("a").into_sink(moody(&harness, HandlerMode::RejectAtFlush(rows.clone()))).start();
        harness.until("it is halted", || a.status().halted);
        assert_eq!((harness.committed(), letters(&harness)), (2, vec![]), "nothing is passed, rejected as {rows:?}");
        a.stop(&harness);
        harness.perform(Move::Resume);
        let _b = harness.start("b");
        harness.until("all is committed", || harness.committed() == 10);
        let delivered = harness.delivered();
        assert!((1..=10).all(|number| delivered.contains(&number)), "{delivered:?}");
    }
}

#[test]
fn parked_keys_stay_parked_over_a_reopening() {
    let harness = Harness::new();
    let a = harness.instance("a").sink(|it| it.on_reject = DEAD_LETTERS).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k", "j"]);
    harness.until("the letter is committed", || harness.committed() == 2);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.until("it opens again", || a.faults.source.calls("open") == 2);
    harness.append(&["k", "j"]);
    harness.until("the rest is committed", || harness.committed() == 4);
    assert_eq!(letters(&harness), [(LedgerKind::DeadLetter, id(1)), (LedgerKind::Parked, id(3))]);
    assert_eq!((harness.delivered(), a.status().tenures), (vec![2, 4], 1));
    replay(&harness);
    harness.until("all letters are settled", || harness.ledger().iter().all(|record| record.resolution.is_some()));
    assert_eq!(harness.delivered(), [2, 4, 1, 3]);
}

#[test]
fn a_bulk_write_takes_later_changes_of_a_rejected_key_into_the_ledger() {
    let harness = Harness::new();
    harness.append(&["k", "k", "j"]);
    let plan = harness.instance("a").sink(|it| it.on_reject = DEAD_LETTERS);
    plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    let a = plan.start();
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(a.faults.sink.calls("write"), 1, "it was one write in bulk, which took the second one");
    assert_eq!(harness.delivered(), [2, 3]);
    assert_eq!(letters(&harness), [(LedgerKind::DeadLetter, id(1)), (LedgerKind::Parked, id(2))]);
    replay(&harness);
    harness.until("all letters are settled", || harness.ledger().iter().all(|record| record.resolution.is_some()));
    assert_eq!(harness.delivered(), [2, 3, 1, 2], "the last word of the key is its last change");
}

#[test]
fn too_many_changes_behind_one_parked_key_halt_the_stream() {
    let harness = Harness::new();
    harness.append(&["k"; 10_500]);
    let plan = harness.instance("a").sink(|it| it.on_reject = DEAD_LETTERS);
    plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    let a = plan.start();
    harness.until("it is halted", || a.status().halted);
    let halted = harness.checkpoint().unwrap().halted.unwrap();
    assert!(halted.cause.contains("10000"), "{}", halted.cause);
}

#[test]
fn a_panic_in_flush_ends_the_opening() {
    let harness = Harness::new();
    let a = harness
        .instance("a")
        .into_sink(moody(&harness, HandlerMode::PanicAtFlushes(Arc::new(u64::MAX.into()))))
        .start();
    harness.until("it runs", || a.is_running());
    let _b = harness.start("b");
    harness.run_for(6 * SECOND);
    harness.append(&["x"]);
    let began = harness.now();
    harness.until("the other one has committed it", || harness.committed() == 1);
    assert!(harness.now().since(began) < 4 * SECOND, "it gave the lease back: {:?}", harness.now().since(began));
    assert!(a.status().last_error.unwrap().contains("the sink panics in flush"));
    assert_eq!(harness.journal()[1].cause, Cause::Failed);
    assert!(time_to_stop(&harness, a) < SECOND);
}

#[test]
fn what_a_panicking_flush_may_have_lost_is_not_passed() {
    let harness = Harness::new();
    harness.append(&["x", "y"]);
    let a = harness.instance("a").into_sink(moody(&harness, HandlerMode::PanicAtFlushes(Arc::new(1.into())))).start();
    harness.until("it is committed", || harness.committed() == 2);
    assert_eq!(harness.delivered(), [1, 2]);
    assert!(a.status().last_error.unwrap().contains("panics in flush"));
}

#[test]
fn a_panic_while_opening_a_sink_lets_another_instance_take_over() {
    let harness = Harness::new();
    let now = Arc::new(AtomicBool::new(false));
    let a = harness.instance("a").into_sink(moody(&harness, HandlerMode::PanicWhenOpened(Arc::clone(&now)))).start();
    harness.until("it runs", || a.is_running());
    let b = harness.start("b");
    harness.run_for(6 * SECOND);
    now.store(true, Ordering::Relaxed);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["x"]);
    let began = harness.now();
    harness.until("b has the watch", || b.is_running());
    // The wait for the next read, the one before the reopening, and the lease.
    assert!(harness.now().since(began) < 3 * SECOND + TTL);
    harness.until("it is committed", || harness.committed() == 1);
    harness.run_for(30 * SECOND);
    assert_eq!(harness.holder(), Some(("b".to_owned(), Epoch(2))), "it stays there");
    assert!(time_to_stop(&harness, a) < SECOND);
}

/// A server whose log can be replaced by another, as when it is restored.
#[derive(Debug)]
struct Server {
    logs: [Log; 2],
    restored: AtomicBool,
    opened: Mutex<Vec<(String, StartAt)>>,
}

impl Server {
    fn log(&self) -> &Log {
        &self.logs[usize::from(self.restored.load(Ordering::Relaxed))]
    }
}

#[async_trait]
impl Source for Server {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.log().check(cx).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        self.log().identity(cx).await
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<std::cmp::Ordering> {
        self.log().compare(a, b)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        self.log().payload()
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.opened.lock().unwrap().push((self.log().name().to_owned(), start.clone()));
        self.log().open(cx, start).await
    }
}

/// A server with ten changes, and after it was restored with twenty others.
fn server(harness: &Harness) -> (Arc<Server>, Harness) {
    harness.append_many(10);
    let restored = Harness { log: Log::new("restored"), ..harness.clone() };
    restored.append_many(20);
    let logs = [harness.log.clone(), restored.log.clone()];
    (Arc::new(Server { logs, restored: AtomicBool::new(false), opened: Mutex::default() }), restored)
}

/// An instance that goes on after a gap with what comes then.
fn reader_of(harness: &Harness, server: &Arc<Server>, name: &str) -> Plan {
    let plan = harness.instance(name).stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Now));
    plan.reading(Arc::clone(server) as Arc<dyn Source>)
}

#[track_caller]
fn goes_on(harness: &Harness, restored: &Harness) {
    restored.append(&["x"]);
    harness.until("it goes on with the new log", || harness.committed() == 21);
    assert_eq!(harness.checkpoint().unwrap().pedigree, Some(Pedigree("restored".into())));
}

/// The next change of the restored log is delivered, and what it had before is the gap.
#[track_caller]
fn goes_on_after_the_gap(harness: &Harness, server: &Server, restored: &Harness) {
    goes_on(harness, restored);
    let opened = server.opened.lock().unwrap();
    let starts: Vec<_> = opened.iter().filter(|(log, _)| log == "restored").map(|(_, start)| start).collect();
    assert!(starts.iter().all(|start| **start == StartAt::Now), "a foreign position was resumed from: {starts:?}");
    let of_new = harness.table.delivered().iter().filter(|change| change.id.starts_with("restored")).count();
    assert_eq!(of_new, 1, "what the restored log had before is the gap");
    assert!(harness.ledger().iter().all(|record| record.entry.kind == LedgerKind::Gap));
}

#[test]
fn a_position_before_a_gap_stays_with_its_own_log() {
    let harness = Harness::new();
    let (server, restored) = server(&harness);
    let a = reader_of(&harness, &server, "a").start();
    harness.until("all of the old log is committed", || harness.committed() == 10);
    server.restored.store(true, Ordering::Relaxed);
    // The second one ends the opening after the gap, before it has read anything of the new log.
    a.faults.source.times("next_batch", 2, &Fault::Reject(ErrorKind::Unavailable));
    harness.until("it has opened twice more", || server.opened.lock().unwrap().len() == 3);
    goes_on_after_the_gap(&harness, &server, &restored);
}

#[test]
fn the_sinks_are_reported_a_gap_under_the_log_that_is_gone_on_with_and_nothing_more_is_lost() {
    let harness = Harness::new();
    let (server, restored) = server(&harness);
    let a = reader_of(&harness, &server, "a").start();
    harness.until("all of the old log is committed", || harness.committed() == 10);
    server.restored.store(true, Ordering::Relaxed);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    a.faults.source.next("next_batch", Fault::Hold(Gate::default()));
    harness.until("the gap is told and committed", || harness.checkpoint().unwrap().facts.changes == 11);
    assert_eq!((harness.committed(), harness.checkpoint().unwrap().pedigree), (20, Some(Pedigree("restored".into()))));
    a.node.kill();
    let _b = reader_of(&harness, &server, "b").start();
    // What comes while nobody reads is after the gap: it would be lost if b began at another "now".
    goes_on(&harness, &restored);
    assert_eq!(harness.ledger().len(), 1, "there was one gap");
}

#[test]
fn the_log_after_a_gap_is_known_although_its_position_looks_the_same() {
    let harness = Harness::new();
    let (server, restored) = server(&harness);
    let a = reader_of(&harness, &server, "a").start();
    harness.append_many(10);
    harness.until("as many are committed as the other log has", || harness.committed() == 20);
    server.restored.store(true, Ordering::Relaxed);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.until("the gap is told and committed", || harness.checkpoint().unwrap().facts.changes == 21);
    harness.run_for(5 * SECOND);
    a.stop(&harness);
    let _b = reader_of(&harness, &server, "b").start();
    goes_on(&harness, &restored);
    assert_eq!(harness.ledger().len(), 1, "there was one gap");
}

#[test]
fn one_gap_is_written_once() {
    let harness = Harness::new();
    harness.append_many(10);
    let a = harness.instance("a").stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Oldest)).start();
    harness.until("all is committed", || harness.committed() == 10);
    a.faults.source.always("open", Fault::Reject(ErrorKind::PositionLost));
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.run_for(60 * SECOND);
    assert!(a.faults.source.calls("open") > 4, "it was tried often");
    assert_eq!(letters(&harness), [(LedgerKind::Gap, String::new())]);
    a.faults.source.heal("open");
    harness.append(&["x"]);
    harness.until("it goes on", || harness.committed() == 11);
    let gaps = harness.table.delivered().iter().filter(|change| change.operation == Operation::Gap).count();
    assert_eq!((gaps, harness.ledger().len(), a.status().tenures), (1, 1, 1));
}

#[test]
fn writing_a_gap_is_no_progress() {
    let harness = Harness::new();
    harness.append_many(10);
    let plan = |name| harness.instance(name).stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Oldest));
    let a = plan("a").start();
    harness.until("all is committed", || harness.committed() == 10);
    let b = plan("b").start();
    a.faults.source.always("open", Fault::Reject(ErrorKind::PositionLost));
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.until("another instance tries", || b.is_running());
    assert_eq!(a.faults.source.calls("open"), 11, "the first one, and as many as there may be recoveries");
}

#[test]
fn a_gap_that_cannot_be_committed_moves_the_stream_to_a_peer() {
    let harness = Harness::new();
    harness.append_many(10);
    let plan = |name| harness.instance(name).stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Oldest));
    let a = plan("a").start();
    harness.until("all is committed", || harness.committed() == 10);
    let b = plan("b").start();
    harness.run_for(6 * SECOND);
    a.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
    a.faults.source.always("open", Fault::Reject(ErrorKind::PositionLost));
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.until("the other one tries", || b.is_running());
    harness.until("the journal has it", || harness.journal().len() == 2);
    assert_eq!(harness.journal()[1].cause, Cause::Failed, "it was released, not lost");
    harness.run_for(30 * SECOND);
    assert_eq!(harness.holder(), Some(("b".to_owned(), Epoch(2))), "and stays there");
}

#[test]
fn a_dead_letter_that_cannot_be_read_again_stays_and_the_stream_goes_on() {
    for policy in [OnHistoryLost::Halt, OnHistoryLost::GoOn(StartAt::Now)] {
        let harness = Harness::new();
        let body = format!("\"{}\"", "x".repeat(watchkeeper_core::ledger::BODY_BYTES_MAX));
        harness.append_change(Operation::Insert, Some("k"), body.as_bytes());
        let plan = harness.instance("a").sink(|it| it.on_reject = DEAD_LETTERS).stream(|it| {
            it.on_history_lost = policy;
            // One by one, so that something is left to be read when the letter is looked for.
            it.limits.rows = 1;
        });
        plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
        let a = plan.start();
        harness.until("the letter is committed, and its change pruned", || harness.log.pruned() == 1);
        a.faults.source.always("next_batch", Fault::Delay(SECOND));
        harness.append(&["j", "k", "j"]);
        replay(&harness);
        harness.until("all is committed", || harness.committed() == 4);
        harness.until("the wish is struck off", || harness.control().replay.is_none());
        assert_eq!(letters(&harness), [(LedgerKind::DeadLetter, id(1)), (LedgerKind::Parked, id(3))]);
        assert!(harness.ledger().iter().all(|record| record.resolution.is_none()), "they stay");
        assert_eq!((harness.delivered(), a.status().halted), (vec![2, 4], false));
    }
}

#[test]
fn a_dead_letter_is_read_again_from_just_before_it() {
    let harness = Harness::new();
    let body = format!("\"{}\"", "x".repeat(watchkeeper_core::ledger::BODY_BYTES_MAX));
    harness.append(&["i"]);
    harness.append_change(Operation::Insert, Some("k"), body.as_bytes());
    let plan = harness.instance("a").sink(|it| it.on_reject = DEAD_LETTERS).stream(|it| it.limits.rows = 1);
    plan.faults.sink.refuse_row(id(2), FaultKind::Reject, 1);
    plan.faults.source.always("acknowledge", Fault::Reject(ErrorKind::Unavailable));
    let _a = plan.start();
    harness.until("the letter is committed", || harness.committed() == 2);
    let before = harness.ledger()[0].entry.before.as_ref().map(|position| Log::number(position).unwrap());
    assert_eq!(before, Some(1), "although it is the first of its batch");
    // What is older is of no use for it, and may be gone.
    harness.log.prune(1);
    replay(&harness);
    harness.until("the letter is settled", || harness.ledger()[0].resolution == Some(Resolution::Replayed));
    assert_eq!(harness.delivered(), [1, 2]);
}

#[test]
fn slow_handlers_make_progress_although_a_whole_batch_exceeds_the_time_out() {
    let harness = Harness::new();
    harness.append(&["k"; 1_000]);
    let calls = Arc::new(AtomicU64::new(0));
    let (counted, clock) = (Arc::clone(&calls), harness.world.clock());
    let slow = handler(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let done = clock.sleep_until(clock.now() + 50 * MILLI);
        async move {
            done.await;
            Ok(())
        }
    });
    let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, slow));
    let a = harness.instance("a").into_sink(Arc::new(executor.sink())).start();
    let began = harness.now();
    harness.until("all is committed", || harness.committed() == 1_000);
    assert!(harness.now().since(began) < 55 * SECOND, "fifty seconds of work took {:?}", harness.now().since(began));
    assert_eq!((calls.load(Ordering::Relaxed), a.status().tenures), (1_000, 1), "each was handled once");
}

#[test]
fn a_shutdown_ends_although_the_store_never_answers_a_claim() {
    for fault in [Fault::Reject(ErrorKind::Unavailable), Fault::Hold(Gate::default())] {
        let harness = Harness::new();
        let plan = harness.instance("a");
        plan.faults.checkpoints.always("claim", fault);
        let a = plan.start();
        harness.run_for(15 * SECOND);
        assert!(a.faults.checkpoints.calls("claim") > 1, "it asks again and again");
        let took = time_to_stop(&harness, a);
        assert!(took <= 11 * SECOND, "{took:?}");
        assert_eq!(harness.holder(), None, "and the lease is given back");
    }
}

#[test]
fn a_claim_that_is_never_answered_moves_the_stream_to_a_peer() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.checkpoints.always("claim", Fault::Reject(ErrorKind::Unavailable));
    let a = plan.start();
    harness.until("it claims", || a.faults.checkpoints.calls("claim") > 0);
    let b = harness.start("b");
    harness.append(&["x"]);
    let began = harness.now();
    harness.until("the other one has committed it", || harness.committed() == 1);
    assert!(harness.now().since(began) < 25 * SECOND, "{:?}", harness.now().since(began));
    assert!(b.is_running());
}

#[test]
fn a_commit_that_is_never_answered_moves_the_stream_to_a_peer() {
    for fault in [Fault::Reject(ErrorKind::Unavailable), Fault::Hold(Gate::default())] {
        let harness = Harness::new();
        let a = harness.start("a");
        harness.until("it runs", || a.is_running());
        let b = harness.start("b");
        harness.run_for(6 * SECOND);
        a.faults.checkpoints.always("commit", fault);
        harness.append(&["x"]);
        let began = harness.now();
        harness.until("the other one has committed it", || harness.committed() == 1);
        assert!(harness.now().since(began) < 30 * SECOND, "{:?}", harness.now().since(began));
        harness.run_for(30 * SECOND);
        assert!(b.is_running() && !a.is_running(), "and keeps it");
    }
}

#[test]
fn a_peer_without_the_stream_is_no_reason_to_give_it_up() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    let _b = harness.instance("b").stream(|it| it.name = "users".to_owned()).start();
    harness.run_for(6 * SECOND);
    a.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["x"]);
    harness.run_for(60 * SECOND);
    a.faults.checkpoints.heal("commit");
    harness.until("it is committed", || harness.committed() == 1);
    assert_eq!((a.status().tenures, a.faults.sink.calls("write")), (1, 1));
}

#[test]
fn a_halt_that_cannot_be_committed_does_not_hold_up_a_shutdown() {
    let harness = Harness::new();
    harness.append_many(10);
    let plan = harness.instance("a");
    plan.faults.sink.refuse_row(id(3), FaultKind::Reject, 1);
    plan.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
    let a = plan.start();
    harness.run_for(60 * SECOND);
    let took = time_to_stop(&harness, a);
    assert!(took <= 11 * SECOND, "{took:?}");
    assert_eq!((harness.holder(), harness.committed()), (None, 0));
}

#[test]
fn a_shutdown_ends_while_the_source_does_not_open() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    a.faults.source.always("open", Fault::Hold(Gate::default()));
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.until("it opens again", || a.faults.source.calls("open") == 2);
    assert!(time_to_stop(&harness, a) < SECOND);
    assert_eq!(harness.holder(), None);
}

#[test]
fn a_shutdown_in_the_middle_of_a_replay_waits_until_its_calls_have_settled() {
    let harness = Harness::new();
    harness.append(&["k"]);
    let plan = harness.instance("a").profile(SinkProfile::new(Grade::Plain, 3 * SECOND));
    let plan = plan.sink(|it| it.on_reject = DEAD_LETTERS);
    plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    let a = plan.start();
    harness.until("the letter is committed", || harness.committed() == 1);
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    replay(&harness);
    harness.until("the letter is under way", || gate.arrived() == 1);
    let took = time_to_stop(&harness, a);
    assert!(took >= 3 * SECOND && took < 4 * SECOND, "{took:?}");
}

#[test]
fn a_piece_that_ends_between_halves_moves_no_position() {
    let harness = Harness::new();
    harness.append(&["a"]);
    harness.append_row(Operation::Delete, Some("b"), b"{}", true);
    harness.append_barrier();
    let plan = harness.instance("a");
    let gate = Gate::default();
    plan.faults.sink.next("write", Fault::Good);
    plan.faults.sink.next("write", Fault::Hold(gate.clone()));
    let a = plan.start();
    harness.until("the other half is under way", || gate.arrived() == 1);
    harness.run_for(3 * SECOND);
    assert_eq!((harness.delivered(), harness.committed()), (vec![1, 2], 1), "a half is delivered, and not passed");
    a.node.kill();
    let _b = harness.start("b");
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1, 2, 2, 3]);
    assert_eq!(harness.checkpoint().unwrap().facts.changes, 3);
}

#[test]
fn a_ledger_that_cannot_be_committed_stops_the_reading() {
    let harness = Harness::new();
    harness.append_many(60_000);
    let plan = harness.instance("a").into_sink(moody(&harness, HandlerMode::RejectAll));
    let plan = plan.sink(|it| it.on_reject = OnReject::Skip).stream(|it| it.limits.rows = 100);
    // All but the first checkpoint, without which nothing is read.
    plan.faults.checkpoints.next("commit", Fault::Good);
    plan.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
    let a = plan.start();
    harness.run_for(60 * SECOND);
    let read = a.faults.source.calls("next_batch") * 100;
    // What is in the commit under way, what waits for the next one, and the window.
    assert!((10_000..40_000).contains(&read), "{read} changes were read");
    a.faults.checkpoints.heal("commit");
    harness.until("all is committed", || harness.committed() == 60_000);
    assert_eq!(harness.ledger().len(), 60_000);
}

#[test]
fn a_letter_that_a_transaction_rejects_again_does_not_undo_what_other_sinks_settled() {
    let harness = Harness::new();
    harness.append(&["k"]);
    let mut plan = harness.instance("a").sink(|it| it.on_reject = DEAD_LETTERS);
    let script = harness.script();
    let transactional = FaultySink::new(Arc::new(TransactionalTable::new(harness.checkpoints.clone())), script.clone());
    let mut spec = SinkSpec::new("transactional", Arc::new(transactional));
    spec.on_reject = DEAD_LETTERS;
    plan.streams[0].sinks.push(spec);
    plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    script.refuse_row(id(1), FaultKind::Reject, 2);
    let _a = plan.start();
    harness.until("both letters are committed", || harness.ledger().len() == 2);
    replay(&harness);
    harness.until("the wish is struck off", || harness.control().replay.is_none());
    let resolved = |sink: &str| harness.ledger().iter().find(|it| it.entry.sink == sink).unwrap().resolution;
    assert_eq!((resolved("table"), resolved("transactional")), (Some(Resolution::Replayed), None));
    assert_eq!((harness.delivered(), harness.checkpoint().unwrap().facts.letters), (vec![1], 1));
    harness.want(|control| control.replay = Some(ReplayRequest { id: 2, sink: None, numbers: Vec::new() }));
    harness.until("the other one is settled, too", || resolved("transactional").is_some());
    assert_eq!((harness.delivered(), numbers(&harness.checkpoints.delivered())), (vec![1], vec![1]), "each once");
}

#[test]
fn a_sink_that_calls_itself_transactional_and_opens_as_another_is_refused() {
    let harness = Harness::new();
    harness.append(&["k"]);
    let mut profile = SinkProfile::new(Grade::Transactional, std::time::Duration::ZERO);
    profile.store = Some(memory(harness.checkpoints.identity(&harness.cx())));
    let a = harness.instance("a").profile(profile).start();
    harness.run_for(5 * SECOND);
    let said = a.status().last_error.unwrap_or_default();
    assert!(said.contains("transactional"), "{said:?}");
    assert_eq!((harness.committed(), harness.delivered()), (0, vec![]));
}

#[test]
fn a_listener_that_heard_of_neither_halt_nor_resuming_says_that_it_runs() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    for call in ["get", "list", "put_if", "changed"] {
        a.faults.records.always(call, Fault::Reject(ErrorKind::Unavailable));
    }
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["x"]);
    harness.until("it is halted", || a.status().halted);
    harness.perform(Move::Resume);
    harness.until("it is committed", || harness.committed() == 1);
    assert!(a.is_running() && !a.status().halted, "{:?}", a.status());
}

#[test]
fn a_proved_death_is_waited_out_although_the_lease_has_expired_meanwhile() {
    let harness = Harness::new();
    let settle = 3 * SECOND;
    let plan = |name| {
        let plan = harness.instance(name).profile(SinkProfile::new(Grade::Plain, settle));
        plan.set(|it| it.takeover = FastTakeover::Always)
    };
    let a = plan("a").start();
    harness.until("it runs", || a.is_running());
    let b = plan("b").start();
    harness.run_for(6 * SECOND);
    a.node.kill();
    harness.append(&["x"]);
    let left = harness.holder_of("orders").unwrap().remaining;
    harness.run_for(left - 500 * MILLI);
    b.faults.leases.next("try_acquire", Fault::Delay(SECOND));
    let proved = harness.now();
    harness.town.judge("a", Verdict::Dead);
    harness.until("it writes", || b.faults.sink.calls("write") > 0);
    let waited = harness.now().since(proved);
    assert!(waited >= settle && waited < settle + SECOND, "{waited:?}");
}
