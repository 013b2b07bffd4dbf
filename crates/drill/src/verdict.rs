use std::fmt;

use serde::Serialize;

use crate::copy;
use crate::judge::Judge;
use crate::ledger::Ledger;

/// How many examples are kept of each kind.
const EXAMPLES_MAX: usize = 5;

/// A change as a target received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Its key.
    pub key: String,
    /// Its number among the changes of that key.
    pub number: u64,
    /// Under which epoch it was written.
    pub epoch: u64,
}

/// How often something was seen, with a few examples as sentences.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// The first few.
    pub examples: Vec<String>,
}

impl Tally {
    pub(crate) fn note(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example());
        }
    }
}

/// What became of everything that was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Changes that are known to have been written: acknowledged, or arrived after all.
    pub written: u64,
    /// Changes whose writer was never answered.
    pub unknown: u64,
    /// Changes that arrived, each counted once.
    pub delivered: u64,
    /// Acknowledged and never arrived.
    pub lost: Tally,
    /// Arrived again.
    pub duplicated: Tally,
    /// Arrived before one that it follows, or under an epoch that began too late (G3).
    pub out_of_order: Tally,
    /// Written by an older epoch after a newer one had begun.
    pub stale_accepted: Tally,
    /// Tried by an older epoch and refused, as the children told.
    pub stale_refused: u64,
    /// Arrived and never written.
    pub strange: Tally,
}

impl Verdict {
    /// Judges what arrived, in the order of arrival, by what was written. To be asked when all that was written has had
    /// the time to arrive.
    pub fn new(ledger: &Ledger, arrivals: &[Arrival], stale_refused: u64) -> Self {
        let mut verdict = Self { stale_refused, ..Self::default() };
        Judge::new(ledger, arrivals).judge(&mut verdict);
        verdict
    }

    /// Judges a copy that keeps the newest value of every key, by all writes to it, in the order in which they were
    /// committed. A write may pass over values that a newer one of the same batch replaced.
    pub fn of_copy(ledger: &Ledger, writes: &[Arrival]) -> Self {
        let mut verdict = Self::default();
        copy::judge(ledger, writes, &mut verdict);
        verdict
    }

    /// Whether nothing was lost, out of order, stale or strange. Duplicates are for the target's grade to forbid.
    pub fn is_sound(&self) -> bool {
        [&self.lost, &self.out_of_order, &self.stale_accepted, &self.strange].iter().all(|tally| tally.count == 0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("written", self.written),
            ("  not answered", self.unknown),
            ("delivered", self.delivered),
            ("lost", self.lost.count),
            ("duplicated", self.duplicated.count),
            ("out of order", self.out_of_order.count),
            ("stale writes refused", self.stale_refused),
            ("stale writes accepted", self.stale_accepted.count),
        ];
        for (name, count) in counts {
            writeln!(f, "{name:<22} {count:>9}")?;
        }
        let bad = [&self.lost, &self.out_of_order, &self.stale_accepted, &self.strange];
        bad.iter().flat_map(|tally| &tally.examples).try_for_each(|example| writeln!(f, "  {example}"))
    }
}
