//! A run of faults under load, and its verdict.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use watchkeeper_drill::{Fault, Plan, Verdict};

use crate::cluster::{Trouble, cx};
use crate::fault::InjectedFault;
use crate::faults::{CALM, Setup, TakeoverTimes, collect_one, to_trouble};
use crate::harness::{Harness, Kind, Servers};
use crate::launch_plan::{LaunchPlan, Members};

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Campaign {
    pub(crate) harness: &'static str,
    pub(crate) kind: Kind,
    pub(crate) faults: usize,
    pub(crate) seed: u64,
    pub(crate) self_fencing: bool,
    pub(crate) lease: Duration,
    /// Where the instances log to.
    pub(crate) log: Option<PathBuf>,
}

/// How it went.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) reliefs: TakeoverTimes,
    /// How many processes were evicted.
    pub(crate) evicted: u64,
    /// How many blocked their successor until they were woken.
    pub(crate) blocked: u64,
    pub(crate) verdict: Verdict,
    /// What is wrong, one sentence each.
    pub(crate) wrong: Vec<Trouble>,
}

impl Campaign {
    /// Those of these that make sense here. What only pauses try is tried by nothing else with self-fencing off.
    fn kinds(&self, injected_faults: &[InjectedFault]) -> Vec<InjectedFault> {
        let fits = |injected_fault: &&InjectedFault| match injected_fault {
            InjectedFault::Process(Fault::PauseInside) | InjectedFault::KillInside => {
                self.kind == Kind::Transactional && self.self_fencing
            }
            InjectedFault::Process(Fault::Pause) => true,
            _ => self.self_fencing,
        };
        injected_faults.iter().filter(fits).copied().collect()
    }

    /// Runs it; trouble is what kept it from coming to its end.
    pub(crate) fn run(&self, test_servers: &Arc<Servers>, runtime: &Handle) -> Result<Record, Trouble> {
        let setup = Setup::new(self.harness, self.seed, test_servers, runtime)?;
        let (harness, place) = (self.harness.to_owned(), setup.place().to_owned());
        let (kind, lease, self_fencing) = (self.kind, self.lease, self.self_fencing);
        let members = Members::Instances { kind, self_fencing };
        let launch_plan = LaunchPlan { harness, place, lease, log: self.log.clone(), members };
        let plan = Plan::seeded(self.seed, self.faults, &self.kinds(&test_servers.injected_faults()), CALM);
        let target = |harness: &dyn Harness| runtime.block_on(harness.target(&cx(), kind)).map_err(to_trouble);
        let mut active = setup.inject_fault(launch_plan, &plan, target)?;
        let arrivals = collect_one(target(&*active.harness)?, &active.ledger, &mut active.cluster)?;
        let cluster = &active.cluster;
        let mut record = Record {
            verdict: Verdict::new(&active.ledger, &arrivals, cluster.refused),
            evicted: cluster.evicted,
            blocked: cluster.blocked,
            reliefs: active.reliefs,
            wrong: Vec::new(),
        };
        record.wrong = self.wrong(&record, &plan, test_servers.evicts());
        Ok(record)
    }

    fn wrong(&self, record: &Record, plan: &Plan<InjectedFault>, evicts: bool) -> Vec<Trouble> {
        let verdict = &record.verdict;
        let mut wrong = Vec::new();
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                wrong.push(what.to_owned());
            }
        };
        expect(verdict.is_sound(), "changes were lost, out of order, stale or strange");
        expect(verdict.delivered > 0, "nothing was delivered at all");
        expect(
            self.kind != Kind::Transactional || verdict.duplicated.count == 0,
            "changes came twice through transactions",
        );
        expect(self.self_fencing || verdict.stale_refused > 0, "the fence was never tried: no stale write was refused");
        let active: usize = record.reliefs.values().map(Vec::len).sum();
        expect(active == plan.faults.len(), "not every fault of the plan happened");
        let inside = record.reliefs.get(&InjectedFault::Process(Fault::PauseInside)).map_or(0, Vec::len) as u64;
        expect(
            !evicts || record.evicted + record.blocked >= inside,
            "a process that was stopped inside a transaction was not evicted",
        );
        wrong
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::args::SEED;

    fn campaign(kind: Kind, self_fencing: bool) -> Campaign {
        Campaign { harness: "sqlite", kind, faults: 1, seed: 1, self_fencing, lease: Duration::from_secs(1), log: None }
    }

    fn sound() -> Record {
        let reliefs = BTreeMap::from([(InjectedFault::Process(Fault::Pause), vec![Duration::from_secs(1)])]);
        Record { reliefs, verdict: Verdict { delivered: 1, ..Verdict::default() }, ..Record::default() }
    }

    fn wrong(campaign: &Campaign, record: &Record) -> Vec<String> {
        campaign.wrong(record, &Plan { faults: vec![(Duration::ZERO, InjectedFault::Process(Fault::Pause))] }, true)
    }

    #[test]
    fn without_self_fencing_the_fence_must_have_been_tried() {
        assert_eq!(wrong(&campaign(Kind::Fenced, true), &sound()), Vec::<String>::new());
        let open = campaign(Kind::Fenced, false);
        assert_eq!(wrong(&open, &sound()), ["the fence was never tried: no stale write was refused"]);
        let mut tried = sound();
        tried.verdict.stale_refused = 1;
        assert_eq!(wrong(&open, &tried), Vec::<String>::new());
        let all = [InjectedFault::of_processes(), InjectedFault::WITH_SERVERS.to_vec()].concat();
        assert_eq!(open.kinds(&all), [InjectedFault::Process(Fault::Pause)]);
    }

    #[test]
    fn six_faults_strike_servers_too() {
        let all = [InjectedFault::of_processes(), InjectedFault::WITH_SERVERS.to_vec()].concat();
        let servers = [InjectedFault::Cut, InjectedFault::PrimaryKilled, InjectedFault::StepDown];
        let fits = |seed: &u64| {
            [Kind::Transactional, Kind::Fenced].iter().all(|kind| {
                let plan = Plan::seeded(*seed, 6, &campaign(*kind, true).kinds(&all), CALM);
                let active =
                    |injected_fault: &InjectedFault| plan.faults.iter().any(|(_, planned)| planned == injected_fault);
                servers.iter().all(active) && (*kind == Kind::Fenced || active(&InjectedFault::KillInside))
            })
        };
        assert!(fits(&SEED));
    }

    #[test]
    fn duplicates_are_for_transactions_to_forbid() {
        let mut record = sound();
        record.verdict.duplicated.count = 1;
        assert_eq!(wrong(&campaign(Kind::Fenced, true), &record), Vec::<String>::new());
        assert_eq!(wrong(&campaign(Kind::Transactional, true), &record).len(), 1);
    }

    #[test]
    fn a_fault_that_did_not_happen_is_missed() {
        let record = Record { reliefs: BTreeMap::new(), ..sound() };
        assert_eq!(wrong(&campaign(Kind::Fenced, true), &record), ["not every fault of the plan happened"]);
    }
}
