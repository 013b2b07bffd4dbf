//! Bars, and whether they were kept.

use std::time::Duration;

use crate::report::{quantile, spread};

/// A p99 of fewer values than this would be the slowest by another name.
const P99_FROM: usize = 300;

/// What must not be exceeded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    Median(Duration),
    P99(Duration),
    Slowest(Duration),
}

/// Something measured, with its limits.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) name: &'static str,
    pub(crate) limits: Vec<Limit>,
}

impl Limit {
    /// What was measured, what it may be, and how it is called, in milliseconds.
    fn compare(self, sorted: &[f64]) -> (f64, f64, &'static str) {
        let millis = |limit: Duration| limit.as_secs_f64() * 1_000.0;
        match self {
            Self::Median(limit) => (quantile(sorted, 0.5), millis(limit), "median"),
            // Too few values say nothing about a p99, so they do not keep the bar.
            Self::P99(limit) if sorted.len() < P99_FROM => (f64::INFINITY, millis(limit), "p99"),
            Self::P99(limit) => (quantile(sorted, 0.99), millis(limit), "p99"),
            Self::Slowest(limit) => (quantile(sorted, 1.0), millis(limit), "slowest"),
        }
    }
}

impl Bar {
    /// Above the lines that [`judge`](Self::judge) prints.
    pub(crate) const HEADING: &'static str = "                 count       min    median       p90       max  bars";

    /// Prints a line; whether every limit was kept.
    pub(crate) fn judge(&self, durations: &[Duration]) -> bool {
        let (line, kept) = self.line(durations);
        println!("{line}");
        kept
    }

    fn line(&self, durations: &[Duration]) -> (String, bool) {
        let [min, median, p90, max] = spread(durations);
        let count = durations.len();
        let mut line = format!("{:<16} {count:>5} {min:>9.2} {median:>9.2} {p90:>9.2} {max:>9.2} ", self.name);
        let mut sorted: Vec<f64> = durations.iter().map(|duration| duration.as_secs_f64() * 1_000.0).collect();
        sorted.sort_by(f64::total_cmp);
        let mut kept = true;
        for limit in &self.limits {
            let (found, may_be, name) = limit.compare(&sorted);
            // Nothing measured is not a number, and keeps no bar.
            let holds = found < may_be;
            kept &= holds;
            line += &format!(" {name} {found:.2} < {may_be}: {}", if holds { "kept" } else { "MISSED" });
        }
        (line, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(limit: Limit, millis: &[u64]) -> bool {
        let durations: Vec<_> = millis.iter().map(|millis| Duration::from_millis(*millis)).collect();
        Bar { name: "x", limits: vec![limit] }.line(&durations).1
    }

    #[test]
    fn a_bar_is_kept_below_its_limit_only() {
        let ten = Duration::from_millis(10);
        assert!(kept(Limit::Median(ten), &[1, 9, 500]));
        assert!(!kept(Limit::Median(ten), &[1, 10, 500]));
        assert!(!kept(Limit::Slowest(ten), &[1, 9, 500]));
        assert!(!kept(Limit::Median(ten), &[]), "nothing was measured");
    }

    #[test]
    fn a_p99_wants_many_values() {
        let ten = Duration::from_millis(10);
        assert!(!kept(Limit::P99(ten), &[1; 299]));
        assert!(kept(Limit::P99(ten), &[1; 300]));
    }
}
