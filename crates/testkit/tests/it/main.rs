//! The testkit judged by itself.

mod conformance;
mod world;
