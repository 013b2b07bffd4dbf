//! The change log, on real servers of two versions.

mod configured;
mod crowd;
mod duties;
mod interleavings;
mod keeping;
mod keys;
mod laws;
mod mapping;
mod partitions;
mod prepared;
mod quiet;
mod renamed;
mod restored;
mod statements;
mod support;
mod triggers;

pub(crate) use support::LIMITS;
