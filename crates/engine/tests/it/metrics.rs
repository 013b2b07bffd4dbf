//! What is recorded with the feature `metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ::metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use crate::support::*;

/// The latest value of every metric, by name.
#[derive(Debug, Clone, Default)]
struct Board(Arc<Mutex<BTreeMap<String, f64>>>);

impl Board {
    fn get(&self, name: &str) -> f64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(f64::NAN)
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        Arc::new(Cell(self.clone(), key.name().to_owned()))
    }
}

struct Cell(Board, String);

impl Cell {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(self.0.0.lock().unwrap().entry(self.1.clone()).or_default());
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
        assert!(board.get("watchkeeper_failovers_total") >= 1.0);
    });
}
