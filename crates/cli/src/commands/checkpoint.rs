//! `checkpoint`, `seek`, `skip` and `accept-gap`: where a stream stands, and moving it.

mod plan;

use serde::Serialize;
use watchkeeper::core::Report;
use watchkeeper::engine::checkpoint::history::HistoryEntry;
use watchkeeper::engine::checkpoint::operator::{self, Move, MoveReport};
use watchkeeper::engine::group::report::{StreamActivity, StreamReport};
use watchkeeper::{Checkpoint as Newest, Error, ErrorKind, Operation, Result, StreamSpec};

use super::status::{committed_lines, count};
use crate::answer::{confirm, report};
use crate::args::{Back, Checkpoint, Decision};
use crate::config::Stream;
use crate::overview::Committed;
use crate::site::Site;
use crate::when::{Amount, Target, iso};

/// Runs a command about a checkpoint.
pub(crate) async fn run(site: &Site, command: &Checkpoint) -> Result<Report> {
    match command {
        Checkpoint::Show { stream } => show(site, stream).await,
        Checkpoint::History { stream, limit } => history(site, stream, *limit).await,
        Checkpoint::Set { stream, to, decision } => set(site, stream, to, *decision).await,
        Checkpoint::Rewind { stream, back, decision } => rewind(site, stream, *back, *decision).await,
        Checkpoint::Reset { stream, decision } => reset(site, stream, *decision).await,
    }
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    stream: &'a str,
    checkpoint: Option<&'a Committed>,
}

async fn show(site: &Site, name: &str) -> Result<Report> {
    let checkpoint = site.checkpoint(&site.read_context(), site.stream(name)?).await?;
    let committed = match &checkpoint {
        Some(checkpoint) => Some(Committed::read(site, name, checkpoint).await?),
        None => None,
    };
    let mut lines = vec![name.to_owned()];
    lines.extend(committed_lines(committed.as_ref()));
    let halted = committed.as_ref().and_then(|committed| committed.halted.as_ref());
    lines.extend(halted.map(|halted| format!("  halted       {}", halted.cause)));
    report(lines, &Shown { stream: name, checkpoint: committed.as_ref() })
}

/// A checkpoint of the history.
#[derive(Debug, Serialize)]
struct Earlier {
    position: String,
    epoch: u64,
    seq: u64,
    last_operation: Option<Operation>,
    last_event_at: Option<String>,
    committed_at: String,
    changes: u64,
    by: String,
}

impl Earlier {
    fn of(entry: &HistoryEntry) -> Self {
        Self {
            position: entry.position.to_string(),
            epoch: entry.epoch.0,
            seq: entry.seq,
            last_operation: entry.operation,
            last_event_at: entry.time.map(|time| iso(time.0)),
            committed_at: iso(entry.updated_at_millis),
            changes: entry.changes,
            by: entry.by.clone(),
        }
    }

    /// The newest checkpoint, if it has a position.
    fn current(checkpoint: &Newest) -> Option<Self> {
        let facts = &checkpoint.facts;
        Some(Self {
            position: checkpoint.position.as_ref()?.to_string(),
            epoch: checkpoint.epoch.0,
            seq: checkpoint.seq,
            last_operation: facts.last_operation,
            last_event_at: facts.last_event_time.map(|time| iso(time.0)),
            committed_at: iso(facts.updated_at_millis),
            changes: facts.changes,
            by: facts.processed_by.clone(),
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.epoch, self.seq, &self.position) == (other.epoch, other.seq, &other.position)
    }

    fn line(&self) -> String {
        let Self { committed_at, position, changes, epoch, by, .. } = self;
        format!("{committed_at}  {position}  {}  epoch {epoch}  by {by}", count(*changes, "change"))
    }
}

#[derive(Debug, Serialize)]
struct CheckpointHistory<'a> {
    stream: &'a str,
    checkpoints: Vec<Earlier>,
    size: Stored,
    remarks: Vec<String>,
}

/// How large the whole history is.
#[derive(Debug, Serialize)]
struct Stored {
    blocks: usize,
    checkpoints: usize,
    bytes: usize,
    /// Without compression.
    plain_bytes: usize,
}

