//! One test program for the crate.

mod backend;
mod conformance;
mod errors;
mod mirror;
mod sink;
mod specifics;
mod support;
mod takeover;
mod tls;
