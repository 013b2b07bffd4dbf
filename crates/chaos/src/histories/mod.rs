//! Random histories against the shipped program: at the end the target equals the source.
//!
//! The plans come from the testkit. Every seed has databases of its own; servers are started once.

mod config;
mod events;
mod extjson;
mod literal;
mod run;
mod runner;
mod snapshot;
mod source;
mod systems;
mod target;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;
use watchkeeper_testkit::histories::{Narrow, Plan, Step};

use systems::Systems;

/// With so many histories that break off a snapshot, one at least has to be in the middle of it when the instance is killed.
const MUST_BREAK: u64 = 10;

/// What went wrong, in a sentence.
pub(crate) type Trouble = String;

/// Which histories to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
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

/// What was counted over all histories.
#[derive(Debug, Default)]
struct Counts {
    failed: AtomicU64,
    /// Histories that are to break off a snapshot, and kills that really did.
    breaking: AtomicU64,
    broken: AtomicU64,
    halted: AtomicU64,
}

impl Counts {
    /// Why the run proves less than it should, although no history failed.
    fn shortcoming(&self) -> Option<String> {
        let (breaking, broken) = (self.breaking.load(Ordering::Relaxed), self.broken.load(Ordering::Relaxed));
        (breaking >= MUST_BREAK && broken == 0).then(|| {
            format!("{breaking} histories should break off a snapshot, but no kill came while one was under way")
        })
    }
}

/// Runs all seeds, also after one that failed; whether all were as they must be.
pub(crate) fn run(wanted: &Selection, runtime: &Handle) -> Result<bool, Trouble> {
    if !wanted.program.is_file() {
        let path = wanted.program.display();
        return Err(format!("there is no program {path}; build it with `cargo build --release -p watchkeeper-cli`"));
    }
    let systems = Systems::default();
    let (began, next, counts) = (Instant::now(), AtomicU64::new(0), Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= wanted.count {
                        return;
                    }
                    let plan = Plan::drawn(wanted.first + at, wanted.narrow);
                    one(&plan, wanted, &systems, runtime, &counts);
                }
            });
        }
    });
    let (failed, halted) = (counts.failed.load(Ordering::Relaxed), counts.halted.load(Ordering::Relaxed));
    println!(
        "{} histories in {:.0} s, {failed} failed, {halted} halted as they had to; snapshots broken off: {}",
        wanted.count,
        began.elapsed().as_secs_f64(),
        counts.broken.load(Ordering::Relaxed)
    );
    let shortcoming = counts.shortcoming();
    if let Some(shortcoming) = &shortcoming {
        println!("FAILED: {shortcoming}");
    }
    Ok(failed == 0 && shortcoming.is_none())
}

/// Runs one plan and prints how it went.
fn one(plan: &Plan, wanted: &Selection, systems: &Systems, runtime: &Handle, counts: &Counts) {
    let began = Instant::now();
    let answer = run::run(plan, wanted, systems, runtime);
    let took = began.elapsed().as_secs_f64();
    let (seed, source, sink) = (plan.seed, plan.source.as_str(), plan.sink.as_str());
    let add = |count: &AtomicU64, more: u64| count.fetch_add(more, Ordering::Relaxed);
    add(&counts.breaking, u64::from(plan.steps.iter().any(|step| matches!(step, Step::BreakSnapshot { .. }))));
    match answer {
        Ok(run::Ended { broken_snapshots, halted }) => {
            add(&counts.broken, broken_snapshots);
            add(&counts.halted, u64::from(halted));
            let end = if halted { "halted as it had to" } else { "equal" };
            let broken = if broken_snapshots == 0 {
                String::new()
            } else {
                format!(", {broken_snapshots} snapshots broken off")
            };
            println!("seed {seed:>4}: {source} to {sink}, {} steps: {end}{broken}, {took:.1} s", plan.steps.len());
        }
        Err(trouble) => {
            println!("\n{plan}\nFAILED after {took:.1} s: {trouble}");
            println!("repeat it with: cargo xtask histories --seed {seed} --source {source} --sink {sink}\n");
            add(&counts.failed, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_breaks_off_no_snapshot_is_a_failure() {
        let shortcoming = |breaking, broken| {
            Counts { breaking: AtomicU64::new(breaking), broken: AtomicU64::new(broken), ..Counts::default() }
                .shortcoming()
        };
        assert!(shortcoming(MUST_BREAK, 0).is_some());
        assert_eq!((shortcoming(MUST_BREAK, 1), shortcoming(MUST_BREAK - 1, 0)), (None, None));
    }
}
