use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use watchkeeper_core::clock::{Clock, Moment, Sleep};

use super::executor::{Executor, ORIGIN_NANOS, TimerKey};

/// The wall clock at the beginning of every world: the first second of 2026.
const WALL_START_MILLIS: u64 = 1_767_225_600_000;

const MILLION: i128 = 1_000_000;

/// A clock with an offset and a drift of its own against the true time.
#[derive(Debug, Clone)]
pub(super) struct NodeClock {
    executor: Arc<Executor>,
    offset: Duration,
    /// Own nanoseconds in a million true ones; more than zero.
    rate: i128,
}

impl NodeClock {
    /// # Panics
    /// When the clock would stand still or go back.
    pub(super) fn new(executor: Arc<Executor>, offset: Duration, rate_ppm: i64) -> Self {
        let rate = MILLION + i128::from(rate_ppm);
        assert!(rate > 0, "a clock goes forward");
        Self { executor, offset, rate }
    }

    /// Own nanoseconds since the beginning, offset included.
    fn elapsed(&self) -> i128 {
        let elapsed = i128::from(self.executor.now() - ORIGIN_NANOS);
        self.offset_nanos() + elapsed * self.rate / MILLION
    }

    fn offset_nanos(&self) -> i128 {
        i128::try_from(self.offset.as_nanos()).unwrap_or(i128::MAX / 4)
    }

    /// The first true time at which this clock shows `moment` or more.
    fn true_time(&self, moment: Moment) -> u64 {
        let own = i128::from(moment.nanos()) - i128::from(ORIGIN_NANOS) - self.offset_nanos();
        // Rounded up: a timer may be late, never early.
        let elapsed = (own * MILLION + self.rate - 1).div_euclid(self.rate);
        narrow(i128::from(ORIGIN_NANOS) + elapsed)
    }
}

fn narrow(nanos: i128) -> u64 {
    u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
}

impl Clock for NodeClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(narrow(i128::from(ORIGIN_NANOS) + self.elapsed()))
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        Box::pin(Timer { executor: Arc::clone(&self.executor), at: self.true_time(moment), key: None })
    }

    fn wall_millis(&self) -> u64 {
        WALL_START_MILLIS + narrow(self.elapsed()) / 1_000_000
    }
}

/// Done at `at` of the true time.
struct Timer {
    executor: Arc<Executor>,
    at: u64,
    key: Option<TimerKey>,
}

impl Timer {
    fn clear(&mut self) {
        if let Some(key) = self.key.take() {
            self.executor.clear_timer(key);
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = &mut *self;
        if timer.executor.now() >= timer.at {
            timer.clear();
            return Poll::Ready(());
        }
        timer.executor.set_timer(timer.at, &mut timer.key, context.waker());
        Poll::Pending
    }
}

impl Drop for Timer {
    /// A timer that nobody waits for must not move time.
    fn drop(&mut self) {
        self.clear();
    }
}
