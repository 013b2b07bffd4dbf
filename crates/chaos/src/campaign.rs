//! A run of faults under load, and its verdict.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Fault, Ledger, Plan, Verdict};

use crate::crew::{Crew, Members};
use crate::fleet::{Fleet, Trouble, cx};
use crate::load::{Load, Pen};
use crate::rig::{self, Ground, Kind, Rig, Target};
use crate::strike::Strike;

/// The longest wait between two faults.
pub(crate) const CALM: Duration = Duration::from_millis(200);

/// How long the last changes may take to arrive when all is mended.
const ARRIVING: Duration = Duration::from_secs(30);

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Campaign {
    pub(crate) rig: &'static str,
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
    /// For every kind of fault, how long each took until a change had arrived under the next epoch.
    pub(crate) reliefs: BTreeMap<Strike, Vec<Duration>>,
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
    fn kinds(&self, strikes: &[Strike]) -> Vec<Strike> {
        let fits = |strike: &&Strike| match strike {
            Strike::Process(Fault::PauseInside) | Strike::KillInside => {
                self.kind == Kind::Transactional && self.self_fencing
            }
            Strike::Process(Fault::Pause) => true,
            _ => self.self_fencing,
        };
        strikes.iter().filter(fits).copied().collect()
    }

    /// Runs it; trouble is what kept it from coming to its end.
    pub(crate) fn run(&self, ground: &Arc<Ground>, runtime: &Handle) -> Result<Record, Trouble> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        ground.lay(folder.path()).map_err(|error| error.to_string())?;
        let rig = rig::named(self.rig, folder.path()).map_err(|error| error.to_string())?;
        let pen = runtime.block_on(prepare(&*rig, self.seed))?;
        let load = Load::start(runtime, pen);
        let (rig_name, place) = (self.rig.to_owned(), folder.path().to_owned());
        let (kind, lease, self_fencing) = (self.kind, self.lease, self.self_fencing);
        let members = Members::Instances { kind, self_fencing };
        let crew = Crew { rig: rig_name, place, lease, log: self.log.clone(), members };
        let mut fleet = Fleet::launch(crew, ground, &*rig, runtime)?;
        let mut target = runtime.block_on(rig.target(&cx(), kind)).map_err(|error| error.to_string())?;
        let mut record = Record::default();
        let plan = Plan::seeded(self.seed, self.faults, &self.kinds(&ground.strikes()), CALM);
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
        let mut arrived = await_arrivals(rig.target(&cx(), kind), &ledger, &mut fleet, runtime)?;
        fleet.disband()?;
        let arrivals = arrived.finish(&fleet)?;
        record.verdict = Verdict::new(&ledger, &arrivals, fleet.refused);
        (record.evicted, record.blocked) = (fleet.evicted, fleet.blocked);
        record.wrong = self.wrong(&record, &plan, ground.evicts());
        Ok(record)
    }

    fn wrong(&self, record: &Record, plan: &Plan<Strike>, evicts: bool) -> Vec<Trouble> {
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
        let struck: usize = record.reliefs.values().map(Vec::len).sum();
        expect(struck == plan.faults.len(), "not every fault of the plan happened");
        let inside = record.reliefs.get(&Strike::Process(Fault::PauseInside)).map_or(0, Vec::len) as u64;
        expect(
            !evicts || record.evicted + record.blocked >= inside,
            "a process that was stopped inside a transaction was not evicted",
        );
        wrong
    }
}

/// What a target has received so far.
pub(crate) struct Arrived {
    target: Box<dyn Target>,
    arrivals: Vec<Arrival>,
}

impl Arrived {
    /// All of it, when nothing is written any more.
    pub(crate) fn finish(&mut self, fleet: &Fleet) -> Result<Vec<Arrival>, Trouble> {
        let since = Instant::now();
        while since.elapsed() < ARRIVING {
            match fleet.look(&mut *self.target)? {
                Some(news) if news.is_empty() => return Ok(std::mem::take(&mut self.arrivals)),
                news => self.arrivals.extend(news.unwrap_or_default()),
            }
        }
        Err("the target could not be read to its end".to_owned())
    }
}

/// Reads a target from its beginning until all that was acknowledged has arrived, or for as long as that may take: then it
/// is lost.
pub(crate) fn await_arrivals(
    target: impl Future<Output = watchkeeper_core::Result<Box<dyn Target>>>,
    ledger: &Ledger,
    fleet: &mut Fleet,
    runtime: &Handle,
) -> Result<Arrived, Trouble> {
    let since = Instant::now();
    let target = runtime.block_on(target).map_err(|error| error.to_string())?;
    let mut arrived = Arrived { target, arrivals: Vec::new() };
    let mut missing: BTreeMap<_, _> = ledger.newest().collect();
    while !missing.is_empty() && since.elapsed() < ARRIVING {
        let news = fleet.look(&mut *arrived.target)?.unwrap_or_default();
        for Arrival { key, number, .. } in &news {
            if missing.get(key.as_str()).is_some_and(|newest| number >= newest) {
                missing.remove(key.as_str());
            }
        }
        if news.is_empty() {
            fleet.listen(Duration::from_millis(20))?;
        }
        arrived.arrivals.extend(news);
    }
    Ok(arrived)
}

/// Sets the rig up; a pen to write with.
pub(crate) async fn prepare(rig: &dyn Rig, seed: u64) -> Result<Pen, Trouble> {
    let set_up = async {
        rig.set_up(&cx()).await?;
        rig.writer(&cx()).await
    };
    set_up.await.map(|writer| Pen::new(writer, seed)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SEED;

    fn campaign(kind: Kind, self_fencing: bool) -> Campaign {
        Campaign { rig: "sqlite", kind, faults: 1, seed: 1, self_fencing, lease: Duration::from_secs(1), log: None }
    }

    fn sound() -> Record {
        let reliefs = BTreeMap::from([(Strike::Process(Fault::Pause), vec![Duration::from_secs(1)])]);
        Record { reliefs, verdict: Verdict { delivered: 1, ..Verdict::default() }, ..Record::default() }
    }

    fn wrong(campaign: &Campaign, record: &Record) -> Vec<String> {
        campaign.wrong(record, &Plan { faults: vec![(Duration::ZERO, Strike::Process(Fault::Pause))] }, true)
    }

    #[test]
    fn without_self_fencing_the_fence_must_have_been_tried() {
        assert_eq!(wrong(&campaign(Kind::Fenced, true), &sound()), Vec::<String>::new());
        let open = campaign(Kind::Fenced, false);
        assert_eq!(wrong(&open, &sound()), ["the fence was never tried: no stale write was refused"]);
        let mut tried = sound();
        tried.verdict.stale_refused = 1;
        assert_eq!(wrong(&open, &tried), Vec::<String>::new());
        let all = [Strike::of_processes(), Strike::WITH_SERVERS.to_vec()].concat();
        assert_eq!(open.kinds(&all), [Strike::Process(Fault::Pause)]);
    }

    #[test]
    fn six_faults_strike_servers_too() {
        let all = [Strike::of_processes(), Strike::WITH_SERVERS.to_vec()].concat();
        let servers = [Strike::Cut, Strike::PrimaryKilled, Strike::StepDown];
        let fits = |seed: &u64| {
            [Kind::Transactional, Kind::Fenced].iter().all(|kind| {
                let plan = Plan::seeded(*seed, 6, &campaign(*kind, true).kinds(&all), CALM);
                let struck = |strike: &Strike| plan.faults.iter().any(|(_, planned)| planned == strike);
                servers.iter().all(struck) && (*kind == Kind::Fenced || struck(&Strike::KillInside))
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
