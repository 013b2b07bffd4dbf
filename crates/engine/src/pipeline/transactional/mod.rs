//! Changes and checkpoint in one transaction: exactly once.
//!
//! One transaction at a time, in source order, past the lanes. Other sinks are written and flushed
//! before. A transaction whose answer was lost is repeated unchanged until it is known: the next one
//! would otherwise be taken for it. Only one that takes longer than it may, again and again, is given up, and
//! what comes after is cut smaller: see [`AdaptiveBatchSize`].
//!
//! Batches are cut by the checkpoint policy and by [`AdaptiveBatchSize`] only; barriers need no waiting, since nothing
//! runs in parallel. A position that moved without changes is committed as a transaction without rows.
//!
//! * **Unknown outcome.** The transaction is repeated unchanged; the store recognises by the sequence number whether it
//!   took effect. One that is given up in doubt ends the tenure, whatever failed before.
//! * **Too slow.** A transaction that exceeds its time again and again (`Error::is_late`) is given up, and the batch
//!   size, which outlasts the tenure, is halved. If all answers say that nothing remains of it, the stream is reopened;
//!   if it may have taken effect, a new tenure fences it.
//! * **Rejected rows.** `Rejected` changed nothing. The rows are taken out, their ledger entries are added, and the
//!   transaction is repeated. If a row stops the stream and other rows of its piece precede it, the opening ends and
//!   the piece is read again and cut right before that row, so the stream halts with that row as the next change.

mod batch_size;
mod dead_letters;
mod rejection;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{
    Batch, Change, ChangeStream, CheckpointWrite, Component, Error, ErrorKind, Fault, FaultKind, Follower, LedgerKind,
    Moment, Position, Reason, Task, Transacted, TransactionalWriter,
};

pub use self::batch_size::AdaptiveBatchSize;
use self::batch_size::UnansweredAttempts;
use super::committer::Committer;
use super::cut::{cut, split_at};
use super::dispatch::Halted;
use super::flusher;
use super::lanes::Job;
use super::opening::{BeforeLastCommit, End};
use super::opening_state::{Failure, OpeningState};
use super::reader::{AHEAD, ReadResult, Reader};
use super::replay::{DeadLetterRequest, DeadLetters};
use super::sink_delivery::{BEHIND, SinkDelivery, is_barrier};
use crate::delivery::parking::{Parked, entry_for};
use crate::log_limit::span;
use crate::progress::CallProgress;
use crate::settings::RetrySettings;
use crate::stream::SinkSpec;

/// What a transactional opening needs.
pub struct Transactional {
    /// The shared state.
    pub opening_state: Arc<OpeningState>,
    /// The ways to the other sinks.
    pub deliveries: Arc<[Arc<SinkDelivery>]>,
    /// The transactional sink.
    pub spec: SinkSpec,
    /// Its place among the stream's sinks.
    pub index: usize,
    /// Its writer.
    pub writer: Box<dyn TransactionalWriter>,
    /// The tenure's committer.
    pub committer: Arc<Mutex<Committer>>,
    /// The ledger, for replays.
    pub letters: DeadLetters,
    /// The committed position that the source was opened after.
    pub from: Option<Position>,
    /// What people ask of the dead letters.
    pub requests: Follower<Vec<DeadLetterRequest>>,
    /// Keys of the transactional sink that wait for a replay.
    pub parked: Parked,
    /// Marks the transaction under way.
    pub call_progress: Arc<CallProgress>,
    /// How much is written at once, as it was learned in this and earlier tenures.
    pub adaptive_size: Arc<AdaptiveBatchSize>,
}

impl Transactional {
    /// Runs the open source `stream` until it fails, the tenure is over, or `leave` asks for a
    /// hand-over: then the transaction under way is finished within `grace`.
    pub async fn run(
        mut self,
        stream: Box<dyn ChangeStream>,
        leave: &CancellationToken,
        grace: Duration,
        before_last_commit: BeforeLastCommit<'_>,
    ) -> End {
        let opening_state = Arc::clone(&self.opening_state);
        let committer = Arc::clone(&self.committer);
        let mut committer = committer.lock().await;
        let (sender, mut batches) = mpsc::channel(AHEAD);
        let finish_reading = CancellationToken::new();
        let reader = Reader::new(Arc::clone(&opening_state), stream, sender, self.from.clone());
        let mut reader = reader.start(finish_reading.clone());

        let worked = self.work(&mut committer, &mut batches, leave);
        let limit = async {
            leave.cancelled().await;
            opening_state.tenure.sleep(grace).await;
        };
        let cut_off = tokio::select! {
            biased;
            _ = opening_state.tenure.over() => return End::lost(),
            Halted = worked => false,
            () = limit => true,
        };
        opening_state.halt.cancel();
        drop(batches);
        before_last_commit.await;
        if !cut_off {
            self.close(&mut committer, &finish_reading, &mut reader).await;
        }
        let abandoned = cut_off || opening_state.is_spoiled();
        End { failure: opening_state.take_failure(), abandoned, cut_off, in_flight: opening_state.in_flight() }
    }

