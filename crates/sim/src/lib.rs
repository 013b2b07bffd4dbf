//! Seeded simulation of whole groups under virtual time.
//!
//! Several instances of the real engine, in one thread, against the in-memory stores, over a network
//! that delays, loses and cuts; processes that are killed, paused and restarted; handlers that fail;
//! clocks that differ. The same seed gives the same history. Invariants are checked where effects
//! happen ([`ground_truth`]) and over the whole history at the end.
//!
//! The simulation is a crate of its own because it alone, with `watchkeeper-chaos`, may enable the engine's feature
//! `mutants`.

pub mod book;
pub mod cluster;
pub mod faults;
pub mod feed;
pub mod ground_truth;
pub mod injected_outcome;
pub mod mutant;
pub mod net;
pub mod peers;
pub mod plan;
pub mod report;
pub mod run;
pub mod stores;
pub mod target;
pub mod traffic;

pub use mutant::Breakage;
pub use report::Report;
pub use run::{Options, run};
