//! Names of things that are agreed on: keys, instances, tenures, epochs.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a lease and a checkpoint are kept under.
///
/// Stores see it as an opaque string; the engine composes it from the stream's name, the layout's
/// generation and the partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey(Arc<str>);

impl LeaseKey {
    /// A key with exactly this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text that stores keep.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One process start. Never a process id or a host name: every container has pid 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceId(pub Uuid);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One period of holding a lease.
///
/// An acquire that is repeated after an unknown answer carries the same tenure and so is the same
/// grant; two tenures are never the same holder, even in one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TenureId(pub Uuid);

impl fmt::Display for TenureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fencing token. It grows by at least one with every grant and never goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Before the first grant.
    pub const ZERO: Self = Self(0);

    /// The smallest epoch above this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who may act, for which key, under which fencing token. It travels in the arguments of every call
/// that changes something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// What was granted.
    pub key: LeaseKey,
    /// To whom.
    pub tenure: TenureId,
    /// Under which fencing token.
    pub epoch: Epoch,
}

/// Where an instance answers its peers, as it published it. Opaque to stores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address(pub Arc<str>);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
