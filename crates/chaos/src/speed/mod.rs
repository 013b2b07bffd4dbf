//! How fast changes are read, side by side with the least that one can do, and with what others do.
//!
//! One server with a long history; consumers take turns, each a process of its own that reads the same history from its
//! beginning, so that a slow moment of the machine meets all of them. Ours has a lease, lanes and checkpoints, and two
//! standbys are connected. All figures are compared within one round.

mod consumer;
mod live;
mod meter;
mod mongodb;
mod ours;
mod peers;
mod postgres;
pub(crate) mod processes;
mod task;
mod turns;
mod verdict;

use tokio::runtime::Handle;
use watchkeeper_core::{Error, Result};
use watchkeeper_drill::obey;

use crate::cluster::Trouble;
use crate::report::quantile;

pub(crate) use consumer::{Consumer, System};
pub(crate) use task::BenchTask;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) system: System,
    pub(crate) rounds: usize,
    pub(crate) changes: u64,
    /// Whether others' programs are measured, too.
    pub(crate) peers: bool,
    /// Rounds of the live latency.
    pub(crate) live_rounds: usize,
}

impl Plan {
    /// What is measured without being asked for anything else.
    pub(crate) fn of(system: System) -> Self {
        Self { system, rounds: 5, changes: 400_000, peers: true, live_rounds: 10 }
    }
}

/// What one consumer used.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figures {
    /// Changes per second.
    rate: f64,
    /// CPU seconds per million changes.
    cpu: f64,
    /// The same at the server, from before the consumer started.
    server: f64,
    megabytes: f64,
}

/// Each consumer with its figures of every round that it took part in.
type Measured = Vec<(Consumer, Vec<Figures>)>;

/// Runs all consumers in turn, so many rounds; whether all bars were kept.
pub(crate) fn run(plan: Plan, runtime: &Handle) -> Result<bool, Trouble> {
    match plan.system {
        System::Mongodb => mongodb::run(plan, runtime),
        System::Postgres => postgres::run(plan, runtime),
    }
}

/// Consumes all that is wanted and tells what that took, from the opening of the stream to the last change.
pub(crate) async fn consume(bench_task: BenchTask, name: String) -> Result<()> {
    let orphaned = |error| Error::internal("no orders can be heard").caused_by(error);
    obey(|_| {}).map_err(orphaned)?;
    let meter = meter::Meter::up_to(bench_task.changes);
    let took = match bench_task.by.system() {
        System::Mongodb => mongodb::consume(&bench_task, &name, &meter).await?,
        System::Postgres => postgres::consume(&bench_task, &name, &meter).await?,
    };
    let figures = match bench_task.live {
        true => serde_json::json!({ "late": meter.stopwatch.median_ms() }),
        false => took.to_json(bench_task.changes),
    };
    println!("{figures}");
    // Whoever asked has heard enough, and ends this process.
    std::future::pending().await
}

/// The middle one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}
