//! SQLite, on real files: what every backend keeps, and what only this one does.

mod conformance;
mod evict;
mod log;
mod sink;
mod specifics;
mod support;
