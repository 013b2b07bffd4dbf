//! Counts changes, and tells when there are enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use watchkeeper_core::{Error, Result};

/// How long anything here may take before the benchmark is called broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A count with a target.
#[derive(Debug)]
pub(crate) struct Tally {
    count: AtomicU64,
    target: u64,
    reached: Notify,
}

impl Tally {
    /// Nothing yet of `target`.
    pub(crate) fn up_to(target: u64) -> Self {
        Self { count: AtomicU64::new(0), target, reached: Notify::new() }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Counts `more`.
    pub(crate) fn add(&self, more: u64) {
        self.moved(self.count.fetch_add(more, Ordering::AcqRel) + more);
    }

    /// There are `count` now.
    pub(crate) fn raise(&self, count: u64) {
        self.moved(self.count.fetch_max(count, Ordering::AcqRel).max(count));
    }

    fn moved(&self, count: u64) {
        if count >= self.target {
            // Kept until someone asks.
            self.reached.notify_one();
        }
    }

    /// Waits for the target.
    pub(crate) async fn reached(&self) -> Result<()> {
        let waited = tokio::time::timeout(PATIENCE, self.reached.notified()).await;
        let cause = || format!("only {} of {} changes after {PATIENCE:?}", self.count(), self.target);
        waited.map_err(|_| Error::unavailable(cause()))
    }
}
