//! What a move is going to do, told before it is done.
//!
//! Everything here only looks. The move itself looks again under its own claim, and refuses what is no longer so.

use std::cmp::Ordering;

use watchkeeper::engine::checkpoint::history::HistoryEntry;
use watchkeeper::engine::checkpoint::next_change::{self, next_change};
use watchkeeper::engine::checkpoint::operator::{self, Move, swallowing};
use watchkeeper::engine::checkpoint::unfinished;
use watchkeeper::{Change, Checkpoint, Cx, Error, Position, Result, StreamSpec};

use super::AcceptedGap;
use crate::args::Back;
use crate::commands::tail::readable;
use crate::config::Stream;
use crate::site::{Movable, Site};
use crate::when::{Amount, Target, iso, millis};

/// A move, and what a person should know before it.
pub(super) struct Plan {
    pub(super) requested: Move,
    pub(super) lines: Vec<String>,
    /// What is worth knowing afterwards, too.
    pub(super) remarks: Vec<String>,
}

impl Plan {
    /// Says that nobody has verified the new position, if the source could not be reached.
    pub(super) fn unverified(mut self, movable: &Movable) -> Self {
        let Some(error) = &movable.unreached else { return self };
        let name = &movable.spec.settings.name;
        let remark = format!(
            "The source of {name} cannot be reached, so the new position was NOT verified ({}). The stream verifies it when it opens, \
             and halts if it cannot resume there.",
            error.message()
        );
        self.lines.push(remark.clone());
        self.remarks.push(remark);
        self
    }
}

pub(super) async fn set(site: &Site, described: &Stream, stream: &StreamSpec, to: &Target) -> Result<Plan> {
    let cx = site.read_context();
    let (target, note) = site.locate(&cx, stream, to).await?;
    let checkpoint = site.checkpoint(&cx, described).await?;
    let current = position(checkpoint.as_ref());
    let mut lines = vec![heading(stream, current, Some(&target))];
    let remark = note.as_deref().map(sentence);
    lines.extend(remark.clone());
    let order = match current {
        Some(current) => Some(stream.source.compare(&target, current)),
        // Where it stood is lost, so nothing is known of the order.
        None => is_lost(checkpoint.as_ref()).then_some(None),
    };
    match order {
        None | Some(Some(Ordering::Equal)) => {}
        Some(Some(Ordering::Less)) => lines.extend(replaying(stream)),
        Some(Some(Ordering::Greater)) => lines.push(PASSING.to_owned()),
        Some(None) => {
            lines.push(PASSING.to_owned());
            lines.extend(replaying(stream));
        }
    }
    lines.extend(snapshots(stream, current, &target));
    lines.extend(lifting(checkpoint.as_ref()));
    Ok(Plan { requested: Move::Set(target), lines, remarks: Vec::from_iter(remark) })
}

/// What a move does to snapshots: it begins one, or leaves one unfinished.
fn snapshots(stream: &StreamSpec, current: Option<&Position>, target: &Position) -> Option<String> {
    if stream.source.has_unfinished_snapshot(target) {
        return Some(
            "Everything that exists is delivered again. Rows that were deleted meanwhile stay at the targets: empty those first."
                .to_owned(),
        );
    }
    unfinished::is_unfinished(&*stream.source, current).then(|| {
        "Its snapshot is left unfinished: rows that it has not read yet are MISSING at the targets until a new one is taken."
            .to_owned()
    })
}

/// Whether the stream has committed a position that is not known any more.
fn is_lost(checkpoint: Option<&Checkpoint>) -> bool {
    checkpoint.is_some_and(Checkpoint::has_lost_position)
}

