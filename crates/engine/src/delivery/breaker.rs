//! The circuit breaker of a sink: after several failures in a row it is left alone for a while, and
//! then tried with one call before all lanes come back.
//!
//! A pure state machine: it is told the time and the outcomes, and waits for nothing.

use std::time::Duration;

use watchkeeper_core::{Entropy, Error, Moment, Result};

use super::backoff::Backoff;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// So many failures in a row open it.
    pub failures: u32,
    /// For how long it is open at first, less some jitter. Twice as long after each failed probe.
    pub open_for: Duration,
    /// For how long it is open at most. Also the time after which a probe without an answer is given
    /// up, so that a forgotten one cannot keep the sink shut for ever.
    pub open_max: Duration,
    /// So many good probes in a row close it again.
    pub probes: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(1), open_max: Duration::from_secs(30), probes: 1 }
    }
}

impl BreakerSettings {
    /// Refuses what would never open, never close or not wait.
    ///
    /// # Errors
    /// `Config`, saying what is wrong.
    pub fn validate(&self) -> Result<()> {
        if self.failures == 0 || self.probes == 0 {
            return Err(Error::config("a breaker needs at least one failure to open and one probe to close"));
        }
        self.backoff().validate()
    }

    fn backoff(&self) -> Backoff {
        Backoff { first: self.open_for, factor: 2, max: self.open_max }
    }
}

/// What a breaker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// All calls go through.
    Closed,
    /// No call goes through.
    Open {
        /// Until then.
        until: Moment,
    },
    /// One call at a time goes through, to find out.
    HalfOpen,
}

/// The answer to a request for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permit {
    /// Call, and report the outcome.
    Go,
    /// Call, and report the outcome: others wait for it.
    Probe,
    /// Ask again at this moment.
    Wait(Moment),
}

/// A circuit breaker.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    inner: Inner,
    /// When it last left `Closed`.
    open_since: Option<Moment>,
    /// How often it has opened since then.
    rounds: u32,
}

#[derive(Debug, Clone, Copy)]
enum Inner {
    Closed { failures: u32 },
    Open { until: Moment },
    HalfOpen { probing_since: Option<Moment>, passed: u32 },
}

