//! How fast changes are read from MongoDB, side by side with what the bare driver can do, and with what others do.
//!
//! One server with a long oplog; consumers take turns, each a process of its own that reads the same history from its
//! beginning, so that a slow moment of the machine meets all of them. Ours has a lease, lanes and checkpoints, and two
//! standbys are connected. All figures are compared within one round.

mod consumer;
mod history;
mod live;
mod peers;
mod verdict;
mod who;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_drill::{Children, What};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, Settings};

use crate::fleet::Trouble;
use crate::report::quantile;

pub(crate) use consumer::{Errand, consume};
pub(crate) use history::Begin;
pub(crate) use who::By;

/// The longest time for one consumer. On an idle machine the slowest takes half a minute.
const PATIENCE: Duration = Duration::from_secs(900);

/// Others' programs are slow, and differ by much more than the noise: they run in the first rounds only.
const PEER_ROUNDS_MAX: usize = 3;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) changes: u64,
    /// Whether others' programs are measured, too.
    pub(crate) peers: bool,
    /// Rounds of the live latency.
    pub(crate) live_rounds: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 5, changes: 400_000, peers: true, live_rounds: 10 }
    }
}

/// What one consumer used.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figures {
    /// Changes per second.
    rate: f64,
    /// CPU seconds per million changes.
    cpu: f64,
    megabytes: f64,
}

/// Each consumer with its figures of every round that it took part in.
type Measured = Vec<(By, Vec<Figures>)>;

/// Runs all consumers in turn, so many rounds; whether all bars were kept.
pub(crate) fn run(plan: Plan, runtime: &Handle) -> Result<bool, Trouble> {
    if plan.peers {
        peers::look();
    }
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let arguments = vec!["--oplogSize".to_owned(), "990".to_owned()];
    let set = ReplicaSet::with(&Settings { nodes: 1, arguments, election_timeout_ms: None });
    let url = set.url("speed");
    let begin = runtime.block_on(history::write(&url, plan.changes)).map_err(|error| error.to_string())?;
    println!("{} changes, a quarter of them updates, of documents of about 295 bytes", plan.changes);
    let all = By::ALL.into_iter().filter(|by| plan.peers || !by.is_peer());
    let mut measured: Measured = all.map(|by| (by, Vec::new())).collect();
    for round in 0..plan.rounds {
        let count = measured.len();
        for at in 0..count {
            let (by, figures) = &mut measured[(at + round) % count];
            if by.is_peer() && round >= PEER_ROUNDS_MAX {
                continue;
            }
            let (group, folder) = (format!("{}-{round}", by.name()), folder.path().join(format!("{round}")));
            std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            let (url, changes) = (url.clone(), plan.changes);
            let errand = Errand { by: *by, url, group, begin, changes, live: false, folder: folder.clone() };
            let told = one(&errand, figures_of)?;
            println!("round {}: {:<40} {:>8.0} changes/s", round + 1, by.describe(), told.rate);
            figures.push(told);
            std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
    }
    let late = live::measure(&url, plan.live_rounds, folder.path(), runtime)?;
    Ok(verdict::report(&measured, &late))
}

/// One consumer, from its start to what it tells in the end. Our standbys come when it has begun.
fn one<T>(errand: &Errand, parse: fn(&serde_json::Value) -> Option<T>) -> Result<T, Trouble> {
    let mut children = Children::new().map_err(|error| format!("processes: {error}"))?;
    let start = |children: &mut Children, name: &str| {
        let command = command(name, errand)?;
        children.start(name, command).map_err(|error| format!("{}: {error}", errand.by.describe()))
    };
    start(&mut children, "consumer")?;
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let Some(told) = children.next(Duration::from_millis(100)) else { continue };
        match told.what {
            What::Line(line) if line == consumer::BEGUN && errand.by.is_ours() => {
                start(&mut children, "standby-1")?;
                start(&mut children, "standby-2")?;
            }
            What::Line(line) if told.child == "consumer" => {
                if let Some(figures) = serde_json::from_str(&line).ok().as_ref().and_then(parse) {
                    return Ok(figures);
                }
            }
            What::Ended if told.child == "consumer" => {
                return Err(format!("{} has ended early{}", errand.by.describe(), last_words(&errand.folder)));
            }
            What::Line(_) | What::Ended | What::Event(_) => {}
        }
    }
    Err(format!("{} took too long{}", errand.by.describe(), last_words(&errand.folder)))
}

/// Where a peer complains to: they tell much that nobody asked for.
const COMPLAINTS: &str = "complaints";

fn last_words(folder: &Path) -> String {
    let complaints = std::fs::read_to_string(folder.join(COMPLAINTS)).unwrap_or_default();
    let lines: Vec<&str> = complaints.lines().collect();
    let last = &lines[lines.len().saturating_sub(5)..];
    if last.is_empty() { String::new() } else { format!(":\n{}", last.join("\n")) }
}

fn command(name: &str, errand: &Errand) -> Result<Command, Trouble> {
    if errand.by.is_peer() {
        let mut command = peers::command(errand, &errand.folder)?;
        let complaints = errand.folder.join(COMPLAINTS);
        let file = std::fs::File::create(&complaints).map_err(|error| format!("{}: {error}", complaints.display()))?;
        command.stderr(file);
        return Ok(command);
    }
    let mut command = Command::new(std::env::current_exe().map_err(|error| format!("this program: {error}"))?);
    command.args(["consume", "--by", errand.by.name(), "--name", name, "--url", &errand.url]);
    command.args(["--group", &errand.group, "--changes", &errand.changes.to_string()]);
    command.args(["--begin", &errand.begin.to_string(), "--folder"]).arg(&errand.folder);
    if errand.live {
        command.arg("--live");
    }
    Ok(command)
}

fn figures_of(told: &serde_json::Value) -> Option<Figures> {
    let figure = |name: &str| told[name].as_f64();
    Some(Figures { rate: figure("rate")?, cpu: figure("cpu")?, megabytes: figure("megabytes")? })
}

/// How late changes were, in milliseconds.
fn late(told: &serde_json::Value) -> Option<f64> {
    told["late"].as_f64()
}

/// The middle one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}
