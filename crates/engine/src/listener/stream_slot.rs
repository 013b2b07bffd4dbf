//! A stream on this instance: what lasts over tenures, and its status for operators.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;
use watchkeeper_core::{CheckpointStore, Clock, Epoch, Error, Follower, LeaseKey, Position};

use super::health::Health;
use super::state::{ListenerState, StateMachine};
use crate::connect::Connected;
use crate::group::control::Control;
use crate::group::report::{SinkReport, StreamActivity, StreamReport, Trouble, millis};
use crate::metrics;
use crate::pipeline::transactional::AdaptiveBatchSize;
use crate::settings::StreamSettings;
use crate::stream::{StreamSpec, key_of};

/// What people see of a stream on this instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamStatus {
    /// The stream.
    pub stream: String,
    /// Where its listener stands here.
    pub state: ListenerState,
    /// What this instance does with it: `Running` only if it also delivers, `Recovering` while it has the watch and something does not
    /// work.
    pub doing: StreamActivity,
    /// What does not work here, if something does not, as of the last heartbeat.
    pub trouble: Option<Trouble>,
    /// For how long the stream has not been delivered, if it is not, here or elsewhere, as of the last heartbeat.
    pub not_delivering: Option<Duration>,
    /// The epoch under which this instance has the watch.
    pub epoch: Option<Epoch>,
    /// Who has the watch, as last seen by a standby.
    pub holder: Option<String>,
    /// Why the last tenure here ended, or why there is none.
    pub last_error: Option<String>,
    /// Set while nobody may run it: `last_error` is the cause then, whichever instance halted it.
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
    /// How far the stream is behind. With a commit: how long before it the newest committed change happened at the source, by both
    /// clocks. With each heartbeat after that: the age of the oldest change that waits, or for how long nothing has been delivered;
    /// zero when nothing waits. `None` where nothing of that is known, as on an instance that stands by.
    pub lag: Option<Duration>,
}

impl StreamStatus {
    /// Nothing is known of the stream yet.
    pub(super) fn new(stream: &str) -> Self {
        Self {
            stream: stream.to_owned(),
            state: ListenerState::Initializing,
            doing: StreamActivity::Opening,
            trouble: None,
            not_delivering: None,
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
        }
    }
}

/// A stream's post.
#[derive(Debug)]
pub struct StreamSlot {
    /// How the stream runs.
    pub settings: StreamSettings,
    /// What its lease and checkpoint are kept under.
    pub key: LeaseKey,
    /// What people want of it.
    pub control: Follower<Control>,
    /// How much a transactional sink writes at once, as it was learned.
    pub(super) adaptive_size: Arc<AdaptiveBatchSize>,
    /// Whether it is known that it began here; asked once, since those who could say may not answer later.
    pub(super) settled: OnceLock<()>,
    /// Its source and sinks, once they are there.
    connected: OnceLock<Arc<Connected>>,
    /// What does not work just now, and how far it is.
    pub health: Arc<Health>,
    /// Replaced when a halted stream is resumed: a stopped listener never runs again, a new one does.
    state: Mutex<StateMachine>,
    clock: Arc<dyn Clock>,
    /// Serialises updates of state and status.
    gate: Mutex<()>,
}

