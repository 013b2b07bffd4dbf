//! The write-ahead log as a source.

mod altered;
mod anchored;
mod bench;
mod conformance;
mod copies;
mod entry;
mod fed;
mod keyless;
mod lag;
mod named;
mod parts;
mod promotion;
mod refused;
mod rekeyed;
mod renamed;
mod resumed;
mod rewritten;
mod rows;
mod slots;
mod snapshot;
mod streaming;
mod toasted;
mod torn;
mod writers;
