//! What all runs of faults have in common: systems, instances and load are set up, faults strike by a plan, and everything that was
//! written is waited for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Ledger, Plan};

use crate::cluster::{Cluster, Trouble, cx};
use crate::fault::InjectedFault;
use crate::harness::{self, Harness, Servers, Target};
use crate::launch_plan::LaunchPlan;
use crate::load::{LedgerWriter, Load};

/// The longest wait between two faults.
pub(crate) const CALM: Duration = Duration::from_millis(200);

/// How long the last changes may take to arrive when all is mended.
const ARRIVING: Duration = Duration::from_secs(30);

/// For every kind of fault, how long each took until a change that followed it had arrived.
pub(crate) type TakeoverTimes = BTreeMap<InjectedFault, Vec<Duration>>;

pub(crate) fn to_trouble(error: impl std::fmt::Display) -> Trouble {
    error.to_string()
}

/// The systems of one run, in a folder of their own.
pub(crate) struct Setup<'a> {
    pub(crate) test_servers: &'a Arc<Servers>,
    pub(crate) runtime: &'a Handle,
    pub(crate) harness: Arc<dyn Harness>,
    folder: TempDir,
    ledger_writer: LedgerWriter,
}

impl<'a> Setup<'a> {
    /// Sets up the harness of this name.
    pub(crate) fn new(
        name: &str,
        seed: u64,
        test_servers: &'a Arc<Servers>,
        runtime: &'a Handle,
    ) -> Result<Self, Trouble> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        test_servers.lay(folder.path()).map_err(to_trouble)?;
        let harness = harness::named(name, folder.path()).map_err(to_trouble)?;
        let ledger_writer = runtime.block_on(prepare(&*harness, seed))?;
        Ok(Self { test_servers, runtime, harness, folder, ledger_writer })
    }

    /// The folder of the run.
    pub(crate) fn place(&self) -> &Path {
        self.folder.path()
    }

    /// Starts load and instances, and strikes them by `plan`. After every fault a change that follows it has to arrive at `target`.
    pub(crate) fn inject_fault(
        self,
        launch_plan: LaunchPlan,
        plan: &Plan<InjectedFault>,
        target: impl FnOnce(&dyn Harness) -> Result<Box<dyn Target>, Trouble>,
    ) -> Result<FaultedRun, Trouble> {
        let Self { test_servers, runtime, harness, folder, ledger_writer } = self;
        let load = Load::start(runtime, ledger_writer);
        let mut cluster = Cluster::launch(launch_plan, test_servers, &*harness, runtime)?;
        let mut target = target(&*harness)?;
        let mut reliefs = TakeoverTimes::new();
        for (wait, injected_fault) in &plan.faults {
            cluster.listen(*wait)?;
            let active = cluster.inject_fault(*injected_fault)?;
            let before = load.ledger();
            let wanted = |arrival: &Arrival| arrival.number >= before.next(&arrival.key);
            let taken_over = cluster.taken_over(&active, &mut *target, wanted)?;
            reliefs.entry(*injected_fault).or_default().push(taken_over.took);
            cluster.recover(&active)?;
        }
        cluster.steady()?;
        let ledger = runtime.block_on(load.finish())?.ledger();
        Ok(FaultedRun { harness, folder, cluster, ledger, reliefs })
    }
}

/// A run whose faults have all struck.
pub(crate) struct FaultedRun {
    pub(crate) harness: Arc<dyn Harness>,
    folder: TempDir,
    pub(crate) cluster: Cluster,
    /// Everything that was written.
    pub(crate) ledger: Ledger,
    pub(crate) reliefs: TakeoverTimes,
}

impl FaultedRun {
    /// The folder of the run.
    pub(crate) fn place(&self) -> &Path {
        self.folder.path()
    }

    /// See [`collect`].
    pub(crate) fn collect<N>(&mut self, targets: Vec<(N, Box<dyn Target>)>) -> Result<Vec<(N, Vec<Arrival>)>, Trouble> {
        collect(targets, &self.ledger, &mut self.cluster)
    }
}

/// Waits until everything of `ledger` has arrived at every target, ends all instances, and returns what each target received, by
/// its name.
pub(crate) fn collect<N>(
    targets: Vec<(N, Box<dyn Target>)>,
    ledger: &Ledger,
    cluster: &mut Cluster,
) -> Result<Vec<(N, Vec<Arrival>)>, Trouble> {
    let mut received = Vec::new();
    for (name, target) in targets {
        received.push((name, await_arrivals(target, ledger, cluster)?));
    }
    cluster.stop_all()?;
    received.into_iter().map(|(name, arrived)| Ok((name, arrived.finish(cluster)?))).collect()
}

/// The same for one target.
pub(crate) fn collect_one(
    target: Box<dyn Target>,
    ledger: &Ledger,
    cluster: &mut Cluster,
) -> Result<Vec<Arrival>, Trouble> {
    let received = collect(vec![((), target)], ledger, cluster)?;
    Ok(received.into_iter().flat_map(|((), arrivals)| arrivals).collect())
}

/// What a target has received so far.
struct Arrived {
    target: Box<dyn Target>,
    arrivals: Vec<Arrival>,
}

impl Arrived {
    /// All of it, when nothing is written any more.
    fn finish(mut self, cluster: &Cluster) -> Result<Vec<Arrival>, Trouble> {
        let since = Instant::now();
        while since.elapsed() < ARRIVING {
            match cluster.take_arrivals(&mut *self.target)? {
                Some(news) if news.is_empty() => return Ok(self.arrivals),
                news => self.arrivals.extend(news.unwrap_or_default()),
            }
        }
        Err("the target could not be read to its end".to_owned())
    }
}

/// Reads a target from its beginning until all that was acknowledged has arrived, or for as long as that may take: then it
/// is lost.
fn await_arrivals(target: Box<dyn Target>, ledger: &Ledger, cluster: &mut Cluster) -> Result<Arrived, Trouble> {
    let since = Instant::now();
    let mut arrived = Arrived { target, arrivals: Vec::new() };
    let mut missing: BTreeMap<_, _> = ledger.newest().collect();
    while !missing.is_empty() && since.elapsed() < ARRIVING {
        let news = cluster.take_arrivals(&mut *arrived.target)?.unwrap_or_default();
        for Arrival { key, number, .. } in &news {
            if missing.get(key.as_str()).is_some_and(|newest| number >= newest) {
                missing.remove(key.as_str());
            }
        }
        if news.is_empty() {
            cluster.listen(Duration::from_millis(20))?;
        }
        arrived.arrivals.extend(news);
    }
    Ok(arrived)
}

/// Sets the harness up; a writer with its ledger.
pub(crate) async fn prepare(harness: &dyn Harness, seed: u64) -> Result<LedgerWriter, Trouble> {
    let set_up = async {
        harness.set_up(&cx()).await?;
        harness.writer(&cx()).await
    };
    set_up.await.map(|writer| LedgerWriter::new(writer, seed)).map_err(to_trouble)
}
