//! Listeners to a change log of PostgreSQL that share a database: the program that one would write first, and the failures that
//! such a group has to survive.
//!
//! What can go wrong, and which test shows that it does not. Those of other files are the ones in their module `postgres`.
//!
//! | failure | test |
//! |---|---|
//! | one listener is a single point of failure | `processes`: `a_killed_listener_is_relieved_with_nothing_lost` |
//! | nobody takes over when it crashes | `failover`: `test_failover_recovery`; `processes`, as above |
//! | a person has to step in before it goes on | `a_restarted_server_needs_nobody`, `lost_connections_are_recovered_from_in_the_same_tenure` |
//! | changes are lost when it fails in the middle of a batch | `a_batch_in_hand_comes_again_when_its_listener_dies` |
//! | instances do not know of each other | `coordinator`: `test_listener_registration`, `test_coordinator_state_consistency` |
//! | two move the checkpoint (it is counted twice at a failover) | `changelog`: `test_listener_failover_handling`; `processes`: `a_listener_that_slept_through_its_lease_commits_nothing` |
//! | changes get lost while it recovers | `lost_connections_are_recovered_from_in_the_same_tenure` |
//! | the state of a listener that crashed is gone | `coordinator`: `test_listener_health_check`; `what_listeners_share_outlives_a_crash_of_the_server` |
//! | two want the lease at once | `lease`: `test_lease_contested_acquisition` |
//! | a lease expires | `lease`: `test_lease_expiration`; `changelog`: `a_listener_that_is_stuck_with_a_batch_gives_up_the_watch` |
//! | nobody notices that a listener is gone | `failover`: `test_failure_detection`, `test_multiple_listener_failover` |
//! | two are elected | `coordinator`: `test_leader_election`, `test_leader_failover` |
//! | coordinators wait for each other for ever | `many_coordinators_at_once_never_deadlock` |
//! | one that is held up holds up the others | `a_locked_listener_holds_up_no_other` |
//! | a lease takes longer than 100 ms, a checkpoint longer than 50 ms | `leases_and_checkpoints_take_as_long_as_they_may` |
//! | a listener goes from a state to one that cannot follow | `state`: `test_listener_invalid_transitions` |
//! | recovering never ends | `state`: `test_listener_state_recovery` |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use watchkeeper::ListenerState::Running;
use watchkeeper::postgres::deadpool_postgres::Pool;
use watchkeeper::postgres::tokio_postgres::{self, NoTls};
use watchkeeper::{
    ChangeLogConfig, ChangeLogEntry, ChangeLogListener, Epoch, Error, FailoverManager, MultiListenerCoordinator,
    ObserverError, PostgresCheckpointStore,
};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::servers::{Servers, pool};
use super::support::{Shop, number, numbers, settings, soon, until};

static SUM: AtomicU64 = AtomicU64::new(0);

async fn process_entries(entries: Vec<ChangeLogEntry>) -> Result<(), ObserverError> {
    let sum: u64 = entries.iter().map(number).sum();
    if SUM.fetch_add(sum, Ordering::Relaxed) + sum == 78 {
        return Err(Error::unavailable("that is all").into());
    }
    Ok(())
}

async fn run(pool: Pool, config: ChangeLogConfig) -> Result<(), ObserverError> {
    // Create coordinator
    let checkpoint_store = Arc::new(PostgresCheckpointStore::new(pool)?);
    let coordinator = MultiListenerCoordinator::new(checkpoint_store);

    // Register listeners
    coordinator.register_listener("listener-1".to_string()).await?;
    coordinator.register_listener("listener-2".to_string()).await?;

    // Get listener for this instance
    let listener_state = coordinator.get_listener_state("listener-1").await?;
    assert_eq!(listener_state, watchkeeper::ListenerState::Initializing);

    // Create failover manager
    let failover = FailoverManager::new(coordinator.clone());
    let _monitor = failover.start_health_monitor().await;

    // Use listener with coordinator
    let listener = ChangeLogListener::new(config).with_coordinator(coordinator.clone())?;

    // Automatic failover happens on failure detection
    loop {
        match listener.next_batch().await {
            Ok(entries) => process_entries(entries).await?,
            Err(ObserverError::ListenerFailover { checkpoint, .. }) => {
                // Failover triggered, checkpoint saved
                eprintln!("Failing over from checkpoint {}", checkpoint);
            }
            Err(e) => return Err(e),
        }
    }
}

/// The database of a shop.
fn url(shop: &Shop) -> &str {
    let Servers::Database(url) = shop.servers() else { panic!("it stands on files") };
    url
}

