//! What only this system does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, CheckpointStore, Claim, Commit, Cx, Entropy, Epoch, ErrorKind, Grant,
    InstanceId, Lease, LeaseKey, LeaseStore, Released, Renewal,
};
use watchkeeper_postgres::{Checkpoints, Client, Config, Leases, RecordStore};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::sink::{grant, write};
use crate::support::{Base, assert_error, block_on, cx, eventually};

pub(crate) fn ask(key: &str, entropy: &Entropy) -> AcquireRequest {
    let candidate = Candidate {
        instance: InstanceId(entropy.uuid()),
        name: "test".to_owned(),
        address: None,
        tenure: entropy.tenure(),
    };
    let (ttl, floor) = (Duration::from_secs(600), Epoch::ZERO);
    AcquireRequest { key: LeaseKey::new(key), candidate, ttl, floor, break_holder: None }
}

async fn granted(leases: &Leases, key: &str) -> Lease {
    let ask = ask(key, &Entropy::from_system());
    match leases.try_acquire(&cx(), &ask).await.expect("the server answers") {
        Acquired::Granted { grant, .. } => Lease { grant, ttl: ask.ttl },
        held @ Acquired::Held(_) => panic!("{key} is free: {held:?}"),
    }
}

#[test]
fn a_locked_row_holds_up_no_other_renewal() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let leases = Leases::open(&cx(), base.client().await).await.expect("the tables can be made");
        let mut all = Vec::new();
        for key in ["a", "b", "c"] {
            all.push(granted(&leases, key).await);
        }
        let mut admin = base.admin().await;
        let schema = base.schema_name().to_owned();
        let transaction = admin.transaction().await.expect("it answers");
        let lock = format!("SELECT 1 FROM {schema}.leases WHERE key = 'b' FOR UPDATE");
        transaction.batch_execute(&lock).await.expect("it is free");
        let answers = leases.renew(&cx(), &all).await.expect("nobody waits");
        assert_eq!(answers, [Renewal::Held, Renewal::Unknown, Renewal::Held]);
        // One that is lost is told so, whoever has locked it.
        let lost = Lease { grant: Grant { epoch: Epoch(9), ..all[1].grant.clone() }, ..all[1].clone() };
        assert_eq!(leases.renew(&cx(), &[lost]).await.expect("nobody waits"), [Renewal::Lost]);
        transaction.rollback().await.expect("it is there");
        assert_eq!(leases.renew(&cx(), &all).await.expect("nobody waits"), [Renewal::Held; 3]);
    });
}

#[test]
fn a_locked_checkpoint_holds_up_no_other_commit() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let checkpoints = Checkpoints::open(&cx(), base.client().await).await.expect("the tables can be made");
        let grants = ["a", "b", "c"].map(|key| Grant { key: LeaseKey::new(key), ..grant(1) });
        for grant in &grants {
            checkpoints.claim(&cx(), grant).await.expect("it is free");
        }
        let mut admin = base.admin().await;
        let schema = base.schema_name().to_owned();
        let transaction = admin.transaction().await.expect("it answers");
        let lock = format!("SELECT 1 FROM {schema}.checkpoints WHERE key = 'b' FOR UPDATE");
        transaction.batch_execute(&lock).await.expect("it is free");
        let writes = grants.clone().map(|grant| write(&grant, 1));
        let answer = checkpoints.commit(&cx().within(Duration::from_secs(5)), &writes).await;
        let error = answer.expect_err("one of them cannot be written");
        assert_eq!(error.kind(), ErrorKind::Unknown, "the others were written: {error}");
        for (key, seq) in [("a", Some(1)), ("b", None), ("c", Some(1))] {
            let stored = checkpoints.load(&cx(), &LeaseKey::new(key)).await.expect("nobody waits to read");
            assert_eq!(stored.map(|checkpoint| checkpoint.seq), seq, "{key}");
        }
        transaction.rollback().await.expect("it is there");
        let answers = checkpoints.commit(&cx(), &writes).await.expect("the server answers");
        assert_eq!(answers, [Commit::AlreadyDone, Commit::Committed, Commit::AlreadyDone]);
    });
}

