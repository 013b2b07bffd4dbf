//! What all runs of faults have in common: systems, instances and load are set up, faults strike by a plan, and everything that was
//! written is waited for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Handle;
use watchkeeper_drill::{Arrival, Ledger, Plan};

use crate::crew::Crew;
use crate::fleet::{Fleet, Trouble, cx};
use crate::load::{Load, Pen};
use crate::rig::{self, Ground, Rig, Target};
use crate::strike::Strike;

/// The longest wait between two faults.
pub(crate) const CALM: Duration = Duration::from_millis(200);

/// How long the last changes may take to arrive when all is mended.
const ARRIVING: Duration = Duration::from_secs(30);

/// For every kind of fault, how long each took until a change that followed it had arrived.
pub(crate) type Reliefs = BTreeMap<Strike, Vec<Duration>>;

pub(crate) fn told(error: impl std::fmt::Display) -> Trouble {
    error.to_string()
}

/// The systems of one run, in a folder of their own.
pub(crate) struct Setup<'a> {
    pub(crate) ground: &'a Arc<Ground>,
    pub(crate) runtime: &'a Handle,
    pub(crate) rig: Arc<dyn Rig>,
    folder: TempDir,
    pen: Pen,
}

impl<'a> Setup<'a> {
    /// Sets up the rig of this name.
    pub(crate) fn new(name: &str, seed: u64, ground: &'a Arc<Ground>, runtime: &'a Handle) -> Result<Self, Trouble> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        ground.lay(folder.path()).map_err(told)?;
        let rig = rig::named(name, folder.path()).map_err(told)?;
        let pen = runtime.block_on(prepare(&*rig, seed))?;
        Ok(Self { ground, runtime, rig, folder, pen })
    }

    /// The folder of the run.
    pub(crate) fn place(&self) -> &Path {
        self.folder.path()
    }

    /// Starts load and instances, and strikes them by `plan`. After every fault a change that follows it has to arrive at `target`.
    pub(crate) fn strike(
        self,
        crew: Crew,
        plan: &Plan<Strike>,
        target: impl FnOnce(&dyn Rig) -> Result<Box<dyn Target>, Trouble>,
    ) -> Result<StruckRun, Trouble> {
        let Self { ground, runtime, rig, folder, pen } = self;
        let load = Load::start(runtime, pen);
        let mut fleet = Fleet::launch(crew, ground, &*rig, runtime)?;
        let mut target = target(&*rig)?;
        let mut reliefs = Reliefs::new();
        for (wait, strike) in &plan.faults {
            fleet.listen(*wait)?;
            let struck = fleet.strike(*strike)?;
            let before = load.ledger();
            let wanted = |arrival: &Arrival| arrival.number >= before.next(&arrival.key);
            let relieved = fleet.relieved(&struck, &mut *target, wanted)?;
            reliefs.entry(*strike).or_default().push(relieved.took);
            fleet.mend(&struck)?;
        }
        fleet.steady()?;
        let ledger = runtime.block_on(load.finish())?.ledger();
        Ok(StruckRun { rig, folder, fleet, ledger, reliefs })
    }
}

/// A run whose faults have all struck.
pub(crate) struct StruckRun {
    pub(crate) rig: Arc<dyn Rig>,
    folder: TempDir,
    pub(crate) fleet: Fleet,
    /// Everything that was written.
    pub(crate) ledger: Ledger,
    pub(crate) reliefs: Reliefs,
}

impl StruckRun {
    /// The folder of the run.
    pub(crate) fn place(&self) -> &Path {
        self.folder.path()
    }

    /// See [`collect`].
    pub(crate) fn collect<N>(&mut self, targets: Vec<(N, Box<dyn Target>)>) -> Result<Vec<(N, Vec<Arrival>)>, Trouble> {
        collect(targets, &self.ledger, &mut self.fleet)
    }
}

/// Waits until everything of `ledger` has arrived at every target, ends all instances, and returns what each target received, by
/// its name.
pub(crate) fn collect<N>(
    targets: Vec<(N, Box<dyn Target>)>,
    ledger: &Ledger,
    fleet: &mut Fleet,
) -> Result<Vec<(N, Vec<Arrival>)>, Trouble> {
    let mut received = Vec::new();
    for (name, target) in targets {
        received.push((name, await_arrivals(target, ledger, fleet)?));
    }
    fleet.disband()?;
    received.into_iter().map(|(name, arrived)| Ok((name, arrived.finish(fleet)?))).collect()
}

/// The same for one target.
pub(crate) fn collect_one(
    target: Box<dyn Target>,
    ledger: &Ledger,
    fleet: &mut Fleet,
) -> Result<Vec<Arrival>, Trouble> {
    let received = collect(vec![((), target)], ledger, fleet)?;
    Ok(received.into_iter().flat_map(|((), arrivals)| arrivals).collect())
}

/// What a target has received so far.
struct Arrived {
    target: Box<dyn Target>,
    arrivals: Vec<Arrival>,
}

impl Arrived {
    /// All of it, when nothing is written any more.
    fn finish(mut self, fleet: &Fleet) -> Result<Vec<Arrival>, Trouble> {
        let since = Instant::now();
        while since.elapsed() < ARRIVING {
            match fleet.look(&mut *self.target)? {
                Some(news) if news.is_empty() => return Ok(self.arrivals),
                news => self.arrivals.extend(news.unwrap_or_default()),
            }
        }
        Err("the target could not be read to its end".to_owned())
    }
}

/// Reads a target from its beginning until all that was acknowledged has arrived, or for as long as that may take: then it
/// is lost.
fn await_arrivals(target: Box<dyn Target>, ledger: &Ledger, fleet: &mut Fleet) -> Result<Arrived, Trouble> {
    let since = Instant::now();
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
    set_up.await.map(|writer| Pen::new(writer, seed)).map_err(told)
}
