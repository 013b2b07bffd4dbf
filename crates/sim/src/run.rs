//! One run: launch, storm, calm, judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use watchkeeper_core::memory::{Checkpoints, Leases, Log, Notes};
use watchkeeper_core::{CheckpointStore, Entropy, Grade, LeaseKey, LedgerQuery, Moment, StoreIdentity};
use watchkeeper_engine::group::control::{Controls, ReplayRequest};
use watchkeeper_testkit::World;
use watchkeeper_testkit::history::{Delivery, History, SourceChange, Tally, Verdict};

use crate::book::Book;
use crate::faults::{Deed, Remedy, relaunch, strike, undo};
use crate::fleet::{Course, Sea, Ship};
use crate::mood::Moods;
use crate::mutant::Breakage;
use crate::net::Net;
use crate::peers::Harbour;
use crate::plan::{CALM, INSTANCES, Plan, STORM};
use crate::report::Report;
use crate::target::{Kind, Target};
use crate::traffic::Traffic;
use crate::truth::Truth;

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
    let sea = sea(&world, &book, options);
    let ended = world.block_on(voyage(&sea));
    if let Err(stuck) = ended {
        book.violation(format_args!("the group made no progress: {stuck}"));
    }
    world.end();
    Report { seed: options.seed, hash: book.hash(), counts: book.counts(), violations: book.violations() }
}

fn sea(world: &World, book: &Book, options: Options) -> Sea {
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
    let truth = Truth::new(book.clone(), options.self_fencing);
    let checkpoints = Checkpoints::new(StoreIdentity(entropy.uuid()));
    let stream = |stream: &crate::plan::StreamPlan| {
        let key = LeaseKey::new(format!("sim/{}/0/0", stream.settings.name));
        let target =
            |(sink, kind): (usize, &Kind)| Target::new(key.clone(), sink, kind.grade(), truth.clone(), book.clone());
        let targets = stream.kinds.iter().enumerate().map(target).collect();
        truth.has_sinks(&key, stream.kinds.len());
        Course { log: Log::new(&format!("log-{}", stream.settings.name)), targets, key: key.clone() }
    };
    Sea {
        world: world.clone(),
        book: book.clone(),
        net: Net::new(world.clone(), book.clone(), entropy.next()),
        harbour: Harbour::default(),
        moods: Moods::new(book.clone(), entropy.next(), plan.rejects),
        leases: Leases::new(world.clock()),
        front: Breakage::checkpoints(options.breakage, checkpoints.clone()),
        checkpoints,
        notes: Notes::new(world.clock()),
        streams: plan.streams.iter().map(stream).collect(),
        plan,
        hooks: Breakage::hooks(options.breakage, options.self_fencing),
        entropy: Arc::new(Entropy::seeded(entropy.next())),
        truth,
    }
}

async fn voyage(sea: &Sea) {
    let mut ships = Vec::new();
    for number in 0..INSTANCES {
        match sea.launch(number, 0).await {
            Ok(ship) => ships.push(ship),
            Err(error) => return sea.book.violation(format_args!("instance {number} could not start: {error}")),
        }
    }
    let stop = CancellationToken::new();
    let written = start_traffic(sea, &stop);
    storm(sea, &mut ships).await;
    stop.cancel();
    calm(sea, &mut ships).await;
    ships.iter().for_each(|ship| ship.count(sea));
    judge(sea, &written).await;
}

fn start_traffic(sea: &Sea, stop: &CancellationToken) -> Vec<Written> {
    let start = |(plan, course): (&crate::plan::StreamPlan, &Course)| {
        let traffic = Traffic {
            world: sea.world.clone(),
            log: course.log.clone(),
            key: course.key.clone(),
            truth: sea.truth.clone(),
            entropy: Arc::new(Entropy::seeded(sea.entropy.next())),
            rate: plan.rate,
        };
        let written = Written::default();
        sea.world.spawn("traffic", traffic.run(stop.clone(), Arc::clone(&written)));
        written
    };
    sea.plan.streams.iter().zip(&sea.streams).map(start).collect()
}

/// Faults, one after the other, each undone in its time.
async fn storm(sea: &Sea, ships: &mut [Ship]) {
    let entropy = Entropy::seeded(sea.entropy.next());
    let end = sea.world.now() + STORM;
    let mut remedies: BTreeMap<(Moment, u64), Remedy> = BTreeMap::new();
    let mut next_strike = sea.world.now() + Duration::from_millis(entropy.below(3_000));
    let mut strikes = 0;
    while sea.world.now() < end {
        let due = remedies.first_key_value().map(|((moment, _), _)| *moment);
        let next = due.map_or(next_strike, |due| due.min(next_strike));
        sea.world.clock().sleep_until(next).await;
        if due.is_some_and(|due| due <= sea.world.now())
            && let Some((_, remedy)) = remedies.pop_first()
        {
            undo(sea, ships, remedy).await;
            continue;
        }
        strikes += 1;
        match strike(sea, &entropy, ships).await {
            Deed::None => {}
            Deed::After(time, remedy) => {
                remedies.insert((sea.world.now() + time, strikes), remedy);
            }
            Deed::Restart(number) => restart(sea, ships, number).await,
        }
        next_strike = sea.world.now() + Duration::from_millis(200 + entropy.below(3_000));
    }
    for (_, remedy) in remedies {
        undo(sea, ships, remedy).await;
    }
}

