//! MongoDB, on real servers.

mod conformance;
mod errors;
mod specifics;
mod support;
