//! Notices listeners that fell silent, and has others take over.
//!
//! The watch itself does not depend on this: standbys take over when a lease is released, expires, or its holder is proved
//! dead. What is here chooses *who* takes over, asks holders that are alive to leave, and tells people.
//!
//! A request for a failover never breaks a lease. A holder that is alive is asked to hand over and a target is
//! preferred; a dead one is replaced when its lease expires or its death is proved. Silence in the registry proves
//! nothing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use watchkeeper_core::{Error, LeaseKey, Task};
use watchkeeper_engine::group::control::{Control, Controls};

use super::ListenerState;
use super::config::check_name;
use super::coordinator::MultiListenerCoordinator;
use super::error::{ObserverError, Result};
use super::roster::ObservedStream;

/// So many failovers are remembered.
const EVENTS_KEPT: usize = 100;

/// One failover that was asked for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FailoverEvent {
    /// Who should not have the watch any more.
    pub failed_listener_id: String,
    /// Who should have it.
    pub failover_target_id: String,
    /// How many changes were committed then: at least from here on it goes on.
    pub checkpoint: i64,
    /// When, by this process.
    pub timestamp: Instant,
}

/// Looks after the listeners of a group.
///
/// ```no_run
/// # async fn look_after(coordinator: watchkeeper::MultiListenerCoordinator) -> watchkeeper::listener::Result<()> {
/// use watchkeeper::FailoverManager;
///
/// let failover = FailoverManager::new(coordinator);
/// // Runs in the background until the manager and this guard are dropped.
/// let _monitor = failover.start_health_monitor().await;
///
/// // The same by hand.
/// for listener in failover.detect_failures().await? {
///     let event = failover.trigger_failover(&listener).await?;
///     println!("{} goes on at {}", event.failover_target_id, event.checkpoint);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FailoverManager {
    watcher: Watcher,
    monitor: Mutex<Option<HealthMonitor>>,
}

/// A monitor that runs in the background. It ends when this, its clones and the manager that started it are dropped.
#[derive(Debug, Clone)]
#[must_use = "the monitor ends when this and its `FailoverManager` are dropped: keep one of them"]
pub struct HealthMonitor {
    _task: Arc<Task<()>>,
}

#[derive(Debug, Clone)]
struct Watcher {
    coordinator: MultiListenerCoordinator,
    controls: Controls,
    health_check_interval: Duration,
    failover_threshold: Duration,
    events: Arc<Mutex<Vec<FailoverEvent>>>,
}

/// Listeners are looked at at least so many times within the failover threshold.
const LOOKS: u32 = 10;

impl FailoverManager {
    /// Looks after the listeners of `coordinator`'s group, with its settings.
    pub fn new(coordinator: impl Into<MultiListenerCoordinator>) -> Self {
        let coordinator = coordinator.into();
        let watcher = Watcher {
            controls: Controls::new(Arc::clone(&coordinator.stores().records), coordinator.group()),
            health_check_interval: coordinator.config().health_check_interval(),
            failover_threshold: coordinator.config().failover_threshold(),
            coordinator,
            events: Arc::default(),
        };
        Self { watcher, monitor: Mutex::default() }
    }

    /// The listeners that fell silent, by the store's clock: those whose silence would reach the failover threshold before the monitor looks
    /// again, so that a failure is noticed within the threshold and not after it.
    pub async fn detect_failures(&self) -> Result<Vec<String>> {
        self.watcher.detect_failures().await
    }

    /// Has the best of the other healthy listeners that stand by for its stream take over from `failed_listener_id`.
    ///
    /// A holder that is alive is *asked* to hand over: it drains, commits and releases. Its lease is never broken; one that
    /// is dead is relieved when its lease ends.
    ///
    /// # Errors
    /// `NotRegistered`, `NoStream` when it has none, or `NoHealthyListener` when nobody could take over; then nothing was asked of
    /// anyone.
    pub async fn trigger_failover(&self, failed_listener_id: &str) -> Result<FailoverEvent> {
        self.watcher.trigger_failover(failed_listener_id).await
    }

