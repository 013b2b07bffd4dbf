//! The moves that an operator can request, and the plan of the commit that performs one.
//!
//! Whatever a move passes over stands in the ledger by the very commit that passes it (G2), and a
//! target that the source cannot resume from is refused before anything is written (G4).

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    Change, Checkpoint, CheckpointStore, Cx, Error, ErrorKind, Grade, LeaseKey, LedgerEntry, LedgerKind, LedgerQuery,
    LedgerRecord, Limits, Pedigree, Position, Resolution, Result, SinkProfile, Source, StartAt, StoredChange,
};

use super::history::{History, HistoryEntry};
use super::unfinished;

/// Where to go back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Back {
    /// To this checkpoint.
    To(Box<HistoryEntry>),
    /// So many different positions back in the history, from the current one.
    Steps(usize),
    /// At least so many changes, to the nearest checkpoint of the history.
    Changes(u64),
}

/// An operator's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Resume from this position of the log as it is now. What it passes over is recorded as a gap, and a snapshot that it leaves
    /// unfinished as such.
    Set(Position),
    /// Resume from an earlier checkpoint. Refused when it is not known to be earlier.
    Rewind(Back),
    /// Pass over the one change after the checkpoint.
    Skip {
        /// What will stand in the ledger for it.
        entry: Box<LedgerEntry>,
        /// The position after it.
        to: Position,
    },
    /// Go on after history that is lost.
    AcceptGap {
        /// The first position that can be resumed from.
        to: Position,
        /// Why that was accepted.
        cause: String,
        /// Whether a snapshot may be left unfinished. Otherwise a stream in the middle of one can only begin it anew.
        leaves_snapshot: bool,
    },
    /// Let a halted stream run again from where it stands.
    Resume,
    /// Let the stream begin anew where its settings say. What it has not delivered yet is recorded as a gap.
    Reset,
    /// Settle entries of the ledger; position and halt stay.
    Resolve {
        /// Their numbers.
        numbers: Vec<u64>,
        /// As what.
        resolution: Resolution,
    },
}

/// What is moved.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The stream's name.
    pub stream: &'a str,
    /// The key of the stream, or of one of its partitions.
    pub key: &'a LeaseKey,
    /// Its source.
    pub source: &'a dyn Source,
    /// Its sinks, by name.
    pub sinks: &'a [(String, SinkProfile)],
}

/// What a commit will say.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) position: Option<Position>,
    pub(super) pedigree: Option<Pedigree>,
    pub(super) ledger: Vec<LedgerEntry>,
    pub(super) resolve: Vec<(u64, Resolution)>,
    /// Open letters that are settled.
    pub(super) letters_settled: u64,
    pub(super) keeps_halt: bool,
    /// The stream begins anew: it has no position on purpose.
    pub(super) resets: bool,
    /// The stream delivers everything that the source has: targets may be made anew.
    pub(super) delivers_anew: bool,
    /// Changes may be delivered again.
    pub(super) replays: bool,
}

/// What a plan is made from.
pub(super) struct Planner<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) current: Option<&'a Checkpoint>,
    pub(super) checkpoints: &'a dyn CheckpointStore,
    pub(super) history: &'a History,
}

