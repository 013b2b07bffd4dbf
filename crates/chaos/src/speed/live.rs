//! How late changes arrive while few are written.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use watchkeeper_core::{Change, ValueRef};

use super::consumer::Consumer;
use super::median;
use crate::cluster::Trouble;

/// Where what is written meanwhile goes: a collection or a table.
pub(super) const LIVE: &str = "live";

/// The field that tells when it was written.
pub(super) const AT: &str = "at_us";

/// Between two writes: a hundred in a second.
pub(super) const PACE: Duration = Duration::from_millis(10);

/// So many arrive before anything is measured, so that all connections are made and the standbys stand by.
const WARM_UP: usize = 100;

/// So many are then measured, in each round.
const SAMPLES: usize = 200;

/// How many a consumer has to read.
pub(super) const CHANGES: u64 = (WARM_UP + SAMPLES) as u64;

/// Microseconds on a clock that all processes of this machine share.
pub(super) fn now_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// When a change was written, by a field at this path.
pub(super) fn written_at(change: &Change, path: &[&str]) -> Option<i64> {
    match change.get(path) {
        Ok(Some(ValueRef::Int64(at))) => Some(at),
        _ => None,
    }
}

/// How late changes came.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(Mutex<Vec<f64>>);

impl Stopwatch {
    /// A change has arrived that was written at this time.
    pub(super) fn note(&self, written_at: Option<i64>) {
        let late = written_at.map_or(f64::NAN, |at| (now_us() - at) as f64 / 1_000.0);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(late);
    }

    pub(super) fn median_ms(&self) -> f64 {
        let late = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        median(late.iter().skip(WARM_UP).copied())
    }
}

/// How late they came to each of two, in milliseconds, in each round.
pub(super) fn compare(
    [a, b]: [Consumer; 2],
    rounds: usize,
    mut one: impl FnMut(Consumer, usize) -> Result<f64, Trouble>,
) -> Result<Vec<(f64, f64)>, Trouble> {
    let mut late = Vec::new();
    for round in 0..rounds {
        // Whoever is first has the emptier caches.
        late.push(if round % 2 == 0 {
            let first = one(a, round)?;
            (first, one(b, round)?)
        } else {
            let first = one(b, round)?;
            (one(a, round)?, first)
        });
    }
    Ok(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_all_is_warm_does_not_count() {
        let stopwatch = Stopwatch::default();
        for _ in 0..WARM_UP {
            stopwatch.note(Some(now_us() - 60_000_000));
        }
        for _ in 0..SAMPLES {
            stopwatch.note(Some(now_us() - 2_000));
        }
        // Sixty seconds before and two milliseconds after: whatever the machine does, they cannot be confused.
        assert!((2.0..30_000.0).contains(&stopwatch.median_ms()), "{}", stopwatch.median_ms());
        let empty = Stopwatch::default();
        assert!(empty.median_ms().is_nan(), "nothing was measured");
    }

    #[test]
    fn two_take_turns_at_being_the_first() {
        let mut order = Vec::new();
        let late = compare([Consumer::Poll, Consumer::ChangeLog], 2, |by, round| {
            order.push(by);
            Ok(if by == Consumer::Poll { 1.0 } else { 2.0 } + round as f64)
        });
        assert_eq!(late, Ok(vec![(1.0, 2.0), (2.0, 3.0)]));
        assert_eq!(order, [Consumer::Poll, Consumer::ChangeLog, Consumer::ChangeLog, Consumer::Poll]);
    }
}
