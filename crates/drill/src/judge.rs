//! Order as G3 defines it, from what a target received.
//!
//! * Within an epoch the changes of one key arrive in the order in which they were written, none passed over. An epoch may
//!   deliver again what it had delivered, as one run that comes to where it had been.
//! * A new epoch begins at or before the last commit + 1. Commits are not seen here; but nothing is committed that did not
//!   arrive, so an epoch that begins after the last arrival + 1 has begun too late.
//! * An older epoch never writes after a newer one has begun.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::{Entry, Ledger};
use crate::verdict::{Arrival, Verdict};

pub(crate) struct Judge<'a> {
    ledger: &'a Ledger,
    arrivals: &'a [Arrival],
    arrived: BTreeSet<(&'a str, u64)>,
}

/// How far a key has come.
#[derive(Default)]
struct Lane {
    epoch: u64,
    /// The last number of this epoch, and the furthest of it.
    last: u64,
    furthest: u64,
    /// The first number of this epoch.
    first: u64,
    /// The furthest of all epochs before.
    before: u64,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(ledger: &'a Ledger, arrivals: &'a [Arrival]) -> Self {
        let arrived = arrivals.iter().map(|arrival| (arrival.key.as_str(), arrival.number)).collect();
        Self { ledger, arrivals, arrived }
    }

    pub(crate) fn judge(&self, verdict: &mut Verdict) {
        self.losses(verdict);
        self.repeats(verdict);
        self.epochs(verdict);
        self.orders(verdict);
    }

    fn losses(&self, verdict: &mut Verdict) {
        for (key, number, entry) in self.ledger.entries() {
            let arrived = self.arrived.contains(&(key, number));
            verdict.unknown += u64::from(entry == Entry::Unknown);
            verdict.written += u64::from(arrived || entry == Entry::Acknowledged);
            verdict.delivered += u64::from(arrived);
            if entry == Entry::Acknowledged && !arrived {
                verdict.lost.note(|| format!("change {number} of {key} never arrived"));
            }
        }
    }

    fn repeats(&self, verdict: &mut Verdict) {
        let mut seen = BTreeMap::new();
        for Arrival { key, number, epoch } in self.arrivals {
            if self.ledger.get(key, *number).is_none() {
                verdict.strange.note(|| format!("change {number} of {key} arrived, but was never written"));
            }
            if let Some(first) = seen.insert((key, number), epoch) {
                verdict
                    .duplicated
                    .note(|| format!("change {number} of {key} came in epoch {first} and again in epoch {epoch}"));
            }
        }
    }

    fn epochs(&self, verdict: &mut Verdict) {
        let mut newest = 0;
        for Arrival { key, number, epoch } in self.arrivals {
            if *epoch < newest {
                verdict.stale_accepted.note(|| {
                    format!("change {number} of {key} was written by epoch {epoch} after epoch {newest} had begun")
                });
            }
            newest = newest.max(*epoch);
        }
    }

    fn orders(&self, verdict: &mut Verdict) {
        let mut lanes: BTreeMap<&str, Lane> = BTreeMap::new();
        for arrival in self.arrivals {
            let lane = lanes.entry(&arrival.key).or_default();
            if let Some(cause) = self.step(lane, arrival) {
                verdict.out_of_order.note(|| cause);
            }
        }
    }

    /// Takes one arrival in; the answer is what is wrong with it.
    fn step(&self, lane: &mut Lane, arrival: &Arrival) -> Option<String> {
        let Arrival { key, number, epoch } = arrival;
        if *epoch != lane.epoch {
            let before = lane.before.max(lane.furthest);
            *lane = Lane { epoch: *epoch, last: *number, furthest: *number, first: *number, before };
            let gap = self.passed_over(key, before, *number)?;
            return Some(format!("epoch {epoch} began with change {number} of {key}, though {gap} had not arrived"));
        }
        let last = std::mem::replace(&mut lane.last, *number);
        if *number <= lane.furthest && *number >= lane.first && *number <= last {
            // Delivered again from here on.
            return None;
        }
        lane.furthest = lane.furthest.max(*number);
        if *number < lane.first {
            return Some(format!("epoch {epoch} delivered change {number} of {key} after {last}"));
        }
        let gap = self.passed_over(key, last, *number)?;
        Some(format!("epoch {epoch} delivered change {number} of {key} after {last}, without {gap}"))
    }

    /// The first change between two that exists and was left out. One whose writer was never answered, and that never
    /// arrived, does not exist.
    fn passed_over(&self, key: &str, after: u64, before: u64) -> Option<u64> {
        let exists = |number: &u64| {
            self.arrived.contains(&(key, *number)) || self.ledger.get(key, *number) == Some(Entry::Acknowledged)
        };
        (after + 1..before).find(exists)
    }
}
