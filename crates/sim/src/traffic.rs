//! Whoever writes to the sources.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::memory::{Log, NewChange};
use watchkeeper_core::{Entropy, LeaseKey, Operation, SourceTime};
use watchkeeper_testkit::World;
use watchkeeper_testkit::history::SourceChange;

use crate::ground_truth::GroundTruth;

/// How many keys there are.
const KEYS: u64 = 12;

/// Writes to one log until it is told to stop.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// The world.
    pub world: World,
    /// The log.
    pub log: Log,
    /// The stream that reads it.
    pub key: LeaseKey,
    /// What is so.
    pub truth: GroundTruth,
    /// Randomness of its own.
    pub entropy: Arc<Entropy>,
    /// Changes per second.
    pub rate: u64,
}

impl Traffic {
    /// Writes until `stop`; what it wrote is in `written`.
    pub async fn run(self, stop: CancellationToken, written: Arc<std::sync::Mutex<Vec<SourceChange>>>) {
        let pause = Duration::from_micros(1_000_000 / self.rate.max(1));
        while !stop.is_cancelled() {
            let burst = if self.entropy.below(20) == 0 { 30 } else { 1 };
            for _ in 0..burst {
                self.write(&mut written.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            }
            let wait = self.entropy.jitter(pause * 2 * burst);
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.world.clock().sleep_until(self.world.now() + wait) => {}
            }
        }
    }

    fn write(&self, written: &mut Vec<SourceChange>) {
        match self.entropy.below(100) {
            0 | 1 => self.append(written, Operation::Truncate, None, UpdateHalf::Whole),
            2..=4 => {
                let (old, new) = (self.entropy.below(KEYS), self.entropy.below(KEYS));
                self.append(written, Operation::Delete, Some(old), UpdateHalf::First);
                self.append(written, Operation::Insert, Some(new), UpdateHalf::Second);
            }
            _ => self.append(written, Operation::Update, Some(self.entropy.below(KEYS)), UpdateHalf::Whole),
        }
    }

    fn append(&self, written: &mut Vec<SourceChange>, operation: Operation, key: Option<u64>, half: UpdateHalf) {
        let key = key.map(|key| Bytes::copy_from_slice(&key.to_be_bytes()));
        let change = NewChange {
            operation,
            namespace: "things".to_owned(),
            key: key.clone(),
            body: Bytes::from_static(b"{}"),
            first_half: half == UpdateHalf::First,
        };
        let time = SourceTime(self.world.now().nanos() / 1_000_000);
        let next = self.log.newest() + 1;
        let (position, suffix) = match half {
            UpdateHalf::Whole => (next, ""),
            UpdateHalf::First => (next + 1, ""),
            UpdateHalf::Second => (next, ".1"),
        };
        if half == UpdateHalf::First {
            self.truth.halved(&self.key, position);
        }
        written.push(SourceChange { number: next, key, id: format!("{}:{position:016x}{suffix}", self.log.name()) });
        self.log.append(change, time);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UpdateHalf {
    Whole,
    First,
    Second,
}
