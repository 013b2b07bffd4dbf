//! What a Watchkeeper backend is proved with.
//!
//! * [`world`]: a deterministic executor with virtual time, and simulated processes in it that can be
//!   paused and killed.
//! * [`faults`]: wrappers that fail when and how a test says.
//! * [`history`]: a judge of what arrived, against what the source told.
//! * [`histories`]: random histories of a source, drawn from a seed.
//! * [`known_bad`]: implementations with one flaw each, which the laws must find.
//! * [`laws`]: the laws of every contract, and the macros that make tests of them.
//! * [`servers`]: real servers, which end with the test that started them.
//!
//! It depends on core only, so that it can judge the engine as well as the backends.
#![deny(missing_docs)]

pub mod faults;
pub mod histories;
pub mod history;
pub mod known_bad;
pub mod laws;
pub mod servers;
pub mod world;

pub use world::{Node, Stuck, World};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic while a lock is held is a test's failure elsewhere; the state below stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
