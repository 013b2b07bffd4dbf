//! A listener's state, as a handle that many may hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use watchkeeper_core::BootClock;
use watchkeeper_engine::listener::{ListenerState, StateMachine};

use super::error::{ObserverError, Result};

/// Recoveries without progress before another listener should try, unless told otherwise.
const RECOVERIES: u32 = 10;

/// A listener's state, since when it is in it, and how often it has recovered in vain. A clone is the same listener.
///
/// ```text
/// Initializing → Connecting → Running ⇄ Recovering
///                    ↑___________|___________|        any → Stopped
/// ```
#[derive(Debug, Clone)]
pub struct ListenerStateMachine {
    listener_id: Arc<str>,
    max_recovery_attempts: u32,
    /// State and count change together, hence one lock for both.
    current: Arc<Mutex<Current>>,
}

#[derive(Debug)]
struct Current {
    machine: StateMachine,
    recoveries: u32,
}

impl ListenerStateMachine {
    /// A listener that is initializing, and may recover ten times without progress.
    pub fn new(listener_id: String) -> Self {
        let listener_id: Arc<str> = listener_id.into();
        let machine = machine(&listener_id);
        Self {
            listener_id,
            max_recovery_attempts: RECOVERIES,
            current: Arc::new(Mutex::new(Current { machine, recoveries: 0 })),
        }
    }

    /// The same listener with another number of recoveries without progress.
    #[must_use]
    pub fn with_max_recovery_attempts(self, max_recovery_attempts: u32) -> Self {
        Self { max_recovery_attempts, ..self }
    }

    /// Whose state it is.
    pub fn listener_id(&self) -> &str {
        &self.listener_id
    }

    /// Goes to `next_state`; nothing changes if that is not legal. Staying is not a transition.
    ///
    /// # Errors
    /// `InvalidTransition`, or `RecoveryExhausted` when recovering once more would be once too often: go to
    /// `Connecting` instead, so that another listener can try.
    pub async fn transition(&self, next_state: ListenerState) -> Result<()> {
        self.go(next_state)
    }

    pub(super) fn go(&self, next: ListenerState) -> Result<()> {
        let mut current = self.lock();
        let from = current.machine.state();
        let (listener_id, attempts) = (self.listener_id.to_string(), current.recoveries);
        if !from.may_become(next) {
            return Err(ObserverError::InvalidTransition { listener_id, from, to: next });
        }
        if next == ListenerState::Recovering {
            if attempts >= self.max_recovery_attempts {
                return Err(ObserverError::RecoveryExhausted { listener_id, attempts });
            }
            current.recoveries += 1;
        }
        if next == ListenerState::Connecting {
            // Another one tries, or this one later and from the beginning.
            current.recoveries = 0;
        }
        current.machine.transition(next)?;
        Ok(())
    }

    /// The state now.
    pub async fn get_state(&self) -> ListenerState {
        self.state()
    }

    pub(super) fn state(&self) -> ListenerState {
        self.lock().machine.state()
    }

    /// How long it has been in this state.
    pub async fn get_state_duration(&self) -> Duration {
        self.lock().machine.time_in_state()
    }

    /// How often it has recovered since it last got on.
    pub fn recovery_attempts(&self) -> u32 {
        self.lock().recoveries
    }

    /// It got on: what went wrong before does not count any more.
    pub fn note_progress(&self) {
        self.lock().recoveries = 0;
    }

    /// Goes to `state` by the shortest legal way, for one whose state is seen from time to time and so
    /// may have passed through others. Whatever comes after `Stopped` is a new listener.
    pub(super) fn follow(&self, state: ListenerState) {
        use ListenerState::{Connecting, Initializing, Recovering, Running, Stopped};
        let mut current = self.lock();
        let from = current.machine.state();
        if from == state {
            return;
        }
        if from == Stopped {
            current.machine = machine(&self.listener_id);
        }
        let way: &[ListenerState] = match (current.machine.state(), state) {
            (Initializing, Running) => &[Connecting, Running],
            (Initializing, Recovering) => &[Connecting, Running, Recovering],
            (Connecting, Recovering) => &[Running, Recovering],
            _ => &[state],
        };
        for step in way {
            // To `Initializing` there is no way, and none is needed.
            let _ = current.machine.transition(*step);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn machine(listener_id: &Arc<str>) -> StateMachine {
    StateMachine::new(Arc::clone(listener_id), Arc::new(BootClock))
}