async fn history(site: &Site, name: &str, limit: usize) -> Result<Report> {
    let stream = site.stream(name)?;
    let cx = site.read_context();
    let history = site.history(stream);
    let reading = cx.run(history.inspect(&cx, usize::MAX)).await?;
    let mut entries: Vec<_> = reading.entries.iter().collect();
    // The history is in the order of epochs, which begin anew after a checkpoint was lost.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.updated_at_millis));
    let mut checkpoints: Vec<_> = entries.into_iter().take(limit).map(Earlier::of).collect();
    let is_begun = !checkpoints.is_empty();
    // The history is with the group, and is wanted also while a sink that keeps the checkpoint does not answer.
    let (current, unseen) = match site.checkpoint(&cx, stream).await {
        Ok(current) => (current.as_ref().and_then(Earlier::current), None),
        Err(error) => (None, Some(format!("the current checkpoint cannot be read: {error}"))),
    };
    if let Some(current) = current.filter(|current| checkpoints.iter().all(|entry| !entry.is_same(current))) {
        checkpoints.insert(0, current);
        checkpoints.truncate(limit);
    }
    let remarks: Vec<_> = reading.damaged.iter().map(ToString::to_string).chain(unseen).collect();
    let mut lines: Vec<_> = checkpoints.iter().map(Earlier::line).collect();
    if !is_begun && remarks.is_empty() {
        let shown = if lines.is_empty() { "No checkpoint is there yet" } else { "This is the current one" };
        lines.push(format!("{shown}: the instance on watch adds the earlier ones within minutes."));
    }
    let size = reading.size;
    if size.blocks > 0 {
        let (stored, plain) = (size.stored_bytes, size.plain_bytes);
        let (kept, blocks) = (count(size.checkpoints as u64, "checkpoint"), count(size.blocks as u64, "block"));
        let ratio = plain as f64 / stored.max(1) as f64;
        lines.push(format!("{kept} in {blocks}: {stored} bytes, compressed from {plain} ({ratio:.1} : 1)."));
    }
    lines.extend(remarks.iter().map(|remark| format!("remark: {remark}")));
    let size = Stored {
        blocks: size.blocks,
        checkpoints: size.checkpoints,
        bytes: size.stored_bytes,
        plain_bytes: size.plain_bytes,
    };
    report(lines, &CheckpointHistory { stream: name, checkpoints, size, remarks })
}

/// Resumes `name` from `to`.
pub(crate) async fn set(site: &Site, name: &str, to: &Target, decision: Decision) -> Result<Report> {
    let described = site.stream(name)?;
    let movable = match to {
        Target::Position(bytes) => site.movable_to_known(described, Some(bytes)).await?,
        other => site.movable(described, &format!("to {}", other.described())).await?,
    };
    let plan = plan::set(site, described, &movable.spec, to).await?.unverified(&movable);
    confirm(&plan.lines, decision.yes)?;
    perform(site, &movable.spec, plan, decision).await
}

async fn rewind(site: &Site, name: &str, back: Back, decision: Decision) -> Result<Report> {
    let described = site.stream(name)?;
    let movable = match back {
        Back { steps: Some(_), .. } | Back { by: Some(Amount::Changes(_)), .. } => {
            site.movable_to_known(described, None).await?
        }
        _ => site.movable(described, "by time").await?,
    };
    let stream = &movable.spec;
    let plan = plan::rewind(site, described, stream, back).await?.unverified(&movable);
    confirm(&plan.lines, decision.yes)?;
    let by_history = matches!(plan.requested, Move::Rewind(operator::Back::Changes(_) | operator::Back::Steps(_)));
    let moved = perform(site, stream, plan, decision).await;
    moved.map_err(|error| if by_history && is_too_far(&error) { ask_the_log(name, &error) } else { error })
}

/// Lets `name` begin anew where its settings say.
async fn reset(site: &Site, name: &str, decision: Decision) -> Result<Report> {
    let described = site.stream(name)?;
    let stream = &site.movable_to_start(described).await?.spec;
    let plan = plan::reset(site, described, stream).await?;
    confirm(&plan.lines, decision.yes)?;
    perform(site, stream, plan, decision).await
}

/// Whether a move failed since the history of checkpoints does not reach back so far.
fn is_too_far(error: &Error) -> bool {
    error.kind() == ErrorKind::Config && error.message().starts_with("cannot go back")
}

/// The same error with the commands that ask the log instead of the history.
fn ask_the_log(name: &str, error: &Error) -> Error {
    Error::new(error.kind(), error.message()).remedy(format!(
        "ask the log instead: `watchkeeper checkpoint set {name} oldest`, or `watchkeeper checkpoint rewind {name} --to TIME`"
    ))
}

