use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use watchkeeper::ListenerState::{Connecting, Running};
use watchkeeper::core::clock::Sleep;
use watchkeeper::core::memory::{Checkpoints, Leases, RecordStore};
use watchkeeper::core::{Clock, Entropy, Moment};
use watchkeeper::engine::group::control::Controls;
use watchkeeper::{
    FailoverManager, MultiListenerConfig, MultiListenerCoordinator, ObserverError, StoreIdentity, Stores,
};

use super::support::{GROUP, STREAM, Shop, cx, numbers, on_each_store, soon, until};

on_each_store! {
    test_failure_detection,
    test_failover_trigger,
    test_failover_checkpoint_consistency,
    test_multiple_listener_failover,
    test_failover_recovery,
    the_guard_alone_keeps_the_health_monitor_running,
}

async fn registered(shop: &Shop, names: &[&str]) -> MultiListenerCoordinator {
    let coordinator = shop.coordinator();
    for name in names {
        coordinator.register_listener((*name).to_owned()).await.expect("there is room");
    }
    coordinator
}

/// Waits until the store knows that all of these stand by.
async fn stand_by(seen_by: &MultiListenerCoordinator, names: &[&str]) {
    until("all stand by", async || {
        let health = seen_by.check_listener_health().await.expect("the store answers");
        let stands_by = |name: &&str| health.iter().any(|it| it.listener_id == *name && it.state == Connecting);
        names.iter().all(stands_by).then_some(())
    })
    .await;
}

async fn test_failure_detection(shop: Shop) {
    let (here, there) = (registered(&shop, &["listener-1"]).await, registered(&shop, &["listener-2"]).await);
    let failover = FailoverManager::new(here.clone());
    assert_eq!(failover.detect_failures().await.expect("the store answers"), Vec::<String>::new());
    drop(there);
    until("the silence is noticed", async || {
        (failover.detect_failures().await.expect("the store answers") == ["listener-2"]).then_some(())
    })
    .await;
    let back = registered(&shop, &["listener-2"]).await;
    assert_eq!(failover.detect_failures().await.expect("the store answers"), Vec::<String>::new(), "it is back");
    drop(back);
}

/// A clock that stands until it is moved.
#[derive(Debug, Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_nanos(0) + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Moment) -> Sleep {
        Box::pin(std::future::pending())
    }

    fn wall_millis(&self) -> u64 {
        0
    }
}

/// The monitor looks every five seconds by default. A failure that it notices at its last look within the threshold is noticed in time.
#[tokio::test]
async fn a_failure_is_noticed_within_the_threshold_of_the_default_settings() {
    let clock = Arc::new(Hand::default());
    let stores = Stores {
        leases: Arc::new(Leases::new(clock.clone())),
        checkpoints: Arc::new(Checkpoints::new(StoreIdentity(Entropy::from_system().uuid()))),
        records: Arc::new(RecordStore::new(clock.clone())),
    };
    let coordinator = MultiListenerCoordinator::configured(stores, "shop", MultiListenerConfig::default());
    let coordinator = coordinator.expect("the defaults are good");
    coordinator.register_listener("listener-1".to_owned()).await.expect("there is room");
    let failover = FailoverManager::new(&coordinator);
    for (seconds, expected) in [(54, 0), (55, 1), (60, 1)] {
        clock.0.store(seconds, Ordering::Relaxed);
        let failed = failover.detect_failures().await.expect("memory answers");
        assert_eq!(failed.len(), expected, "silent for {seconds} s");
    }
}

