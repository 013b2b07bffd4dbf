//! A system that Watchkeeper can use, as a configuration file names it.
//!
//! This is the seam between the program and the backends: the program knows names, URLs and settings,
//! a backend makes contracts of them. A new backend brings one of these and is registered in one place;
//! the program is not touched.
//!
//! `Backend::peek_store` creates nothing. The command `check` has to refuse what a run refuses (a stream that began in
//! another store), so it asks the same record with the same code and discards what that would write.
//!
//! `Purpose::reading` tells a target the source of its stream as it is written in the file: a sink that writes into
//! what its own stream watches would feed it for ever, and only the backend can detect this. Streams that are composed
//! in the library are not checked, because source and sink are created independently there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::checkpoint::{Checkpoint, CheckpointStore};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::lease::LeaseStore;
use crate::names::LeaseKey;
use crate::options::Options;
use crate::position::{Pedigree, StartAt, Window};
use crate::records::Records;
use crate::sink::{Sink, SinkProfile};
use crate::source::{Finding, Positions, Source};

/// What one database offers to a group. Not every system has all three.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    /// Leases.
    pub leases: Option<Arc<dyn LeaseStore>>,
    /// Checkpoints.
    pub checkpoints: Option<Arc<dyn CheckpointStore>>,
    /// Records.
    pub records: Option<Arc<dyn Records>>,
}

/// A target, and where the checkpoint of its stream has to be kept for it to be transactional.
#[derive(Debug, Clone)]
pub struct Target {
    /// The target.
    pub sink: Arc<dyn Sink>,
    /// The target's own checkpoint store, when changes and checkpoint can be written together there.
    pub checkpoints: Option<Arc<dyn CheckpointStore>>,
}

/// What a look at a target came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// What it is, as far as that is known without opening it.
    pub profile: SinkProfile,
    /// What is so.
    pub findings: Vec<Finding>,
}

/// What the settings of a source say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePlan {
    /// Whether every change of a row tells the whole row: see [`SinkProfile::whole_rows`].
    pub whole_rows: bool,
}

impl Default for SourcePlan {
    fn default() -> Self {
        Self { whole_rows: true }
    }
}

/// What the settings of a target say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkPlan {
    /// What it will be, but for the identity of its store.
    pub profile: SinkProfile,
    /// What it writes and no other target may write, in words: two targets with the same words are refused.
    pub exclusive: Option<String>,
}

/// What a source is, as far as that is known without opening it for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceDescription {
    /// How far its history reaches, if that was found out.
    pub window: Option<Window>,
    /// Whether every change of a row tells the whole row: see [`SinkProfile::whole_rows`].
    pub whole_rows: bool,
}

impl Default for SourceDescription {
    fn default() -> Self {
        Self { window: None, whole_rows: true }
    }
}

/// For whom a source or a target is made.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Purpose {
    /// The group.
    pub group: String,
    /// The stream.
    pub stream: String,
    /// The source of the stream, where it is known: a target of the same system looks whether it would feed it.
    pub reading: Option<Reading>,
    /// How many lanes will write into a target, each the changes of its own keys in their order.
    pub lanes: usize,
    /// The namespaces whose changes a target gets, if its filter names them; those that end with `*` stand for many.
    pub namespaces: Option<Vec<String>>,
}

/// The source of a stream, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The name of its backend.
    pub backend: &'static str,
    /// All of its settings.
    pub options: Options,
}

impl Purpose {
    /// For a stream of a group, whose source is not known.
    pub fn new(group: impl Into<String>, stream: impl Into<String>) -> Self {
        Self { group: group.into(), stream: stream.into(), reading: None, lanes: 1, namespaces: None }
    }

    /// The same, with so many lanes.
    #[must_use]
    pub fn with_lanes(self, lanes: usize) -> Self {
        Self { lanes, ..self }
    }

    /// The same, for a target that gets changes of these namespaces only.
    #[must_use]
    pub fn with_namespaces(self, namespaces: Option<Vec<String>>) -> Self {
        Self { namespaces, ..self }
    }

    /// Whether a target gets changes of one namespace only, if the filter tells.
    pub fn has_one_namespace(&self) -> Option<bool> {
        self.namespaces.as_ref().map(|names| matches!(names.as_slice(), [name] if !name.ends_with('*')))
    }

    /// The same, for a stream that reads this source.
    #[must_use]
    pub fn reading(self, backend: &dyn Backend, options: &Options) -> Self {
        Self { reading: Some(Reading { backend: backend.name(), options: options.clone() }), ..self }
    }
}

