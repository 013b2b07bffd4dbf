//! How long a takeover takes, and what the stores cost that it is made of.
//!
//! Three instances under load, with a transactional sink. For every fault: from the moment that it had happened (the
//! signal was sent, the request was made) to the moment at which a change that was written *after* it is durable in the
//! target under the next epoch, as a reader of the target sees it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Entry, Fault, Ledger, Verdict};

use crate::bars::{Bar, Limit};
use crate::crew::Crew;
use crate::faults::{collect_one, prepare, told};
use crate::fleet::{Fleet, Trouble, cx};
use crate::latency;
use crate::load::Load;
use crate::rig::{self, Ground, Kind, Rig, Target, Writer, Written};
use crate::strike::Strike;

/// The key of the changes that are waited for. The load writes other ones.
const PROBE: &str = "probe";

/// Between two of them.
const PROBE_EVERY: Duration = Duration::from_millis(1);

/// The longest calm before a fault, so that faults fall on no rhythm.
const CALM_MAX: Duration = Duration::from_millis(40);

/// What a takeover may take after the lease of a stopped process has run out: to notice it, claim, open and deliver.
const AFTER_LEASE: Duration = Duration::from_secs(1);

/// What a takeover after a fault must keep to.
///
/// A process that is stopped right after a renewal holds its lease for the whole of its time, so a takeover from it may take longer than
/// the lease. Stopped at any other moment it holds it for so much less.
fn bar(rig: &str, strike: Strike, lease: Duration) -> Bar {
    let death = || vec![Limit::Median(Duration::from_millis(100)), Limit::Slowest(Duration::from_secs(1))];
    let limits = match strike {
        Strike::KillInside | Strike::Process(Fault::Kill) => death(),
        Strike::Process(Fault::Pause | Fault::PauseInside) => vec![Limit::Slowest(lease + AFTER_LEASE)],
        // A majority of three servers is asked several times on the way: what that costs is not ours to promise.
        _ if rig != "sqlite" => Vec::new(),
        _ => vec![Limit::Median(Duration::from_millis(50))],
    };
    Bar { name: strike.as_str(), limits }
}

/// The slowest takeover after a fault next to the lease, for people who count in leases.
fn next_to_lease(strike: Strike, durations: &[Duration], lease: Duration) -> String {
    let slowest = durations.iter().max().copied().unwrap_or_default();
    let is_below = if slowest < lease { "below" } else { "NOT below" };
    let [slowest, lease] = [slowest, lease].map(|duration| duration.as_secs_f64());
    format!("{:<16} {slowest:>9.3} s  {is_below} {lease} s", strike.as_str())
}

/// The faults that are measured: after an election the servers' own time would be measured.
fn strikes(ground: &Ground) -> Vec<Strike> {
    ground.strikes().into_iter().filter(|strike| !strike.may_be_outlived()).collect()
}

/// Runs so many rounds of every fault; whether all bars were kept.
pub(crate) fn run(
    rig_name: &'static str,
    (rounds, lease): (usize, Duration),
    log: Option<PathBuf>,
    runtime: &Handle,
) -> Result<bool, Trouble> {
    let ground = Arc::new(Ground::of(rig_name));
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    ground.lay(folder.path()).map_err(told)?;
    let rig = rig::named(rig_name, folder.path()).map_err(told)?;
    let pen = runtime.block_on(prepare(&*rig, 1))?;
    let load = Load::start(runtime, pen);
    let (kind, place) = (Kind::Transactional, folder.path().to_owned());
    let crew = Crew::of_instances(rig_name, place, kind, lease, log);
    let mut fleet = Fleet::launch(crew, &ground, &*rig, runtime)?;
    let mut range = Range::open(&*rig, runtime)?;
    let strikes = strikes(&ground);
    let mut taken: BTreeMap<Strike, Vec<Duration>> = BTreeMap::new();
    for round in 0..rounds {
        for strike in &strikes {
            fleet.listen(CALM_MAX * (round as u32 % 8) / 8)?;
            taken.entry(*strike).or_default().push(range.measure(&mut fleet, *strike)?);
        }
    }
    fleet.steady()?;
    let mut kept = true;
    println!("from the fault to the first change after it, durable under the next epoch, ms\n{}", Bar::HEADING);
    for (strike, durations) in &taken {
        kept &= bar(rig_name, *strike, lease).judge(durations);
    }
    println!("\nthe slowest takeover after each kind of fault, next to the lease");
    for (strike, durations) in &taken {
        println!("{}", next_to_lease(*strike, durations, lease));
    }
    println!("\nthe stores, beside the group and its load, ms\n{}", Bar::HEADING);
    for (bar, durations) in runtime.block_on(latency::measure(&*rig))? {
        kept &= bar.judge(&durations);
    }
    let mut ledger = runtime.block_on(load.finish())?.ledger();
    range.probes.entries().for_each(|(key, _, entry)| ledger.enter(key, entry));
    let target = runtime.block_on(rig.target(&cx(), kind)).map_err(told)?;
    let arrivals = collect_one(target, &ledger, &mut fleet)?;
    let verdict = Verdict::new(&ledger, &arrivals, fleet.refused);
    println!("\n{verdict}");
    Ok(kept && verdict.is_sound() && verdict.duplicated.count == 0)
}

