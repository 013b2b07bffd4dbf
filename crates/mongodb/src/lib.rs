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
