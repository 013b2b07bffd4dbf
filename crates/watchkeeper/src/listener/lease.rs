//! Leases on checkpoints.
//!
//! A lease says who *should* work. It is for liveness only: a paused holder cannot know that it was replaced. Who *may*
//! write is decided by the checkpoint store, which is handed the lease's [`Grant`] with every write.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use watchkeeper_core::{
    AcquireRequest, Acquired, BootClock, Candidate, Clock, Cx, Entropy, Epoch, Grant, Lease, LeaseKey, LeaseStore,
    Moment, Renewal, TenureId,
};
use watchkeeper_engine::settings::LeaseSettings;

use super::error::Result;
use super::handle::identity;
use super::store::{Store, roles};

/// Makes the leases of a group.
///
/// ```no_run
/// # async fn lease(store: std::sync::Arc<dyn watchkeeper::Store>) -> watchkeeper::listener::Result<()> {
/// use watchkeeper::LeaseManager;
///
/// let leases = LeaseManager::new(store, "shop", 30_000)?;
/// let lease = leases.lease("listener-1", 1);
/// if lease.acquire().await? {
///     // Asking again while it is held prolongs it.
///     lease.acquire().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LeaseManager {
    leases: Arc<dyn LeaseStore>,
    settings: LeaseSettings,
    group: Arc<str>,
}

impl LeaseManager {
    /// Leases of `group` in `store`, each for so many milliseconds.
    ///
    /// # Errors
    /// `Config` when the lease is too short.
    pub fn new(store: Arc<dyn Store>, group: &str, lease_duration_ms: u64) -> Result<Self> {
        let settings = LeaseSettings::new(Duration::from_millis(lease_duration_ms));
        settings.validate()?;
        Ok(Self::over(roles(store).leases, group, settings))
    }

    pub(super) fn over(leases: Arc<dyn LeaseStore>, group: &str, settings: LeaseSettings) -> Self {
        Self { leases, settings, group: group.into() }
    }

    /// The lease on checkpoint `checkpoint_id` as `listener_id` sees it. Nothing is asked of the store yet.
    pub fn lease(&self, listener_id: &str, checkpoint_id: i64) -> CheckpointLease {
        CheckpointLease {
            listener_id: listener_id.to_owned(),
            checkpoint_id,
            key: LeaseKey::new(format!("{}/listening/checkpoint/{checkpoint_id}", self.group)),
            settings: self.settings,
            leases: Arc::clone(&self.leases),
            entropy: Entropy::from_system(),
            held: Mutex::default(),
        }
    }
}

/// The lease on one checkpoint, as one listener sees it. Listeners in other processes see the same lease.
#[derive(Debug)]
pub struct CheckpointLease {
    listener_id: String,
    checkpoint_id: i64,
    key: LeaseKey,
    settings: LeaseSettings,
    leases: Arc<dyn LeaseStore>,
    entropy: Entropy,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// The grant, and until when it may be acted on.
    grant: Option<(Grant, Moment)>,
    /// An ask that was not answered is repeated for the same tenure: it may have been granted.
    unanswered: Option<TenureId>,
}

impl CheckpointLease {
    /// Whose view this is.
    pub fn listener_id(&self) -> &str {
        &self.listener_id
    }

    /// Which checkpoint it is on.
    pub fn checkpoint_id(&self) -> i64 {
        self.checkpoint_id
    }

    /// Asks for the lease; whether it is this listener's now. While it is, asking again prolongs it.
    ///
    /// # Cancel safety
    /// A dropped call may have been granted; asking again finds that out.
    pub async fn acquire(&self) -> Result<bool> {
        let tenure = self.next_tenure();
        self.lock().unanswered = Some(tenure);
        let cx = self.cx();
        let sent = cx.now();
        let answer = cx.run(self.leases.try_acquire(&cx, &self.ask(tenure))).await?;
        let mut held = self.lock();
        held.unanswered = None;
        held.grant = match answer {
            Acquired::Granted { grant, .. } => Some((grant, sent + self.acting_time())),
            Acquired::Held(_) => None,
        };
        drop(held);
        // An answer that took too long is of no use.
        Ok(self.grant().is_some())
    }

