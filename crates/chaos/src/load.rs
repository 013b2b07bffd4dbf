//! A writer that makes changes all the time, and knows what became of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use watchkeeper_core::Entropy;
use watchkeeper_drill::{Entry, Ledger};

use crate::harness::{Writer, Written};

/// So many keys, so that order within a key means something and keys have something to do beside each other.
const KEYS: u64 = 16;

/// At most so many changes in one transaction.
const TOGETHER_MAX: u64 = 4;

/// Between two writes.
const PAUSE: Duration = Duration::from_millis(2);

/// A writer with its ledger.
pub(crate) struct LedgerWriter {
    writer: Box<dyn Writer>,
    ledger: Arc<Mutex<Ledger>>,
    entropy: Entropy,
}

impl LedgerWriter {
    pub(crate) fn new(writer: Box<dyn Writer>, seed: u64) -> Self {
        Self { writer, ledger: Arc::default(), entropy: Entropy::seeded(seed) }
    }

    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a few changes; those that are acknowledged.
    pub(crate) async fn write(&mut self) -> Vec<(String, u64)> {
        let count = 1 + self.entropy.below(TOGETHER_MAX);
        let first = self.entropy.below(KEYS);
        // Keys of one transaction are different ones.
        let keys = (first..first + count).map(|at| format!("order-{}", at % KEYS));
        let ledger = Arc::clone(&self.ledger);
        let number = |key: String| {
            let number = ledger.lock().unwrap_or_else(PoisonError::into_inner).next(&key);
            (key, number)
        };
        let changes: Vec<_> = keys.map(number).collect();
        let entry = match self.writer.write(&changes).await {
            Written::Acknowledged => Entry::Acknowledged,
            Written::Unknown => Entry::Unknown,
            Written::Refused => return Vec::new(),
        };
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter().for_each(|(key, _)| ledger.enter(key, entry));
        if entry == Entry::Acknowledged { changes.clone() } else { Vec::new() }
    }
}

/// Writes until it is stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    ledger: Arc<Mutex<Ledger>>,
    task: JoinHandle<LedgerWriter>,
}

impl Load {
    pub(crate) fn start(runtime: &Handle, mut ledger_writer: LedgerWriter) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, ledger) = (Arc::clone(&stop), Arc::clone(&ledger_writer.ledger));
        let task = runtime.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                ledger_writer.write().await;
                tokio::time::sleep(PAUSE).await;
            }
            ledger_writer
        });
        Self { stop, ledger, task }
    }

    /// What was written so far.
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops writing; the pen with the ledger of all that was written.
    pub(crate) async fn finish(self) -> Result<LedgerWriter, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.map_err(|error| format!("the writer failed: {error}"))
    }
}
