//! What people see.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::campaign::{Campaign, Record};
use crate::fault::InjectedFault;
use crate::program;

pub(crate) fn heading(campaign: &Campaign) -> String {
    let Campaign { harness, kind, faults, seed, .. } = campaign;
    let fencing = if campaign.self_fencing { "" } else { ", without self-fencing" };
    format!("{harness}, {} sink{fencing}: {faults} faults, seed {seed}", kind.as_str())
}

/// Milliseconds of the shortest, the middle, the ninth decile and the longest.
pub(crate) fn spread(durations: &[Duration]) -> [f64; 4] {
    let mut millis: Vec<f64> = durations.iter().map(|duration| duration.as_secs_f64() * 1_000.0).collect();
    millis.sort_by(f64::total_cmp);
    [0.0, 0.5, 0.9, 1.0].map(|share| quantile(&millis, share))
}

/// The smallest value that at least this share of all, which are sorted, does not exceed.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// How long deliveries took to go on after each kind of fault.
fn reliefs(reliefs: &BTreeMap<InjectedFault, Vec<Duration>>) -> String {
    let mut text = format!("{:<16} {:>5} {:>32}\n", "", "count", "delivered again, ms: min/median/max");
    for (injected_fault, reliefs) in reliefs {
        let [min, median, _, max] = spread(reliefs);
        let count = reliefs.len();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{injected_fault:<16} {count:>5} {min:>12.1} {median:>9.1} {max:>9.1}");
    }
    text
}

pub(crate) fn program_table(record: &program::Record) -> String {
    let mut text = reliefs(&record.reliefs);
    let _ = writeln!(text, "{:<16} {:>5}", "blocked", record.blocked);
    for (name, verdict) in &record.verdicts {
        let _ = writeln!(text, "\n{name}\n{verdict}");
    }
    for wrong in &record.wrong {
        let _ = writeln!(text, "FAILED: {wrong}");
    }
    text
}

pub(crate) fn table(record: &Record) -> String {
    let mut text = reliefs(&record.reliefs);
    let _ = writeln!(text, "{:<16} {:>5}\n{:<16} {:>5}", "evicted", record.evicted, "blocked", record.blocked);
    let _ = writeln!(text, "\n{}", record.verdict);
    for wrong in &record.wrong {
        let _ = writeln!(text, "FAILED: {wrong}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.9, 0.99, 1.0].map(|share| quantile(&values, share)), [1.0, 5.0, 9.0, 10.0, 10.0]);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
