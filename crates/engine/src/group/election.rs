//! Who should do what, computed by everyone alike from who is there.
//!
//! Pure and deterministic: no state, no messages. An outdated view of the members costs a needless
//! attempt, never safety, since leases decide.

use std::cmp::Reverse;

use watchkeeper_core::InstanceId;
use watchkeeper_core::change::key_hash_v1;

/// The members in the order in which they should try to run `stream`, by rendezvous hashing: each
/// stream has an order of its own, and a member that comes or goes moves no other pair.
pub fn rank(stream: &str, members: &[InstanceId]) -> Vec<InstanceId> {
    let mut ranked = members.to_vec();
    ranked.sort_unstable_by_key(|instance| (Reverse(weight(stream, *instance)), *instance));
    ranked.dedup();
    ranked
}

/// The member that looks after what the whole group does once, such as sweeping; `None` without
/// members.
pub fn elect(group: &str, members: &[InstanceId]) -> Option<InstanceId> {
    rank(group, members).first().copied()
}

fn weight(stream: &str, instance: InstanceId) -> u64 {
    // The identity has a fixed length and comes first, so no two pairs give the same bytes.
    let mut bytes = instance.0.as_bytes().to_vec();
    bytes.extend_from_slice(stream.as_bytes());
    key_hash_v1(&bytes)
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::Entropy;

    use super::*;

    fn members(count: usize) -> Vec<InstanceId> {
        let entropy = Entropy::seeded(7);
        (0..count).map(|_| entropy.instance()).collect()
    }

    #[test]
    fn the_order_of_the_input_does_not_matter() {
        let mut shuffled = members(9);
        let expected = rank("orders", &shuffled);
        let entropy = Entropy::seeded(1);
        for _ in 0..50 {
            let (a, b) = (entropy.below(9), entropy.below(9));
            shuffled.swap(usize::try_from(a).unwrap(), usize::try_from(b).unwrap());
            assert_eq!(rank("orders", &shuffled), expected);
        }
    }

    #[test]
    fn one_that_goes_moves_no_other() {
        let all = members(9);
        let leader = elect("shop", &all).unwrap();
        for gone in &all {
            let left: Vec<_> = all.iter().copied().filter(|member| member != gone).collect();
            let expected: Vec<_> = rank("shop", &all).into_iter().filter(|member| member != gone).collect();
            assert_eq!(rank("shop", &left), expected);
            assert_eq!(elect("shop", &left) == Some(leader), *gone != leader);
        }
    }

    #[test]
    fn many_streams_spread_evenly() {
        let all = members(5);
        let mut counts = vec![0_u32; all.len()];
        for stream in 0..2_000 {
            let first = rank(&format!("stream-{stream}"), &all)[0];
            counts[all.iter().position(|member| *member == first).unwrap()] += 1;
        }
        // 400 each is even; five standard deviations of a fair draw are 90.
        assert!(counts.iter().all(|count| (310..=490).contains(count)), "{counts:?}");
    }

    #[test]
    fn nobody_and_twice_the_same() {
        assert_eq!(elect("shop", &[]), None);
        let one = members(1)[0];
        assert_eq!(rank("orders", &[one, one]), [one]);
    }
}
