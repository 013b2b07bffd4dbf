//! One stream of a group.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use watchkeeper::core::{Holder, LedgerRecord, Purpose, Reason};
use watchkeeper::engine::checkpoint::{operator, unfinished};
use watchkeeper::engine::group::control::Control;
use watchkeeper::engine::group::journal::{self, Cause};
use watchkeeper::engine::group::registry::Listed;
use watchkeeper::engine::group::report::{SinkReport, StageReport, StreamActivity, StreamReport, Trouble};
use watchkeeper::{Checkpoint, Error, Grade, Operation, Result};

use super::health::Health;
use super::holder_reports::HolderReports;
use crate::config::{Stream as Described, Target};
use crate::site::Site;
use crate::when::{iso, millis};

/// What a stream is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// An instance has the watch.
    Running,
    /// An instance has the watch, and something does not work: it is tried again.
    Recovering,
    /// No instance can run it just now: its source or sinks cannot be opened, or it failed on all of them.
    Failing,
    /// It is to be paused, and its holder has not left yet.
    Pausing,
    /// Nobody should run it.
    Paused,
    /// An operator's move is under way.
    Moving,
    /// Nobody may run it until a person resumes it.
    Halted,
    /// Instances are there, and none has the watch yet.
    Vacant,
    /// No instance is there that could run it.
    Unmanned,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Recovering => "recovering",
            Self::Failing => "failing",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Moving => "being moved by an operator",
            Self::Halted => "halted",
            Self::Vacant => "vacant: waiting for an instance to take the watch",
            Self::Unmanned => "unmanned: no running instance has it",
        })
    }
}

/// A stream.
#[derive(Debug, Serialize)]
pub(crate) struct Stream {
    /// Its name.
    pub(crate) name: String,
    /// What it is doing.
    pub(crate) state: State,
    /// How well it is.
    pub(crate) health: Health,
    /// Why it is not running, if it is not.
    pub(crate) cause: Option<String>,
    /// What it promises: the weakest grade of its sinks, as far as an instance has told them.
    pub(crate) grade: Option<Grade>,
    /// Its sinks.
    pub(crate) sinks: Vec<Sink>,
    /// Who has the watch.
    pub(crate) watch: Option<Watch>,
    /// What the last one on watch said when it left, while nobody has it.
    pub(crate) release_notice: Option<ReleaseNotice>,
    /// Who could take it.
    pub(crate) standing_by: Vec<String>,
    /// The instance that should have it.
    pub(crate) preferred: Option<String>,
    /// How far it is.
    pub(crate) checkpoint: Option<Committed>,
    /// What it is busy with before its changes, such as a snapshot.
    pub(crate) stage: Option<StageReport>,
    /// Gaps of its ledger that left a snapshot unfinished: rows are missing at its targets.
    pub(crate) unfinished_snapshots: Vec<UnfinishedSnapshot>,
    /// How far the checkpoint is behind the newest change that its holder knows of, by the source's clock.
    pub(crate) lag_millis: Option<u64>,
    /// How long ago the oldest change happened that was read and is not delivered.
    pub(crate) undelivered_millis: Option<u64>,
    /// For how long it has not been delivered, if it is not.
    pub(crate) not_delivering_millis: Option<u64>,
    /// Since when, by the clock of this machine.
    pub(crate) not_delivering_since: Option<String>,
    /// Why nothing is known of its checkpoint.
    #[serde(skip)]
    pub(crate) unknown: Option<String>,
    /// What does not work on whoever has the watch.
    pub(crate) trouble: Option<Trouble>,
    /// What each instance does with it.
    pub(crate) instances: Vec<OnInstance>,
    /// What a person should know, a sentence each.
    pub(crate) remarks: Vec<String>,
}

/// A target.
#[derive(Debug, Serialize)]
pub(crate) struct Sink {
    /// Its name within the stream.
    pub(crate) name: String,
    /// What it does with a stale or repeated write, once an instance has told.
    pub(crate) grade: Option<Grade>,
}

/// A stream on one instance, as that told last.
#[derive(Debug, Serialize)]
pub(crate) struct OnInstance {
    /// Its name.
    pub(crate) name: String,
    /// This start of its process.
    pub(crate) instance: String,
    /// What it does with the stream.
    pub(crate) doing: StreamActivity,
    /// What does not work there.
    pub(crate) trouble: Option<Trouble>,
    /// For how long the stream has not been delivered, as this instance knows, if it is not.
    pub(crate) not_delivering_millis: Option<u64>,
}