/// A system that can be a store, a source or a target.
///
/// Every method takes the settings that it knows out of `options`; what is left is refused by the
/// caller, with the place where it was written. None of them may wait for a server longer than `cx` says,
/// and none changes anything but tables of Watchkeeper's own.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Its name: the `type` of a sink, and the first word of its commands.
    fn name(&self) -> &'static str;

    /// The schemes of the URLs that it understands.
    fn schemes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Takes and validates the settings of a store, without a connection.
    ///
    /// # Errors
    /// `Config` when a setting is wrong, or this system cannot be a store. Where errors are collected
    /// ([`Options::collect_into`]) only what keeps the other settings from being looked at is returned.
    fn validate_store(&self, _options: &mut Options) -> Result<()> {
        Err(self.cannot_be("a store"))
    }

    /// Takes and validates the settings of a source, without a connection.
    ///
    /// # Errors
    /// As [`validate_store`](Self::validate_store).
    fn validate_source(&self, _purpose: &Purpose, _options: &mut Options) -> Result<SourcePlan> {
        Err(self.cannot_be("a source"))
    }

    /// Whether a source with these settings can begin so, as far as that is known without a connection.
    ///
    /// # Errors
    /// `Config` when it never can.
    fn validate_start(&self, _options: &mut Options, _start: &StartAt) -> Result<()> {
        Ok(())
    }

    /// Takes and validates the settings of a target, without a connection.
    ///
    /// # Errors
    /// As [`validate_store`](Self::validate_store).
    fn validate_sink(&self, _purpose: &Purpose, _options: &mut Options) -> Result<SinkPlan> {
        Err(self.cannot_be("a sink"))
    }

    /// Opens the database at `url` as a group's store.
    ///
    /// # Errors
    /// `Config` when this system cannot be one.
    async fn store(&self, _cx: &Cx, _options: &mut Options) -> Result<Offer> {
        Err(self.cannot_be("a store"))
    }

    /// Makes a source.
    ///
    /// # Errors
    /// `Config` when this system cannot be one.
    async fn source(&self, _cx: &Cx, _purpose: &Purpose, _options: &mut Options) -> Result<Arc<dyn Source>> {
        Err(self.cannot_be("a source"))
    }

    /// What positions of a source with these settings say by themselves, without a connection: an operator can then move a checkpoint
    /// while the source is away. `None` of a system whose positions say nothing.
    ///
    /// # Errors
    /// `Config` when a setting is wrong.
    fn positions(&self, _purpose: &Purpose, _options: &mut Options) -> Result<Option<Arc<dyn Positions>>> {
        Ok(None)
    }

    /// Makes a target.
    ///
    /// # Errors
    /// `Config` when this system cannot be one.
    async fn sink(&self, _cx: &Cx, _purpose: &Purpose, _options: &mut Options) -> Result<Target> {
        Err(self.cannot_be("a sink"))
    }

    /// Looks at the database at `url` as a group's store, without changing anything there: what is missing and would be
    /// made by [`store`](Self::store) is no error.
    ///
    /// # Errors
    /// Why it cannot be looked at; that is a finding too.
    async fn check_store(&self, _cx: &Cx, _options: &mut Options) -> Result<Vec<Finding>> {
        Err(self.cannot_be("a store"))
    }

    /// Looks whether leases of this length make sense in the store at `url`, without changing anything there.
    ///
    /// # Errors
    /// As [`check_store`](Self::check_store).
    async fn check_leases(&self, _cx: &Cx, _options: &mut Options, _lease: Duration) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// The file that a store with these settings is, of a system that keeps a store in a file of this machine: people are shown
    /// where it is, and what only reads refuses to make it.
    ///
    /// # Errors
    /// `Config` when a setting is wrong.
    fn store_file(&self, _options: &mut Options) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    /// What of a store is at `url` already, without changing anything there: what [`store`](Self::store) would have to make is
    /// not offered. `None` of a system that cannot be looked at so.
    ///
    /// # Errors
    /// As [`check_store`](Self::check_store).
    async fn peek_store(&self, _cx: &Cx, _options: &mut Options) -> Result<Option<Offer>> {
        Ok(None)
    }

    /// The records of a store that is there already, to write to: nothing is made or brought to a newer layout. `None` where there are
    /// none yet.
    ///
    /// # Errors
    /// As [`check_store`](Self::check_store).
    async fn writable_records(&self, cx: &Cx, options: &mut Options) -> Result<Option<Arc<dyn Records>>> {
        Ok(self.peek_store(cx, options).await?.and_then(|offer| offer.records))
    }

    /// The checkpoint under `key` in the store at `url`, without changing anything there: a store that was never opened has
    /// none. A system that cannot be read without being opened tells none either.
    ///
    /// # Errors
    /// As [`check_store`](Self::check_store).
    async fn peek_checkpoint(&self, _cx: &Cx, _options: &mut Options, _key: &LeaseKey) -> Result<Option<Checkpoint>> {
        Ok(None)
    }

    /// Looks at a source, without changing anything there. One that changes something when it is made overrides this.
    ///
    /// # Errors
    /// As [`source`](Self::source).
    async fn check_source(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Vec<Finding>> {
        self.source(cx, purpose, options).await?.check(cx).await
    }

    /// Looks whether a stream of this source could begin at `start`, without changing anything there: see [`Source::preflight`].
    /// One that changes something when it is made overrides this.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source).
    async fn preflight_start(
        &self,
        cx: &Cx,
        purpose: &Purpose,
        options: &mut Options,
        start: &StartAt,
        pedigree: Option<&Pedigree>,
    ) -> Result<Vec<Finding>> {
        self.source(cx, purpose, options).await?.preflight(cx, start, pedigree).await
    }

    /// Looks what a source is, without changing anything there.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source).
    async fn describe(&self, _cx: &Cx, _options: &mut Options) -> Result<SourceDescription> {
        Ok(SourceDescription::default())
    }

    /// Refuses a source with these settings for sinks that mirror: see [`Source::require_all_changes`]. Pure and offline.
    ///
    /// # Errors
    /// `Config`, with what is hidden.
    fn require_all_changes(&self, _options: &mut Options) -> Result<()> {
        Ok(())
    }

    /// What the names in a sink's filter are in the changes of a source with these settings, one for one: people leave out the
    /// schema of a table, or the database of a collection. A system whose names are always written in full leaves them.
    ///
    /// # Errors
    /// `Config` for a name of which such a source tells nothing, whatever happens; all changes would be passed over.
    async fn namespaces(
        &self,
        _cx: &Cx,
        _purpose: &Purpose,
        _options: &mut Options,
        names: Vec<String>,
    ) -> Result<Vec<String>> {
        Ok(names)
    }

    /// The namespaces whose changes a source with these settings tells of now, without changing anything there. `None` where that
    /// is not known.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source).
    async fn watched(&self, _cx: &Cx, _purpose: &Purpose, _options: &mut Options) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// Looks at a target, without changing anything there. One that changes something when it is made or checked
    /// overrides this.
    ///
    /// # Errors
    /// As [`sink`](Self::sink).
    async fn check_sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Inspection> {
        let sink = self.sink(cx, purpose, options).await?.sink;
        Ok(Inspection { profile: sink.profile(), findings: sink.check(cx).await? })
    }

    /// What streams of the group left at a source with these settings that are not in the file any more, such as slots that hold a log
    /// back. Nothing is changed there.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source).
    async fn leftovers(
        &self,
        _cx: &Cx,
        _purpose: &Purpose,
        _options: &mut Options,
        _departed: &[String],
    ) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Commands of its own.
    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        Vec::new()
    }

    /// The error of a role that it does not have.
    fn cannot_be(&self, role: &str) -> Error {
        Error::config(format!("{} cannot be {role}", self.name())).remedy("use another system there")
    }
}

/// What an argument of a tool takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// One value.
    One,
    /// One value, without which the tool does not run.
    Required,
    /// One or more values.
    Many,
    /// Nothing: it is there or not.
    Nothing,
}

/// One `--argument` of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Without the dashes; also its key in the options that the tool is run with.
    pub name: &'static str,
    /// What it takes.
    pub takes: Takes,
    /// One line for people.
    pub help: &'static str,
}

/// What a tool has to say: to people in lines, to programs as JSON.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// For people.
    pub lines: Vec<String>,
    /// For programs.
    pub data: serde_json::Value,
}

/// A command of a backend, such as `watchkeeper sqlite install`.
#[async_trait]
pub trait Tool: Send + Sync + std::fmt::Debug {
    /// The word after the backend's name.
    fn name(&self) -> &'static str;

    /// One line for people.
    fn about(&self) -> &'static str;

    /// What it takes.
    fn arguments(&self) -> &'static [Argument];

    /// Runs it.
    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report>;
}
