//! How long to wait before the next attempt.

use std::time::Duration;

use watchkeeper_core::{Entropy, Error, Result};

/// Jittered exponential back-off. The jitter keeps instances that failed together from coming back
/// together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub first: Duration,
    /// How much longer each further wait may be.
    pub factor: u32,
    /// The longest wait ever.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), factor: 2, max: Duration::from_secs(30) }
    }
}

impl Backoff {
    /// The wait after failure `attempt`, counted from 0: between half of [`cap`](Self::cap) and all of it.
    pub fn delay(&self, attempt: u32, entropy: &Entropy) -> Duration {
        entropy.jitter(self.cap(attempt))
    }

    /// The longest wait after failure `attempt`, counted from 0. It never shrinks as attempts grow.
    pub fn cap(&self, attempt: u32) -> Duration {
        let growth = u128::from(self.factor.max(1)).checked_pow(attempt);
        let nanos = growth.and_then(|growth| growth.checked_mul(self.first.as_nanos()));
        let cap = nanos.and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos);
        cap.map_or(self.max, |cap| cap.min(self.max))
    }

    /// Refuses what would not wait, or not longer and longer.
    ///
    /// # Errors
    /// `Config`, saying which relation does not hold.
    pub fn validate(&self) -> Result<()> {
        if self.first.is_zero() || self.factor == 0 {
            return Err(Error::config("a back-off without a first wait or a factor would not wait"));
        }
        if self.max < self.first {
            return Err(Error::config(format!(
                "the longest back-off ({:?}) is below the first ({:?})",
                self.max, self.first
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_stay_between_half_the_cap_and_the_cap() {
        let (backoff, entropy) = (Backoff::default(), Entropy::seeded(1));
        for attempt in 0..200 {
            let (delay, cap) = (backoff.delay(attempt, &entropy), backoff.cap(attempt));
            assert!(delay >= cap / 2 && delay <= cap, "{delay:?} after failure {attempt}, capped at {cap:?}");
        }
    }

    #[test]
    fn delays_differ() {
        let (backoff, entropy) = (Backoff::default(), Entropy::seeded(1));
        assert_ne!(backoff.delay(3, &entropy), backoff.delay(3, &entropy));
    }

    #[test]
    fn caps_grow_by_the_factor_and_end_at_the_longest() {
        let backoff = Backoff { first: SECOND, factor: 3, max: 10 * SECOND };
        let caps: Vec<_> = (0..5).map(|attempt| backoff.cap(attempt).as_secs()).collect();
        assert_eq!(caps, [1, 3, 9, 10, 10]);
    }

    #[test]
    fn caps_never_shrink_and_never_overflow() {
        let longest = [SECOND, 30 * SECOND, Duration::from_nanos(u64::MAX), Duration::MAX];
        for max in longest {
            for factor in [0, 1, 2, 10, u32::MAX] {
                let backoff = Backoff { first: Duration::from_nanos(3), factor, max };
                let attempts = (0..140).chain([u32::MAX - 1, u32::MAX]);
                let caps: Vec<_> = attempts.map(|attempt| backoff.cap(attempt)).collect();
                assert!(caps.is_sorted(), "factor {factor} up to {max:?}");
                let last = if factor > 1 { max } else { backoff.first };
                assert_eq!(caps.last(), Some(&last));
                assert!(backoff.delay(u32::MAX, &Entropy::seeded(1)) <= max);
            }
        }
    }

    #[test]
    fn wrong_relations_are_refused() {
        assert!(Backoff::default().validate().is_ok());
        assert!(Backoff { first: Duration::ZERO, ..Backoff::default() }.validate().is_err());
        assert!(Backoff { factor: 0, ..Backoff::default() }.validate().is_err());
        assert!(Backoff { max: Duration::from_millis(99), ..Backoff::default() }.validate().is_err());
    }
}
