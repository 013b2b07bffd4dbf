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

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::sync::Mutex;

    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};

    use super::ListenerMetrics;

    /// The names and labels of what is registered.
    #[derive(Default)]
    struct Names(Mutex<Vec<String>>);

    impl Names {
        fn note(&self, key: &Key) {
            let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            self.0.lock().expect("no panic before").push(format!("{} {}", key.name(), labels.join(",")));
        }
    }

    impl metrics::Recorder for Names {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            self.note(key);
            Counter::noop()
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            self.note(key);
            Gauge::noop()
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.note(key);
            Histogram::noop()
        }
    }

    #[test]
    fn the_series_of_a_stream_are_those_that_the_engine_records() {
        let names = Names::default();
        metrics::with_local_recorder(&names, || drop(ListenerMetrics::of_stream("orders")));
        let expected = [
            "watchkeeper_listeners_active stream=orders",
            "watchkeeper_listeners_failed_total stream=orders",
            "watchkeeper_failovers_total stream=orders",
            "watchkeeper_checkpoint_leases_held stream=orders",
            "watchkeeper_checkpoint_updates_total stream=orders",
            "watchkeeper_leader_elections_total stream=orders",
        ];
        assert_eq!(*names.0.lock().expect("no panic before"), expected);
    }
}
