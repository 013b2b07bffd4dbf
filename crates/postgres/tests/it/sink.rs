//! Changes and checkpoint in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, CheckpointStore, CheckpointWrite, Claim, Commit, Entropy, Epoch, ErrorKind, Facts,
    Grant, LeaseKey, OpenedSink, Operation, Position, Reason, Result, RowParts, Sink, SinkContext, SourceTime,
    Transacted, TransactionalWriter, Version as ChangeVersion,
};
use watchkeeper_postgres::{
    Apply, Checkpoints, Client, Each, Events, Failure, Handle, Mirror, Open, Transactional, Versioned, refuse,
};
use watchkeeper_testkit::servers::postgres::Version;

use crate::support::{Base, assert_told, block_on, cx};

/// A change of a key (none for a barrier) with this JSON body.
type Row<'a> = (Operation, Option<&'a str>, &'a str);

fn batch(rows: &[Row<'_>]) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("test".into(), Arc::new(JsonPayload));
    let namespace = builder.namespace("shop.orders");
    for (at, (operation, key, body)) in (1_u64..).zip(rows) {
        builder.push(RowParts {
            operation: *operation,
            namespace,
            half: 0,
            committable: true,
            key: key.map(str::as_bytes),
            position: &at.to_be_bytes(),
            body: body.as_bytes(),
            time: SourceTime(1_700_000_000_000 + at),
            version: ChangeVersion { time: at, ordinal: 0 },
        });
    }
    Arc::new(builder.finish(Position::new(vec![1], None)))
}

pub(crate) fn write(grant: &Grant, seq: u64) -> CheckpointWrite {
    CheckpointWrite {
        grant: grant.clone(),
        seq,
        position: None,
        pedigree: None,
        reason: Reason::Progress,
        halted: None,
        facts: Facts::default(),
        ledger: Vec::new(),
        resolve: Vec::new(),
    }
}

pub(crate) fn grant(epoch: u64) -> Grant {
    Grant { key: LeaseKey::new("orders"), tenure: Entropy::from_system().tenure(), epoch: Epoch(epoch) }
}

pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) sink: Transactional,
    pub(crate) grant: Grant,
    writer: Box<dyn TransactionalWriter>,
}

impl Stage {
    pub(crate) async fn new(client: Client, apply: impl Apply) -> Self {
        Self::newer(client, apply, 1).await
    }

    pub(crate) async fn newer(client: Client, apply: impl Apply, epoch: u64) -> Self {
        let sink = Transactional::open(&cx(), client.clone(), apply).await.expect("the tables can be made");
        let grant = grant(epoch);
        sink.checkpoints().claim(&cx(), &grant).await.expect("it is free");
        let writer = opened(&sink, &grant).await;
        Self { client, sink, grant, writer }
    }

