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
use crate::crew::Crew;
use crate::faults::{collect_one, prepare, told};
use crate::fleet::{Fleet, Trouble, cx};
use crate::load::Load;
use crate::rig::{self, Ground, Kind};
use crate::strike::Strike;

/// The rig that has servers.
const RIG: &str = "mongodb";

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
struct Taken {
    /// From the kill to the new primary.
    elections: Vec<Duration>,
    /// From the new primary to the first change behind it.
    deliveries: Vec<Duration>,
    /// How often the epoch was the same afterwards.
    same_epoch: usize,
}

/// Runs so many rounds with every lease; whether all bars were kept.
pub(crate) fn run(rounds: usize, log: Option<PathBuf>, runtime: &Handle) -> Result<bool, Trouble> {
    let ground = Arc::new(Ground::with_usual_elections());
    let mut kept = true;
    for part in &PARTS {
        kept &= part.run(rounds, log.clone(), &ground, runtime)?;
    }
    Ok(kept)
}

impl Part {
    fn run(
        &self,
        rounds: usize,
        log: Option<PathBuf>,
        ground: &Arc<Ground>,
        runtime: &Handle,
    ) -> Result<bool, Trouble> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        ground.lay(folder.path()).map_err(told)?;
        let rig = rig::named(RIG, folder.path()).map_err(told)?;
        let load = Load::start(runtime, runtime.block_on(prepare(&*rig, 1))?);
        let (kind, place) = (Kind::Transactional, folder.path().to_owned());
        let crew = Crew::of_instances(RIG, place, kind, self.lease, log);
        let mut fleet = Fleet::launch(crew, ground, &*rig, runtime)?;
        let mut target = runtime.block_on(rig.target(&cx(), kind)).map_err(told)?;
        let mut taken = Taken::default();
        for _ in 0..rounds {
            fleet.steady()?;
            let began = Instant::now();
            let struck = fleet.strike(Strike::PrimaryKilled)?;
            let before = load.ledger();
            let wanted = |arrival: &Arrival| arrival.number >= before.next(&arrival.key);
            let relieved = fleet.relieved(&struck, &mut *target, wanted)?;
            taken.elections.push(struck.at.duration_since(began));
            taken.deliveries.push(relieved.took);
            taken.same_epoch += usize::from(relieved.epoch == struck.epoch);
            fleet.mend(&struck)?;
            ground.in_step();
        }
        fleet.steady()?;
        let ledger = runtime.block_on(load.finish())?.ledger();
        let target = runtime.block_on(rig.target(&cx(), kind)).map_err(told)?;
        let arrivals = collect_one(target, &ledger, &mut fleet)?;
        Ok(self.judge(&taken, &Verdict::new(&ledger, &arrivals, fleet.refused)))
    }

    /// Prints what was seen; whether it is what has to be.
    fn judge(&self, taken: &Taken, verdict: &Verdict) -> bool {
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

    fn taken(delivery: Duration, same_epoch: usize) -> Taken {
        Taken { elections: vec![Duration::from_secs(10)], deliveries: vec![delivery], same_epoch }
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
