//! One test program for the crate, on real servers of two versions.

mod backend;
mod changelog;
mod columns;
mod conformance;
mod divided;
mod domains;
mod errors;
mod following;
mod mirror;
mod replication;
mod rows;
mod sink;
mod specifics;
mod support;
mod takeover;
mod tls;
