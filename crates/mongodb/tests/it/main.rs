//! MongoDB, on real servers.

mod conformance;
mod errors;
mod sink;
mod specifics;
mod support;