impl Breaker {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Self { settings, inner: Inner::Closed { failures: 0 }, open_since: None, rounds: 0 }
    }

    /// What it is doing.
    pub fn state(&self) -> BreakerState {
        match self.inner {
            Inner::Closed { .. } => BreakerState::Closed,
            Inner::Open { until } => BreakerState::Open { until },
            Inner::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Since when it has not been closed, however often it was half open in between.
    pub fn open_since(&self) -> Option<Moment> {
        self.open_since
    }

    /// Asks whether a call may be made now. What is permitted is to be followed by
    /// [`success`](Self::success), [`failure`](Self::failure) or [`abandoned`](Self::abandoned).
    pub fn permit(&mut self, now: Moment) -> Permit {
        match self.inner {
            Inner::Closed { .. } => Permit::Go,
            Inner::Open { until } if now < until => Permit::Wait(until),
            Inner::Open { .. } => self.probe(now, 0),
            Inner::HalfOpen { probing_since: None, passed } => self.probe(now, passed),
            Inner::HalfOpen { probing_since: Some(since), passed } => {
                let given_up = since + self.settings.open_max;
                if now >= given_up {
                    self.probe(now, passed)
                } else {
                    Permit::Wait(given_up.min(now + self.poll_interval()))
                }
            }
        }
    }

    /// How soon to look again whether a probe has been answered: much sooner than a breaker opens for.
    fn poll_interval(&self) -> Duration {
        (self.settings.open_for / 16).max(Duration::from_millis(1))
    }

    fn probe(&mut self, now: Moment, passed: u32) -> Permit {
        self.inner = Inner::HalfOpen { probing_since: Some(now), passed };
        Permit::Probe
    }

    /// A permitted call went well. While open this is a call from before, which proves nothing.
    pub fn success(&mut self, _now: Moment) {
        match self.inner {
            Inner::Closed { .. } => self.inner = Inner::Closed { failures: 0 },
            Inner::HalfOpen { probing_since: Some(_), passed } if passed + 1 < self.settings.probes => {
                self.inner = Inner::HalfOpen { probing_since: None, passed: passed + 1 };
            }
            Inner::HalfOpen { probing_since: Some(_), .. } => *self = Self::new(self.settings),
            Inner::Open { .. } | Inner::HalfOpen { probing_since: None, .. } => {}
        }
    }

    /// A permitted call failed. While open this is a call from before, and the wait stays as it is;
    /// while half open it cannot be told from a failed probe, and counts as one.
    pub fn failure(&mut self, now: Moment, entropy: &Entropy) {
        match self.inner {
            Inner::Closed { failures } if failures.saturating_add(1) < self.settings.failures => {
                self.inner = Inner::Closed { failures: failures + 1 };
            }
            Inner::Closed { .. } | Inner::HalfOpen { .. } => self.open(now, entropy),
            Inner::Open { .. } => {}
        }
    }

    fn open(&mut self, now: Moment, entropy: &Entropy) {
        let until = now + self.settings.backoff().delay(self.rounds, entropy);
        self.inner = Inner::Open { until };
        self.rounds = self.rounds.saturating_add(1);
        self.open_since.get_or_insert(now);
    }

    /// A permitted call was dropped without an answer: if it was the probe, another may be made.
    pub fn abandoned(&mut self) {
        if let Inner::HalfOpen { probing_since, .. } = &mut self.inner {
            *probing_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: BreakerSettings =
        BreakerSettings { failures: 3, open_for: Duration::from_secs(1), open_max: Duration::from_secs(8), probes: 2 };

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    /// A breaker that opened at 0, and when it may be probed.
    fn opened() -> (Breaker, Moment, Entropy) {
        let (mut breaker, entropy) = (Breaker::new(SETTINGS), Entropy::seeded(1));
        (0..3).for_each(|_| breaker.failure(at(0), &entropy));
        let BreakerState::Open { until } = breaker.state() else { panic!("three failures open it") };
        (breaker, until, entropy)
    }

    /// A breaker with a probe under way, and since when.
    fn probing() -> (Breaker, Moment, Entropy) {
        let (mut breaker, until, entropy) = opened();
        assert_eq!(breaker.permit(until), Permit::Probe);
        (breaker, until, entropy)
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let (mut breaker, entropy) = (Breaker::new(SETTINGS), Entropy::seeded(1));
        for _ in 0..3 {
            breaker.failure(at(1), &entropy);
            breaker.failure(at(1), &entropy);
            breaker.success(at(1));
        }
        assert_eq!((breaker.state(), breaker.open_since()), (BreakerState::Closed, None));
        (0..2).for_each(|_| breaker.failure(at(2), &entropy));
        assert_eq!((breaker.permit(at(2)), breaker.state()), (Permit::Go, BreakerState::Closed));
        breaker.failure(at(3), &entropy);
        assert!(matches!(breaker.state(), BreakerState::Open { until } if until >= at(503) && until <= at(1003)));
        assert_eq!(breaker.open_since(), Some(at(3)));
    }

    #[test]
    fn open_waits_whatever_late_calls_report() {
        let (mut breaker, until, entropy) = opened();
        breaker.success(at(1));
        breaker.failure(at(1), &entropy);
        breaker.abandoned();
        assert_eq!(breaker.state(), BreakerState::Open { until });
        assert_eq!(breaker.permit(until - Duration::from_nanos(1)), Permit::Wait(until));
        assert_eq!((breaker.permit(until), breaker.state()), (Permit::Probe, BreakerState::HalfOpen));
    }

    #[test]
    fn one_probe_at_a_time_and_enough_good_ones_close_it() {
        let (mut breaker, now, _) = probing();
        assert!(matches!(breaker.permit(now), Permit::Wait(then) if then > now && then < now + SETTINGS.open_for));
        breaker.success(now);
        breaker.success(now);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "the second success is nobody's probe");
        assert_eq!(breaker.permit(now), Permit::Probe);
        assert_eq!(breaker.open_since(), Some(at(0)));
        breaker.success(now);
        assert_eq!((breaker.state(), breaker.open_since()), (BreakerState::Closed, None));
        assert_eq!(breaker.permit(now), Permit::Go);
    }

    #[test]
    fn a_failed_probe_opens_it_for_longer_and_earlier_good_probes_do_not_count() {
        let (mut breaker, mut now, entropy) = probing();
        for expected in [2, 4, 8, 8, 8] {
            breaker.success(now);
            assert_eq!(breaker.permit(now), Permit::Probe);
            breaker.failure(now, &entropy);
            let BreakerState::Open { until } = breaker.state() else { panic!("a failed probe opens it") };
            let wait = until.since(now);
            assert!(wait >= Duration::from_secs(expected) / 2 && wait <= Duration::from_secs(expected), "{wait:?}");
            now = until;
            assert_eq!((breaker.permit(now), breaker.open_since()), (Permit::Probe, Some(at(0))));
        }
    }

    #[test]
    fn after_closing_it_starts_afresh() {
        let (mut breaker, now, entropy) = probing();
        breaker.failure(now, &entropy);
        let later = now + SETTINGS.open_max;
        for _ in 0..2 {
            assert_eq!(breaker.permit(later), Permit::Probe);
            breaker.success(later);
        }
        (0..2).for_each(|_| breaker.failure(later, &entropy));
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.failure(later, &entropy);
        let BreakerState::Open { until } = breaker.state() else { panic!("three failures open it") };
        assert!(until.since(later) <= SETTINGS.open_for);
        assert_eq!(breaker.open_since(), Some(later));
    }

    #[test]
    fn a_probe_that_was_dropped_or_forgotten_is_made_again() {
        let (mut breaker, now, _) = probing();
        breaker.abandoned();
        assert_eq!(breaker.permit(now), Permit::Probe);
        let given_up = now + SETTINGS.open_max;
        let before = given_up - Duration::from_nanos(1);
        assert_eq!(breaker.permit(before), Permit::Wait(given_up));
        assert_eq!(breaker.permit(given_up), Permit::Probe);
    }

    #[test]
    fn wrong_settings_are_refused() {
        assert!(BreakerSettings::default().validate().is_ok());
        let wrong = [
            BreakerSettings { failures: 0, ..SETTINGS },
            BreakerSettings { probes: 0, ..SETTINGS },
            BreakerSettings { open_for: Duration::ZERO, ..SETTINGS },
            BreakerSettings { open_max: Duration::from_millis(999), ..SETTINGS },
        ];
        assert!(wrong.iter().all(|settings| settings.validate().is_err()));
    }

    /// What an onlooker knows, who sees only permits and reports.
    #[derive(Default)]
    struct ModelObserver {
        failures: u32,
        good_probes: u32,
        opened: Option<(Moment, Moment)>,
        half_open: bool,
        probing_since: Option<Moment>,
        turns: [u32; 3],
    }

    impl ModelObserver {
        fn permitted(&mut self, now: Moment, permit: Permit) {
            match (permit, self.opened) {
                (Permit::Go, opened) => assert_eq!(opened, None, "all calls go only while it is closed"),
                (Permit::Wait(then), opened) => {
                    let (_, last) = opened.expect("there is a wait only after it opened");
                    assert!(then > now, "the wait is one");
                    assert!(self.half_open || then <= last + SETTINGS.open_max, "the wait is bounded");
                }
                (Permit::Probe, opened) => {
                    let (_, last) = opened.expect("a probe is made only after it opened");
                    assert!(now >= last + SETTINGS.open_for / 2, "left alone for a while");
                    assert!(self.probing_since.is_none_or(|since| now >= since + SETTINGS.open_max), "one at a time");
                    (self.half_open, self.probing_since) = (true, Some(now));
                    self.turns[0] += 1;
                }
            }
        }

        fn failed(&mut self, now: Moment) {
            self.failures += u32::from(self.opened.is_none());
            if self.half_open || (self.opened.is_none() && self.failures == SETTINGS.failures) {
                self.opened = Some((self.opened.map_or(now, |(first, _)| first), now));
                (self.failures, self.good_probes, self.half_open, self.probing_since) = (0, 0, false, None);
                self.turns[1] += 1;
            }
        }

        fn went_well(&mut self) {
            self.failures = 0;
            self.good_probes += u32::from(self.probing_since.take().is_some());
            if self.good_probes == SETTINGS.probes {
                (self.opened, self.good_probes, self.half_open) = (None, 0, false);
                self.turns[2] += 1;
            }
        }
    }

    #[test]
    fn an_observer_is_never_surprised() {
        let mut turns = [0; 3];
        for seed in 0..50 {
            let (dice, entropy) = (Entropy::seeded(seed), Entropy::seeded(!seed));
            let (mut breaker, mut observer, mut now) = (Breaker::new(SETTINGS), ModelObserver::default(), at(0));
            for _ in 0..2_000 {
                match dice.below(8) {
                    0 | 1 => now = now + Duration::from_millis(dice.below(900)),
                    2..=4 => observer.permitted(now, breaker.permit(now)),
                    5 => {
                        breaker.success(now);
                        observer.went_well();
                    }
                    6 => {
                        breaker.failure(now, &entropy);
                        observer.failed(now);
                    }
                    _ => {
                        breaker.abandoned();
                        observer.probing_since = None;
                    }
                }
                assert_eq!(breaker.open_since(), observer.opened.map(|(first, _)| first), "seed {seed}");
                assert_eq!(breaker.state() == BreakerState::Closed, observer.opened.is_none(), "seed {seed}");
            }
            turns.iter_mut().zip(observer.turns).for_each(|(sum, turns)| *sum += turns);
        }
        assert!(turns.iter().all(|turns| *turns > 200), "too few probes, openings or closings to tell: {turns:?}");
    }
}
