//! PostgreSQL as source, coordination store, checkpoint store and sink.
#![deny(missing_docs)]

mod checkpoint;
mod client;
mod config;
mod error;
mod json;
mod lease;
mod records;
pub mod replication;
mod sink;

pub use checkpoint::Checkpoints;
pub use client::{Client, Dedicated, Link, Pulse, Value, Work};
pub use config::Config;
pub use error::{Class, Doing, told};
pub use lease::Leases;
pub use records::Notes;
pub use replication::Replication;
pub use sink::{Apply, Each, Events, Failure, Handle, Mirror, Open, Table, Transactional, Versioned, refuse};
pub use {deadpool_postgres, tokio_postgres};
