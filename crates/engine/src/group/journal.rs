//! The log of takeovers: who took over from whom, when, why, and for how long nobody held the watch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Cx, Ending, Epoch, Error, Previous, PutOutcome, Records, Result, TenureId};

use super::{ATTEMPTS, decode, encode};
use crate::checkpoint::operator;

/// So many takeovers are kept per stream.
pub const TAKEOVERS_KEPT: usize = 200;

/// Why a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Cause {
    /// There was none before.
    First,
    /// It left in order.
    Released,
    /// Its process was proved dead.
    Crashed,
    /// It was silent for a whole lease.
    Expired,
    /// It was alive but made no progress, and gave up the watch itself.
    Stalled,
    /// It could not go on, and gave up the watch itself.
    Failed,
    /// A person asked for it.
    Operator,
}

impl Cause {
    /// The cause, from how the lease ended and from what the holder said before it left. A release notice
    /// of any other tenure than the previous one is an old one and does not count.
    pub fn deduce(previous: Option<&Previous>, release_notice: Option<&ReleaseNotice>) -> Self {
        let Some(previous) = previous else { return Self::First };
        if let Some(release_notice) =
            release_notice.filter(|release_notice| release_notice.tenure == previous.candidate.tenure)
        {
            return release_notice.cause;
        }
        match previous.ending {
            Ending::Released => Self::Released,
            Ending::Expired => Self::Expired,
            Ending::Broken => Self::Crashed,
        }
    }
}

impl Cause {
    /// The name that records and metrics carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Released => "released",
            Self::Crashed => "crashed",
            Self::Expired => "expired",
            Self::Stalled => "stalled",
            Self::Failed => "failed",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change of the watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Takeover {
    /// When, in milliseconds since 1970 by the wall clock of the one that took over. For people.
    pub at_millis: u64,
    /// The epoch that began.
    pub epoch: Epoch,
    /// The tenure that began. `None` in takeovers of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenure: Option<TenureId>,
    /// The name of the instance before, if there was one.
    #[serde(default)]
    pub from: Option<String>,
    /// The name of the instance that took over.
    pub to: String,
    /// Why the one before left.
    pub cause: Cause,
    /// How long nobody had the watch.
    pub vacant_millis: u64,
    /// How often the watch of this stream had passed to an instance that was there to take it over, this time included. A checkpoint
    /// counts only those after which something was committed.
    #[serde(default)]
    pub failovers: u64,
    /// What the one before said when it left, or what the operator did. Empty if it could say nothing, as after a crash.
    #[serde(default)]
    pub note: String,
}

impl Takeover {
    /// A takeover at this wall-clock time, of which nothing else is known: nobody had the watch before, and it was never vacant.
    pub fn new(at_millis: u64, epoch: Epoch, to: impl Into<String>, cause: Cause) -> Self {
        Self {
            at_millis,
            epoch,
            tenure: None,
            from: None,
            to: to.into(),
            cause,
            vacant_millis: 0,
            failovers: 0,
            note: String::new(),
        }
    }

    /// The takeover as people tell it.
    pub fn sentence(&self) -> String {
        let (at, to, epoch) = (utc(self.at_millis), &self.to, self.epoch);
        let Some(from) = &self.from else { return format!("At {at}, {to} took the first watch, epoch {epoch}.") };
        if from == operator::NAME && self.cause == Cause::Operator {
            let did = if self.note.is_empty() { "moved the checkpoint" } else { self.note.as_str() };
            return format!("At {at}, {to} took the watch, epoch {epoch}, after an operator {did}.");
        }
        let vacant = format!("{}.{:02} s", self.vacant_millis / 1_000, self.vacant_millis % 1_000 / 10);
        let cause = self.cause;
        let note = if self.note.is_empty() { String::new() } else { format!(" {from} said: {}.", self.note) };
        format!("At {at}, {to} relieved {from} ({cause}) after {vacant} without a holder, epoch {epoch}.{note}")
    }
}

/// What a holder says before it releases, so that its successor knows why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReleaseNotice {
    /// Whose it is.
    pub tenure: TenureId,
    /// Why it leaves.
    pub cause: Cause,
    /// The same in words.
    #[serde(default)]
    pub text: String,
}

