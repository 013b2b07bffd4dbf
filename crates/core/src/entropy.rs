//! Randomness, as a seam: seeded, so that a simulation can be repeated.

use std::sync::Mutex;
use std::time::Duration;

use uuid::Uuid;

use crate::names::{InstanceId, TenureId};

/// A small seeded generator (SplitMix64) for identities and jitter. Not for secrets.
#[derive(Debug)]
pub struct Entropy {
    state: Mutex<u64>,
}

impl Entropy {
    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Self {
        Self { state: Mutex::new(seed) }
    }

    /// A generator that differs in every process.
    pub fn from_system() -> Self {
        // `RandomState` is the standard library's own source of system randomness.
        use std::hash::{BuildHasher, Hasher};
        Self::seeded(std::hash::RandomState::new().build_hasher().finish())
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; zero when `bound` is zero.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A duration between half of `duration` and all of it.
    pub fn jitter(&self, duration: Duration) -> Duration {
        let half = duration / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(self.below(nanos.saturating_add(1)))
    }

    /// A new UUID (version 4).
    pub fn uuid(&self) -> Uuid {
        let bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    /// The identity of a new instance.
    pub fn instance(&self) -> InstanceId {
        InstanceId(self.uuid())
    }

    /// The identity of a new tenure.
    pub fn tenure(&self) -> TenureId {
        TenureId(self.uuid())
    }
}
