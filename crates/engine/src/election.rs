//! Leader election on its own, for those who have no stream.
//!
//! A [`Campaign`] stands for a key until it wins a [`Term`]; the term's epoch is a fencing token to hand
//! to whatever the leader writes to. As everywhere, the lease is for liveness: a paused leader may
//! believe in its term for a moment too long, and only the target's check of the epoch stops it.
//!
//! A stream's epochs survive even a lease store that loses its data, since the checkpoint store has seen
//! them. An election has no checkpoint store: a candidate never goes below what it has seen itself, but a
//! store that forgets everything while all candidates restart begins anew. Keep the store's data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Epoch, HeldTenures, InstanceId, LeaseKey, LeaseStore, Moment, Result, Task,
    TenureId,
};

use crate::hooks::Hooks;
use crate::keeper::Keeper;
use crate::seams::Seams;
use crate::settings::LeaseSettings;
use crate::tenure::{Loss, Tenure};

/// A candidate for one key. Cheap to clone; its renewals end when it and all of its terms are dropped.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use watchkeeper_core::memory::Leases;
/// use watchkeeper_core::{LeaseKey, Result};
/// use watchkeeper_engine::election::Campaign;
/// use watchkeeper_engine::seams::Seams;
/// use watchkeeper_engine::settings::LeaseSettings;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let seams = Seams::system();
/// // In memory here; any lease store that the candidates share.
/// let leases = Arc::new(Leases::new(Arc::clone(&seams.clock)));
/// let settings = LeaseSettings::new(Duration::from_secs(5));
/// let campaign = Campaign::new(seams, leases, settings, LeaseKey::new("nightly-report"), "vm-1").await?;
///
/// // Waits while another candidate leads.
/// let term = campaign.win().await;
/// println!("vm-1 leads under epoch {}", term.epoch());
/// term.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Campaign {
    candidacy: Arc<Candidacy>,
}

/// What a candidate and its terms share.
#[derive(Debug)]
struct Candidacy {
    seams: Seams,
    leases: Arc<dyn LeaseStore>,
    settings: LeaseSettings,
    key: LeaseKey,
    id: InstanceId,
    name: String,
    held_tenures: HeldTenures,
    keeper: Keeper,
    /// The highest epoch that this candidate has seen, so that its own terms never go back.
    highest: AtomicU64,
    _keeping: Task<()>,
    stop: CancellationToken,
}

impl Campaign {
    /// Prepares to stand for `key`, under a name for people.
    pub async fn new(
        seams: Seams,
        leases: Arc<dyn LeaseStore>,
        settings: LeaseSettings,
        key: LeaseKey,
        name: &str,
    ) -> Result<Self> {
        settings.validate()?;
        let stop = CancellationToken::new();
        let own = leases.separate(&seams.cx()).await?;
        let (keeper, keeping) = Keeper::start(&seams, own, settings, Hooks::default(), stop.clone())?;
        let (id, name) = (seams.entropy.instance(), name.to_owned());
        let (held_tenures, highest) = (HeldTenures::default(), AtomicU64::new(0));
        let candidacy = Candidacy {
            seams,
            leases,
            settings,
            key,
            id,
            name,
            held_tenures,
            keeper,
            highest,
            _keeping: keeping,
            stop,
        };
        Ok(Self { candidacy: Arc::new(candidacy) })
    }

    /// Stands until it wins. Errors of the store are tried again.
    ///
    /// # Cancel safety
    /// Cancel safe: a term that was won and not handed out expires by itself.
    pub async fn win(&self) -> Term {
        let tenure = self.candidacy.win().await;
        Term { candidacy: Arc::clone(&self.candidacy), tenure }
    }
}

