//! What a consumer counts and uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::live::Stopwatch;

/// Said with the first change.
pub(super) const BEGUN: &str = "begun";

/// Counts, and knows when it began and ended.
#[derive(Debug)]
pub(super) struct Meter {
    count: AtomicU64,
    wanted: u64,
    pub(super) done: Notify,
    /// How late changes came, where they are read live.
    pub(super) stopwatch: Stopwatch,
}

impl Meter {
    pub(super) fn up_to(wanted: u64) -> Arc<Self> {
        let (count, done) = (AtomicU64::new(0), Notify::new());
        Arc::new(Self { count, wanted, done, stopwatch: Stopwatch::default() })
    }

    /// Counts; whether that was the last.
    pub(super) fn add(&self, more: u64) -> bool {
        let before = self.count.fetch_add(more, Ordering::AcqRel);
        if before == 0 {
            println!("{BEGUN}");
        }
        let last = before + more >= self.wanted;
        if last {
            self.done.notify_one();
        }
        last
    }
}

/// When consuming began, and how much of the processor was used before.
pub(super) struct Start(Instant, f64);

impl Start {
    pub(super) fn now() -> Self {
        Self(Instant::now(), cpu())
    }

    /// What it took until now.
    pub(super) fn took(&self) -> Measurement {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Measurement { seconds: self.0.elapsed().as_secs_f64(), cpu: cpu() - self.1, megabytes: megabytes(&status) }
    }
}

/// What it took to read everything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) seconds: f64,
    /// CPU seconds.
    pub(super) cpu: f64,
    pub(super) megabytes: f64,
}

impl Measurement {
    /// As a consumer tells it.
    pub(super) fn to_json(self, changes: u64) -> serde_json::Value {
        let (changes, megabytes) = (changes as f64, self.megabytes);
        serde_json::json!({ "rate": changes / self.seconds, "cpu": self.cpu / changes * 1e6, "megabytes": megabytes })
    }
}

/// CPU time of all threads of this process.
fn cpu() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// The most memory that a process ever had, by what the kernel tells of it in its file `status`.
pub(super) fn megabytes(status: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1_024.0
}
