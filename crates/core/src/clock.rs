//! Time, as a seam.
//!
//! No wall clock of an instance is ever compared with another's, so the contracts carry durations
//! only. Locally, time is read from a clock that includes suspend: a laptop that slept through its
//! lease must notice.

use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::time::Duration;

/// A point on one instance's clock. Meaningless to any other instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Nanoseconds since this clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since this clock's origin.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was, or zero if it is yet to come.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

/// A pending wait.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Reads time and waits for it.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Now, on a clock that never goes back and includes suspend.
    fn now(&self) -> Moment;

    /// Completes at `moment` or later. It may be late (a paused process), never early.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    fn sleep_until(&self, moment: Moment) -> Sleep;

    /// Milliseconds since 1970, to show to people. It is never compared and never decides.
    fn wall_millis(&self) -> u64;
}

/// The clock that goes on in suspend. Elsewhere than on Linux instances are only developed, not run in production: there it is
/// `CLOCK_MONOTONIC`, which goes on in suspend on macOS.
#[cfg(target_os = "linux")]
pub const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// The clock that goes on in suspend.
#[cfg(not(target_os = "linux"))]
pub const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// The clock of a running program: `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

/// A timer counts `CLOCK_MONOTONIC`, which stands still in suspend; sleeping in slices bounds how
/// long a wake-up after suspend can be missed.
const SLICE: Duration = Duration::from_millis(250);

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let now = rustix::time::clock_gettime(CLOCK);
        // Since boot, so neither part is negative.
        Moment(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam that the ban points to")]
    fn sleep_until(&self, moment: Moment) -> Sleep {
        Box::pin(async move {
            loop {
                let left = moment.since(BootClock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(SLICE)).await;
            }
        })
    }

    fn wall_millis(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
    }
}