pub(super) async fn reset(site: &Site, described: &Stream, stream: &StreamSpec) -> Result<Plan> {
    let checkpoint = site.checkpoint(&site.read_context(), described).await?;
    let name = &stream.settings.name;
    let mut lines = vec![match position(checkpoint.as_ref()) {
        Some(current) => {
            format!("Stream {name} gives up its position {current} and begins anew where its settings say.")
        }
        None => format!("Stream {name} begins anew where its settings say."),
    }];
    if position(checkpoint.as_ref()).is_some() || is_lost(checkpoint.as_ref()) {
        lines.push("What was not delivered yet may NOT be delivered; the gap is noted in the ledger.".to_owned());
        lines.extend(replaying(stream));
    }
    lines.extend(lifting(checkpoint.as_ref()));
    Ok(Plan { requested: Move::Reset, lines, remarks: Vec::new() })
}

const PASSING: &str = "The changes in between are NOT delivered; the gap is noted in the ledger.";

pub(super) async fn rewind(site: &Site, described: &Stream, stream: &StreamSpec, back: Back) -> Result<Plan> {
    let cx = site.read_context();
    let checkpoint = site.checkpoint(&cx, described).await?;
    let current = match position(checkpoint.as_ref()) {
        Some(current) => current.clone(),
        // Where it stood is lost: the newest position of the history takes its place.
        None if is_lost(checkpoint.as_ref()) => {
            let history = site.history(described);
            let newest = cx.run(history.read(&cx, 1)).await?.into_iter().next();
            newest.ok_or_else(|| nowhere(stream))?.position
        }
        None => return Err(nowhere(stream)),
    };
    let mut note = None;
    let back = match back {
        Back { steps: Some(steps), .. } => operator::Back::Steps(steps),
        Back { to: Some(millis), .. } => to_time(site, &cx, stream, millis, &mut note).await?,
        Back { by: Some(Amount::Time(span)), .. } => {
            let last = current.time.or_else(|| checkpoint.as_ref()?.facts.last_event_time);
            let last = last.ok_or_else(|| {
                Error::config("the checkpoint has no time to count back from").remedy("use --to, --steps or a number")
            })?;
            to_time(site, &cx, stream, last.0.saturating_sub(millis(span)), &mut note).await?
        }
        Back { by: Some(Amount::Changes(changes)), .. } => operator::Back::Changes(changes),
        Back { by: None, to: None, steps: None } => {
            return Err(Error::config("how far to go back was not said").remedy("use --by, --to or --steps"));
        }
    };
    let target = match &back {
        operator::Back::To(entry) => Some(&entry.position),
        operator::Back::Steps(_) | operator::Back::Changes(_) => None,
    };
    let mut lines = vec![heading(stream, Some(&current), target)];
    let remark = note.as_deref().map(sentence);
    lines.extend(remark.clone());
    match &back {
        operator::Back::Steps(steps) => lines.push(format!("It goes back by {steps} checkpoints of the history.")),
        operator::Back::Changes(changes) => {
            lines.push(format!(
                "It goes back by {changes} changes, or by a few more to the next checkpoint of the history."
            ));
        }
        operator::Back::To(_) => {}
    }
    lines.extend(replaying(stream));
    lines.extend(lifting(checkpoint.as_ref()));
    Ok(Plan { requested: Move::Rewind(back), lines, remarks: Vec::from_iter(remark) })
}

/// A place before everything that was committed at or after a time, as the log is now; `note` is what a person should know of it.
async fn to_time(
    site: &Site,
    cx: &Cx,
    stream: &StreamSpec,
    millis: u64,
    note: &mut Option<String>,
) -> Result<operator::Back> {
    let (target, known) = site.locate(cx, stream, &Target::Time(millis)).await?;
    *note = known;
    let pedigree = cx.run(stream.source.identity(cx)).await?;
    Ok(operator::Back::To(Box::new(HistoryEntry::at(target, Some(pedigree)))))
}