    async fn close(&mut self, committer: &mut Committer, finish_reading: &CancellationToken, reader: &mut Task<()>) {
        if let Err(failure) = self.commit_idle(committer, Reason::Final).await {
            self.opening_state.fail(failure);
        }
        let cx = self.opening_state.tenure.cx().within(self.opening_state.stream.settings.timeouts.open);
        if let Err(error) = cx.run(self.writer.close(&cx)).await {
            tracing::debug!(sink = self.spec.name, %error, "closing a sink failed");
        }
        finish_reading.cancel();
        let _ = self.opening_state.tenure.until_over(reader.join()).await;
    }

    async fn work(
        &mut self,
        committer: &mut Committer,
        batches: &mut mpsc::Receiver<ReadResult>,
        leave: &CancellationToken,
    ) -> Halted {
        let mut due = self.next_due();
        loop {
            if let Err(failure) = self.serve_request(committer).await {
                self.opening_state.fail(failure);
                return Halted;
            }
            let batch = tokio::select! {
                biased;
                () = leave.cancelled() => return Halted,
                () = self.opening_state.halt.cancelled() => return Halted,
                changed = self.requests.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Halted,
                },
                batch = batches.recv() => batch,
                () = committer.history_overdue() => {
                    super::checkpointer::write_history(&self.opening_state, committer).await;
                    continue;
                }
            };
            let taken = match batch {
                Some(Ok(batch)) => self.take(committer, batch, &mut due, leave).await,
                Some(Err(failure)) => Err(failure),
                None => return Halted,
            };
            if let Err(failure) = taken {
                self.opening_state.fail(failure);
                return Halted;
            }
        }
    }

    fn next_due(&self) -> Moment {
        self.opening_state.seams.clock.now() + self.opening_state.stream.settings.checkpoint.every
    }

    async fn take(
        &mut self,
        committer: &mut Committer,
        batch: Arc<Batch>,
        due: &mut Moment,
        leave: &CancellationToken,
    ) -> Result<(), Failure> {
        if batch.is_empty() {
            let passed = {
                let mut safe = self.opening_state.safe();
                safe.admit(batch, 0..0, Vec::new());
                let mark = safe.mark();
                safe.advance(mark)
            };
            self.opening_state.draft().extend(passed);
            if self.opening_state.seams.clock.now() >= *due {
                self.commit_idle(committer, Reason::Progress).await?;
                *due = self.next_due();
            }
            return Ok(());
        }
        let wanted = self.opening_state.stream.settings.checkpoint.events;
        let pieces = cut(&batch, self.adaptive_size.within(wanted), false);
        for rows in split_at(&batch, pieces, self.adaptive_size.before_rejected()) {
            if leave.is_cancelled() {
                break;
            }
            let size = rows.len();
            self.transact(committer, &batch, rows).await?;
            self.adaptive_size.passed(size);
            *due = self.next_due();
        }
        Ok(())
    }

    /// Commits a position that moved without changes.
    async fn commit_idle(&mut self, committer: &mut Committer, reason: Reason) -> Result<(), Failure> {
        let draft = std::mem::take(&mut *self.opening_state.draft());
        if !committer.is_moved_by(&draft) {
            return Ok(());
        }
        let write = committer.draft_write(draft, reason, None);
        let empty = watchkeeper_core::BatchBuilder::new("".into(), self.opening_state.stream.source.payload());
        let end = watchkeeper_core::Position::new(Vec::new(), None);
        self.commit(committer, &Arc::new(empty.finish(end)), Vec::new(), write, None).await
    }

    /// One piece. Where a change of it is rejected, what comes before is committed first: the piece is read again, and cut there.
    async fn transact(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        rows: Range<u32>,
    ) -> Result<(), Failure> {
        let transacted = self.write_piece(committer, batch, rows.clone()).await;
        transacted.map_err(|failure| self.cut_before_rejected(batch, rows, failure))
    }

    /// The other sinks first, then changes and checkpoint together.
    async fn write_piece(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        rows: Range<u32>,
    ) -> Result<(), Failure> {
        let first = rows.start;
        self.opening_state.set_transacting(Some(batch.rows()[first as usize].time));
        let piece = self.opening_state.safe().admit(Arc::clone(batch), rows.clone(), vec![first]);
        let job = Job { piece, part: 0, batch: Arc::clone(batch), rows: rows.collect() };
        for delivery in &*self.deliveries {
            delivery.deliver(&self.opening_state, 0, &job).await?;
        }
        if !self.deliveries.is_empty() {
            flusher::flush(&self.opening_state, &self.deliveries).await?;
        }
        let wanted = self.select(&job)?;
        let passed = {
            let mut safe = self.opening_state.safe();
            safe.done(piece, 0);
            let mark = safe.mark();
            safe.advance(mark)
        };
        let mut draft = std::mem::take(&mut *self.opening_state.draft());
        draft.extend(passed);
        let write = committer.draft_write(draft, Reason::Progress, None);
        self.commit(committer, batch, wanted, write, Some(&job)).await
    }

    /// Leaves out what the filter drops, and what has to wait for its key: that goes to the ledger.
    fn select(&mut self, job: &Job) -> Result<Vec<u32>, Failure> {
        // A filter is somebody's code: one that blocks must be seen to.
        let call_progress = Arc::clone(&self.call_progress);
        let _mark = call_progress
            .call(self.opening_state.seams.clock.now() + self.opening_state.stream.settings.timeouts.write);
        let mirrors = self.spec.filter.is_some() && self.spec.sink.profile().mirrors;
        let mut wanted = Vec::with_capacity(job.rows.len());
        for row in job.rows.iter().copied() {
            if !self.spec.takes(mirrors, &job.batch, row) {
                continue;
            }
            let key = job.batch.key(row);
            if self.parked.entries() > 0 && is_barrier(&job.batch, row) && self.acts_on_barriers() {
                return Err(self.too_soon(&job.batch, (job.piece, row)));
            }
            if key.is_some_and(|key| self.parked.is_parked(job.batch.namespace(row), key)) {
                let entry = self.entry(&job.batch, row, LedgerKind::Parked, BEHIND);
                self.parked.park(&entry);
                self.opening_state.safe().note(job.piece, row, self.index, entry);
            } else {
                wanted.push(row);
            }
        }
        Ok(wanted)
    }

    fn entry(&self, batch: &Arc<Batch>, row: u32, kind: LedgerKind, cause: &str) -> watchkeeper_core::LedgerEntry {
        let before = batch.position_before(row);
        entry_for(kind, &self.spec.name, &Change::new(Arc::clone(batch), row), cause, before)
    }

    /// Repeats one transaction until it is known what became of it. It is that of `job`, of which less would do, or has no changes of the
    /// stream's own.
    async fn commit(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        mut rows: Vec<u32>,
        mut write: CheckpointWrite,
        job: Option<&Job>,
    ) -> Result<(), Failure> {
        let (size, piece) = job.map_or((0, 0), |job| (job.rows.len(), job.piece));
        self.opening_state.set_committing(size as u64);
        let stream = Arc::clone(&self.opening_state.stream);
        let settings = &stream.settings;
        let component = Component::Sink(self.spec.name.as_str().into());
        let (mut tries, mut retries, began) = (UnansweredAttempts::default(), 0, self.opening_state.seams.clock.now());
        loop {
            let call = self.opening_state.tenure.call(&self.call_progress, settings.timeouts.write);
            let answer = call.run(&component, self.writer.write_and_commit(call.cx(), batch, &rows, &write)).await;
            drop(call);
            match answer {
                Ok(Transacted::Committed | Transacted::AlreadyDone) => {
                    self.adaptive_size.succeeded(size);
                    committer.record(&write);
                    self.opening_state.set_committing(0);
                    self.opening_state.set_transacting(None);
                    self.opening_state.health.mark_recovered(PART);
                    self.opening_state.committed.publish(committer.position().cloned());
                    super::checkpointer::write_history(&self.opening_state, committer).await;
                    return Ok(());
                }
                Ok(Transacted::Fenced) => return Err(committer.fenced()),
                Ok(Transacted::Rejected(faults)) if may_retry(&faults, settings.retry, retries, job.is_none()) => {
                    let waited = self.opening_state.seams.clock.now().since(began);
                    if waited > settings.give_up && self.opening_state.has_healthy_peer() {
                        let cause =
                            format!("sink {:?} has not taken a change for {} from here", self.spec.name, span(waited));
                        return Err(Failure::Instance(Error::unavailable(cause)));
                    }
                    if let Some(Fault { error, .. }) = faults.first() {
                        if let Some(due) = self.opening_state.health.log_due(PART, error) {
                            let (stream, sink, attempt) = (&settings.name, &self.spec.name, retries + 1);
                            let left_out = due.left_out;
                            tracing::warn!(stream, sink, %error, attempt, left_out, "a sink did not take a change; the transaction is repeated");
                        }
                        self.opening_state.health.fail(PART, error);
                    }
                    let delay = settings.retry.backoff.delay(retries, &self.opening_state.seams.entropy);
                    retries += 1;
                    self.opening_state.tenure.sleep(delay).await;
                }
                Ok(Transacted::Rejected(faults)) => {
                    retries = 0;
                    self.opening_state.health.mark_recovered(PART);
                    self.reject_all((batch, piece), &mut rows, &mut write, faults)?;
                }
                Err(error) => {
                    if self.opening_state.tenure.loss().is_some() {
                        return Err(Failure::Lost);
                    }
                    if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
                        // The next transaction of this tenure could be taken for this one, so it is not repeated here.
                        return Err(match Failure::of(error) {
                            Failure::Transient(error) => Failure::Instance(error),
                            failure => failure,
                        });
                    }
                    tries.note(&error);
                    if rows.len() > 1 && tries.are_over() && self.adaptive_size.shrink(size) {
                        return Err(self.give_up(&tries, size, error));
                    }
                    let waited = self.opening_state.seams.clock.now().since(began);
                    if waited > settings.give_up && self.opening_state.has_healthy_peer() {
                        return Err(Failure::Instance(error));
                    }
                    self.opening_state.health.fail(PART, &error);
                    self.log_repeated(&error);
                    let delay = settings.retry.backoff.delay(tries.failed - 1, &self.opening_state.seams.entropy);
                    self.opening_state.tenure.sleep(delay).await;
                }
            }
        }
    }

    /// Logs that a transaction is repeated: each cause once a minute.
    fn log_repeated(&self, error: &Error) {
        let Some(due) = self.opening_state.health.log_due(PART, error) else { return };
        let (stream, sink, left_out) = (&self.opening_state.stream.settings.name, &self.spec.name, due.left_out);
        match error.kind() {
            ErrorKind::Unknown => {
                tracing::warn!(stream, sink, %error, left_out, "a transaction was not answered; it is repeated unchanged");
            }
            _ => tracing::warn!(stream, sink, %error, left_out, "a transaction failed; it is repeated unchanged"),
        }
    }

    /// The end of an opening whose transaction takes too long: what it would have written is read again and cut smaller. Where nothing
    /// of it remains for certain, that is the same tenure. Where it may have taken effect after all, the next one would be taken for
    /// it: a new tenure fences it, and reads what is so.
    fn give_up(&self, tries: &UnansweredAttempts, size: usize, error: Error) -> Failure {
        let (stream, sink, next) =
            (&self.opening_state.stream.settings.name, &self.spec.name, self.adaptive_size.within(None));
        tracing::warn!(stream, sink, changes = size, next, %error, "a transaction takes too long; the next ones are smaller");
        if tries.doubtful { Failure::Instance(error) } else { Failure::Transient(error) }
    }
}

/// What fails when a transaction is not answered.
const PART: &str = "transaction";

/// Whether rows that a transaction did not take are tried once more before they count as rejected. Attempts at a dead letter always
/// count: the stream waits meanwhile, and the letter stays where it is.
fn may_retry(faults: &[Fault], retry: RetrySettings, retries: u32, is_letter: bool) -> bool {
    let has = |kind| faults.iter().any(|fault| fault.kind == kind);
    let is_counted = is_letter || retry.attempts.is_some() || has(FaultKind::Panic);
    (has(FaultKind::Retry) || has(FaultKind::Panic)) && (!is_counted || retries + 1 < retry.counted_attempts())
}