    /// Gives the lease back, if it is this listener's; it is free at once.
    pub async fn release(&self) -> Result<()> {
        let grant = self.lock().grant.take();
        if let Some((grant, _)) = grant {
            let cx = self.cx();
            cx.run(self.leases.release(&cx, &grant)).await?;
        }
        Ok(())
    }

    /// Prolongs the lease; whether it is still this listener's. Once its time has passed here it is over, whatever a
    /// late renewal would say.
    pub async fn renew(&self) -> Result<bool> {
        let Some(grant) = self.grant() else { return Ok(false) };
        let cx = self.cx();
        let (sent, leases) = (cx.now(), [Lease { grant: grant.clone(), ttl: self.settings.ttl }]);
        let answers = cx.run(self.leases.renew(&cx, &leases)).await?;
        let is_ours = self.grant().as_ref() == Some(&grant);
        match answers.first() {
            Some(Renewal::Held) if is_ours => self.lock().grant = Some((grant, sent + self.acting_time())),
            // Not known: it is no loss until its time has passed.
            Some(Renewal::Unknown) | None => {}
            Some(Renewal::Held) => return Ok(false),
            Some(Renewal::Lost) => self.lock().grant = None,
        }
        Ok(self.grant().is_some())
    }

    /// Whether the lease is this listener's, by its own clock and by the store.
    pub async fn is_valid(&self) -> Result<bool> {
        let Some(grant) = self.grant() else { return Ok(false) };
        let cx = self.cx();
        let holders = cx.run(self.leases.holders(&cx, std::slice::from_ref(&self.key))).await?;
        let holder = holders.into_iter().next().flatten();
        let is_stored =
            holder.is_some_and(|holder| (holder.candidate.tenure, holder.epoch) == (grant.tenure, grant.epoch));
        Ok(is_stored && self.grant().is_some())
    }

    /// Who has the lease, by the store; `None` when it is free or expired.
    pub async fn get_holder(&self) -> Result<Option<String>> {
        let cx = self.cx();
        let holders = cx.run(self.leases.holders(&cx, std::slice::from_ref(&self.key))).await?;
        Ok(holders.into_iter().next().flatten().map(|holder| holder.candidate.name))
    }

    /// What to hand to the checkpoint store with every write; `None` when the lease is not this listener's, or its time
    /// has passed by this listener's clock.
    pub fn grant(&self) -> Option<Grant> {
        let held = self.lock();
        let (grant, deadline) = held.grant.as_ref()?;
        (BootClock.now() < *deadline).then(|| grant.clone())
    }

    /// The fencing token of the lease, while it is this listener's.
    pub fn epoch(&self) -> Option<Epoch> {
        self.grant().map(|grant| grant.epoch)
    }

    /// The tenure to ask for: that which holds, that which may, or a new one.
    fn next_tenure(&self) -> TenureId {
        let holding = self.grant().map(|grant| grant.tenure);
        holding.or(self.lock().unanswered).unwrap_or_else(|| self.entropy.tenure())
    }

    fn ask(&self, tenure: TenureId) -> AcquireRequest {
        let (instance, name) = (identity(&self.listener_id), self.listener_id.clone());
        let candidate = Candidate { instance, name, address: None, tenure };
        AcquireRequest {
            key: self.key.clone(),
            candidate,
            ttl: self.settings.ttl,
            floor: Epoch::ZERO,
            break_holder: None,
        }
    }

    /// For how long a holder may act, counted from before its request.
    fn acting_time(&self) -> Duration {
        self.settings.ttl.saturating_sub(self.settings.margin)
    }

    fn cx(&self) -> Cx {
        Cx::new(Arc::new(BootClock)).within(self.settings.call_timeout)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
