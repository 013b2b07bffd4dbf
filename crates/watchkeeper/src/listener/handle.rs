//! A registered listener.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use uuid::Uuid;
use watchkeeper_core::change::key_hash_v1;
use watchkeeper_core::{BootClock, Clock, InstanceId, Moment};

use super::ListenerState;
use super::error::Result;
use super::state::ListenerStateMachine;

/// A listener that this process has registered. A clone is the same listener; what changes here is told to the
/// other processes.
#[derive(Debug, Clone)]
pub struct ListenerHandle {
    shared: Arc<Shared>,
    state_machine: ListenerStateMachine,
}

#[derive(Debug)]
struct Shared {
    checkpoint: AtomicI64,
    /// The stream it can run, once it has one.
    stream: Mutex<Option<String>>,
    last_heartbeat: Mutex<Option<Moment>>,
    /// Whether it has anything to say that others should hear.
    is_news: AtomicBool,
    /// Whether it ever had.
    has_spoken: AtomicBool,
    tell: Arc<Notify>,
}

/// What a listener says of itself, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StateReport {
    pub(super) state: ListenerState,
    #[serde(default)]
    pub(super) checkpoint: i64,
    #[serde(default)]
    pub(super) stream: Option<String>,
}

impl ListenerHandle {
    /// A listener that is initializing; `publish` is notified when it has something to say.
    pub(super) fn new(listener_id: &str, tell: Arc<Notify>) -> Self {
        let shared = Shared {
            checkpoint: AtomicI64::new(0),
            stream: Mutex::default(),
            last_heartbeat: Mutex::default(),
            is_news: AtomicBool::new(false),
            has_spoken: AtomicBool::new(false),
            tell,
        };
        Self { shared: Arc::new(shared), state_machine: ListenerStateMachine::new(listener_id.to_owned()) }
    }

    /// Its name.
    pub fn listener_id(&self) -> &str {
        self.state_machine.listener_id()
    }

    /// Its state. To change it so that others hear of it, use [`transition`](Self::transition).
    pub fn state_machine(&self) -> &ListenerStateMachine {
        &self.state_machine
    }

    /// Goes to another state, and tells the others.
    ///
    /// # Errors
    /// As [`ListenerStateMachine::transition`].
    pub async fn transition(&self, next_state: ListenerState) -> Result<()> {
        self.state_machine.go(next_state)?;
        self.announce();
        Ok(())
    }

    /// How many changes it has seen committed.
    pub fn checkpoint(&self) -> i64 {
        self.shared.checkpoint.load(Ordering::Acquire)
    }

    /// Notes how many changes are committed; the others hear of it with the next heartbeat, since there may be many
    /// commits. For people: what is committed is decided by the checkpoint store.
    pub fn set_checkpoint(&self, checkpoint: i64) {
        if self.shared.checkpoint.swap(checkpoint, Ordering::AcqRel) != checkpoint {
            self.state_machine.note_progress();
            self.shared.has_spoken.store(true, Ordering::Release);
            self.keep_news();
        }
    }

    /// How long ago its last heartbeat was written; `None` before the first.
    pub fn since_heartbeat(&self) -> Option<Duration> {
        let last = *self.shared.last_heartbeat.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| BootClock.now().since(last))
    }

    pub(super) fn note_heartbeat(&self) {
        *self.shared.last_heartbeat.lock().unwrap_or_else(PoisonError::into_inner) = Some(BootClock.now());
    }

    pub(super) fn follow(&self, state: ListenerState) {
        if self.state_machine.state() != state {
            self.state_machine.follow(state);
            self.announce();
        }
    }

    pub(super) fn set_stream(&self, stream: &str) {
        *self.shared.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.to_owned());
        self.announce();
    }

    /// Whether what it says counts more than what is stored under its name, perhaps by another process.
    pub(super) fn has_spoken(&self) -> bool {
        self.shared.has_spoken.load(Ordering::Acquire)
    }

    /// What it has to say, if that is news.
    pub(super) fn take_news(&self) -> Option<StateReport> {
        self.shared.is_news.swap(false, Ordering::AcqRel).then(|| self.saying())
    }

    /// There is news, or it was not heard: it is told with the next heartbeat.
    pub(super) fn keep_news(&self) {
        self.shared.is_news.store(true, Ordering::Release);
    }

    pub(super) fn saying(&self) -> StateReport {
        let stream = self.shared.stream.lock().unwrap_or_else(PoisonError::into_inner).clone();
        StateReport { state: self.state_machine.state(), checkpoint: self.checkpoint(), stream }
    }

    /// Tells the others soon.
    fn announce(&self) {
        self.shared.has_spoken.store(true, Ordering::Release);
        self.keep_news();
        self.shared.tell.notify_one();
    }
}

/// The identity of a listener in the registry: made of its name, so that all processes agree on it, and on every
/// order that is computed from it.
pub(super) fn identity(listener_id: &str) -> InstanceId {
    let half = |salt: u8| key_hash_v1(&[&[salt], listener_id.as_bytes()].concat());
    InstanceId(Uuid::from_u64_pair(half(0), half(1)))
}
