//! How fast changes are read from MongoDB, side by side with what the bare driver can do.
//!
//! One server with a long oplog; consumers take turns, each a process of its own that reads the same history from its
//! beginning, so that a slow moment of the machine meets all of them. Ours has a lease, lanes and checkpoints, and two
//! standbys are connected.

mod consumer;
mod history;

use std::process::Command;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_drill::{Children, What};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, Settings};

use crate::fleet::Trouble;
use crate::report::quantile;

pub(crate) use consumer::{By, Errand, consume};
pub(crate) use history::Begin;

/// The longest time for one consumer.
const PATIENCE: Duration = Duration::from_secs(180);

/// What our consumer must keep to.
const RATIO_MIN: f64 = 0.95;
const CPU_MAX: f64 = 1.5;
const MEGABYTES_MAX: f64 = 45.0;

/// What one consumer used.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figures {
    /// Changes per second.
    rate: f64,
    /// CPU seconds per million changes.
    cpu: f64,
    megabytes: f64,
}

/// Runs all consumers in turn, so many rounds; whether ours kept its bars.
pub(crate) fn run(rounds: usize, changes: u64, runtime: &Handle) -> Result<bool, Trouble> {
    let arguments = vec!["--oplogSize".to_owned(), "990".to_owned()];
    let set = ReplicaSet::with(&Settings { nodes: 1, arguments, election_timeout_ms: None });
    let url = set.url("speed");
    let begin = runtime.block_on(history::write(&url, changes)).map_err(|error| error.to_string())?;
    println!("{changes} changes, a quarter of them updates, of documents of about 295 bytes");
    let mut measured: Vec<(By, Vec<Figures>)> = By::ALL.map(|by| (by, Vec::new())).to_vec();
    for round in 0..rounds {
        for at in 0..measured.len() {
            let turn = (at + round) % By::ALL.len();
            let (by, figures) = &mut measured[turn];
            figures.push(one(Errand { by: *by, url: url.clone(), group: format!("round-{round}"), begin, changes })?);
        }
    }
    Ok(report(&measured))
}

/// One consumer, from its start to its last change. Our standbys come when it has begun.
fn one(errand: Errand) -> Result<Figures, Trouble> {
    let mut children = Children::new().map_err(|error| format!("processes: {error}"))?;
    let start = |children: &mut Children, name: &str, errand: &Errand| {
        let command = command(name, errand)?;
        children.start(name, command).map_err(|error| format!("a consumer: {error}"))
    };
    start(&mut children, "consumer", &errand)?;
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let Some(told) = children.next(Duration::from_millis(100)) else { continue };
        match told.what {
            What::Line(line) if line == consumer::BEGUN && errand.by == By::Watchkeeper => {
                start(&mut children, "standby-1", &errand)?;
                start(&mut children, "standby-2", &errand)?;
            }
            What::Line(line) => {
                if let Some(figures) = parse(&line) {
                    return Ok(figures);
                }
            }
            What::Ended if told.child == "consumer" => return Err(format!("{} has ended early", errand.by.name())),
            What::Ended | What::Event(_) => {}
        }
    }
    Err(format!("{} took too long", errand.by.name()))
}

fn command(name: &str, errand: &Errand) -> Result<Command, Trouble> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| format!("this program: {error}"))?);
    command.args(["consume", "--by", errand.by.name(), "--name", name, "--url", &errand.url]);
    command.args(["--group", &errand.group, "--changes", &errand.changes.to_string()]);
    command.args(["--begin", &errand.begin.to_string()]);
    Ok(command)
}

fn parse(line: &str) -> Option<Figures> {
    let parsed: serde_json::Value = serde_json::from_str(line).ok()?;
    let figure = |name: &str| parsed[name].as_f64();
    Some(Figures { rate: figure("rate")?, cpu: figure("cpu")?, megabytes: figure("megabytes")? })
}

/// Prints medians, and what ours are beside the bare driver's in the same round; whether the bars were kept.
fn report(measured: &[(By, Vec<Figures>)]) -> bool {
    let median = |figures: &mut dyn Iterator<Item = f64>, share: f64| {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        quantile(&sorted, share)
    };
    println!("{:<34} {:>10} {:>16} {:>8}", "", "changes/s", "CPU s/million", "MB");
    for (by, figures) in measured {
        let rate = median(&mut figures.iter().map(|figures| figures.rate), 0.5);
        let cpu = median(&mut figures.iter().map(|figures| figures.cpu), 0.5);
        let megabytes = median(&mut figures.iter().map(|figures| figures.megabytes), 0.5);
        println!("{:<34} {rate:>10.0} {cpu:>16.2} {megabytes:>8.1}", by.describe());
    }
    let of = |wanted: By| measured.iter().find(|(by, _)| *by == wanted).map_or(&[][..], |(_, figures)| figures);
    let (ours, bare) = (of(By::Watchkeeper), of(By::RawBatches));
    let ratios = || ours.iter().zip(bare).map(|(ours, bare)| ours.rate / bare.rate);
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| median(&mut ratios(), share));
    let cpu = median(&mut ours.iter().map(|figures| figures.cpu), 0.5);
    let megabytes = median(&mut ours.iter().map(|figures| figures.megabytes), 0.5);
    let mut kept = true;
    let mut bar = |holds: bool, line: String| {
        kept &= holds;
        println!("{line}: {}", if holds { "kept" } else { "MISSED" });
    };
    // Missed when the whole interquartile range lies below.
    let rate = format!("ours / raw batches {middle:.2} ({low:.2} to {high:.2}), at least {RATIO_MIN}");
    bar(high >= RATIO_MIN, rate);
    bar(cpu <= CPU_MAX, format!("CPU {cpu:.2} s per million, at most {CPU_MAX}"));
    bar(megabytes <= MEGABYTES_MAX, format!("memory {megabytes:.1} MB, at most {MEGABYTES_MAX}"));
    kept
}
