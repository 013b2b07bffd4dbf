//! SQLite, on real files: what every backend keeps, and what only this one does.

mod backend;
mod columns;
mod conformance;
mod deleted;
mod evict;
mod log;
mod odd;
mod reals;
mod rebuilt;
mod replaced;
mod restored;
mod sink;
mod specifics;
mod support;
mod times;