/// A gap that left a snapshot unfinished.
#[derive(Debug, Serialize)]
pub(crate) struct UnfinishedSnapshot {
    /// Its number in the ledger.
    pub(crate) number: u64,
    /// Why the gap was accepted.
    pub(crate) cause: String,
}

/// Who has the watch.
#[derive(Debug, Serialize)]
pub(crate) struct Watch {
    /// Its name.
    pub(crate) name: String,
    /// This start of its process.
    pub(crate) instance: String,
    /// Under which epoch.
    pub(crate) epoch: u64,
    /// How long its lease still runs if it is not renewed, by the store's clock.
    pub(crate) lease_millis: u64,
}

/// What a holder said when it left.
#[derive(Debug, Serialize)]
pub(crate) struct ReleaseNotice {
    /// Why it left.
    pub(crate) cause: Cause,
    /// The same in words.
    pub(crate) text: String,
    /// How long ago, by the store's clock.
    pub(crate) age_millis: u64,
}

/// A committed checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct Committed {
    /// Where to resume.
    pub(crate) position: Option<String>,
    /// Whether it had a position that is lost.
    pub(crate) is_position_lost: bool,
    /// The epoch that committed it.
    pub(crate) epoch: u64,
    /// Its number within its tenure.
    pub(crate) seq: u64,
    /// Why it was written.
    pub(crate) reason: Reason,
    /// The last operation before it.
    pub(crate) last_operation: Option<Operation>,
    /// Its time by the source.
    pub(crate) last_event_at: Option<String>,
    /// Changes passed, over all tenures.
    pub(crate) changes: u64,
    /// How often the watch has passed to another instance that was there to take it over; operators' moves and restarts do not count.
    pub(crate) failovers: u64,
    /// Open dead letters and parked changes.
    pub(crate) dead_letters: u64,
    /// When it was committed, by the clock of whoever did.
    pub(crate) committed_at: String,
    /// How long ago that is, by the clock of this machine.
    pub(crate) committed_age_millis: u64,
    /// Who committed it.
    pub(crate) by: String,
    /// Why nobody may run the stream, if so.
    pub(crate) halted: Option<watchkeeper::core::Halted>,
}

impl Committed {
    /// The checkpoint of the stream `name`, with the failovers that the journal has counted: also those of tenures that committed nothing.
    pub(crate) async fn read(site: &Site, name: &str, checkpoint: &Checkpoint) -> Result<Self> {
        let mut committed = Self::of(checkpoint, site.seams.clock.wall_millis());
        committed.failovers = committed.failovers.max(journaled_failovers(site, name).await?);
        Ok(committed)
    }

    /// `checkpoint`, seen at `now`.
    fn of(checkpoint: &Checkpoint, now_millis: u64) -> Self {
        let facts = &checkpoint.facts;
        Self {
            position: checkpoint.position.as_ref().map(ToString::to_string),
            is_position_lost: checkpoint.has_lost_position(),
            epoch: checkpoint.epoch.0,
            seq: checkpoint.seq,
            reason: checkpoint.reason,
            last_operation: facts.last_operation,
            last_event_at: facts.last_event_time.map(|time| iso(time.0)),
            changes: facts.changes,
            failovers: facts.failovers,
            dead_letters: facts.letters,
            committed_at: iso(facts.updated_at_millis),
            committed_age_millis: now_millis.saturating_sub(facts.updated_at_millis),
            by: facts.processed_by.clone(),
            halted: checkpoint.halted.clone(),
        }
    }
}

