//! What an instance tells the group of its streams, with each heartbeat: what `status` shows.
//!
//! Times are spans as they were when the report was written, so nobody's wall clock is compared.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Epoch, Grade, Stage};

use crate::listener::ListenerState;

/// What an instance does with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum StreamActivity {
    /// Its source and sinks are being connected to, for the first time.
    Opening,
    /// It cannot run here: its source or sinks cannot be opened, or it failed. It is tried again.
    Failing,
    /// It could run here.
    Standby,
    /// It has the lease and delivers.
    Running,
    /// It has the lease, and something does not work: it is tried again.
    Recovering,
    /// It is stopped: by a shutdown, or by a halt.
    Stopped,
    /// Something that a newer program tells.
    #[serde(other)]
    Other,
}

impl StreamActivity {
    /// What an instance does with a stream whose listener is in this state, where something `fails` or nothing does.
    pub(crate) fn of(state: ListenerState, fails: bool) -> Self {
        match state {
            ListenerState::Stopped => Self::Stopped,
            ListenerState::Recovering => Self::Recovering,
            ListenerState::Running if fails => Self::Recovering,
            ListenerState::Running => Self::Running,
            ListenerState::Initializing | ListenerState::Connecting if fails => Self::Failing,
            ListenerState::Initializing => Self::Opening,
            ListenerState::Connecting => Self::Standby,
        }
    }
}

impl std::fmt::Display for StreamActivity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Opening => "opening",
            Self::Failing => "failing",
            Self::Standby => "standby",
            Self::Running => "running",
            Self::Recovering => "recovering",
            Self::Stopped => "stopped",
            Self::Other => "unknown",
        })
    }
}

/// What does not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trouble {
    /// The last error.
    pub error: String,
    /// For how long it has not worked, over all attempts.
    pub lasting_millis: u64,
    /// How often it was tried.
    pub attempts: u64,
    /// When it is tried again, where the instance stays away until then.
    #[serde(default)]
    pub next_try_millis: Option<u64>,
    /// For how long the instance leaves the stream to others that can run it.
    #[serde(default)]
    pub left_to_others_millis: Option<u64>,
}

/// What a source is busy with before its changes: see [`Stage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageReport {
    /// What is done, in a few words.
    pub what: String,
    /// So many are done.
    pub done: u64,
    /// Of about so many.
    #[serde(default)]
    pub of: Option<u64>,
    /// What is counted, in the plural.
    #[serde(default = "rows")]
    pub unit: String,
}

/// What older programs count.
fn rows() -> String {
    "rows".to_owned()
}

impl From<Stage> for StageReport {
    fn from(stage: Stage) -> Self {
        Self { what: stage.what, done: stage.done, of: stage.of, unit: stage.unit.to_owned() }
    }
}

/// A sink, as whoever has opened it knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SinkReport {
    /// Its name within the stream.
    pub name: String,
    /// What it does with a stale or repeated write.
    pub grade: Grade,
}

impl SinkReport {
    /// A sink of this name and grade.
    pub fn new(name: impl Into<String>, grade: Grade) -> Self {
        Self { name: name.into(), grade }
    }
}

/// One stream on one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StreamReport {
    /// The stream.
    pub stream: String,
    /// What the instance does with it.
    pub doing: StreamActivity,
    /// The epoch under which it has the lease.
    #[serde(default)]
    pub epoch: Option<Epoch>,
    /// What does not work, if something does not.
    #[serde(default)]
    pub trouble: Option<Trouble>,
    /// How long before its commit the newest committed change happened, by both clocks.
    #[serde(default)]
    pub lag_millis: Option<u64>,
    /// How long ago the oldest change happened that was read and is not committed, by both clocks.
    #[serde(default)]
    pub undelivered_millis: Option<u64>,
    /// The source's time of the newest change that is known of, in milliseconds since 1970.
    #[serde(default)]
    pub newest_at_millis: Option<u64>,
    /// The source's time of the oldest change that was read and is not committed, in milliseconds since 1970.
    #[serde(default)]
    pub oldest_at_millis: Option<u64>,
    /// For how long the stream has not delivered, if it does not: over all attempts, tenures and instances.
    #[serde(default)]
    pub not_delivering_millis: Option<u64>,
    /// What it is busy with before its changes.
    #[serde(default)]
    pub stage: Option<StageReport>,
    /// Its sinks, once they are there.
    #[serde(default)]
    pub sinks: Vec<SinkReport>,
}

impl StreamReport {
    /// A report that says no more than what the instance does with the stream.
    pub fn new(stream: impl Into<String>, doing: StreamActivity) -> Self {
        Self {
            stream: stream.into(),
            doing,
            epoch: None,
            trouble: None,
            lag_millis: None,
            undelivered_millis: None,
            newest_at_millis: None,
            oldest_at_millis: None,
            not_delivering_millis: None,
            stage: None,
            sinks: Vec::new(),
        }
    }
}

/// A span as reports carry it.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
