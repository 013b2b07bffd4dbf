//! What an operator may go back to is not confirmed to the server.

use std::collections::VecDeque;
use std::time::Duration;

use watchkeeper_core::Moment;

/// At most this many entries stand for the time that the history is held back.
const REWIND_STEPS: u32 = 32;

/// What may be confirmed when acknowledgements are held back for a while.
pub(super) struct Rewind {
    span: Duration,
    held: VecDeque<(Moment, u64)>,
    /// The newest one, while it is too near to the last that is held to be worth an entry.
    newest: Option<(Moment, u64)>,
    confirmed: u64,
}

impl Rewind {
    pub(super) fn new(span: Duration) -> Self {
        Self { span, held: VecDeque::new(), newest: None, confirmed: 0 }
    }

    pub(super) fn push(&mut self, now: Moment, committed: u64) {
        let last = self.newest.or(self.held.back().copied());
        if committed <= last.map_or(self.confirmed, |(_, place)| place) {
            return;
        }
        match self.held.back() {
            Some((since, _)) if now.since(*since) < self.span / REWIND_STEPS => self.newest = Some((now, committed)),
            _ => {
                self.held.push_back((now, committed));
                self.newest = None;
            }
        }
    }

    pub(super) fn confirmed(&mut self, now: Moment) -> u64 {
        loop {
            if self.held.is_empty() {
                self.held.extend(self.newest.take());
            }
            match self.held.front() {
                Some((since, place)) if now.since(*since) >= self.span => self.confirmed = self.confirmed.max(*place),
                _ => return self.confirmed,
            }
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use watchkeeper_core::Moment;

    use super::Rewind;

    #[test]
    fn what_can_be_gone_back_to_is_not_confirmed() {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let mut rewind = Rewind::new(Duration::from_millis(1_000));
        for step in 1..=500 {
            rewind.push(at(step * 10), step);
            let oldest_allowed = (step * 10).saturating_sub(1_000) / 10;
            assert!(rewind.confirmed(at(step * 10)) <= oldest_allowed, "too much is confirmed at step {step}");
        }
        assert!(rewind.held.len() <= 34, "{} entries are kept", rewind.held.len());
        assert!(rewind.confirmed >= 380, "only {} is confirmed", rewind.confirmed);
        assert_eq!(rewind.confirmed(at(10_000)), 500);
    }

    #[test]
    fn without_a_span_everything_is_confirmed_at_once() {
        let mut rewind = Rewind::new(Duration::ZERO);
        rewind.push(Moment::from_nanos(1), 7);
        rewind.push(Moment::from_nanos(1), 5);
        assert_eq!(rewind.confirmed(Moment::from_nanos(1)), 7);
    }
}
