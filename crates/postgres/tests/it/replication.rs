//! The write-ahead log as a source.

mod altered;
mod bench;
mod conformance;
mod copies;
mod entry;
mod fed;
mod lag;
mod named;
mod promotion;
mod refused;
mod rekeyed;
mod resumed;
mod rows;
mod slots;
mod snapshot;
mod streaming;
mod toasted;
mod torn;
mod writers;
