use watchkeeper::ListenerState::{Connecting, Initializing, Running};
use watchkeeper::{ErrorKind, ListenerHealth, ListenerState, MultiListenerCoordinator, ObserverError};

use super::support::{Shop, on_each_store, until};

on_each_store! {
    test_listener_registration,
    test_listener_deregistration,
    test_listener_health_check,
    test_leader_election,
    test_leader_failover,
    test_coordinator_state_consistency,
}

async fn register(coordinator: &MultiListenerCoordinator, names: &[&str]) {
    for name in names {
        coordinator.register_listener((*name).to_owned()).await.expect("there is room");
    }
}

async fn health(coordinator: &MultiListenerCoordinator) -> Vec<ListenerHealth> {
    coordinator.check_listener_health().await.expect("the store answers")
}

/// Everything of a [`ListenerHealth`].
fn parts(health: Vec<ListenerHealth>) -> Vec<(String, bool, i64, ListenerState)> {
    let parts = |one: ListenerHealth| (one.listener_id, one.is_healthy, one.last_checkpoint, one.state);
    health.into_iter().map(parts).collect()
}

async fn names(coordinator: &MultiListenerCoordinator) -> Vec<String> {
    health(coordinator).await.into_iter().map(|health| health.listener_id).collect()
}

async fn test_listener_registration(shop: Shop) {
    let (here, there) = (shop.coordinator(), shop.coordinator());
    register(&here, &["listener-1", "listener-2"]).await;
    register(&there, &["listener-3", "listener-1"]).await;
    assert_eq!(names(&here).await, ["listener-1", "listener-2", "listener-3"]);
    assert_eq!(names(&there).await, names(&here).await, "all processes see the same");
    assert_eq!(there.get_listener_state("listener-2").await.expect("it is registered"), Initializing);

    register(&there, &["listener-4"]).await;
    let full = here.register_listener("listener-5".to_owned()).await.expect_err("four may be there");
    let ObserverError::Failed(error) = full else { panic!("{full}") };
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert_eq!(names(&here).await.len(), 4, "one that was refused is not there");
    assert!(here.register_listener("a/b".to_owned()).await.is_err());
    let elsewhere = shop.coordinator().in_group("market").expect("the name is good");
    register(&elsewhere, &["listener-5"]).await;
    assert_eq!((names(&elsewhere).await.len(), names(&here).await.len()), (1, 4), "groups do not see each other");
}

async fn test_listener_deregistration(shop: Shop) {
    let (here, there) = (shop.coordinator(), shop.coordinator());
    register(&here, &["listener-1", "listener-2", "listener-3", "listener-4"]).await;
    here.deregister_listener("listener-1").await.expect("it is registered");
    assert_eq!(names(&there).await, ["listener-2", "listener-3", "listener-4"]);
    let gone = there.get_listener_state("listener-1").await;
    assert!(
        matches!(&gone, Err(ObserverError::NotRegistered { listener_id }) if listener_id == "listener-1"),
        "{gone:?}"
    );
    assert!(here.deregister_listener("listener-1").await.is_err(), "it has left");
    // Its place is free, and its heartbeats have ended.
    register(&there, &["listener-5"]).await;
    let beat = here.listener("listener-2").expect("it is ours");
    until("heartbeats go on", async || beat.since_heartbeat().filter(|since| since.as_millis() < 20)).await;
    assert_eq!(names(&there).await, ["listener-2", "listener-3", "listener-4", "listener-5"]);
}

