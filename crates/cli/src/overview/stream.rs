//! One stream of a group.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use watchkeeper::core::{Holder, LedgerRecord, Reason};
use watchkeeper::engine::checkpoint::{operator, unfinished};
use watchkeeper::engine::group::control::Control;
use watchkeeper::engine::group::journal::Cause;
use watchkeeper::engine::group::registry::Listed;
use watchkeeper::{Checkpoint, Grade, Operation, Result, SourceTime, StartAt, StreamSpec};

use super::is;
use crate::site::Site;
use crate::when::{iso, millis};

/// How long a source may take to tell how far it reaches: the rest is worth seeing without it.
const SOURCE: Duration = Duration::from_secs(2);

/// What a stream is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// An instance has the watch.
    Running,
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
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Moving => "being moved by an operator",
            Self::Halted => "halted",
            Self::Vacant => "waiting for an instance to take the watch",
            Self::Unmanned => "not running: no instance is there",
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
    /// Why it is not running, if it is not.
    pub(crate) cause: Option<String>,
    /// What it promises: the weakest grade of its sinks.
    pub(crate) grade: Option<Grade>,
    /// Its sinks.
    pub(crate) sinks: Vec<Sink>,
    /// Who has the watch.
    pub(crate) watch: Option<Watch>,
    /// What the last one on watch said when it left, while nobody has it.
    pub(crate) farewell: Option<Farewell>,
    /// Who could take it.
    pub(crate) standing_by: Vec<String>,
    /// The instance that should have it.
    pub(crate) preferred: Option<String>,
    /// How far it is.
    pub(crate) checkpoint: Option<Committed>,
    /// What it is busy with before its changes, such as a snapshot.
    pub(crate) stage: Option<Staged>,
    /// Gaps of its ledger that left a snapshot unfinished: rows are missing at its targets.
    pub(crate) unfinished_snapshots: Vec<UnfinishedSnapshot>,
    /// How far the checkpoint is behind the newest change, by the source's clock.
    pub(crate) lag_millis: Option<u64>,
    /// What a person should know, a sentence each.
    pub(crate) remarks: Vec<String>,
}

/// A target.
#[derive(Debug, Serialize)]
pub(crate) struct Sink {
    /// Its name within the stream.
    pub(crate) name: String,
    /// What it does with a stale or repeated write.
    pub(crate) grade: Grade,
}

/// What a source is busy with before its changes.
#[derive(Debug, Serialize)]
pub(crate) struct Staged {
    /// What is done, in a few words.
    pub(crate) what: String,
    /// So many rows are committed.
    pub(crate) done: u64,
    /// Of about so many, as they were when it began.
    pub(crate) of: Option<u64>,
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
pub(crate) struct Farewell {
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
    /// How often the watch has changed hands.
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
    /// `checkpoint`, seen at `now`.
    pub(crate) fn of(checkpoint: &Checkpoint, now_millis: u64) -> Self {
        let facts = &checkpoint.facts;
        Self {
            position: checkpoint.position.as_ref().map(ToString::to_string),
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
pub(super) async fn look(
    site: &Site,
    spec: &StreamSpec,
    holder: Option<Holder>,
    control: Control,
    members: &[Listed],
) -> Result<Stream> {
    let checkpoint = site.checkpoint(&site.look(), spec).await?;
    let newest = newest(site, spec).await;
    let unfinished_snapshots = unfinished_snapshots(site, spec).await?;
    let name = spec.settings.name.clone();
    let farewell = match &holder {
        Some(_) => None,
        None => farewell(site, &name).await?,
    };
    let able = |listed: &&Listed| listed.healthy && listed.member.streams.contains(&name);
    let able: Vec<_> = members.iter().filter(able).collect();
    let (state, cause) = judge(holder.as_ref(), &control, checkpoint.as_ref(), able.len());
    let standing_by = able.iter().filter(|listed| !is(listed, holder.as_ref()));
    let passed = checkpoint.as_ref().and_then(passed);
    let position = checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.as_ref());
    let stage = position.and_then(|position| spec.source.stage(position));
    let (lag, remarks) = match newest {
        Ok(newest) => (lag(newest, passed), Vec::new()),
        Err(error) => (None, vec![format!("The source does not tell how far it is: {error}.")]),
    };
    Ok(Stream {
        state,
        cause,
        grade: spec.grade(),
        sinks: spec.profiles().into_iter().map(|(name, profile)| Sink { name, grade: profile.grade }).collect(),
        standing_by: standing_by.map(|listed| listed.member.name.clone()).collect(),
        watch: holder.as_ref().map(watch),
        farewell,
        preferred: control.preferred,
        checkpoint: checkpoint.map(|checkpoint| Committed::of(&checkpoint, site.seams.clock.wall_millis())),
        stage: stage.map(|stage| Staged { what: stage.what, done: stage.done, of: stage.of }),
        unfinished_snapshots,
        lag_millis: lag,
        remarks,
        name,
    })
}

async fn unfinished_snapshots(site: &Site, spec: &StreamSpec) -> Result<Vec<UnfinishedSnapshot>> {
    let (cx, checkpoints, key) = (site.look(), site.stores.checkpoints_of(spec), site.key(spec));
    let open = cx.run(unfinished::open_entries(&cx, &*checkpoints, &key)).await?;
    let one = |record: LedgerRecord| UnfinishedSnapshot { number: record.number, cause: record.entry.cause };
    Ok(open.into_iter().map(one).collect())
}

async fn farewell(site: &Site, name: &str) -> Result<Option<Farewell>> {
    let (cx, journal) = (site.look(), site.journal());
    let said = cx.run(journal.farewell(&cx, name)).await?.filter(|(farewell, _)| !farewell.text.is_empty());
    Ok(said.map(|(said, age)| Farewell { cause: said.cause, text: said.text, age_millis: millis(age) }))
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
    able: usize,
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
            "an operator's move holds it still; resume it if that program is gone"
        }
        _ => "an operator paused it; resume it when it should run",
    };
    match holder {
        Some(_) if control.paused => (State::Pausing, Some(paused.to_owned())),
        Some(_) => (State::Running, None),
        None if control.paused => (State::Paused, Some(paused.to_owned())),
        None if able == 0 => (State::Unmanned, Some("start an instance with `watchkeeper run`".to_owned())),
        None => (State::Vacant, Some("an instance takes it within a lease, unless it fails on all of them".to_owned())),
    }
}

/// The source's time of its newest change.
async fn newest(site: &Site, spec: &StreamSpec) -> Result<Option<SourceTime>> {
    let cx = site.seams.cx().within(SOURCE);
    let mut log = cx.run(spec.source.peek(&cx, StartAt::Now)).await?;
    let window = cx.run(log.window(&cx)).await;
    cx.run(log.close(&cx)).await?;
    Ok(window?.newest)
}

/// The source's time at the checkpoint. What was delivered last says nothing about it after an operator's move.
fn passed(checkpoint: &Checkpoint) -> Option<SourceTime> {
    let delivered = checkpoint.facts.last_event_time.filter(|_| checkpoint.reason != Reason::Operator);
    checkpoint.position.as_ref()?.time.or(delivered)
}

fn lag(newest: Option<SourceTime>, passed: Option<SourceTime>) -> Option<u64> {
    Some(newest?.0.saturating_sub(passed?.0))
}
