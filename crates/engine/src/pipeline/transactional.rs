//! Changes and checkpoint in one transaction: exactly once.
//!
//! One transaction at a time, in source order, past the lanes. Other sinks are written and flushed
//! before. A transaction whose answer was lost is repeated unchanged until it is known: the next one
//! would otherwise be taken for it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{
    Batch, Change, ChangeStream, CheckpointWrite, Error, ErrorKind, Fault, Follower, LedgerKind, LedgerRecord, Moment,
    Position, Reason, Resolution, Task, Transacted, TransactionalWriter,
};

use super::board::{Board, Draft, Failure};
use super::committer::Committer;
use super::courier::{BEHIND, Courier};
use super::cut::cut;
use super::dispatch::Halted;
use super::flusher;
use super::lanes::Job;
use super::opening::{BeforeLastCommit, End};
use super::reader::{AHEAD, Reader};
use super::replay::{Letters, Wish};
use crate::delivery::parking::{OnReject, Parked, entry_for, replay_order};
use crate::progress::Pulse;
use crate::stream::SinkSpec;

/// What a transactional opening needs.
pub struct Transactional {
    /// The shared state.
    pub board: Arc<Board>,
    /// The ways to the other sinks.
    pub couriers: Arc<[Arc<Courier>]>,
    /// The transactional sink.
    pub spec: SinkSpec,
    /// Its place among the stream's sinks.
    pub index: usize,
    /// Its writer.
    pub writer: Box<dyn TransactionalWriter>,
    /// The tenure's committer.
    pub committer: Arc<Mutex<Committer>>,
    /// The ledger, for replays.
    pub letters: Letters,
    /// The committed position that the source was opened after.
    pub from: Option<Position>,
    /// What people ask of the dead letters.
    pub wishes: Follower<Option<Wish>>,
    /// Keys of the transactional sink that wait for a replay.
    pub parked: Parked,
    /// Marks the transaction under way.
    pub pulse: Arc<Pulse>,
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
        let board = Arc::clone(&self.board);
        let committer = Arc::clone(&self.committer);
        let mut committer = committer.lock().await;
        let (sender, mut batches) = mpsc::channel(AHEAD);
        let finish_reading = CancellationToken::new();
        let reader = Reader::new(Arc::clone(&board), stream, sender, self.from.clone()).run(finish_reading.clone());
        let mut reader = board.crew("reader", reader);

