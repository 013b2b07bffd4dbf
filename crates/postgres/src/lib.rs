//! PostgreSQL as source, coordination store, checkpoint store and sink.
#![deny(missing_docs)]

pub mod changelog;
mod client;
mod config;
mod error;

pub use changelog::ChangeLog;
pub use client::{Client, Dedicated, Link, Pulse, Value, Work};
pub use config::Config;
pub use error::{Class, Doing, told};
pub use {deadpool_postgres, tokio_postgres};