/// Passes over the one change after the checkpoint of `name`.
pub(crate) async fn skip(site: &Site, name: &str, cause: &str, decision: Decision) -> Result<Report> {
    let described = site.stream(name)?;
    refuse_delivering(site, described).await?;
    let stream = &site.movable(described, "over the next change").await?.spec;
    let plan = plan::skip(site, described, stream, cause).await?;
    confirm(&plan.lines, decision.yes)?;
    perform(site, stream, plan, decision).await
}

/// Refuses to skip a change of a stream that delivers. The move takes the watch, and whoever has it delivers that change before it leaves:
/// nothing would be skipped, at the cost of two handovers.
async fn refuse_delivering(site: &Site, described: &Stream) -> Result<()> {
    let (cx, name) = (site.read_context(), &described.settings.name);
    let Some(holder) = site.holder(&cx, described).await? else { return Ok(()) };
    let delivers = |report: &StreamReport| {
        report.stream == *name && report.epoch == Some(holder.epoch) && report.doing == StreamActivity::Running
    };
    let members = site.members(&cx).await?;
    let mut holders = members.iter().filter(|listed| listed.member.instance == holder.candidate.instance);
    if !holders.any(|listed| listed.healthy && listed.member.reports.iter().any(delivers)) {
        return Ok(());
    }
    let cause = format!("{name} runs on {} and delivers, so no change has to be skipped", holder.candidate.name);
    Err(Error::config(cause).remedy(format!(
        "skip a change when the stream halts over it or its sink does not take it, as `watchkeeper status {name}` shows, or after \
         `watchkeeper pause {name}`"
    )))
}

/// A gap that an operator accepts.
pub(crate) struct AcceptedGap<'a> {
    /// Where to go on.
    pub(crate) to: &'a Target,
    /// Whether the rest of a snapshot may be left out.
    pub(crate) leaves_snapshot: bool,
    /// Why, for the ledger.
    pub(crate) cause: &'a str,
}

/// Goes on with `name` after history that is lost.
pub(crate) async fn accept_gap(site: &Site, name: &str, gap: &AcceptedGap<'_>, decision: Decision) -> Result<Report> {
    let described = site.stream(name)?;
    let stream = &site.movable(described, "over a gap").await?.spec;
    let plan = plan::accept_gap(site, described, stream, gap).await?;
    confirm(&plan.lines, decision.yes)?;
    perform(site, stream, plan, decision).await
}

/// What a move did.
#[derive(Debug, Serialize)]
pub(super) struct Moved<'a> {
    stream: &'a str,
    epoch: u64,
    before: Option<String>,
    after: Option<String>,
    ledgered: usize,
    lifted: Option<watchkeeper::core::Halted>,
    swallowing: Vec<String>,
    remarks: Vec<String>,
}

impl<'a> Moved<'a> {
    pub(super) fn of(stream: &'a str, done: MoveReport) -> Self {
        Self {
            stream,
            epoch: done.epoch.0,
            before: done.before.map(|position| position.to_string()),
            after: done.after.map(|position| position.to_string()),
            ledgered: done.ledgered,
            lifted: done.lifted,
            swallowing: done.swallowing,
            remarks: done.remarks,
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let place = |position: &Option<String>| position.clone().unwrap_or_else(|| "its start".to_owned());
        let (stream, epoch) = (self.stream, self.epoch);
        let mut lines = vec![match self.before == self.after {
            true => format!("{stream} stays at {}, epoch {epoch}.", place(&self.after)),
            false => format!("{stream} went from {} to {}, epoch {epoch}.", place(&self.before), place(&self.after)),
        }];
        if self.ledgered > 0 {
            lines.push(format!(
                "What was passed over stands in the ledger: `watchkeeper dead-letters list {stream} --all`."
            ));
        }
        lines.extend(self.lifted.as_ref().map(|halted| format!("Its halt is lifted; it was: {}", halted.cause)));
        lines.extend(self.swallowing.iter().chain(&self.remarks).cloned());
        lines
    }
}

async fn perform(site: &Site, stream: &StreamSpec, plan: plan::Plan, decision: Decision) -> Result<Report> {
    let mut done = site.perform(stream, plan.requested, decision.patience).await?;
    done.remarks.extend(plan.remarks);
    let moved = Moved::of(&stream.settings.name, done);
    report(moved.lines(), &moved)
}
