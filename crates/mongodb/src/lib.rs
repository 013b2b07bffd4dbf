//! MongoDB as source, coordination store, checkpoint store and sink.
//!
//! * [`Leases`] count time by the server's own clock (`$$NOW`); their epochs are kept for ever.
//! * [`Checkpoints`] refuse all but the newest claim; what they pass over stands in a ledger that is written with them.
//! * [`RecordStore`] are records: small documents and logs.
//! * [`Feed`] is a source: the change stream of collections, of a database or of a cluster. [`FallbackEndpoints`] is one by several URLs.
//! * [`Transactional`] is a sink that writes changes and checkpoint in one transaction: as [`Events`], as an [`Audit`] log, into a
//!   [`Mirror`] of the newest documents, or by a handler ([`Handle`]) that is given the open session.
//! * [`Versioned`] is a mirror in a database that does not keep the checkpoint, such as another cluster's.
//!
//! All of them live in collections named `watchkeeper_*` of one database, written by a majority of the replica set. A
//! [`Client`] is a pool of connections to it; nothing is ever repeated by the driver, since only the engine knows how much
//! of a lease is left.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `config` | MongoDB as a configuration file names it; its settings |
//! | `client` | commands with a known outcome; `abilities` probes what a server supports, `change_hints` wakes waiters, `schema` creates collections, `driver` replaces the driver's client when access is denied |
//! | `error` | one table from MongoDB's errors to kinds |
//! | `lease` | `pipeline` has the rules as update pipelines, `observed` works on servers without `$$NOW` |
//! | `checkpoint` | `session` has transactions that end with a checkpoint, `outbox` stores ledgers on servers without transactions, `ledger` numbers entries |
//! | `records` | small documents and logs |
//! | `sink` | `writer` runs transactions, `merged_writes` merges the changes of a batch into one write per document, `validity` handles documents that servers store and not every statement accepts, `document` copies raw BSON, `name` maps changes to collections and protects our own, `versioned` and `audit` |
//! | `feedback_loop` | detects a sink that writes into what its own stream watches |
//! | `position`, `payload` | resume tokens; raw BSON, canonical keys (`key`), a fast pass over top-level fields (`scan`) |
//! | `check`, `tools` | servers and privileges; the commands `setup`, `oplog` and `audit-query` |
//!
//! | module in `source` | contents |
//! |---|---|
//! | `view`, `pipeline` | what is watched; stages that lose nothing that the stream needs |
//! | `hidden` | detects pipelines that hide changes (`condition`) or documents (`document`) that a mirror needs |
//! | `open`, `read`, `event` | opens cursors, reads raw batches, turns events into rows |
//! | `resume`, `resume_strategy` | what to try when a server refuses to resume: by time, by `startAfter`, with split or reduced events |
//! | `reduce`, `join` | events reduced to what fits; fragments of split events joined |
//! | `stall` | detects cursors that hang, as opposed to idle ones and long oplog scans |
//! | `pedigree`, `history_proof` | whose position it is; what the stream itself can prove about it |
//! | `snapshot`, `order` | reads everything that exists, in the server's order of mixed types |
//! | `check`, `preflight`, `oplog` | checks before a run; where a stream would begin; how far the oplog reaches back |
//! | `fallback` | one cluster by several URLs |
//! | `id` | values of `_id` as servers store them |
#![deny(missing_docs)]

mod backend;
mod check;
mod checkpoint;
mod client;
mod config;
mod error;
mod feedback_loop;
mod lease;
mod payload;
mod position;
mod records;
mod sink;
mod source;
mod tools;

pub use backend::MongoDb;
pub use checkpoint::Checkpoints;
pub use client::Client;
pub use config::Config;
pub use error::{CallPurpose, Class};
pub use lease::Leases;
pub use mongodb;
pub use payload::{BsonPayload, canonical_key};
pub use records::RecordStore;
pub use sink::{
    Apply, Audit, AuditQuery, Events, Failure, Handle, Mirror, Open, PerChange, Transactional, Versioned, refuse,
};
pub use source::{Before, FallbackEndpoints, Feed, Large, Scope, Shown, View};
