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
use crate::cluster::{Cluster, Trouble, cx};
use crate::fault::InjectedFault;
use crate::faults::{collect_one, prepare, to_trouble};
use crate::harness::{self, Harness, Kind, Servers, Target, Writer, Written};
use crate::latency;
use crate::launch_plan::LaunchPlan;
use crate::load::Load;

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
fn bar(harness: &str, injected_fault: InjectedFault, lease: Duration) -> Bar {
    let death = || vec![Limit::Median(Duration::from_millis(100)), Limit::Slowest(Duration::from_secs(1))];
    let limits = match injected_fault {
        InjectedFault::KillInside | InjectedFault::Process(Fault::Kill) => death(),
        InjectedFault::Process(Fault::Pause | Fault::PauseInside) => vec![Limit::Slowest(lease + AFTER_LEASE)],
        // A majority of three servers is asked several times on the way: what that costs is not ours to promise.
        _ if harness != "sqlite" => Vec::new(),
        _ => vec![Limit::Median(Duration::from_millis(50))],
    };
    Bar { name: injected_fault.as_str(), limits }
}

/// The slowest takeover after a fault next to the lease, for people who count in leases.
fn next_to_lease(injected_fault: InjectedFault, durations: &[Duration], lease: Duration) -> String {
    let slowest = durations.iter().max().copied().unwrap_or_default();
    let is_below = if slowest < lease { "below" } else { "NOT below" };
    let [slowest, lease] = [slowest, lease].map(|duration| duration.as_secs_f64());
    format!("{:<16} {slowest:>9.3} s  {is_below} {lease} s", injected_fault.as_str())
}

/// The faults that are measured: after an election the servers' own time would be measured.
fn injected_faults(test_servers: &Servers) -> Vec<InjectedFault> {
    test_servers.injected_faults().into_iter().filter(|injected_fault| !injected_fault.may_be_outlived()).collect()
}

/// Runs so many rounds of every fault; whether all bars were kept.
pub(crate) fn run(
    harness_name: &'static str,
    (rounds, lease): (usize, Duration),
    log: Option<PathBuf>,
    runtime: &Handle,
) -> Result<bool, Trouble> {
    let test_servers = Arc::new(Servers::of(harness_name));
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    test_servers.lay(folder.path()).map_err(to_trouble)?;
    let harness = harness::named(harness_name, folder.path()).map_err(to_trouble)?;
    let ledger_writer = runtime.block_on(prepare(&*harness, 1))?;
    let load = Load::start(runtime, ledger_writer);
    let (kind, place) = (Kind::Transactional, folder.path().to_owned());
    let launch_plan = LaunchPlan::of_instances(harness_name, place, kind, lease, log);
    let mut cluster = Cluster::launch(launch_plan, &test_servers, &*harness, runtime)?;
    let mut range = Range::open(&*harness, runtime)?;
    let injected_faults = injected_faults(&test_servers);
    let mut taken: BTreeMap<InjectedFault, Vec<Duration>> = BTreeMap::new();
    for round in 0..rounds {
        for injected_fault in &injected_faults {
            cluster.listen(CALM_MAX * (round as u32 % 8) / 8)?;
            taken.entry(*injected_fault).or_default().push(range.measure(&mut cluster, *injected_fault)?);
        }
    }
    cluster.steady()?;
    let mut kept = true;
    println!("from the fault to the first change after it, durable under the next epoch, ms\n{}", Bar::HEADING);
    for (injected_fault, durations) in &taken {
        kept &= bar(harness_name, *injected_fault, lease).judge(durations);
    }
    println!("\nthe slowest takeover after each kind of fault, next to the lease");
    for (injected_fault, durations) in &taken {
        println!("{}", next_to_lease(*injected_fault, durations, lease));
    }
    println!("\nthe stores, beside the group and its load, ms\n{}", Bar::HEADING);
    for (bar, durations) in runtime.block_on(latency::measure(&*harness))? {
        kept &= bar.judge(&durations);
    }
    let mut ledger = runtime.block_on(load.finish())?.ledger();
    range.probes.entries().for_each(|(key, _, entry)| ledger.enter(key, entry));
    let target = runtime.block_on(harness.target(&cx(), kind)).map_err(to_trouble)?;
    let arrivals = collect_one(target, &ledger, &mut cluster)?;
    let verdict = Verdict::new(&ledger, &arrivals, cluster.refused);
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
    fn open(harness: &dyn Harness, runtime: &'a Handle) -> Result<Self, Trouble> {
        let cx = cx();
        let opened = async { Ok((harness.writer(&cx).await?, harness.target(&cx, Kind::Transactional).await?)) };
        let (writer, target) = runtime.block_on(opened).map_err(|error: watchkeeper_core::Error| error.to_string())?;
        Ok(Self { runtime, writer: Some(writer), target, probes: Ledger::default() })
    }

    /// One fault, and how long it took.
    fn measure(&mut self, cluster: &mut Cluster, injected_fault: InjectedFault) -> Result<Duration, Trouble> {
        let first = self.probes.next(PROBE);
        let writer = self.writer.take().ok_or("the writer of probes is gone")?;
        let active = cluster.inject_fault(injected_fault)?;
        // Several, since one that leaves in order may still deliver the first.
        let stop = Arc::new(AtomicBool::new(false));
        let probing = self.runtime.spawn(probe(writer, std::mem::take(&mut self.probes), Arc::clone(&stop)));
        let wanted = |arrival: &Arrival| arrival.key == PROBE && arrival.number >= first;
        let taken_over = cluster.taken_over(&active, &mut *self.target, wanted);
        stop.store(true, Ordering::Relaxed);
        let (writer, probes) = self.runtime.block_on(probing).map_err(|error| format!("probing failed: {error}"))?;
        (self.writer, self.probes) = (Some(writer), probes);
        cluster.recover(&active)?;
        taken_over.map(|taken_over| taken_over.took)
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
            next_to_lease(InjectedFault::Process(Fault::Pause), &durations, Duration::from_secs(30))
        };
        let name = Fault::Pause.as_str();
        assert_eq!(shown(&[28_000, 29_250, 27_000]), format!("{name:<16}    29.250 s  below 30 s"));
        assert_eq!(shown(&[28_000, 30_000]), format!("{name:<16}    30.000 s  NOT below 30 s"));
    }
}
