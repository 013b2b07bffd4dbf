//! One test program for the crate.

mod changelog;
mod conformance;
mod errors;
mod replication;
mod sink;
mod specifics;
mod support;
mod tls;
