//! The write-ahead log as a source.

mod altered;
mod bench;
mod conformance;
mod copies;
mod entry;
mod fed;
mod inherited;
mod lag;
mod named;
mod prepared;
mod promotion;
mod refused;
mod rekeyed;
mod resumed;
mod rows;
mod slots;
mod snapshot;
mod spoilt;
mod streaming;
mod toasted;
mod torn;
mod writers;
