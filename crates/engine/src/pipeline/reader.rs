//! Reads ahead of the lanes: a bounded channel of batches, and acknowledgements to the source.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Batch, ChangeStream, Component, Error, Follower, Moment, Position, Result, Task};

use super::opening_state::{Failure, OpeningState};
use crate::checkpoint::interval;
use crate::listener::ending::READING;
use crate::metrics;
use crate::progress::CallProgress;

/// The history window is looked at after so many batches, not before: a takeover must not wait for it.
const INSPECT_AFTER: u64 = 3;

/// And then so often: how much of it is left changes slowly.
const INSPECT_EVERY: Duration = Duration::from_secs(60);

/// How often it is told how far a source is with what exists.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Batches between reader and dispatcher. One, so that one is read while one is delivered.
pub const AHEAD: usize = 1;

/// What was read: a batch, or why nothing can be read after the batches before. Batches are shared pointers, since the channel keeps room for
/// many of what it carries.
pub type ReadResult = Result<Arc<Batch>, Failure>;

/// The task that owns the open source.
pub struct Reader {
    opening_state: Arc<OpeningState>,
    stream: Box<dyn ChangeStream>,
    batches: mpsc::Sender<ReadResult>,
    committed: Follower<Option<Position>>,
    call_progress: Arc<CallProgress>,
    next_seq: u64,
    last_end: Option<Position>,
    /// When the window is looked at again.
    next_inspection: Option<Moment>,
    /// What was warned of, each until it is over, so that it is said once.
    warned: [bool; 3],
    /// When it is told again how far the source is with what exists; `None` once it reads changes.
    next_stage: Option<Moment>,
    staged: bool,
}

enum Turn {
    Read(Result<Arc<Batch>>),
    Acknowledge,
    Stop,
}

impl Reader {
    /// Reads `stream`, which was opened after `from`, into `batches`.
    pub fn new(
        opening_state: Arc<OpeningState>,
        stream: Box<dyn ChangeStream>,
        batches: mpsc::Sender<ReadResult>,
        from: Option<Position>,
    ) -> Self {
        let (committed, call_progress) =
            (opening_state.committed.follow(), opening_state.tenure.progress().call_progress("reader"));
        let next_stage = Some(opening_state.seams.clock.now());
        let (next_inspection, warned) = (None, [false; 3]);
        let (next_seq, last_end, staged) = (0, from, false);
        Self {
            opening_state,
            stream,
            batches,
            committed,
            call_progress,
            next_seq,
            last_end,
            next_inspection,
            warned,
            next_stage,
            staged,
        }
    }

    /// Reads in a task of its own until the opening is halted; acknowledges until `finish`; then closes.
    pub fn start(self, finish: CancellationToken) -> Task<()> {
        Arc::clone(&self.opening_state).spawn_task("reader", self.run(finish))
    }

    async fn run(mut self, finish: CancellationToken) {
        let halt = self.opening_state.halt.clone();
        while let Ok(Some(())) = self.turn(&halt).await {}
        // What is committed while the lanes drain is acknowledged too.
        loop {
            tokio::select! {
                biased;
                () = finish.cancelled() => break,
                changed = self.committed.changed() => if changed.is_err() { break },
            }
            self.acknowledge().await;
        }
        if self.committed.has_news() {
            self.acknowledge().await;
        }
        let call =
            self.opening_state.tenure.call(&self.call_progress, self.opening_state.stream.settings.timeouts.open);
        if let Err(error) = call.run(&Component::Source, self.stream.close(call.cx())).await {
            tracing::debug!(%error, "closing the source failed");
        }
    }

    /// One read or acknowledgement; `None` when it is time to stop.
    async fn turn(&mut self, halt: &CancellationToken) -> Result<Option<()>, ()> {
        let batches = self.batches.clone();
        let permit = tokio::select! {
            biased;
            () = halt.cancelled() => return Ok(None),
            changed = self.committed.changed() => {
                changed.map_err(drop)?;
                self.acknowledge().await;
                return Ok(Some(()));
            }
            permit = batches.reserve() => permit.map_err(drop)?,
        };
        match self.read(halt).await {
            Turn::Read(Ok(batch)) => {
                self.next_seq += 1;
                self.last_end = Some(batch.end.clone());
                self.see(&batch);
                permit.send(Ok(batch));
                self.report_stage();
                if self.next_seq == INSPECT_AFTER
                    || self.next_inspection.is_some_and(|at| self.opening_state.seams.clock.now() >= at)
                {
                    self.inspect_window().await;
                    self.next_inspection = Some(self.opening_state.seams.clock.now() + INSPECT_EVERY);
                }
            }
            Turn::Read(Err(error)) => {
                metrics::source_failed(&self.opening_state.stream.settings.name, error.class());
                match Failure::of(error) {
                    // The stream halts, or goes on behind a gap, right behind what was read: that is delivered first.
                    failure @ (Failure::Stream(_) | Failure::HistoryLost(_)) => {
                        let stream = &self.opening_state.stream.settings.name;
                        tracing::warn!(stream, cause = %failure, "the source cannot go on; what was read is delivered first");
                        permit.send(Err(failure));
                    }
                    failure => self.opening_state.fail(failure),
                }
                return Ok(None);
            }
            Turn::Acknowledge => self.acknowledge().await,
            Turn::Stop => return Ok(None),
        }
        Ok(Some(()))
    }

