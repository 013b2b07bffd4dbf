//! What the listeners of a group know of each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use watchkeeper_core::{BootClock, Cx, Epoch, Moment, Task};
use watchkeeper_engine::group::election::rank;
use watchkeeper_engine::instance::Stores;
use watchkeeper_engine::seams::Seams;

use super::ListenerState;
use super::config::{MultiListenerConfig, check_name};
use super::error::{ObserverError, Result};
use super::handle::{ListenerHandle, identity};
use super::leader::{Leadership, Proposed};
use super::lease::LeaseManager;
use super::metrics::Recorder;
use super::roster::{ObservedStream, Roster};
use super::store::{Store, roles};

/// The group of a coordinator that was not told another.
pub const DEFAULT_GROUP: &str = "listeners";

/// Coordinates the listeners of a group, in this process and in others. Cheap to clone: a clone is the same coordinator.
///
/// The listeners that it registers are kept alive by heartbeats for as long as any clone of it lives. Dropping the last
/// one is like a crash: the others notice by the silence. [`deregister_listener`](Self::deregister_listener) leaves in order.
///
/// ```no_run
/// # async fn coordinate(store: std::sync::Arc<dyn watchkeeper::Store>) -> watchkeeper::listener::Result<()> {
/// use watchkeeper::{MultiListenerConfig, MultiListenerCoordinator};
///
/// let config = MultiListenerConfig { failover_threshold_ms: 40_000, ..MultiListenerConfig::default() };
/// let coordinator = MultiListenerCoordinator::new(store).in_group("shop")?.with_config(config)?;
/// coordinator.register_listener("listener-1".to_owned()).await?;
/// println!("{} leads", coordinator.elect_leader().await?);
/// for listener in coordinator.check_listener_health().await? {
///     println!("{}: {:?} at {}", listener.listener_id, listener.state, listener.last_checkpoint);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiListenerCoordinator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    group: String,
    config: MultiListenerConfig,
    stores: Stores,
    roster: Roster,
    leadership: Leadership,
    lease_manager: LeaseManager,
    listeners: Mutex<BTreeMap<String, ListenerHandle>>,
    /// Held while heartbeats are written and while a listener leaves: a heartbeat must not bring back one that left.
    beating: tokio::sync::Mutex<()>,
    wake: Arc<Notify>,
    heart: Mutex<Option<Task<()>>>,
    /// Made when first needed, since that takes a runtime, and making a coordinator does not.
    seams: OnceLock<Seams>,
    metrics: Recorder,
}

/// How a listener is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerHealth {
    /// Which one.
    pub listener_id: String,
    /// Whether it has said that it is alive within the failover threshold, by the store's clock.
    pub is_healthy: bool,
    /// How many changes it last saw committed.
    pub last_checkpoint: i64,
    /// The state that it last told.
    pub state: ListenerState,
}

impl MultiListenerCoordinator {
    /// Coordinates over `checkpoint_store`, in the group [`DEFAULT_GROUP`], with the default settings.
    pub fn new(checkpoint_store: Arc<dyn Store>) -> Self {
        Self::build(roles(checkpoint_store), DEFAULT_GROUP, MultiListenerConfig::default())
    }

    /// Coordinates `group` over stores that may be three systems.
    ///
    /// # Errors
    /// `Config` when a setting is wrong.
    pub fn configured(stores: Stores, group: &str, config: MultiListenerConfig) -> Result<Self> {
        check_name("group", group)?;
        config.validate()?;
        Ok(Self::build(stores, group, config))
    }

    /// The same coordinator with other settings, before any listener is registered.
    ///
    /// # Errors
    /// `Config` when a setting is wrong.
    pub fn with_config(self, config: MultiListenerConfig) -> Result<Self> {
        config.validate()?;
        Ok(self.rebuilt(&self.inner.group, config))
    }

    /// The same coordinator in another group, before any listener is registered. Groups on one store do not see each other.
    ///
    /// # Errors
    /// `Config` when the name cannot be kept.
    pub fn in_group(self, group: &str) -> Result<Self> {
        check_name("group", group)?;
        Ok(self.rebuilt(group, self.inner.config.clone()))
    }

    fn rebuilt(&self, group: &str, config: MultiListenerConfig) -> Self {
        let rebuilt = Self::build(self.inner.stores.clone(), group, config);
        match self.inner.seams.get() {
            Some(seams) => rebuilt.with_seams(seams.clone()),
            None => rebuilt,
        }
    }

