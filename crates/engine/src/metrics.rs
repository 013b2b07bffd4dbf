//! What is recorded. Without the feature `metrics` these are empty.

use std::time::Duration;

use watchkeeper_core::{LedgerKind, SourceTime, Window};

use crate::listener::state::ListenerState;

macro_rules! recorded {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $body:block)*) => {$(
        $(#[$doc])*
        #[cfg(feature = "metrics")]
        pub fn $name($($argument: $kind),*) $body

        $(#[$doc])*
        #[cfg(not(feature = "metrics"))]
        #[inline]
        pub fn $name($($argument: $kind),*) {
            $(let _ = $argument;)*
        }
    )*};
}

/// The series of one stream that listeners know by name: recorded here, and handed out by the facade.
#[cfg(feature = "metrics")]
pub mod series {
    macro_rules! series {
        ($($(#[$doc:meta])* $name:ident: $kind:ident $macro:ident $key:literal)*) => {$(
            $(#[$doc])*
            pub fn $name(stream: &str) -> metrics::$kind {
                metrics::$macro!($key, "stream" => stream.to_owned())
            }
        )*};
    }

    series! {
        /// Listeners on watch.
        listeners_active: Gauge gauge "watchkeeper_listeners_active"
        /// Listeners that failed and gave up the watch.
        listeners_failed: Counter counter "watchkeeper_listeners_failed_total"
        /// The watch has passed to another instance that was there to take it over, whatever the cause.
        failovers_total: Counter counter "watchkeeper_failovers_total"
        /// Leases held.
        checkpoint_leases_held: Gauge gauge "watchkeeper_checkpoint_leases_held"
        /// Checkpoints committed.
        checkpoint_updates_total: Counter counter "watchkeeper_checkpoint_updates_total"
        /// Leases acquired.
        leader_elections_total: Counter counter "watchkeeper_leader_elections_total"
    }
}

recorded! {
    /// A listener went from one state to another.
    fn state_changed(stream: &str, from: ListenerState, to: ListenerState) {
        let active = |state| u8::from(matches!(state, ListenerState::Running | ListenerState::Recovering));
        let change = f64::from(active(to)) - f64::from(active(from));
        series::listeners_active(stream).increment(change);
    }

    /// A listener failed here and gave up the watch.
    fn listener_failed(stream: &str) {
        series::listeners_failed(stream).increment(1);
    }

    /// This instance took the watch over from another one, after nobody had it for `vacant`.
    fn took_over(stream: &str, cause: &'static str, vacant: Duration) {
        series::failovers_total(stream).increment(1);
        let labels = [("stream", stream.to_owned()), ("cause", cause.to_owned())];
        metrics::counter!("watchkeeper_failover_causes_total", &labels).increment(1);
        metrics::histogram!("watchkeeper_failover_vacant_seconds", "stream" => stream.to_owned())
            .record(vacant.as_secs_f64());
    }

    /// A lease was acquired.
    fn acquired(stream: &str) {
        series::leader_elections_total(stream).increment(1);
        series::checkpoint_leases_held(stream).increment(1.0);
    }

    /// A lease is held no more, after `held`.
    fn gave_up(stream: &str, held: Duration) {
        series::checkpoint_leases_held(stream).decrement(1.0);
        metrics::histogram!("watchkeeper_lease_held_seconds", "stream" => stream.to_owned())
            .record(held.as_secs_f64());
    }

    /// A checkpoint was committed.
    fn committed(stream: &str) {
        series::checkpoint_updates_total(stream).increment(1);
    }

    /// A commit was refused: a newer epoch has claimed.
    fn fenced(stream: &str) {
        metrics::counter!("watchkeeper_fenced_commits_total", "stream" => stream.to_owned()).increment(1);
    }

    /// So many changes are safe, the newest of which happened `lag` ago.
    fn delivered(stream: &str, changes: u64, lag: Option<Duration>) {
        metrics::counter!("watchkeeper_changes_total", "stream" => stream.to_owned()).increment(changes);
        lag.into_iter().for_each(|lag| lag_seen(stream, lag));
    }

    /// How far a stream is behind.
    fn lag_seen(stream: &str, lag: Duration) {
        metrics::gauge!("watchkeeper_checkpoint_lag_seconds", "stream" => stream.to_owned()).set(lag.as_secs_f64());
    }

    /// The commit that passes a change over, and notes that in the ledger, was made.
    fn ledgered(stream: &str, kind: LedgerKind) {
        let labels = [("stream", stream.to_owned()), ("kind", kind.as_str().to_owned())];
        metrics::counter!("watchkeeper_ledger_entries_total", &labels).increment(1);
    }

    /// A renewal was not answered.
    fn renewal_failed() {
        metrics::counter!("watchkeeper_renewals_failed_total").increment(1);
    }

    /// The source failed with an error of this class: rates of each are worth watching.
    fn source_failed(stream: &str, class: &'static str) {
        let labels = [("stream", stream.to_owned()), ("class", class.to_owned())];
        metrics::counter!("watchkeeper_source_errors_total", &labels).increment(1);
    }

    /// How far the source's history reaches, and how much of it a stream at `at` has left.
    fn history_seen(stream: &str, window: &Window, at: Option<SourceTime>) {
        let gauge = |name: &'static str, value: Option<f64>| {
            if let Some(value) = value {
                metrics::gauge!(name, "stream" => stream.to_owned()).set(value);
            }
        };
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        gauge("watchkeeper_history_window_seconds", seconds(window.length()));
        gauge("watchkeeper_history_headroom_seconds", seconds(at.and_then(|at| window.headroom(at))));
        gauge("watchkeeper_history_time_to_loss_seconds", seconds(at.and_then(|at| window.time_to_loss(at))));
        gauge("watchkeeper_history_bytes", window.room.map(|room| room.bytes as f64));
        gauge("watchkeeper_history_bytes_max", window.room.map(|room| room.bytes_max as f64));
        gauge("watchkeeper_history_bytes_per_second", window.burn_rate().map(|rate| rate as f64));
    }

    /// How far a source is with what exists; both zero when that is over.
    fn stage_seen(stream: &str, done: u64, of: u64) {
        metrics::gauge!("watchkeeper_snapshot_rows", "stream" => stream.to_owned()).set(done as f64);
        metrics::gauge!("watchkeeper_snapshot_rows_expected", "stream" => stream.to_owned()).set(of as f64);
    }
}