impl StreamSlot {
    /// The slot of a stream of `group`. `report_changed` is notified when what it reports has changed.
    pub fn new(
        settings: StreamSettings,
        group: &str,
        control: Follower<Control>,
        clock: Arc<dyn Clock>,
        report_changed: Arc<Notify>,
    ) -> Self {
        let name = settings.name.clone();
        let key = key_of(group, &name);
        Self {
            settings,
            key,
            control,
            adaptive_size: Arc::default(),
            settled: OnceLock::new(),
            connected: OnceLock::new(),
            health: Arc::new(Health::new(&name, Arc::clone(&clock), report_changed)),
            state: Mutex::new(StateMachine::new(name, Arc::clone(&clock))),
            clock,
            gate: Mutex::default(),
        }
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Takes in its source and sinks. Its checkpoint is kept with the group unless a sink keeps it.
    pub fn connect(&self, spec: StreamSpec, group: &Arc<dyn CheckpointStore>) {
        let checkpoints = Arc::clone(spec.checkpoints.as_ref().unwrap_or(group));
        self.connected.get_or_init(|| Arc::new(Connected { spec: Arc::new(spec), checkpoints }));
    }

    /// Its source and sinks, if they are there.
    pub fn connected(&self) -> Option<&Arc<Connected>> {
        self.connected.get()
    }

    /// Notes that `part` of the work does not succeed: it is tried again.
    pub fn fail(&self, part: &str, error: &Error) {
        self.publish(|status| status.last_error = Some(error.to_string()));
        self.health.fail(part, error);
    }

    /// Completes when a person wants what waits to be tried at once.
    pub async fn retry_request(&self) {
        let mut control = self.control.clone();
        let before = control.see().tries;
        while control.see().tries <= before {
            if control.changed().await.is_err() {
                // Nobody can wish anything any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// What this instance does with it, as it tells the group.
    pub fn report(&self) -> StreamReport {
        let status = self.status().get().clone();
        let trouble = self.health.trouble(status.state.is_on_watch());
        let doing = StreamActivity::of(status.state, trouble.is_some());
        let is_holder = matches!(doing, StreamActivity::Running | StreamActivity::Recovering);
        let spec = self.connected().map(|connected| &connected.spec);
        let health = is_holder.then_some(&self.health);
        let by_position = || spec?.source.stage(&health?.position()?);
        let stage = health.and_then(|health| health.stage()).or_else(by_position);
        let sinks = spec.into_iter().flat_map(|spec| spec.profiles());
        StreamReport {
            stream: status.stream,
            doing,
            epoch: status.epoch,
            trouble,
            lag_millis: health.and_then(|health| health.lag()).map(millis),
            undelivered_millis: health.and_then(|health| health.undelivered()).map(millis),
            newest_at_millis: health.and_then(|health| health.newest()).map(|time| time.0),
            oldest_at_millis: health.and_then(|health| health.oldest_undelivered()).map(|time| time.0),
            not_delivering_millis: self.health.not_delivering().map(millis),
            stage: stage.map(Into::into),
            sinks: sinks.map(|(name, profile)| SinkReport { name, grade: profile.grade }).collect(),
        }
    }

    /// Takes in what the other instances report of the stream, each with the age of the report.
    pub fn merge_reports(&self, others: &[(StreamReport, Duration)]) {
        self.health.merge_reports(self.status().get().state.is_on_watch(), others);
    }

    /// The listener's state machine.
    pub fn machine(&self) -> StateMachine {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stands by again after a halt: with a new listener.
    pub fn stand_by_again(&self) {
        if self.machine().state() == ListenerState::Stopped {
            let machine = StateMachine::new(self.name(), Arc::clone(&self.clock));
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = machine;
            self.publish(|status| status.halted = false);
            self.go(ListenerState::Connecting, None, "resumed");
        }
    }

    /// Follows what people see.
    pub fn status(&self) -> Follower<StreamStatus> {
        self.health.status()
    }

    /// Shows how far the stream is behind now.
    pub fn refresh(&self) {
        self.health.refresh();
    }

    /// Changes what people see.
    pub fn publish(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.health.publish(change);
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
                    // Every attempt at a stream that fails takes it again, each time for a reason of its own.
                    let reason = if next == ListenerState::Running { "" } else { cause };
                    let should_log = self.health.should_log_state(&format!("{from} to {next}: {reason}"));
                    // A stream that stands still over an error is worth waking somebody, if it lasts.
                    match next {
                        _ if !should_log => tracing::debug!(stream, %from, to = %next, epoch, cause, "state"),
                        ListenerState::Recovering => tracing::warn!(stream, %from, to = %next, epoch, cause, "state"),
                        // It is open, but may fail at the next write: that it delivers again is logged when it does.
                        ListenerState::Running if from == ListenerState::Recovering && !self.health.is_recovered() => {
                            tracing::debug!(stream, %from, to = %next, epoch, cause, "state");
                        }
                        _ => tracing::info!(stream, %from, to = %next, epoch, cause, "state"),
                    }
                }
                Err(error) => tracing::error!(%error, "an illegal transition was refused"),
            }
        }
        drop(gate);
        if machine.state() != self.status().get().state {
            self.health.notify_change();
        }
        self.publish(|status| {
            status.state = machine.state();
            status.epoch = epoch;
        });
    }
}