    fn build(stores: Stores, group: &str, config: MultiListenerConfig) -> Self {
        let inner = Inner {
            group: group.to_owned(),
            roster: Roster::new(Arc::clone(&stores.records), group, &config),
            leadership: Leadership::new(Arc::clone(&stores.leases), group, config.lease().ttl),
            lease_manager: LeaseManager::over(Arc::clone(&stores.leases), group, config.lease()),
            config,
            stores,
            listeners: Mutex::default(),
            beating: tokio::sync::Mutex::default(),
            wake: Arc::default(),
            heart: Mutex::default(),
            seams: OnceLock::new(),
            metrics: Recorder::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Uses these seams (with peers that prove deaths, say) for the listeners that it is given to. To be called before
    /// anything else.
    #[must_use]
    pub fn with_seams(self, seams: Seams) -> Self {
        // Whoever comes first decides.
        let _ = self.inner.seams.set(seams);
        self
    }

    /// Registers a listener, and keeps it alive by heartbeats from here on. To register it again, here or in another
    /// process, is harmless: it is one listener.
    ///
    /// # Errors
    /// `Config` when the name cannot be kept or `max_listeners` are there.
    pub async fn register_listener(&self, listener_id: String) -> Result<()> {
        check_name("listener_id", &listener_id)?;
        if self.listener(&listener_id).is_some() {
            return Ok(());
        }
        let handle = ListenerHandle::new(&listener_id, Arc::clone(&self.inner.wake));
        let cx = self.inner.cx();
        cx.run(self.inner.roster.enter(&cx, &handle)).await?;
        self.inner.listeners().entry(listener_id).or_insert(handle);
        self.inner.start_heart(&self.inner);
        Ok(())
    }

    /// Removes a listener, here or of another process that no longer keeps it alive. What it led is free at once.
    ///
    /// # Errors
    /// `NotRegistered`.
    pub async fn deregister_listener(&self, listener_id: &str) -> Result<()> {
        let _quiet = self.inner.beating.lock().await;
        let cx = self.inner.cx();
        self.inner.leadership.resign(&cx, listener_id).await?;
        let was_there = cx.run(self.inner.roster.leave(&cx, listener_id)).await?;
        let was_ours = self.inner.listeners().remove(listener_id).is_some();
        if was_there || was_ours { Ok(()) } else { Err(not_registered(listener_id)) }
    }

    /// The state of a listener, of this process or of another, as it told it last.
    ///
    /// # Errors
    /// `NotRegistered`.
    pub async fn get_listener_state(&self, listener_id: &str) -> Result<ListenerState> {
        if let Some(handle) = self.listener(listener_id).filter(ListenerHandle::has_spoken) {
            return Ok(handle.state_machine().state());
        }
        Ok(self.find(listener_id).await?.saying.state)
    }

    /// The listener of this process that has this name.
    pub fn listener(&self, listener_id: &str) -> Option<ListenerHandle> {
        self.inner.listeners().get(listener_id).cloned()
    }

    /// Elects who leads: the one whose lease runs, or else the first of the healthy listeners in an order that
    /// everyone computes alike. The outcome is written as a lease under a new epoch, so that all agree on it; the
    /// leader's process keeps it renewed.
    ///
    /// # Errors
    /// `NoHealthyListener` when nobody could lead.
    pub async fn elect_leader(&self) -> Result<String> {
        let cx = self.inner.cx();
        if let Some(holder) = self.inner.leadership.holder(&cx).await? {
            return Ok(holder.candidate.name);
        }
        let healthy = self.healthy().await?;
        let Some(elected) = self.ranked(&self.inner.group, &healthy).into_iter().next() else {
            return Err(ObserverError::NoHealthyListener);
        };
        match self.inner.leadership.propose(&cx, &elected).await? {
            Proposed::Elected => {
                self.inner.metrics.elected();
                Ok(elected)
            }
            Proposed::Leads(other) => Ok(other),
        }
    }

    /// Who leads and under which fencing token; `None` when nobody does.
    pub async fn leader(&self) -> Result<Option<(String, Epoch)>> {
        let holder = self.inner.leadership.holder(&self.inner.cx()).await?;
        Ok(holder.map(|holder| (holder.candidate.name, holder.epoch)))
    }

    /// How all registered listeners are, in the order of their names.
    pub async fn check_listener_health(&self) -> Result<Vec<ListenerHealth>> {
        let health = |seen: ObservedStream| ListenerHealth {
            listener_id: seen.listener_id,
            is_healthy: seen.is_healthy,
            last_checkpoint: seen.saying.checkpoint,
            state: seen.saying.state,
        };
        Ok(self.roll_call().await?.into_iter().map(health).collect())
    }

    /// Makes leases on checkpoints of this group.
    pub fn lease_manager(&self) -> &LeaseManager {
        &self.inner.lease_manager
    }

    /// Its settings.
    pub fn config(&self) -> &MultiListenerConfig {
        &self.inner.config
    }

    /// Its group.
    pub fn group(&self) -> &str {
        &self.inner.group
    }

    /// Its stores.
    pub fn stores(&self) -> &Stores {
        &self.inner.stores
    }

    pub(super) fn seams(&self) -> Seams {
        self.inner.seams.get_or_init(seams_with_peers).clone()
    }

    pub(super) fn metrics(&self) -> &Recorder {
        &self.inner.metrics
    }

    pub(super) fn cx(&self) -> Cx {
        self.inner.cx()
    }

    /// The names of the listeners of this process.
    pub(super) fn own(&self) -> Vec<String> {
        self.inner.listeners().keys().cloned().collect()
    }

    /// Writes down at once what the listeners of this process have to say.
    pub(super) async fn publish(&self) -> Result<()> {
        self.inner.round(false).await
    }

    pub(super) async fn roll_call(&self) -> Result<Vec<ObservedStream>> {
        let cx = self.inner.cx();
        Ok(cx.run(self.inner.roster.list(&cx)).await?)
    }

    pub(super) async fn find(&self, listener_id: &str) -> Result<ObservedStream> {
        let seen = self.roll_call().await?.into_iter().find(|seen| seen.listener_id == listener_id);
        seen.ok_or_else(|| not_registered(listener_id))
    }

    async fn healthy(&self) -> Result<Vec<String>> {
        let healthy = self.roll_call().await?.into_iter().filter(|seen| seen.is_healthy);
        Ok(healthy.map(|seen| seen.listener_id).collect())
    }

    /// The listeners in the order in which they should try to do `what`.
    pub(super) fn ranked(&self, what: &str, listeners: &[String]) -> Vec<String> {
        let by_id: BTreeMap<_, _> = listeners.iter().map(|name| (identity(name), name)).collect();
        let ids: Vec<_> = by_id.keys().copied().collect();
        rank(what, &ids).iter().filter_map(|id| by_id.get(id).map(|name| (*name).clone())).collect()
    }
}

impl From<Arc<Self>> for MultiListenerCoordinator {
    fn from(coordinator: Arc<Self>) -> Self {
        (*coordinator).clone()
    }
}

impl From<&Self> for MultiListenerCoordinator {
    fn from(coordinator: &Self) -> Self {
        coordinator.clone()
    }
}

fn not_registered(listener_id: &str) -> ObserverError {
    ObserverError::NotRegistered { listener_id: listener_id.to_owned() }
}

impl Inner {
    fn listeners(&self) -> MutexGuard<'_, BTreeMap<String, ListenerHandle>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context of one call, bounded so that a store that does not answer is noticed within a lease.
    fn cx(&self) -> Cx {
        Cx::new(Arc::new(BootClock)).within(self.config.lease().ttl.max(Duration::from_secs(1)))
    }

    fn start_heart(&self, this: &Arc<Self>) {
        let mut heart = self.heart.lock().unwrap_or_else(PoisonError::into_inner);
        if heart.is_none() {
            let seams = self.seams.get_or_init(seams_with_peers);
            let every = self.config.health_check_interval().min(self.config.lease().renew_every);
            let beating = beat(Arc::downgrade(this), seams.clone(), Arc::clone(&self.wake), every);
            *heart = Some(Task::spawn(&*seams.spawn, "listeners", beating));
        }
    }

    /// One round: heartbeats and the leader's lease where they are due, news always. What fails for one listener does not
    /// keep the others from being heard; the first error is told.
    async fn round(&self, is_due: bool) -> Result<()> {
        let _beating = self.beating.lock().await;
        let handles: Vec<_> = self.listeners().values().cloned().collect();
        let cx = self.cx();
        let mut outcome = Ok(());
        for handle in &handles {
            let sent = async {
                if is_due {
                    self.roster.beat(&cx, handle).await?;
                }
                self.roster.record_report(&cx, handle).await
            };
            let sent = cx.run(sent).await;
            if sent.is_err() {
                handle.keep_news();
            }
            outcome = outcome.and(sent.map_err(ObserverError::from));
        }
        if is_due {
            let is_ours = |name: &str| handles.iter().any(|handle| handle.listener_id() == name);
            outcome = outcome.and(self.leadership.keep(&cx, is_ours).await.map_err(ObserverError::from));
            outcome = outcome.and(cx.run(self.roster.sweep(&cx)).await.map_err(ObserverError::from));
        }
        outcome
    }
}

/// The system's seams, with peers over TCP, so that the process of a dead listener is relieved before its lease ends.
fn seams_with_peers() -> Seams {
    let system = Seams::system();
    match watchkeeper_peers::TcpPeers::new(watchkeeper_peers::Settings::default()) {
        Ok(peers) => Seams { peers: Arc::new(peers), ..system },
        Err(error) => {
            tracing::warn!(%error, "deaths cannot be proved here; a dead listener is relieved when its lease ends");
            system
        }
    }
}

/// Keeps the listeners of a coordinator alive until its last clone is dropped.
async fn beat(inner: Weak<Inner>, seams: Seams, wake: Arc<Notify>, every: Duration) {
    let mut due: Moment = seams.clock.now() + every;
    loop {
        tokio::select! {
            biased;
            () = wake.notified() => {}
            () = seams.clock.sleep_until(due) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let is_due = seams.clock.now() >= due;
        if let Err(error) = inner.round(is_due).await {
            tracing::warn!(%error, "a heartbeat failed");
        }
        if is_due {
            due = seams.clock.now() + every;
        }
    }
}
