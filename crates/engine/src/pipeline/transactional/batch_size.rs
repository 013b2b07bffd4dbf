//! How much is written in one transaction, where all of a batch takes longer than a transaction may.

use std::sync::{Mutex, PoisonError};

use watchkeeper_core::{Error, ErrorKind};

/// So often a transaction may take too long before it is cut smaller, if its answers say that nothing of it remains.
const LATE_MAX: u32 = 2;

/// The same, if nobody knows what became of it: then the tenure ends with it, and no answer may have other reasons.
const LATE_IN_DOUBT_MAX: u32 = 3;

/// The tries of one transaction that were not answered.
#[derive(Debug, Default)]
pub(super) struct UnansweredAttempts {
    pub(super) failed: u32,
    late: u32,
    /// Whether it may have taken effect after all.
    pub(super) doubtful: bool,
}

impl UnansweredAttempts {
    pub(super) fn note(&mut self, error: &Error) {
        self.failed += 1;
        self.late += u32::from(error.is_late());
        // Also one that was answered later says nothing of one before it that may still be under way.
        self.doubtful |= error.kind() == ErrorKind::Unknown;
    }

    /// Whether it took too long so often that it always will.
    pub(super) fn are_over(&self) -> bool {
        self.late >= if self.doubtful { LATE_IN_DOUBT_MAX } else { LATE_MAX }
    }
}

/// So many full portions have to succeed before more is tried, at first and at most.
const PATIENCE: u32 = 16;
const PATIENCE_MAX: u32 = 4_096;

/// How many rows of a stream are written at once. Kept over tenures: a batch that takes longer than the lease would otherwise be
/// tried again, whole, for ever.
///
/// It is halved when a transaction takes too long, and doubled after many that did not; the longer it takes the more often more
/// proved too much.
#[derive(Debug, Default)]
pub struct AdaptiveBatchSize(Mutex<State>);

#[derive(Debug)]
struct State {
    /// No limit if there is none.
    rows: Option<usize>,
    /// Full portions in a row that succeeded.
    succeeded: u32,
    /// How many of them it takes to try more.
    patience: u32,
    /// Whether more was tried last.
    grown: bool,
    /// After so many rows a piece has to end, once: then comes one that was rejected.
    before_rejected: Option<usize>,
}

impl Default for State {
    fn default() -> Self {
        Self { rows: None, succeeded: 0, patience: PATIENCE, grown: false, before_rejected: None }
    }
}

impl AdaptiveBatchSize {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many rows at most, where `wanted` is another limit.
    pub fn within(&self, wanted: Option<u64>) -> Option<u64> {
        let rows = self.state().rows.map(|rows| rows as u64);
        rows.into_iter().chain(wanted).min()
    }

    /// Halves it after `size` rows took too long. False if there is nothing to halve.
    pub fn shrink(&self, size: usize) -> bool {
        let mut state = self.state();
        if size <= 1 || state.rows == Some(1) {
            return false;
        }
        state.rows = Some(state.rows.map_or(size, |rows| rows.min(size)) / 2);
        if std::mem::take(&mut state.grown) {
            state.patience = (state.patience * 2).min(PATIENCE_MAX);
        }
        state.succeeded = 0;
        true
    }

    /// Ends a piece after the next `rows` rows, once: the one after them was rejected. They begin where the stream is read again.
    pub(super) fn cut_after(&self, rows: usize) {
        self.state().before_rejected = Some(rows);
    }

    /// After how many rows a piece has to end.
    pub(super) fn before_rejected(&self) -> Option<usize> {
        self.state().before_rejected
    }

    /// Takes in that `rows` rows more were committed.
    pub(super) fn passed(&self, rows: usize) {
        let mut state = self.state();
        state.before_rejected = state.before_rejected.and_then(|left| left.checked_sub(rows)).filter(|left| *left > 0);
    }

    /// Takes in that `size` rows were written in time.
    pub fn succeeded(&self, size: usize) {
        let mut state = self.state();
        let Some(rows) = state.rows.filter(|rows| size >= *rows) else { return };
        state.succeeded += 1;
        if state.succeeded >= state.patience {
            tracing::debug!(rows, "transactions end in time; the next ones are larger");
            state.rows = rows.checked_mul(2);
            (state.succeeded, state.grown) = (0, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_is_halved_down_to_one_row_and_no_further() {
        let adaptive_size = AdaptiveBatchSize::default();
        assert_eq!((adaptive_size.within(None), adaptive_size.within(Some(7))), (None, Some(7)));
        let mut size = 100;
        for halved in [50, 25, 12, 6, 3, 1] {
            assert!(adaptive_size.shrink(size));
            size = halved;
            assert_eq!(adaptive_size.within(None), Some(halved as u64));
        }
        // The halves of a key update stay together, whatever the portion.
        assert!(!adaptive_size.shrink(1) && !adaptive_size.shrink(2));
        assert_eq!(adaptive_size.within(Some(7)), Some(1));
    }

    #[test]
    fn a_portion_grows_slowly_and_more_slowly_after_it_was_too_much() {
        let adaptive_size = AdaptiveBatchSize::default();
        adaptive_size.shrink(80);
        let grows_after = |expected: u32| {
            let before = adaptive_size.within(None);
            let size = before.unwrap_or_default() as usize;
            // What is smaller for other reasons proves nothing.
            adaptive_size.succeeded(size - 1);
            for _ in 1..expected {
                adaptive_size.succeeded(size);
                assert_eq!(adaptive_size.within(None), before);
            }
            adaptive_size.succeeded(size);
            assert_eq!(adaptive_size.within(None), before.map(|rows| rows * 2));
        };
        grows_after(PATIENCE);
        adaptive_size.shrink(80);
        grows_after(PATIENCE * 2);
        adaptive_size.shrink(80);
        adaptive_size.shrink(40);
        grows_after(PATIENCE * 4);
        grows_after(PATIENCE * 4);
    }

    #[test]
    fn a_piece_is_cut_before_a_rejected_change_once() {
        let adaptive_size = AdaptiveBatchSize::default();
        adaptive_size.cut_after(5);
        assert_eq!(adaptive_size.before_rejected(), Some(5));
        adaptive_size.passed(3);
        assert_eq!(adaptive_size.before_rejected(), Some(2), "in the next batch, less what was committed");
        adaptive_size.passed(2);
        assert_eq!(adaptive_size.before_rejected(), None);
        adaptive_size.cut_after(5);
        adaptive_size.passed(6);
        assert_eq!(adaptive_size.before_rejected(), None, "it was passed by another way");
    }

    #[test]
    fn a_transaction_is_tried_for_longer_while_nobody_knows_what_became_of_it() {
        let tried = |errors: &[Error]| {
            let mut tries = UnansweredAttempts::default();
            errors.iter().for_each(|error| tries.note(error));
            (tries.are_over(), tries.doubtful)
        };
        let (certain, doubtful) = (|| Error::unavailable("").late(), || Error::unknown("").late());
        assert_eq!(tried(&[certain()]), (false, false));
        assert_eq!(tried(&[certain(), Error::unavailable("")]), (false, false), "a refusal is no lateness");
        assert_eq!(tried(&[certain(), certain()]), (true, false));
        assert_eq!(tried(&[Error::unknown(""), certain(), certain()]), (false, true), "the first may be under way");
        assert_eq!(tried(&[doubtful(), certain(), certain()]), (true, true));
    }
}
