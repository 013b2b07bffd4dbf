//! Which log changes come from, and how that ranks their versions.
//!
//! Targets that keep the newest version of each key compare versions for years, also when the source has moved to another server whose log
//! begins anew, or to a standby that had not received all. A place in the log alone would make all that is new there look old. So
//! versions begin with the time at which the server's cluster was made, which is part of its identifier, and with its timeline.

use std::sync::Arc;

use watchkeeper_core::Version;

/// Seconds since 1970 from which clusters are counted. Those of servers that can be read were made later.
const BEGINNING: u64 = 1_500_000_000;

/// Both numbers of a version stay below 2^63, so that every database can hold them: 31 bits for the second, 10 for the timeline,
/// 53 for the place, whose records begin at multiples of eight, and 32 for the change in its transaction.
const SECONDS_MAX: u64 = (1 << 31) - 1;
const TIMELINE_MAX: u64 = (1 << 10) - 1;
const PLACE_LOW_BITS: u32 = 31;
const ORDINAL_MAX: u64 = (1 << 32) - 1;

/// The log that changes come from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    /// The first part of the ids of changes.
    pub(super) name: Arc<str>,
    /// What the versions of changes begin with.
    rank: u64,
}

impl Origin {
    /// The log of the cluster with this identifier. The change of a timeline leaves the ids of changes as they are, but not their rank.
    pub(super) fn new(name: String, system: &str, timeline: u32) -> Self {
        let made = system.parse::<u64>().unwrap_or_default() >> 32;
        let second = made.saturating_sub(BEGINNING).min(SECONDS_MAX);
        Self { name: name.into(), rank: second << 32 | u64::from(timeline).min(TIMELINE_MAX) << 22 }
    }

    /// The version of a change whose place in the log and in its transaction is `within`.
    pub(super) fn version(&self, within: Version) -> Version {
        let place = within.time >> 3;
        let (high, low) = (place >> PLACE_LOW_BITS, place & ((1 << PLACE_LOW_BITS) - 1));
        Version { time: self.rank | high, ordinal: low << 32 | within.ordinal.min(ORDINAL_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Origin, Version};

    fn of(second: u64, timeline: u32, lsn: u64, ordinal: u64) -> Version {
        let system = (second << 32 | 0x1234_5678).to_string();
        Origin::new("it".to_owned(), &system, timeline).version(Version { time: lsn, ordinal })
    }

    #[test]
    fn younger_clusters_and_timelines_rank_above_longer_logs() {
        let now = 1_794_000_000;
        let rising = [
            // As versions were before they had ranks.
            Version { time: 1 << 55, ordinal: 7 },
            of(now, 1, 0x10, 0),
            of(now, 1, 0x18, 0),
            of(now, 1, 0x18, 1),
            of(now, 1, 0x18, 1 << 31),
            of(now, 1, 1 << 34, 0),
            of(now, 1, 1 << 55, 0),
            of(now, 2, 0x10, 0),
            of(now, 2, 1 << 55, 9),
            of(now + 1, 1, 0x10, 0),
        ];
        assert!(rising.is_sorted_by(|a, b| a < b), "{rising:?}");
        let last = of(u64::MAX >> 32, u32::MAX, (1 << 56) - 1, u64::MAX);
        assert!(last.time <= i64::MAX as u64 && last.ordinal <= i64::MAX as u64, "{last:?}");
    }
}
