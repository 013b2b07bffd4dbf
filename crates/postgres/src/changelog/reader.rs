//! The open log.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Cx, Finding, Limits, Moment, Position, Result, Source, Window,
};

use super::pedigree::require_unpruned;
use super::position::LogPosition;
use super::query::{Line, LogInfo, LogQuery, Script};
use super::read::{self, Draft};
use super::snapshot::Snapshot;
use super::{ChangeLog, check, durable, outbox, retention};
use crate::client::ChangeHints;
use crate::error::unchanged;

/// Questions are larger than batches: each costs the server a plan.
const ROWS_PER_ASK: usize = 4_000;

/// A connection keeps a buffer of the size of the largest row that it has received, for as long as it lives. After a row of this size it
/// is replaced, so that the row is not held once more while it is delivered.
const LARGE_ROW: usize = 8 << 20;

/// How often an acknowledgement is written: each is a write to the application's own database.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// How often a quiet log tells that its position has moved. Every commit in the database moves it, those of positions too.
const IDLE_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked whether the tables of a quiet log are still logged.
const TABLES_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked whether there is something new, beside hints.
const INSPECT_EVERY: Duration = Duration::from_secs(1);

/// What an opening begins with.
pub(super) struct Start {
    pub(super) line: Line,
    pub(super) hints: Option<ChangeHints>,
    /// The first part of the ids of changes.
    pub(super) origin: Arc<str>,
    pub(super) place: LogPosition,
    /// Whether it reads on behalf of the log's consumer, whose acknowledgements it may write.
    pub(super) consumes: bool,
    /// What a person should know of where it begins.
    pub(super) note: Option<String>,
}

pub(super) struct Reader {
    log: ChangeLog,
    script: Script,
    /// `None` after a large row, until more is asked for.
    line: Option<Arc<Line>>,
    hints: Option<ChangeHints>,
    origin: Arc<str>,
    consumes: bool,
    /// What was given out, and the quiet that was seen since.
    place: LogPosition,
    /// What was last known to be pruned, and is no loss to this place.
    pruned: Snapshot,
    /// The question under way, asked ahead where more is known to be there.
    ask: Option<LogQuery>,
    /// Where the window of its answer ends. A place becomes one in that window only with the first change that is given out of
    /// it: what was given out last before has any number, also a higher one.
    target: Option<Snapshot>,
    /// How far the write-ahead log has to be on the disk before anything of the window is given out.
    unflushed: Option<String>,
    /// What was taken of its answer and is not yet given out: kept here, so that a dropped call loses nothing.
    draft: Option<Draft>,
    /// The end that was told last, and when.
    reported: (Position, Moment),
    acknowledged: Option<LogPosition>,
    noted: Moment,
    /// When the tables were last seen to be logged.
    logged: Option<Moment>,
    /// The highest number that was read, or was when a lower one was warned of.
    highest: u64,
    /// What was warned of that partitions are gone.
    parted: Vec<Finding>,
    note: Option<String>,
}

impl Reader {
    pub(super) fn new(cx: &Cx, log: &ChangeLog, start: Start) -> Self {
        let Start { line, hints, origin, place, consumes, note } = start;
        let (script, line, pruned) = (log.script(), Some(Arc::new(line)), Snapshot::nothing());
        let (reported, noted) = ((place.position(), cx.now()), cx.now());
        let (log, ask, draft, acknowledged, highest) = (log.clone(), None, None, None, place.last);
        Self {
            log,
            script,
            line,
            hints,
            origin,
            consumes,
            place,
            pruned,
            ask,
            target: None,
            unflushed: None,
            draft,
            reported,
            acknowledged,
            noted,
            logged: None,
            highest,
            parted: Vec::new(),
            note,
        }
    }

    /// Reads on until a batch is full; `None` when nothing is there.
    async fn read(&mut self, cx: &Cx, limits: Limits) -> Result<Option<Batch>> {
        let answer = self.take(cx, limits).await;
        if answer.is_err() {
            // What was not given out is read again.
            (self.ask, self.target, self.unflushed, self.draft) = (None, None, None, None);
        }
        answer
    }