impl Planner<'_> {
    pub(super) async fn plan(&self, cx: &Cx, requested: Move) -> Result<Plan> {
        match requested {
            Move::Set(to) => self.set(cx, to, "an operator set the checkpoint").await,
            Move::Rewind(back) => self.rewind(cx, back).await,
            Move::Skip { entry, to } => self.skip(cx, *entry, to).await,
            Move::AcceptGap { to, cause, leaves_snapshot } => {
                require_gap(cx, self.subject.source, self.subject.stream, self.current).await?;
                if !leaves_snapshot {
                    unfinished::require_snapshot_anew(self.subject.source, self.subject.stream, self.current, &to)?;
                }
                let ledger = vec![self.gap(&cause, Some(&to))];
                let plan = self.set(cx, to, &cause).await?;
                self.refuse_to_go_back(&plan)?;
                Ok(Plan { ledger, ..plan })
            }
            Move::Resume => Ok(self.stay()),
            Move::Reset => Ok(self.reset()),
            Move::Resolve { numbers, resolution } => self.resolve(cx, &numbers, resolution).await,
        }
    }

    /// What is there after the checkpoint, in the same log, is delivered by going on, not by going back to before it.
    fn refuse_to_go_back(&self, plan: &Plan) -> Result<()> {
        let Some(current) = self.current else { return Ok(()) };
        let (Some(to), Some(from)) = (&plan.position, &current.position) else { return Ok(()) };
        let is_less = self.subject.source.compare(to, from) == Some(Ordering::Less);
        if current.pedigree != plan.pedigree || !is_less || self.subject.source.has_unfinished_snapshot(to) {
            return Ok(());
        }
        let cause = format!("{to} is before the checkpoint of stream {}, in the same log", self.subject.stream);
        Err(Error::config(cause).remedy(
            "deal with what halted the stream and resume it, or go on with what happens from now on: `watchkeeper accept-gap STREAM --to now`",
        ))
    }

    /// Whether the stream has committed a position that is not known any more.
    fn is_lost(&self) -> bool {
        self.current.is_some_and(Checkpoint::has_lost_position)
    }

    /// No position. Where the stream begins and what it has delivered cannot be compared, so both are assumed: something is passed over,
    /// something is repeated.
    fn reset(&self) -> Plan {
        let begun = self.position().is_some() || self.is_lost();
        let ledger = if begun { vec![self.gap("an operator reset the checkpoint", None)] } else { Vec::new() };
        Plan { ledger, replays: begun, resets: true, delivers_anew: true, ..Plan::default() }
    }

    /// The current position, with the halt lifted.
    fn stay(&self) -> Plan {
        let pedigree = self.current.and_then(|current| current.pedigree.clone());
        Plan { position: self.position().cloned(), pedigree, ..Plan::default() }
    }

    async fn set(&self, cx: &Cx, to: Position, cause: &str) -> Result<Plan> {
        let pedigree = self.subject.source.identity(cx).await?;
        self.subject.source.verify(cx, &to, &pedigree).await?;
        let order = match self.position() {
            Some(current) => Some(self.subject.source.compare(&to, current)),
            None => self.is_lost().then_some(None),
        };
        // Where the order is not known both are assumed: something passed over, something repeated.
        let passes = matches!(order, Some(None | Some(Ordering::Greater)));
        let replays = matches!(order, Some(None | Some(Ordering::Less)));
        let ledger = if passes { vec![self.gap(cause, Some(&to))] } else { Vec::new() };
        let begins_snapshot = self.subject.source.has_unfinished_snapshot(&to);
        let resolve = if begins_snapshot {
            unfinished::settled_by_snapshot(cx, self.checkpoints, self.subject.key).await?
        } else {
            Vec::new()
        };
        let replays = replays || begins_snapshot;
        let (position, pedigree) = (Some(to), Some(pedigree));
        Ok(Plan { position, pedigree, ledger, resolve, replays, delivers_anew: begins_snapshot, ..Plan::default() })
    }

    async fn rewind(&self, cx: &Cx, back: Back) -> Result<Plan> {
        let nothing = || Error::config(format!("{} has no checkpoint to go back from", self.subject.key));
        // Where the position is lost, the newest one of the history takes its place.
        let newest = match self.is_lost() {
            true => self.history.read(cx, 1).await?.into_iter().next().map(|entry| entry.position),
            false => None,
        };
        let current = self.position().or(newest.as_ref()).ok_or_else(nothing)?;
        let mut target = match back {
            Back::To(entry) => *entry,
            Back::Steps(steps) => self.steps_back(cx, current, steps).await?,
            Back::Changes(changes) => self.changes_back(cx, current, changes).await?,
        };
        let source = self.subject.source;
        if source.compare(&target.position, current).is_none()
            && let Some(drawn_back) = source.earlier_bound(&target.position, current)
        {
            target.position = drawn_back;
        }
        if source.compare(&target.position, current) != Some(Ordering::Less) {
            let (target, key) = (&target.position, self.subject.key);
            return Err(Error::config(format!("{target} is not known to be before the checkpoint of {key}")).remedy(
                "pick an earlier checkpoint of the history, or set the position, which records what it passes",
            ));
        }
        if let Some(pedigree) = &target.pedigree {
            self.subject.source.verify(cx, &target.position, pedigree).await?;
        }
        let (position, pedigree) = (Some(target.position), target.pedigree);
        Ok(Plan { position, pedigree, replays: true, ..Plan::default() })
    }

    async fn steps_back(&self, cx: &Cx, current: &Position, steps: usize) -> Result<HistoryEntry> {
        let mut earlier = self.history.read(cx, usize::MAX).await?;
        earlier.retain(|entry| self.subject.source.compare(&entry.position, current) == Some(Ordering::Less));
        earlier.dedup_by(|entry, newer| entry.position == newer.position);
        let known = earlier.len();
        let target = steps.checked_sub(1).and_then(|index| earlier.into_iter().nth(index));
        target.ok_or_else(|| {
            Error::config(format!("cannot go back {steps} checkpoints: the history has {known} before the current one"))
        })
    }

    /// Changes are counted over all deliveries, so after a rewind the count of a place is that of its *first* passing: the
    /// smallest count of any checkpoint that is not before it.
    async fn changes_back(&self, cx: &Cx, current: &Position, changes: u64) -> Result<HistoryEntry> {
        let is_before =
            |entry: &HistoryEntry| self.subject.source.compare(&entry.position, current) == Some(Ordering::Less);
        let (before, after): (Vec<_>, Vec<_>) =
            self.history.read(cx, usize::MAX).await?.into_iter().partition(is_before);
        let now = self.current.map_or(0, |current| current.facts.changes);
        let here = after.iter().map(|entry| entry.changes).min().map_or(now, |first| first.min(now));
        let reach = before.iter().map(|entry| here.saturating_sub(entry.changes)).max().unwrap_or(0);
        let far_enough = |entry: &HistoryEntry| entry.changes.saturating_add(changes) <= here;
        let target = before.into_iter().filter(far_enough).max_by_key(|entry| entry.changes);
        target.ok_or_else(|| {
            Error::config(format!("cannot go back {changes} changes: the history reaches back {reach}"))
                .remedy("go back to a time or to the oldest change, for which the log itself is asked")
        })
    }

    /// Skips the first change after the checkpoint, having read it: anything else that lies between
    /// would be lost without a word.
    async fn skip(&self, cx: &Cx, entry: LedgerEntry, to: Position) -> Result<Plan> {
        if entry.kind.is_gap() || entry.kind == LedgerKind::Parked {
            return Err(Error::config("a skipped change stands in the ledger as skipped or as a dead letter"));
        }
        let unit = self.first_unit(cx).await?;
        self.refuse_another_than_halted(&unit)?;
        // A source may write one place in several ways, so that only a known order speaks against it: the change's id tells which
        // one is meant, and where it was read now is right after it.
        let end = unit.last().map(Change::position).filter(|end| self.may_be_same(end, &to));
        let is_meant = unit.iter().any(|change| change.id().to_string() == entry.change_id);
        let Some(end) = end.filter(|_| is_meant) else {
            let (id, key) = (&entry.change_id, self.subject.key);
            return Err(Error::config(format!("{id} is not the one change between the checkpoint of {key} and {to}"))
                .remedy("resume the stream so that what comes before is delivered, or set the position, which records the whole range as a gap"));
        };
        let ledger = unit.iter().map(|change| self.skipped(change, &entry)).collect();
        let pedigree = self.current.and_then(|current| current.pedigree.clone());
        Ok(Plan { position: Some(end), pedigree, ledger, ..Plan::default() })
    }

    /// What is skipped after a halt is the change that it names: another one before it is good, as far as anybody knows.
    fn refuse_another_than_halted(&self, unit: &[Change]) -> Result<()> {
        let halted = self.current.and_then(|current| current.halted.as_ref());
        let Some(named) = halted.and_then(|halted| halted.change.as_ref()) else { return Ok(()) };
        if unit.is_empty() || unit.iter().any(|change| change.id().to_string() == *named) {
            return Ok(());
        }
        let (key, next) = (self.subject.key, unit[0].id());
        Err(Error::config(format!("{key} is halted because of change {named}, and the one after its checkpoint is another, {next}"))
            .remedy("resume the stream, so that what comes before is delivered; it halts again right before the change, which can be skipped then"))
    }

    fn may_be_same(&self, a: &Position, b: &Position) -> bool {
        a.bytes == b.bytes || matches!(self.subject.source.compare(a, b), None | Some(Ordering::Equal))
    }

    /// The entry for a change of the skipped unit: as given, or for the other half of a key update.
    fn skipped(&self, change: &Change, given: &LedgerEntry) -> LedgerEntry {
        let change_id = change.id().to_string();
        let entry = LedgerEntry { change_id, before: self.position().cloned(), ..given.clone() };
        let kept = given.change.clone().filter(|_| entry.change_id == given.change_id);
        LedgerEntry { change: kept.or_else(|| Some(StoredChange::keep(change))), ..entry }
    }

    /// The first change after the checkpoint; both halves of a key update.
    async fn first_unit(&self, cx: &Cx) -> Result<Vec<Change>> {
        let start = self.position().cloned().map_or(StartAt::Oldest, StartAt::After);
        let mut stream = self.subject.source.peek(cx, start).await?;
        let limits = Limits { rows: 1, bytes: 64 * 1024, wait: Duration::from_millis(250) };
        let mut unit = Vec::new();
        // A source may answer with a position only, and does not split halves; so this is short.
        for _ in 0..8 {
            cx.check()?;
            let batch = Arc::new(stream.next_batch(cx, limits).await?);
            for row in (0_u32..).take(batch.len()) {
                unit.push(Change::new(Arc::clone(&batch), row));
                if batch.rows()[row as usize].committable {
                    stream.close(cx).await?;
                    return Ok(unit);
                }
            }
        }
        stream.close(cx).await?;
        Err(Error::config(format!("there is no change after the checkpoint of {} to skip", self.subject.key)))
    }

    async fn resolve(&self, cx: &Cx, numbers: &[u64], resolution: Resolution) -> Result<Plan> {
        let (Some(first), Some(last)) = (numbers.iter().min(), numbers.iter().max()) else {
            return Err(Error::config("no entries of the ledger were named"));
        };
        let mut open = self.open_between(cx, *first, *last).await?;
        open.retain(|record| numbers.contains(&record.number));
        let missing = |number: &&u64| !open.iter().any(|record| record.number == **number);
        if let Some(number) = numbers.iter().find(missing) {
            return Err(Error::config(format!("the ledger of {} has no open entry {number}", self.subject.key)));
        }
        let letters_settled = open.iter().filter(|record| record.entry.kind.is_letter()).count() as u64;
        let resolve = open.iter().map(|record| (record.number, resolution)).collect();
        Ok(Plan { resolve, letters_settled, keeps_halt: true, ..self.stay() })
    }

    async fn open_between(&self, cx: &Cx, first: u64, last: u64) -> Result<Vec<LedgerRecord>> {
        let mut found = Vec::new();
        let mut query = LedgerQuery { after: first.saturating_sub(1), limit: 500, open_only: true };
        loop {
            cx.check()?;
            let page = self.checkpoints.ledger(cx, self.subject.key, &query).await?;
            let Some(newest) = page.last().map(|record| record.number) else { return Ok(found) };
            found.extend(page.into_iter().filter(|record| record.number <= last));
            if newest >= last {
                return Ok(found);
            }
            query.after = newest;
        }
    }

    /// The entry for a gap before `to`, or before wherever the settings of the stream begin.
    fn gap(&self, cause: &str, to: Option<&Position>) -> LedgerEntry {
        let (sink, change_id) = (String::new(), String::new());
        let (cause, before) = (cause.to_owned(), self.position().cloned());
        let source = self.subject.source;
        let kind =
            unfinished::gap_kind(source, before.as_ref(), to.is_some_and(|to| source.has_unfinished_snapshot(to)));
        LedgerEntry { kind, sink, change_id, cause, before, change: None }
    }

    fn position(&self) -> Option<&Position> {
        self.current.and_then(|current| current.position.as_ref())
    }
}

