//! Handlers that are given the open transaction.

use std::sync::Arc;

use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, CheckpointStore, CheckpointWrite, Entropy, Epoch, Error, ErrorKind, Facts, FaultKind,
    Grant, LeaseKey, Limits, OpenedSink, Operation, Position, Reason, RowParts, Sink, SinkContext, Source, SourceTime,
    StartAt, Transacted, TransactionalWriter, ValueRef, Version,
};
use watchkeeper_sqlite::rusqlite::Transaction;
use watchkeeper_sqlite::{Apply, ChangeLog, Client, Events, Failure, Mirror, Transactional, tools};

use crate::support::{Folder, assert_error, block_on, column, cx, execute};

const ORDERS: &str = "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)";

/// A materialised view: what each customer has spent, kept in step with the orders.
fn spent(transaction: &Transaction<'_>, change: &Change) -> Result<(), Failure> {
    for (side, sign) in [("before", -1), ("after", 1)] {
        let Some(ValueRef::Str(customer)) = change.get(&[side, "customer"])? else { continue };
        let Some(ValueRef::Int64(cents)) = change.get(&[side, "cents"])? else {
            return Err(Failure::refuse("an order without an amount"));
        };
        let sql =
            "INSERT INTO spent VALUES (?1, ?2) ON CONFLICT (customer) DO UPDATE SET cents = cents + excluded.cents";
        transaction.prepare_cached(sql)?.execute((customer, sign * cents))?;
    }
    Ok(())
}

/// A source with these statements done, and all of it as one batch.
async fn batch_of(folder: &Folder, statements: &str) -> Arc<Batch> {
    let (cx, client) = (cx(), folder.client("shop.db").await);
    execute(&client, ORDERS).await.unwrap();
    tools::install(&cx, &client, &["orders"]).await.unwrap();
    execute(&client, statements).await.unwrap();
    let log = ChangeLog::open(&cx, client, "view").await.unwrap();
    let mut stream = log.open(&cx, StartAt::Oldest).await.unwrap();
    let limits = Limits { rows: 100, bytes: 1 << 20, wait: std::time::Duration::ZERO };
    Arc::new(stream.next_batch(&cx, limits).await.unwrap())
}

struct Opened {
    grant: Grant,
    sink: Transactional,
    writer: Box<dyn TransactionalWriter>,
}

async fn open(client: Client, apply: impl Apply) -> Opened {
    let (cx, entropy) = (cx(), Entropy::from_system());
    let sink = Transactional::open(&cx, client, apply).await.unwrap();
    let grant = Grant { key: LeaseKey::new("view"), tenure: entropy.tenure(), epoch: Epoch(1) };
    sink.checkpoints().claim(&cx, &grant).await.unwrap();
    let store = sink.checkpoints().store_identity();
    let (stream, name) = ("view".to_owned(), "view".to_owned());
    let context = SinkContext { grant: grant.clone(), stream, sink: name, partition: 0, lanes: 1, store };
    match sink.open(&cx, &context).await.unwrap() {
        OpenedSink::Transactional(writer) => Opened { grant, sink, writer },
        OpenedSink::Plain(_) => panic!("the sink opened without transactions"),
    }
}

impl Opened {
    async fn write(&mut self, batch: &Arc<Batch>, rows: &[u32], seq: u64) -> watchkeeper_core::Result<Transacted> {
        let write = CheckpointWrite {
            grant: self.grant.clone(),
            seq,
            position: Some(batch.end.clone()),
            pedigree: None,
            reason: Reason::Progress,
            halted: None,
            facts: Facts::default(),
            ledger: Vec::new(),
            resolve: Vec::new(),
        };
        self.writer.write_and_commit(&cx(), batch, rows, &write).await
    }

    async fn committed_seq(&self) -> Option<u64> {
        let checkpoint = self.sink.checkpoints().load(&cx(), &self.grant.key).await.unwrap();
        checkpoint.map(|checkpoint| checkpoint.seq)
    }
}

const TOTALS: &str = "SELECT customer || ' ' || cents FROM spent ORDER BY customer";

#[test]
fn a_materialised_view_is_kept_in_the_transaction_of_its_checkpoint() {
    let folder = Folder::new();
    block_on(async {
        let statements = "INSERT INTO orders VALUES (1, 'ada', 500), (2, 'bob', 300), (3, 'ada', 70);
            UPDATE orders SET cents = 350 WHERE id = 2;
            UPDATE orders SET id = 9, customer = 'bob' WHERE id = 3;
            DELETE FROM orders WHERE id = 1;";
        let batch = batch_of(&folder, statements).await;
        let target = folder.client("view.db").await;
        execute(&target, "CREATE TABLE spent(customer TEXT PRIMARY KEY, cents INTEGER NOT NULL)").await.unwrap();
        let mut opened = open(target.clone(), spent).await;
        let rows: Vec<u32> = (0..7).collect();
        assert_eq!(batch.len(), rows.len());
        let answer = opened.write(&batch, &rows, 1).await.unwrap();
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        assert_eq!(column(&target, TOTALS).await, ["ada 0", "bob 420"]);
        let again = opened.write(&batch, &rows, 1).await.unwrap();
        assert!(matches!(again, Transacted::AlreadyDone), "{again:?}");
        assert_eq!(column(&target, TOTALS).await, ["ada 0", "bob 420"]);
    });
}

