//! PostgreSQL as source, coordination store, checkpoint store and sink.
#![deny(missing_docs)]

mod checkpoint;
mod client;
mod config;
mod error;
<<<<<<< HEAD
mod json;
mod lease;
mod records;
mod sink;
=======
pub mod replication;
>>>>>>> wip-pgrepl

pub use checkpoint::Checkpoints;
pub use client::{Client, Dedicated, Link, Pulse, Value, Work};
pub use config::Config;
pub use error::{Class, Doing, told};
<<<<<<< HEAD
pub use lease::Leases;
pub use records::Notes;
pub use sink::{Apply, Each, Events, Failure, Handle, Mirror, Open, Table, Transactional, Versioned, refuse};
=======
pub use replication::Replication;
>>>>>>> wip-pgrepl
pub use {deadpool_postgres, tokio_postgres};