/// Refuses to accept a gap that is none: it would be a false entry in the ledger, and deliver changes again. A halt that tells of lost
/// history is believed; otherwise the source is asked.
///
/// # Errors
/// `Config` where nothing is lost, and what kept the source from being asked.
pub async fn require_gap(cx: &Cx, source: &dyn Source, stream: &str, current: Option<&Checkpoint>) -> Result<()> {
    let Some(current) = current else { return Ok(()) };
    let halted = current.halted.as_ref();
    if halted.is_some_and(|halted| halted.code == ErrorKind::PositionLost.code()) {
        return Ok(());
    }
    let (Some(position), Some(pedigree)) = (&current.position, &current.pedigree) else { return Ok(()) };
    let remedy = match halted {
        Some(halted) if halted.change.is_some() => {
            "pass over the change that halted it with `watchkeeper skip STREAM`, or deal with the cause and `watchkeeper resume STREAM`"
        }
        Some(_) => "deal with what halted it, and `watchkeeper resume STREAM`",
        None => "leave it as it is, or move its checkpoint with `watchkeeper checkpoint set`",
    };
    match source.verify(cx, position, pedigree).await {
        Err(error) if error.kind() == ErrorKind::PositionLost => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            let cause = format!("stream {stream} has lost no history: there is no gap to accept");
            Err(Error::config(cause).remedy(remedy))
        }
    }
}

