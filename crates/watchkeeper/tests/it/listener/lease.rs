use watchkeeper::core::{CheckpointWrite, Claim, Commit, Facts, Reason};
use watchkeeper::{CheckpointLease, Position};

use super::support::{Shop, cx, on_each_store, until};

on_each_store! {
    test_lease_acquisition,
    test_lease_renewal,
    test_lease_expiration,
    test_lease_contested_acquisition,
    test_lease_multiple_listeners,
}

async fn holder(lease: &CheckpointLease) -> Option<String> {
    lease.get_holder().await.expect("the store answers")
}

async fn acquire(lease: &CheckpointLease) -> bool {
    lease.acquire().await.expect("the store answers")
}

async fn is_valid(lease: &CheckpointLease) -> bool {
    lease.is_valid().await.expect("the store answers")
}

async fn test_lease_acquisition(shop: Shop) {
    let lease = shop.leases().lease("listener-1", 7);
    assert_eq!((holder(&lease).await, is_valid(&lease).await, lease.epoch()), (None, false, None));
    assert!(acquire(&lease).await);
    assert!(is_valid(&lease).await);
    let first = lease.epoch().expect("it holds");
    // As another process sees it.
    assert_eq!(holder(&shop.leases().lease("listener-2", 7)).await.as_deref(), Some("listener-1"));

    lease.release().await.expect("the store answers");
    assert_eq!((holder(&lease).await, is_valid(&lease).await), (None, false));
    assert!(acquire(&lease).await);
    assert!(lease.epoch().expect("it holds") > first, "a new grant has a higher epoch");
}

async fn test_lease_renewal(shop: Shop) {
    let (lease, rival) = (shop.leases().lease("listener-1", 1), shop.leases().lease("listener-2", 1));
    assert!(!lease.renew().await.expect("there is nothing to renew"));
    assert!(acquire(&lease).await);
    let epoch = lease.epoch();
    // For longer than two leases, renewed all the while.
    let until_when = std::time::Instant::now() + super::support::LEASE * 2;
    until("two leases pass", async || {
        assert!(lease.renew().await.expect("the store answers"), "it was lost while it was renewed");
        assert!(!acquire(&rival).await, "another one got it while it was renewed");
        (std::time::Instant::now() > until_when).then_some(())
    })
    .await;
    assert_eq!(lease.epoch(), epoch, "renewing is no new grant");
    lease.release().await.expect("the store answers");
    assert!(!lease.renew().await.expect("the store answers"), "what was released cannot be renewed");
}

async fn test_lease_expiration(shop: Shop) {
    let (lease, rival) = (shop.leases().lease("listener-1", 1), shop.leases().lease("listener-2", 1));
    assert!(acquire(&lease).await);
    // The holder counts from before it asked, less a margin: it gives up before the store does.
    until("the holder gives up", async || lease.grant().is_none().then_some(())).await;
    assert!(!lease.renew().await.expect("nothing is asked of the store"), "once it is over, it is over");
    until("the lease expires", async || acquire(&rival).await.then_some(())).await;
    assert_eq!(holder(&lease).await.as_deref(), Some("listener-2"));
    assert!(!is_valid(&lease).await);
    // It is not its own any more, so this releases nothing.
    lease.release().await.expect("the store answers");
    assert!(is_valid(&rival).await);
}

async fn test_lease_contested_acquisition(shop: Shop) {
    // Each with a connection of its own, all at once.
    let leases: Vec<_> = (0..8).map(|number| shop.leases().lease(&format!("listener-{number}"), 1)).collect();
    let mut asks = Vec::new();
    for lease in leases {
        asks.push(tokio::spawn(async move {
            let won = acquire(&lease).await;
            (lease, won)
        }));
    }
    let mut answers = Vec::new();
    for ask in asks {
        answers.push(ask.await.expect("no panic"));
    }
    let winners: Vec<_> = answers.iter().filter(|(_, won)| *won).map(|(lease, _)| lease.listener_id()).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    for (lease, won) in &answers {
        assert_eq!(holder(lease).await.as_deref(), Some(winners[0]));
        assert_eq!(is_valid(lease).await, *won);
    }
}

async fn test_lease_multiple_listeners(shop: Shop) {
    let leases = shop.leases();
    let (one, two) = (leases.lease("listener-1", 1), shop.leases().lease("listener-2", 2));
    assert!(acquire(&one).await && acquire(&two).await, "different checkpoints are different leases");
    let successor = shop.leases().lease("listener-2", 1);
    assert!(!acquire(&successor).await);
    let stale = one.grant().expect("it holds");
    let store = shop.store();
    store.claim(&cx(), &stale).await.expect("it is the first");
    one.release().await.expect("the store answers");
    assert!(acquire(&successor).await);

    // Who may write is decided where the checkpoint is: by the epoch that a lease gives.
    let fresh = successor.grant().expect("it holds");
    assert_eq!(store.claim(&cx(), &fresh).await.expect("the store answers"), Claim::Claimed(None));
    let write = |grant| CheckpointWrite {
        grant,
        seq: 1,
        position: Some(Position::new("1000", None)),
        pedigree: None,
        reason: Reason::Progress,
        halted: None,
        facts: Facts { changes: 1_000, ..Facts::default() },
        ledger: Vec::new(),
        resolve: Vec::new(),
    };
    let answers = store.commit(&cx(), &[write(stale), write(fresh)]).await.expect("the store answers");
    assert_eq!(answers, [Commit::Fenced, Commit::Committed]);
}
