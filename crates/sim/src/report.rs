//! What a run came to.

use std::collections::BTreeMap;

/// The report of one seed.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The hash of its history.
    pub hash: u64,
    /// What was counted.
    pub counts: BTreeMap<&'static str, u64>,
    /// What was wrong.
    pub violations: Vec<String>,
}

impl Report {
    /// Whether nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// What a set of runs must have seen: without these the fences were never tried.
pub const MUST_HAVE: [&str; 4] = ["takeovers", "fenced commits", "effects then errors", "deadline hits"];

/// Sums the counts of many runs.
pub fn totals(reports: &[Report]) -> BTreeMap<&'static str, u64> {
    let mut totals: BTreeMap<&'static str, u64> = MUST_HAVE.iter().map(|name| (*name, 0)).collect();
    for report in reports {
        for (name, count) in &report.counts {
            *totals.entry(name).or_default() += count;
        }
    }
    totals
}