/// Looks at one stream.
pub(super) async fn inspect_stream(
    site: &Site,
    described: &Described,
    holder: Option<Holder>,
    control: Control,
    members: &[Listed],
) -> Result<Stream> {
    let Stored { checkpoint, unfinished_snapshots, unknown } = stored(site, described).await?;
    let name = described.settings.name.clone();
    // A halt says all that its holder said.
    let is_halted = checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.halted.is_some());
    let release_notice = match &holder {
        None if !is_halted => release_notice(site, &name).await?,
        _ => None,
    };
    let mut reports = HolderReports::of(&name, holder.as_ref(), members);
    if reports.sinks.is_empty() {
        reports.sinks = grades(site, described).await;
    }
    let (state, cause) = judge(holder.as_ref(), &control, checkpoint.as_ref(), &reports);
    let on_watch = reports.holder.as_ref();
    let now = site.seams.clock.wall_millis();
    let age = age_of_report(holder.as_ref(), members);
    let overtaken = Overtaken::of(on_watch, age, checkpoint.as_ref(), now);
    let checkpoint = match &checkpoint {
        Some(checkpoint) => Some(Committed::read(site, &name, checkpoint).await?),
        None => None,
    };
    let not_delivering = not_delivering(state, &reports, release_notice.as_ref(), checkpoint.as_ref());
    let undelivered = on_watch.and_then(|report| report.undelivered_millis).filter(|_| !overtaken.undelivered);
    let mut stream = Stream {
        state,
        health: Health::Healthy,
        cause,
        grade: reports.grade().filter(|_| reports.sinks.len() == described.sinks.len()),
        sinks: described.sinks.iter().map(|sink| reports.sink(&sink.name)).collect(),
        standing_by: reports.standing_by(holder.as_ref()),
        watch: holder.as_ref().map(watch),
        release_notice,
        preferred: control.preferred,
        checkpoint,
        stage: on_watch.and_then(|report| report.stage.clone()),
        unfinished_snapshots,
        lag_millis: lag(state, overtaken.lag.or_else(|| on_watch?.lag_millis), undelivered, not_delivering),
        undelivered_millis: undelivered,
        not_delivering_millis: not_delivering,
        not_delivering_since: not_delivering.map(|span| iso(now.saturating_sub(span))),
        trouble: reports.holding.as_ref().and_then(|report| report.trouble.clone()),
        instances: reports.instances,
        remarks: unknown.iter().cloned().chain(reports.silent_holder.map(|silence| format!("{silence}."))).collect(),
        unknown,
        name,
    };
    stream.health = Health::of(&stream);
    Ok(stream)
}

/// How many failovers the journal has counted: also those of tenures that committed nothing.
async fn journaled_failovers(site: &Site, name: &str) -> Result<u64> {
    let cx = site.read_context();
    let newest = cx.run(site.journal().recent(&cx, name, 1)).await?;
    Ok(newest.first().map_or(0, |takeover| takeover.failovers))
}

/// What the holder last reported, as a checkpoint that is newer than its heartbeat corrects it.
#[derive(Debug, Default)]
struct Overtaken {
    /// The lag behind the newest change of the heartbeat.
    lag: Option<u64>,
    /// The oldest change that waited then has been committed.
    undelivered: bool,
}

impl Overtaken {
    fn of(report: Option<&StreamReport>, age: Option<u64>, committed: Option<&Checkpoint>, now: u64) -> Self {
        let (Some(report), Some(age), Some(committed)) = (report, age, committed) else { return Self::default() };
        let committed_age = now.saturating_sub(committed.facts.updated_at_millis);
        let position = committed.position.as_ref().and_then(|position| position.time);
        let Some(reached) = committed.facts.last_event_time.max(position).filter(|_| committed_age < age) else {
            return Self::default();
        };
        Self {
            lag: report.newest_at_millis.map(|newest| newest.saturating_sub(reached.0)),
            undelivered: report.oldest_at_millis.is_some_and(|oldest| oldest <= reached.0),
        }
    }
}

/// How long ago the holder was heard of.
fn age_of_report(holder: Option<&Holder>, members: &[Listed]) -> Option<u64> {
    let holder = holder?.candidate.instance;
    members.iter().find(|listed| listed.member.instance == holder).map(|listed| millis(listed.age))
}

/// How far a stream in this state is behind, in milliseconds. What waits at the source is not known while its holder does not deliver: it
/// may be as old as that has lasted. Without a holder nobody knows anything of it.
fn lag(state: State, known: Option<u64>, undelivered: Option<u64>, not_delivering: Option<u64>) -> Option<u64> {
    match state {
        State::Recovering => known.max(undelivered).max(not_delivering),
        _ => known,
    }
}

/// For how long a stream in this state has not been delivered, in milliseconds. What no instance tells is counted from when the last
/// holder left, or at most from the last commit.
fn not_delivering(
    state: State,
    reports: &HolderReports,
    release_notice: Option<&ReleaseNotice>,
    committed: Option<&Committed>,
) -> Option<u64> {
    match state {
        State::Running | State::Pausing | State::Moving => None,
        State::Recovering => reports.outage().or(Some(0)),
        _ => {
            let left = release_notice.map(|said| said.age_millis);
            let committed = || committed.filter(|at| !at.by.is_empty()).map(|at| at.committed_age_millis);
            reports.outage().max(left).or_else(committed)
        }
    }
}

/// How long a sink may take to tell what it is: the rest is worth seeing without it.
const GRADES: Duration = Duration::from_secs(1);