/// Waits for a shutdown, at most for its grace and some more, then starts the instance again.
async fn restart(sea: &Sea, ships: &mut [Ship], number: usize) {
    let ship = &mut ships[number];
    let limit = sea.world.now() + Duration::from_secs(12);
    let ended = tokio::select! {
        biased;
        ended = ship.join(sea) => Some(ended),
        () = sea.world.clock().sleep_until(limit) => None,
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => sea.book.violation(format_args!("instance {number} ended with: {error}")),
        // It was cut off from its stores: what people do then is SIGKILL.
        None => ship.kill(sea),
    }
    relaunch(sea, ships, number).await;
}

/// Everything is mended; all has to be delivered and committed, and dead letters replayed.
async fn calm(sea: &Sea, ships: &mut [Ship]) {
    sea.book.event("calm");
    sea.net.heal();
    sea.moods.set_bad(false);
    for number in 0..INSTANCES {
        ships[number].resume(sea);
        relaunch(sea, ships, number).await;
    }
    let end = sea.world.now() + CALM;
    let mut replays = 0;
    while sea.world.now() < end {
        let left = left_over(sea).await;
        let Some((stream, what)) = left else {
            sea.book.event("at rest");
            return;
        };
        if what == Left::Letters {
            replays += 1;
            ask_for_replay(sea, &stream, replays).await;
        }
        sea.world.clock().sleep_until(sea.world.now() + Duration::from_millis(500)).await;
    }
    let left = left_over(sea).await;
    sea.book.violation(format_args!("no progress: {CALM:?} after everything was mended there is still {left:?}"));
}

#[derive(Debug, PartialEq, Eq)]
enum Left {
    Changes { newest: u64, committed: u64 },
    Letters,
}

/// A stream that is not done, and what is left of it.
async fn left_over(sea: &Sea) -> Option<(String, Left)> {
    for (plan, Course { key, log, .. }) in sea.plan.streams.iter().zip(&sea.streams) {
        let newest = log.newest();
        let committed = sea.truth.stream(key, |stream| stream.committed);
        let name = plan.settings.name.clone();
        if committed < newest {
            return Some((name, Left::Changes { newest, committed }));
        }
        let query = LedgerQuery { after: 0, limit: 1, open_only: true };
        let open = sea.checkpoints.ledger(&sea.world.cx(), key, &query).await.unwrap_or_default();
        if !open.is_empty() {
            return Some((name, Left::Letters));
        }
    }
    None
}

async fn ask_for_replay(sea: &Sea, stream: &str, id: u64) {
    let controls = Controls::new(Arc::new(sea.notes.clone()), "sim");
    let cx = sea.world.cx();
    let request = ReplayRequest { id, sink: None, numbers: Vec::new() };
    let asked = controls.update(&cx, stream, |control| {
        if control.replay.is_none() {
            control.replay = Some(request.clone());
        }
    });
    if let Err(error) = asked.await {
        sea.book.violation(format_args!("a replay could not be asked for: {error}"));
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
async fn judge(sea: &Sea, written: &[Written]) {
    for ((plan, course), written) in sea.plan.streams.iter().zip(&sea.streams).zip(written) {
        let source = written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sea.book.count_many("changes", source.len() as u64);
        for (sink, kind) in plan.kinds.iter().enumerate() {
            let verdict = judge_sink(sea, course, sink, *kind, source.clone());
            sea.book.count_many("duplicates", verdict.duplicated.count);
            let name = &plan.settings.name;
            for (what, tally) in verdict.faults() {
                let (count, examples) = (tally.count, &tally.examples);
                sea.book.violation(format_args!("{name}, sink {sink}: {what} {count}: {examples:?}"));
            }
        }
    }
}

fn judge_sink(sea: &Sea, course: &Course, sink: usize, kind: Kind, source: Vec<SourceChange>) -> Verdict {
    let deliveries: Vec<Delivery> = match kind {
        Kind::Transactional => {
            let ids: BTreeSet<_> = source.iter().map(|change| &change.id).collect();
            let all = sea.checkpoints.delivered();
            all.iter().filter(|row| ids.contains(&row.id)).map(Delivery::from).collect()
        }
        _ => course.targets[sink].delivered().iter().map(Delivery::from).collect(),
    };
    sea.book.count_many("deliveries", deliveries.len() as u64);
    let (commits, mut excused, rejected) = sea.truth.stream(&course.key, |stream| {
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
