//! The table, and each bar beside what was seen.

use super::consumer::Consumer;
use super::{Figures, Measured, median};
use crate::report::quantile;

/// One sentence about a bar, and whether it was kept.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) kept: bool,
    pub(super) said: String,
}

impl Bar {
    pub(super) fn at_least(what: String, seen: f64, limit: f64) -> Self {
        // What was not measured is not a number, and keeps no bar.
        Self { kept: seen >= limit, said: format!("{what}, at least {limit}") }
    }

    pub(super) fn at_most(what: String, seen: f64, limit: f64) -> Self {
        Self { kept: seen <= limit, said: format!("{what}, at most {limit}") }
    }
}

/// What one consumer of ours may use: CPU seconds per million changes, and megabytes.
pub(super) struct ResourceLimit {
    pub(super) by: Consumer,
    pub(super) cpu: f64,
    pub(super) megabytes: f64,
}

/// Ours, another, and by how much ours has to be faster.
pub(super) type Ratio = (Consumer, Consumer, f64);

fn of(measured: &Measured, wanted: Consumer) -> Option<&[Figures]> {
    measured.iter().find(|(by, _)| *by == wanted).map(|(_, figures)| figures.as_slice())
}

/// Rates as multiples of others' in the same round. Those that were left out on purpose have no bar.
pub(super) fn ratios(measured: &Measured, wanted: &[Ratio]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (ours, theirs, limit) in wanted {
        let (Some(our_figures), Some(their_figures)) = (of(measured, *ours), of(measured, *theirs)) else { continue };
        let ratios = our_figures.iter().zip(their_figures).map(|(our, their)| our.rate / their.rate);
        let [low, middle, high] = quartiles(ratios);
        let (ours, theirs) = (ours.describe(), theirs.describe());
        let what = format!("{ours} / {theirs}: {middle:.2} x ({low:.2} to {high:.2})");
        bars.push(Bar::at_least(what, middle, *limit));
    }
    bars
}

/// The middle half of some values, and their middle.
pub(super) fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| quantile(&sorted, share))
}

/// What ours used.
pub(super) fn used(measured: &Measured, most: &ResourceLimit) -> Vec<Bar> {
    let ours = of(measured, most.by).unwrap_or_default();
    let cpu = median(ours.iter().map(|figures| figures.cpu));
    let megabytes = median(ours.iter().map(|figures| figures.megabytes));
    vec![
        Bar::at_most(format!("CPU {cpu:.2} s per million changes"), cpu, most.cpu),
        Bar::at_most(format!("memory {megabytes:.1} MB"), megabytes, most.megabytes),
    ]
}

/// Prints the medians of all.
pub(super) fn print_table(measured: &Measured) {
    let [client, server] = ["CPU s/million", "at the server"];
    println!("\n{:<40} {:>10} {client:>14} {server:>14} {:>8}", "medians", "changes/s", "MB");
    for (by, figures) in measured {
        let of = |figure: fn(&Figures) -> f64| median(figures.iter().map(figure));
        let (rate, cpu, megabytes) = (of(|one| one.rate), of(|one| one.cpu), of(|one| one.megabytes));
        let server = of(|one| one.server);
        println!("{:<40} {rate:>10.0} {cpu:>14.2} {server:>14.2} {megabytes:>8.1}", by.describe());
    }
}

/// Prints each bar, and how much else the machine did; whether all were kept.
pub(super) fn judge(bars: &[Bar]) -> bool {
    println!("{}", load_average());
    for bar in bars {
        println!("{}: {}", bar.said, if bar.kept { "kept" } else { "MISSED" });
    }
    bars.iter().all(|bar| bar.kept)
}

/// What the machine had to do in the last minutes, for whoever reads the verdict: figures of a busy machine say little.
fn load_average() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    match std::fs::read_to_string("/proc/loadavg") {
        Ok(text) => {
            let averages: Vec<_> = text.split_whitespace().take(3).collect();
            format!("load average of the last 1, 5 and 15 minutes: {} on {cores} cores", averages.join(", "))
        }
        Err(error) => format!("load average unknown ({error}), {cores} cores"),
    }
}

/// Figures of rounds with these rates, for tests.
#[cfg(test)]
pub(super) fn figures(rates: &[f64]) -> Vec<Figures> {
    rates.iter().map(|rate| Figures { rate: *rate, cpu: 1.2, server: 3.0, megabytes: 28.0 }).collect()
}

/// What is said of the bars that were missed, for tests.
#[cfg(test)]
pub(super) fn missed(bars: Vec<Bar>) -> Vec<String> {
    bars.into_iter().filter(|bar| !bar.kept).map(|bar| bar.said).collect()
}
