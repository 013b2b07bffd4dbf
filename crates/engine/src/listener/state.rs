//! The states of a listener and their legal transitions.
//!
//! `Connecting` is standing by, `Running` starts with the claim, `Recovering` precedes a reopening, `Stopped` follows a
//! shutdown or a halt. `Stopped` is final: resuming a halted stream makes a new state machine.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Clock, Error, Moment, Result};

/// Where a listener stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ListenerState {
    /// Not yet ready to stand by.
    Initializing,
    /// Standing by: another instance has the watch, or nobody yet.
    Connecting,
    /// On watch.
    Running,
    /// On watch, reopening after a transient error.
    Recovering,
    /// Shut down, halted or wrongly configured. Final.
    Stopped,
}

impl ListenerState {
    /// Whether an instance in this state has the watch.
    pub fn is_on_watch(self) -> bool {
        matches!(self, Self::Running | Self::Recovering)
    }

    /// Whether `next` may follow.
    pub fn may_become(self, next: Self) -> bool {
        use ListenerState::{Connecting, Initializing, Recovering, Running, Stopped};
        matches!(
            (self, next),
            (Initializing | Running | Recovering, Connecting)
                | (Connecting | Recovering, Running)
                | (Running, Recovering)
                | (Initializing | Connecting | Running | Recovering, Stopped)
        )
    }
}

impl fmt::Display for ListenerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initializing => "initializing",
            Self::Connecting => "connecting",
            Self::Running => "running",
            Self::Recovering => "recovering",
            Self::Stopped => "stopped",
        })
    }
}

/// A listener's state and since when it is in it.
#[derive(Debug, Clone)]
pub struct StateMachine {
    listener: Arc<str>,
    clock: Arc<dyn Clock>,
    /// State and moment change together, hence one lock for both.
    current: Arc<Mutex<(ListenerState, Moment)>>,
}

impl StateMachine {
    /// A listener that is initializing.
    pub fn new(listener: impl Into<Arc<str>>, clock: Arc<dyn Clock>) -> Self {
        let current = Arc::new(Mutex::new((ListenerState::Initializing, clock.now())));
        Self { listener: listener.into(), clock, current }
    }

    /// Whose state it is.
    pub fn listener(&self) -> &str {
        &self.listener
    }

    /// The state now.
    pub fn state(&self) -> ListenerState {
        self.lock().0
    }

    /// How long it has been in this state.
    pub fn time_in_state(&self) -> Duration {
        self.clock.now().since(self.lock().1)
    }

    /// Goes to `next`, if that is legal; nothing changes otherwise. Staying is not a transition.
    pub fn transition(&self, next: ListenerState) -> Result<ListenerState> {
        let mut current = self.lock();
        let from = current.0;
        if !from.may_become(next) {
            let listener = &self.listener;
            return Err(Error::internal(format!("listener {listener} cannot go from {from} to {next}")));
        }
        *current = (next, self.clock.now());
        Ok(from)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (ListenerState, Moment)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use watchkeeper_core::ErrorKind;
    use watchkeeper_core::clock::Sleep;

    use super::ListenerState::{Connecting, Initializing, Recovering, Running, Stopped};
    use super::*;

    /// Seconds, set by hand.
    #[derive(Debug, Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Moment {
            Moment::from_nanos(self.0.load(Ordering::Relaxed) * 1_000_000_000)
        }

        fn sleep_until(&self, _moment: Moment) -> Sleep {
            Box::pin(std::future::pending())
        }

        fn wall_millis(&self) -> u64 {
            0
        }
    }

    /// The ways from the beginning to each state.
    const WAYS: [&[ListenerState]; 5] =
        [&[], &[Connecting], &[Connecting, Running], &[Connecting, Running, Recovering], &[Stopped]];

    /// A machine that went this way at second 0, and its clock, which shows second 7.
    fn machine(way: &[ListenerState]) -> (StateMachine, Arc<Hand>) {
        let clock = Arc::new(Hand::default());
        let machine = StateMachine::new("orders", Arc::<Hand>::clone(&clock));
        for state in way {
            machine.transition(*state).expect("the way is legal");
        }
        clock.0.store(7, Ordering::Relaxed);
        (machine, clock)
    }

    #[test]
    fn exactly_the_transitions_of_the_contract_are_legal() {
        let legal = [
            (Initializing, Connecting),
            (Connecting, Running),
            (Running, Recovering),
            (Running, Connecting),
            (Recovering, Running),
            (Recovering, Connecting),
            (Initializing, Stopped),
            (Connecting, Stopped),
            (Running, Stopped),
            (Recovering, Stopped),
        ];
        for way in WAYS {
            for next in [Initializing, Connecting, Running, Recovering, Stopped] {
                let (machine, _) = machine(way);
                let from = machine.state();
                let answer = machine.transition(next);
                if legal.contains(&(from, next)) {
                    assert_eq!(answer.expect("it is legal"), from);
                    assert_eq!((machine.state(), machine.time_in_state()), (next, Duration::ZERO));
                } else {
                    let error = answer.expect_err("it is not legal");
                    assert_eq!(error.kind(), ErrorKind::Internal);
                    assert_eq!(error.message(), format!("listener orders cannot go from {from} to {next}"));
                    let unchanged = (machine.state(), machine.time_in_state());
                    assert_eq!(unchanged, (from, Duration::from_secs(7)), "neither state nor time changed");
                }
            }
        }
    }

    #[test]
    fn time_in_state_is_counted_from_the_last_transition() {
        let (machine, clock) = machine(&[Connecting]);
        machine.transition(Running).expect("it is legal");
        clock.0.store(12, Ordering::Relaxed);
        assert_eq!(machine.time_in_state(), Duration::from_secs(5));
        assert_eq!(machine.clone().time_in_state(), Duration::from_secs(5), "a clone is the same listener");
    }
}
