//! Random histories against the shipped program: at the end the target equals the source.
//!
//! The plans come from the testkit. Every seed has databases of its own; servers are started once.

mod config;
mod events;
mod extjson;
mod literal;
mod run;
mod runner;
mod source;
mod systems;
mod target;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;
use watchkeeper_testkit::histories::{Narrow, Plan};

use systems::Systems;

/// What went wrong, in a sentence.
pub(crate) type Trouble = String;

/// Which histories to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The first seed, and how many follow it.
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) narrow: Narrow,
    /// How many run at once.
    pub(crate) jobs: u64,
    /// The shipped program.
    pub(crate) program: PathBuf,
    /// Where the folder of a failed seed is kept.
    pub(crate) keep: Option<PathBuf>,
}

/// Runs all seeds, also after one that failed; whether all were as they must be.
pub(crate) fn run(wanted: &Wanted, runtime: &Handle) -> Result<bool, Trouble> {
    if !wanted.program.is_file() {
        let path = wanted.program.display();
        return Err(format!("there is no program {path}; build it with `cargo build --release -p watchkeeper-cli`"));
    }
    let systems = Systems::default();
    let (began, next, failed) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= wanted.count {
                        return;
                    }
                    let plan = Plan::drawn(wanted.first + at, wanted.narrow);
                    failed.fetch_add(u64::from(!one(&plan, wanted, &systems, runtime)), Ordering::Relaxed);
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} histories in {:.0} s, {failed} failed", wanted.count, began.elapsed().as_secs_f64());
    Ok(failed == 0)
}

/// Runs one plan and prints how it went.
fn one(plan: &Plan, wanted: &Wanted, systems: &Systems, runtime: &Handle) -> bool {
    let began = Instant::now();
    let answer = run::run(plan, wanted, systems, runtime);
    let took = began.elapsed().as_secs_f64();
    let (seed, source, sink) = (plan.seed, plan.source.as_str(), plan.sink.as_str());
    match answer {
        Ok(()) => {
            println!("seed {seed:>4}: {source} to {sink}, {} steps: equal, {took:.1} s", plan.steps.len());
            true
        }
        Err(trouble) => {
            println!("\n{plan}\nFAILED after {took:.1} s: {trouble}");
            println!("repeat it with: cargo xtask histories --seed {seed} --source {source} --sink {sink}\n");
            false
        }
    }
}