#[test]
fn a_rejected_row_is_named_and_nothing_is_written() {
    let folder = Folder::new();
    block_on(async {
        let statements = "INSERT INTO orders VALUES (1, 'ada', 500), (2, 'bob', -1), (3, 'cy', 70)";
        let batch = batch_of(&folder, statements).await;
        let target = folder.client("view.db").await;
        let table = "CREATE TABLE spent(customer TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0))";
        execute(&target, table).await.unwrap();
        let mut opened = open(target.clone(), spent).await;
        let answer = opened.write(&batch, &[0, 1, 2], 1).await.unwrap();
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [1]);
        assert_eq!(column(&target, TOTALS).await, Vec::<String>::new());
        assert_eq!(opened.committed_seq().await, None);
        let answer = opened.write(&batch, &[0, 2], 1).await.unwrap();
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        assert_eq!(column(&target, TOTALS).await, ["ada 500", "cy 70"]);
    });
}

#[test]
fn what_is_not_the_changes_fault_is_tried_again_and_not_rejected() {
    let folder = Folder::new();
    block_on(async {
        let batch = batch_of(&folder, "INSERT INTO orders VALUES (1, 'ada', 500)").await;
        let target = folder.client("view.db").await;
        let unready = |_: &Transaction<'_>, _: &Change| Err(Failure::Described(Error::unavailable("not now")));
        let mut opened = open(target, unready).await;
        let error = opened.write(&batch, &[0], 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(opened.committed_seq().await, None);
    });
}

#[test]
fn a_fatal_failure_names_its_change_and_nothing_is_written() {
    let folder = Folder::new();
    block_on(async {
        let batch = batch_of(&folder, "INSERT INTO orders VALUES (1, 'ada', 500), (2, 'bob', 300)").await;
        let target = folder.client("view.db").await;
        execute(&target, "CREATE TABLE spent(customer TEXT PRIMARY KEY, cents INTEGER NOT NULL)").await.unwrap();
        let second_is_fatal = |transaction: &Transaction<'_>, change: &Change| match change.version().time {
            2 => Err(Failure::fatal("out of luck")),
            _ => spent(transaction, change),
        };
        let mut opened = open(target.clone(), second_is_fatal).await;
        let answer = opened.write(&batch, &[0, 1], 1).await.unwrap();
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        assert_eq!(faults.iter().map(|fault| (fault.row, fault.kind)).collect::<Vec<_>>(), [(1, FaultKind::Fatal)]);
        assert_eq!(column(&target, TOTALS).await, Vec::<String>::new());
        assert_eq!(opened.committed_seq().await, None);
    });
}

#[test]
fn a_mirror_has_the_newest_of_every_key() {
    let folder = Folder::new();
    block_on(async {
        let statements = "INSERT INTO orders VALUES (1, 'ada', 500), (2, 'bob', 300), (3, 'cy', 70);
            UPDATE orders SET cents = 350 WHERE id = 2;
            UPDATE orders SET id = 9 WHERE id = 3;
            DELETE FROM orders WHERE id = 1;";
        let batch = batch_of(&folder, statements).await;
        assert_eq!(batch.rows()[4].operation, Operation::Delete);
        let target = folder.client("mirror.db").await;
        let mut opened = open(target.clone(), Mirror::into("mirrored").unwrap()).await;
        let rows: Vec<u32> = (0..).take(batch.len()).collect();
        opened.write(&batch, &rows, 1).await.unwrap();
        let sql = "SELECT CAST(key AS TEXT) || ' ' || json_extract(CAST(body AS TEXT), '$.after.cents')
            FROM mirrored ORDER BY key";
        assert_eq!(column(&target, sql).await, ["[2] 350", "[9] 70"]);
        for own in ["watchkeeper_meta", "Watchkeeper_Checkpoints", "WATCHKEEPER_x", "SQLITE_sequence"] {
            assert_error(Mirror::into(own), ErrorKind::Config, "cannot be a table of a sink");
            assert_error(Events::into(own), ErrorKind::Config, "cannot be a table of a sink");
        }
    });
}

#[test]
fn a_mirror_does_not_pass_over_a_rename() {
    block_on(async {
        let folder = Folder::new();
        let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
        let namespace = builder.namespace("shop.orders");
        builder.push(RowParts {
            operation: Operation::Rename,
            namespace,
            half: 0,
            committable: true,
            key: None,
            position: b"1",
            body: b"{}",
            time: SourceTime(1),
            version: Version::default(),
        });
        let batch = Arc::new(builder.finish(Position::new("1", None)));
        let mut opened = open(folder.client("state.db").await, Mirror::into("mirrored").unwrap()).await;
        assert!(opened.sink.profile().mirrors);
        let Transacted::Rejected(faults) = opened.write(&batch, &[0], 1).await.unwrap() else { panic!("it was taken") };
        assert!(faults[0].error.to_string().contains("shop.orders was renamed"), "{faults:?}");
    });
}

#[test]
fn a_checkpoint_of_another_file_is_refused() {
    let folder = Folder::new();
    block_on(async {
        let opened = open(folder.client("one.db").await, spent).await;
        let other = open(folder.client("two.db").await, spent).await;
        let store = other.sink.checkpoints().store_identity();
        let (stream, sink) = ("view".to_owned(), "view".to_owned());
        let context = SinkContext { grant: opened.grant.clone(), stream, sink, partition: 0, lanes: 1, store };
        let answer = opened.sink.open(&cx(), &context).await;
        assert_error(answer, ErrorKind::Config, "not kept in this sink's database");
    });
}
