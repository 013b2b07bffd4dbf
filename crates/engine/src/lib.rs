//! Everything in Watchkeeper that decides.
//!
//! Read it in the order of a tenure: [`instance`] starts, [`connect`] reaches
//! sources and sinks, [`standby`] waits for a lease, [`listener`]
//! runs one tenure of one stream, [`keeper`] renews on a thread of its own, [`pipeline`] moves changes
//! from source to sinks to checkpoint, [`delivery`] hands them to handlers, [`group`] is what the
//! instances know of each other, [`election`] is all this for those who have no stream.
//!
//! The engine talks to the world only through the contracts and seams of `watchkeeper-core`.
#![deny(missing_docs)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod checkpoint;
pub mod connect;
pub mod delivery;
pub mod election;
pub mod group;
pub mod hooks;
pub mod instance;
pub mod keeper;
pub mod listener;
mod log_limit;
pub mod metrics;
pub mod pipeline;
pub mod progress;
pub mod seams;
pub mod settings;
pub mod standby;
pub mod stream;
pub mod tenure;
