//! What becomes of rows that the transaction cannot take.

use std::ops::Range;
use std::sync::Arc;

use watchkeeper_core::{Batch, CheckpointWrite, Error, Fault, FaultKind, LedgerKind};

use super::Transactional;
use crate::delivery::parking::OnReject;
use crate::pipeline::opening_state::{Failure, RejectedChange, rejected, warn_passed_over};
use crate::pipeline::safe_point::PieceNumber;
use crate::pipeline::sink_delivery::{BEHIND, before_letters, is_barrier};

impl Transactional {
    /// Applies the policy to all rows that the transaction cannot take.
    pub(super) fn reject_all(
        &mut self,
        (batch, piece): (&Arc<Batch>, PieceNumber),
        rows: &mut Vec<u32>,
        write: &mut CheckpointWrite,
        mut faults: Vec<Fault>,
    ) -> Result<(), Failure> {
        if faults.is_empty() {
            let cause = format!("sink {:?} rejected a transaction without saying what of it", self.spec.name);
            return Err(Failure::Instance(Error::internal(cause)));
        }
        faults.sort_by_key(|fault| fault.row);
        for fault in faults {
            if !rows.contains(&fault.row) {
                // It follows a rejected change of its key into the ledger already.
                continue;
            }
            rows.retain(|row| *row != fault.row);
            self.reject((batch, piece), rows, write, fault)?;
        }
        Ok(())
    }

    /// Applies the policy to a row that the transaction cannot take.
    fn reject(
        &mut self,
        (batch, piece): (&Arc<Batch>, PieceNumber),
        rows: &mut Vec<u32>,
        write: &mut CheckpointWrite,
        fault: Fault,
    ) -> Result<(), Failure> {
        let cause = fault.error.to_string();
        if fault.kind == FaultKind::Fatal {
            return Err(Failure::Fatal { change_id: batch.id(fault.row).to_string().into(), error: fault.error });
        }
        match self.spec.on_reject {
            OnReject::Stop => return Err(self.rejection(batch, piece, &fault)),
            OnReject::DeadLetter { .. } if is_barrier(batch, fault.row) && self.acts_on_barriers() => {
                // Replayed later, it would act on what came after it.
                return Err(self.rejection(batch, piece, &fault));
            }
            OnReject::Skip => write.ledger.push(self.entry(batch, fault.row, LedgerKind::Skipped, &cause)),
            OnReject::DeadLetter { .. } => {
                let acted_on = |at: &u32| *at > fault.row && is_barrier(batch, *at);
                if let Some(barrier) = rows.iter().copied().find(acted_on).filter(|_| self.acts_on_barriers()) {
                    return Err(self.too_soon(batch, (piece, barrier)));
                }
                self.letter(batch, fault.row, LedgerKind::DeadLetter, &cause, write);
                self.divert_followers(batch, fault.row, rows, write);
            }
        }
        let stream = &self.opening_state.stream.settings.name;
        warn_passed_over((stream, &self.spec), &batch.id(fault.row).to_string(), &cause);
        let Some(cause) = self.parked.over_limit() else { return Ok(()) };
        Err(Failure::Stream(Error::rejected(cause).remedy("mend the sink, then replay or purge the dead letters")))
    }

    fn rejection(&self, batch: &Batch, piece: PieceNumber, fault: &Fault) -> Failure {
        let names = (self.opening_state.stream.settings.name.as_str(), self.spec.name.as_str());
        rejected(names, batch, (piece, fault.row), &fault.error)
    }

    /// Whether a change without a key does more at the transactional sink than be noted.
    pub(super) fn acts_on_barriers(&self) -> bool {
        self.spec.sink.profile().acts_on_barriers
    }

    /// The failure of a change without a key that the sink would act on while dead letters wait.
    pub(super) fn too_soon(&self, batch: &Batch, at: (PieceNumber, u32)) -> Failure {
        let change = Box::new(RejectedChange { at, id: batch.id(at.1).to_string() });
        Failure::Rejected { change, error: before_letters(&self.spec.name, batch, at.1) }
    }

    /// Where a failure is about one change and others of the piece come before it, they are committed first: the opening ends, what it
    /// would have written is read again, and the piece is cut right before that change. As the first of its piece it then fails
    /// as it is. So whoever skips the change that a halt names loses no other one.
    pub(super) fn cut_before_rejected(&self, batch: &Batch, piece: Range<u32>, failure: Failure) -> Failure {
        let (change_id, error) = match &failure {
            Failure::Rejected { change, error } => (change.id.as_str(), error),
            Failure::Fatal { change_id, error } => (&**change_id, error),
            _ => return failure,
        };
        let row = piece.clone().find(|row| batch.id(*row).to_string() == change_id);
        let Some(before) = row.and_then(|row| place_before(batch, piece.clone(), row)) else { return failure };
        let (stream, sink) = (&self.opening_state.stream.settings.name, &self.spec.name);
        let changes = before - piece.start;
        tracing::warn!(stream, sink, change_id, changes, %error, "a change was rejected; what comes before it is committed first");
        self.adaptive_size.cut_after(changes as usize);
        let cause = format!("change {change_id} was rejected; what comes before it is committed first");
        Failure::Transient(Error::unavailable(cause))
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
}

/// The row that a piece can be cut before, so that it begins with `row` or with what cannot be told apart from it. None if that is
/// its first one.
fn place_before(batch: &Batch, piece: Range<u32>, row: u32) -> Option<u32> {
    let ends = |at: &u32| batch.rows()[*at as usize].committable;
    (piece.start..row).rev().find(ends).map(|last| last + 1)
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::payload::JsonPayload;
    use watchkeeper_core::{BatchBuilder, Operation, Position, RowParts, SourceTime, Version};

    use super::*;

    #[test]
    fn a_piece_is_never_cut_between_what_cannot_be_distinguished() {
        let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
        let namespace = builder.namespace("orders");
        for committable in [true, false, false, true, true] {
            builder.push(RowParts {
                operation: Operation::Insert,
                namespace,
                half: 0,
                committable,
                key: Some(b"k"),
                position: b"p",
                body: b"{}",
                time: SourceTime(0),
                version: Version::default(),
            });
        }
        let batch = builder.finish(Position::new("end", None));
        let places: Vec<_> = (0..5).map(|row| place_before(&batch, 0..5, row)).collect();
        assert_eq!(places, [None, Some(1), Some(1), Some(1), Some(4)]);
        assert_eq!(place_before(&batch, 1..5, 3), None, "it is the first that a piece can begin with");
    }
}