/// What a person should know of versioned sinks before a stream goes on in another log than that of its checkpoint, whose versions may be
/// lower: new changes of known keys would be taken for old ones.
pub fn outranked(sinks: &[(String, SinkProfile)]) -> Vec<String> {
    let versioned = sinks.iter().filter(|(_, profile)| profile.grade == Grade::Versioned);
    let sentence = |(name, _): &(String, SinkProfile)| {
        format!(
            "Sink {name} keeps the newest version of each key. If the log is that of an older server than before, it ignores NEW changes too: empty its target first, then copy anew."
        )
    };
    versioned.map(sentence).collect()
}

/// What each sink that will swallow a replay does with it, in a sentence. Transactional and fenced
/// sinks are not among them: the replay comes under a new epoch, so they take it, and so do plain ones.
pub fn swallowing(sinks: &[(String, SinkProfile)]) -> Vec<String> {
    let sentence = |(name, profile): &(String, SinkProfile)| match profile.grade {
        Grade::Versioned => Some(format!(
            "Sink {name} keeps the newest version of each key and will ignore every replayed change that is not newer than what it has."
        )),
        Grade::Idempotent => Some(format!(
            "Sink {name} recognises changes that it has seen and will drop replayed ones within its duplicate window."
        )),
        Grade::Plain | Grade::Fenced | Grade::Transactional => None,
        // Of a grade that is not in this list yet, a person should not expect more.
        _ => Some(format!("Sink {name} may ignore replayed changes.")),
    };
    sinks.iter().filter_map(sentence).collect()
}
