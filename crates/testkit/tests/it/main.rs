//! The testkit judged by itself.

mod conformance;
mod faults;
mod history;
mod matrix;
mod servers;
mod world;
