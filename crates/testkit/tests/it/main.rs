//! The testkit judged by itself.

mod world;
