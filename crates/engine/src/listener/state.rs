//! The states of a listener and their legal transitions.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Clock, Error, Moment, Result};

/// Where a listener stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
            return Err(Error::internal(format!("listener {listener} can not go from {from} to {next}")));
        }
        *current = (next, self.clock.now());
        Ok(from)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (ListenerState, Moment)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
