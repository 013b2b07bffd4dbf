//! SQLite as source, coordination store, checkpoint store and sink, for several processes on one machine.
//!
//! * [`Leases`] and [`RecordStore`] (records) belong into a file of their own: a long write transaction of an
//!   application blocks every other writer of its file, and so would block renewals.
//! * [`Checkpoints`] are kept there too, or, with a transactional sink, in the database of that sink.
//!
//! * [`ChangeLog`] is a source: a log that triggers fill, made by [`tools::install`] in the application's own database.
//! * [`Transactional`] is a sink that writes changes and checkpoint in one transaction: into a table of [`Events`], into a
//!   [`Mirror`] of the newest rows, or by a closure that is given the open transaction.
//!
//! Time is the machine's own: the boot id and `CLOCK_BOOTTIME`, which all processes share and which
//! includes suspend. What was written under another boot id has expired. A container with a time namespace of
//! its own has another `CLOCK_BOOTTIME` and must not share these files; neither must another machine,
//! so network filesystems are refused.
//!
//! SQLite is synchronous: a [`Client`] is one connection on an OS thread of its own that is sent closures.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `config`, `clock`, `error` | SQLite as a configuration file names it; settings; the clock of the machine; one table from codes to kinds |
//! | `client` | one thread per connection; `evict` kills a stopped predecessor that blocks the file, `link` notices a replaced file |
//! | `lease`, `checkpoint`, `records` | the three stores |
//! | `source` | the log that triggers fill: `reader`, `read`, `position`; `times` notes what was committed when, for a start by time; `payload` has values that JSON lacks; `guard` notices tables that lost their triggers |
//! | `sink`, `feedback` | transactional sinks; a sink that writes into what its own stream watches |
//! | `tools` | the commands; `triggers`, `keys`, `marks`, `shape` and `written` make the triggers, `alter` runs ALTER TABLE between two sets of them |
#![deny(missing_docs)]

mod backend;
mod checkpoint;
mod client;
mod clock;
mod config;
mod error;
mod feedback;
mod json;
mod lease;
mod records;
mod sink;
mod source;
pub mod tools;

pub use backend::Sqlite;
pub use checkpoint::Checkpoints;
pub use client::Client;
pub use config::Config;
pub use error::Failure;
pub use lease::Leases;
pub use records::RecordStore;
pub use rusqlite;
pub use sink::{Apply, Events, Mirror, Transactional};
pub use source::{ChangeLog, Retention};
