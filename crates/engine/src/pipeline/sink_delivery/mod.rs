//! Brings rows to one sink: filter, parked keys, breaker, attempts, rejections.
//!
//! Retry and breaker are one state machine per sink, shared by all its lanes. A write is repeated
//! unchanged until it is answered; only what the sink says of a single row counts against that row.
//!
//! A write is bounded by its timeout and by the lease, and is asked to answer at least twice per commit interval
//! (`Cx::progress_every`). If the sink reports an accepted prefix, delivery continues after it. Before a call that was
//! not answered is repeated, delivery waits for the sink's `settle` if the sink is exposed to late writes.
//!
//! A change without a key that the sink acts on (such as a truncate) halts the stream while dead letters wait: replayed
//! after it, they would undo it. A rejected or fatal row halts the stream as the first change after the checkpoint: the
//! other sinks first receive what precedes it. `Halted::change` names the change and `skip` refuses any other, so an
//! operator who follows the halt's remedy loses nothing else.

mod dead_letters;
mod rejection;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use watchkeeper_core::{
    Batch, Change, Component, Error, ErrorKind, Fault, FaultKind, FlushRejection, LedgerKind, LedgerRecord, Operation,
    SinkProfile, SinkWriter, Written,
};

use super::lanes::Job;
use super::opening_state::{Failure, OpeningState};
use super::safe_point::PieceNumber;
use crate::delivery::breaker::{Breaker, BreakerState, Permit};
use crate::delivery::parking::{OnReject, Park, ParkLimits, Parked, entry_for};
use crate::log_limit::span;
use crate::progress::CallProgress;
use crate::stream::SinkSpec;

/// The way to one sink.
#[derive(Debug)]
pub struct SinkDelivery {
    /// Its place among the stream's sinks.
    index: usize,
    /// Whether rows are done when this one has them.
    last: bool,
    spec: SinkSpec,
    /// Whom errors of its calls name.
    component: Component,
    profile: SinkProfile,
    writer: Arc<dyn SinkWriter>,
    /// One per lane, and one for flushes.
    pulses: Vec<Arc<CallProgress>>,
    breaker: Mutex<Breaker>,
    /// What fails when it does not answer.
    part: String,
    parked: Mutex<Parked>,
}

/// A job as one sink sees it: the rows that are still to be written.
struct Load<'a> {
    job: &'a Job,
    rows: Cow<'a, [u32]>,
    /// Attempts at the first of the rows.
    attempts: u32,
    /// Attempts in a row that the sink did not answer.
    unanswered: u32,
}

