use watchkeeper::ListenerState::{Connecting, Running};
use watchkeeper::{FailoverManager, MultiListenerCoordinator, ObserverError};

use super::support::{Shop, numbers, on_each_store, soon, until};

on_each_store! {
    test_failure_detection,
    test_failover_trigger,
    test_failover_checkpoint_consistency,
    test_multiple_listener_failover,
    test_failover_recovery,
}

async fn registered(shop: &Shop, names: &[&str]) -> MultiListenerCoordinator {
    let coordinator = shop.coordinator();
    for name in names {
        coordinator.register_listener((*name).to_owned()).await.expect("there is room");
    }
    coordinator
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

async fn test_failover_trigger(shop: Shop) {
    let alone = registered(&shop, &["listener-1"]).await;
    // Also an `Arc` of a coordinator will do.
    let failover = FailoverManager::new(std::sync::Arc::new(alone.clone()));
    let unknown = failover.trigger_failover("listener-9").await;
    assert!(matches!(unknown, Err(ObserverError::NotRegistered { .. })), "{unknown:?}");
    let nobody = failover.trigger_failover("listener-1").await;
    assert!(matches!(nobody, Err(ObserverError::NoHealthyListener)), "{nobody:?}");

    let others = registered(&shop, &["listener-2", "listener-3"]).await;
    alone.listener("listener-1").expect("it is ours").set_checkpoint(42);
    until("it is told", async || {
        (others.check_listener_health().await.expect("the store answers")[0].last_checkpoint == 42).then_some(())
    })
    .await;
    let event = failover.trigger_failover("listener-1").await.expect("two could take over");
    assert_eq!((event.failed_listener_id.as_str(), event.checkpoint), ("listener-1", 42));
    let again = FailoverManager::new(others).trigger_failover("listener-1").await.expect("two could take over");
    assert_eq!(again.failover_target_id, event.failover_target_id, "all processes choose the same one");
    assert_eq!(failover.recent_failovers().len(), 1);
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
    let relieved = async {
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
    let ((had, checkpoint), taken) = soon("the hand-over", async { tokio::join!(relieved, second.next_batch()) }).await;
    let taken = numbers(&taken.expect("it has the watch now"));
    let all: Vec<u64> = had.iter().chain(&taken).copied().collect();
    assert_eq!(checkpoint, 5 + i64::try_from(had.len()).expect("few"), "all it had is committed, and no more");
    let expected: Vec<u64> = (6..).take(all.len()).collect();
    assert_eq!(all, expected, "nothing was lost or delivered twice");
}

async fn test_multiple_listener_failover(shop: Shop) {
    let gone = registered(&shop, &["listener-1", "listener-2"]).await;
    let here = registered(&shop, &["listener-3", "listener-4"]).await;
    let failover = FailoverManager::new(here.clone());
    failover.start_health_monitor().await;
    failover.start_health_monitor().await;
    drop(gone);
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
    let told = there.listener("listener-3").expect("it is ours");
    assert_eq!((told.checkpoint(), told.state_machine().get_state().await), (4, Running));
    told.transition(Connecting).await.expect("it is legal");
    assert!(failover.resume_from_checkpoint("listener-3", -1).await.is_err());
}
