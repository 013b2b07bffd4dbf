//! Times and places as people write and read them.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use watchkeeper::OperationTime;

/// `2026-01-22T10:11:12.345Z`.
pub(crate) fn iso(millis: u64) -> String {
    // The formatter knows four digits of a year only; a source may say anything.
    const MILLIS_MAX: u64 = 253_402_300_799_999;
    let time = UNIX_EPOCH + Duration::from_millis(millis.min(MILLIS_MAX));
    humantime::format_rfc3339_millis(time).to_string()
}

/// A span as people say it: the two largest units are enough.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{}.{} s", seconds, duration.subsec_millis() / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 of a time such as `2026-01-22T10:11:12Z`; without a zone it is UTC.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    let day_only = text.len() == "2026-01-22".len() && !text.contains(':');
    let whole = if day_only { format!("{text}T00:00:00Z") } else { text.to_owned() };
    let time: Result<SystemTime, _> = humantime::parse_rfc3339_weak(&whole);
    let wrong = || format!("{text:?} is not a time: write it in UTC, such as 2026-01-22T10:11:12Z");
    let since = time.map_err(|_| wrong())?.duration_since(UNIX_EPOCH).map_err(|_| wrong())?;
    Ok(millis(since))
}

/// A length of time such as `10s`.
pub(crate) fn parse_length(text: &str) -> Result<Duration, String> {
    let wrong = |_| format!("{text:?} is not a length of time: write a length of time such as 10s, 5m or 1h 30m");
    humantime::parse_duration(text).map_err(wrong)
}

/// Where to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The oldest change that is still there.
    Oldest,
    /// What happens from now on.
    Now,
    /// Everything that exists, then the changes since.
    Snapshot,
    /// The first change at or after this time of the source, in milliseconds since 1970.
    Time(u64),
    /// The operation of this time, or the first one after it.
    Operation(OperationTime),
    /// After this position.
    Position(Vec<u8>),
}

impl Target {
    /// The target in words.
    pub(crate) fn described(&self) -> String {
        match self {
            Self::Oldest => "the oldest change".to_owned(),
            Self::Now => "what happens from now on".to_owned(),
            Self::Snapshot => "a new snapshot".to_owned(),
            Self::Time(millis) => format!("the time {}", iso(*millis)),
            Self::Operation(time) => format!("the operation time {time}"),
            Self::Position(_) => "a position".to_owned(),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "oldest" => return Ok(Self::Oldest),
            "now" => return Ok(Self::Now),
            "snapshot" => return Ok(Self::Snapshot),
            _ => {}
        }
        if let Ok(time) = text.parse() {
            return Ok(Self::Operation(time));
        }
        if let Some(bytes) = hex(text) {
            return Ok(Self::Position(bytes));
        }
        let wrong = |_| {
            format!(
                "{text:?} is no place: write oldest, now, snapshot, a time such as 2026-01-22T10:11:12Z, an operation time such as 1700000000:7, or a position as shown by `checkpoint show`"
            )
        };
        parse_time(text).map(Self::Time).map_err(wrong)
    }
}

/// The bytes of a position as it is shown.
pub(crate) fn hex(text: &str) -> Option<Vec<u8>> {
    let is_hex = !text.is_empty() && text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
    is_hex.then(|| (0..text.len()).step_by(2).map_while(byte).collect())
}

/// How far to go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// So many changes.
    Changes(u64),
    /// So much of the source's time.
    Time(Duration),
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(changes) = text.parse() {
            return Ok(Self::Changes(changes));
        }
        let wrong = |_| format!("{text:?} is neither a number of changes (100) nor a time (15m)");
        humantime::parse_duration(text).map(Self::Time).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_words_times_or_positions() {
        assert_eq!("oldest".parse(), Ok(Target::Oldest));
        assert_eq!("now".parse(), Ok(Target::Now));
        assert_eq!("1970-01-01T00:00:01.5Z".parse(), Ok(Target::Time(1_500)));
        assert_eq!("5:7".parse(), Ok(Target::Operation(OperationTime { seconds: 5, increment: 7 })));
        assert_eq!("1970-01-02".parse(), Ok(Target::Time(86_400_000)));
        assert_eq!("00000000000000fF".parse(), Ok(Target::Position(vec![0, 0, 0, 0, 0, 0, 0, 255])));
        for wrong in ["yesterday", "", "abc", "-1"] {
            assert!(wrong.parse::<Target>().unwrap_err().contains("write oldest, now"), "{wrong}");
        }
    }

    #[test]
    fn amounts_are_changes_or_time() {
        assert_eq!("100".parse(), Ok(Amount::Changes(100)));
        assert_eq!("15m".parse(), Ok(Amount::Time(Duration::from_secs(900))));
        assert!("much".parse::<Amount>().is_err());
    }

    #[test]
    fn times_are_shown_in_utc_and_spans_in_words() {
        assert_eq!(iso(1_769_076_672_345), "2026-01-22T10:11:12.345Z");
        assert_eq!(iso(u64::MAX), "9999-12-31T23:59:59.999Z");
        let shown = |millis| span(Duration::from_millis(millis));
        assert_eq!([shown(12), shown(1_250), shown(61_000)], ["12 ms", "1.2 s", "1 min 1 s"]);
        assert_eq!([shown(3_660_000), shown(90_000_000)], ["1 h 1 min", "1 d 1 h"]);
    }
}