impl Candidacy {
    async fn win(&self) -> Arc<Tenure> {
        let mut tenure = self.seams.entropy.tenure();
        let mut wakeups = None;
        loop {
            let cx = self.seams.cx().within(self.settings.call_timeout);
            if wakeups.is_none() && self.leases.profile().wakes {
                wakeups = cx.run(self.leases.wakeups(&cx)).await.ok();
            }
            let sent = cx.now();
            let mut next = self.seams.entropy.jitter(self.settings.renew_every);
            match cx.run(self.leases.try_acquire(&cx, &self.ask(tenure))).await {
                Ok(Acquired::Granted { grant, .. }) => {
                    return self.enter(Tenure::new(
                        grant,
                        Arc::clone(&self.seams.clock),
                        sent,
                        self.settings.acting_time(Hooks::default()),
                    ));
                }
                Ok(Acquired::Held(holder)) => {
                    self.highest.fetch_max(holder.epoch.0, Ordering::AcqRel);
                    next = next.min(holder.remaining + std::time::Duration::from_millis(1));
                    // What was not granted is asked for anew; what was not answered, for the same tenure.
                    tenure = self.seams.entropy.tenure();
                }
                Err(error) => tracing::debug!(%error, "the lease store did not answer a candidate"),
            }
            self.wait_before_retry(&mut wakeups, self.seams.clock.now() + next).await;
        }
    }

    async fn wait_before_retry(&self, wakeups: &mut Option<Box<dyn watchkeeper_core::Wakeups>>, until: Moment) {
        let cx = self.seams.cx();
        let woken = async {
            match wakeups {
                Some(wakeups) => wakeups.next(&cx).await,
                None => std::future::pending().await,
            }
        };
        let broken = tokio::select! {
            biased;
            hint = woken => hint.is_err(),
            () = self.seams.clock.sleep_until(until) => false,
        };
        if broken {
            *wakeups = None;
        }
    }

    fn ask(&self, tenure: TenureId) -> AcquireRequest {
        // With the floor at the epoch that it holds, an ask would be a new grant; below it, the same one.
        let floor = Epoch(self.highest.load(Ordering::Acquire));
        let candidate = Candidate { instance: self.id, name: self.name.clone(), address: None, tenure };
        AcquireRequest { key: self.key.clone(), candidate, ttl: self.settings.ttl, floor, break_holder: None }
    }

    /// Has the tenure renewed from here on.
    fn enter(&self, tenure: Tenure) -> Arc<Tenure> {
        self.highest.fetch_max(tenure.grant().epoch.0, Ordering::AcqRel);
        let tenure = Arc::new(tenure);
        self.held_tenures.enter(tenure.grant().tenure);
        self.keeper.add(Arc::clone(&tenure));
        tenure
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A term of leadership. It may be moved into a task of its own, and outlive its campaign. Dropping it lets it expire; [`resign`](Self::resign) gives it back.
///
/// ```
/// use watchkeeper_core::{Epoch, Result};
/// use watchkeeper_engine::election::Term;
///
/// /// `write` takes the epoch along, so that its target can refuse a leader that was paused and wakes up too late.
/// async fn lead(term: Term, write: impl AsyncFnOnce(Epoch) -> Result<()>) -> Result<()> {
///     tokio::select! {
///         biased;
///         loss = term.lost() => println!("{loss}; the next leader goes on"),
///         written = write(term.epoch()) => {
///             written?;
///             term.resign().await?;
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Term {
    candidacy: Arc<Candidacy>,
    tenure: Arc<Tenure>,
}

impl Term {
    /// The fencing token of this term.
    pub fn epoch(&self) -> Epoch {
        self.tenure.grant().epoch
    }

    /// The tenure, with a context for calls that must not outlive it.
    pub fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// Whether it lasts. Reads the clock.
    pub fn is_leader(&self) -> bool {
        self.tenure.loss().is_none()
    }

    /// Completes when it is lost.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn lost(&self) -> Loss {
        self.tenure.over().await
    }

    /// Gives it back, so that the next one need not wait for its expiry.
    pub async fn resign(self) -> Result<()> {
        let cx = self.tenure.cx().within(self.candidacy.settings.call_timeout);
        let released = cx.run(self.candidacy.leases.release(&cx, self.tenure.grant())).await;
        released.map(|_| ())
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.tenure.end(Loss::Released);
        self.candidacy.keeper.remove(self.tenure.grant().tenure);
        self.candidacy.held_tenures.remove(self.tenure.grant().tenure);
    }
}
