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
struct Gauges(Arc<Mutex<BTreeMap<String, f64>>>);

impl Gauges {
    fn get(&self, name: &str) -> f64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(f64::NAN)
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Cell(self.clone(), [key.name().to_owned(), format!("{}{{{}}}", key.name(), labels.join(","))]))
    }
}

struct Cell(Gauges, [String; 2]);

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

impl Recorder for Gauges {
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
    let gauges = Gauges::default();
    ::metrics::with_local_recorder(&gauges, || {
        let harness = Harness::new();
        let a = harness.start("a");
        harness.append_many(5);
        harness.until("it is committed", || harness.committed() == 5);
        assert_eq!(gauges.get("watchkeeper_listeners_active"), 1.0);
        assert_eq!(gauges.get("watchkeeper_checkpoint_leases_held"), 1.0);
        assert_eq!(gauges.get("watchkeeper_changes_total"), 5.0);
        assert!(gauges.get("watchkeeper_checkpoint_updates_total") >= 1.0);
        assert!(gauges.get("watchkeeper_checkpoint_lag_seconds") >= 0.0);
        let _b = harness.start("b");
        a.running.shutdown();
        harness.append_many(2);
        harness.until("b has taken over and committed", || harness.committed() == 7);
        assert_eq!(gauges.get("watchkeeper_changes_total"), 7.0);
        assert_eq!(gauges.get("watchkeeper_leader_elections_total"), 2.0);
        let of_stream = "watchkeeper_failovers_total{stream=orders}";
        assert_eq!(gauges.get(of_stream), 1.0, "taking a free watch is no failover: {gauges:?}");
        assert_eq!(gauges.get("watchkeeper_failover_causes_total"), 1.0);
        let facts = harness.checkpoint().unwrap().facts;
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
fn the_history_that_is_left_is_reported_again_and_again() {
    let gauges = Gauges::default();
    ::metrics::with_local_recorder(&gauges, || {
        let harness = Harness::new();
        let mut plan = harness.instance("a");
        plan.streams[0].source = Arc::new(Bounded(harness.log.clone()));
        let _a = plan.start();
        harness.append_many(5);
        harness.until("the window is looked at", || gauges.get("watchkeeper_history_window_seconds") == 30.0 * 3_600.0);
        assert_eq!(gauges.get("watchkeeper_history_headroom_seconds"), 20.0 * 3_600.0);
        // Two thirds of a million bytes lie before it, and a million is free, at a hundred a second.
        assert_eq!(gauges.get("watchkeeper_history_time_to_loss_seconds").round(), 16_667.0);
        assert_eq!(gauges.get("watchkeeper_history_bytes"), 1_000_000.0);
        assert_eq!(gauges.get("watchkeeper_history_bytes_max"), 2_000_000.0);
        assert_eq!(gauges.get("watchkeeper_history_bytes_per_second"), 100.0);
        gauges.0.lock().unwrap().clear();
        harness.until("it is looked at again", || gauges.get("watchkeeper_history_window_seconds") == 30.0 * 3_600.0);
    });
}

#[test]
fn errors_of_a_source_are_counted() {
    let gauges = Gauges::default();
    ::metrics::with_local_recorder(&gauges, || {
        let harness = Harness::new();
        let plan = harness.instance("a");
        plan.faults.source.next("open", Fault::Reject(ErrorKind::Unavailable));
        plan.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
        let _a = plan.start();
        harness.append_many(5);
        harness.until("it is committed", || harness.committed() == 5);
        assert_eq!(gauges.get("watchkeeper_source_errors_total"), 2.0);
    });
}

/// An instance that keeps what is rejected for a replay, in the database of its checkpoints or in another.
fn lettered(harness: &Harness, in_transactions: bool) -> Plan {
    let plan = harness.instance("a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key });
    match in_transactions {
        true => plan.into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone()))),
        false => plan,
    }
}

#[test]
fn what_is_passed_over_is_counted_when_it_is_committed() {
    for in_transactions in [false, true] {
        let gauges = Gauges::default();
        ::metrics::with_local_recorder(&gauges, || {
            let harness = Harness::new();
            let plan = lettered(&harness, in_transactions).stream(|it| it.timeouts.write = SECOND);
            plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
            let gate = Gate::default();
            let faults = if in_transactions { &plan.faults.sink } else { &plan.faults.checkpoints };
            let call = if in_transactions { "write_and_commit" } else { "commit" };
            faults.next(call, Fault::Hold(gate.clone()));
            faults.next(call, Fault::Lose);
            let _a = plan.start();
            harness.append(&["k", "k", "other"]);
            harness.until("the commit hangs", || gate.arrived() == 1);
            assert!(gauges.get("watchkeeper_ledger_entries_total").is_nan(), "it may never be committed");
            gate.open();
            harness.until("all is committed", || harness.committed() == 3);
            harness.run_for(5 * SECOND);
            assert_eq!(gauges.get("watchkeeper_ledger_entries_total"), 2.0, "in transactions: {in_transactions}");
        });
    }
}

#[test]
fn how_far_a_snapshot_is_can_be_seen() {
    let gauges = Gauges::default();
    ::metrics::with_local_recorder(&gauges, || {
        let harness = Harness::new();
        let mut plan = harness.instance("a");
        plan.streams[0].source = Arc::new(Bounded(harness.log.clone()));
        let _a = plan.start();
        harness.append_many(2);
        harness.until("it is told", || gauges.get("watchkeeper_snapshot_rows") == 2.0);
        assert_eq!(gauges.get("watchkeeper_snapshot_rows_expected"), 3.0);
        harness.append_many(2);
        harness.until("it is over", || gauges.get("watchkeeper_snapshot_rows_expected") == 0.0);
        assert_eq!(gauges.get("watchkeeper_snapshot_rows"), 0.0);
    });
}

#[test]
fn the_lag_grows_while_nothing_is_delivered_and_falls_when_nothing_waits() {
    let gauges = Gauges::default();
    ::metrics::with_local_recorder(&gauges, || {
        let harness = Harness::new();
        let plan = harness.instance("a");
        let sink = plan.faults.sink.clone();
        let _a = plan.start();
        let lag = || gauges.get("watchkeeper_checkpoint_lag_seconds");
        harness.append_many(1);
        harness.until("it is committed", || harness.committed() == 1);
        harness.until("nothing waits", || lag() == 0.0);
        sink.always("write", Fault::Reject(ErrorKind::Unavailable));
        harness.append_many(1);
        harness.until("it grows", || lag() >= 5.0);
        let seen = lag();
        harness.run_for(3 * SECOND);
        assert!(lag() >= seen + 1.0, "it goes on to grow: {} after {seen}", lag());
        sink.heal("write");
        harness.until("it is committed", || harness.committed() == 2);
        harness.until("nothing waits any more", || lag() == 0.0);
    });
}
