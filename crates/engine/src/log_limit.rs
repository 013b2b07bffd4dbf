//! Limits how often the same cause is logged.

use std::collections::BTreeMap;
use std::time::Duration;

use watchkeeper_core::Moment;

/// How often the same cause is logged.
const EVERY: Duration = Duration::from_secs(60);

/// Which causes were logged in the last minute, and when.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(BTreeMap<String, Moment>);

impl LogLimit {
    /// Whether to log `cause` now: a new one at once, the same one every minute, also when causes alternate.
    pub(crate) fn is_due(&mut self, cause: &str, now: Moment) -> bool {
        self.0.retain(|_, logged| now.since(*logged) < EVERY);
        let is_new = !self.0.contains_key(cause);
        if is_new {
            self.0.insert(cause.to_owned(), now);
        }
        is_new
    }
}

/// For how long something has failed, without fractions of a second, which say nothing here. Nothing of a first failure.
pub(crate) fn failing_for(lasting: Duration) -> Option<String> {
    let seconds = Duration::from_secs(lasting.as_secs());
    (!seconds.is_zero()).then(|| format!("{seconds:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_at_once_and_then_every_minute_also_when_causes_alternate() {
        let mut limit = LogLimit::default();
        let is_due = |limit: &mut LogLimit, second: u64| {
            let cause = if second.is_multiple_of(2) { "refused" } else { "denied" };
            limit.is_due(cause, Moment::from_nanos(second * 1_000_000_000))
        };
        let seconds: Vec<_> = (0..150).filter(|second| is_due(&mut limit, *second)).collect();
        assert_eq!(seconds, [0, 1, 60, 61, 120, 121]);
    }

    #[test]
    fn a_first_failure_has_not_lasted() {
        assert_eq!(failing_for(Duration::from_millis(900)), None);
        assert_eq!(failing_for(Duration::from_millis(61_900)).as_deref(), Some("61s"));
    }
}
