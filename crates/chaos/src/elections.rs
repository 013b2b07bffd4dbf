//! Elections at the servers' own time-out: the primary is killed under load, and the group goes on behind the new one.
//!
//! A short lease ends before there is a new primary: whoever had the watch gives it up in time, and somebody takes it as soon
//! as the servers answer again. A long one outlasts the election, and the same epoch goes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Verdict};

use crate::bars::{Bar, Limit};
use crate::cluster::{Cluster, Trouble, cx};
use crate::fault::InjectedFault;
use crate::faults::{collect_one, prepare, to_trouble};
use crate::harness::{self, Kind, Servers};
use crate::launch_plan::LaunchPlan;
use crate::load::Load;

/// The harness that has servers.
const HARNESS: &str = "mongodb";

/// How soon after the new primary a change that was written behind it has to be delivered, with the short lease.
const WITHIN: Duration = Duration::from_secs(2);

/// A lease, and what it is to show.
struct Part {
    name: &'static str,
    lease: Duration,
    /// Whether the watch stays where it is.
    outlasts: bool,
}

const PARTS: [Part; 2] = [
    Part { name: "a lease of 5s", lease: Duration::from_secs(5), outlasts: false },
    Part { name: "a lease of 15s", lease: Duration::from_secs(15), outlasts: true },
];

/// What some rounds came to.
#[derive(Default)]
struct ElectionTimes {
    /// From the kill to the new primary.
    elections: Vec<Duration>,
    /// From the new primary to the first change behind it.
    deliveries: Vec<Duration>,
    /// How often the epoch was the same afterwards.
    same_epoch: usize,
}

/// Runs so many rounds with every lease; whether all bars were kept.
pub(crate) fn run(rounds: usize, log: Option<PathBuf>, runtime: &Handle) -> Result<bool, Trouble> {
    let test_servers = Arc::new(Servers::with_usual_elections());
    let mut kept = true;
    for part in &PARTS {
        kept &= part.run(rounds, log.clone(), &test_servers, runtime)?;
    }
    Ok(kept)
}

impl Part {
    fn run(
        &self,
        rounds: usize,
        log: Option<PathBuf>,
        test_servers: &Arc<Servers>,
        runtime: &Handle,
    ) -> Result<bool, Trouble> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        test_servers.lay(folder.path()).map_err(to_trouble)?;
        let harness = harness::named(HARNESS, folder.path()).map_err(to_trouble)?;
        let load = Load::start(runtime, runtime.block_on(prepare(&*harness, 1))?);
        let (kind, place) = (Kind::Transactional, folder.path().to_owned());
        let launch_plan = LaunchPlan::of_instances(HARNESS, place, kind, self.lease, log);
        let mut cluster = Cluster::launch(launch_plan, test_servers, &*harness, runtime)?;
        let mut target = runtime.block_on(harness.target(&cx(), kind)).map_err(to_trouble)?;
        let mut taken = ElectionTimes::default();
        for _ in 0..rounds {
            cluster.steady()?;
            let began = Instant::now();
            let active = cluster.inject_fault(InjectedFault::PrimaryKilled)?;
            let before = load.ledger();
            let wanted = |arrival: &Arrival| arrival.number >= before.next(&arrival.key);
            let taken_over = cluster.taken_over(&active, &mut *target, wanted)?;
            taken.elections.push(active.at.duration_since(began));
            taken.deliveries.push(taken_over.took);
            taken.same_epoch += usize::from(taken_over.epoch == active.epoch);
            cluster.recover(&active)?;
            test_servers.in_step();
        }
        cluster.steady()?;
        let ledger = runtime.block_on(load.finish())?.ledger();
        let target = runtime.block_on(harness.target(&cx(), kind)).map_err(to_trouble)?;
        let arrivals = collect_one(target, &ledger, &mut cluster)?;
        Ok(self.judge(&taken, &Verdict::new(&ledger, &arrivals, cluster.refused)))
    }

    /// Prints what was seen; whether it is what has to be.
    fn judge(&self, taken: &ElectionTimes, verdict: &Verdict) -> bool {
        println!("the primary is killed, ms\n{}", Bar::HEADING);
        Bar { name: "new primary", limits: Vec::new() }.judge(&taken.elections);
        // Whoever stays on watch may have to wait for the driver, which looks for the old server for a while.
        let limits = if self.outlasts { Vec::new() } else { vec![Limit::Slowest(WITHIN)] };
        let delivered = Bar { name: self.name, limits }.judge(&taken.deliveries);
        let (same, rounds) = (taken.same_epoch, taken.deliveries.len());
        let stayed = !self.outlasts || same == rounds;
        let word = match (self.outlasts, stayed) {
            (false, _) => "",
            (true, true) => ", as it has to: kept",
            (true, false) => ", which has to be always: MISSED",
        };
        println!("the same epoch went on in {same} of {rounds} rounds{word}\n\n{verdict}");
        delivered && stayed && verdict.is_sound() && verdict.duplicated.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(delivery: Duration, same_epoch: usize) -> ElectionTimes {
        ElectionTimes { elections: vec![Duration::from_secs(10)], deliveries: vec![delivery], same_epoch }
    }

    #[test]
    fn only_the_long_lease_has_to_keep_its_epoch() {
        let (soon, sound) = (Duration::from_millis(1_999), Verdict::default());
        let [short, long] = &PARTS;
        assert!(short.judge(&taken(soon, 0), &sound));
        assert!(!long.judge(&taken(soon, 0), &sound));
        assert!(long.judge(&taken(soon, 1), &sound));
    }

    #[test]
    fn late_lost_or_doubled_is_missed() {
        let [short, _] = &PARTS;
        assert!(!short.judge(&taken(WITHIN, 0), &Verdict::default()));
        for spoil in
            [|verdict: &mut Verdict| verdict.lost.count = 1, |verdict: &mut Verdict| verdict.duplicated.count = 1]
        {
            let mut verdict = Verdict::default();
            spoil(&mut verdict);
            assert!(!short.judge(&taken(Duration::from_millis(1), 0), &verdict));
        }
    }
}
