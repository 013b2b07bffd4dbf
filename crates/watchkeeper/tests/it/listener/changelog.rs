use std::sync::Arc;
use std::time::Duration;

use watchkeeper::ListenerState::{Connecting, Running, Stopped};
use watchkeeper::core::{AcquireRequest, Acquired, Candidate, Entropy};
use watchkeeper::{ChangeLogListener, Epoch, LeaseKey, MultiListenerCoordinator, ObserverError};

use super::support::{GROUP, PATIENCE, STREAM, Shop, cx, numbers, on_each_store, soon, until};

on_each_store! {
    test_listener_with_coordinator,
    test_listener_lease_acquisition_in_batch,
    test_listener_checkpoint_update,
    test_listener_failover_handling,
    a_listener_that_is_stuck_with_a_batch_gives_up_the_watch,
    a_stream_whose_history_is_lost_is_halted_and_says_so,
}

async fn batch(listener: &ChangeLogListener) -> Vec<u64> {
    numbers(&soon("a batch", listener.next_batch()).await.expect("it has the watch"))
}

async fn state(coordinator: &MultiListenerCoordinator, name: &str) -> Option<watchkeeper::ListenerState> {
    coordinator.get_listener_state(name).await.ok()
}

async fn test_listener_with_coordinator(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=7).await;
    let (here, there) = (shop.coordinator(), shop.coordinator());
    let listener = shop.listener("listener-1", &here).await;
    assert!(listener.handle().is_none(), "it does nothing before it is asked");
    assert_eq!(batch(&listener).await, [1, 2, 3, 4, 5]);
    until("the other process sees it run", async || (state(&there, "listener-1").await == Some(Running)).then_some(()))
        .await;
    assert_eq!(batch(&listener).await, [6, 7]);
    soon("the commit", listener.ack()).await.expect("it has the watch");
    listener.close().await.expect("it leaves in order");
    assert_eq!(state(&there, "listener-1").await, None, "it has left");
    assert_eq!(shop.committed().await, 7);

    // One that should be coordinated and is not, refuses.
    let config = shop.servers().change_log("listener-2").await;
    let refused = ChangeLogListener::new(config.clone()).next_batch().await;
    assert!(matches!(refused, Err(ObserverError::Failed(_))), "{refused:?}");
    // Alone, it starts where its configuration says.
    let mut alone = config;
    alone.multi_listener.enabled = false;
    let alone = ChangeLogListener::new(alone);
    assert_eq!(batch(&alone).await, [1, 2, 3, 4, 5]);
    assert_eq!(batch(&alone).await, [6, 7]);
    assert_eq!(soon("the commit", alone.ack()).await.expect("nobody else is there"), 7);
    let machine = alone.state_machine().expect("it was asked").clone();
    alone.close().await.expect("it leaves in order");
    assert_eq!(machine.get_state().await, Stopped);

    // One that is dropped is shown as stopped, though its coordinator lives on.
    let dropped = shop.listener("listener-3", &here).await;
    app.order(8..=8).await;
    assert_eq!(batch(&dropped).await, [8]);
    drop(dropped);
    assert_eq!(state(&here, "listener-3").await, Some(Stopped));
}

async fn test_listener_lease_acquisition_in_batch(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=3).await;
    // Somebody else has the lease.
    let key = LeaseKey::new(format!("{GROUP}/{STREAM}/0/0"));
    let entropy = Entropy::from_system();
    let candidate = Candidate {
        instance: entropy.instance(),
        name: "somebody".to_owned(),
        address: None,
        tenure: entropy.tenure(),
    };
    let ask = AcquireRequest { key: key.clone(), candidate, ttl: PATIENCE, floor: Epoch::ZERO, break_holder: None };
    let store = shop.store();
    let Acquired::Granted { grant, .. } = store.try_acquire(&cx(), &ask).await.expect("the store answers") else {
        panic!("nobody had it")
    };

    let coordinator = shop.coordinator();
    let listener = Arc::new(shop.listener("listener-1", &coordinator).await);
    let asking = tokio::spawn({
        let listener = Arc::clone(&listener);
        async move { numbers(&listener.next_batch().await.expect("it has the watch")) }
    });
    until("it stands by", async || (state(&coordinator, "listener-1").await == Some(Connecting)).then_some(())).await;
    let tries = std::time::Instant::now() + Duration::from_millis(300);
    until("some tries pass", async || (std::time::Instant::now() > tries).then_some(())).await;
    assert!(!asking.is_finished(), "it fetched without the lease");
    assert_eq!(shop.checkpoint().await, None, "nor did it touch the checkpoint");

    store.release(&cx(), &grant).await.expect("the store answers");
    assert_eq!(soon("the batch", asking).await.expect("no panic"), [1, 2, 3]);
    let holders = store.holders(&cx(), &[key]).await.expect("the store answers");
    let holder = holders[0].as_ref().expect("the listener has it");
    assert_eq!(holder.candidate.name, "listener-1");
    assert!(holder.epoch > grant.epoch);
}

