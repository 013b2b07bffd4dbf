//! Hints that something was written, by LISTEN on one connection for all who wait.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;
use watchkeeper_core::{Cx, Error, Result};

use super::dedicated::Counts;
use super::{Client, Dedicated, quoted};
use crate::error::{CallPurpose, unchanged};

/// Follows one channel. What it tells is a hint: hints are merged, and lost while there is no connection.
#[derive(Debug, Clone)]
pub struct ChangeHints {
    channel: String,
    seen: u64,
    // It keeps the connection open.
    _ear: Arc<Dedicated>,
    counts: watch::Receiver<Counts>,
}

/// The connection that a client's pulses share; it is closed with the last of them.
#[derive(Debug, Default)]
pub(super) struct Tail(Mutex<Weak<Dedicated>>);

impl Tail {
    fn kept(&self) -> Option<Arc<Dedicated>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        kept.filter(|ear| !ear.is_closed())
    }
}

impl ChangeHints {
    /// Begins to follow: whoever is notified on `channel` from now on is a hint.
    ///
    /// # Errors
    /// As [`Client::dedicated`].
    pub async fn start(cx: &Cx, client: &Client, channel: &str) -> Result<Self> {
        let ear = match client.tail.kept() {
            Some(ear) => ear,
            None => {
                let ear = Arc::new(client.dedicated(cx).await?);
                ear.raise_timeouts();
                *client.tail.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&ear);
                ear
            }
        };
        let listen = async {
            let listening = ear.batch_execute(&format!("LISTEN {}", quoted(channel))).await;
            listening.map_err(|native| client.error(native, CallPurpose::Reading))
        };
        client.bounded(cx).run(listen).await.map_err(unchanged)?;
        let counts = ear.notifications();
        let seen = counts.borrow().get(channel).copied().unwrap_or(0);
        Ok(Self { channel: channel.to_owned(), seen, _ear: ear, counts })
    }

    /// Forgets all hints so far.
    pub fn mark_seen(&mut self) {
        self.seen = self.counts.borrow().get(&self.channel).copied().unwrap_or(0);
    }

    /// Waits for the next hint.
    ///
    /// # Errors
    /// `Unavailable` when the connection has ended: begin anew, and look, since hints may have been missed.
    ///
    /// # Cancel safety
    /// Cancel safe: a hint is seen only by an answer.
    pub async fn changed(&mut self) -> Result<()> {
        let (channel, seen) = (&self.channel, self.seen);
        let count = |counts: &Counts| counts.get(channel).copied().unwrap_or(0);
        let changed = self.counts.wait_for(|counts| count(counts) != seen).await;
        let ended = || Error::unavailable("the connection that waits for hints has ended").remedy("it is made anew");
        let now = changed.map(|counts| count(&counts)).map_err(|_| ended())?;
        self.seen = now;
        Ok(())
    }

    /// Whether no hint will come any more.
    pub fn has_ended(&self) -> bool {
        self.counts.has_changed().is_err()
    }
}
