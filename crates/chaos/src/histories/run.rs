//! One history.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_core::Entropy;
use watchkeeper_testkit::histories::{Plan, Source, Start, Step};

use super::config::{self, Places};
use super::events::out_of_order;
use super::runner::{Runner, empty};
use super::source::{self, Database};
use super::systems::Systems;
use super::target;
use super::{Trouble, Wanted};
use crate::program::HALTED;

/// How long everything may take to arrive.
const PATIENCE: Duration = Duration::from_secs(40);

/// How many differences are shown.
const SHOWN_MAX: usize = 4;

/// Runs a plan to its end; trouble is what is not as it must be.
pub(super) fn run(plan: &Plan, wanted: &Wanted, systems: &Systems, runtime: &Handle) -> Result<(), Trouble> {
    let name = format!("h{}_{:08x}", plan.seed, Entropy::from_system().next() as u32);
    let temporary = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let folder = wanted.keep.as_ref().map_or_else(|| temporary.path().to_owned(), |keep| keep.join(&name));
    std::fs::create_dir_all(&folder).map_err(|error| format!("a folder: {error}"))?;
    let places = places(plan, &name, folder.clone(), systems);
    let mut history = History::begin(plan, &places, wanted, runtime)?;
    let answer = history.run();
    let cleaned = history.end();
    if answer.is_ok() && wanted.keep.is_some() {
        std::fs::remove_dir_all(&folder).map_err(|error| format!("a folder: {error}"))?;
    }
    answer.and(cleaned)
}

fn places(plan: &Plan, name: &str, folder: PathBuf, systems: &Systems) -> Places {
    let file = |file: &str| format!("sqlite:{}", folder.join(file).display());
    let source = match plan.source {
        Source::Sqlite => file("app.db"),
        Source::ChangeLog | Source::Replication => systems.postgres(name),
        Source::Mongodb => systems.mongodb(name),
    };
    let copy = format!("{name}_copy");
    let target = match plan.sink {
        sink if sink.is_postgres() => systems.postgres(&copy),
        sink if sink.is_mongodb() => systems.mongodb(&copy),
        _ => file("copy.db"),
    };
    Places { folder, source, target }
}

struct History<'a> {
    plan: &'a Plan,
    places: &'a Places,
    runtime: &'a Handle,
    database: Box<dyn Database>,
    runner: Runner,
}

impl<'a> History<'a> {
    fn begin(plan: &'a Plan, places: &'a Places, wanted: &Wanted, runtime: &'a Handle) -> Result<Self, Trouble> {
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
        Ok(Self { plan, places, runtime, database, runner })
    }

    fn run(&mut self) -> Result<(), Trouble> {
        for (at, step) in self.plan.steps.iter().enumerate() {
            self.step(step).map_err(|trouble| format!("step {at}: {trouble}"))?;
        }
        if let Some(table) = &self.plan.halts_about {
            return self.await_halt(table);
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
            Step::Stop => self.runner.stop(),
            Step::CatchUp => self.catch_up(),
        }
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
                let last = self.runner.last_lines();
                return Err(format!(
                    "the target does not become equal\n{}\nlast lines of the log:\n{last}",
                    shown(&found)
                ));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until the stream is halted with a cause that names `table`.
    fn await_halt(&mut self, table: &str) -> Result<(), Trouble> {
        let since = Instant::now();
        loop {
            match self.runner.has_given_up()? {
                Some(cause) if cause.starts_with(HALTED) && cause.contains(table) => return self.runner.stop(),
                Some(cause) => return Err(format!("it should have halted about {table}, but: {cause}")),
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

/// The first few of all differences.
fn shown(differences: &[String]) -> String {
    let cut = |line: &String| line.chars().take(600).collect::<String>();
    let lines: Vec<_> = differences.iter().take(SHOWN_MAX).map(cut).collect();
    format!("{} differences:\n{}", differences.len(), lines.join("\n"))
}
