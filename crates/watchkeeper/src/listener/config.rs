//! Settings of listeners that share a stream.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use watchkeeper_core::{Entropy, Error, Grade, Result, Source, StartAt};
use watchkeeper_engine::delivery::HandlerSettings;
use watchkeeper_engine::settings::{InstanceSettings, LeaseSettings};

/// How several listeners share the watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MultiListenerConfig {
    /// Whether the listener must be coordinated: one that is enabled and has no coordinator refuses to run, since
    /// nobody could relieve it. Giving a listener a coordinator enables it.
    pub enabled: bool,
    /// The name of this listener.
    pub listener_id: String,
    /// For how long a lease is granted, in milliseconds. It is renewed long before.
    pub lease_duration_ms: u64,
    /// How often listeners say that they are alive and are looked after, in milliseconds.
    pub health_check_interval_ms: u64,
    /// After which silence a listener counts as failed, in milliseconds, by the store's clock.
    pub failover_threshold_ms: u64,
    /// How many listeners may be registered in a group.
    pub max_listeners: usize,
}

impl Default for MultiListenerConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            listener_id: format!("listener-{}", new_uuid()),
            lease_duration_ms: 30_000,
            health_check_interval_ms: 5_000,
            failover_threshold_ms: 60_000,
            max_listeners: 10,
        }
    }
}

fn new_uuid() -> Uuid {
    Entropy::from_system().uuid()
}

impl MultiListenerConfig {
    /// Refuses what cannot work: names that cannot be kept, and times whose relations are wrong.
    ///
    /// # Errors
    /// `Config`, with the first rule that is broken and what to do about it.
    pub fn validate(&self) -> Result<()> {
        check_name("listener_id", &self.listener_id)?;
        let rules = [
            (self.lease_duration_ms >= 100, "lease_duration_ms is below 100", "lengthen the lease"),
            (self.health_check_interval_ms > 0, "health_check_interval_ms is zero", "set an interval"),
            (
                self.health_check_interval_ms < self.failover_threshold_ms,
                "failover_threshold_ms is not above health_check_interval_ms: every listener would count as failed \
                 before its next sign of life",
                "raise the threshold",
            ),
            (
                self.lease_duration_ms <= self.failover_threshold_ms,
                "failover_threshold_ms is below lease_duration_ms: a listener would count as failed while its lease runs",
                "raise the threshold or shorten the lease",
            ),
            (self.max_listeners > 0, "max_listeners is zero: nobody could register", "set at least 1"),
        ];
        let broken = rules.iter().find(|(holds, ..)| !holds);
        broken.map_or(Ok(()), |(_, cause, remedy)| Err(Error::config(*cause).remedy(*remedy)))?;
        self.lease().validate()
    }

    pub(super) fn lease(&self) -> LeaseSettings {
        LeaseSettings::new(Duration::from_millis(self.lease_duration_ms))
    }

    pub(super) fn health_check_interval(&self) -> Duration {
        Duration::from_millis(self.health_check_interval_ms)
    }

    pub(super) fn failover_threshold(&self) -> Duration {
        Duration::from_millis(self.failover_threshold_ms)
    }

    /// The engine's settings of a listener in `group`. How many may be there is the coordinator's affair.
    pub(super) fn instance(&self, group: &str) -> InstanceSettings {
        let mut settings = InstanceSettings::new(group, &self.listener_id);
        settings.lease = self.lease();
        settings.retry_floor = settings.retry_floor.min(settings.lease.ttl / 2);
        settings.heartbeat_every = self.health_check_interval();
        settings.unhealthy_after = self.failover_threshold();
        settings
    }
}

/// Names become parts of the keys that stores keep things under.
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::config(format!("{what} is empty")).remedy("give it a name"));
    }
    if name.contains('/') {
        return Err(Error::config(format!("{what} {name:?} contains a slash")).remedy("leave it out"));
    }
    Ok(())
}

/// What a [`ChangeLogListener`](super::ChangeLogListener) listens to, and how.
#[derive(Debug, Clone)]
pub struct ChangeLogConfig {
    /// The stream's name: listeners of one group with one stream share its watch and its checkpoint.
    pub stream: String,
    /// Where changes come from.
    pub source: Arc<dyn Source>,
    /// Where to start while nothing is committed; the oldest change that is still there, unless told otherwise.
    pub start: StartAt,
    /// At most so many changes in one batch, except that the halves of a key update stay together.
    pub batch_size: usize,
    /// How long a batch may be worked on before its listener counts as stuck and gives up the watch. By
    /// default the failover threshold, and for ever without a coordinator: nobody else is there.
    pub patience: Option<Duration>,
    /// What is declared of whatever the caller does with changes, since it cannot be seen: plain, and done
    /// within 5 s, unless told otherwise.
    pub target: HandlerSettings,
    /// How listeners share the watch, and this one's name.
    pub multi_listener: MultiListenerConfig,
}

impl ChangeLogConfig {
    /// The changes of `source` under this name, from the oldest one, at most 1,000 at once.
    pub fn new(stream: &str, source: Arc<dyn Source>) -> Self {
        Self {
            stream: stream.to_owned(),
            source,
            start: StartAt::Oldest,
            batch_size: 1_000,
            patience: None,
            target: HandlerSettings::default(),
            multi_listener: MultiListenerConfig::default(),
        }
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// `Config`, with a remedy.
    pub fn validate(&self) -> Result<()> {
        check_name("stream", &self.stream)?;
        if self.batch_size == 0 {
            return Err(Error::config("batch_size is zero: nothing would ever be delivered").remedy("set at least 1"));
        }
        if self.patience == Some(Duration::ZERO) {
            return Err(Error::config("patience is zero: every batch would be given up").remedy("leave it out"));
        }
        if self.target.grade == Grade::Transactional {
            return Err(Error::config("who asks for batches cannot be transactional")
                .remedy("declare the target versioned or idempotent, or use the transactional sink of the database"));
        }
        self.multi_listener.validate()
    }
}