/// Where faults are measured.
struct Range<'a> {
    runtime: &'a Handle,
    /// Not there while it writes.
    writer: Option<Box<dyn Writer>>,
    target: Box<dyn Target>,
    probes: Ledger,
}

impl<'a> Range<'a> {
    fn open(rig: &dyn Rig, runtime: &'a Handle) -> Result<Self, Trouble> {
        let cx = cx();
        let opened = async { Ok((rig.writer(&cx).await?, rig.target(&cx, Kind::Transactional).await?)) };
        let (writer, target) = runtime.block_on(opened).map_err(|error: watchkeeper_core::Error| error.to_string())?;
        Ok(Self { runtime, writer: Some(writer), target, probes: Ledger::default() })
    }

    /// One fault, and how long it took.
    fn measure(&mut self, fleet: &mut Fleet, strike: Strike) -> Result<Duration, Trouble> {
        let first = self.probes.next(PROBE);
        let writer = self.writer.take().ok_or("the writer of probes is gone")?;
        let struck = fleet.strike(strike)?;
        // Several, since one that leaves in order may still deliver the first.
        let stop = Arc::new(AtomicBool::new(false));
        let probing = self.runtime.spawn(probe(writer, std::mem::take(&mut self.probes), Arc::clone(&stop)));
        let wanted = |arrival: &Arrival| arrival.key == PROBE && arrival.number >= first;
        let relieved = fleet.relieved(&struck, &mut *self.target, wanted);
        stop.store(true, Ordering::Relaxed);
        let (writer, probes) = self.runtime.block_on(probing).map_err(|error| format!("probing failed: {error}"))?;
        (self.writer, self.probes) = (Some(writer), probes);
        fleet.mend(&struck)?;
        relieved.map(|relieved| relieved.took)
    }
}

/// Writes changes one after the other until it is stopped.
async fn probe(mut writer: Box<dyn Writer>, mut ledger: Ledger, stop: Arc<AtomicBool>) -> (Box<dyn Writer>, Ledger) {
    while !stop.load(Ordering::Relaxed) {
        match writer.write(&[(PROBE.to_owned(), ledger.next(PROBE))]).await {
            Written::Acknowledged => ledger.enter(PROBE, Entry::Acknowledged),
            Written::Unknown => ledger.enter(PROBE, Entry::Unknown),
            Written::Refused => {}
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
    (writer, ledger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_takeover_is_shown_next_to_the_lease() {
        let shown = |millis: &[u64]| {
            let durations: Vec<_> = millis.iter().map(|millis| Duration::from_millis(*millis)).collect();
            next_to_lease(Strike::Process(Fault::Pause), &durations, Duration::from_secs(30))
        };
        let name = Fault::Pause.as_str();
        assert_eq!(shown(&[28_000, 29_250, 27_000]), format!("{name:<16}    29.250 s  below 30 s"));
        assert_eq!(shown(&[28_000, 30_000]), format!("{name:<16}    30.000 s  NOT below 30 s"));
    }
}
