//! One test program for the crate.

mod conformance;
mod support;
//! PostgreSQL, on real servers of two versions.

mod replication;
