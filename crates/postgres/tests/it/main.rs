//! One test program for the crate, on real servers of two versions.

mod changelog;
mod conformance;
mod replication;
mod support;
