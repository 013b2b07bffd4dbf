//! PostgreSQL as source, coordination store, checkpoint store and sink.
//!
//! * [`Leases`] count time by the server's own clock (`clock_timestamp()`); their epochs are kept for ever.
//! * [`Checkpoints`] refuse all but the newest claim; what they pass over stands in a ledger that is written with them.
//! * [`RecordStore`] are records: small documents and logs.
//! * [`Replication`] is a source: the write-ahead log, read through a replication slot.
//! * [`Transactional`] is a sink that writes changes and checkpoint in one transaction: as [`Events`], into a [`Mirror`] of the
//!   newest documents, as [`Rows`] of a table with typed columns, or by a handler ([`Handle`]) that is given the open transaction.
//! * [`Versioned`] is a mirror in a database that does not keep the checkpoint, and [`VersionedRows`] are typed rows there.
//! * [`ChangeLog`] is a source: a log that triggers fill ([`changelog::install`]), or an outbox that an application fills itself.
//!
//! All of them live in one schema, `watchkeeper`, whose tables are versioned and made where they are missing. A [`Client`] is a pool
//! of connections; nothing is ever repeated by it, since only the engine knows how much of a lease is left.
//!
//! # Why deadpool, and not sqlx
//! Connections are those of `tokio-postgres`, pooled by `deadpool-postgres`. sqlx cannot stand in one lock file with the SQLite that
//! Watchkeeper is built with (both link `sqlite3`, in different versions), even where only its PostgreSQL part is used. And three
//! things are needed that `tokio-postgres` gives: statements that are sent together, so that `BEGIN`, a statement and `COMMIT` are one
//! round trip; statements without a name (`query_typed`), so that PgBouncer may pool by transaction; and connections that can be taken
//! out of the pool, since one whose call was given up would make the next call wait for what is still running on it.
#![deny(missing_docs)]

mod backend;
pub mod changelog;
mod check;
mod checkpoint;
mod client;
mod config;
mod error;
mod feedback_loop;
mod json;
mod lease;
mod records;
pub mod replication;
mod sink;
mod table_name;
mod tools;

pub use backend::Postgres;
pub use changelog::ChangeLog;
pub use checkpoint::Checkpoints;
pub use client::{ChangeHints, Client, Dedicated, Link, Value, Work};
pub use config::Config;
pub use error::{CallPurpose, Class, to_error};
pub use lease::Leases;
pub use records::RecordStore;
pub use replication::Replication;
pub use sink::{
    Apply, Events, Failure, Handle, Mirror, Missing, Open, PerChange, Rows, Table, Transactional, Versioned,
    VersionedRows, refuse,
};
pub use {deadpool_postgres, tokio_postgres};