    async fn take(&mut self, cx: &Cx, limits: Limits) -> Result<Option<Batch>> {
        loop {
            if let Some(end) = self.unflushed.as_ref().filter(|_| self.draft.as_ref().is_some_and(Draft::is_something))
            {
                durable::flush(cx, &self.log.client, end).await?;
                self.unflushed = None;
            }
            let has_large_row = self.line.is_none();
            if self.draft.as_ref().is_some_and(|draft| draft.is_full(limits) || has_large_row && draft.is_something()) {
                return Ok(self.give_out());
            }
            let line = match &self.line {
                Some(line) => line,
                None => self.line.insert(Arc::new(self.log.another_line(cx, &self.place).await?)),
            };
            let (script, place) = (&self.script, &self.place);
            let ask = self.ask.get_or_insert_with(|| {
                // Hints of what the answer will hold are not waited for again.
                self.hints.iter_mut().for_each(ChangeHints::mark_seen);
                LogQuery::send(line, script, place, ROWS_PER_ASK)
            });
            let row = ask.row().await.map_err(|native| self.log.to_error(native))?;
            match row {
                None if ask.is_cut_short() => {
                    self.ask = None;
                    if let Some(batch) = self.give_out() {
                        return Ok(Some(batch));
                    }
                }
                None => return Ok(self.end_window()),
                Some(row) if self.draft.is_none() => self.begin_window(&read::about(&row)?)?,
                Some(row) => {
                    ask.got += 1;
                    let Some(draft) = &mut self.draft else { continue };
                    if !draft.take(&row, self.script.wanted.as_deref())? {
                        self.ask = None;
                        return Ok(self.give_out());
                    }
                    if row.raw_size_bytes() >= LARGE_ROW {
                        (self.ask, self.line) = (None, None);
                    }
                }
            }
        }
    }

    /// The answer begins: a place that has no window gets one up to the moment of the answer.
    fn begin_window(&mut self, about: &LogInfo) -> Result<()> {
        if about.log.is_none() && self.log.is_own() {
            return Err(self.log.uninstalled());
        }
        if about.log.as_ref().is_some_and(|log| **log != *self.origin) {
            return Err(self.log.another());
        }
        if let Some(pruned) = about.pruned.as_ref().filter(|pruned| **pruned != self.pruned) {
            require_unpruned(pruned, &self.place)?;
            self.pruned = pruned.clone();
        }
        if let Some(error) = about.unreachable.as_ref().and_then(|row| outbox::without_transaction(&self.log, row)) {
            return Err(error);
        }
        // The rest of a window that was begun is as certain as what was given out of it.
        self.unflushed = about.unflushed.clone().filter(|_| self.place.target.is_none());
        self.target = Some(self.place.target.clone().unwrap_or_else(|| about.now.clone()));
        self.draft = Some(self.new_draft());
        Ok(())
    }

    fn new_draft(&self) -> Draft {
        let window = LogPosition { target: self.target.clone(), ..self.place.clone() };
        Draft::new(&self.origin, self.log.payload(), window.shared(), self.log.is_own())
    }

    /// Gives out what was taken, if it is anything; the window goes on after it.
    fn give_out(&mut self) -> Option<Batch> {
        let draft = self.draft.take()?;
        let (last, time) = draft.last?;
        (self.place.last, self.place.time) = (last, Some(time).filter(|time| time.0 != 0));
        self.place.target = self.target.clone();
        let batch = draft.finish(self.place.position());
        match &self.ask {
            // All that was asked for is here, so that there is more: the server gets to work on it meanwhile.
            Some(ask) if ask.is_cut_short() => {
                self.ask = self.line.as_ref().map(|line| LogQuery::send(line, &self.script, &self.place, ROWS_PER_ASK));
            }
            Some(_) => self.draft = Some(self.new_draft()),
            None => {}
        }
        Some(batch)
    }