    /// Has `listener_id` go on with its stream, with nothing skipped: it is preferred from here on, and takes the watch as soon
    /// as that is free. It goes on from what is committed, which is `checkpoint` or later; to go *back* is an operator's move.
    ///
    /// A listener of this process without a stream is only told: it is running, and there.
    ///
    /// # Errors
    /// `CheckpointAhead` when less is committed than `checkpoint` says, `Halted`, `NotRegistered`, and `NoStream` for a listener of another
    /// process that has none: nobody could tell it.
    pub async fn resume_from_checkpoint(&self, listener_id: &str, checkpoint: i64) -> Result<()> {
        self.watcher.resume_from_checkpoint(listener_id, checkpoint).await
    }

    /// Starts to look after the listeners in the background, until this manager and the answer are dropped, and returns at once. Of
    /// several processes only that of the leader acts. Starting it again changes nothing.
    pub async fn start_health_monitor(&self) -> HealthMonitor {
        let start = || {
            let seams = self.watcher.coordinator.seams();
            let task = Task::spawn(&*seams.spawn, "health monitor", self.watcher.clone().run());
            HealthMonitor { _task: Arc::new(task) }
        };
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(start).clone()
    }

    /// The last failovers that this manager asked for, the oldest first.
    pub fn recent_failovers(&self) -> Vec<FailoverEvent> {
        self.watcher.events().clone()
    }
}

impl Watcher {
    fn events(&self) -> MutexGuard<'_, Vec<FailoverEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the listeners are looked at.
    fn inspect_every(&self) -> Duration {
        self.health_check_interval.min(self.failover_threshold / LOOKS)
    }

    async fn detect_failures(&self) -> Result<Vec<String>> {
        let silent = |seen: &ObservedStream| seen.age + self.inspect_every() >= self.failover_threshold;
        let seen = self.coordinator.roll_call().await?.into_iter().filter(silent);
        Ok(seen.map(|seen| seen.listener_id).collect())
    }

    async fn trigger_failover(&self, failed: &str) -> Result<FailoverEvent> {
        let everyone = self.coordinator.roll_call().await?;
        let Some(leaving) = everyone.iter().find(|seen| seen.listener_id == failed) else {
            return Err(ObserverError::NotRegistered { listener_id: failed.to_owned() });
        };
        let Some(stream) = leaving.saying.stream.as_deref() else {
            return Err(ObserverError::NoStream { listener_id: failed.to_owned() });
        };
        let could = |seen: &&ObservedStream| seen.is_healthy && seen.listener_id != failed && is_ready(seen, stream);
        let able: Vec<_> = everyone.iter().filter(could).map(|seen| seen.listener_id.clone()).collect();
        let Some(target) = self.coordinator.ranked(stream, &able).into_iter().next() else {
            return Err(ObserverError::NoHealthyListener);
        };
        self.hand_over(stream, failed, &target).await?;
        let checkpoint = self.committed(stream).await?;
        let (failed_listener_id, failover_target_id) = (failed.to_owned(), target);
        let event = FailoverEvent { failed_listener_id, failover_target_id, checkpoint, timestamp: Instant::now() };
        self.remember(event.clone());
        Ok(event)
    }

    /// Prefers `target`, and asks `failed` to leave if it has the watch.
    async fn hand_over(&self, stream: &str, failed: &str, target: &str) -> Result<()> {
        let cx = self.coordinator.cx();
        let holders = cx.run(self.coordinator.stores().leases.holders(&cx, &[self.key(stream)])).await?;
        let holder = holders.into_iter().next().flatten().filter(|holder| holder.candidate.name == failed);
        let leaving = holder.map(|holder| holder.epoch);
        let ask = self.controls.update(&cx, stream, |control| {
            control.preferred = Some(target.to_owned());
            control.hand_over = control.hand_over.max(leaving);
        });
        cx.run(ask).await?;
        Ok(())
    }

    fn remember(&self, event: FailoverEvent) {
        let mut events = self.events();
        if events.len() == EVENTS_KEPT {
            events.remove(0);
        }
        events.push(event);
    }

    /// How many changes of a stream are committed.
    async fn committed(&self, stream: &str) -> Result<i64> {
        let cx = self.coordinator.cx();
        let loaded = cx.run(self.coordinator.stores().checkpoints.load(&cx, &self.key(stream))).await?;
        let Some(checkpoint) = loaded else { return Ok(0) };
        if let Some(halted) = checkpoint.halted {
            return Err(ObserverError::Halted { stream: stream.to_owned(), cause: halted.cause });
        }
        Ok(as_checkpoint(checkpoint.facts.changes))
    }

