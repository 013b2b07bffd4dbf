//! The vocabulary of Watchkeeper: names, contracts and seams.
//!
//! The engine decides, a backend talks to a database; this crate defines what they exchange. It does no I/O except
//! reading the clock, and it names no backend.
//!
//! * Data: [`names`], [`position`], [`change`], [`ledger`]; changes as types of the user: [`decode`].
//! * Seams that make the engine simulable: [`clock`], [`spawn`], [`peers`], [`entropy`], joined in [`Cx`] for every
//!   call.
//! * Contracts: [`lease`], [`checkpoint`], [`records`], [`source`], [`sink`]. Each method lists its behaviour as
//!   numbered sentences (L for leases, C for checkpoints, R for records, S for sources, K for sinks, T for
//!   transactions). The laws in `watchkeeper-testkit` that test them have the same numbers.
//! * Systems as a configuration file names them: [`backend`], [`options`].
//! * The reference implementation of every contract, in memory: [`memory`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `names` | `LeaseKey`, `InstanceId`, `TenureId`, `Epoch`, and `Grant`, which is passed to every call that changes something |
//! | `position` | resume positions, pedigrees, versions, start positions, how far the history reaches back |
//! | `change` | `Batch` (two buffers), `Row` (ranges in them), `Change` (owned and cheap), deterministic change ids, key hashes |
//! | `decode` | changes as `serde` types: `build` makes a value from what a payload visits, `deserialize` makes a type from the value |
//! | `payload` | lazy decoding by path or by walk; `payload::json` keeps every digit of a number |
//! | `format` | output formats over the walk: `native`, `debezium`, `cloudevents`; `json` is the writer |
//! | `ledger` | dead letters, parked changes, skips and gaps |
//! | `lease`, `checkpoint`, `records` | the contracts of the three stores |
//! | `source`, `sink` | the contracts of sources and open change streams, and of sinks with their grades and writers |
//! | `error` | the kinds of error (each implies a reaction), the component whose call failed; `error::corrupt` finds an undecodable change inside wrapped errors |
//! | `options` | settings that know where they were written; `collector` reports all errors at once, `renewable` reads secrets again when access is denied |
//! | `backend` | opens, validates (without a connection), checks (without changes) and describes a system; its tools |
//! | `cx` | `Cx`: clock, deadlines and cancellation of a call |
//! | `clock`, `spawn`, `peers`, `entropy` | the seams: time, tasks, proof of death, randomness |
//! | `latest` | the latest value of something; waiters are woken in the order in which they began to wait |
//! | `memory` | leases that can forget everything on request, checkpoints with ledger, records, a log that prunes what is acknowledged, sinks of every grade |
#![deny(missing_docs)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod backend;
pub mod change;
pub mod checkpoint;
pub mod clock;
pub mod cx;
pub mod decode;
pub mod entropy;
pub mod error;
pub mod format;
pub mod latest;
pub mod lease;
pub mod ledger;
pub mod memory;
pub mod names;
pub mod options;
pub mod payload;
pub mod peers;
pub mod position;
pub mod records;
pub mod sink;
pub mod source;
pub mod spawn;

pub use backend::{
    Argument, Backend, Inspection, Offer, Purpose, Reading, Report, SinkPlan, SourceDescription, SourcePlan, Takes,
    Target, Tool,
};
pub use change::{Batch, BatchBuilder, Change, ChangeId, Operation, Row, RowParts};
pub use checkpoint::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Facts, Halted, Reason, StoreIdentity,
};
pub use clock::{BootClock, Clock, Moment};
pub use cx::Cx;
pub use decode::Update;
pub use entropy::Entropy;
pub use error::{Component, Error, ErrorKind, Result};
pub use latest::{Follower, Latest};
pub use lease::{
    AcquireRequest, Acquired, Candidate, Ending, Holder, Lease, LeaseProfile, LeaseStore, Previous, Released, Renewal,
    Wakeups,
};
pub use ledger::{LedgerEntry, LedgerKind, LedgerQuery, LedgerRecord, Resolution, StoredChange};
pub use names::{Address, Epoch, Grant, InstanceId, LeaseKey, TenureId};
pub use options::{Collector, Options, Origin, Renewable, Reread, Setting, WrittenSetting};
pub use payload::{Image, Payload, ValueRef, Visit};
pub use peers::{HeldTenures, Listening, NoPeers, Peers, Verdict};
pub use position::{OperationTime, Pedigree, Position, Room, SourceTime, StartAt, Version, Window};
pub use records::{PutOutcome, Record, Records, Revision};
pub use sink::{
    Fault, FaultKind, FlushRejection, Grade, OpenedSink, Sink, SinkContext, SinkProfile, SinkTarget, SinkWriter,
    Transacted, TransactionalWriter, Written, rename_rejection,
};
pub use source::{ChangeStream, Finding, Limits, Positions, Severity, Source, Stage};
pub use spawn::{Spawn, Task, TokioSpawn};