/// What the sinks are, where no instance has told: those that cannot be asked are left out.
async fn grades(site: &Site, described: &Described) -> Vec<SinkReport> {
    let cx = site.seams.cx().within(GRADES);
    let purpose = Purpose::new(&site.settings.group, &described.settings.name);
    let observation = async |target: &Target| {
        let mut options = target.system.options.clone();
        let inspected = cx.run(target.system.backend.check_sink(&cx, &purpose, &mut options)).await.ok()?;
        Some(SinkReport::new(&target.name, inspected.profile.grade))
    };
    join_all(described.sinks.iter().map(observation)).await.into_iter().flatten().collect()
}

/// What is stored of a stream.
struct Stored {
    checkpoint: Option<Checkpoint>,
    unfinished_snapshots: Vec<UnfinishedSnapshot>,
    /// Why nothing of it is known.
    unknown: Option<String>,
}

/// The checkpoint and its ledger. A sink that keeps them and does not answer is a remark.
async fn stored(site: &Site, described: &Described) -> Result<Stored> {
    let unknown = |error: Error| Stored {
        checkpoint: None,
        unfinished_snapshots: Vec::new(),
        unknown: Some(format!("Its checkpoint is kept with one of its sinks, which cannot be asked: {error}.")),
    };
    let store = match site.keeper(described).await? {
        Ok(store) => store,
        Err(error) => return Ok(unknown(error)),
    };
    let cx = site.read_context();
    let inspected = async {
        let checkpoint = site.checkpoint_in(&cx, &*store, described).await?;
        let open = cx.run(unfinished::open_entries(&cx, &*store, &site.key(described))).await?;
        Ok((checkpoint, open))
    };
    match inspected.await {
        Ok((checkpoint, open)) => {
            let one = |record: LedgerRecord| UnfinishedSnapshot { number: record.number, cause: record.entry.cause };
            Ok(Stored { checkpoint, unfinished_snapshots: open.into_iter().map(one).collect(), unknown: None })
        }
        Err(error) if Arc::ptr_eq(&store, &site.stores.checkpoints) => Err(error),
        Err(error) => Ok(unknown(error)),
    }
}

/// What the last instance on watch said when it left. After a crash that is nothing: what was said before is of an earlier tenure.
async fn release_notice(site: &Site, name: &str) -> Result<Option<ReleaseNotice>> {
    let (cx, journal) = (site.read_context(), site.journal());
    let last = cx.run(journal.recent(&cx, name, 1)).await?.pop().and_then(|takeover| takeover.tenure);
    let is_last = |said: &journal::ReleaseNotice| last.is_none_or(|last| last == said.tenure);
    let said = cx.run(journal.release_notice(&cx, name)).await?;
    let said = said.filter(|(said, _)| !said.text.is_empty() && is_last(said));
    Ok(said.map(|(said, age)| ReleaseNotice { cause: said.cause, text: said.text, age_millis: millis(age) }))
}

fn watch(holder: &Holder) -> Watch {
    Watch {
        name: holder.candidate.name.clone(),
        instance: holder.candidate.instance.to_string(),
        epoch: holder.epoch.0,
        lease_millis: millis(holder.remaining),
    }
}

/// What the stream is doing, and why it is not running.
fn judge(
    holder: Option<&Holder>,
    control: &Control,
    checkpoint: Option<&Checkpoint>,
    reports: &HolderReports,
) -> (State, Option<String>) {
    let moving =
        holder.is_some_and(|holder| holder.candidate.name == operator::NAME && holder.candidate.address.is_none());
    if moving {
        return (State::Moving, Some("an operator's move is under way; it takes a moment".to_owned()));
    }
    if let Some(halted) = checkpoint.and_then(|checkpoint| checkpoint.halted.as_ref()) {
        return (State::Halted, Some(halted.cause.clone()));
    }
    let paused = match &control.moves {
        Some(moves) if !moves.paused_by_people => {
            "an operator's move holds it still until it is done or gives up; `watchkeeper resume` lifts that sooner if its program is gone"
        }
        _ => "an operator paused it; resume it when it should run",
    };
    match holder {
        Some(_) if control.paused => (State::Pausing, Some(paused.to_owned())),
        Some(_) if reports.is_recovering() => (State::Recovering, reports.error()),
        Some(_) => (State::Running, None),
        None if control.paused => (State::Paused, Some(paused.to_owned())),
        None if reports.is_unmanned() => (State::Unmanned, Some(reports.nobody_running_remedy())),
        None => match reports.failing_everywhere() {
            Some(cause) => (State::Failing, Some(cause)),
            None if reports.is_opening() => (State::Vacant, Some("its source and sinks are being opened".to_owned())),
            None => {
                (State::Vacant, Some("an instance takes it within a lease, unless it fails on all of them".to_owned()))
            }
        },
    }
}