async fn test_listener_checkpoint_update(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=12).await;
    let coordinator = shop.coordinator();
    let listener = shop.listener("listener-1", &coordinator).await;
    let entries = soon("a batch", listener.next_batch()).await.expect("nobody else is there");
    let checkpoints: Vec<i64> = entries.iter().map(|entry| entry.checkpoint).collect();
    assert_eq!(checkpoints, [1, 2, 3, 4, 5], "each change is counted");
    assert_eq!(shop.committed().await, 0, "what is being worked on is not committed");
    // A call that is dropped loses nothing, whatever it came to.
    let dropped = tokio::time::timeout(Duration::from_millis(1), listener.next_batch()).await;
    if let Ok(entries) = &dropped {
        assert_eq!(numbers(entries.as_ref().expect("it has the watch")), [6, 7, 8, 9, 10]);
    } else {
        assert_eq!(batch(&listener).await, [6, 7, 8, 9, 10]);
    }
    assert_eq!(shop.committed().await, 5, "asking for the next batch commits the one before");
    assert_eq!(soon("the commit", listener.ack()).await.expect("it has the watch"), 10);
    assert_eq!(soon("nothing", listener.ack()).await.expect("it has the watch"), 10, "once is enough");
    assert_eq!(shop.committed().await, 10);
    assert_eq!(batch(&listener).await, [11, 12]);
    let handle = coordinator.listener("listener-1").expect("it is ours");
    until("the handle shows it", async || (handle.checkpoint() == 10).then_some(())).await;

    // Closed with a batch in hand, it commits nothing more, and the next one gets that batch.
    soon("the end", listener.close()).await.expect("it leaves in order");
    let next = shop.listener("listener-2", &shop.coordinator()).await;
    assert_eq!(batch(&next).await, [11, 12]);
    assert_eq!(shop.committed().await, 10);
}

async fn test_listener_failover_handling(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=10).await;
    let coordinator = shop.coordinator();
    let listener = shop.listener("listener-1", &coordinator).await;
    assert_eq!(batch(&listener).await, [1, 2, 3, 4, 5]);
    assert_eq!(batch(&listener).await, [6, 7, 8, 9, 10]);
    // A newer grant claims the checkpoint, as after a pause that this process did not notice.
    let store = shop.store();
    let before = shop.checkpoint().await.expect("five are committed");
    let grant = watchkeeper::core::Grant {
        key: LeaseKey::new(format!("{GROUP}/{STREAM}/0/0")),
        tenure: Entropy::from_system().tenure(),
        epoch: Epoch(before.epoch.0 + 10),
    };
    watchkeeper::CheckpointStore::claim(&*store, &cx(), &grant).await.expect("the store answers");
    match soon("the news", listener.next_batch()).await {
        Err(ObserverError::ListenerFailover { listener_id, checkpoint, cause }) => {
            assert_eq!((listener_id.as_str(), checkpoint), ("listener-1", 5), "{cause}");
        }
        other => panic!("a stale listener went on: {other:?}"),
    }
    assert_eq!(shop.checkpoint().await, Some(before), "it committed nothing");
    // Later calls stand by, and go on under a newer epoch when the watch is free.
    assert_eq!(batch(&listener).await, [6, 7, 8, 9, 10], "what was not committed comes again");
    assert_eq!(soon("the commit", listener.ack()).await.expect("it has the watch"), 10);
    let after = shop.checkpoint().await.expect("ten are committed");
    assert!(after.epoch > grant.epoch, "{:?}", after.epoch);
}

async fn a_listener_that_is_stuck_with_a_batch_gives_up_the_watch(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=5).await;
    let (here, there) = (shop.coordinator(), shop.coordinator());
    let mut config = shop.servers().change_log("listener-1").await;
    config.patience = Some(Duration::from_millis(300));
    let stuck = ChangeLogListener::new(config).with_coordinator(here).expect("the settings are right");
    assert_eq!(batch(&stuck).await, [1, 2, 3, 4, 5]);
    // It renews its lease, but nobody asks it for more.
    let second = shop.listener("listener-2", &there).await;
    assert_eq!(batch(&second).await, [1, 2, 3, 4, 5], "another one gets what it did not finish");
    let late = soon("the news", stuck.ack()).await;
    assert!(matches!(late, Err(ObserverError::ListenerFailover { checkpoint: 0, .. })), "{late:?}");
    assert_eq!(shop.committed().await, 0, "its acknowledgement came too late");
}

async fn a_stream_whose_history_is_lost_is_halted_and_says_so(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=5).await;
    let listener = shop.listener("listener-1", &shop.coordinator()).await;
    batch(&listener).await;
    soon("the commit", listener.ack()).await.expect("nobody else is there");
    listener.close().await.expect("it leaves in order");
    app.order(6..=10).await;
    app.forget().await;
    let next = shop.listener("listener-2", &shop.coordinator()).await;
    let mut answer = soon("the halt", next.next_batch()).await;
    if let Err(ObserverError::ListenerFailover { .. }) = answer {
        // It had the watch for a moment.
        answer = soon("the halt", next.next_batch()).await;
    }
    assert!(matches!(&answer, Err(ObserverError::Halted { stream, .. }) if stream == STREAM), "{answer:?}");
    assert_eq!(shop.committed().await, 5, "nothing was skipped");
}
