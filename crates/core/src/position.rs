//! Resume points.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

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

/// The time of one operation, in a source that counts the operations within each second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OperationTime {
    /// Seconds since 1970 by the source's clock.
    pub seconds: u32,
    /// The place within the second.
    pub increment: u32,
}

impl OperationTime {
    /// The error of a source whose changes have no such times.
    pub fn unknown_to(self, source: &str) -> Error {
        Error::config(format!("{source} has no operation times, so it cannot start at {self}"))
            .remedy("start at a time such as \"2026-01-31T12:00:00Z\", or with \"oldest\" or \"now\"")
    }
}

/// `1700000000:7`.
impl fmt::Display for OperationTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seconds, self.increment)
    }
}

impl FromStr for OperationTime {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?;
        let parts = text.split_once(':').and_then(|(seconds, increment)| Some((number(seconds)?, number(increment)?)));
        let (seconds, increment) = parts.ok_or_else(|| {
            Error::config(format!("{text:?} is no operation time"))
                .remedy("write its seconds since 1970 and its increment, each below 4294967296: \"1700000000:7\"")
        })?;
        Ok(Self { seconds, increment })
    }
}

/// Where to start reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StartAt {
    /// With what happens from now on.
    Now,
    /// With the oldest change that is still there.
    Oldest,
    /// With the first change after this position.
    After(Position),
    /// With the first change at or after this time of the source.
    Time(SourceTime),
    /// With the operation of this time, or the first one after it. Sources without such times refuse it.
    Operation(OperationTime),
    /// With everything that exists, then the changes since.
    Snapshot,
}

impl StartAt {
    /// Refuses what `log`, which has nothing but changes of its tables, cannot begin with.
    ///
    /// # Errors
    /// `Config` for a snapshot and for the time of an operation.
    pub fn require_in_log(&self, log: &str) -> Result<()> {
        match self {
            Self::Operation(time) => Err(time.unknown_to(log)),
            Self::Snapshot => Err(Error::config(format!("{log} cannot begin with a snapshot of its tables"))
                .remedy("begin with the oldest change, and copy what was there before the log by hand")),
            _ => Ok(()),
        }
    }

    /// The error of a source that does not know this way to start. It must not start anywhere else instead: changes would be left out.
    pub fn unknown_to(&self, source: &str) -> Error {
        Error::config(format!("{source} cannot start at {self:?}"))
            .remedy("start with \"oldest\" or \"now\", or update the source")
    }
}

/// How far the source's history reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    /// The oldest change that can still be read.
    pub oldest: Option<SourceTime>,
    /// The newest change.
    pub newest: Option<SourceTime>,
    /// How much room the history has, where it is bounded by room and the source tells.
    pub room: Option<Room>,
}

/// The room of a history that loses its oldest changes when it is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes that it has.
    pub bytes: u64,
    /// Bytes that it may have. It is usually full.
    pub bytes_max: u64,
    /// Bytes per second that were written of late.
    pub bytes_per_second: u64,
    /// Nothing younger than this is lost, whatever the room.
    pub kept: Duration,
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

    /// How much history lies before a reader at `at`: nothing when it has lost its place. `None` when that is not known.
    pub fn headroom(&self, at: SourceTime) -> Option<Duration> {
        Some(Duration::from_millis(at.0.saturating_sub(self.oldest?.0)))
    }

    /// Bytes per second that are written: of late, or since the oldest change if that is more.
    pub fn burn_rate(&self) -> Option<u64> {
        let room = self.room?;
        Some(room.bytes_per_second.max(room.bytes / self.length()?.as_secs().max(1)))
    }

    /// How long a reader that stood still at `at` from now on would keep its place: it has what lies before it, and the room
    /// that is not used yet.
    pub fn time_to_loss(&self, at: SourceTime) -> Option<Duration> {
        let (room, length) = (self.room?, self.length()?);
        if at < self.oldest? {
            return Some(Duration::ZERO);
        }
        let headroom = self.headroom(at)?;
        let before = room.bytes as f64 * (headroom.as_secs_f64() / length.as_secs_f64().max(1.0)).min(1.0);
        let free = room.bytes_max.saturating_sub(room.bytes) as f64;
        let by_room = Duration::try_from_secs_f64((before + free) / self.burn_rate()?.max(1) as f64).ok()?;
        Some(by_room.max(room.kept.saturating_sub(length.saturating_sub(headroom))))
    }

    /// The length of the history, if both ends are known.
    pub fn length(&self) -> Option<Duration> {
        let millis = self.newest?.0.saturating_sub(self.oldest?.0);
        Some(Duration::from_millis(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_time_is_read_as_it_is_shown() {
        let time: OperationTime = "1700000000:7".parse().expect("it is one");
        assert_eq!(time, OperationTime { seconds: 1_700_000_000, increment: 7 });
        assert_eq!(time.to_string(), "1700000000:7");
        for wrong in
            ["", ":", "1700000000", "1700000000:", ":7", "1700000000:x", "1700000000:+7", "4294967296:1", "1:2:3"]
        {
            let error = wrong.parse::<OperationTime>().expect_err(wrong);
            assert!(error.message().contains("is no operation time") && error.advice().is_some(), "{error}");
        }
    }

    #[test]
    fn a_reader_keeps_its_place_as_long_as_its_history_lasts() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let at = |hours: u64| SourceTime(hours * 3_600_000);
        let room = Room { bytes: 36_000, bytes_max: 36_000, ..Room::default() };
        let window = |room| Window { oldest: Some(at(1)), newest: Some(at(11)), room: Some(room) };
        assert_eq!(window(room).headroom(at(6)), Some(hours(5)));
        assert_eq!(window(room).time_to_loss(at(6)), Some(hours(5)));
        assert_eq!(window(room).time_to_loss(at(0)), Some(Duration::ZERO), "it has lost its place");
        // Half of the room is still free.
        assert_eq!(window(Room { bytes_max: 72_000, ..room }).time_to_loss(at(6)), Some(hours(15)));
        // Written faster of late, it goes sooner.
        let busy = Room { bytes_per_second: 2, ..room };
        assert_eq!(window(busy).time_to_loss(at(6)), Some(hours(5) / 2));
        // But not before its time.
        assert_eq!(window(Room { kept: hours(48), ..busy }).time_to_loss(at(11)), Some(hours(48)));
        assert_eq!(Window { room: None, ..window(room) }.time_to_loss(at(6)), None);
    }
}