    pub(crate) async fn transact(&mut self, seq: u64, rows: &[Row<'_>]) -> Result<Transacted> {
        let places: Vec<u32> = (0..).take(rows.len()).collect();
        self.writer.write_and_commit(&cx(), &batch(rows), &places, &write(&self.grant, seq)).await
    }

    pub(crate) async fn committed(&mut self, seq: u64, rows: &[Row<'_>]) {
        let answer = self.transact(seq, rows).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
    }

    /// Rows of a query, as texts.
    async fn shown(&self, sql: &str) -> Vec<String> {
        shown(&self.client, sql).await
    }
}

async fn shown(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.read(&cx(), sql, &[]).await.expect("it can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn opened(sink: &Transactional, grant: &Grant) -> Box<dyn TransactionalWriter> {
    let context = SinkContext {
        grant: grant.clone(),
        stream: "orders".to_owned(),
        sink: "copy".to_owned(),
        partition: 0,
        lanes: 1,
        store: sink.checkpoints().store_identity(),
    };
    let OpenedSink::Transactional(writer) = sink.open(&cx(), &context).await.expect("it can be opened") else {
        panic!("the sink opened without transactions");
    };
    writer
}

pub(crate) const INSERT: Operation = Operation::Insert;

#[test]
fn a_mirror_keeps_the_newest_document_of_every_key() {
    let base = Base::schema(Version::V18);
    let table = base.table("copy");
    block_on(async {
        let mut stage = Stage::new(base.client().await, Mirror::into(&table).expect("a name")).await;
        let first: [Row<'_>; 4] = [
            (INSERT, Some("a"), r#"{"n":1,"tags":["x",{"y":"\u0000"}]}"#),
            (INSERT, Some("b"), r#"{"n":1}"#),
            (Operation::Update, Some("a"), r#"{"n":2,"tags":["x",{"y":null}]}"#),
            (Operation::Delete, Some("b"), r#"{"n":1}"#),
        ];
        stage.committed(1, &first).await;
        let sql = format!("SELECT convert_from(key, 'UTF8') || document FROM {table} ORDER BY key");
        assert_eq!(stage.shown(&sql).await, [r#"a{"n":2,"tags":["x",{"y":null}]}"#]);
        stage.committed(2, &[(INSERT, Some("b"), r#"{"n":3}"#), (Operation::Delete, Some("a"), "")]).await;
        assert_eq!(stage.shown(&sql).await, [r#"b{"n":3}"#]);
        stage
            .committed(
                3,
                &[(INSERT, Some("c"), r#"{}"#), (Operation::Truncate, None, ""), (INSERT, Some("d"), r#"{}"#)],
            )
            .await;
        assert_eq!(stage.shown(&sql).await, ["d{}"]);
    });
}

#[test]
fn a_change_that_the_table_refuses_is_found_among_many_and_nothing_is_written() {
    let base = Base::schema(Version::V15);
    let table = base.table("events");
    block_on(async {
        let mut stage = Stage::new(base.client().await, Events::into(&table).expect("a name")).await;
        let admin = base.admin().await;
        let sql = format!("ALTER TABLE {table} ADD CHECK ((event ->> 'n')::int < 100)");
        admin.batch_execute(&sql).await.expect("the table is there");
        let rows: [Row<'_>; 4] = [
            (INSERT, Some("a"), r#"{"n":1}"#),
            (INSERT, Some("b"), r#"{"n":2}"#),
            (INSERT, Some("c"), r#"{"n":1000}"#),
            (INSERT, Some("d"), r#"{"n":4}"#),
        ];
        let answer = stage.transact(1, &rows).await.expect("the server answers");
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [2]);
        assert!(faults[0].error.to_string().contains("23514"), "{}", faults[0].error);
        let count = format!("SELECT count(*)::text FROM {table}");
        assert_eq!(stage.shown(&count).await, ["0"]);
        stage.committed(1, &[rows[0], rows[1], rows[3]]).await;
        assert_eq!(stage.shown(&count).await, ["3"]);
    });
}

/// Does what a test says with the open transaction.
struct Scripted(&'static str, String);

#[async_trait]
impl Handle for Scripted {
    async fn handle(&self, open: &Open<'_>, _change: &Change) -> Result<(), Failure> {
        let table = &self.1;
        match self.0 {
            "swallow" => {
                let _ = open.batch_execute("SELECT 1 / 0").await;
            }
            "rollback" => open.batch_execute("ROLLBACK").await?,
            "refuse" => return Err(refuse("not this one")),
            "fail" => drop(open.query_typed("SELECT 1 FROM nowhere", &[]).await?),
            _ => drop(open.execute_typed(&format!("INSERT INTO {table} VALUES ('x')"), &[]).await?),
        }
        Ok(())
    }
}

async fn scripted(base: &Base, what: &'static str) -> (Stage, String) {
    let table = base.table(what);
    base.admin().await.batch_execute(&format!("CREATE TABLE {table} (x text)")).await.expect("it is new");
    (Stage::new(base.client().await, Each(Scripted(what, table.clone()))).await, table)
}

#[test]
fn a_handler_writes_in_the_transaction_of_the_checkpoint() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let (mut stage, table) = scripted(&base, "insert").await;
        stage.committed(1, &[(INSERT, Some("a"), "{}"), (INSERT, Some("b"), "{}")]).await;
        assert_eq!(stage.shown(&format!("SELECT count(*)::text FROM {table}")).await, ["2"]);
        // The same once more, as after a lost answer.
        let again = stage.transact(1, &[(INSERT, Some("a"), "{}")]).await.expect("the server answers");
        assert!(matches!(again, Transacted::AlreadyDone), "{again:?}");
        assert_eq!(stage.shown(&format!("SELECT count(*)::text FROM {table}")).await, ["2"]);
    });
}

#[test]
fn a_handler_that_spoils_the_transaction_commits_nothing() {
    let base = Base::schema(Version::V18);
    block_on(async {
        for what in ["swallow", "rollback", "fail"] {
            let (mut stage, _) = scripted(&base, what).await;
            let grant = Grant { key: LeaseKey::new(what), ..stage.grant.clone() };
            stage.sink.checkpoints().claim(&cx(), &grant).await.expect("it is free");
            stage.grant = grant.clone();
            let answer = stage.transact(1, &[(INSERT, Some("a"), "{}")]).await;
            assert!(answer.is_err(), "{what}: {answer:?}");
            // Nothing was committed: the next of the tenure is still the first.
            let commits =
                stage.sink.checkpoints().commit(&cx(), &[write(&grant, 1)]).await.expect("the server answers");
            assert_eq!(commits, [Commit::Committed], "{what}");
        }
        let (mut stage, _) = scripted(&base, "refuse").await;
        let grant = Grant { key: LeaseKey::new("refuse"), ..stage.grant.clone() };
        stage.sink.checkpoints().claim(&cx(), &grant).await.expect("it is free");
        stage.grant = grant;
        let answer = stage.transact(1, &[(INSERT, Some("a"), "{}")]).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Rejected(_)), "{answer:?}");
    });
}

/// Locks a row of its target and hangs, as a process that was stopped does.
struct Hanging {
    table: String,
    reached: Arc<Notify>,
    hang: AtomicBool,
}

#[async_trait]
impl Handle for Hanging {
    async fn handle(&self, open: &Open<'_>, _change: &Change) -> Result<(), Failure> {
        open.execute_typed(&format!("UPDATE {} SET n = n + 1", self.table), &[]).await?;
        self.reached.notify_one();
        if self.hang.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

async fn hanging(base: &Base) -> (String, Arc<Hanging>) {
    let table = base.table("totals");
    let sql = format!("CREATE TABLE {table} (n bigint); INSERT INTO {table} VALUES (0)");
    base.admin().await.batch_execute(&sql).await.expect("it is new");
    let handler = Hanging { table: table.clone(), reached: Arc::default(), hang: AtomicBool::new(true) };
    (table, Arc::new(handler))
}

/// A successor neither waits for a hung transaction nor sees anything of it, also where that has locked rows of the target.
fn takes_over_in_the_middle_of_a_transaction(base: &Base, place: &str) {
    block_on(async {
        let (table, handler) = hanging(base).await;
        let mut patient = base.config();
        patient.timeout = Duration::from_secs(600);
        let patient = Client::open(&cx(), patient).await.expect("the server is there");
        let mut old = Stage::new(patient, Each(Arc::clone(&handler))).await;
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
        let sink = Transactional::open(&cx(), newer.clone(), Each(Arc::clone(&handler))).await.expect("it is there");
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
        let holder = Stage::new(base.client().await, Each(Arc::clone(&handler))).await;
        // The holder is the second one; somebody with an older grant comes late.
        let (newer, stale) = (grant(7), grant(6));
        holder.sink.checkpoints().claim(&cx(), &newer).await.expect("it is free");
        let rows = batch(&[(INSERT, Some("a"), "{}")]);
        let checkpoints = Checkpoints::open(&cx(), base.client().await).await.expect("it is there");
        handler.hang.store(false, Ordering::Relaxed);
        let (context, first) = (cx(), write(&newer, 1));
        let mut writer = opened(&holder.sink, &newer).await;
        let write = writer.write_and_commit(&context, &rows, &[0], &first);
        let claim = async {
            handler.reached.notified().await;
            checkpoints.claim(&cx(), &stale).await
        };
        let (written, claimed) = tokio::join!(write, claim);
        assert!(matches!(written, Ok(Transacted::Committed)), "{written:?}");
        assert_eq!(claimed.expect("the server answers"), Claim::Behind { newest: Epoch(7) });
        assert_eq!(holder.shown(&format!("SELECT n::text FROM {table}")).await, ["1"]);
    });
}

#[test]
fn who_may_not_end_a_session_is_told_which_it_is() {
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
        let claim = restricted.claim(&cx().within(Duration::from_millis(1500)), &grant(2)).await;
        let error = claim.as_ref().expect_err("the row is locked");
        assert!(error.advice().unwrap_or_default().contains(&format!("pg_terminate_backend({pid})")), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
        assert!(error.to_string().contains("locked by an open transaction"), "{error}");
        transaction.rollback().await.expect("it is still there");
        let claim = restricted.claim(&cx(), &grant(2)).await.expect("it is free again");
        assert_eq!(claim, Claim::Claimed(None));
    });
}

#[test]
fn a_mirror_elsewhere_lets_no_older_version_win() {
    let base = Base::schema(Version::V15);
    let table = base.table("copy");
    block_on(async {
        let client = base.client().await;
        let sink = Versioned::new(client.clone(), Mirror::into(&table).expect("a name"));
        let stage = Stage::new(base.client().await, Each(Scripted("", String::new()))).await;
        let context = SinkContext {
            grant: stage.grant.clone(),
            stream: "orders".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes: 1,
            store: stage.sink.checkpoints().store_identity(),
        };
        let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it opens") else { panic!("plain") };
        let newer =
            batch(&[(INSERT, Some("x"), "{}"), (INSERT, Some("a"), r#"{"n":2}"#), (Operation::Delete, Some("b"), "")]);
        let older = batch(&[(INSERT, Some("a"), r#"{"n":1}"#), (INSERT, Some("b"), r#"{"n":1}"#)]);
        for batch in [&newer, &older] {
            let rows: Vec<u32> = (0..).take(batch.len()).collect();
            let written = writer.write(&cx(), 0, batch, &rows).await.expect("the server answers");
            assert_eq!((written.done, written.rejected.len()), (rows.len(), 0));
        }
        let sql =
            format!("SELECT convert_from(key, 'UTF8') || document FROM {table} WHERE deleted IS NULL ORDER BY key");
        assert_eq!(shown(&client, &sql).await, [r#"a{"n":2}"#, "x{}"]);
    });
}

#[test]
fn a_sink_does_not_write_into_tables_of_watchkeeper() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let events = Events::into(&format!("{}.leases", base.schema_name())).expect("a name");
        let sink = Transactional::open(&cx(), base.client().await, events).await.expect("the tables can be made");
        assert_told(sink.check(&cx()).await, ErrorKind::Config, "Watchkeeper's own tables");
    });
    assert_told(Events::into("a.b.c").map(drop), ErrorKind::Config, "can not be a table");
}
