//! The write-ahead log as a source.

mod bench;
mod conformance;
mod refused;
mod rows;
mod slots;
mod snapshot;
mod writers;
