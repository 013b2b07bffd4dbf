//! One run: launch, storm, calm, judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use watchkeeper_core::memory::{Checkpoints, Leases, Log, RecordStore};
use watchkeeper_core::{CheckpointStore, Entropy, Grade, LeaseKey, LedgerQuery, Moment, StoreIdentity};
use watchkeeper_engine::group::control::{Controls, ReplayRequest};
use watchkeeper_testkit::World;
use watchkeeper_testkit::history::{Delivery, History, SourceChange, Tally, Verdict};

use crate::book::Book;
use crate::cluster::{SimCluster, SimInstance, StreamServers};
use crate::faults::{FaultAction, Remedy, relaunch, remove, undo};
use crate::ground_truth::GroundTruth;
use crate::injected_outcome::InjectedOutcomes;
use crate::mutant::Breakage;
use crate::net::Net;
use crate::peers::PeerDirectory;
use crate::plan::{CALM, INSTANCES, Plan, STORM};
use crate::report::Report;
use crate::target::{Kind, Target};
use crate::traffic::Traffic;

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Print every event.
    pub trace: bool,
    /// What is broken on purpose.
    pub breakage: Option<Breakage>,
    /// Whether holders end themselves at their deadline.
    pub self_fencing: bool,
}

impl Options {
    /// A run of `seed` with nothing broken.
    pub fn seed(seed: u64) -> Self {
        Self { seed, trace: false, breakage: None, self_fencing: true }
    }
}

type Written = Arc<Mutex<Vec<SourceChange>>>;

/// Runs one seed.
pub fn run(options: Options) -> Report {
    let world =
        World::new(options.seed).limited_to(STORM + CALM + Duration::from_secs(60)).limited_to_polls(30_000_000);
    let book = Book::new(world.clone(), options.trace);
    let cluster = cluster(&world, &book, options);
    let ended = world.block_on(tenure(&cluster));
    if let Err(stuck) = ended {
        book.violation(format_args!("the group made no progress: {stuck}"));
    }
    world.end();
    Report { seed: options.seed, hash: book.hash(), counts: book.counts(), violations: book.violations() }
}

fn cluster(world: &World, book: &Book, options: Options) -> SimCluster {
    let entropy = world.entropy();
    let mut plan = Plan::of(&entropy);
    if let Some(Breakage::Store(_)) = options.breakage {
        // The flaw is in the checkpoint store's own commit, which a transactional sink goes round.
        for kind in plan.streams.iter_mut().flat_map(|stream| &mut stream.kinds) {
            if *kind == Kind::Transactional {
                *kind = Kind::Direct(Grade::Fenced);
            }
        }
    }
    let truth = GroundTruth::new(book.clone(), options.self_fencing);
    let checkpoints = Checkpoints::new(StoreIdentity(entropy.uuid()));
    let stream = |stream: &crate::plan::StreamPlan| {
        let key = LeaseKey::new(format!("sim/{}/0/0", stream.settings.name));
        let target =
            |(sink, kind): (usize, &Kind)| Target::new(key.clone(), sink, kind.grade(), truth.clone(), book.clone());
        let targets = stream.kinds.iter().enumerate().map(target).collect();
        truth.has_sinks(&key, stream.kinds.len());
        StreamServers { log: Log::new(&format!("log-{}", stream.settings.name)), targets, key: key.clone() }
    };
    SimCluster {
        world: world.clone(),
        book: book.clone(),
        net: Net::new(world.clone(), book.clone(), entropy.next()),
        directory: PeerDirectory::default(),
        outcomes: InjectedOutcomes::new(book.clone(), entropy.next(), plan.rejects),
        leases: Leases::new(world.clock()),
        front: Breakage::checkpoints(options.breakage, checkpoints.clone()),
        checkpoints,
        notes: RecordStore::new(world.clock()),
        streams: plan.streams.iter().map(stream).collect(),
        plan,
        hooks: Breakage::hooks(options.breakage, options.self_fencing),
        entropy: Arc::new(Entropy::seeded(entropy.next())),
        truth,
    }
}

