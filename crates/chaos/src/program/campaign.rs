//! A run of faults against the shipped program or a handler, and its verdicts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Fault, Ledger, Plan, Verdict};

use super::config;
use super::handler::handled;
use crate::LEASE;
use crate::campaign::{CALM, await_arrivals, prepare};
use crate::crew::{Crew, Members};
use crate::fleet::{Fleet, Trouble, cx};
use crate::load::Load;
use crate::rig::{self, Ground, Rig, Target};
use crate::strike::Strike;

/// What is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The shipped program with a file sink.
    Files,
    /// The shipped program with a file sink and copies.
    Copies,
    /// A program with a handler.
    Handler,
}

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Campaign {
    pub(crate) rig: &'static str,
    pub(crate) subject: Subject,
    pub(crate) faults: usize,
    pub(crate) seed: u64,
    pub(crate) log: Option<PathBuf>,
    pub(crate) program: PathBuf,
}

/// How it went.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// For every kind of fault, how long each took until a change that followed it had arrived.
    pub(crate) reliefs: BTreeMap<Strike, Vec<Duration>>,
    /// How many stopped processes blocked their successor until they were woken.
    pub(crate) blocked: u64,
    /// The verdict on every target, by its name.
    pub(crate) verdicts: Vec<(&'static str, Verdict)>,
    /// What is wrong, one sentence each.
    pub(crate) wrong: Vec<Trouble>,
}

/// The faults that need no help of the process that they strike.
fn strikes(ground: &Ground) -> Vec<Strike> {
    let needs_help =
        |strike: &Strike| matches!(strike, Strike::KillInside | Strike::Process(Fault::PauseInside | Fault::Fail));
    ground.strikes().into_iter().filter(|strike| !needs_help(strike)).collect()
}

fn told(error: watchkeeper_core::Error) -> Trouble {
    error.to_string()
}

impl Campaign {
    pub(crate) fn heading(&self) -> String {
        let Self { rig, faults, seed, .. } = self;
        let subject = match self.subject {
            Subject::Files => "`watchkeeper run` with a file",
            Subject::Copies => "`watchkeeper run` with a file and copies",
            Subject::Handler => "a program with a handler",
        };
        format!("{rig}, {subject}: {faults} faults, seed {seed}")
    }

