//! Taking over while the transaction of another one is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;
use watchkeeper_core::{Change, CheckpointStore, Claim, Epoch, ErrorKind, Result, Transacted};
use watchkeeper_postgres::{Checkpoints, Client, Failure, Handle, Open, PerChange, Transactional};
use watchkeeper_testkit::servers::postgres::Version;

use crate::sink::{INSERT, SinkFixture, batch, grant, opened, shown, write};
use crate::support::{Base, block_on, cx};

/// Locks a row of its target and hangs, as a process that was stopped does.
struct Hanging {
    table: String,
    reached: Arc<Notify>,
    hang: AtomicBool,
    go_on: Notify,
}

#[async_trait]
impl Handle for Hanging {
    async fn handle(&self, open: &Open<'_>, _change: &Change) -> Result<(), Failure> {
        open.execute_typed(&format!("UPDATE {} SET n = n + 1", self.table), &[]).await?;
        self.reached.notify_one();
        if self.hang.load(Ordering::Relaxed) {
            self.go_on.notified().await;
        }
        Ok(())
    }
}

async fn hanging(base: &Base) -> (String, Arc<Hanging>) {
    let table = base.table("totals");
    let sql = format!("CREATE TABLE {table} (n bigint); INSERT INTO {table} VALUES (0)");
    base.admin().await.batch_execute(&sql).await.expect("it is new");
    let handler =
        Hanging { table: table.clone(), reached: Arc::default(), hang: AtomicBool::new(true), go_on: Notify::new() };
    (table, Arc::new(handler))
}

/// A successor neither waits for a hung transaction nor sees anything of it, also where that has locked rows of the target.
fn takes_over_in_the_middle_of_a_transaction(base: &Base, place: &str) {
    block_on(async {
        let (table, handler) = hanging(base).await;
        let mut patient = base.config();
        patient.timeout = Duration::from_secs(600);
        let patient = Client::open(&cx(), patient).await.expect("the server is there");
        let mut old = SinkFixture::new(patient, PerChange(Arc::clone(&handler))).await;
        let reached = Arc::clone(&handler.reached);
        let rows = batch(&[(INSERT, Some("a"), "{}")]);
        let first = write(&old.grant, 1);
        let context = cx();
        let stuck = old.writer.write_and_commit(&context, &rows, &[0], &first);
        tokio::pin!(stuck);
        tokio::select! {
            biased;
            answer = &mut stuck => panic!("it does not hang: {answer:?}"),
            () = reached.notified() => {}
        }
        let newer = Client::open(&cx(), base.config()).await.expect("the server is there");
        handler.hang.store(false, Ordering::Relaxed);
        let sink =
            Transactional::open(&cx(), newer.clone(), PerChange(Arc::clone(&handler))).await.expect("it is there");
        let successor = grant(2);
        let begun = Instant::now();
        let claim = sink.checkpoints().claim(&cx(), &successor).await.expect("the server answers");
        assert_eq!(claim, Claim::Claimed(None), "nothing of the hung one was committed");
        let mut writer = opened(&sink, &successor).await;
        let answer = writer.write_and_commit(&cx(), &rows, &[0], &write(&successor, 1)).await;
        assert!(matches!(answer, Ok(Transacted::Committed)), "{answer:?}");
        let taken = begun.elapsed();
        println!("{place}: taken over from a hung transaction in {taken:?}");
        // Every limit of the hung one is nine minutes.
        assert!(taken < Duration::from_secs(60), "{taken:?}");
        assert_eq!(shown(&newer, &format!("SELECT n::text FROM {table}")).await, ["1"]);
    });
}

#[test]
fn takeover_does_not_wait_for_a_hung_transaction_on_15() {
    takes_over_in_the_middle_of_a_transaction(&Base::schema(Version::V15), "PostgreSQL 15");
}

#[test]
fn takeover_does_not_wait_for_a_hung_transaction_on_18() {
    takes_over_in_the_middle_of_a_transaction(&Base::schema(Version::V18), "PostgreSQL 18");
}

#[test]
fn takeover_does_not_wait_for_a_hung_transaction_through_a_pooler() {
    takes_over_in_the_middle_of_a_transaction(&Base::pooled(), "PgBouncer");
}

#[test]
fn a_stale_claimer_does_not_end_the_transaction_of_a_newer_holder() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let (table, handler) = hanging(&base).await;
        let holder = SinkFixture::new(base.client().await, PerChange(Arc::clone(&handler))).await;
        // The holder is the second one; somebody with an older grant comes late.
        let (newer, stale) = (grant(7), grant(6));
        holder.sink.checkpoints().claim(&cx(), &newer).await.expect("it is free");
        let rows = batch(&[(INSERT, Some("a"), "{}")]);
        let checkpoints = Checkpoints::open(&cx(), base.client().await).await.expect("it is there");
        let (context, first) = (cx(), write(&newer, 1));
        let mut writer = opened(&holder.sink, &newer).await;
        let write = writer.write_and_commit(&context, &rows, &[0], &first);
        let claim = async {
            handler.reached.notified().await;
            let claimed = checkpoints.claim(&cx(), &stale).await;
            handler.go_on.notify_one();
            claimed
        };
        let (written, claimed) = tokio::join!(write, claim);
        assert!(matches!(written, Ok(Transacted::Committed)), "{written:?}");
        assert_eq!(claimed.expect("the server answers"), Claim::Behind { newest: Epoch(7) });
        assert_eq!(holder.shown(&format!("SELECT n::text FROM {table}")).await, ["1"]);
    });
}

#[test]
fn who_may_not_end_a_session_is_reported_which_it_is() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let client = base.client().await;
        let checkpoints = Checkpoints::open(&cx(), client).await.expect("the tables can be made");
        checkpoints.claim(&cx(), &grant(1)).await.expect("it is free");
        let (mut admin, user) = (base.admin().await, base.user().await);
        let schema = base.schema_name();
        let grants = format!(
            "GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {user}"
        );
        admin.batch_execute(&grants).await.expect("the superuser may");
        let pid: i32 = admin.query_one("SELECT pg_backend_pid()", &[]).await.expect("it answers").get(0);
        let transaction = admin.transaction().await.expect("it answers");
        let lock = format!("SELECT 1 FROM {schema}.checkpoints WHERE key = 'orders' FOR UPDATE");
        transaction.batch_execute(&lock).await.expect("it is free");
        let restricted = Client::open(&cx(), base.config_of(&user)).await.expect("the server is there");
        let restricted = Checkpoints::open(&cx(), restricted).await.expect("the tables are there");
        let claim = restricted.claim(&cx().within(Duration::from_secs(5)), &grant(2)).await;
        let error = claim.as_ref().expect_err("the row is locked");
        assert!(error.advice().unwrap_or_default().contains(&format!("pg_terminate_backend({pid})")), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
        assert!(error.to_string().contains("locked by an open transaction"), "{error}");
        transaction.rollback().await.expect("it is still there");
        let claim = restricted.claim(&cx(), &grant(2)).await.expect("it is free again");
        assert_eq!(claim, Claim::Claimed(None));
    });
}