async fn test_failover_trigger(shop: Shop) {
    let alone = registered(&shop, &["listener-1"]).await;
    // Also an `Arc` of a coordinator will do.
    let failover = FailoverManager::new(std::sync::Arc::new(alone.clone()));
    let unknown = failover.trigger_failover("listener-9").await;
    assert!(matches!(unknown, Err(ObserverError::NotRegistered { .. })), "{unknown:?}");
    // Without a stream there is nothing to take over, and nothing is counted or remembered as if there were.
    let streamless = failover.trigger_failover("listener-1").await;
    assert!(matches!(streamless, Err(ObserverError::NoStream { .. })), "{streamless:?}");
    assert_eq!(failover.recent_failovers().len(), 0);
    alone.deregister_listener("listener-1").await.expect("it is registered");

    let app = shop.open().await;
    app.order(1..=3).await;
    let first = shop.listener("listener-1", &alone).await;
    soon("the first batch", first.next_batch()).await.expect("nobody else is there");
    let nobody = failover.trigger_failover("listener-1").await;
    assert!(matches!(nobody, Err(ObserverError::NoHealthyListener)), "{nobody:?}");
    assert_eq!(soon("the commit", first.ack()).await.expect("it has the watch"), 3);

    let there = shop.coordinator();
    let (second, third) = (shop.listener("listener-2", &there).await, shop.listener("listener-3", &there).await);
    let chosen = async {
        stand_by(&there, &["listener-2", "listener-3"]).await;
        let event = failover.trigger_failover("listener-1").await.expect("two could take over");
        assert_eq!((event.failed_listener_id.as_str(), event.checkpoint), ("listener-1", 3));
        assert_eq!(failover.recent_failovers().len(), 1);
        // The holder is asked to leave, and leaves.
        let taken_over = first.next_batch().await;
        assert!(matches!(taken_over, Err(ObserverError::ListenerFailover { checkpoint: 3, .. })), "{taken_over:?}");
        app.order(4..=4).await;
        event.failover_target_id
    };
    let taken = async {
        tokio::select! {
            batch = second.next_batch() => ("listener-2", batch),
            batch = third.next_batch() => ("listener-3", batch),
        }
    };
    let (target, (taker, batch)) = soon("the takeover", async { tokio::join!(chosen, taken) }).await;
    assert_eq!(target, taker, "the one that was chosen has the watch");
    assert_eq!(numbers(&batch.expect("it has the watch")), [4]);
}

async fn test_failover_checkpoint_consistency(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=10).await;
    let (here, there) = (shop.coordinator(), shop.coordinator());
    let first = shop.listener("listener-1", &here).await;
    let batch = soon("the first batch", first.next_batch()).await.expect("nobody else is there");
    assert_eq!(numbers(&batch), [1, 2, 3, 4, 5]);
    assert_eq!(soon("the commit", first.ack()).await.expect("it has the watch"), 5);

    let second = shop.listener("listener-2", &there).await;
    let failover = FailoverManager::new(&there);
    let taken_over = async {
        // The second one registers when it is first asked for a batch, and is chosen when it stands by.
        let event = until("the second one is there", async || failover.trigger_failover("listener-1").await.ok());
        let event = event.await;
        assert_eq!((event.failover_target_id.as_str(), event.checkpoint), ("listener-2", 5));
        // What had been read ahead is delivered and committed before the watch goes.
        let mut had = Vec::new();
        let checkpoint = loop {
            match first.next_batch().await {
                Ok(entries) => had.extend(numbers(&entries)),
                Err(ObserverError::ListenerFailover { checkpoint, .. }) => break checkpoint,
                Err(other) => panic!("{other}"),
            }
        };
        app.order(11..=12).await;
        (had, checkpoint)
    };
    let ((had, checkpoint), taken) =
        soon("the hand-over", async { tokio::join!(taken_over, second.next_batch()) }).await;
    let taken = numbers(&taken.expect("it has the watch now"));
    let all: Vec<u64> = had.iter().chain(&taken).copied().collect();
    assert_eq!(checkpoint, 5 + i64::try_from(had.len()).expect("few"), "all it had is committed, and no more");
    let expected: Vec<u64> = (6..).take(all.len()).collect();
    assert_eq!(all, expected, "nothing was lost or delivered twice");
}

async fn test_multiple_listener_failover(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=3).await;
    let (gone, here) = (shop.coordinator(), shop.coordinator());
    let holder = shop.listener("listener-1", &gone).await;
    assert_eq!(numbers(&soon("the first batch", holder.next_batch()).await.expect("it has the watch")), [1, 2, 3]);
    let standby = shop.listener("listener-2", &gone).await;
    let heirs = [shop.listener("listener-3", &here).await, shop.listener("listener-4", &here).await];
    let failover = FailoverManager::new(here.clone());
    let monitor = failover.start_health_monitor().await;
    let _same = failover.start_health_monitor().await;
    let both_die = async {
        tokio::select! {
            early = standby.next_batch() => panic!("the holder is alive: {early:?}"),
            () = stand_by(&here, &["listener-2", "listener-3", "listener-4"]) => {}
        }
        drop((holder, standby, gone));
    };
    let [third, fourth] = &heirs;
    let taken_over = async {
        tokio::select! {
            batch = third.next_batch() => ("listener-3", batch),
            batch = fourth.next_batch() => ("listener-4", batch),
        }
    };
    let ((), (heir, batch)) = soon("the takeover", async { tokio::join!(both_die, taken_over) }).await;
    assert_eq!(numbers(&batch.expect("it has the watch")), [1, 2, 3], "{heir} goes on where nothing was committed");
    let events = until("both failures are dealt with", async || {
        let events = failover.recent_failovers();
        (events.len() >= 2).then_some(events)
    });
    let events = events.await;
    let mut failed: Vec<_> = events.iter().map(|event| event.failed_listener_id.as_str()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["listener-1", "listener-2"]);
    for event in &events {
        let target = event.failover_target_id.as_str();
        assert!(["listener-3", "listener-4"].contains(&target), "{target} is not healthy");
    }
    // A failure is dealt with once, however long it lasts: look for two more rounds.
    let beat = here.listener("listener-3").expect("it is ours");
    let until_when = std::time::Instant::now() + std::time::Duration::from_millis(500);
    until("two more rounds", async || (std::time::Instant::now() > until_when).then_some(())).await;
    assert!(beat.since_heartbeat().is_some());
    assert_eq!(failover.recent_failovers().len(), 2);
    drop(monitor);
}