/// A thousand streams of four instances, renewed and committed at once and in different orders.
#[test]
fn a_thousand_streams_never_deadlock() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let leases = Leases::open(&cx(), base.client().await).await.expect("the tables can be made");
        let checkpoints = Checkpoints::open(&cx(), base.client().await).await.expect("the tables can be made");
        let keys: Vec<String> = (0..1000).map(|n| format!("stream-{n}")).collect();
        let mut all = Vec::new();
        for part in keys.chunks(8) {
            all.extend(join_all(part.iter().map(|key| granted(&leases, key))).await);
        }
        for part in all.chunks(8) {
            let context = cx();
            let claims = part.iter().map(|lease| checkpoints.claim(&context, &lease.grant));
            let claims = try_join_all(claims.collect::<Vec<_>>()).await.expect("the server answers");
            assert!(claims.iter().all(|claim| *claim == Claim::Claimed(None)));
        }
        let turned = |n: usize| {
            let mut some = all.clone();
            some.rotate_left(n * 131);
            if n % 2 == 1 {
                some.reverse();
            }
            some
        };
        let renewals = (0..4).map(|n| {
            let (leases, mine) = (leases.clone(), turned(n));
            async move {
                for _ in 0..5 {
                    let answers = leases.renew(&cx(), &mine).await.expect("nobody waits for anybody");
                    assert!(answers.iter().all(|answer| *answer != Renewal::Lost));
                }
            }
        });
        let commits = (0..4_usize).map(|n| {
            let (checkpoints, mine) = (checkpoints.clone(), turned(n));
            async move {
                let mine: Vec<_> = mine.into_iter().filter(|lease| owner(&lease.grant.key) == n).collect();
                for seq in 1..=5 {
                    let writes: Vec<_> = mine.iter().map(|lease| write(&lease.grant, seq)).collect();
                    let answers = checkpoints.commit(&cx(), &writes).await.expect("nobody waits for anybody");
                    assert!(answers.iter().all(|answer| *answer == Commit::Committed));
                }
            }
        });
        tokio::join!(join_all(renewals), join_all(commits));
        let admin = base.admin().await;
        let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        let deadlocks: i64 = admin.query_one(sql, &[]).await.expect("it answers").get(0);
        assert_eq!(deadlocks, 0);
    });
}

fn owner(key: &LeaseKey) -> usize {
    key.as_str().bytes().map(usize::from).sum::<usize>() % 4
}

#[test]
fn a_connection_whose_call_was_given_up_is_never_used_again() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let mut config = base.config();
        config.connections = 1;
        let client = Client::open(&cx(), config).await.expect("the server is there");
        let pid = async || -> i32 {
            client.read(&cx(), "SELECT pg_backend_pid()", &[]).await.expect("the server answers")[0].get(0)
        };
        let before = pid().await;
        assert_eq!(before, pid().await, "one that is at rest is used again");
        let admin = base.admin().await;
        let begun = async || {
            eventually("the server works on it", async || {
                let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active'";
                admin.query_one(sql, &[&before]).await.expect("it answers").get::<_, i64>(0) == 1
            })
            .await;
        };
        let over = CancellationToken::new();
        let context = cx().cancelled_by(over.clone());
        let give_up = async {
            begun().await;
            over.cancel();
        };
        let (late, ()) = tokio::join!(client.write(&context, "SELECT pg_sleep(600)", &[]), give_up);
        assert_eq!(late.expect_err("it sleeps").kind(), ErrorKind::Unknown);
        assert_ne!(before, pid().await);
    });
}

#[test]
fn the_server_gives_up_before_its_client_does() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let mut config = base.config();
        config.timeout = Duration::from_secs(10);
        let client = Client::open(&cx(), config).await.expect("the server is there");
        for setting in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
            let sql = format!("SELECT setting::int8 FROM pg_settings WHERE name = '{setting}'");
            let limit = async |cx: Cx| -> i64 {
                let work = client.begin(&cx).await.expect("the server answers");
                let rows = work.query(&cx, &sql, &[]).await.expect("the server answers");
                work.commit(&cx).await.expect("the server answers");
                rows[0].get(0)
            };
            let (usual, short) = (limit(cx()).await, limit(cx().within(Duration::from_secs(5))).await);
            assert!((1..=9_000).contains(&usual) && (1..=4_500).contains(&short), "{setting}: {usual}, {short}");
            // Nothing of it outlives the transaction.
            let rows = client.get(&cx()).await.expect("it is there").query(&sql, &[]).await.expect("it answers");
            assert_eq!(rows[0].get::<_, i64>(0), 0, "{setting}");
        }
        let late = client.write(&cx().within(Duration::from_secs(1)), "SELECT pg_sleep(600)", &[]).await;
        let error = late.expect_err("it sleeps");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
    });
}

