//! Consumers take turns, each in a process of its own.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use watchkeeper_drill::{Children, ProcessReportKind};

use super::consumer::Consumer;
use super::processes::cpu_of_server;
use super::task::BenchTask;
use super::{Figures, Measured, Plan, meter};
use crate::cluster::Trouble;

/// The longest time for one consumer. On an idle machine the slowest takes half a minute.
const PATIENCE: Duration = Duration::from_secs(900);

/// Others' programs are slow, and differ by much more than the noise: they run in the first rounds only.
const PEER_ROUNDS_MAX: usize = 3;

/// What consumers read from.
pub(super) trait Site {
    /// Makes ready for a consumer; its address, and its place in the history.
    fn prepare(&self, by: Consumer, group: &str) -> Result<(String, u64), Trouble>;

    /// Removes what was made for it.
    fn clear(&self, by: Consumer, group: &str) -> Result<(), Trouble>;

    /// The server's process.
    fn pid(&self) -> Option<u32>;

    /// The command that runs a consumer which is not this program.
    fn peer(&self, bench_task: &BenchTask) -> Result<Command, Trouble>;
}

/// Runs all in turn, so many rounds. Each round begins with another one.
pub(super) fn take(plan: Plan, site: &dyn Site, folder: &Path) -> Result<Measured, Trouble> {
    let all = Consumer::all_of(plan.system).filter(|by| plan.peers || !by.is_peer());
    let mut measured: Measured = all.map(|by| (by, Vec::new())).collect();
    for round in 0..plan.rounds {
        let count = measured.len();
        for at in 0..count {
            let (by, figures) = &mut measured[(at + round) % count];
            if by.is_peer() && round >= PEER_ROUNDS_MAX {
                continue;
            }
            let one = turn(*by, plan.changes, site, &folder.join(format!("{round}")), round)?;
            println!("round {}: {:<40} {:>8.0} changes/s", round + 1, by.describe(), one.rate);
            figures.push(one);
        }
    }
    Ok(measured)
}

fn turn(by: Consumer, changes: u64, site: &dyn Site, folder: &Path, round: usize) -> Result<Figures, Trouble> {
    let unusable = |error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(unusable)?;
    let group = format!("{}-{round}", by.name());
    let (url, mark) = site.prepare(by, &group)?;
    let bench_task = BenchTask { by, url, group, mark, changes, live: false, folder: folder.to_owned() };
    let used = || site.pid().map_or(f64::NAN, cpu_of_server);
    let before = used();
    let report = one(&bench_task, site, figures)?;
    let server = (used() - before) / changes as f64 * 1e6;
    site.clear(by, &bench_task.group)?;
    std::fs::remove_dir_all(folder).map_err(unusable)?;
    Ok(Figures { server, ..report })
}

fn figures(report: &serde_json::Value) -> Option<Figures> {
    let figure = |name: &str| report[name].as_f64();
    Some(Figures { rate: figure("rate")?, cpu: figure("cpu")?, server: f64::NAN, megabytes: figure("megabytes")? })
}

/// How late changes were, in milliseconds.
pub(super) fn late(report: &serde_json::Value) -> Option<f64> {
    report["late"].as_f64()
}

/// One consumer, from its start to what it tells in the end. Our standbys come when it has begun.
pub(super) fn one<T>(
    bench_task: &BenchTask,
    site: &dyn Site,
    parse: fn(&serde_json::Value) -> Option<T>,
) -> Result<T, Trouble> {
    let mut children = Children::new().map_err(|error| format!("processes: {error}"))?;
    let start = |children: &mut Children, name: &str| {
        let command = command(name, bench_task, site)?;
        children.start(name, command).map_err(|error| format!("{}: {error}", bench_task.by.describe()))
    };
    start(&mut children, "consumer")?;
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let Some(report) = children.next(Duration::from_millis(100)) else { continue };
        match report.what {
            ProcessReportKind::Line(line) if line == meter::BEGUN && bench_task.by.is_ours() => {
                start(&mut children, "standby-1")?;
                start(&mut children, "standby-2")?;
            }
            ProcessReportKind::Line(line) if report.child == "consumer" => {
                if let Some(figures) = serde_json::from_str(&line).ok().as_ref().and_then(parse) {
                    return Ok(figures);
                }
            }
            ProcessReportKind::Ended if report.child == "consumer" => {
                return Err(format!("{} has ended early{}", bench_task.by.describe(), last_words(&bench_task.folder)));
            }
            ProcessReportKind::Line(_) | ProcessReportKind::Ended | ProcessReportKind::Event(_) => {}
        }
    }
    Err(format!("{} took too long{}", bench_task.by.describe(), last_words(&bench_task.folder)))
}

/// Where a peer complains to: they tell much that nobody asked for.
const COMPLAINTS: &str = "complaints";

fn last_words(folder: &Path) -> String {
    let complaints = std::fs::read_to_string(folder.join(COMPLAINTS)).unwrap_or_default();
    let lines: Vec<&str> = complaints.lines().collect();
    let last = &lines[lines.len().saturating_sub(5)..];
    if last.is_empty() { String::new() } else { format!(":\n{}", last.join("\n")) }
}

fn command(name: &str, bench_task: &BenchTask, site: &dyn Site) -> Result<Command, Trouble> {
    if !bench_task.by.is_peer() {
        return bench_task.command(name);
    }
    let mut command = site.peer(bench_task)?;
    let complaints = bench_task.folder.join(COMPLAINTS);
    let file = std::fs::File::create(&complaints).map_err(|error| format!("{}: {error}", complaints.display()))?;
    command.stderr(file);
    Ok(command)
}
