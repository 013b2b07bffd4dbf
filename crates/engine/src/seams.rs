//! What the engine needs of the world besides stores: time, tasks, peers, randomness.

use std::sync::Arc;

use watchkeeper_core::{BootClock, Clock, Cx, Entropy, NoPeers, Peers, Spawn, TokioSpawn};

/// The seams of one instance. A simulation gives each instance its own.
#[derive(Debug, Clone)]
pub struct Seams {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Proof of death.
    pub peers: Arc<dyn Peers>,
    /// Identities and jitter.
    pub entropy: Arc<Entropy>,
}

impl Seams {
    /// The seams of a running program, without peers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn system() -> Self {
        Self {
            clock: Arc::new(BootClock),
            spawn: Arc::new(TokioSpawn::current()),
            peers: Arc::new(NoPeers),
            entropy: Arc::new(Entropy::from_system()),
        }
    }

    /// A context without a deadline.
    pub fn cx(&self) -> Cx {
        Cx::new(Arc::clone(&self.clock))
    }
}
