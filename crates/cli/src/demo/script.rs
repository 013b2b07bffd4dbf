use std::time::Duration;

use watchkeeper_drill::Fault;

use super::workspace::LEASE;

/// A run of twenty seconds or more. One round of it is what [`Quota::full`] asks for.
const LONG: [Fault; 9] = [
    Fault::Kill,
    Fault::HandOver,
    Fault::Kill,
    Fault::Pause,
    Fault::Kill,
    Fault::Fail,
    Fault::Kill,
    Fault::Stop,
    Fault::Kill,
];

/// A shorter run: everything once, before anything comes again.
const SHORT: [Fault; 5] = [Fault::Kill, Fault::HandOver, Fault::Stop, Fault::Pause, Fault::Fail];

/// How long a run is that has to fulfil the whole quota.
const FULL: Duration = Duration::from_secs(20);

/// What is done to the one on watch, in which order, and how long it is left in peace between.
#[derive(Debug)]
pub(super) struct Script {
    faults: std::iter::Cycle<std::slice::Iter<'static, Fault>>,
    /// Between two faults: time to read what happened.
    pub(super) calm: Duration,
}

impl Script {
    /// For a run of this length.
    pub(super) fn new(length: Duration) -> Self {
        let faults: &'static [Fault] = if length < FULL { &SHORT } else { &LONG };
        let calm = (length / 25).clamp(Duration::from_millis(250), Duration::from_millis(800));
        Self { faults: faults.iter().cycle(), calm }
    }

    /// The next fault for which there is still time.
    pub(super) fn next(&mut self, left: Duration) -> Option<Fault> {
        self.faults.by_ref().take(LONG.len()).copied().find(|fault| cost(*fault) <= left)
    }
}

/// How long a fault and its takeover take, about.
fn cost(fault: Fault) -> Duration {
    let quick = Duration::from_millis(300);
    match fault {
        Fault::Pause | Fault::PauseInside => LEASE + 2 * quick,
        Fault::Kill | Fault::Stop | Fault::HandOver | Fault::Fail => quick,
    }
}

/// How often each thing has to have happened, or the run has not shown much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) kills: usize,
    pub(super) pauses: usize,
    pub(super) failures: usize,
    pub(super) hand_overs: usize,
}

impl Quota {
    /// For a run of this length: all of it from twenty seconds on, a part of it before.
    pub(super) fn new(length: Duration) -> Self {
        let seconds = usize::try_from(length.min(FULL).as_secs()).unwrap_or(0);
        let part = |whole: usize| whole * seconds / 20;
        Self { kills: part(5), pauses: part(1), failures: part(1), hand_overs: part(2) }
    }

    /// What is missing, in words. A graceful stop is a hand-over too.
    pub(super) fn missing(&self, done: impl Fn(Fault) -> usize) -> Vec<String> {
        let rows = [
            ("SIGKILL", self.kills, done(Fault::Kill)),
            ("SIGSTOP", self.pauses, done(Fault::Pause)),
            ("handler failure", self.failures, done(Fault::Fail)),
            ("hand-over", self.hand_overs, done(Fault::HandOver) + done(Fault::Stop)),
        ];
        let short = rows.iter().filter(|(_, wanted, had)| had < wanted);
        short.map(|(name, wanted, had)| format!("{name}: {had} of {wanted}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(faults: &[Fault], fault: Fault) -> usize {
        faults.iter().filter(|it| **it == fault).count()
    }

    #[test]
    fn one_round_of_a_long_run_fulfils_the_quota() {
        let quota = Quota::new(FULL);
        assert_eq!(quota, Quota { kills: 5, pauses: 1, failures: 1, hand_overs: 2 });
        assert_eq!(quota.missing(|fault| count(&LONG, fault)), Vec::<String>::new());
        assert_eq!(quota.missing(|fault| count(&LONG[1..], fault)), ["SIGKILL: 4 of 5"]);
        assert_eq!(Quota::new(Duration::from_secs(600)), quota);
    }

    #[test]
    fn a_short_run_fulfils_its_part_and_has_everything_once() {
        let quota = Quota::new(Duration::from_secs(6));
        assert_eq!(quota.missing(|fault| count(&SHORT, fault)), Vec::<String>::new());
        let mut script = Script::new(Duration::from_secs(6));
        let mut played: Vec<_> = (0..5).filter_map(|_| script.next(FULL)).collect();
        played.sort_unstable();
        assert_eq!(played, [Fault::Kill, Fault::Pause, Fault::Stop, Fault::HandOver, Fault::Fail]);
    }

    #[test]
    fn nothing_begins_that_cannot_end_in_time() {
        assert_eq!(Script::new(FULL).next(Duration::from_millis(100)), None);
    }
}