/// The takeovers and release notices of a group's streams.
#[derive(Debug, Clone)]
pub struct Journal {
    records: Arc<dyn Records>,
    group: String,
}

impl Journal {
    /// The journal of `group`.
    pub fn new(records: Arc<dyn Records>, group: &str) -> Self {
        Self { records, group: group.to_owned() }
    }

    /// Writes a takeover down.
    pub async fn append(&self, cx: &Cx, stream: &str, takeover: &Takeover) -> Result<()> {
        let log = self.log(stream);
        let bytes = encode(&log, takeover)?;
        self.records.append(cx, &log, bytes, TAKEOVERS_KEPT).await
    }

    /// The newest takeovers, newest first. One that cannot be read is left out and logged.
    pub async fn recent(&self, cx: &Cx, stream: &str, limit: usize) -> Result<Vec<Takeover>> {
        let records = self.records.tail(cx, &self.log(stream), limit).await?;
        let takeover = |record| match decode::<Takeover>(record) {
            Ok(takeover) => Some(takeover),
            Err(error) => {
                tracing::warn!(%error, "a takeover in the journal cannot be read");
                None
            }
        };
        Ok(records.iter().rev().filter_map(takeover).collect())
    }

    /// Says why a tenure ends. To be called before its release.
    pub async fn leave(&self, cx: &Cx, stream: &str, tenure: TenureId, cause: Cause, text: &str) -> Result<()> {
        let name = self.note(stream);
        let release_notice = encode(&name, &ReleaseNotice { tenure, cause, text: text.to_owned() })?;
        for _ in 0..ATTEMPTS {
            cx.check()?;
            let expected = self.records.get(cx, &name).await?.map(|record| record.revision);
            if let PutOutcome::Done(_) = self.records.put_if(cx, &name, expected, release_notice.clone()).await? {
                return Ok(());
            }
        }
        Err(Error::unavailable(format!("{name} was changed by others {ATTEMPTS} times in a row")))
    }

    /// The newest release notice and how old it is, by the store's clock.
    pub async fn release_notice(&self, cx: &Cx, stream: &str) -> Result<Option<(ReleaseNotice, Duration)>> {
        let record = self.records.get(cx, &self.note(stream)).await?;
        record.as_ref().map(|record| Ok((decode(record)?, record.age))).transpose()
    }

    fn log(&self, stream: &str) -> String {
        format!("{}/journal/{stream}", self.group)
    }

    fn note(&self, stream: &str) -> String {
        format!("{}/farewell/{stream}", self.group)
    }
}

/// `2026-01-22 10:11:12 UTC`.
pub(crate) fn utc(millis: u64) -> String {
    let seconds = millis / 1_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The date of a day since 1970. Years are counted from March, so that the leap day comes last.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399_000), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_709_251_200_000), "2024-03-01 00:00:00 UTC");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn a_takeover_reads_as_a_sentence() {
        let mut takeover = Takeover {
            at_millis: 1_769_076_672_000,
            epoch: Epoch(7),
            tenure: None,
            from: Some("a".into()),
            to: "b".into(),
            cause: Cause::Crashed,
            vacant_millis: 127,
            failovers: 3,
            note: String::new(),
        };
        let sentence = "At 2026-01-22 10:11:12 UTC, b relieved a (crashed) after 0.12 s without a holder, epoch 7.";
        assert_eq!(takeover.sentence(), sentence);
        (takeover.from, takeover.cause) = (Some("operator".into()), Cause::Operator);
        takeover.note = "resumed the stream".into();
        let sentence = "At 2026-01-22 10:11:12 UTC, b took the watch, epoch 7, after an operator resumed the stream.";
        assert_eq!(takeover.sentence(), sentence);
        takeover.from = None;
        assert_eq!(takeover.sentence(), "At 2026-01-22 10:11:12 UTC, b took the first watch, epoch 7.");
    }
}
