//! How often to commit, measured by how far the source's history reaches.
//!
//! A checkpoint that is older than the history is worthless. Committing at least ten times per window
//! leaves nine tenths of it for an outage.

use std::time::Duration;

use watchkeeper_core::{Finding, Severity, SourceTime, Window};

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
    Some(Finding {
        severity: Severity::Warning,
        what: format!("the source keeps {} of history, less than 24 hours", shown(window)),
        remedy: Some("let the source keep more history: a larger log, or a longer minimum retention".into()),
    })
}

/// A warning when a stream at `at` has used up more than half of the history.
pub fn check_headroom(window: &Window, at: SourceTime) -> Option<Finding> {
    let (headroom, length) = (window.headroom(at)?, window.length()?);
    if headroom >= length / 2 {
        return None;
    }
    let loss = window.time_to_loss(at).map(|left| format!("; standing still it loses its place in {}", shown(left)));
    let what = match window.oldest.is_some_and(|oldest| at < oldest) {
        true => "the stream has lost its place: the history begins after its checkpoint".to_owned(),
        false => format!(
            "the stream has used up more than half of the history: {} of {} are left{}",
            shown(headroom),
            shown(length),
            loss.unwrap_or_default()
        ),
    };
    let remedy = "let it catch up, or let the source keep more history";
    Some(Finding { severity: Severity::Warning, what, remedy: Some(remedy.into()) })
}

/// A length of time in the unit that fits it, so that a short one is not shown as nothing.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{} seconds", time.as_secs()),
        120..7_200 => format!("{} minutes", time.as_secs() / 60),
        _ => format!("{:.1} hours", time.as_secs_f64() / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::Room;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_stream_that_falls_behind_is_warned_of() {
        let at = |hours: u64| SourceTime(hours * 3_600_000);
        let window = Window { oldest: Some(at(10)), newest: Some(at(40)), room: None };
        assert_eq!(check_headroom(&window, at(40)), None);
        assert_eq!(check_headroom(&window, at(25)), None);
        let behind = check_headroom(&window, at(20)).unwrap();
        assert!(behind.what.contains("10.0 hours of 30.0 hours are left"), "{behind:?}");
        let room = Room { bytes: 30_000, bytes_max: 30_000, bytes_per_second: 1, kept: Duration::ZERO };
        let warning = check_headroom(&Window { room: Some(room), ..window }, at(20)).unwrap();
        assert!(warning.what.contains("loses its place in"), "{warning:?}");
        assert!(check_headroom(&window, at(9)).unwrap().what.contains("has lost its place"));
    }

    #[test]
    fn a_short_history_is_not_shown_as_nothing() {
        let at = |seconds: u64| SourceTime(seconds * 1_000);
        let window = Window { oldest: Some(at(10)), newest: Some(at(70)), room: None };
        let behind = check_headroom(&window, at(15)).unwrap();
        assert!(behind.what.contains("5 seconds of 60 seconds are left"), "{behind:?}");
        let short = check_window(Duration::from_secs(300)).unwrap();
        assert!(short.what.contains("keeps 5 minutes of history"), "{short:?}");
    }

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
