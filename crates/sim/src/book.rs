//! The history of a run: every event in order, its hash, counts, and what was found to be wrong.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use watchkeeper_core::change::key_hash_v1;
use watchkeeper_testkit::World;

/// The book of one run; clones are the same book.
#[derive(Debug, Clone)]
pub struct Book {
    world: World,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Debug, Default)]
struct Pages {
    trace: bool,
    hash: u64,
    events: u64,
    counts: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
}

/// Violations kept; more are only counted.
const VIOLATIONS_KEPT: usize = 20;

impl Book {
    /// An empty book; with `trace` every line is printed as it is written.
    pub fn new(world: World, trace: bool) -> Self {
        let pages = Pages { trace, ..Pages::default() };
        Self { world, pages: Arc::new(Mutex::new(pages)) }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event.
    pub fn event(&self, line: impl Display) {
        let line = format!("{:>12.6} {line}", self.world.now().nanos() as f64 / 1e9);
        let mut pages = self.pages();
        pages.events += 1;
        let mixed = [pages.hash.to_be_bytes().as_slice(), line.as_bytes()].concat();
        pages.hash = key_hash_v1(&mixed);
        if pages.trace {
            println!("{line}");
        }
    }

    /// Counts something.
    pub fn count(&self, what: &'static str) {
        self.count_many(what, 1);
    }

    /// Counts many at once.
    pub fn count_many(&self, what: &'static str, by: u64) {
        *self.pages().counts.entry(what).or_default() += by;
    }

    /// How often something was counted.
    pub fn counted(&self, what: &str) -> u64 {
        self.pages().counts.get(what).copied().unwrap_or(0)
    }

    /// Writes that an invariant is broken.
    pub fn violation(&self, sentence: impl Display) {
        let sentence = sentence.to_string();
        self.event(format_args!("VIOLATION {sentence}"));
        self.count("violations");
        let mut pages = self.pages();
        if pages.violations.len() < VIOLATIONS_KEPT {
            pages.violations.push(sentence);
        }
    }

    /// What was found to be wrong.
    pub fn violations(&self) -> Vec<String> {
        self.pages().violations.clone()
    }

    /// All counts.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.pages().counts.clone()
    }

    /// The hash over all events: the same seed gives the same.
    pub fn hash(&self) -> u64 {
        self.pages().hash
    }
}
