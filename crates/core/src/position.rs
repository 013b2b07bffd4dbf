//! Resume points.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 by the source's clock, to show lag and headroom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceTime(pub u64);

/// A resume point: opaque bytes that only their source can compare, with the source's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// What the source resumes from.
    pub bytes: Bytes,
    /// The source's time there, if it tells.
    pub time: Option<SourceTime>,
}

impl Position {
    /// A position with these bytes.
    pub fn new(bytes: impl Into<Bytes>, time: Option<SourceTime>) -> Self {
        Self { bytes: bytes.into(), time }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The identity of a log as it is stored beside a position, so that a position of another cluster, a
/// restored server or a recreated slot is recognised before anything is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pedigree(pub Bytes);

/// Orders the versions of one key at targets that compare versions: the source's time, then an
/// ordinal within it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The source's time, in the source's own unit.
    pub time: u64,
    /// The place among changes of the same time.
    pub ordinal: u64,
}

/// Where to start reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartAt {
    /// With what happens from now on.
    Now,
    /// With the oldest change that is still there.
    Oldest,
    /// With the first change after this position.
    After(Position),
    /// With the first change at or after this time of the source.
    Time(SourceTime),
    /// With everything that exists, then the changes since.
    Snapshot,
}

/// How far the source's history reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    /// The oldest change that can still be read.
    pub oldest: Option<SourceTime>,
    /// The newest change.
    pub newest: Option<SourceTime>,
}

/// At most this part of the history lies between two commits.
const PARTS: u32 = 10;

/// More often is never recommended: a commit is a write.
const SHORTEST: Duration = Duration::from_millis(100);

/// More seldom is never recommended: what lies between is delivered again after a crash.
const LONGEST: Duration = Duration::from_secs(60 * 60);

impl Window {
    /// The longest sensible time between two commits for a history of this length: a tenth of it, which leaves the rest
    /// for an outage.
    pub fn commit_every(length: Duration) -> Duration {
        (length / PARTS).clamp(SHORTEST, LONGEST)
    }

    /// The length of the history, if both ends are known.
    pub fn length(&self) -> Option<Duration> {
        let millis = self.newest?.0.saturating_sub(self.oldest?.0);
        Some(Duration::from_millis(millis))
    }
}
