//! A stream's changes, for those who would rather ask for them.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::Mutex;
use watchkeeper_core::memory::{Checkpoints, Leases, RecordStore};
use watchkeeper_core::{Change, Error, StoreIdentity};
use watchkeeper_engine::instance::Stores;
use watchkeeper_engine::seams::Seams;

use super::config::ChangeLogConfig;
use super::coordinator::MultiListenerCoordinator;
use super::error::Result;
use super::handle::ListenerHandle;
use super::post::Started;
use super::state::ListenerStateMachine;

/// The group of listeners that have no coordinator.
const ALONE: &str = "alone";

/// A change, with the checkpoint after it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChangeLogEntry {
    /// How many changes of the stream are done with this one: what is committed when this is the last one of its batch.
    pub checkpoint: i64,
    /// The change.
    pub change: Change,
}

impl Deref for ChangeLogEntry {
    type Target = Change;

    fn deref(&self) -> &Change {
        &self.change
    }
}

/// Listens to a stream, of which one listener of the group has the watch at a time.
///
/// Ask for the [next batch](Self::next_batch), work on it, and ask again: asking commits the batch before. A batch after which
/// nobody asked (the process died, the watch was lost) is delivered again, to whoever has the watch then: every change at
/// least once, in order, and no stale listener moves the checkpoint.
///
/// Without a coordinator it works alone, with its checkpoint in memory: a new one starts where its configuration says.
/// Dropping it is like a crash, its lease has to run out; [`close`](Self::close) leaves in order.
///
/// ```no_run
/// # async fn listen(coordinator: watchkeeper::MultiListenerCoordinator) -> watchkeeper::listener::Result<()> {
/// use watchkeeper::{ChangeLogConfig, ChangeLogListener, ObserverError, open};
///
/// let mut config = ChangeLogConfig::new("orders", open::source("sqlite:shop.db", "shop", "orders").await?);
/// config.multi_listener.listener_id = "listener-1".to_owned();
/// let listener = ChangeLogListener::new(config).with_coordinator(coordinator)?;
/// loop {
///     match listener.next_batch().await {
///         // Asking again commits them.
///         Ok(entries) => entries.iter().for_each(|entry| println!("{} {}", entry.checkpoint, entry.id())),
///         Err(ObserverError::ListenerFailover { checkpoint, .. }) => eprintln!("another listener goes on at {checkpoint}"),
///         Err(error) => return Err(error),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct ChangeLogListener {
    config: ChangeLogConfig,
    coordinator: Option<MultiListenerCoordinator>,
    handle: std::sync::OnceLock<ListenerHandle>,
    /// The engine, from the first call on. The lock makes those who ask take turns.
    started: Mutex<Option<Started>>,
}

impl ChangeLogListener {
    /// A listener that works alone, unless it is given a coordinator. It does nothing before it is asked for a batch.
    pub fn new(config: ChangeLogConfig) -> Self {
        Self { config, coordinator: None, handle: std::sync::OnceLock::new(), started: Mutex::default() }
    }

    /// Shares the watch with the other listeners of the coordinator's group.
    ///
    /// # Errors
    /// `Config` when a setting is wrong, or when it listens already.
    pub fn with_coordinator(mut self, coordinator: impl Into<MultiListenerCoordinator>) -> Result<Self> {
        if self.started.get_mut().is_some() {
            let cause = "a listener that listens already cannot be given a coordinator";
            return Err(Error::config(cause).remedy("give it one before it is asked for a batch").into());
        }
        self.config.multi_listener.enabled = true;
        self.config.validate()?;
        self.coordinator = Some(coordinator.into());
        Ok(self)
    }

    /// Its name.
    pub fn listener_id(&self) -> &str {
        &self.config.multi_listener.listener_id
    }

    /// Its state and checkpoint, once it was asked for a batch.
    pub fn handle(&self) -> Option<&ListenerHandle> {
        self.handle.get()
    }

