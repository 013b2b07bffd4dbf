//! What hides a backend from the drill: how it is set up, written to, watched, and read back.

mod lines;
mod mongodb;
mod postgres;
mod servers;
mod sqlite;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{CheckpointStore, Cx, Error, Result, Sink, Source};
use watchkeeper_drill::Arrival;
use watchkeeper_engine::instance::Stores;

use crate::fault_hooks::FaultHooks;

pub(crate) use servers::Servers;

/// Which kind of target a run writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Changes and checkpoint in one transaction.
    Transactional,
    /// It checks the epoch itself.
    Fenced,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Transactional => "transactional",
            Self::Fenced => "fenced",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "transactional" => Ok(Self::Transactional),
            "fenced" => Ok(Self::Fenced),
            _ => Err(format!("there is no sink {text:?}; there are: transactional, fenced")),
        }
    }
}

/// What an instance is made of.
pub(crate) struct InstanceParts {
    /// What the group shares.
    pub(crate) stores: Stores,
    /// Where changes come from.
    pub(crate) source: Arc<dyn Source>,
    /// Where they go.
    pub(crate) sink: Arc<dyn Sink>,
    /// The checkpoint's store, if it is not the group's.
    pub(crate) checkpoints: Option<Arc<dyn CheckpointStore>>,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is durable.
    Acknowledged,
    /// Nothing was written.
    Refused,
    /// It may be written.
    Unknown,
}

/// Makes changes.
#[async_trait]
pub(crate) trait Writer: Send {
    /// Writes changes, each the given number of its key, all or nothing.
    async fn write(&mut self, changes: &[(String, u64)]) -> Written;
}

/// Reads back what a target received.
#[async_trait]
pub(crate) trait Target: Send {
    /// What has arrived since the last call, or a part of it, in the order of arrival. Nothing, when that was all.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be read now; what was not told is told by a later call.
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>>;

    /// The servers were struck: what was opened at them is not asked any more.
    fn release_held(&mut self) {}
}

/// What a bare write is to be as large as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BareWriteSize {
    Lease,
    Checkpoint,
}

/// The least that a durable write costs: without a lease, a claim or a condition.
#[async_trait]
pub(crate) trait Bare: Send {
    /// Writes once more, and waits until it is durable.
    async fn write(&mut self) -> Result<()>;
}

/// What differs between the configuration files of the shipped program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The address of the group's store.
    pub(crate) store: String,
    /// The lines of the source.
    pub(crate) source: String,
    /// The folder of the file sink.
    pub(crate) folder: PathBuf,
    /// The lines of every other sink.
    pub(crate) sinks: Vec<String>,
}

/// A backend under drill. A harness lives in a place, a folder or an address, which parent and children share.
#[async_trait]
pub(crate) trait Harness: Send + Sync {
    /// Makes databases and tables.
    async fn set_up(&self, cx: &Cx) -> Result<()>;

    /// What the group shares.
    async fn stores(&self, cx: &Cx) -> Result<Stores>;

    /// What an instance is made of. A transactional target holds inside its transaction when `hooks` say so.
    async fn parts(&self, cx: &Cx, kind: Kind, hooks: &Arc<FaultHooks>) -> Result<InstanceParts>;

    /// Makes changes.
    async fn writer(&self, cx: &Cx) -> Result<Box<dyn Writer>>;

    /// Bare writes to compare with; `None` where bars are plain durations.
    async fn bare(&self, _cx: &Cx, _like: BareWriteSize) -> Result<Option<Box<dyn Bare>>> {
        Ok(None)
    }

    /// Reads a target back, from its beginning.
    async fn target(&self, cx: &Cx, kind: Kind) -> Result<Box<dyn Target>>;

    /// The settings of the shipped program: store, source, and a file sink, with a sink for every copy if `copies`.
    fn config(&self, copies: bool) -> Config;

    /// Reads the lines of the shipped program's file sink, which name no epoch, from their beginning.
    fn plain_lines(&self) -> Box<dyn Target>;

    /// Makes the tables of the copies, each with a record of every write to it.
    async fn make_copies(&self, cx: &Cx) -> Result<()>;

    /// Reads the writes to each copy, by its name, in the order in which they were committed.
    async fn copies(&self, cx: &Cx) -> Result<Vec<(&'static str, Box<dyn Target>)>>;
}

/// Reads lines with an epoch and an event of any system.
pub(crate) fn handled_lines(folder: PathBuf) -> Box<dyn Target> {
    let order = |line: &serde_json::Value| {
        let event = &line["event"];
        let after =
            if event["fullDocument"].is_object() { &event["fullDocument"] } else { &event["document"]["after"] };
        let key = ["_id", "id", "key"].iter().find_map(|name| after[name].as_str())?;
        Some((key.to_owned(), after["number"].as_u64()?))
    };
    Box::new(lines::LinesRead::of(folder, order))
}

/// The harness of this name.
pub(crate) fn named(name: &str, place: &Path) -> Result<Arc<dyn Harness>> {
    match name {
        "sqlite" => Ok(Arc::new(sqlite::Files::new(place))),
        "mongodb" => Ok(Arc::new(mongodb::Databases::at(place)?)),
        "postgres" => Ok(Arc::new(postgres::Database::at(place, postgres::From::ChangeLog)?)),
        "replication" => Ok(Arc::new(postgres::Database::at(place, postgres::From::Replication)?)),
        other => {
            let remedy = "there are: sqlite, mongodb, postgres, replication";
            Err(Error::config(format!("there is no rig {other:?}")).remedy(remedy))
        }
    }
}
