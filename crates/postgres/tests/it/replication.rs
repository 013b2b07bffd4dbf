//! The write-ahead log as a source.

mod bench;
mod conformance;