    /// The next batch. Reading is cancel safe, so an acknowledgement may interrupt it.
    async fn read(&mut self, halt: &CancellationToken) -> Turn {
        let (settings, seq, before) = (&self.opening_state.stream.settings, self.next_seq, self.last_end.clone());
        let call = self.opening_state.tenure.call(&self.call_progress, settings.limits.wait + settings.timeouts.read);
        tokio::select! {
            biased;
            () = halt.cancelled() => Turn::Stop,
            changed = self.committed.changed() => match changed {
                Ok(()) => Turn::Acknowledge,
                Err(_) => Turn::Read(Err(Error::internal("the board is gone"))),
            },
            read = call.run(&Component::Source, self.stream.next_batch(call.cx(), settings.limits)) => Turn::Read(read.map(|batch| numbered(batch, seq, before))),
        }
    }

    /// Notes that the source can be read, what it is busy with, and the newest change that is known of.
    fn see(&self, batch: &Batch) {
        self.opening_state.health.mark_recovered(READING);
        self.opening_state.health.read(!batch.rows().is_empty());
        self.opening_state.health.set_stage(self.stream.stage());
        let row = batch.rows().last().map(|row| row.time);
        row.or(batch.end.time).into_iter().for_each(|time| self.opening_state.health.see(time));
    }

    /// Tells how far the source is with what exists, until that is over. A stream that reads changes never goes back to it.
    fn report_stage(&mut self) {
        let now = self.opening_state.seams.clock.now();
        let (Some(_), Some(end)) = (self.next_stage.filter(|at| now >= *at), &self.last_end) else { return };
        let stream = &self.opening_state.stream.settings.name;
        match self.opening_state.stream.source.stage(end) {
            Some(stage) => {
                metrics::stage_seen(stream, stage.done, stage.of.unwrap_or(0));
                tracing::info!(stream, done = stage.done, of = stage.of, "{}", stage.what);
                (self.next_stage, self.staged) = (Some(now + REPORT_EVERY), true);
            }
            None => {
                if self.staged {
                    metrics::stage_seen(stream, 0, 0);
                    tracing::info!(stream, "everything that existed was read; the changes since go on");
                }
                self.next_stage = None;
            }
        }
    }

    /// Warns when checkpoints are committed too seldom for the source's history, when that is short, or when little of it is left.
    async fn inspect_window(&mut self) {
        if self.stream.holds_back() {
            return;
        }
        let settings = &self.opening_state.stream.settings;
        let call = self.opening_state.tenure.call(&self.call_progress, settings.timeouts.read);
        let Ok(window) = call.run(&Component::Source, self.stream.window(call.cx())).await else { return };
        window.newest.into_iter().for_each(|newest| self.opening_state.health.see(newest));
        let at =
            self.opening_state.committed.get().as_ref().or(self.last_end.as_ref()).and_then(|position| position.time);
        metrics::history_seen(&settings.name, &window, at);
        let Some(length) = window.length() else { return };
        let findings = [
            interval::check(settings.checkpoint.every, length),
            interval::check_window(length),
            at.and_then(|at| interval::check_headroom(&window, at)),
        ];
        for (index, finding) in findings.into_iter().enumerate() {
            let Some(finding) = finding else {
                self.warned[index] = false;
                continue;
            };
            if !std::mem::replace(&mut self.warned[index], true) {
                let remedy = finding.remedy.unwrap_or_default();
                tracing::warn!(stream = settings.name, remedy, "{}", finding.what);
            }
        }
    }

    /// Tells the source what it may prune. An error costs only space: the next one says it again.
    async fn acknowledge(&mut self) {
        let Some(position) = self.committed.see().clone() else { return };
        let call =
            self.opening_state.tenure.call(&self.call_progress, self.opening_state.stream.settings.timeouts.read);
        if let Err(error) = call.run(&Component::Source, self.stream.acknowledge(call.cx(), &position)).await {
            tracing::debug!(%error, "an acknowledgement failed");
        }
    }
}

fn numbered(mut batch: Batch, seq: u64, before: Option<Position>) -> Arc<Batch> {
    batch.seq = seq;
    batch.before = before;
    Arc::new(batch)
}
