//! The right to run a stream for a while.
//!
//! A lease is for liveness only: it decides who *should* write. Who *may* write is decided where the
//! checkpoint is stored ([`CheckpointStore`](crate::CheckpointStore)). So a lease store may lose its
//! data, or believe a wrong clock, without harm to anything but availability.
//!
//! What is **not** guaranteed: that two processes never believe to hold at the same time. A paused
//! holder cannot know that it was replaced. Hence the epoch.
//!
//! Whose clock is believed: the store's own, for expiry; the holder's, counted from *before* it sent
//! the request, for giving up. Only durations travel.
//!
//! `LeaseStore::separate` gives the keeper's thread connections that no other call waits on; only the store knows how
//! to make them. `Acquired::Granted` names the previous tenure: the new holder has to know whether it waits for
//! `settle`, and the journal records the cause and the vacancy by the store's clock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::error::Result;
use crate::names::{Address, Epoch, Grant, InstanceId, LeaseKey, TenureId};

/// Who asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The process.
    pub instance: InstanceId,
    /// Its name for people.
    pub name: String,
    /// Where it answers its peers.
    pub address: Option<Address>,
    /// The tenure that a grant would be for.
    pub tenure: TenureId,
}

/// A request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest {
    /// What for.
    pub key: LeaseKey,
    /// By whom.
    pub candidate: Candidate,
    /// For how long.
    pub ttl: Duration,
    /// The grant's epoch must be above this: the newest one that the checkpoint store has seen.
    pub floor: Epoch,
    /// A holder whose death has been proved and who may be replaced before its lease expires.
    pub break_holder: Option<(TenureId, Epoch)>,
}

/// Who holds a lease now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process, its name, its address and its tenure.
    pub candidate: Candidate,
    /// Under which epoch.
    pub epoch: Epoch,
    /// How long the lease still runs, by the store's clock.
    pub remaining: Duration,
}

impl Holder {
    /// A holder whose lease still runs for `remaining`, by the store's clock.
    pub fn new(candidate: Candidate, epoch: Epoch, remaining: Duration) -> Self {
        Self { candidate, epoch, remaining }
    }
}

/// How the tenure before a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// It was given back.
    Released,
    /// It was not renewed in time.
    Expired,
    /// Its holder was proved dead.
    Broken,
}

/// The tenure before a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// Whose it was.
    pub candidate: Candidate,
    /// Under which epoch.
    pub epoch: Epoch,
    /// How it ended.
    pub ending: Ending,
    /// How long nobody held, by the store's clock; zero when broken.
    pub vacant: Duration,
}

/// The answer to an [`AcquireRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The lease is the candidate's.
    Granted {
        /// The grant to act under.
        grant: Grant,
        /// Whose it was before, if that is known.
        previous: Option<Previous>,
    },
    /// Another one has it. Not an error.
    Held(Holder),
}

/// A lease to renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Matched by key, tenure and epoch.
    pub grant: Grant,
    /// For how long from now.
    pub ttl: Duration,
}

/// The answer to one renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours, for another TTL.
    Held,
    /// No longer ours.
    Lost,
    /// The store could not tell for this one. No loss until the local deadline has passed.
    Unknown,
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// It was ours and is free now.
    Released,
    /// It was not ours (any more); nothing changed.
    NotHeld,
}

/// What a lease store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseProfile {
    /// The shortest TTL it takes.
    pub shortest: Duration,
    /// Whether [`LeaseStore::wakeups`] tells of releases at once; if not, standbys poll.
    pub wakes: bool,
}

/// Hints that a lease may have become free.
#[async_trait]
pub trait Wakeups: Send {
    /// Waits for the next hint. Hints may be merged and may be false; after an error, ask for new
    /// wake-ups and look for yourself, since some may have been missed.
    ///
    /// # Cancel safety
    /// Cancel safe: no hint is lost.
    async fn next(&mut self, cx: &Cx) -> Result<()>;
}

/// Keeps leases.
#[async_trait]
pub trait LeaseStore: Send + Sync + std::fmt::Debug {
    /// What this store can do.
    fn profile(&self) -> LeaseProfile;

    /// Asks for a lease.
    ///
    /// # Behavior
    /// * L1: a free key is granted, with an epoch above `floor` and above every epoch granted before.
    /// * L2: a key held by another tenure is not granted; the answer names the holder and how long
    ///   the lease still runs.
    /// * L3: the same tenure asking again while it holds gets the same grant, and its lease runs anew,
    ///   as long as `floor` is below its epoch; otherwise it is a new grant: max(stored, floor) + 1.
    /// * L4: an expired key is granted under a higher epoch.
    /// * L5: `break_holder` replaces exactly that (tenure, epoch) and no other.
    /// * L6: of many at once exactly one is granted.
    ///
    /// # Errors
    /// `Unknown` when it may have been granted: ask again unchanged.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still be granted, to the same tenure.
    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired>;

    /// Renews many leases in one round trip, with an answer each in the same order.
    ///
    /// # Behavior
    /// * L7: a renewed lease runs for `ttl` from now by the store's clock.
    /// * L8: only an exact match of key, tenure and epoch is renewed; anything else is `Lost`.
    /// * L9: an expired lease that nobody took can be renewed.
    /// * L10: the answers are independent of each other.
    ///
    /// # Errors
    /// An error says nothing about any of them.
    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>>;

    /// Gives a lease back.
    ///
    /// # Behavior
    /// * L11: only the holder's own is released; the key is then free at once.
    /// * L12: the epoch survives: the next grant is above it.
    /// * L13: a release wakes those who wait (where the profile says so).
    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released>;

    /// Who holds these keys, in one round trip; `None` for a key that is free or expired.
    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>>;

    /// Begins to listen for releases of any key.
    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>>;

    /// The same store on connections of its own, for the keeper's thread.
    async fn separate(&self, cx: &Cx) -> Result<Arc<dyn LeaseStore>>;
}