async fn tenure(cluster: &SimCluster) {
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        match cluster.launch(number, 0).await {
            Ok(instance) => instances.push(instance),
            Err(error) => return cluster.book.violation(format_args!("instance {number} could not start: {error}")),
        }
    }
    let stop = CancellationToken::new();
    let written = start_traffic(cluster, &stop);
    storm(cluster, &mut instances).await;
    stop.cancel();
    calm(cluster, &mut instances).await;
    instances.iter().for_each(|instance| instance.count(cluster));
    judge(cluster, &written).await;
}

fn start_traffic(cluster: &SimCluster, stop: &CancellationToken) -> Vec<Written> {
    let start = |(plan, course): (&crate::plan::StreamPlan, &StreamServers)| {
        let traffic = Traffic {
            world: cluster.world.clone(),
            log: course.log.clone(),
            key: course.key.clone(),
            truth: cluster.truth.clone(),
            entropy: Arc::new(Entropy::seeded(cluster.entropy.next())),
            rate: plan.rate,
        };
        let written = Written::default();
        cluster.world.spawn("traffic", traffic.run(stop.clone(), Arc::clone(&written)));
        written
    };
    cluster.plan.streams.iter().zip(&cluster.streams).map(start).collect()
}

/// Faults, one after the other, each undone in its time.
async fn storm(cluster: &SimCluster, instances: &mut [SimInstance]) {
    let entropy = Entropy::seeded(cluster.entropy.next());
    let end = cluster.world.now() + STORM;
    let mut remedies: BTreeMap<(Moment, u64), Remedy> = BTreeMap::new();
    let mut next_fault = cluster.world.now() + Duration::from_millis(entropy.below(3_000));
    let mut strikes = 0;
    while cluster.world.now() < end {
        let due = remedies.first_key_value().map(|((moment, _), _)| *moment);
        let next = due.map_or(next_fault, |due| due.min(next_fault));
        cluster.world.clock().sleep_until(next).await;
        if due.is_some_and(|due| due <= cluster.world.now())
            && let Some((_, remedy)) = remedies.pop_first()
        {
            undo(cluster, instances, remedy).await;
            continue;
        }
        strikes += 1;
        match remove(cluster, &entropy, instances).await {
            FaultAction::None => {}
            FaultAction::After(time, remedy) => {
                remedies.insert((cluster.world.now() + time, strikes), remedy);
            }
            FaultAction::Restart(number) => restart(cluster, instances, number).await,
        }
        next_fault = cluster.world.now() + Duration::from_millis(200 + entropy.below(3_000));
    }
    for (_, remedy) in remedies {
        undo(cluster, instances, remedy).await;
    }
}

/// Waits for a shutdown, at most for its grace and some more, then starts the instance again.
async fn restart(cluster: &SimCluster, instances: &mut [SimInstance], number: usize) {
    let instance = &mut instances[number];
    let limit = cluster.world.now() + Duration::from_secs(12);
    let ended = tokio::select! {
        biased;
        ended = instance.join(cluster) => Some(ended),
        () = cluster.world.clock().sleep_until(limit) => None,
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => cluster.book.violation(format_args!("instance {number} ended with: {error}")),
        // It was cut off from its stores: what people do then is SIGKILL.
        None => instance.kill(cluster),
    }
    relaunch(cluster, instances, number).await;
}

/// Everything is mended; all has to be delivered and committed, and dead letters replayed.
async fn calm(cluster: &SimCluster, instances: &mut [SimInstance]) {
    cluster.book.event("calm");
    cluster.net.heal();
    cluster.outcomes.set_bad(false);
    for number in 0..INSTANCES {
        instances[number].resume(cluster);
        relaunch(cluster, instances, number).await;
    }
    let end = cluster.world.now() + CALM;
    let mut replays = 0;
    while cluster.world.now() < end {
        let left = left_over(cluster).await;
        let Some((stream, what)) = left else {
            cluster.book.event("at rest");
            return;
        };
        if what == Remaining::Letters {
            replays += 1;
            ask_for_replay(cluster, &stream, replays).await;
        }
        cluster.world.clock().sleep_until(cluster.world.now() + Duration::from_millis(500)).await;
    }
    let left = left_over(cluster).await;
    cluster.book.violation(format_args!("no progress: {CALM:?} after everything was mended there is still {left:?}"));
}

