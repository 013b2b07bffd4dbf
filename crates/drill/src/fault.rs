use std::fmt;
use std::time::Duration;

use watchkeeper_core::Entropy;

/// What is done to the process that has the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP with a write in hand, for longer than the lease, then SIGCONT.
    Pause,
    /// The same inside a transaction, which blocks the target until the process is evicted.
    PauseInside,
    /// SIGTERM, and started again.
    Stop,
    /// Asked to hand over, as an operator does.
    HandOver,
    /// Its handler fails fatally.
    Fail,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Kill, Self::Pause, Self::PauseInside, Self::Stop, Self::HandOver, Self::Fail];

    /// Its name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Pause => "SIGSTOP",
            Self::PauseInside => "SIGSTOP inside",
            Self::Stop => "SIGTERM",
            Self::HandOver => "hand-over",
            Self::Fail => "handler failure",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The faults of a run, of whatever kind, each with the time to wait before it. The same seed gives the same plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan<F = Fault> {
    /// In order.
    pub faults: Vec<(Duration, F)>,
}

impl<F: Copy> Plan<F> {
    /// `count` faults of these `kinds`. Every kind comes once before any comes again, so that a short run has seen
    /// all of them too; the order within such a round, and the waits up to `calm`, are the seed's.
    pub fn seeded(seed: u64, count: usize, kinds: &[F], calm: Duration) -> Self {
        let entropy = Entropy::seeded(seed);
        let mut faults = Vec::with_capacity(count);
        let mut round = Vec::new();
        while faults.len() < count && !kinds.is_empty() {
            if round.is_empty() {
                round = kinds.to_vec();
            }
            let at = usize::try_from(entropy.below(round.len() as u64)).unwrap_or(0);
            let wait = Duration::from_micros(entropy.below(u64::try_from(calm.as_micros()).unwrap_or(u64::MAX).max(1)));
            faults.push((wait, round.swap_remove(at)));
        }
        Self { faults }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan::seeded(seed, 20, &Fault::ALL, Duration::from_millis(100))
    }

    #[test]
    fn the_seed_is_the_plan() {
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn every_kind_comes_once_before_any_comes_again() {
        for seed in 0..50 {
            let mut first: Vec<_> = plan(seed).faults[..6].iter().map(|(_, fault)| *fault).collect();
            first.sort_unstable();
            assert_eq!(first, Fault::ALL);
        }
    }
}