    /// Nothing is left of the window.
    fn end_window(&mut self) -> Option<Batch> {
        self.ask = None;
        self.script.expects_few = true;
        let draft = self.draft.take()?;
        if let Some((last, time)) = draft.last {
            (self.place.last, self.place.time) = (last, Some(time).filter(|time| time.0 != 0));
        }
        // What is not certain yet is looked at again.
        let is_certain = self.unflushed.take().is_none();
        if let Some(target) = self.target.take().filter(|_| is_certain) {
            (self.place.read, self.place.target) = (target, None);
        }
        draft.last.is_some().then(|| draft.finish(self.place.position()))
    }

    /// Waits for a hint, at most until then. Without hints it is looked again after a while.
    async fn wait(&mut self, cx: &Cx, until: Moment) -> Result<()> {
        let Some(hints) = &mut self.hints else {
            cx.clock().sleep_until(until.min(cx.now() + self.log.poll)).await;
            return Ok(());
        };
        let hint = tokio::select! {
            biased;
            hint = hints.changed() => hint,
            () = cx.clock().sleep_until(until.min(cx.now() + INSPECT_EVERY)) => Ok(()),
        };
        if hint.is_err() {
            self.hints = self.log.change_hints(cx).await?;
        }
        Ok(())
    }

    /// When everything is read, a table that is not logged any more is told: what changes in it will not come.
    async fn inspect_tables(&mut self, cx: &Cx) -> Result<()> {
        if self.logged.is_none_or(|logged| cx.now().since(logged) >= TABLES_EVERY) {
            check::require_logged(cx, &self.log).await?;
            if let Some(found) = outbox::restarted(cx, &self.log, self.highest).await? {
                self.warn(&found);
                self.highest = self.place.last;
            }
            self.highest = self.highest.max(self.place.last);
            let parted = check::tables_without_partitions(cx, &self.log).await?;
            parted.iter().filter(|found| !self.parted.contains(found)).for_each(|found| self.warn(found));
            self.parted = parted;
            self.logged = Some(cx.now());
        }
        Ok(())
    }

    fn warn(&self, found: &Finding) {
        tracing::warn!(consumer = %self.log.consumer, remedy = found.remedy, "{}", found.what);
    }

    fn empty(&mut self, cx: &Cx) -> Batch {
        if cx.now().since(self.reported.1) >= IDLE_EVERY {
            self.reported = (self.place.position(), cx.now());
        }
        BatchBuilder::new(Arc::clone(&self.origin), self.log.payload()).finish(self.reported.0.clone())
    }

    async fn write_note(&mut self, cx: &Cx) -> Result<()> {
        let Some(place) = self.acknowledged.clone() else { return Ok(()) };
        retention::note(cx, &self.log, &self.origin, &place).await?;
        self.acknowledged = None;
        self.noted = cx.now();
        retention::prune_some(cx, &self.log).await
    }
}

#[async_trait]
impl ChangeStream for Reader {
    fn position(&self) -> Option<Position> {
        Some(self.reported.0.clone())
    }

    fn opening_note(&self) -> Option<String> {
        self.note.clone()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let until = cx.now() + limits.wait;
        loop {
            if let Some(batch) = cx.run(self.read(cx, limits)).await.map_err(unchanged)? {
                self.reported = (batch.end.clone(), cx.now());
                return Ok(batch);
            }
            self.inspect_tables(cx).await?;
            if cx.now() >= until {
                return Ok(self.empty(cx));
            }
            self.wait(cx, until).await?;
        }
    }

    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        let place = LogPosition::of(position)?;
        self.acknowledged = (self.consumes && self.log.is_own()).then_some(place);
        if cx.now().since(self.noted) < NOTE_EVERY {
            return Ok(());
        }
        self.write_note(cx).await
    }

    /// A log of our own does, until its consumer counts as abandoned, which takes days by default.
    fn holds_back(&self) -> bool {
        self.consumes && self.log.is_own()
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        retention::window(cx, &self.log).await
    }

    async fn close(mut self: Box<Self>, cx: &Cx) -> Result<()> {
        self.write_note(cx).await
    }
}