async fn test_listener_health_check(shop: Shop) {
    let (here, there) = (shop.coordinator(), shop.coordinator());
    register(&here, &["listener-1"]).await;
    register(&there, &["listener-2"]).await;
    let handle = there.listener("listener-2").expect("it is there's");
    handle.transition(Connecting).await.expect("it is legal");
    handle.transition(Running).await.expect("it is legal");
    handle.set_checkpoint(1_000);
    let reported = until("the other process hears of it", async || {
        let health = health(&here).await;
        (health[1].last_checkpoint == 1_000).then_some(health)
    });
    let listener = |id: &str, is_healthy, last_checkpoint, state| (id.to_owned(), is_healthy, last_checkpoint, state);
    let expected = [listener("listener-1", true, 0, Initializing), listener("listener-2", true, 1_000, Running)];
    assert_eq!(parts(reported.await), expected);

    // A process that ends without a word.
    drop((there, handle));
    let silent = until("the silence is noticed", async || {
        let health = health(&here).await;
        (!health[1].is_healthy).then_some(health)
    });
    let expected = [listener("listener-1", true, 0, Initializing), listener("listener-2", false, 1_000, Running)];
    assert_eq!(parts(silent.await), expected, "what it said last is kept");
}

async fn test_leader_election(shop: Shop) {
    let (here, there) = (shop.coordinator(), shop.coordinator());
    let nobody = here.elect_leader().await;
    assert!(matches!(nobody, Err(ObserverError::NoHealthyListener)), "{nobody:?}");
    register(&here, &["listener-1", "listener-2"]).await;
    register(&there, &["listener-3"]).await;
    let leader = there.elect_leader().await.expect("three are there");
    assert_eq!(here.elect_leader().await.expect("three are there"), leader, "all agree");
    let first = here.leader().await.expect("the store answers");
    assert_eq!(there.leader().await.expect("the store answers"), first, "under one epoch");

    // In another store, with the same members registered in another it is the same one.
    let elsewhere = shop.another().await;
    let other = elsewhere.coordinator();
    register(&other, &["listener-3", "listener-2", "listener-1"]).await;
    assert_eq!(other.elect_leader().await.expect("three are there"), leader, "who is there decides, and nothing else");
}

async fn test_leader_failover(shop: Shop) {
    let (here, there) = (shop.coordinator(), shop.coordinator());
    register(&here, &["listener-1"]).await;
    register(&there, &["listener-2"]).await;
    let leader = here.elect_leader().await.expect("two are there");
    let (_, epoch) = here.leader().await.expect("the store answers").expect("someone was elected");
    let (dead, alive, heir) =
        if leader == "listener-1" { (here, there, "listener-2") } else { (there, here, "listener-1") };
    // For longer than a lease the leader's process keeps it.
    let until_when = std::time::Instant::now() + super::support::LEASE * 2;
    until("two leases pass", async || {
        assert_eq!(alive.elect_leader().await.expect("two are there"), leader);
        (std::time::Instant::now() > until_when).then_some(())
    })
    .await;
    assert_eq!(alive.leader().await.expect("the store answers").map(|(_, epoch)| epoch), Some(epoch));

    drop(dead);
    until("another one leads", async || (alive.elect_leader().await.is_ok_and(|leader| leader == heir)).then_some(()))
        .await;
    let (_, next) = alive.leader().await.expect("the store answers").expect("someone was elected");
    assert!(next > epoch, "a stale leader can be told by its epoch");

    // One that leaves in order is relieved at once.
    let third = shop.coordinator();
    register(&third, &["listener-3"]).await;
    alive.deregister_listener(heir).await.expect("it is registered");
    assert_ne!(third.elect_leader().await.expect("another one is there"), heir);
}

async fn test_coordinator_state_consistency(shop: Shop) {
    let (here, there) = (shop.coordinator(), shop.coordinator());
    register(&here, &["listener-1"]).await;
    let (clone, handle) = (here.clone(), here.listener("listener-1").expect("it is ours"));
    for state in [Connecting, Running, Connecting, Running] {
        handle.transition(state).await.expect("it is legal");
        let seen = clone.get_listener_state("listener-1").await.expect("it is registered");
        assert_eq!(seen, state, "a clone is the same coordinator");
        until("the other process hears of it", async || {
            (there.get_listener_state("listener-1").await.ok() == Some(state)).then_some(())
        })
        .await;
    }
    // Another process that only names the listener does not unsay what its own has said.
    register(&there, &["listener-1"]).await;
    assert_eq!(there.get_listener_state("listener-1").await.expect("it is registered"), Running);
    drop(there);
    assert_eq!(health(&here).await[0].state, Running);
}
