//! What becomes of changes that the sink will never take.

use std::sync::Arc;

use watchkeeper_core::{Error, Fault, FaultKind, FlushRejection, LedgerKind};

use super::{BEHIND, Load, SinkDelivery};
use crate::delivery::parking::{OnReject, Park};
use crate::pipeline::lanes::Job;
use crate::pipeline::opening_state::{Failure, OpeningState, rejected, warn_passed_over};

impl SinkDelivery {
    /// Takes in what a write rejected, in order. A sink that writes in bulk may have accepted later
    /// changes of a rejected key in the same call: they follow it into the ledger, so that a replay
    /// restores their order.
    pub(super) fn take_rejected(
        &self,
        opening_state: &OpeningState,
        load: &Load<'_>,
        done: usize,
        mut rejected: Vec<Fault>,
    ) -> Result<(), Failure> {
        rejected.sort_by_key(|fault| fault.row);
        let refused: Vec<u32> = rejected.iter().map(|fault| fault.row).collect();
        let (batch, piece) = (&load.job.batch, load.job.piece);
        for fault in rejected {
            let row = fault.row;
            self.reject(opening_state, load.job, fault)?;
            let Some(key) = batch.key(row).filter(|key| self.parked().is_parked(batch.namespace(row), key)) else {
                continue;
            };
            let follows = |at: &u32| {
                *at > row
                    && refused.binary_search(at).is_err()
                    && batch.key(*at) == Some(key)
                    && batch.namespace(*at) == batch.namespace(row)
            };
            for follower in load.rows[..done].iter().copied().filter(follows) {
                self.note(opening_state, piece, batch, follower, LedgerKind::Parked, BEHIND);
            }
        }
        Ok(())
    }

    /// Applies the policy to a change that the sink will never take.
    pub(super) fn reject(&self, opening_state: &OpeningState, job: &Job, fault: Fault) -> Result<(), Failure> {
        let cause = fault.error.to_string();
        match self.spec.on_reject {
            OnReject::Stop => {
                self.done_before(opening_state, job, fault.row);
                opening_state.safe().block(job.piece, fault.row);
                return Err(self.rejection(opening_state, job, &fault));
            }
            OnReject::Skip => self.note(opening_state, job.piece, &job.batch, fault.row, LedgerKind::Skipped, &cause),
            OnReject::DeadLetter { .. } if self.profile.acts_on_barriers && job.batch.key(fault.row).is_none() => {
                // Replayed later, it would act on what came after it.
                self.done_before(opening_state, job, fault.row);
                opening_state.safe().block(job.piece, fault.row);
                return Err(self.rejection(opening_state, job, &fault));
            }
            OnReject::DeadLetter { .. } => {
                self.note(opening_state, job.piece, &job.batch, fault.row, LedgerKind::DeadLetter, &cause);
                self.check_limit()?;
            }
        }
        let stream = &opening_state.stream.settings.name;
        warn_passed_over((stream, &self.spec), &job.batch.id(fault.row).to_string(), &cause);
        Ok(())
    }

    fn rejection(&self, opening_state: &OpeningState, job: &Job, fault: &Fault) -> Failure {
        let names = (opening_state.stream.settings.name.as_str(), self.spec.name.as_str());
        rejected(names, &job.batch, (job.piece, fault.row), &fault.error)
    }

    pub(super) fn check_limit(&self) -> Result<(), Failure> {
        let Some(cause) = self.parked().over_limit() else { return Ok(()) };
        let remedy = "mend the sink, then replay or purge the dead letters and resume the stream";
        Err(Failure::Stream(Error::rejected(cause).remedy(remedy)))
    }

    /// A row that was accepted and turned out to be rejected at a flush. What was accepted of its key
    /// after it follows into the ledger, so that a replay restores the order.
    pub fn reject_flushed(&self, opening_state: &OpeningState, rejection: FlushRejection) -> Result<(), Failure> {
        let row = rejection.row;
        let (piece, batch) = {
            let safe = opening_state.safe();
            let piece = safe.find(rejection.batch_seq, row);
            match piece.and_then(|piece| Some((piece, safe.batch(piece)?))) {
                Some(found) => found,
                None => return Err(Failure::Instance(Error::internal("a flush rejected a row that is not in flight"))),
            }
        };
        let job = Job { piece, part: 0, batch: Arc::clone(&batch), rows: vec![row] };
        let parks = self.spec.on_reject == OnReject::DeadLetter { park: Park::Key } && batch.key(row).is_some();
        self.reject_unmarked(opening_state, &job, Fault { row, kind: FaultKind::Reject, error: rejection.error })?;
        if parks {
            let followers = opening_state.safe().followers(piece, row);
            for (piece, batch, row) in followers {
                self.note(opening_state, piece, &batch, row, LedgerKind::Parked, BEHIND);
            }
        }
        Ok(())
    }

    /// As [`reject`](Self::reject), for a row whose part was done long ago: blocking is enough.
    fn reject_unmarked(&self, opening_state: &OpeningState, job: &Job, fault: Fault) -> Result<(), Failure> {
        if self.spec.on_reject == OnReject::Stop {
            opening_state.safe().block(job.piece, fault.row);
            return Err(self.rejection(opening_state, job, &fault));
        }
        self.reject(opening_state, job, fault)
    }
}
