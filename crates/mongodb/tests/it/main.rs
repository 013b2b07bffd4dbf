//! MongoDB, on real servers.

mod audit;
mod check;
mod conformance;
mod errors;
mod harbours;
mod reach;
mod refusing_proxy;
mod sink;
mod sink_documents;
mod sink_refusals;
mod source;
mod source_check;
mod source_errors;
mod source_pedigree;
mod source_pipelines;
mod source_scan;
mod source_snapshot;
mod source_still;
mod source_volume;
mod source_ways;
mod specifics;
mod support;
mod tls;
mod tools;
mod without;
