//! One test program for the crate.

mod changelog;
mod support;
