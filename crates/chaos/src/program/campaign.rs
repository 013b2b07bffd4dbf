//! A run of faults against the shipped program or a handler, and its verdicts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Fault, Plan, Verdict};

use super::config;
use super::handler::handled;
use crate::LEASE;
use crate::cluster::{Trouble, cx};
use crate::fault::InjectedFault;
use crate::faults::{CALM, FaultedRun, Setup, TakeoverTimes, to_trouble};
use crate::harness::{Harness, Servers, Target};
use crate::launch_plan::{LaunchPlan, Members};

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
    pub(crate) harness: &'static str,
    pub(crate) subject: Subject,
    pub(crate) faults: usize,
    pub(crate) seed: u64,
    pub(crate) log: Option<PathBuf>,
    pub(crate) program: PathBuf,
}

/// How it went.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) reliefs: TakeoverTimes,
    /// How many stopped processes blocked their successor until they were woken.
    pub(crate) blocked: u64,
    /// The verdict on every target, by its name.
    pub(crate) verdicts: Vec<(&'static str, Verdict)>,
    /// What is wrong, one sentence each.
    pub(crate) wrong: Vec<Trouble>,
}

/// The faults that need no help of the process that they strike.
fn injected_faults(test_servers: &Servers) -> Vec<InjectedFault> {
    let needs_help = |injected_fault: &InjectedFault| {
        matches!(injected_fault, InjectedFault::KillInside | InjectedFault::Process(Fault::PauseInside | Fault::Fail))
    };
    test_servers.injected_faults().into_iter().filter(|injected_fault| !needs_help(injected_fault)).collect()
}

impl Campaign {
    pub(crate) fn heading(&self) -> String {
        let Self { harness, faults, seed, .. } = self;
        let subject = match self.subject {
            Subject::Files => "`watchkeeper run` with a file",
            Subject::Copies => "`watchkeeper run` with a file and copies",
            Subject::Handler => "a program with a handler",
        };
        format!("{harness}, {subject}: {faults} faults, seed {seed}")
    }

    /// Runs it; trouble is what kept it from coming to its end.
    pub(crate) fn run(&self, test_servers: &Arc<Servers>, runtime: &Handle) -> Result<Record, Trouble> {
        let setup = Setup::new(self.harness, self.seed, test_servers, runtime)?;
        if self.subject == Subject::Copies {
            runtime.block_on(setup.harness.make_copies(&cx())).map_err(to_trouble)?;
        }
        let (launch_plan, place) = (self.launch_plan(&*setup.harness, setup.place())?, setup.place().to_owned());
        let plan = Plan::seeded(self.seed, self.faults, &injected_faults(test_servers), CALM);
        let mut active = setup.inject_fault(launch_plan, &plan, |harness| Ok(self.target(harness, &place)))?;
        let verdicts = self.judge(&mut active, runtime)?;
        let mut record =
            Record { verdicts, blocked: active.cluster.blocked, reliefs: active.reliefs, wrong: Vec::new() };
        record.wrong = wrong(&record, plan.faults.len());
        Ok(record)
    }

    fn launch_plan(&self, harness: &dyn Harness, place: &Path) -> Result<LaunchPlan, Trouble> {
        let members = match self.subject {
            Subject::Handler => Members::Handlers,
            Subject::Files | Subject::Copies => {
                let config = place.join("watchkeeper.toml");
                let text = config::text(&harness.config(self.subject == Subject::Copies), LEASE);
                std::fs::write(&config, text).map_err(|error| format!("the configuration file: {error}"))?;
                Members::Shipped { program: self.program.clone(), config }
            }
        };
        let (harness, place) = (self.harness.to_owned(), place.to_owned());
        Ok(LaunchPlan { harness, place, lease: LEASE, log: self.log.clone(), members })
    }

    /// The target that is looked at after every fault.
    fn target(&self, harness: &dyn Harness, place: &Path) -> Box<dyn Target> {
        match self.subject {
            Subject::Handler => handled(place),
            Subject::Files | Subject::Copies => harness.plain_lines(),
        }
    }

    /// Judges what every target has received.
    fn judge(&self, active: &mut FaultedRun, runtime: &Handle) -> Result<Vec<(&'static str, Verdict)>, Trouble> {
        let lines = if self.subject == Subject::Handler { "handler" } else { "file" };
        let mut targets = vec![(lines, self.target(&*active.harness, active.place()))];
        if self.subject == Subject::Copies {
            targets.extend(runtime.block_on(active.harness.copies(&cx())).map_err(to_trouble)?);
        }
        let received = active.collect(targets)?;
        let (ledger, refused) = (&active.ledger, active.cluster.refused);
        let verdict = |(name, arrivals): (&'static str, Vec<Arrival>)| match name == lines {
            true => (name, Verdict::new(ledger, &arrivals, refused)),
            false => (name, Verdict::of_copy(ledger, &arrivals)),
        };
        Ok(received.into_iter().map(verdict).collect())
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
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    fn record(verdict: Verdict) -> Record {
        let reliefs = BTreeMap::from([(InjectedFault::Cut, vec![Duration::ZERO])]);
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
        let process = |fault| InjectedFault::Process(fault);
        let expected = [Fault::Kill, Fault::Pause, Fault::Stop, Fault::HandOver].map(process);
        assert_eq!(injected_faults(&Servers::Folders), expected);
    }
}
