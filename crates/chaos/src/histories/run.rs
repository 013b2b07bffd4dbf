//! One history.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_core::Entropy;
use watchkeeper_testkit::histories::{Halt, Plan, Source, Start, Step};

use super::config::{self, Paths};
use super::events::out_of_order;
use super::runner::{Runner, empty};
use super::snapshot;
use super::source::{self, Database};
use super::systems::Systems;
use super::target;
use super::{Selection, Trouble};
use crate::program::HALTED;

/// How long everything may take to arrive.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long the first rows of a start are waited for. There are none if the snapshot was complete before.
const FIRST_ROWS: Duration = Duration::from_secs(4);

/// How many differences are shown.
const SHOWN_MAX: usize = 4;

/// How a history ended that went as it has to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// How often the instance was killed in the middle of its snapshot.
    pub(super) broken_snapshots: u64,
    /// Whether the stream had to halt, and did.
    pub(super) halted: bool,
}

/// Runs a plan to its end; trouble is what is not as it must be.
pub(super) fn run(plan: &Plan, wanted: &Selection, systems: &Systems, runtime: &Handle) -> Result<Ended, Trouble> {
    let name = format!("h{}_{:08x}", plan.seed, Entropy::from_system().next() as u32);
    let temporary = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let folder = wanted.keep.as_ref().map_or_else(|| temporary.path().to_owned(), |keep| keep.join(&name));
    std::fs::create_dir_all(&folder).map_err(|error| format!("a folder: {error}"))?;
    let places = places(plan, &name, folder.clone(), systems);
    let mut history = History::begin(plan, &places, wanted, runtime)?;
    let answer = history.run();
    let ended = Ended { broken_snapshots: history.broken_snapshots, halted: plan.halt.is_some() };
    let cleaned = history.end();
    if answer.is_ok() && wanted.keep.is_some() {
        std::fs::remove_dir_all(&folder).map_err(|error| format!("a folder: {error}"))?;
    }
    answer.and(cleaned).map(|()| ended)
}

fn places(plan: &Plan, name: &str, folder: PathBuf, systems: &Systems) -> Paths {
    let file = |file: &str| format!("sqlite:{}", folder.join(file).display());
    let source = match plan.source {
        Source::Sqlite => file("app.db"),
        Source::ChangeLog | Source::Replication => systems.postgres(plan.postgres, name),
        Source::Mongodb => systems.mongodb(name),
    };
    let copy = format!("{name}_copy");
    let target = match plan.sink {
        sink if sink.is_postgres() => systems.postgres(plan.postgres, &copy),
        sink if sink.is_mongodb() => systems.mongodb(&copy),
        _ => file("copy.db"),
    };
    Paths { folder, source, target }
}

struct History<'a> {
    plan: &'a Plan,
    places: &'a Paths,
    runtime: &'a Handle,
    database: Box<dyn Database>,
    runner: Runner,
    broken_snapshots: u64,
}

impl<'a> History<'a> {
    fn begin(plan: &'a Plan, places: &'a Paths, wanted: &Selection, runtime: &'a Handle) -> Result<Self, Trouble> {
        let (file, log) = (places.folder.join("watchkeeper.toml"), places.folder.join("log"));
        std::fs::write(&file, config::text(plan, places)).map_err(|error| format!("a file: {error}"))?;
        empty(&log)?;
        let runner = Runner::new(&wanted.program, &file, &log);
        let created = async {
            let mut database = source::open(plan, places).await?;
            database.create(plan).await?;
            target::create(plan, places).await?;
            Ok::<_, Trouble>(database)
        };
        let database = runtime.block_on(created)?;
        Ok(Self { plan, places, runtime, database, runner, broken_snapshots: 0 })
    }

