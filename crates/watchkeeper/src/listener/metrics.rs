//! What is recorded of listeners. Without the feature `metrics` nothing is.

/// Handles of what is recorded, for those who record more of it or read it. They are the engine's own series, which
/// are labelled by stream; what a coordinator records has no label.
#[cfg(feature = "metrics")]
#[derive(Clone)]
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
macro_rules! series {
    ($($label:tt)*) => {
        ListenerMetrics {
            listeners_active: metrics::gauge!("watchkeeper_listeners_active" $($label)*),
            listeners_failed: metrics::counter!("watchkeeper_listeners_failed_total" $($label)*),
            failovers_total: metrics::counter!("watchkeeper_failovers_total" $($label)*),
            checkpoint_leases_held: metrics::gauge!("watchkeeper_checkpoint_leases_held" $($label)*),
            checkpoint_updates_total: metrics::counter!("watchkeeper_checkpoint_updates_total" $($label)*),
            leader_elections_total: metrics::counter!("watchkeeper_leader_elections_total" $($label)*),
        }
    };
}

#[cfg(feature = "metrics")]
impl ListenerMetrics {
    /// What coordinators record, by the recorder that is installed now.
    pub fn new() -> Self {
        series!()
    }

    /// What is recorded of one stream, by the recorder that is installed now.
    pub fn of_stream(stream: &str) -> Self {
        series!(, "stream" => stream.to_owned())
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

    pub(super) fn failed_over(&self) {
        #[cfg(feature = "metrics")]
        self.metrics.failovers_total.increment(1);
    }
}
