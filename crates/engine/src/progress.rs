//! Whether a tenure turns (G8).
//!
//! Every call of the pipeline marks its [`CallProgress`] with the moment by which it has to end. Calls end themselves at
//! their timeouts, so a call that is still open `stall_grace` later belongs to a blocked thread: the keeper ends the
//! tenure as `Stalled`, and the lease expires. Waiting (for changes, in backoff, behind an open breaker, for room in the
//! window) marks nothing and counts as progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use watchkeeper_core::Moment;

const IDLE: u64 = u64::MAX;

/// One caller of the pipeline.
#[derive(Debug)]
pub struct CallProgress {
    name: &'static str,
    /// Nanoseconds of the moment by which the call under way must end. An atomic, since the keeper
    /// reads it from another thread while this one may be blocked.
    due: AtomicU64,
}

impl CallProgress {
    /// Marks a call that must end by `due`, until the guard is dropped.
    pub fn call(&self, due: Moment) -> Call<'_> {
        self.due.store(due.nanos(), Ordering::Release);
        Call(self)
    }
}

/// A call under way.
#[derive(Debug)]
pub struct Call<'a>(&'a CallProgress);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.due.store(IDLE, Ordering::Release);
    }
}

/// All callers of one tenure.
#[derive(Debug, Default)]
pub struct Progress {
    pulses: Mutex<Vec<Arc<CallProgress>>>,
}

impl Progress {
    /// A new caller.
    pub fn call_progress(&self, name: &'static str) -> Arc<CallProgress> {
        let call_progress = Arc::new(CallProgress { name, due: AtomicU64::new(IDLE) });
        let mut pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        // Callers of an earlier opening are gone; only we hold their pulses.
        pulses.retain(|call_progress| Arc::strong_count(call_progress) > 1);
        pulses.push(Arc::clone(&call_progress));
        call_progress
    }

    /// The name of a caller whose call should have ended `grace` ago.
    pub fn stalled(&self, now: Moment, grace: Duration) -> Option<&'static str> {
        let pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let late = |call_progress: &&Arc<CallProgress>| {
            let due = call_progress.due.load(Ordering::Acquire);
            due != IDLE && Moment::from_nanos(due) + grace < now
        };
        pulses.iter().find(late).map(|call_progress| call_progress.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_call_is_stalled_when_it_should_have_ended_more_than_the_grace_ago() {
        let progress = Progress::default();
        let (reader, writer) = (progress.call_progress("reader"), progress.call_progress("dispatcher"));
        let _in_time = reader.call(at(100));
        let _late = writer.call(at(10));
        assert_eq!(progress.stalled(at(12), GRACE), None);
        assert_eq!(progress.stalled(at(13), GRACE), Some("dispatcher"));
    }

    #[test]
    fn waiting_is_no_stall_however_long() {
        let progress = Progress::default();
        let call_progress = progress.call_progress("reader");
        assert_eq!(progress.stalled(at(1_000_000), GRACE), None, "it never called");
        drop(call_progress.call(at(10)));
        assert_eq!(progress.stalled(at(1_000_000), GRACE), None, "its call has ended");
    }

    #[test]
    fn a_later_call_of_the_same_caller_counts_from_its_own_time_out() {
        let progress = Progress::default();
        let call_progress = progress.call_progress("reader");
        drop(call_progress.call(at(10)));
        let _second = call_progress.call(at(20));
        assert_eq!(progress.stalled(at(22), GRACE), None);
        assert_eq!(progress.stalled(at(23), GRACE), Some("reader"));
    }

    #[test]
    fn callers_of_earlier_openings_are_forgotten() {
        let progress = Progress::default();
        for _ in 0..100 {
            progress.call_progress("reader");
        }
        let _kept = progress.call_progress("reader");
        assert_eq!(progress.pulses.lock().expect("no panic before").len(), 1);
    }
}
