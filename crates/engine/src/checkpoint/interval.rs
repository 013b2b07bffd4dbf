//! How often to commit, measured by how far the source's history reaches.
//!
//! A checkpoint that is older than the history is worthless. Committing at least ten times per window
//! leaves nine tenths of it for an outage.

use std::time::Duration;

use watchkeeper_core::{Finding, Severity, Window};

/// At most this part of the window lies between two commits.
const PARTS: u32 = 10;

/// A window below this does not outlast a bad night.
pub const WINDOW_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest sensible time between two commits for a history of this length.
pub fn recommended(window: Duration) -> Duration {
    Window::commit_every(window)
}

/// A warning when commits are further apart than a tenth of the history.
pub fn check(every: Duration, window: Duration) -> Option<Finding> {
    if every <= window / PARTS {
        return None;
    }
    Some(Finding {
        severity: Severity::Warning,
        what: format!("checkpoints are {every:?} apart, but the source keeps only {window:?} of history"),
        remedy: Some(format!(
            "set checkpoint.every to {:?} or less, or let the source keep more history",
            recommended(window)
        )),
    })
}

/// A warning when the history is so short that a stream that stands still over night loses its place.
pub fn check_window(window: Duration) -> Option<Finding> {
    if window >= WINDOW_MIN {
        return None;
    }
    let hours = window.as_secs_f64() / 3_600.0;
    Some(Finding {
        severity: Severity::Warning,
        what: format!("the source keeps {hours:.1} hours of history, less than 24"),
        remedy: Some("let the source keep more history: a larger log, or a longer minimum retention".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_tenth_of_the_window_within_reason() {
        assert_eq!(recommended(5 * HOUR), HOUR / 2);
        assert_eq!(recommended(1_000 * HOUR), HOUR);
        assert_eq!(recommended(Duration::ZERO), Duration::from_millis(100));
    }

    #[test]
    fn longer_than_a_tenth_is_warned_of_with_a_remedy() {
        assert_eq!(check(HOUR, 10 * HOUR), None);
        assert_eq!(check(2 * HOUR, 1_000 * HOUR), None);
        let finding = check(HOUR + Duration::from_millis(1), 10 * HOUR).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy.unwrap().contains("3600s"));
        assert!(check(Duration::from_secs(1), Duration::from_secs(1)).is_some());
    }

    #[test]
    fn less_than_a_day_of_history_is_warned_of() {
        assert_eq!(check_window(24 * HOUR), None);
        let finding = check_window(24 * HOUR - Duration::from_secs(1)).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy.is_some());
    }
}