        let worked = self.work(&mut committer, &mut batches, leave);
        let limit = async {
            leave.cancelled().await;
            board.tenure.sleep(grace).await;
        };
        let abandoned = tokio::select! {
            biased;
            _ = board.tenure.over() => return End::lost(),
            Halted = worked => false,
            () = limit => true,
        };
        board.halt.cancel();
        drop(batches);
        before_last_commit.await;
        if !abandoned {
            self.close(&mut committer, &finish_reading, &mut reader).await;
        }
        End { failure: board.take_failure(), abandoned: abandoned || board.is_spoiled() }
    }

    async fn close(&mut self, committer: &mut Committer, finish_reading: &CancellationToken, reader: &mut Task<()>) {
        if let Err(failure) = self.commit_idle(committer, Reason::Final).await {
            self.board.fail(failure);
        }
        let cx = self.board.tenure.cx().within(self.board.stream.settings.timeouts.open);
        if let Err(error) = cx.run(self.writer.close(&cx)).await {
            tracing::debug!(sink = self.spec.name, %error, "closing a sink failed");
        }
        finish_reading.cancel();
        let _ = self.board.tenure.until_over(reader.join()).await;
    }

    async fn work(
        &mut self,
        committer: &mut Committer,
        batches: &mut mpsc::Receiver<Arc<Batch>>,
        leave: &CancellationToken,
    ) -> Halted {
        let mut due = self.next_due();
        loop {
            if let Err(failure) = self.serve_wish(committer).await {
                self.board.fail(failure);
                return Halted;
            }
            let batch = tokio::select! {
                biased;
                () = leave.cancelled() => return Halted,
                () = self.board.halt.cancelled() => return Halted,
                changed = self.wishes.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Halted,
                },
                batch = batches.recv() => batch,
            };
            let Some(batch) = batch else { return Halted };
            let taken = self.take(committer, batch, &mut due, leave).await;
            if let Err(failure) = taken {
                self.board.fail(failure);
                return Halted;
            }
        }
    }

    fn next_due(&self) -> Moment {
        self.board.seams.clock.now() + self.board.stream.settings.checkpoint.every
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
                let mut safe = self.board.safe();
                safe.admit(batch, 0..0, Vec::new());
                let mark = safe.mark();
                safe.advance(mark)
            };
            self.board.draft().extend(passed);
            if self.board.seams.clock.now() >= *due {
                self.commit_idle(committer, Reason::Progress).await?;
                *due = self.next_due();
            }
            return Ok(());
        }
        for piece in cut(&batch, self.board.stream.settings.checkpoint.events, false) {
            if leave.is_cancelled() {
                break;
            }
            self.transact(committer, &batch, piece.rows).await?;
            *due = self.next_due();
        }
        Ok(())
    }

    /// Commits a position that moved without changes.
    async fn commit_idle(&mut self, committer: &mut Committer, reason: Reason) -> Result<(), Failure> {
        let draft = std::mem::take(&mut *self.board.draft());
        if !committer.is_moved_by(&draft) {
            return Ok(());
        }
        let write = committer.draft_write(draft, reason, None);
        let empty = watchkeeper_core::BatchBuilder::new("".into(), self.board.stream.source.payload());
        let end = watchkeeper_core::Position::new(Vec::new(), None);
        self.commit(committer, &Arc::new(empty.finish(end)), Vec::new(), write).await
    }

    /// One piece: the other sinks first, then changes and checkpoint together.
    async fn transact(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        rows: Range<u32>,
    ) -> Result<(), Failure> {
        let first = rows.start;
        let piece = self.board.safe().admit(Arc::clone(batch), rows.clone(), vec![first]);
        let job = Job { piece, part: 0, batch: Arc::clone(batch), rows: rows.collect() };
        for courier in &*self.couriers {
            courier.deliver(&self.board, 0, &job).await?;
        }
        if !self.couriers.is_empty() {
            flusher::flush(&self.board, &self.couriers).await?;
        }
        let wanted = self.select(&job);
        let passed = {
            let mut safe = self.board.safe();
            safe.done(piece, 0);
            let mark = safe.mark();
            safe.advance(mark)
        };
        let mut draft = std::mem::take(&mut *self.board.draft());
        draft.extend(passed);
        let write = committer.draft_write(draft, Reason::Progress, None);
        self.commit(committer, batch, wanted, write).await
    }

    /// Leaves out what the filter drops, and what has to wait for its key: that goes to the ledger.
    fn select(&mut self, job: &Job) -> Vec<u32> {
        let mut wanted = Vec::with_capacity(job.rows.len());
        for row in job.rows.iter().copied() {
            if self.spec.filter.as_ref().is_some_and(|filter| !filter.keeps(&job.batch, row)) {
                continue;
            }
            let key = job.batch.key(row);
            if key.is_some_and(|key| self.parked.is_parked(job.batch.namespace(row), key)) {
                let entry = self.entry(&job.batch, row, LedgerKind::Parked, BEHIND);
                self.parked.park(&entry);
                self.board.safe().note(job.piece, row, self.index, entry);
            } else {
                wanted.push(row);
            }
        }
        wanted
    }

    fn entry(&self, batch: &Arc<Batch>, row: u32, kind: LedgerKind, cause: &str) -> watchkeeper_core::LedgerEntry {
        let before = batch.position_before(row);
        entry_for(kind, &self.spec.name, &Change::new(Arc::clone(batch), row), cause, before)
    }

    /// Repeats one transaction until it is known what became of it.
    async fn commit(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        mut rows: Vec<u32>,
        mut write: CheckpointWrite,
    ) -> Result<(), Failure> {
        let stream = Arc::clone(&self.board.stream);
        let settings = &stream.settings;
        let (mut attempt, began) = (0, self.board.seams.clock.now());
        loop {
            let call = self.board.tenure.call(&self.pulse, settings.timeouts.write);
            let answer = call.run(self.writer.write_and_commit(call.cx(), batch, &rows, &write)).await;
            drop(call);
            match answer {
                Ok(Transacted::Committed | Transacted::AlreadyDone) => {
                    committer.record(&write);
                    self.board.committed.tell(committer.position().cloned());
                    super::checkpointer::write_history(&self.board, committer).await;
                    return Ok(());
                }
                Ok(Transacted::Fenced) => return Err(committer.fenced()),
                Ok(Transacted::Rejected(faults)) => {
                    for fault in faults {
                        rows.retain(|row| *row != fault.row);
                        self.reject(batch, &mut rows, &mut write, fault)?;
                    }
                }
                Err(error) => {
                    if self.board.tenure.loss().is_some() {
                        return Err(Failure::Lost);
                    }
                    if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
                        return Err(Failure::of(error));
                    }
                    let waited = self.board.seams.clock.now().since(began);
                    if waited > settings.give_up && self.board.has_healthy_peer() {
                        return Err(Failure::Instance(error));
                    }
                    tracing::warn!(sink = self.spec.name, %error, "a transaction was not answered; it is repeated unchanged");
                    let delay = settings.retry.backoff.delay(attempt, &self.board.seams.entropy);
                    attempt += 1;
                    self.board.tenure.sleep(delay).await;
                }
            }
        }
    }

    /// Applies the policy to a row that the transaction can not take.
    fn reject(
        &mut self,
        batch: &Arc<Batch>,
        rows: &mut Vec<u32>,
        write: &mut CheckpointWrite,
        fault: Fault,
    ) -> Result<(), Failure> {
        let cause = fault.error.to_string();
        let id = batch.id(fault.row).to_string();
        match fault.kind {
            watchkeeper_core::FaultKind::Fatal => return Err(Failure::Fatal { change_id: id, error: fault.error }),
            watchkeeper_core::FaultKind::Retry | watchkeeper_core::FaultKind::Reject => {}
        }
        match self.spec.on_reject {
            OnReject::Stop => {
                let cause = format!("sink {:?} rejected change {id}: {cause}", self.spec.name);
                return Err(Failure::Stream(
                    Error::corrupt(cause).remedy("fix the change's target and resume the stream, or skip the change"),
                ));
            }
            OnReject::Skip => write.ledger.push(self.entry(batch, fault.row, LedgerKind::Skipped, &cause)),
            OnReject::DeadLetter { .. } => {
                self.letter(batch, fault.row, LedgerKind::DeadLetter, &cause, write);
                self.divert_followers(batch, fault.row, rows, write);
            }
        }
        let Some(cause) = self.parked.over_limit() else { return Ok(()) };
        Err(Failure::Stream(Error::corrupt(cause).remedy("mend the sink, then replay or purge the dead letters")))
    }

    fn letter(&mut self, batch: &Arc<Batch>, row: u32, kind: LedgerKind, cause: &str, write: &mut CheckpointWrite) {
        let entry = self.entry(batch, row, kind, cause);
        self.parked.park(&entry);
        write.ledger.push(entry);
        write.facts.letters += 1;
    }

    /// What follows of a parked key in this transaction goes to the ledger too.
    fn divert_followers(&mut self, batch: &Arc<Batch>, row: u32, rows: &mut Vec<u32>, write: &mut CheckpointWrite) {
        let Some(key) = batch.key(row) else { return };
        let namespace = batch.namespace(row);
        if !self.parked.is_parked(namespace, key) {
            return;
        }
        let follows = |at: &u32| *at > row && batch.key(*at) == Some(key) && batch.namespace(*at) == namespace;
        let followers: Vec<u32> = rows.iter().copied().filter(follows).collect();
        rows.retain(|at| !follows(at));
        for follower in followers {
            self.letter(batch, follower, LedgerKind::Parked, BEHIND, write);
        }
    }

    async fn serve_wish(&mut self, committer: &mut Committer) -> Result<(), Failure> {
        let wish = self.wishes.see().clone();
        let Some(wish) = wish.filter(|wish| self.letters.is_new(wish)) else { return Ok(()) };
        let board = Arc::clone(&self.board);
        self.letters.serve(&board, &self.couriers, &wish).await?;
        if wish.sink.as_deref().is_none_or(|sink| sink == self.spec.name) {
            let letters = self.letters.open(&board).await.map_err(Failure::of)?;
            let own: Vec<_> = letters.into_iter().filter(|record| record.entry.sink == self.spec.name).collect();
            for of_key in replay_order(own) {
                self.serve_key(committer, &wish, of_key).await?;
            }
        }
        self.commit_idle(committer, Reason::Progress).await?;
        self.letters.strike(&board, &wish).await;
        Ok(())
    }

    /// Settles the letters of one key, each in a transaction with its resolution.
    async fn serve_key(
        &mut self,
        committer: &mut Committer,
        wish: &Wish,
        of_key: Vec<LedgerRecord>,
    ) -> Result<(), Failure> {
        for record in &of_key {
            let wanted = wish.numbers.is_empty() || wish.numbers.contains(&record.number);
            if !wanted || !self.settle_letter(committer, wish.what, record).await? {
                break;
            }
            self.parked.unpark(&record.entry);
        }
        Ok(())
    }

    async fn settle_letter(
        &mut self,
        committer: &mut Committer,
        what: Resolution,
        record: &LedgerRecord,
    ) -> Result<bool, Failure> {
        if what == Resolution::Purged {
            self.board.draft().resolve.push((record.number, what));
            return Ok(true);
        }
        // What others have settled is committed apart: this letter may be rejected again.
        self.commit_idle(committer, Reason::Progress).await?;
        let Some((batch, row)) = self.letters.find(&self.board, record).await? else { return Ok(false) };
        let draft = Draft { resolve: vec![(record.number, what)], ..Draft::default() };
        let write = committer.draft_write(draft, Reason::Progress, None);
        self.deliver_letter(committer, &batch, row, write).await
    }

    /// One letter and its resolution in one transaction; false when it is rejected again.
    async fn deliver_letter(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        row: u32,
        write: CheckpointWrite,
    ) -> Result<bool, Failure> {
        let on_reject = std::mem::replace(&mut self.spec.on_reject, OnReject::Stop);
        let settled = self.commit(committer, batch, vec![row], write).await;
        self.spec.on_reject = on_reject;
        match settled {
            Ok(()) => Ok(true),
            Err(Failure::Stream(error)) => {
                tracing::warn!(sink = self.spec.name, %error, "a dead letter was rejected again");
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }
}
