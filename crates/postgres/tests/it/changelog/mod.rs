//! The change log, on real servers of two versions.

mod laws;
mod support;
