//! One test program for the crate, on real servers of two versions.

mod backend;
mod changelog;
mod columns;
mod conformance;
mod deferred;
mod divided;
mod domains;
mod dotted;
mod errors;
mod following;
mod hostile;
mod logged;
mod mirror;
mod replication;
mod rows;
mod shared;
mod sink;
mod specifics;
mod support;
mod takeover;
mod tls;
mod unfit;
