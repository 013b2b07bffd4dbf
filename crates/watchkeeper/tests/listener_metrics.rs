//! What is recorded of listeners with the feature `metrics`. A program of its own, so that nothing else is built again with the feature.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    set_default_local_recorder,
};
use watchkeeper::core::clock::Sleep;
use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper::core::{BootClock, Clock, Moment};
use watchkeeper::{
    ChangeLogConfig, ChangeLogListener, FailoverManager, HandlerSettings, ListenerMetrics, MultiListenerConfig,
    MultiListenerCoordinator, ObserverError, Operation, Operations, Seams, SourceTime, StartAt, StoreIdentity, Stores,
    Stream, Watch, Watchkeeper,
};

/// The value of every series, by its name and labels.
#[derive(Debug, Clone, Default)]
struct Recorded(Arc<Mutex<BTreeMap<String, f64>>>);

impl Recorded {
    fn all(&self) -> BTreeMap<String, f64> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    fn get(&self, series: &str) -> Option<f64> {
        self.all().get(series).copied()
    }

    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Series(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }
}

struct Series(Recorded, String);

impl Series {
    fn change(&self, change: impl Fn(&mut f64)) {
        change(self.0.0.lock().expect("nobody panics with it").entry(self.1.clone()).or_default());
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.change(|it| *it += value as f64);
    }
    fn absolute(&self, value: u64) {
        self.change(|it| *it = value as f64);
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.change(|it| *it += value);
    }
    fn decrement(&self, value: f64) {
        self.change(|it| *it -= value);
    }
    fn set(&self, value: f64) {
        self.change(|it| *it = value);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn stores() -> Stores {
    let seams = Seams::system();
    Stores {
        leases: Arc::new(Leases::new(Arc::clone(&seams.clock))),
        checkpoints: Arc::new(Checkpoints::new(StoreIdentity(seams.entropy.uuid()))),
        records: Arc::new(RecordStore::new(Arc::clone(&seams.clock))),
    }
}

fn order(log: &Log) {
    let (namespace, key) = ("orders".to_owned(), Some("1".into()));
    let change = NewChange { operation: Operation::Insert, namespace, key, body: "{}".into(), first_half: false };
    log.append(change, SourceTime(0));
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("waited too long: {what}"));
}

async fn start(name: &str, stores: &Stores, log: &Log) -> Watch {
    let at_once = HandlerSettings { settle: Duration::ZERO, ..HandlerSettings::default() };
    let stream = Stream::new("orders", Arc::new(log.clone())).start_at(StartAt::Oldest).handlers(at_once);
    let stream = stream.on("orders", Operations::ANY, |_| async { Ok(()) });
    let builder = Watchkeeper::builder("shop").store(stores.clone()).named(name).without_peers().stream(stream);
    builder.start().await.expect("the settings are right")
}

/// Waits until `watch` has committed a position.
async fn commits(watch: &Watch) {
    let mut status = watch.status("orders").expect("there is such a stream");
    let committing = async {
        while status.see().position.is_none() {
            status.changed().await.expect("the instance is running");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), committing).await.expect("it is committed");
}

#[tokio::test]
async fn handles_of_a_stream_are_the_series_that_a_takeover_records() {
    let recorded = Recorded::default();
    let _recording = set_default_local_recorder(&recorded);
    let (stores, log) = (stores(), Log::new("shop"));
    let first = start("first", &stores, &log).await;
    order(&log);
    commits(&first).await;
    let failovers = "watchkeeper_failovers_total{stream=orders}";
    assert_eq!(recorded.get(failovers), None, "taking a free watch is no failover");
    let second = start("second", &stores, &log).await;
    first.shutdown().await.expect("it had joined");
    order(&log);
    commits(&second).await;
    assert_eq!(recorded.get(failovers), Some(1.0), "{recorded:?}");

    // Each handle adds to what the engine recorded: it has the same name and labels.
    let was = recorded.all();
    let handles = ListenerMetrics::of_stream("orders");
    for counter in [&handles.failovers_total, &handles.checkpoint_updates_total, &handles.leader_elections_total] {
        counter.increment(10);
    }
    for gauge in [&handles.listeners_active, &handles.checkpoint_leases_held] {
        gauge.increment(10.0);
    }
    let is = recorded.all();
    assert_eq!(is.keys().collect::<Vec<_>>(), was.keys().collect::<Vec<_>>(), "no series is new");
    for name in [
        "failovers_total",
        "checkpoint_updates_total",
        "leader_elections_total",
        "listeners_active",
        "checkpoint_leases_held",
    ] {
        let series = format!("watchkeeper_{name}{{stream=orders}}");
        assert!(is[&series] >= was[&series] + 10.0, "{series}: {} after {}", is[&series], was[&series]);
    }
    second.shutdown().await.expect("it had joined");
}

/// The system's clock, which counts how often someone sleeps by it.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Moment {
        BootClock.now()
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        self.0.fetch_add(1, Ordering::Relaxed);
        BootClock.sleep_until(moment)
    }

    fn wall_millis(&self) -> u64 {
        BootClock.wall_millis()
    }
}

fn settings(name: &str) -> MultiListenerConfig {
    MultiListenerConfig {
        enabled: true,
        listener_id: name.to_owned(),
        lease_duration_ms: 500,
        health_check_interval_ms: 50,
        failover_threshold_ms: 500,
        max_listeners: 2,
    }
}

#[tokio::test]
async fn a_listener_that_stays_silent_is_counted_once_as_failed() {
    let recorded = Recorded::default();
    let _recording = set_default_local_recorder(&recorded);
    let (stores, log) = (stores(), Log::new("shop"));
    let coordinator = || MultiListenerCoordinator::configured(stores.clone(), "shop", settings("nobody"));
    let gone = coordinator().expect("the settings are right");
    let mut config = ChangeLogConfig::new("orders", Arc::new(log.clone()));
    config.multi_listener = settings("listener-1");
    let listener = ChangeLogListener::new(config).with_coordinator(&gone).expect("the settings are right");
    order(&log);
    listener.next_batch().await.expect("nobody else is there");

    // No listener is registered here, so only the monitor sleeps by this clock: once after every round.
    let rounds = Arc::new(Counting::default());
    let here = coordinator().expect("the settings are right");
    let here = here.with_seams(Seams { clock: rounds.clone(), ..Seams::system() });
    let failover = FailoverManager::new(here);
    let has_no_heir = async || {
        let triggered = failover.trigger_failover("listener-1").await;
        matches!(triggered, Err(ObserverError::NoHealthyListener))
    };
    until("its stream is known", &has_no_heir).await;
    let _monitor = failover.start_health_monitor().await;
    drop((listener, gone));
    let failed = "watchkeeper_listeners_failed_total{}";
    until("the silence is noticed", async || recorded.get(failed).is_some()).await;
    let noticed = rounds.0.load(Ordering::Relaxed);
    // Nobody can take over, so every round tries it again.
    until("five more rounds", async || rounds.0.load(Ordering::Relaxed) >= noticed + 5).await;
    assert!(has_no_heir().await, "it is still there, and nobody else");
    assert_eq!(failover.detect_failures().await.expect("memory answers"), ["listener-1"], "it is still silent");
    assert_eq!(recorded.get(failed), Some(1.0), "{recorded:?}");
}
