//! The vocabulary of Watchkeeper: words, seams and contracts.
//!
//! Everything that decides lives in the engine, everything that talks to a database lives in a
//! backend; this crate is what they say to each other. It does no I/O but reading the clock, and it
//! names no backend.
//!
//! * Words: [`names`], [`position`], [`change`], [`ledger`]; changes as types of their user: [`decode`].
//! * Seams that make the engine simulable: [`clock`], [`spawn`], [`peers`], [`entropy`], joined in
//!   [`Cx`] for every call.
//! * Contracts: [`lease`], [`checkpoint`], [`records`], [`source`], [`sink`]. Each method lists the
//!   behaviour that its laws (in `watchkeeper-testkit`) test.
//! * What a configuration file makes of all this: [`backend`], [`options`].
//! * The reference of every contract, in memory: [`memory`].
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
