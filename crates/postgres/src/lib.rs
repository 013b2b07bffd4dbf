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
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `config` | PostgreSQL as a configuration file names it; URLs, service files, variables and passwords as libpq reads them (`address`), libpq parameters that are not followed (`ignored_parameters`), trust in certificates (`tls`) |
//! | `client` | `BEGIN`, statement and `COMMIT` in one round trip; `work` is a transaction, `link` a connection that is closed when its call is given up, `change_hints` wakes waiters by LISTEN, `schema` migrates tables |
//! | `error`, `table_name` | one table by SQLSTATE; tables as people write them |
//! | `lease`, `checkpoint`, `records` | every rule is one statement (`sql`); a claim ends the session that has locked an older one |
//! | `feedback_loop` | detects a sink that writes into what its own stream watches, by triggers (`log`) or publications (`published`); `named` has the names in a filter as changes have them |
//! | `check`, `tools` | servers, rights, tables and foreign keys of targets; the command `setup` |
//!
//! | module in `sink` | contents |
//! |---|---|
//! | `sink` itself | writes the checkpoint first, so that an open transaction is found by its lock |
//! | `rekey` | values that did not change move with their row to its new key |
//! | `divide`, `deferred` | finds the changes that a target refuses, at once or only at its commit |
//! | `rows` | fields into typed columns: `encode` writes each value for its type or refuses it, `literal` handles arrays, `hstore` and vectors, `origins` whether rows of several tables lie in one, `known_fields` columns that come and go, `plan` the fewest statements, `versioned` copies without checkpoint |
//! | `image`, `name`, `tables`, `versioned` | changes as JSON; names; tables of the sink; versioned mirrors |
//!
//! | module in `changelog` | contents |
//! |---|---|
//! | `position`, `snapshot`, `durable` | what has been read, as snapshots; what a crash cannot undo |
//! | `query`, `read`, `reader` | one query to the server; rows to changes; the open log |
//! | `retention`, `pedigree`, `guard` | acknowledgements and pruning; whose log it is; deletions that are not pruning |
//! | `schema`, `statement`, `fast_path`, `triggers`, `install` | tables and row triggers; statement triggers; a cheaper function for plain tables; which triggers a table has; installation |
//! | `since_installed`, `hardening`, `shape`, `named` | what changed since installation; hostile sessions and names; the catalog; which table a name means |
//! | `requirements`, `check`, `start`, `times` | what has to exist when a stream is opened; checks; where to begin; which transactions had ended at a time |
//! | `changed`, `exact`, `columns`, `outbox`, `tools` | changed columns; values that JSON cannot hold exactly; the columns of a log or an outbox; outboxes; commands |
//!
//! | module in `replication` | contents |
//! |---|---|
//! | `connect`, `wire`, `binding`, `socket` | a client for the replication protocol; SCRAM bound to the certificate; sockets that rest while the reader is behind |
//! | `task` | owns the socket and answers the server while a sink is slow; `receive_buffer`, `rewind` |
//! | `pgoutput`, `relation`, `catalog`, `keys` | messages as slices; tables and keys, in the log and in the catalog |
//! | `decode`, `batch`, `spool` | messages to rows; batches; transactions that arrive before their commit |
//! | `body`, `value`, `position` | columns decoded on access; values; log positions |
//! | `slot`, `publication`, `rights`, `waiting`, `orphans`, `lag` | what has to exist, who may create it, for whom a new slot waits, slots of removed streams, how much log a slot holds |
//! | `publication_definition`, `publication_diff`, `publication_fingerprint`, `publication_watcher` | what a publication consists of, its changes, a cheap fingerprint, and the task that watches it |
//! | `lineage`, `version_origin`, `proof` | whose log it is; how that ranks versions; messages of our own that identify a quiet log |
//! | `open`, `reader`, `snapshot`, `standby_snapshot_logger` | from a start to a stream; the open stream; what exists already; how much the server decodes again after a takeover |
//! | `preflight`, `settings`, `failure` | where a stream would begin; settings; what connection failures mean |
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
