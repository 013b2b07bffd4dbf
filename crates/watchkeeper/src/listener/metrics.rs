//! What is recorded of listeners. Without the feature `metrics` nothing is.

/// Handles of what is recorded, for those who record more of it.
#[cfg(feature = "metrics")]
#[derive(Clone)]
#[non_exhaustive]
pub struct ListenerMetrics {
    /// Listeners on watch.
    pub listeners_active: metrics::Gauge,
    /// Listeners that failed, or fell silent.
    pub listeners_failed: metrics::Counter,
    /// Changes of the watch.
    pub failovers_total: metrics::Counter,
    /// Leases held.
    pub checkpoint_leases_held: metrics::Gauge,
    /// Checkpoints committed.
    pub checkpoint_updates_total: metrics::Counter,
    /// Leases acquired and leaders elected.
    pub leader_elections_total: metrics::Counter,
}

#[cfg(feature = "metrics")]
impl std::fmt::Debug for ListenerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerMetrics").finish_non_exhaustive()
    }
}

#[cfg(feature = "metrics")]
impl ListenerMetrics {
    /// The series without a stream, by the recorder that is installed now. A coordinator records those of failed listeners and of
    /// elections; the others are for whoever records them.
    pub fn new() -> Self {
        Self {
            listeners_active: metrics::gauge!("watchkeeper_listeners_active"),
            listeners_failed: metrics::counter!("watchkeeper_listeners_failed_total"),
            failovers_total: metrics::counter!("watchkeeper_failovers_total"),
            checkpoint_leases_held: metrics::gauge!("watchkeeper_checkpoint_leases_held"),
            checkpoint_updates_total: metrics::counter!("watchkeeper_checkpoint_updates_total"),
            leader_elections_total: metrics::counter!("watchkeeper_leader_elections_total"),
        }
    }

    /// The series that the engine records of one stream, by the recorder that is installed now.
    pub fn of_stream(stream: &str) -> Self {
        use watchkeeper_engine::metrics::series;
        Self {
            listeners_active: series::listeners_active(stream),
            listeners_failed: series::listeners_failed(stream),
            failovers_total: series::failovers_total(stream),
            checkpoint_leases_held: series::checkpoint_leases_held(stream),
            checkpoint_updates_total: series::checkpoint_updates_total(stream),
            leader_elections_total: series::leader_elections_total(stream),
        }
    }
}

#[cfg(feature = "metrics")]
impl Default for ListenerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a coordinator records.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    #[cfg(feature = "metrics")]
    metrics: ListenerMetrics,
}

impl Recorder {
    pub(super) fn elected(&self) {
        #[cfg(feature = "metrics")]
        self.metrics.leader_elections_total.increment(1);
    }

    pub(super) fn listener_failed(&self) {
        #[cfg(feature = "metrics")]
        self.metrics.listeners_failed.increment(1);
    }
}