    /// Runs it; trouble is what kept it from coming to its end.
    pub(crate) fn run(&self, ground: &Arc<Ground>, runtime: &Handle) -> Result<Record, Trouble> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        ground.lay(folder.path()).map_err(told)?;
        let rig = rig::named(self.rig, folder.path()).map_err(told)?;
        let pen = runtime.block_on(prepare(&*rig, self.seed))?;
        if self.subject == Subject::Copies {
            runtime.block_on(rig.make_copies(&cx())).map_err(told)?;
        }
        let crew = self.crew(&*rig, folder.path())?;
        let load = Load::start(runtime, pen);
        let mut fleet = Fleet::launch(crew, ground, &*rig, runtime)?;
        let mut target = self.target(&*rig, folder.path());
        let mut record = Record::default();
        let plan = Plan::seeded(self.seed, self.faults, &strikes(ground), CALM);
        for (wait, strike) in &plan.faults {
            fleet.listen(*wait)?;
            let struck = fleet.strike(*strike)?;
            let before = load.ledger();
            let wanted = |arrival: &Arrival| arrival.number >= before.next(&arrival.key);
            let relieved = fleet.relieved(&struck, &mut *target, wanted)?;
            record.reliefs.entry(*strike).or_default().push(relieved.took);
            fleet.mend(&struck)?;
        }
        fleet.steady()?;
        let ledger = runtime.block_on(load.finish())?.ledger();
        record.verdicts = self.judge(&*rig, folder.path(), &ledger, &mut fleet, runtime)?;
        record.blocked = fleet.blocked;
        record.wrong = wrong(&record, plan.faults.len());
        Ok(record)
    }

    fn crew(&self, rig: &dyn Rig, place: &Path) -> Result<Crew, Trouble> {
        let members = match self.subject {
            Subject::Handler => Members::Handlers,
            Subject::Files | Subject::Copies => {
                let config = place.join("watchkeeper.toml");
                let text = config::text(&rig.config(self.subject == Subject::Copies), LEASE);
                std::fs::write(&config, text).map_err(|error| format!("the configuration file: {error}"))?;
                Members::Shipped { program: self.program.clone(), config }
            }
        };
        let (rig, place) = (self.rig.to_owned(), place.to_owned());
        Ok(Crew { rig, place, lease: LEASE, log: self.log.clone(), members })
    }

    /// The target that is looked at after every fault.
    fn target(&self, rig: &dyn Rig, place: &Path) -> Box<dyn Target> {
        match self.subject {
            Subject::Handler => handled(place),
            Subject::Files | Subject::Copies => rig.plain_lines(),
        }
    }

    /// Waits until everything has arrived at every target, ends all instances, and judges.
    fn judge(
        &self,
        rig: &dyn Rig,
        place: &Path,
        ledger: &Ledger,
        fleet: &mut Fleet,
        runtime: &Handle,
    ) -> Result<Vec<(&'static str, Verdict)>, Trouble> {
        let lines = if self.subject == Subject::Handler { "handler" } else { "file" };
        let mut targets = vec![(lines, self.target(rig, place))];
        if self.subject == Subject::Copies {
            targets.extend(runtime.block_on(rig.copies(&cx())).map_err(told)?);
        }
        let mut received = Vec::new();
        for (name, target) in targets {
            received.push((name, await_arrivals(async { Ok(target) }, ledger, fleet, runtime)?));
        }
        fleet.disband()?;
        let mut verdicts = Vec::new();
        for (name, mut arrived) in received {
            let arrivals = arrived.finish(fleet)?;
            let verdict = match name == lines {
                true => Verdict::new(ledger, &arrivals, fleet.refused),
                false => Verdict::of_copy(ledger, &arrivals),
            };
            verdicts.push((name, verdict));
        }
        Ok(verdicts)
    }
}

/// What is wrong with a record, one sentence each.
fn wrong(record: &Record, planned: usize) -> Vec<Trouble> {
    let mut wrong = Vec::new();
    for (name, verdict) in &record.verdicts {
        if !verdict.is_sound() {
            wrong.push(format!("{name}: changes were lost, out of order, stale or strange"));
        }
        if verdict.delivered == 0 {
            wrong.push(format!("{name}: nothing was delivered at all"));
        }
    }
    if record.reliefs.values().map(Vec::len).sum::<usize>() != planned {
        wrong.push("not every fault of the plan happened".to_owned());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(verdict: Verdict) -> Record {
        let reliefs = BTreeMap::from([(Strike::Cut, vec![Duration::ZERO])]);
        Record { reliefs, verdicts: vec![("file", verdict)], ..Record::default() }
    }

    #[test]
    fn every_flaw_is_named_with_its_target() {
        let good = Verdict { delivered: 1, ..Verdict::default() };
        assert_eq!(wrong(&record(good.clone()), 1), Vec::<String>::new());
        assert_eq!(wrong(&record(good.clone()), 2), ["not every fault of the plan happened"]);
        assert_eq!(wrong(&record(Verdict::default()), 1), ["file: nothing was delivered at all"]);
        let mut lost = good;
        lost.lost.count = 1;
        assert_eq!(wrong(&record(lost), 1), ["file: changes were lost, out of order, stale or strange"]);
    }

    #[test]
    fn only_faults_from_outside_strike() {
        let process = |fault| Strike::Process(fault);
        let expected = [Fault::Kill, Fault::Pause, Fault::Stop, Fault::HandOver].map(process);
        assert_eq!(strikes(&Ground::Folders), expected);
    }
}
