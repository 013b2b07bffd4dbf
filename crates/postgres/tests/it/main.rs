//! One test program for the crate, on real servers of two versions.

mod changelog;
mod conformance;
mod errors;
mod replication;
mod sink;
mod specifics;
mod support;
mod tls;
