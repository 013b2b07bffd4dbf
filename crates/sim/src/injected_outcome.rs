//! How handlers feel about a change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use watchkeeper_core::{Entropy, Grant};

use crate::book::Book;

/// What a handler does with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedOutcome {
    /// Takes it.
    Well,
    /// Asks to be tried again.
    Retry,
    /// Will never take it, though a replay may find it mended.
    Reject,
    /// Gives up the watch.
    Fatal,
    /// Panics.
    Panic,
}

/// The injected outcomes of all handlers. A bad one is for one change and happens once: a change that was fatal
/// twice would rightly halt the stream.
#[derive(Debug, Clone)]
pub struct InjectedOutcomes {
    book: Book,
    entropy: Arc<Entropy>,
    felt: Arc<Mutex<BTreeMap<String, u32>>>,
    bad: Arc<Mutex<bool>>,
    rejects: bool,
}

impl InjectedOutcomes {
    /// Handlers that feel well; with `rejects` they may also reject for good.
    pub fn new(book: Book, seed: u64, rejects: bool) -> Self {
        let entropy = Arc::new(Entropy::seeded(seed));
        Self { book, entropy, felt: Arc::default(), bad: Arc::default(), rejects }
    }

    /// Whether bad moods are felt from now on.
    pub fn set_bad(&self, bad: bool) {
        *self.bad.lock().unwrap_or_else(PoisonError::into_inner) = bad;
    }

    /// How a handler feels about the change `id`, under `grant`.
    pub fn of(&self, id: &str, grant: &Grant) -> InjectedOutcome {
        if !*self.bad.lock().unwrap_or_else(PoisonError::into_inner) {
            return InjectedOutcome::Well;
        }
        let mut felt = self.felt.lock().unwrap_or_else(PoisonError::into_inner);
        let times = felt.entry(id.to_owned()).or_default();
        *times += 1;
        if *times > 1 {
            return InjectedOutcome::Well;
        }
        let outcome = match self.entropy.below(200) {
            0 => InjectedOutcome::Fatal,
            1..=4 => InjectedOutcome::Panic,
            5..=10 => InjectedOutcome::Retry,
            11..=14 if self.rejects => InjectedOutcome::Reject,
            _ => return InjectedOutcome::Well,
        };
        drop(felt);
        self.book.event(format_args!("mood {outcome:?} about {id} under epoch {}", grant.epoch));
        self.book.count(match outcome {
            InjectedOutcome::Fatal => "fatal handlers",
            InjectedOutcome::Reject => "rejections",
            _ => "handler failures",
        });
        outcome
    }
}
