//! PostgreSQL as source, coordination store, checkpoint store and sink.
#![deny(missing_docs)]

pub use {deadpool_postgres, tokio_postgres};
