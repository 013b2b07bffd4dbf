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
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `laws` | one function per law, one macro per contract; a law waits on conditions with a bounded number of tries |
//! | `known_bad` | wrappers of the in-memory reference; `tests/it/matrix.txt` is the snapshot of which law finds which flaw |
//! | `faults` | wrappers that refuse, lose an answer, hold or delay, as a script says |
//! | `world` | the executor, its clock, and simulated processes (`node`); `stuck` reports who was waiting |
//! | `servers` | `guard` ends servers with their test, even if that is killed; `mongodb` runs replica sets, `postgres` single servers; `wire` is enough of MongoDB's protocol to set them up |
//! | `histories` | `draw` draws plans, `value` types and values, `model` knows what exists at each step |
//! | `history` | the judge: lost, out of order, duplicated, stale |
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