pub(super) async fn skip(site: &Site, described: &Stream, stream: &StreamSpec, cause: &str) -> Result<Plan> {
    let cx = site.read_context();
    let checkpoint = site.checkpoint(&cx, described).await?;
    let before = position(checkpoint.as_ref()).cloned();
    let unit = next_change(&cx, &*stream.source, before.clone()).await?;
    let sinks: Vec<_> = described.sinks.iter().map(|sink| sink.name.as_str()).collect();
    let requested = next_change::skip(stream, &sinks, &unit, before, cause)?;
    let mut lines: Vec<_> = unit.iter().map(describe_change).collect();
    lines.push("It is NOT delivered to any sink, and noted in the ledger.".to_owned());
    lines.extend(lifting(checkpoint.as_ref()));
    Ok(Plan { requested, lines, remarks: Vec::new() })
}

fn describe_change(change: &Change) -> String {
    let key = change.key().map_or_else(|| "-".to_owned(), readable);
    format!("Skip the {} of {key} in {}, of {}.", change.operation(), change.namespace(), iso(change.time().0))
}

pub(super) async fn accept_gap(
    site: &Site,
    described: &Stream,
    stream: &StreamSpec,
    gap: &AcceptedGap<'_>,
) -> Result<Plan> {
    let cx = site.read_context();
    let (source, name) = (&*stream.source, &stream.settings.name);
    let checkpoint = site.checkpoint(&cx, described).await?;
    cx.run(operator::require_gap(&cx, source, name, checkpoint.as_ref())).await?;
    let (target, note) = site.locate(&cx, stream, gap.to).await?;
    if !gap.leaves_snapshot {
        unfinished::require_snapshot_anew(source, name, checkpoint.as_ref(), &target)?;
    }
    let mut lines = vec![heading(stream, position(checkpoint.as_ref()), Some(&target))];
    let remark = note.as_deref().map(sentence);
    lines.extend(remark.clone());
    let pedigree = cx.run(stream.source.identity(&cx)).await?;
    if checkpoint.as_ref().and_then(|checkpoint| checkpoint.pedigree.as_ref()).is_some_and(|stored| *stored != pedigree)
    {
        lines.extend(operator::outranked(&stream.profiles()));
    }
    lines.push("The history in between is given up; the gap is noted in the ledger.".to_owned());
    lines.extend(snapshots(stream, position(checkpoint.as_ref()), &target));
    lines.extend(lifting(checkpoint.as_ref()));
    let (cause, leaves_snapshot) = (gap.cause.to_owned(), gap.leaves_snapshot);
    Ok(Plan {
        requested: Move::AcceptGap { to: target, cause, leaves_snapshot },
        lines,
        remarks: Vec::from_iter(remark),
    })
}

/// A remark of a source as a line of its own.
fn sentence(remark: &str) -> String {
    let mut letters = remark.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn position(checkpoint: Option<&Checkpoint>) -> Option<&Position> {
    checkpoint.and_then(|checkpoint| checkpoint.position.as_ref())
}

fn nowhere(stream: &StreamSpec) -> Error {
    Error::config(format!("stream {:?} has no checkpoint to go back from", stream.settings.name))
        .remedy("it starts where its settings say; use `checkpoint set` to start it elsewhere")
}

fn heading(stream: &StreamSpec, current: Option<&Position>, target: Option<&Position>) -> String {
    let name = &stream.settings.name;
    let current = current.map_or_else(|| "its start".to_owned(), ToString::to_string);
    match target {
        Some(target) => format!("Stream {name} is moved from {current} to {target}."),
        None => format!("Stream {name} is moved back from {current}."),
    }
}

fn replaying(stream: &StreamSpec) -> Vec<String> {
    let mut lines = vec!["Changes that were delivered are delivered again.".to_owned()];
    lines.extend(swallowing(&stream.profiles()));
    lines
}

fn lifting(checkpoint: Option<&Checkpoint>) -> Option<String> {
    let halted = checkpoint.and_then(|checkpoint| checkpoint.halted.as_ref())?;
    Some(format!("The stream is halted, and runs again afterwards. The cause of the halt: {}", halted.cause))
}
