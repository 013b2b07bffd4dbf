//! A stream's post on one instance: what lasts over tenures.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use watchkeeper_core::{CheckpointStore, Clock, Epoch, Follower, Latest, LeaseKey, Position};

use super::state::{ListenerState, StateMachine};
use crate::group::control::Control;
use crate::metrics;
use crate::pipeline::transactional::Portion;
use crate::stream::StreamSpec;

/// What people see of a stream on this instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamStatus {
    /// The stream.
    pub stream: String,
    /// Where its listener stands here.
    pub state: ListenerState,
    /// The epoch under which this instance has the watch.
    pub epoch: Option<Epoch>,
    /// Who has the watch, as last seen by a standby.
    pub holder: Option<String>,
    /// Why the last tenure here ended, or why there is none.
    pub last_error: Option<String>,
    /// Set while nobody may run it.
    pub halted: bool,
    /// What a shutdown left unfinished, if it did.
    pub unfinished: Option<String>,
    /// How many tenures this instance has had.
    pub tenures: u64,
    /// How many of them it ended itself, at their deadline.
    pub deadlines_hit: u64,
    /// How often this instance has opened the source and all sinks.
    pub openings: u64,
    /// The newest position that this instance has committed.
    pub position: Option<Position>,
    /// How long before its commit the newest committed change happened at the source, by both clocks.
    pub lag: Option<Duration>,
}

/// A stream's post.
#[derive(Debug)]
pub struct Post {
    /// The stream.
    pub spec: Arc<StreamSpec>,
    /// What its lease and checkpoint are kept under.
    pub key: LeaseKey,
    /// Where its checkpoint is kept.
    pub checkpoints: Arc<dyn CheckpointStore>,
    /// What people want of it.
    pub control: Follower<Control>,
    /// How much a transactional sink writes at once, as it was learned.
    pub(super) portion: Arc<Portion>,
    /// Whether it is known that it began here; asked once, since those who could say may not answer later.
    pub(super) settled: OnceLock<()>,
    /// Replaced when a halted stream is resumed: a stopped listener never runs again, a new one does.
    state: Mutex<StateMachine>,
    clock: Arc<dyn Clock>,
    status: Latest<StreamStatus>,
    /// Serialises updates of state and status.
    gate: Mutex<()>,
}

impl Post {
    /// The post of `spec`.
    pub fn new(
        spec: StreamSpec,
        group: &str,
        checkpoints: Arc<dyn CheckpointStore>,
        control: Follower<Control>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let name = spec.settings.name.clone();
        let key = spec.key(group);
        let status = StreamStatus {
            stream: name.clone(),
            state: ListenerState::Initializing,
            epoch: None,
            holder: None,
            last_error: None,
            halted: false,
            unfinished: None,
            tenures: 0,
            deadlines_hit: 0,
            openings: 0,
            position: None,
            lag: None,
        };
        Self {
            spec: Arc::new(spec),
            key,
            checkpoints,
            control,
            portion: Arc::default(),
            settled: OnceLock::new(),
            state: Mutex::new(StateMachine::new(name, Arc::clone(&clock))),
            clock,
            status: Latest::new(status),
            gate: Mutex::default(),
        }
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.spec.settings.name
    }

    /// The listener's state machine.
    pub fn machine(&self) -> StateMachine {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stands by again after a halt: with a new listener.
    pub fn revive(&self) {
        if self.machine().state() == ListenerState::Stopped {
            let machine = StateMachine::new(self.name(), Arc::clone(&self.clock));
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = machine;
            self.tell(|status| status.halted = false);
            self.go(ListenerState::Connecting, None, "resumed");
        }
    }

    /// Follows what people see.
    pub fn status(&self) -> Follower<StreamStatus> {
        self.status.follow()
    }

    /// Changes what people see.
    pub fn tell(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.status.change_if(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Goes to `next`, with one log line that says why. Staying is no transition.
    pub fn go(&self, next: ListenerState, epoch: Option<Epoch>, cause: &str) {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = self.machine();
        if machine.state() != next {
            match machine.transition(next) {
                Ok(from) => {
                    let stream = self.name();
                    metrics::state_changed(stream, from, next);
                    let epoch = epoch.map(|epoch| epoch.0);
                    // A stream that stands still over an error is worth waking somebody, if it lasts.
                    match next {
                        ListenerState::Recovering => tracing::warn!(stream, %from, to = %next, epoch, cause, "state"),
                        _ => tracing::info!(stream, %from, to = %next, epoch, cause, "state"),
                    }
                }
                Err(error) => tracing::error!(%error, "an illegal transition was refused"),
            }
        }
        drop(gate);
        self.tell(|status| {
            status.state = machine.state();
            status.epoch = epoch;
        });
    }
}
