//! What is recorded with the feature `metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ::metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use watchkeeper_core::memory::{Log, TransactionalTable};
use watchkeeper_core::{
    Batch, ChangeStream, Cx, ErrorKind, FaultKind, Finding, Limits, Payload, Pedigree, Position, Result, Room, Source,
    SourceTime, Stage, StartAt, Window,
};
use watchkeeper_engine::delivery::parking::{OnReject, Park};
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

/// The latest value of every metric, by name, and by name and labels.
#[derive(Debug, Clone, Default)]
struct Board(Arc<Mutex<BTreeMap<String, f64>>>);

impl Board {
    fn get(&self, name: &str) -> f64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(f64::NAN)
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Cell(self.clone(), [key.name().to_owned(), format!("{}{{{}}}", key.name(), labels.join(","))]))
    }
}

struct Cell(Board, [String; 2]);

impl Cell {
    fn change(&self, change: impl Fn(&mut f64)) {
        for name in &self.1 {
            change(self.0.0.lock().unwrap().entry(name.clone()).or_default());
        }
    }
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.change(|it| *it += value as f64);
    }
    fn absolute(&self, value: u64) {
        self.change(|it| *it = value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.change(|it| *it += value);
    }
    fn decrement(&self, value: f64) {
        self.change(|it| *it -= value);
    }
    fn set(&self, value: f64) {
        self.change(|it| *it = value);
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        self.change(|it| *it = value);
    }
}

impl Recorder for Board {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

#[test]
fn a_takeover_and_what_was_delivered_are_counted() {
    let board = Board::default();
    ::metrics::with_local_recorder(&board, || {
        let rig = Rig::new();
        let a = rig.start("a");
        rig.append_many(5);
        rig.until("it is committed", || rig.committed() == 5);
        assert_eq!(board.get("watchkeeper_listeners_active"), 1.0);
        assert_eq!(board.get("watchkeeper_checkpoint_leases_held"), 1.0);
        assert_eq!(board.get("watchkeeper_changes_total"), 5.0);
        assert!(board.get("watchkeeper_checkpoint_updates_total") >= 1.0);
        assert!(board.get("watchkeeper_checkpoint_lag_seconds") >= 0.0);
        let _b = rig.start("b");
        a.running.shutdown();
        rig.append_many(2);
        rig.until("b has taken over and committed", || rig.committed() == 7);
        assert_eq!(board.get("watchkeeper_changes_total"), 7.0);
        assert_eq!(board.get("watchkeeper_leader_elections_total"), 2.0);
        let of_stream = "watchkeeper_failovers_total{stream=orders}";
        assert_eq!(board.get(of_stream), 1.0, "taking a free watch is no failover: {board:?}");
        assert_eq!(board.get("watchkeeper_failover_causes_total"), 1.0);
        let facts = rig.checkpoint().unwrap().facts;
        assert_eq!(facts.failovers, 1, "status and metrics count the same");
    });
}

/// A log that is bounded by room, and begins with a snapshot of its first three changes.
#[derive(Debug, Clone)]
struct Bounded(Log);

struct Reading(Box<dyn ChangeStream>);

#[async_trait::async_trait]
impl Source for Bounded {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.0.check(cx).await
    }
    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        self.0.identity(cx).await
    }
    fn compare(&self, a: &Position, b: &Position) -> Option<std::cmp::Ordering> {
        self.0.compare(a, b)
    }
    fn stage(&self, position: &Position) -> Option<Stage> {
        let done = Log::number(position).expect("a position of the log");
        (done < 3).then(|| Stage { what: "snapshot: reading orders".to_owned(), done, of: Some(3), unit: "rows" })
    }
    fn payload(&self) -> Arc<dyn Payload> {
        self.0.payload()
    }
    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        Ok(Box::new(Reading(self.0.open(cx, start).await?)))
    }
}

const HOUR_MS: u64 = 3_600_000;

#[async_trait::async_trait]
impl ChangeStream for Reading {
    fn position(&self) -> Option<Position> {
        self.0.position()
    }
    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let mut batch = self.0.next_batch(cx, limits).await?;
        batch.end.time = Some(SourceTime(30 * HOUR_MS));
        Ok(batch)
    }
    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        self.0.acknowledge(cx, position).await
    }
    async fn window(&mut self, _cx: &Cx) -> Result<Window> {
        let room = Room { bytes: 1_000_000, bytes_max: 2_000_000, bytes_per_second: 100, ..Room::default() };
        let at = |hours: u64| Some(SourceTime(hours * HOUR_MS));
        Ok(Window { oldest: at(10), newest: at(40), room: Some(room) })
    }
    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        self.0.close(cx).await
    }
}

