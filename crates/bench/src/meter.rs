//! What a process has used: CPU time, and its heap by way of a counting allocator.

use std::alloc::System;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of heap in use now. Two counters are read one after the other, so a figure taken while other
/// threads work may be off by what they do in between.
pub(crate) fn heap_in_use() -> usize {
    let stats = HEAP.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

fn allocations() -> usize {
    let stats = HEAP.stats();
    stats.allocations + stats.reallocations
}

/// CPU time of all threads of this process, in user and kernel mode.
fn cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    // Since the start of the process, so neither part is negative.
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or_default())
}

/// What something has cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// CPU time of the whole process.
    pub(crate) cpu: Duration,
    /// Time on the wall.
    pub(crate) wall: Duration,
    /// Allocations and reallocations.
    pub(crate) allocations: usize,
}

/// Measures from its start.
#[derive(Debug)]
pub(crate) struct Meter {
    began: Instant,
    cpu: Duration,
    allocations: usize,
}

impl Meter {
    /// Begins to measure.
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), cpu: cpu(), allocations: allocations() }
    }

    /// Time since the start.
    pub(crate) fn wall(&self) -> Duration {
        self.began.elapsed()
    }

    /// CPU time and allocations since the start, with a time on the wall that was taken before.
    pub(crate) fn cost(&self, wall: Duration) -> Cost {
        Cost { cpu: cpu() - self.cpu, wall, allocations: allocations() - self.allocations }
    }
}
