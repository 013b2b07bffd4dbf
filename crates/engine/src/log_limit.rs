//! Limits how often the same cause is logged, and logs when it is over.

use std::collections::BTreeMap;
use std::time::Duration;

use watchkeeper_core::Moment;

/// How often the same cause is logged.
const EVERY: Duration = Duration::from_secs(60);

/// Causes that were left out are forgotten after so many intervals without another line.
const FORGOTTEN_AFTER: u32 = 10;

/// Which causes were logged in the last minute, and how often each was left out since.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(BTreeMap<String, Logged>);

/// The last line of a cause.
#[derive(Debug)]
struct Logged {
    at: Moment,
    left_out: u64,
}

/// A line that is to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Due {
    /// How many lines of the same cause were left out since the last one, if some were.
    pub left_out: Option<u64>,
}

impl LogLimit {
    /// Whether to log `cause` now: a new one at once, the same one every minute, also when causes alternate.
    pub(crate) fn due(&mut self, cause: &str, now: Moment) -> Option<Due> {
        let is_known = |logged: &Logged| {
            let age = now.since(logged.at);
            age < EVERY || (logged.left_out > 0 && age < EVERY * FORGOTTEN_AFTER)
        };
        self.0.retain(|_, logged| is_known(logged));
        let left_out = match self.0.get_mut(cause) {
            Some(logged) if now.since(logged.at) < EVERY => {
                logged.left_out += 1;
                return None;
            }
            Some(logged) => logged.left_out,
            None => 0,
        };
        self.0.insert(cause.to_owned(), Logged { at: now, left_out: 0 });
        Some(Due { left_out: (left_out > 0).then_some(left_out) })
    }

    /// Whether to log `cause` now.
    pub(crate) fn is_due(&mut self, cause: &str, now: Moment) -> bool {
        self.due(cause, now).is_some()
    }
}

/// Something that fails for a while, as the log shows it: each cause once a minute, and its end.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    limit: LogLimit,
    since: Option<Moment>,
}

impl OutageLog {
    /// Notes a failure; whether to log it.
    pub(crate) fn fail(&mut self, cause: &str, now: Moment) -> Option<Due> {
        self.since.get_or_insert(now);
        self.limit.due(cause, now)
    }

    /// Notes a success; for how long it had failed, if it had.
    pub(crate) fn end(&mut self, now: Moment) -> Option<String> {
        Some(span(now.since(self.since.take()?)))
    }
}

/// A span as people write it: the two largest units are enough.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds}.{} s", duration.subsec_millis() / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// For how long something has failed. Nothing of a first failure.
pub(crate) fn failing_for(lasting: Duration) -> Option<String> {
    (lasting.as_secs() > 0).then(|| span(lasting))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Moment {
        Moment::from_nanos(second * 1_000_000_000)
    }

    #[test]
    fn a_cause_is_logged_at_once_and_then_every_minute_also_when_causes_alternate() {
        let mut limit = LogLimit::default();
        let is_due = |limit: &mut LogLimit, second: u64| {
            let cause = if second.is_multiple_of(2) { "refused" } else { "denied" };
            limit.is_due(cause, at(second))
        };
        let seconds: Vec<_> = (0..150).filter(|second| is_due(&mut limit, *second)).collect();
        assert_eq!(seconds, [0, 1, 60, 61, 120, 121]);
    }

    #[test]
    fn a_line_tells_how_many_were_left_out_since_the_last_one() {
        let mut limit = LogLimit::default();
        let left_out: Vec<_> = (0..125).filter_map(|second| limit.due("refused", at(second))).collect();
        assert_eq!(left_out.iter().map(|due| due.left_out).collect::<Vec<_>>(), [None, Some(59), Some(59)]);
        // After a pause the line still tells of what nobody was shown.
        assert_eq!(limit.due("refused", at(300)), Some(Due { left_out: Some(4) }));
        assert_eq!(limit.due("refused", at(400)), Some(Due { left_out: None }));
    }

    #[test]
    fn the_end_of_an_outage_tells_how_long_it_was() {
        let mut outage = OutageLog::default();
        assert_eq!(outage.end(at(1)), None, "nothing had failed");
        assert!(outage.fail("refused", at(2)).is_some());
        assert!(outage.fail("refused", at(40)).is_none());
        assert_eq!(outage.end(at(43)).as_deref(), Some("41.0 s"));
        assert_eq!(outage.end(at(44)), None);
    }

    #[test]
    fn spans_are_written_as_people_write_them() {
        assert_eq!(failing_for(Duration::from_millis(900)), None, "a first failure has not lasted");
        assert_eq!(failing_for(Duration::from_millis(61_900)).as_deref(), Some("1 min 1 s"));
        assert_eq!(span(Duration::from_nanos(33_913_215_111)), "33.9 s");
        assert_eq!(span(Duration::from_millis(12)), "12 ms");
    }
}