impl SinkDelivery {
    /// The way to the sink `spec`, number `index` of `of`, that `writer` was opened for.
    pub fn new(
        opening_state: &OpeningState,
        (index, of): (usize, usize),
        spec: SinkSpec,
        writer: Arc<dyn SinkWriter>,
        letters: &[LedgerRecord],
    ) -> Self {
        let lanes = opening_state.stream.settings.concurrency;
        let call_progress = |_| opening_state.tenure.progress().call_progress("dispatcher");
        let mut parked = parking_of(&spec);
        parked.restore(letters);
        Self {
            index,
            last: index + 1 == of,
            profile: spec.sink.profile(),
            writer,
            pulses: (0..=lanes).map(call_progress).collect(),
            breaker: Mutex::new(Breaker::new(opening_state.stream.settings.breaker)),
            parked: Mutex::new(parked),
            component: Component::Sink(spec.name.as_str().into()),
            part: format!("sink {}", spec.name),
            spec,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its writer.
    pub fn writer(&self) -> &Arc<dyn SinkWriter> {
        &self.writer
    }

    /// Whether a flush costs nothing.
    pub fn is_durable(&self) -> bool {
        self.profile.durable_writes
    }

    /// The keys that wait for a replay.
    pub fn parked(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a job: returns when the sink has accepted every row, or it stands in the ledger.
    pub async fn deliver(&self, opening_state: &OpeningState, lane: usize, job: &Job) -> Result<(), Failure> {
        let rows = self.select(opening_state, job, Cow::Borrowed(&job.rows))?;
        let mut load = Load { job, rows, attempts: 0, unanswered: 0 };
        while !load.rows.is_empty() {
            self.wait_for_breaker(opening_state).await?;
            let chunk = &load.rows[..load.rows.len().min(self.profile.rows_max)];
            let call = opening_state.tenure.call(&self.pulses[lane], opening_state.stream.settings.timeouts.write);
            // What is done by then can be committed. Half of the interval, since commits have a rhythm of their own.
            let cx = call.cx().with_progress_every(opening_state.stream.settings.checkpoint.every / 2);
            let answer = call.run(&self.component, self.writer.write(&cx, lane, &job.batch, chunk)).await;
            drop(call);
            match answer {
                Ok(written) => self.take(opening_state, &mut load, written).await?,
                Err(error) => self.retry_or_fail(opening_state, &mut load, error).await?,
            }
        }
        Ok(())
    }

    /// Leaves out what the filter drops, and what has to wait for its key: that goes to the ledger.
    fn select<'a>(
        &self,
        opening_state: &OpeningState,
        job: &Job,
        rows: Cow<'a, [u32]>,
    ) -> Result<Cow<'a, [u32]>, Failure> {
        let letters_wait = self.parked().entries() > 0;
        if self.spec.filter.is_none() && !letters_wait {
            return Ok(rows);
        }
        // A filter is somebody's code: one that blocks must be seen to.
        let _mark = self.pulses[0].call(opening_state.seams.clock.now() + opening_state.stream.settings.timeouts.write);
        let mut kept = Vec::with_capacity(rows.len());
        for row in rows.iter().copied() {
            if !self.spec.takes(self.profile.mirrors, &job.batch, row) {
                continue;
            }
            let key = job.batch.key(row);
            if letters_wait && self.profile.acts_on_barriers && is_barrier(&job.batch, row) {
                opening_state.safe().block(job.piece, row);
                return Err(Failure::Stream(before_letters(&self.spec.name, &job.batch, row)));
            }
            if key.is_some_and(|key| self.parked().is_parked(job.batch.namespace(row), key)) {
                self.note(opening_state, job.piece, &job.batch, row, LedgerKind::Parked, BEHIND);
            } else {
                kept.push(row);
            }
        }
        self.check_limit()?;
        Ok(Cow::Owned(kept))
    }

    fn note(
        &self,
        opening_state: &OpeningState,
        piece: PieceNumber,
        batch: &Arc<Batch>,
        row: u32,
        kind: LedgerKind,
        cause: &str,
    ) {
        let change = Change::new(Arc::clone(batch), row);
        let before = batch.position_before(row);
        let entry = entry_for(kind, &self.spec.name, &change, cause, before);
        if opening_state.safe().note(piece, row, self.index, entry.clone()) {
            self.parked().park(&entry);
        }
    }

    /// Takes in how far a write came.
    async fn take(&self, opening_state: &OpeningState, load: &mut Load<'_>, written: Written) -> Result<(), Failure> {
        if written.done == 0 && written.stopped.is_none() {
            let cause = format!("sink {:?} neither wrote nor refused", self.spec.name);
            return Err(Failure::Instance(Error::internal(cause)));
        }
        let target_failed = written.stopped.as_ref().is_some_and(|fault| is_of_target(opening_state, fault));
        if written.done > 0 || !target_failed {
            self.breaker().success(opening_state.seams.clock.now());
            opening_state.health.mark_recovered(&self.part);
            load.unanswered = 0;
        }
        if written.done > 0 {
            load.attempts = 0;
        }
        self.take_rejected(opening_state, load, written.done, written.rejected)?;
        let rest = load.rows[written.done..].to_vec();
        if let Some(row) = rest.first() {
            self.done_before(opening_state, load.job, *row);
        }
        load.rows = self.select(opening_state, load.job, Cow::Owned(rest))?;
        match written.stopped {
            None => Ok(()),
            Some(fault) if fault.kind == FaultKind::Fatal => {
                let change_id = load.job.batch.id(fault.row).to_string().into_boxed_str();
                Err(Failure::Fatal { change_id, error: fault.error })
            }
            Some(fault) if target_failed => self.repeat_later(opening_state, load, &fault.error).await,
            Some(fault) => self.try_row_again(opening_state, load, fault).await,
        }
    }

    fn done_before(&self, opening_state: &OpeningState, job: &Job, row: u32) {
        if self.last {
            opening_state.safe().done_before(job.piece, job.part, row);
        }
    }

    /// Waits before the next attempt at a row, or gives it up.
    async fn try_row_again(
        &self,
        opening_state: &OpeningState,
        load: &mut Load<'_>,
        fault: Fault,
    ) -> Result<(), Failure> {
        let retry = &opening_state.stream.settings.retry;
        load.attempts += 1;
        if load.attempts < retry.counted_attempts() {
            tracing::debug!(sink = self.spec.name, error = %fault.error, attempt = load.attempts, "trying a change again");
            let delay = retry.backoff.delay(load.attempts - 1, &opening_state.seams.entropy);
            return self.wait_before_retry(opening_state, delay).await;
        }
        load.attempts = 0;
        let row = fault.row;
        let cause = format!("given up after {} attempts: {}", retry.counted_attempts(), fault.error.message());
        self.reject(opening_state, load.job, Fault { error: Error::new(fault.error.kind(), cause), ..fault })?;
        let rest = load.rows.iter().copied().filter(|at| *at != row).collect();
        load.rows = self.select(opening_state, load.job, Cow::Owned(rest))?;
        Ok(())
    }

    /// Decides what to do after the sink did not answer.
    async fn retry_or_fail(
        &self,
        opening_state: &OpeningState,
        load: &mut Load<'_>,
        error: Error,
    ) -> Result<(), Failure> {
        if opening_state.tenure.loss().is_some() {
            return Err(Failure::Lost);
        }
        match error.kind() {
            ErrorKind::Unavailable => {}
            // The abandoned call may still take effect; at an exposed sink it must not do so out of turn.
            ErrorKind::Unknown if self.profile.grade.is_exposed() => {
                // Whoever ends this wait early, by failing elsewhere, finds the moment on the tenure.
                opening_state.tenure.unsettle(opening_state.seams.clock.now() + self.profile.settle);
                self.wait_before_retry(opening_state, self.profile.settle).await?;
            }
            ErrorKind::Unknown => {}
            _ => return Err(Failure::of(error)),
        }
        self.repeat_later(opening_state, load, &error).await
    }

    /// Waits before the same rows are written again, for as long as the breaker says.
    async fn repeat_later(
        &self,
        opening_state: &OpeningState,
        load: &mut Load<'_>,
        error: &Error,
    ) -> Result<(), Failure> {
        if let Some(due) = opening_state.health.log_due(&self.part, error) {
            self.log_repeated(opening_state, load.unanswered + 1, error, due.left_out);
        }
        self.breaker().failure(opening_state.seams.clock.now(), &opening_state.seams.entropy);
        opening_state.health.fail(&self.part, error);
        let delay = opening_state.stream.settings.retry.backoff.delay(load.unanswered, &opening_state.seams.entropy);
        load.unanswered += 1;
        self.wait_before_retry(opening_state, delay).await
    }

    /// Logs that a write is repeated.
    fn log_repeated(&self, opening_state: &OpeningState, attempt: u32, error: &Error, left_out: Option<u64>) {
        let (stream, sink) = (&opening_state.stream.settings.name, &self.spec.name);
        if error.is_late() {
            let timeout = span(opening_state.stream.settings.timeouts.write);
            tracing::warn!(
                stream, sink, %error, attempt, timeout, left_out,
                "a sink or handler took longer than timeouts.write; the write was given up and is repeated. Let it answer sooner, or raise timeouts.write"
            );
        } else {
            tracing::warn!(stream, sink, %error, attempt, left_out, "a sink did not take a change; the write is repeated");
        }
    }

    /// Waits while the breaker is open. Waiting is progress, unless another instance could do better. While a probe is under way
    /// nobody can say that: its answer is waited for.
    async fn wait_for_breaker(&self, opening_state: &OpeningState) -> Result<(), Failure> {
        loop {
            let now = opening_state.seams.clock.now();
            let (permit, open_since, is_probed) = {
                let mut breaker = self.breaker();
                (breaker.permit(now), breaker.open_since(), breaker.state() == BreakerState::HalfOpen)
            };
            let Permit::Wait(until) = permit else { return Ok(()) };
            let give_up = opening_state.stream.settings.give_up;
            let is_overdue = open_since.is_some_and(|since| now.since(since) > give_up);
            if is_overdue && !is_probed && opening_state.has_healthy_peer() {
                let cause = format!("sink {:?} has not answered for {} from here", self.spec.name, span(give_up));
                return Err(Failure::Instance(Error::unavailable(cause)));
            }
            self.wait_before_retry(opening_state, until.since(now).max(MOMENT)).await?;
        }
    }

    /// Waits in the middle of a delivery.
    async fn wait_before_retry(
        &self,
        opening_state: &OpeningState,
        duration: std::time::Duration,
    ) -> Result<(), Failure> {
        tokio::select! {
            biased;
            () = opening_state.failed.cancelled() => {}
            () = opening_state.tenure.sleep(duration) => {}
        }
        match (opening_state.tenure.loss(), opening_state.failed.is_cancelled()) {
            (Some(_), _) => Err(Failure::Lost),
            (None, true) => Err(Failure::Interrupted),
            (None, false) => Ok(()),
        }
    }

    /// Makes everything accepted so far durable.
    pub async fn flush(&self, opening_state: &OpeningState) -> Result<Vec<FlushRejection>, Error> {
        // The pulse behind those of the lanes.
        let call_progress = &self.pulses[self.pulses.len() - 1];
        let call = opening_state.tenure.call(call_progress, opening_state.stream.settings.timeouts.write);
        call.run(&self.component, self.writer.flush(call.cx())).await
    }
}

/// Whether a fault counts against the target and not against its row: what a target does not take now it may take later, unless
/// attempts are numbered.
fn is_of_target(opening_state: &OpeningState, fault: &Fault) -> bool {
    fault.kind == FaultKind::Retry && opening_state.stream.settings.retry.attempts.is_none()
}

/// Why a change that nobody rejected stands in the ledger.
pub const BEHIND: &str = "an earlier change of this key waits";

/// Whether a sink may act on a change without a key. One that tells of a gap does nothing to any row.
pub fn is_barrier(batch: &Batch, row: u32) -> bool {
    let row = &batch.rows()[row as usize];
    row.is_barrier() && row.operation != Operation::Gap
}

/// The error of a change without a key that a sink acts on, while dead letters wait: replayed after it, they would undo what it did.
pub fn before_letters(sink: &str, batch: &Batch, row: u32) -> Error {
    let (id, operation) = (batch.id(row), batch.rows()[row as usize].operation.as_str());
    Error::rejected(format!("sink {sink:?}: {operation} {id} came while dead letters wait, which would undo it later"))
        .remedy("purge the dead letters, or skip this change, and resume the stream")
}

/// The bookkeeping of parked keys that a sink asks for.
pub fn parking_of(spec: &SinkSpec) -> Parked {
    let park = match spec.on_reject {
        OnReject::DeadLetter { park } => park,
        OnReject::Stop | OnReject::Skip => Park::Key,
    };
    Parked::new(&spec.name, park, ParkLimits::default())
}

/// The least wait behind an open breaker, so that a probe under way elsewhere is not polled for.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(10);
