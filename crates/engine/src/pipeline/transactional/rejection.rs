//! What becomes of rows that the transaction can not take.

use std::sync::Arc;

use watchkeeper_core::{Batch, CheckpointWrite, Error, Fault, LedgerKind};

use super::Transactional;
use crate::delivery::parking::OnReject;
use crate::pipeline::board::Failure;
use crate::pipeline::courier::BEHIND;

impl Transactional {
    /// Applies the policy to all rows that the transaction can not take.
    pub(super) fn reject_all(
        &mut self,
        batch: &Arc<Batch>,
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
            self.reject(batch, rows, write, fault)?;
        }
        Ok(())
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
}