    fn key(&self, stream: &str) -> LeaseKey {
        stream_key(self.coordinator.group(), stream)
    }

    async fn resume_from_checkpoint(&self, listener_id: &str, checkpoint: i64) -> Result<()> {
        check_name("listener_id", listener_id)?;
        if checkpoint < 0 {
            return Err(Error::config(format!("checkpoint {checkpoint} is below zero: it counts changes")).into());
        }
        let seen = self.coordinator.find(listener_id).await?;
        let Some(stream) = seen.saying.stream else {
            return self.publish(listener_id, checkpoint);
        };
        let stored = self.committed(&stream).await?;
        if checkpoint > stored {
            return Err(ObserverError::CheckpointAhead { asked: checkpoint, stored });
        }
        let cx = self.coordinator.cx();
        let prefer = |control: &mut Control| control.preferred = Some(listener_id.to_owned());
        cx.run(self.controls.update(&cx, &stream, prefer)).await?;
        Ok(())
    }

    /// Tells a listener of this process, which has no stream, that it goes on.
    fn publish(&self, listener_id: &str, checkpoint: i64) -> Result<()> {
        let Some(handle) = self.coordinator.listener(listener_id) else {
            return Err(ObserverError::NoStream { listener_id: listener_id.to_owned() });
        };
        handle.follow(ListenerState::Running);
        handle.set_checkpoint(checkpoint);
        Ok(())
    }

    async fn run(self) {
        let clock = self.coordinator.seams().clock;
        let mut known = KnownListener::default();
        loop {
            if let Err(error) = self.inspect(&mut known).await {
                tracing::warn!(%error, "the listeners could not be looked after");
            }
            clock.sleep_until(clock.now() + self.inspect_every()).await;
        }
    }

    /// Looks once.
    async fn inspect(&self, known: &mut KnownListener) -> Result<()> {
        let failed: BTreeSet<String> = self.detect_failures().await?.into_iter().collect();
        known.counted.retain(|listener| failed.contains(listener));
        known.dealt_with.retain(|listener| failed.contains(listener));
        let own = self.coordinator.own();
        let leads = match self.coordinator.elect_leader().await {
            Ok(leader) => own.is_empty() || own.contains(&leader),
            Err(ObserverError::NoHealthyListener) => own.is_empty(),
            Err(error) => return Err(error),
        };
        if !leads {
            return Ok(());
        }
        for listener in failed {
            if known.dealt_with.contains(&listener) {
                continue;
            }
            if known.counted.insert(listener.clone()) {
                self.coordinator.metrics().listener_failed();
            }
            match self.trigger_failover(&listener).await {
                Ok(event) => {
                    let (target, checkpoint) = (&event.failover_target_id, event.checkpoint);
                    tracing::warn!(listener, target, checkpoint, "a listener fell silent; another should take over");
                }
                // Tried again when someone is there.
                Err(ObserverError::NoHealthyListener) => continue,
                Err(ObserverError::NoStream { .. }) => {
                    tracing::warn!(listener, "a listener without a stream fell silent")
                }
                Err(error) => tracing::warn!(listener, %error, "a listener fell silent, and nobody takes over"),
            }
            known.dealt_with.insert(listener);
        }
        Ok(())
    }
}

/// Failures that the monitor knows of and that last.
#[derive(Debug, Default)]
struct KnownListener {
    counted: BTreeSet<String>,
    /// Someone was asked to take over. It is not asked again.
    dealt_with: BTreeSet<String>,
}

/// Whether a listener could take over now. One that does not stand by yet could not: the watch would go back to where it was.
fn is_ready(seen: &ObservedStream, stream: &str) -> bool {
    use ListenerState::{Connecting, Recovering, Running};
    matches!(seen.saying.state, Connecting | Running | Recovering) && seen.saying.stream.as_deref() == Some(stream)
}

/// What the lease and the checkpoint of a stream are kept under: as `StreamSpec::key` says it of one that is not split.
fn stream_key(group: &str, stream: &str) -> LeaseKey {
    LeaseKey::new(format!("{group}/{stream}/0/0"))
}

/// A count of changes as a checkpoint.
pub(super) fn as_checkpoint(changes: u64) -> i64 {
    i64::try_from(changes).unwrap_or(i64::MAX)
}