async fn test_failover_recovery(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=8).await;
    let (here, there) = (shop.coordinator(), shop.coordinator());
    let first = shop.listener("listener-1", &here).await;
    soon("the first batch", first.next_batch()).await.expect("nobody else is there");
    soon("the commit", first.ack()).await.expect("it has the watch");
    // It takes the rest, and dies before it asks again.
    let lost = soon("the second batch", first.next_batch()).await.expect("it has the watch");
    drop((first, here));

    let second = shop.listener("listener-2", &there).await;
    let again = soon("the takeover", second.next_batch()).await.expect("the lease ran out");
    assert_eq!(numbers(&again), numbers(&lost), "what was not committed comes again");
    let failover = FailoverManager::new(there.clone());
    failover.resume_from_checkpoint("listener-2", 5).await.expect("five are committed");
    let ahead = failover.resume_from_checkpoint("listener-2", 6).await;
    assert!(matches!(ahead, Err(ObserverError::CheckpointAhead { asked: 6, stored: 5 })), "{ahead:?}");
    assert_eq!(soon("the commit", second.ack()).await.expect("it has the watch"), 8);
    failover.resume_from_checkpoint("listener-2", 5).await.expect("more is committed: nothing goes back");
    assert_eq!(shop.committed().await, 8);

    // A listener without a stream is told.
    there.register_listener("listener-3".to_owned()).await.expect("there is room");
    failover.resume_from_checkpoint("listener-3", 4).await.expect("it is registered");
    let reported = there.listener("listener-3").expect("it is ours");
    assert_eq!((reported.checkpoint(), reported.state_machine().get_state().await), (4, Running));
    reported.transition(Connecting).await.expect("it is legal");
    let elsewhere = FailoverManager::new(shop.coordinator()).resume_from_checkpoint("listener-3", 4).await;
    assert!(matches!(elsewhere, Err(ObserverError::NoStream { .. })), "nobody was told: {elsewhere:?}");
    assert!(failover.resume_from_checkpoint("listener-3", -1).await.is_err());
}

/// The manager and the coordinator are temporaries here, so nothing but the guard keeps the monitor running.
async fn the_guard_alone_keeps_the_health_monitor_running(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=3).await;
    // The only clone is moved into the monitor. Its process leads, so it acts.
    let watching = registered(&shop, &["watcher"]).await;
    assert_eq!(watching.elect_leader().await.expect("the store answers"), "watcher");
    let monitor = FailoverManager::new(watching).start_health_monitor().await;
    let controls = Controls::new(shop.store(), GROUP);
    let preferred = async || controls.read(&cx(), STREAM).await.expect("the store answers").preferred;

    let (gone, here, there) = (shop.coordinator(), shop.coordinator(), shop.coordinator());
    let first = shop.listener("listener-1", &gone).await;
    soon("the first batch", first.next_batch()).await.expect("nobody else is there");
    let second = shop.listener("listener-2", &here).await;
    let dies = async {
        stand_by(&there, &["listener-2"]).await;
        drop((first, gone));
    };
    let ((), batch) = soon("the takeover", async { tokio::join!(dies, second.next_batch()) }).await;
    batch.expect("it has the watch");
    until("a failover is triggered", async || (preferred().await.as_deref() == Some("listener-2")).then_some(())).await;

    let third = shop.listener("listener-3", &there).await;
    let dies = async {
        stand_by(&there, &["listener-3"]).await;
        drop(monitor);
        drop((second, here));
    };
    let ((), batch) = soon("the takeover", async { tokio::join!(dies, third.next_batch()) }).await;
    batch.expect("it has the watch");
    // The watcher's heartbeats end with the monitor. Within the threshold in which its silence is noticed, the monitor would have
    // looked ten times.
    let looking = FailoverManager::new(&there);
    until("both are silent", async || {
        let silent = looking.detect_failures().await.expect("the store answers");
        ["listener-2", "watcher"].iter().all(|name| silent.iter().any(|silent| silent == name)).then_some(())
    })
    .await;
    assert_eq!(preferred().await.as_deref(), Some("listener-2"), "no failover follows");
}
