//! The change log, on real servers of two versions.

mod configured;
mod crowd;
mod duties;
mod interleavings;
mod keeping;
mod laws;
mod mapping;
mod partitions;
mod renamed;
mod restored;
mod support;
mod triggers;
