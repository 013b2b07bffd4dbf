//! The change log, on real servers of two versions.

mod configured;
mod deleted;
mod dotted;
mod duties;
mod exact;
mod fast_path;
mod hardening;
mod histories;
mod interleavings;
mod keeping;
mod keys;
mod laws;
mod many_writers;
mod mapping;
mod outbox;
mod partitions;
mod prepared;
mod quiet;
mod renamed;
mod restored;
mod since_installed;
mod statements;
mod support;
mod times;
mod triggers;
mod unlogged;
mod upkeep;

pub(crate) use support::LIMITS;