#[test]
fn a_commit_is_durable_whatever_the_database_is_set_to() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let admin = base.admin().await;
        let sql =
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$";
        admin.batch_execute(sql).await.expect("the superuser may");
        let client = base.client().await;
        let setting = async |write: bool| -> String {
            let sql = "SELECT current_setting('synchronous_commit')";
            let rows = if write { client.write(&cx(), sql, &[]).await } else { client.read(&cx(), sql, &[]).await };
            rows.expect("the server answers")[0].get(0)
        };
        assert_eq!(setting(false).await, "off");
        assert_eq!(setting(true).await, "on");
        let work = client.begin(&cx()).await.expect("the server answers");
        let rows = work.query(&cx(), "SELECT current_setting('synchronous_commit')", &[]).await.expect("it answers");
        assert_eq!(rows[0].get::<_, String>(0), "on");
        // Nothing of it outlives the transaction, as a pooler needs it.
        work.commit(&cx()).await.expect("it answers");
        assert_eq!(setting(false).await, "off");
    });
}

#[test]
fn many_who_come_first_at_once_make_the_tables_once() {
    for version in Version::ALL {
        let base = Base::schema(version);
        block_on(async {
            let clients = join_all((0..8).map(|_| base.client())).await;
            let opened = clients.iter().map(|client| async {
                Leases::open(&cx(), client.clone()).await?;
                RecordStore::open(&cx(), client.clone()).await?;
                Checkpoints::open(&cx(), client.clone()).await
            });
            let opened = try_join_all(opened.collect::<Vec<_>>()).await.expect("all of them open");
            let first = opened[0].store_identity();
            assert!(opened.iter().all(|one| one.store_identity() == first));
        });
    }
}

#[test]
fn tables_of_a_newer_version_are_refused() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let client = base.client().await;
        Leases::open(&cx(), client.clone()).await.expect("the tables can be made");
        let sql = format!("UPDATE {}.meta SET value = '99' WHERE name = 'schema/lease'", base.schema_name());
        client.write(&cx(), &sql, &[]).await.expect("it is there");
        assert_error(Leases::open(&cx(), client).await, ErrorKind::Config, "have version 99");
    });
}

#[test]
fn a_lost_connection_ends_the_wait_for_hints_and_the_next_one_works() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let leases = Leases::open(&cx(), base.client().await).await.expect("the tables can be made");
        let mut wakeups = leases.wakeups(&cx()).await.expect("it can listen");
        let admin = base.admin().await;
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN \"{}_leases\"'",
            base.schema_name()
        );
        assert_eq!(admin.query(&sql, &[]).await.expect("the superuser may").len(), 1);
        assert_eq!(wakeups.next(&cx()).await.expect_err("nobody listens").kind(), ErrorKind::Unavailable);
        let mut wakeups = leases.wakeups(&cx()).await.expect("it can listen again");
        let lease = granted(&leases, "a").await;
        assert_eq!(leases.release(&cx(), &lease.grant).await.expect("it answers"), Released::Released);
        wakeups.next(&cx()).await.expect("it is told");
    });
}

#[test]
fn a_restarted_server_is_found_again() {
    let server = Server::start(Version::V18);
    block_on(async {
        let client =
            Client::open(&cx(), Config::new(&server.url("postgres")).expect("a URL")).await.expect("it is there");
        let leases = Leases::open(&cx(), client.clone()).await.expect("the tables can be made");
        let lease = granted(&leases, "a").await;
        server.kill();
        // The processes of a killed server may answer until they have noticed.
        let gone = loop {
            if let Err(gone) = leases.renew(&cx(), std::slice::from_ref(&lease)).await {
                break gone;
            }
        };
        assert!(matches!(gone.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{gone}");
        server.restart();
        eventually("it is renewed again", async || {
            let answer = leases.renew(&cx(), std::slice::from_ref(&lease)).await;
            answer.is_ok_and(|answers| answers == [Renewal::Held])
        })
        .await;
    });
}

#[test]
fn a_pool_of_the_application_serves_too() {
    use watchkeeper_postgres::deadpool_postgres::{Manager, Pool};
    let base = Base::schema(Version::V15);
    block_on(async {
        let manager = Manager::new(base.config().postgres().clone(), tokio_postgres::NoTls);
        let pool = Pool::builder(manager).max_size(2).build().expect("it can be made");
        let client = Client::of_pool(pool, base.schema_name());
        let leases = Leases::open(&cx(), client.clone()).await.expect("the tables can be made");
        assert!(!leases.profile().wakes, "nobody can listen on a pool");
        let lease = granted(&leases, "a").await;
        let other: Arc<dyn LeaseStore> = leases.separate(&cx()).await.expect("it can");
        assert_eq!(other.renew(&cx(), &[lease]).await.expect("it answers"), [Renewal::Held]);
        let rows = client.read(&cx(), "SELECT $1::text", &[(&"x", Type::TEXT)]).await.expect("it answers");
        assert_eq!(rows[0].get::<_, String>(0), "x");
    });
}
