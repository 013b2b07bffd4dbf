//! The table, and each bar beside what was seen.

use super::who::By;
use super::{Figures, Measured, median};
use crate::report::quantile;

/// Ours, as a multiple of another's rate in the same round.
const RATIOS: [(By, By, f64); 5] = [
    (By::Watchkeeper, By::RawBatches, 0.95),
    (By::BusyWatchkeeper, By::BusyLoop, 1.5),
    (By::Lines, By::Watchkeeper, 0.85),
    (By::Watchkeeper, By::Node, 1.8),
    (By::Watchkeeper, By::Debezium, 4.0),
];

/// CPU seconds per million changes.
const CPU_MAX: f64 = 1.5;
const MEGABYTES_MAX: f64 = 45.0;

/// How much later than to the bare driver changes may come, in milliseconds.
const LATER_MAX: f64 = 0.3;

/// One sentence about a bar, and whether it was kept.
struct Bar {
    kept: bool,
    said: String,
}

impl Bar {
    fn at_least(what: String, seen: f64, limit: f64) -> Self {
        // What was not measured is not a number, and keeps no bar.
        Self { kept: seen >= limit, said: format!("{what}, at least {limit}") }
    }

    fn at_most(what: String, seen: f64, limit: f64) -> Self {
        Self { kept: seen <= limit, said: format!("{what}, at most {limit}") }
    }
}

/// Prints medians and bars; whether all bars were kept.
pub(super) fn report(measured: &Measured, late: &[(f64, f64)]) -> bool {
    println!("\n{:<40} {:>10} {:>14} {:>8}", "medians", "changes/s", "CPU s/million", "MB");
    for (by, figures) in measured {
        let of = |figure: fn(&Figures) -> f64| median(figures.iter().map(figure));
        let (rate, cpu, megabytes) = (of(|one| one.rate), of(|one| one.cpu), of(|one| one.megabytes));
        println!("{:<40} {rate:>10.0} {cpu:>14.2} {megabytes:>8.1}", by.describe());
    }
    let (bare, ours) = (median(late.iter().map(|late| late.0)), median(late.iter().map(|late| late.1)));
    println!("live, ms late: driver {bare:.2}, Watchkeeper {ours:.2}\n");
    let bars = bars(measured, late);
    for bar in &bars {
        println!("{}: {}", bar.said, if bar.kept { "kept" } else { "MISSED" });
    }
    bars.iter().all(|bar| bar.kept)
}

fn bars(measured: &Measured, late: &[(f64, f64)]) -> Vec<Bar> {
    let of = |wanted: By| measured.iter().find(|(by, _)| *by == wanted).map(|(_, figures)| figures.as_slice());
    let mut bars = Vec::new();
    for (ours, theirs, limit) in RATIOS {
        // Peers that were left out on purpose have no bar.
        let (Some(our_figures), Some(their_figures)) = (of(ours), of(theirs)) else { continue };
        let mut ratios: Vec<f64> =
            our_figures.iter().zip(their_figures).map(|(our, their)| our.rate / their.rate).collect();
        ratios.sort_by(f64::total_cmp);
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| quantile(&ratios, share));
        let (ours, theirs) = (ours.describe(), theirs.describe());
        let what = format!("{ours} / {theirs}: {middle:.2} x ({low:.2} to {high:.2})");
        bars.push(Bar::at_least(what, middle, limit));
    }
    let ours = of(By::Watchkeeper).unwrap_or_default();
    let cpu = median(ours.iter().map(|figures| figures.cpu));
    let megabytes = median(ours.iter().map(|figures| figures.megabytes));
    bars.push(Bar::at_most(format!("CPU {cpu:.2} s per million changes"), cpu, CPU_MAX));
    bars.push(Bar::at_most(format!("memory {megabytes:.1} MB"), megabytes, MEGABYTES_MAX));
    let later = median(late.iter().map(|(bare, ours)| ours - bare));
    bars.push(Bar::at_most(format!("live, later than the driver by {later:.2} ms"), later, LATER_MAX));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rates: &[f64]) -> Vec<Figures> {
        rates.iter().map(|rate| Figures { rate: *rate, cpu: 1.2, megabytes: 40.0 }).collect()
    }

    fn measured(ours: &[f64], bare: &[f64]) -> Measured {
        let busy = figures(&[1.0]);
        vec![
            (By::RawBatches, figures(bare)),
            (By::Watchkeeper, figures(ours)),
            (By::Lines, figures(ours)),
            (By::BusyLoop, busy),
            (By::BusyWatchkeeper, figures(&[2.0])),
        ]
    }

    fn missed(measured: &Measured, late: &[(f64, f64)]) -> Vec<String> {
        bars(measured, late).into_iter().filter(|bar| !bar.kept).map(|bar| bar.said).collect()
    }

    #[test]
    fn rates_are_compared_within_their_round() {
        // The machine was slow in the first round: by medians alone ours would be far behind.
        assert_eq!(missed(&measured(&[10.0, 50.0, 51.0], &[10.0, 52.0, 52.0]), &[(1.0, 1.1)]), [""; 0]);
        let slower = missed(&measured(&[9.0, 45.0, 46.0], &[10.0, 52.0, 52.0]), &[(1.0, 1.1)]);
        assert_eq!(slower.len(), 1);
        assert!(slower[0].contains("0.88 x (0.87 to 0.90), at least 0.95"), "{slower:?}");
    }

    #[test]
    fn what_was_not_measured_keeps_no_bar() {
        let nothing = missed(&measured(&[], &[]), &[]);
        assert_eq!(nothing.len(), 5, "{nothing:?}");
    }

    #[test]
    fn live_differences_are_paired() {
        let good = measured(&[50.0], &[50.0]);
        assert_eq!(missed(&good, &[(1.0, 1.2), (9.0, 9.3), (2.0, 2.1)]), [""; 0]);
        assert_eq!(missed(&good, &[(1.0, 1.5), (9.0, 9.1), (2.0, 2.6)]).len(), 1);
    }
}
