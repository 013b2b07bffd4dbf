//! MongoDB, on real servers.

mod conformance;
mod errors;
mod sink;
mod source;
mod source_check;
mod source_errors;
mod source_pedigree;
mod source_pipelines;
mod source_snapshot;
mod specifics;
mod support;