async fn session(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

async fn count(session: &tokio_postgres::Client, sql: &str) -> i64 {
    session.query_one(sql, &[]).await.expect("it can be asked").get(0)
}

async fn batch(listener: &ChangeLogListener) -> Vec<u64> {
    numbers(&soon("a batch", listener.next_batch()).await.expect("it has the watch"))
}

/// The next batch, of a listener that may have had to give up the watch meanwhile.
async fn batch_after_all(listener: &ChangeLogListener) -> Vec<u64> {
    loop {
        match soon("a batch", listener.next_batch()).await {
            Ok(entries) => return numbers(&entries),
            Err(ObserverError::ListenerFailover { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn the_first_program_that_one_would_write_works_on_a_pool() {
    let shop = Shop::in_postgres().await;
    let app = shop.open().await;
    app.order(1..=12).await;
    let log = shop.servers().change_log("listener-1").await;
    let ended = soon("the last entry", run(pool(url(&shop)), log)).await.expect_err("the loop ends by an error only");
    assert_eq!(ended.to_string(), "that is all [WK-UNAVAILABLE]");
    let by_url = PostgresCheckpointStore::connect(url(&shop)).expect("it is a URL");
    let stores = by_url.stores(&watchkeeper::open::cx()).await.expect("the tables are there");
    assert!(stores.leases.profile().wakes, "on connections of its own it hears of releases");
}

#[tokio::test]
async fn a_batch_in_hand_comes_again_when_its_listener_dies() {
    let shop = Shop::in_postgres().await;
    let app = shop.open().await;
    app.order(1..=10).await;
    let coordinator = shop.coordinator();
    let first = shop.listener("listener-1", &coordinator).await;
    assert_eq!(batch(&first).await, [1, 2, 3, 4, 5]);
    assert_eq!(batch(&first).await, [6, 7, 8, 9, 10]);
    // It dies with the second batch in its hands, and with its heartbeats.
    drop((first, coordinator));
    let second = shop.listener("listener-2", &shop.coordinator()).await;
    assert_eq!(batch(&second).await, [6, 7, 8, 9, 10], "what nobody asked beyond is delivered again");
    assert_eq!(shop.committed().await, 5, "and was not committed");
    assert_eq!(soon("the commit", second.ack()).await.expect("it has the watch"), 10);
}

#[tokio::test]
async fn lost_connections_are_recovered_from_in_the_same_tenure() {
    let shop = Shop::in_postgres().await;
    let app = shop.open().await;
    app.order(1..=5).await;
    let coordinator = shop.coordinator();
    let listener = shop.listener("listener-1", &coordinator).await;
    assert_eq!(batch(&listener).await, [1, 2, 3, 4, 5]);
    // All that this group has open is ended, the log's connection among them; the batch is in hand.
    let admin = session(url(&shop)).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(count(&admin, cut).await > 1, "there was something to cut");
    until("the orders can be written", async || {
        let sql = "INSERT INTO orders SELECT g, 'rope' FROM generate_series(6, 8) g ON CONFLICT DO NOTHING";
        admin.batch_execute(sql).await.ok()
    })
    .await;
    let mut had = Vec::new();
    while had.last() != Some(&8) {
        had.extend(soon("a batch", listener.next_batch()).await.map(|entries| numbers(&entries)).expect("it goes on"));
    }
    // The batch in hand may have been withdrawn by the reopening, and then it comes again; nothing else does.
    assert!(had == [6, 7, 8] || had == [1, 2, 3, 4, 5, 6, 7, 8], "{had:?}");
    assert_eq!(soon("the commit", listener.ack()).await.expect("it has the watch"), 8);
    let after = shop.checkpoint().await.expect("eight are committed");
    assert_eq!((after.epoch, after.facts.failovers), (Epoch(1), 0), "the watch did not change hands");
    assert_eq!(coordinator.get_listener_state("listener-1").await.expect("it is registered"), Running);
}

/// A server of its own, for those who restart it.
async fn shop_of(server: &Server) -> (Servers, super::servers::App) {
    let servers = Servers::Database(server.url("postgres"));
    let app = servers.open().await;
    (servers, app)
}

async fn listener(servers: &Servers, name: &str) -> (ChangeLogListener, MultiListenerCoordinator) {
    let coordinator = servers.coordinator(settings(name));
    let listener = ChangeLogListener::new(servers.change_log(name).await).with_coordinator(&coordinator);
    (listener.expect("the settings are right"), coordinator)
}

#[tokio::test]
async fn a_restarted_server_needs_nobody() {
    let server = Server::start(Version::V18);
    let (servers, app) = shop_of(&server).await;
    app.order(1..=5).await;
    let (listener, coordinator) = listener(&servers, "listener-1").await;
    assert_eq!(batch(&listener).await, [1, 2, 3, 4, 5]);
    assert_eq!(soon("the commit", listener.ack()).await.expect("it has the watch"), 5);
    server.restart();
    let admin = session(&server.url("postgres")).await;
    admin.batch_execute("INSERT INTO orders VALUES (6, 'rope'), (7, 'rope')").await.expect("the server is back");
    assert_eq!(batch_after_all(&listener).await, [6, 7], "nobody had to do anything");
    assert_eq!(soon("the commit", listener.ack()).await.expect("it has the watch"), 7);
    drop(coordinator);
}

#[tokio::test]
async fn what_listeners_share_outlives_a_crash_of_the_server() {
    let server = Server::start(Version::V15);
    let (servers, app) = shop_of(&server).await;
    app.order(1..=8).await;
    let (first, here) = listener(&servers, "listener-1").await;
    assert_eq!(batch(&first).await, [1, 2, 3, 4, 5]);
    assert_eq!(soon("the commit", first.ack()).await.expect("it has the watch"), 5);
    until("its checkpoint is told", async || {
        (here.check_listener_health().await.ok()?.first()?.last_checkpoint == 5).then_some(())
    })
    .await;
    // Server and listener are gone at once.
    server.kill();
    drop((first, here));
    server.restart();
    let (second, there) = listener(&servers, "listener-2").await;
    let health = until("it can be asked", async || there.check_listener_health().await.ok()).await;
    let kept: Vec<_> = health.iter().map(|one| (one.listener_id.as_str(), one.last_checkpoint)).collect();
    assert_eq!(kept, [("listener-1", 5)], "what it said last is kept");
    assert_eq!(batch_after_all(&second).await, [6, 7, 8]);
}

#[tokio::test]
async fn many_coordinators_at_once_never_deadlock() {
    let shop = Shop::in_postgres().await;
    let config = watchkeeper::MultiListenerConfig { max_listeners: 20, ..settings("nobody") };
    let mut all = Vec::new();
    for number in 0..10 {
        let coordinator = shop.servers().coordinator(config.clone());
        all.push(tokio::spawn(async move {
            let name = format!("listener-{number}");
            for _ in 0..5 {
                coordinator.register_listener(name.clone()).await?;
                coordinator.elect_leader().await?;
                coordinator.check_listener_health().await?;
                coordinator.deregister_listener(&name).await?;
            }
            Ok::<_, ObserverError>(())
        }));
    }
    for one in all {
        soon("all are done", one).await.expect("no panic").expect("nobody is in anybody's way for long");
    }
    let admin = session(url(&shop)).await;
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(count(&admin, sql).await, 0);
}

#[tokio::test]
async fn a_locked_listener_holds_up_no_other() {
    let shop = Shop::in_postgres().await;
    let coordinator = shop.coordinator();
    for name in ["listener-1", "listener-2"] {
        coordinator.register_listener(name.to_owned()).await.expect("there is room");
    }
    let (one, two) = (shop.leases().lease("listener-1", 1), shop.leases().lease("listener-2", 2));
    assert!(one.acquire().await.expect("the store answers") && two.acquire().await.expect("the store answers"));
    // Somebody has locked all that is known of the first one, and does not let go.
    let mut admin = session(url(&shop)).await;
    let open = admin.transaction().await.expect("a transaction can begin");
    let lock = "SELECT 1 FROM watchkeeper.records WHERE name LIKE '%listener-1%' FOR UPDATE";
    assert!(!open.query(lock, &[]).await.expect("it can be locked").is_empty(), "there was something to lock");
    let lock = "SELECT 1 FROM watchkeeper.leases WHERE holder::text LIKE '%listener-1%' FOR UPDATE";
    assert!(!open.query(lock, &[]).await.expect("it can be locked").is_empty(), "there was something to lock");
    let begun = Instant::now();
    soon("a renewal", two.renew()).await.expect("the store answers").then_some(()).expect("it has it");
    let other = shop.coordinator();
    soon("the health", other.check_listener_health()).await.expect("nobody waits for a reader");
    soon("an election", other.elect_leader()).await.expect("two are there");
    soon("a registration", other.register_listener("listener-3".to_owned())).await.expect("there is room");
    assert!(begun.elapsed() < Duration::from_secs(5), "they waited for {:?}", begun.elapsed());
    open.rollback().await.expect("it answers");
}

#[tokio::test]
async fn leases_and_checkpoints_take_as_long_as_they_may() {
    let shop = Shop::in_postgres().await;
    let app = shop.open().await;
    let lease = shop.leases().lease("listener-1", 1);
    lease.acquire().await.expect("the store answers");
    lease.release().await.expect("the store answers");
    let (mut acquired, mut committed) = (Vec::new(), Vec::new());
    let listener = shop.listener("listener-1", &shop.coordinator()).await;
    for number in 1..=21 {
        let begun = Instant::now();
        assert!(lease.acquire().await.expect("the store answers"));
        acquired.push(begun.elapsed());
        lease.release().await.expect("the store answers");
        app.order(number..=number).await;
        batch(&listener).await;
        let begun = Instant::now();
        soon("the commit", listener.ack()).await.expect("it has the watch");
        committed.push(begun.elapsed());
    }
    for (what, times, most) in [("lease", &mut acquired, 100), ("checkpoint", &mut committed, 50)] {
        times.sort_unstable();
        // The median, since other tests run beside; the chaos program measures how slow the slowest are.
        let median = times[times.len() / 2];
        println!("{what}: median {median:?}, slowest {:?}", times[times.len() - 1]);
        assert!(median < Duration::from_millis(most), "{what}: {median:?}");
    }
}