#[derive(Debug, PartialEq, Eq)]
enum Remaining {
    Changes { newest: u64, committed: u64 },
    Letters,
}

/// A stream that is not done, and what is left of it.
async fn left_over(cluster: &SimCluster) -> Option<(String, Remaining)> {
    for (plan, StreamServers { key, log, .. }) in cluster.plan.streams.iter().zip(&cluster.streams) {
        let newest = log.newest();
        let committed = cluster.truth.stream(key, |stream| stream.committed);
        let name = plan.settings.name.clone();
        if committed < newest {
            return Some((name, Remaining::Changes { newest, committed }));
        }
        let query = LedgerQuery { after: 0, limit: 1, open_only: true };
        let open = cluster.checkpoints.ledger(&cluster.world.cx(), key, &query).await.unwrap_or_default();
        if !open.is_empty() {
            return Some((name, Remaining::Letters));
        }
    }
    None
}

async fn ask_for_replay(cluster: &SimCluster, stream: &str, id: u64) {
    let controls = Controls::new(Arc::new(cluster.notes.clone()), "sim");
    let cx = cluster.world.cx();
    let request = ReplayRequest { id, sink: None, numbers: Vec::new() };
    let asked = controls.update(&cx, stream, |control| {
        if control.replay.is_none() {
            control.replay = Some(request.clone());
        }
    });
    if let Err(error) = asked.await {
        cluster.book.violation(format_args!("a replay could not be asked for: {error}"));
    }
}

/// What was rejected, and what then had to wait for its key. A tenure that ends before it commits its
/// ledger has parked it all the same.
fn parked(source: &[SourceChange], rejected: &BTreeSet<String>) -> Vec<String> {
    let mut keys = BTreeSet::new();
    let waits = |change: &&SourceChange| {
        if rejected.contains(&change.id) {
            keys.extend(change.key.clone());
            return true;
        }
        change.key.as_ref().is_some_and(|key| keys.contains(key))
    };
    source.iter().filter(waits).map(|change| change.id.clone()).collect()
}

/// Judges the whole history of each stream, at each of its sinks.
async fn judge(cluster: &SimCluster, written: &[Written]) {
    for ((plan, course), written) in cluster.plan.streams.iter().zip(&cluster.streams).zip(written) {
        let source = written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cluster.book.count_many("changes", source.len() as u64);
        for (sink, kind) in plan.kinds.iter().enumerate() {
            let verdict = judge_sink(cluster, course, sink, *kind, source.clone());
            cluster.book.count_many("duplicates", verdict.duplicated.count);
            let name = &plan.settings.name;
            for (what, tally) in verdict.faults() {
                let (count, examples) = (tally.count, &tally.examples);
                cluster.book.violation(format_args!("{name}, sink {sink}: {what} {count}: {examples:?}"));
            }
        }
    }
}

fn judge_sink(
    cluster: &SimCluster,
    course: &StreamServers,
    sink: usize,
    kind: Kind,
    source: Vec<SourceChange>,
) -> Verdict {
    let deliveries: Vec<Delivery> = match kind {
        Kind::Transactional => {
            let ids: BTreeSet<_> = source.iter().map(|change| &change.id).collect();
            let all = cluster.checkpoints.delivered();
            all.iter().filter(|row| ids.contains(&row.id)).map(Delivery::from).collect()
        }
        _ => course.targets[sink].delivered().iter().map(Delivery::from).collect(),
    };
    cluster.book.count_many("deliveries", deliveries.len() as u64);
    let (commits, mut excused, rejected) = cluster.truth.stream(&course.key, |stream| {
        let at = &stream.sinks[sink];
        (stream.commits.clone(), at.excused.clone(), at.rejected.clone())
    });
    excused.extend(parked(&source, &rejected));
    let grade = kind.grade();
    let mut verdict = History { source, deliveries, commits, excused, grade, drained: true }.judge();
    if grade == Grade::Versioned {
        // What such a target refuses as stale is not seen here, but was not passed over either.
        verdict.passed_over = Tally::default();
    }
    verdict
}
