//! Changes and checkpoint in one transaction.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, CheckpointStore, CheckpointWrite, Commit, Entropy, Epoch, ErrorKind, Facts, Grant,
    LeaseKey, OpenedSink, Operation, Payload, Position, Reason, Result, RowParts, Sink, SinkContext, SourceTime,
    Transacted, TransactionalWriter, Version as ChangeVersion,
};
use watchkeeper_postgres::{Apply, Client, Config, Events, Failure, Handle, Open, PerChange, Transactional, refuse};
use watchkeeper_testkit::servers::postgres::Version;

use crate::support::{Base, assert_error, block_on, cx};

/// A change of a key (none for a barrier) with this JSON body.
pub(crate) type Row<'a> = (Operation, Option<&'a str>, &'a str);

pub(crate) fn batch(rows: &[Row<'_>]) -> Arc<Batch> {
    batch_of(rows, Arc::new(JsonPayload))
}

pub(crate) fn batch_of(rows: &[Row<'_>], payload: Arc<dyn Payload>) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("test".into(), payload);
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

pub(crate) struct SinkFixture {
    pub(crate) client: Client,
    pub(crate) sink: Transactional,
    pub(crate) grant: Grant,
    pub(crate) writer: Box<dyn TransactionalWriter>,
}

impl SinkFixture {
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
        self.deliver(seq, &batch(rows)).await
    }

    pub(crate) async fn deliver(&mut self, seq: u64, batch: &Arc<Batch>) -> Result<Transacted> {
        let rows: Vec<u32> = (0..).take(batch.len()).collect();
        self.writer.write_and_commit(&cx(), batch, &rows, &write(&self.grant, seq)).await
    }

    pub(crate) async fn committed(&mut self, seq: u64, rows: &[Row<'_>]) {
        let answer = self.transact(seq, rows).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
    }

    /// Rows of a query, as texts.
    pub(crate) async fn shown(&self, sql: &str) -> Vec<String> {
        shown(&self.client, sql).await
    }
}

pub(crate) async fn shown(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.read(&cx(), sql, &[]).await.expect("it can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

pub(crate) fn context(sink: &Transactional, grant: &Grant) -> SinkContext {
    SinkContext {
        grant: grant.clone(),
        stream: "orders".to_owned(),
        sink: "copy".to_owned(),
        partition: 0,
        lanes: 1,
        store: sink.checkpoints().store_identity(),
    }
}

pub(crate) async fn opened(sink: &Transactional, grant: &Grant) -> Box<dyn TransactionalWriter> {
    let OpenedSink::Transactional(writer) = sink.open(&cx(), &context(sink, grant)).await.expect("it can be opened")
    else {
        panic!("the sink opened without transactions");
    };
    writer
}

pub(crate) const INSERT: Operation = Operation::Insert;

#[test]
fn a_change_that_the_table_refuses_is_found_among_many_and_nothing_is_written() {
    let base = Base::schema(Version::V15);
    let table = base.table("events");
    block_on(async {
        let mut fixture = SinkFixture::new(base.client().await, Events::into(&table).expect("a name")).await;
        let admin = base.admin().await;
        let sql = format!("ALTER TABLE {table} ADD CHECK ((event ->> 'n')::int < 100)");
        admin.batch_execute(&sql).await.expect("the table is there");
        let rows: [Row<'_>; 4] = [
            (INSERT, Some("a"), r#"{"n":1}"#),
            (INSERT, Some("b"), r#"{"n":2}"#),
            (INSERT, Some("c"), r#"{"n":1000}"#),
            (INSERT, Some("d"), r#"{"n":4}"#),
        ];
        let answer = fixture.transact(1, &rows).await.expect("the server answers");
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [2]);
        assert!(faults[0].error.to_string().contains("23514"), "{}", faults[0].error);
        let count = format!("SELECT count(*)::text FROM {table}");
        assert_eq!(fixture.shown(&count).await, ["0"]);
        fixture.committed(1, &[rows[0], rows[1], rows[3]]).await;
        assert_eq!(fixture.shown(&count).await, ["3"]);
    });
}

/// Does what a test says with the open transaction.
pub(crate) struct Scripted(pub(crate) &'static str, pub(crate) String);

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

async fn scripted(base: &Base, what: &'static str) -> (SinkFixture, String) {
    let table = base.table(what);
    base.admin().await.batch_execute(&format!("CREATE TABLE {table} (x text)")).await.expect("it is new");
    (SinkFixture::new(base.client().await, PerChange(Scripted(what, table.clone()))).await, table)
}

#[test]
fn a_handler_writes_in_the_transaction_of_the_checkpoint() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let (mut fixture, table) = scripted(&base, "insert").await;
        fixture.committed(1, &[(INSERT, Some("a"), "{}"), (INSERT, Some("b"), "{}")]).await;
        assert_eq!(fixture.shown(&format!("SELECT count(*)::text FROM {table}")).await, ["2"]);
        // The same once more, as after a lost answer.
        let again = fixture.transact(1, &[(INSERT, Some("a"), "{}")]).await.expect("the server answers");
        assert!(matches!(again, Transacted::AlreadyDone), "{again:?}");
        assert_eq!(fixture.shown(&format!("SELECT count(*)::text FROM {table}")).await, ["2"]);
    });
}

#[test]
fn a_handler_that_spoils_the_transaction_commits_nothing() {
    let base = Base::schema(Version::V18);
    block_on(async {
        for what in ["swallow", "rollback", "fail"] {
            let (mut fixture, _) = scripted(&base, what).await;
            let grant = Grant { key: LeaseKey::new(what), ..fixture.grant.clone() };
            fixture.sink.checkpoints().claim(&cx(), &grant).await.expect("it is free");
            fixture.grant = grant.clone();
            let answer = fixture.transact(1, &[(INSERT, Some("a"), "{}")]).await;
            assert!(answer.is_err(), "{what}: {answer:?}");
            // Nothing was committed: the next of the tenure is still the first.
            let commits =
                fixture.sink.checkpoints().commit(&cx(), &[write(&grant, 1)]).await.expect("the server answers");
            assert_eq!(commits, [Commit::Committed], "{what}");
        }
        let (mut fixture, _) = scripted(&base, "refuse").await;
        let grant = Grant { key: LeaseKey::new("refuse"), ..fixture.grant.clone() };
        fixture.sink.checkpoints().claim(&cx(), &grant).await.expect("it is free");
        fixture.grant = grant;
        let answer = fixture.transact(1, &[(INSERT, Some("a"), "{}")]).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Rejected(_)), "{answer:?}");
    });
}

#[test]
fn a_sink_does_not_write_into_tables_of_watchkeeper() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let events = Events::into(&format!("{}.leases", base.schema_name())).expect("a name");
        let sink = Transactional::open(&cx(), base.client().await, events).await.expect("the tables can be made");
        assert_error(sink.check(&cx()).await, ErrorKind::Config, "Watchkeeper's own tables");
        // The tables of another group, by their schema and by the search path.
        let other = Base::schema(Version::V15);
        let by_schema = format!("{}.checkpoints", base.schema_name());
        let by_path = format!("{}?options=-csearch_path%3D{}", other.url(), base.schema_name());
        let config = Config::new(&by_path).and_then(|config| config.in_schema(other.schema_name())).expect("a URL");
        let led = Client::open(&cx(), config).await.expect("the server is there");
        for (client, table) in [(other.client().await, by_schema.as_str()), (led.clone(), "checkpoints")] {
            let events = Events::into(table).expect("a name");
            let sink = Transactional::open(&cx(), client, events).await.expect("the tables can be made");
            assert_error(sink.check(&cx()).await, ErrorKind::Config, "is one of Watchkeeper's own tables");
        }
        let events = Events::into("copies").expect("a name");
        let sink = Transactional::open(&cx(), led, events).await.expect("the tables can be made");
        assert!(sink.check(&cx()).await.is_ok(), "other names are free");
    });
    assert_error(Events::into("a.b.c").map(drop), ErrorKind::Config, "does not name a table");
}