#[test]
fn the_history_that_is_left_is_told_again_and_again() {
    let board = Board::default();
    ::metrics::with_local_recorder(&board, || {
        let rig = Rig::new();
        let mut plan = rig.instance("a");
        plan.streams[0].source = Arc::new(Bounded(rig.log.clone()));
        let _a = plan.start();
        rig.append_many(5);
        rig.until("the window is looked at", || board.get("watchkeeper_history_window_seconds") == 30.0 * 3_600.0);
        assert_eq!(board.get("watchkeeper_history_headroom_seconds"), 20.0 * 3_600.0);
        // Two thirds of a million bytes lie before it, and a million is free, at a hundred a second.
        assert_eq!(board.get("watchkeeper_history_time_to_loss_seconds").round(), 16_667.0);
        assert_eq!(board.get("watchkeeper_history_bytes"), 1_000_000.0);
        assert_eq!(board.get("watchkeeper_history_bytes_max"), 2_000_000.0);
        assert_eq!(board.get("watchkeeper_history_bytes_per_second"), 100.0);
        board.0.lock().unwrap().clear();
        rig.until("it is looked at again", || board.get("watchkeeper_history_window_seconds") == 30.0 * 3_600.0);
    });
}

#[test]
fn errors_of_a_source_are_counted() {
    let board = Board::default();
    ::metrics::with_local_recorder(&board, || {
        let rig = Rig::new();
        let plan = rig.instance("a");
        plan.faults.source.next("open", Fault::Reject(ErrorKind::Unavailable));
        plan.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
        let _a = plan.start();
        rig.append_many(5);
        rig.until("it is committed", || rig.committed() == 5);
        assert_eq!(board.get("watchkeeper_source_errors_total"), 2.0);
    });
}

/// An instance that keeps what is rejected for a replay, in the database of its checkpoints or in another.
fn lettered(rig: &Rig, in_transactions: bool) -> Plan {
    let plan = rig.instance("a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key });
    match in_transactions {
        true => plan.into_sink(Arc::new(TransactionalTable::new(rig.checkpoints.clone()))),
        false => plan,
    }
}

#[test]
fn what_is_passed_over_is_counted_when_it_is_committed() {
    for in_transactions in [false, true] {
        let board = Board::default();
        ::metrics::with_local_recorder(&board, || {
            let rig = Rig::new();
            let plan = lettered(&rig, in_transactions).stream(|it| it.timeouts.write = SECOND);
            plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
            let gate = Gate::default();
            let faults = if in_transactions { &plan.faults.sink } else { &plan.faults.checkpoints };
            let call = if in_transactions { "write_and_commit" } else { "commit" };
            faults.next(call, Fault::Hold(gate.clone()));
            faults.next(call, Fault::Lose);
            let _a = plan.start();
            rig.append(&["k", "k", "other"]);
            rig.until("the commit hangs", || gate.arrived() == 1);
            assert!(board.get("watchkeeper_ledger_entries_total").is_nan(), "it may never be committed");
            gate.open();
            rig.until("all is committed", || rig.committed() == 3);
            rig.run_for(5 * SECOND);
            assert_eq!(board.get("watchkeeper_ledger_entries_total"), 2.0, "in transactions: {in_transactions}");
        });
    }
}

#[test]
fn how_far_a_snapshot_is_can_be_seen() {
    let board = Board::default();
    ::metrics::with_local_recorder(&board, || {
        let rig = Rig::new();
        let mut plan = rig.instance("a");
        plan.streams[0].source = Arc::new(Bounded(rig.log.clone()));
        let _a = plan.start();
        rig.append_many(2);
        rig.until("it is told", || board.get("watchkeeper_snapshot_rows") == 2.0);
        assert_eq!(board.get("watchkeeper_snapshot_rows_expected"), 3.0);
        rig.append_many(2);
        rig.until("it is over", || board.get("watchkeeper_snapshot_rows_expected") == 0.0);
        assert_eq!(board.get("watchkeeper_snapshot_rows"), 0.0);
    });
}

#[test]
fn the_lag_grows_while_nothing_is_delivered_and_falls_when_nothing_waits() {
    let board = Board::default();
    ::metrics::with_local_recorder(&board, || {
        let rig = Rig::new();
        let plan = rig.instance("a");
        let sink = plan.faults.sink.clone();
        let _a = plan.start();
        let lag = || board.get("watchkeeper_checkpoint_lag_seconds");
        rig.append_many(1);
        rig.until("it is committed", || rig.committed() == 1);
        rig.until("nothing waits", || lag() == 0.0);
        sink.always("write", Fault::Reject(ErrorKind::Unavailable));
        rig.append_many(1);
        rig.until("it grows", || lag() >= 5.0);
        let seen = lag();
        rig.run_for(3 * SECOND);
        assert!(lag() >= seen + 1.0, "it goes on to grow: {} after {seen}", lag());
        sink.heal("write");
        rig.until("it is committed", || rig.committed() == 2);
        rig.until("nothing waits any more", || lag() == 0.0);
    });
}
