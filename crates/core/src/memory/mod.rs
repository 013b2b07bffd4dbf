//! The reference of every contract, in memory.
//!
//! They pass the same laws as the real ones and are what those laws are read against. One
//! [`Leases`], [`Checkpoints`] or [`RecordStore`] stands for a server: cheap clones of it are its clients.

mod checkpoint;
mod lease;
mod records;
mod sink;
mod source;

pub use checkpoint::{Checkpoints, Ledgered};
pub use lease::Leases;
pub use records::RecordStore;
pub use sink::{Delivered, Table, TableSink, TransactionalTable};
pub use source::{Log, NewChange};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic while a lock is held is a test's failure elsewhere; the state below stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
