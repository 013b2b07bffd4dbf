//! One test program for the crate.

mod conformance;
mod replication;
mod support;
