//! Seeded randomness: repeatable, and within its bounds.

use std::time::Duration;

use watchkeeper_core::Entropy;

/// The published first numbers of SplitMix64 from seed 0: a seed that failed once must fail for ever.
#[test]
fn the_sequence_of_a_seed_is_fixed() {
    let entropy = Entropy::seeded(0);
    let first = [entropy.next(), entropy.next(), entropy.next()];
    assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
}

#[test]
fn the_same_seed_gives_the_same_identities() {
    let [one, same, other] = [7, 7, 8].map(Entropy::seeded);
    let (tenure, instance) = (one.tenure(), one.instance());
    assert_eq!((tenure, instance), (same.tenure(), same.instance()));
    assert_ne!(tenure, other.tenure());
    assert_ne!(tenure.0, instance.0);
    assert_eq!(tenure.0.get_version_num(), 4);
}

#[test]
fn two_processes_differ() {
    assert_ne!(Entropy::from_system().uuid(), Entropy::from_system().uuid());
}

#[test]
fn jitter_lies_between_half_and_all() {
    let entropy = Entropy::seeded(1);
    let whole = Duration::from_secs(10);
    let drawn: Vec<Duration> = (0..1_000).map(|_| entropy.jitter(whole)).collect();
    assert!(drawn.iter().all(|drawn| (whole / 2..=whole).contains(drawn)));
    let spread = *drawn.iter().max().expect("drawn") - *drawn.iter().min().expect("drawn");
    assert!(spread > whole * 45 / 100, "jitter uses its whole range, not {spread:?} of 5 s");
    assert_eq!(entropy.jitter(Duration::ZERO), Duration::ZERO);
    assert!(entropy.jitter(Duration::from_nanos(1)) <= Duration::from_nanos(1));
    assert!(entropy.jitter(Duration::MAX) <= Duration::MAX);
}

#[test]
fn numbers_stay_below_their_bound() {
    let entropy = Entropy::seeded(2);
    let drawn: Vec<u64> = (0..200).map(|_| entropy.below(3)).collect();
    assert_eq!([0, 1, 2].map(|number| drawn.contains(&number)), [true; 3]);
    assert!(drawn.iter().all(|number| *number < 3));
    assert_eq!(entropy.below(0), 0);
}
