//! Proof of death, as a seam.
//!
//! A lease store can only say that a holder has been silent for a TTL. The kernel of the holder's
//! machine knows sooner: when a process dies its connections are closed and new ones refused. That
//! pair is the proof. A time-out proves nothing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::cx::Cx;
use crate::error::Result;
use crate::names::{Address, TenureId};

/// What watching a peer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The process that held the tenure is dead: its connection was closed and a new one refused.
    Dead,
    /// Nothing was proved. Wait for the lease to expire.
    Unproven,
}

/// The tenures that this instance answers for.
#[derive(Debug, Clone, Default)]
pub struct HeldTenures {
    tenures: Arc<Mutex<BTreeSet<TenureId>>>,
}

impl HeldTenures {
    /// Begins to answer for `tenure`.
    pub fn enter(&self, tenure: TenureId) {
        self.lock().insert(tenure);
    }

    /// Ends to answer for `tenure`. To be called only after its release.
    pub fn remove(&self, tenure: TenureId) {
        self.lock().remove(&tenure);
    }

    /// Whether this instance answers for `tenure`.
    pub fn has(&self, tenure: TenureId) -> bool {
        self.lock().contains(&tenure)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<TenureId>> {
        self.tenures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open listener; dropping it closes it.
pub trait Listening: Send + Sync + std::fmt::Debug {
    /// What to publish, so that peers find it. `None` when this form does not listen.
    fn address(&self) -> Option<Address>;
}

/// Listens for peers and watches them.
#[async_trait]
pub trait Peers: Send + Sync + std::fmt::Debug {
    /// Whether `address` is on this machine, where a refused connection cannot be a broken network.
    fn is_local(&self, address: &Address) -> bool;

    /// Begins to answer peers for the tenures on `held_tenures`.
    async fn listen(&self, cx: &Cx, held_tenures: HeldTenures) -> Result<Box<dyn Listening>>;

    /// Watches the process at `address` that answers for `tenure`.
    ///
    /// # Behavior
    /// * `Dead` only if the peer had answered for `tenure` on this very connection, the connection
    ///   was then closed, and a new one was refused.
    /// * `Unproven` when the peer could not be reached, does not answer for `tenure`, or was silent.
    ///
    /// # Cancel safety
    /// Dropping it ends the watch.
    async fn watch(&self, cx: &Cx, address: &Address, tenure: TenureId) -> Result<Verdict>;
}

/// No peers: death is never proved, takeover waits for the lease to expire.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

impl Listening for NoPeers {
    fn address(&self) -> Option<Address> {
        None
    }
}

#[async_trait]
impl Peers for NoPeers {
    fn is_local(&self, _address: &Address) -> bool {
        false
    }

    async fn listen(&self, _cx: &Cx, _roll: HeldTenures) -> Result<Box<dyn Listening>> {
        Ok(Box::new(NoPeers))
    }

    async fn watch(&self, _cx: &Cx, _address: &Address, _tenure: TenureId) -> Result<Verdict> {
        Ok(Verdict::Unproven)
    }
}