    /// Its state, once it was asked for a batch.
    pub fn state_machine(&self) -> Option<&ListenerStateMachine> {
        self.handle.get().map(ListenerHandle::state_machine)
    }

    /// Commits the batch before, if there is one, and waits for the next: as a standby, if another listener has the
    /// watch. It is never empty.
    ///
    /// # Errors
    /// `ListenerFailover` when the watch ended since the last call; the next call stands by. `Halted` while a
    /// person has to resume the stream. `Failed` with kind `Config` when settings are wrong.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call loses nothing. Whether it has committed the batch before, the next call finds out.
    pub async fn next_batch(&self) -> Result<Vec<ChangeLogEntry>> {
        let mut started = self.started.lock().await;
        let post = self.start(&mut started).await?;
        post.settle().await?;
        post.take().await
    }

    /// Commits the batch before without asking for another; the answer is how many changes are committed, as far as this
    /// listener knows. It is less than the batch's own count if the source had to be opened anew meanwhile: then
    /// the batch was withdrawn, and comes again.
    ///
    /// # Errors
    /// `ListenerFailover` when the watch ended before the batch was committed: it is delivered again, elsewhere or here.
    ///
    /// # Cancel safety
    /// As [`next_batch`](Self::next_batch).
    pub async fn ack(&self) -> Result<i64> {
        let mut started = self.started.lock().await;
        let Some(post) = started.as_mut() else { return Ok(0) };
        post.settle().await?;
        Ok(post.checkpoint())
    }

    /// Leaves in order: releases the watch, so that the next listener need not wait, and deregisters. A batch that
    /// was not acknowledged is delivered again.
    pub async fn close(self) -> Result<()> {
        if let Some(started) = self.started.into_inner() {
            started.close().await?;
            if let Some(coordinator) = &self.coordinator {
                coordinator.deregister_listener(&self.config.multi_listener.listener_id).await?;
            }
        }
        Ok(())
    }

    async fn start<'a>(&self, started: &'a mut Option<Started>) -> Result<&'a mut Started> {
        if started.is_none() {
            *started = Some(self.start_anew().await?);
        }
        started.as_mut().ok_or_else(|| Error::internal("a listener that was started is not there").into())
    }

    async fn start_anew(&self) -> Result<Started> {
        self.config.validate()?;
        let listener_id = self.listener_id();
        let Some(coordinator) = &self.coordinator else {
            if self.config.multi_listener.enabled {
                return Err(Error::config("several listeners are enabled, but this one has no coordinator")
                    .remedy("give it one with with_coordinator, or leave `enabled` off")
                    .into());
            }
            let handle = ListenerHandle::new(listener_id, Arc::default());
            let _ = self.handle.set(handle.clone());
            let seams = Seams::system();
            let stores = in_memory(&seams);
            return Started::new(seams, stores, ALONE, &self.config, handle, None).await;
        };
        coordinator.register_listener(listener_id.to_owned()).await?;
        let registered = coordinator.listener(listener_id);
        let handle = registered.ok_or_else(|| Error::unavailable("the listener was deregistered meanwhile"))?;
        handle.set_stream(&self.config.stream);
        // Before it can have the watch, so that whoever asks it to hand over knows of what.
        coordinator.publish().await?;
        let _ = self.handle.set(handle.clone());
        let patience = self.config.patience.unwrap_or(self.config.multi_listener.failover_threshold());
        let (seams, stores) = (coordinator.seams(), coordinator.stores().clone());
        Started::new(seams, stores, coordinator.group(), &self.config, handle, Some(patience)).await
    }
}

/// The stores of one who is alone.
fn in_memory(seams: &Seams) -> Stores {
    Stores {
        leases: Arc::new(Leases::new(Arc::clone(&seams.clock))),
        checkpoints: Arc::new(Checkpoints::new(StoreIdentity(seams.entropy.uuid()))),
        records: Arc::new(RecordStore::new(Arc::clone(&seams.clock))),
    }
}
