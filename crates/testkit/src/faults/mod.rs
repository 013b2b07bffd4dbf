//! Scripted faults: wrappers around the contracts that fail when and how a test says.
//!
//! A [`Script`] is told, per operation, what shall go wrong with the calls to come; the wrappers play
//! it. Operations have the names of the methods. What may go wrong is what goes wrong with real
//! servers: a call is refused before it had an effect, its effect happens but the answer is lost, it
//! hangs, it is slow. A call whose caller has given up may still take effect: with
//! [`Script::served_by`], what was held or delayed goes on without its caller.

mod script;
mod sink;
mod source;
mod stores;

pub use script::{Fault, Gate, Script};
pub use sink::FaultySink;
pub use source::FaultySource;
pub use stores::{FaultyCheckpoints, FaultyLeases, FaultyRecords};