    fn run(&mut self) -> Result<(), Trouble> {
        for (at, step) in self.plan.steps.iter().enumerate() {
            self.step(step).map_err(|trouble| format!("step {at}: {trouble}"))?;
        }
        if let Some(halt) = &self.plan.halt {
            return self.await_halt(halt);
        }
        self.catch_up()?;
        self.runner.stop()?;
        match self.differences()? {
            found if !found.is_empty() => Err(format!("after its end: {}", shown(&found))),
            _ => match out_of_order(self.plan, &self.content()?.events) {
                Some(trouble) if self.plan.sink.keeps_events() => Err(trouble),
                _ => Ok(()),
            },
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Trouble> {
        match step {
            Step::Transaction { statements, commit } => {
                self.runtime.block_on(self.database.transact(statements, *commit))
            }
            Step::Schema(change) => {
                self.runtime.block_on(target::prepare_for(self.plan, self.places, change))?;
                self.runtime.block_on(self.database.change_schema(change))
            }
            Step::Start => {
                self.runner.start()?;
                // What a slot tells begins with its making.
                let at_once = self.plan.start == Start::Oldest && self.plan.source == Source::Replication;
                if at_once { self.runtime.block_on(self.database.await_reader()) } else { Ok(()) }
            }
            Step::Kill { after_ms } => {
                std::thread::sleep(Duration::from_millis(*after_ms));
                self.runner.kill()
            }
            Step::BreakSnapshot { after_ms } => self.break_snapshot(Duration::from_millis(*after_ms)),
            Step::Stop => self.runner.stop(),
            Step::CatchUp => self.catch_up(),
        }
    }

    /// Starts the instance, kills it soon after it has delivered something, and notes whether its snapshot was under way.
    fn break_snapshot(&mut self, after: Duration) -> Result<(), Trouble> {
        let before = self.content()?.size();
        self.runner.start()?;
        let since = Instant::now();
        while self.content()?.size() <= before {
            if let Some(cause) = self.runner.has_given_up()? {
                return Err(cause);
            }
            // The snapshot may be complete, and the target need not grow any more.
            if since.elapsed() > FIRST_ROWS {
                break;
            }
        }
        std::thread::sleep(after);
        self.runner.kill()?;
        let answer = self.runner.ask(&["checkpoint", "show", "history"])?;
        let is_under_way = self.runtime.block_on(snapshot::is_under_way(self.plan, self.places, &answer))?;
        self.broken_snapshots += u64::from(is_under_way);
        Ok(())
    }

    fn content(&self) -> Result<target::Content, Trouble> {
        self.runtime.block_on(target::read(self.plan, self.places))
    }

    fn differences(&mut self) -> Result<Vec<String>, Trouble> {
        let content = self.content()?;
        self.runtime.block_on(self.database.differences(self.plan, &content))
    }

    /// Waits until the target equals the source.
    fn catch_up(&mut self) -> Result<(), Trouble> {
        let since = Instant::now();
        loop {
            let found = self.differences()?;
            if found.is_empty() {
                return Ok(());
            }
            if let Some(cause) = self.runner.has_given_up()? {
                return Err(format!("{cause}\n{}", shown(&found)));
            }
            if since.elapsed() > PATIENCE {
                let (last, state) = (self.runner.last_lines(), self.runner.describe());
                return Err(format!(
                    "the target does not become equal\n{}\n{state}\nlast lines of the log:\n{last}",
                    shown(&found)
                ));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until the stream is halted, or given up, with a cause that names the table and says what became of it.
    fn await_halt(&mut self, halt: &Halt) -> Result<(), Trouble> {
        let Halt { table, words, is_final } = halt;
        let since = Instant::now();
        loop {
            match self.runner.has_given_up()? {
                Some(cause) if *is_final && cause.starts_with(HALTED) && is_true(&cause, table, words) => {
                    return self.runner.stop();
                }
                Some(cause) => return Err(format!("it should have halted about {table}, but: {cause}")),
                None if !is_final && self.runner.last_failure().is_some_and(|cause| is_true(&cause, table, words)) => {
                    return self.runner.stop();
                }
                None if since.elapsed() > PATIENCE => {
                    return Err(format!("it should have halted about {table}\n{}", self.runner.last_lines()));
                }
                None => std::thread::sleep(Duration::from_millis(30)),
            }
        }
    }

    fn end(mut self) -> Result<(), Trouble> {
        self.runner.kill()?;
        self.runtime.block_on(self.database.clean_up())
    }
}

/// Whether a cause names the table and says what became of it.
fn is_true(cause: &str, table: &str, words: &[&str]) -> bool {
    cause.contains(table) && words.iter().any(|word| cause.contains(word))
}

/// The first few of all differences.
fn shown(differences: &[String]) -> String {
    let cut = |line: &String| line.chars().take(600).collect::<String>();
    let lines: Vec<_> = differences.iter().take(SHOWN_MAX).map(cut).collect();
    format!("{} differences:\n{}", differences.len(), lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_cause_that_names_the_table_and_what_became_of_it_is_true() {
        let judged = |cause: &str| is_true(cause, "t0", &["was renamed"]);
        assert!(judged("db.t0 was renamed to db.t0_away, which a mirror cannot follow"));
        assert!(!judged("db.t1 was renamed to db.t1_away") && !judged("t0 is larger than it may be"));
    }
}
