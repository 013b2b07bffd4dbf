//! Where in the log the decoder stands, and whether that is the log in which it stood before.

use watchkeeper_core::source::ACCEPT_GAP;
use watchkeeper_core::{Error, Result, SourceTime};

use super::{DecodeStep, Decoder, Transaction};
use crate::replication::pgoutput::{millis, odd};
use crate::replication::position::{Lsn, PositionContext};

/// A transaction that takes more than this is not told again just to recognise the log by it.
const PROOF_BYTES_MAX: usize = 1 << 20;

/// So much of the log is held back for the last transaction that was told, while nothing follows it.
pub(super) const HELD_MAX: u64 = 16 << 20;

/// The same, where a message of our own is going to follow it.
const HELD_UNTIL_PROOF_MAX: u64 = 64 << 20;

/// After so much log without a change a message of our own is asked for.
const PROOF_EVERY: u64 = 4 << 20;

impl Decoder {
    /// Reads the log up to `lsn` before the rows of the snapshot that was taken there.
    pub(in crate::replication) fn catch_up_with(&mut self, lsn: Lsn) {
        self.catching_up = Some(lsn).filter(|lsn| *lsn > self.at.lsn);
    }

    /// Whether the log was read as far as it has to be before a snapshot.
    pub(in crate::replication) fn has_caught_up(&self) -> bool {
        self.catching_up.is_none()
    }

    /// Whether this log could not be told from another one by the position alone, or only with much of it held back. Then a message of our
    /// own is to be written into it.
    pub(in crate::replication) fn needs_proof(&self) -> bool {
        let is_far = self.received.0.saturating_sub(self.at.lsn.0) > PROOF_EVERY;
        self.transaction.is_none() && self.has_caught_up() && (self.at.ordinal == 0 || is_far)
    }

    /// Everything up to here was received.
    pub(in crate::replication) fn received(&self) -> Lsn {
        self.received
    }

    /// Holds more of the log back for the last transaction, or less where no message of our own can be expected.
    pub(in crate::replication) fn expect_proof(&mut self, is_expected: bool) {
        self.held_max = if is_expected { HELD_UNTIL_PROOF_MAX } else { HELD_MAX };
    }

    /// Goes to the place after a message of our own, which counts as a change of its transaction.
    pub(super) fn take_proof(&mut self) -> Result<()> {
        let transaction = self.transaction.as_mut().ok_or_else(|| odd("a message outside of a transaction"))?;
        transaction.ordinal += 1;
        let transaction = *transaction;
        if transaction.ordinal > transaction.passed {
            self.step(&transaction);
        }
        Ok(())
    }

    /// The server has sent all up to `lsn`. Between transactions that is a place to go on from, so that a slot whose tables
    /// are quiet moves on.
    pub(super) fn rest_at(&mut self, lsn: Lsn, micros: u64) -> Result<Option<DecodeStep>> {
        self.received = self.received.max(lsn);
        if self.transaction.is_none() && self.catches_up_at(lsn)? {
            return Ok(Some(DecodeStep::CaughtUp));
        }
        if self.transaction.is_some() || self.spool.is_receiving() || lsn <= self.at.lsn {
            return Ok(None);
        }
        self.require_resumed()?;
        match &self.at.aside {
            PositionContext::Snapshot(progress) if progress.is_over_at(lsn) => self.at.aside = PositionContext::Nothing,
            PositionContext::Snapshot(progress) if progress.complete => return Ok(None),
            _ => {}
        }
        if self.pass(lsn) {
            self.time = Some(SourceTime(millis(micros.cast_signed())));
        }
        Ok(None)
    }

    /// Whether the snapshot is reached with this place, before which all was read.
    pub(super) fn catches_up_at(&mut self, lsn: Lsn) -> Result<bool> {
        let is_reached = self.catching_up.is_some_and(|taken| lsn >= taken);
        if is_reached {
            self.require_resumed()?;
            self.catching_up = None;
        }
        Ok(is_reached)
    }

    /// Goes on to `lsn`, up to which nothing was told; whether it did.
    ///
    /// The place after the last change of a transaction is kept for a while: whoever goes on from there is told that
    /// transaction again, and so recognises a log that is another one, be it that of a restored server.
    fn pass(&mut self, lsn: Lsn) -> bool {
        let is_kept = self.at.ordinal > 0 && lsn.0 < self.at.lsn.0.saturating_add(self.held_max);
        let passes = lsn > self.at.lsn && !is_kept;
        if passes {
            (self.at.lsn, self.at.ordinal) = (lsn, 0);
        }
        passes
    }

    /// The transaction is over; the next one lies at `end` or later.
    pub(in crate::replication) fn commit(&mut self, end: Lsn) {
        let Some(transaction) = self.transaction.take() else { return };
        self.received = self.received.max(end);
        self.undone.clear();
        let is_delivered = self.at.ordinal > 0 && self.at.lsn == transaction.commit;
        if is_delivered && transaction.bytes > PROOF_BYTES_MAX {
            (self.at.lsn, self.at.ordinal) = (end, 0);
        } else if !is_delivered {
            self.pass(end);
        }
    }

    /// Refuses a log that goes on behind a transaction in whose middle reading stopped, without telling it again.
    fn require_resumed(&self) -> Result<()> {
        if !self.awaited {
            return Ok(());
        }
        Err(Error::position_lost(format!(
            "the log has no transaction at {} any more, where the stream stands",
            self.at.lsn
        ))
        .remedy(format!("the server was restored, or the publication changed; {ACCEPT_GAP}")))
    }

    /// Refuses another transaction at the very place of the one in which reading stopped.
    fn require_same(&self, time: SourceTime) -> Result<()> {
        if !self.awaited || self.awaited_time.is_none_or(|known| known == time) {
            return Ok(());
        }
        let cause = format!("the log has another transaction at {}, where the stream stands", self.at.lsn);
        Err(Error::position_lost(cause).remedy(format!("the server was restored; {ACCEPT_GAP}")))
    }

    /// Takes over the commit time of the transaction that the position lies in. Reading may have resumed behind a row of a snapshot, with the
    /// time of that row, and the transaction is recognised by its own when the snapshot is over.
    pub(super) fn take_commit_time(&mut self, time: SourceTime) {
        self.time = Some(time);
        if let PositionContext::Snapshot(progress) = &mut self.at.aside {
            progress.commit_time = Some(time.0);
        }
    }

    pub(super) fn begin(&mut self, commit: Lsn, time: SourceTime, xid: u32) -> Result<()> {
        let mut passed = 0;
        if commit < self.at.lsn {
            // The server was asked for nothing so early; whatever made it send this, it was told before.
            passed = u64::MAX;
        } else if commit == self.at.lsn {
            self.require_same(time)?;
            (passed, self.awaited) = (self.at.ordinal, false);
            if self.at.ordinal > 0 {
                self.take_commit_time(time);
            }
        } else {
            self.require_resumed()?;
        }
        match &self.at.aside {
            PositionContext::NotBefore(earliest) if time.0 < *earliest => passed = u64::MAX,
            PositionContext::NotBefore(_) | PositionContext::Anew | PositionContext::SnapshotAnew => {
                self.at.aside = PositionContext::Nothing
            }
            // From here on no table has rows in the snapshot that are newer.
            PositionContext::Snapshot(progress) if progress.is_over_at(commit) => {
                self.at.aside = PositionContext::Nothing
            }
            _ => {}
        }
        self.transaction = Some(Transaction { commit, time, xid, ordinal: 0, passed, bytes: 0 });
        Ok(())
    }
}
