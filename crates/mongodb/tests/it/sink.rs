//! Changes and checkpoint in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, CheckpointStore, CheckpointWrite, Claim, Entropy, Epoch, Facts, Grant, LeaseKey,
    LedgerEntry, LedgerKind, OpenedSink, Operation, Position, Reason, Result, RowParts, Sink, SinkContext, SourceTime,
    Transacted, TransactionalWriter, Version,
};
use watchkeeper_mongodb::mongodb::IndexModel;
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::mongodb::error::Error as Native;
use watchkeeper_mongodb::{Apply, Client, Events, Handle, Mirror, Open, PerChange, Transactional, Versioned, refuse};

use crate::support::{Base, block_on, cx, fresh_name, in_order};

/// A change of a key (none for a barrier) with this JSON body.
pub(crate) type Row<'a> = (Operation, Option<&'a str>, &'a str);

pub(crate) fn batch(rows: &[Row<'_>]) -> Arc<Batch> {
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
            version: Version { time: at, ordinal: 0 },
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

pub(crate) struct SinkFixture {
    pub(crate) client: Client,
    sink: Transactional,
    grant: Grant,
    writer: Box<dyn TransactionalWriter>,
    /// The next commit of what is delivered one by one.
    next: u64,
}

impl SinkFixture {
    pub(crate) async fn new(base: &Base, apply: impl Apply) -> Self {
        Self::of(base.client().await, apply).await
    }

    pub(crate) async fn of(client: Client, apply: impl Apply) -> Self {
        let sink = Transactional::open(&cx(), client.clone(), apply).await.expect("the collections can be made");
        // Several may stand side by side in one database.
        let key = LeaseKey::new(fresh_name());
        let grant = Grant { key, tenure: Entropy::from_system().tenure(), epoch: Epoch(1) };
        sink.checkpoints().claim(&cx(), &grant).await.expect("it is free");
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
        Self { client, sink, grant, writer, next: 1 }
    }

    pub(crate) async fn transact(&mut self, seq: u64, rows: &[Row<'_>]) -> Result<Transacted> {
        let places: Vec<u32> = (0..).take(rows.len()).collect();
        self.writer.write_and_commit(&cx(), &batch(rows), &places, &write(&self.grant, seq)).await
    }

    /// Writes changes that a source has told, each in a transaction of its own.
    pub(crate) async fn deliver(&mut self, changes: &[Change]) {
        for change in changes {
            let answer = self.offer(change).await;
            assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        }
    }

    /// Writes changes that a source has told, those of one batch in one transaction.
    pub(crate) async fn deliver_together(&mut self, changes: &[Change]) {
        for changes in changes.chunk_by(|one, next| Arc::ptr_eq(one.batch(), next.batch())) {
            let rows: Vec<u32> = changes.iter().map(Change::row).collect();
            let write = write(&self.grant, self.next);
            let written = self.writer.write_and_commit(&cx(), changes[0].batch(), &rows, &write).await;
            let answer = written.expect("the server answers");
            assert!(matches!(answer, Transacted::Committed), "{answer:?}");
            self.next += 1;
        }
    }

    /// Offers one change that a source has told, as the next commit.
    pub(crate) async fn offer(&mut self, change: &Change) -> Transacted {
        let write = write(&self.grant, self.next);
        let written = self.writer.write_and_commit(&cx(), change.batch(), &[change.row()], &write).await;
        let answer = written.expect("the server answers");
        self.next += u64::from(matches!(answer, Transacted::Committed));
        answer
    }

    pub(crate) async fn committed(&mut self, seq: u64, rows: &[Row<'_>]) {
        let answer = self.transact(seq, rows).await.expect("the server answers");
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
    }
}

pub(crate) const INSERT: Operation = Operation::Insert;

#[test]
fn a_mirror_keeps_the_newest_document_of_every_key() {
    let base = Base::new();
    block_on(async {
        let mut fixture = SinkFixture::new(&base, Mirror::into("copy_of_{collection}").expect("a name")).await;
        let first: [Row<'_>; 4] = [
            (INSERT, Some("a"), r#"{"n":1,"tags":["x",{"y":null}]}"#),
            (INSERT, Some("b"), r#"{"n":1}"#),
            (Operation::Update, Some("a"), r#"{"n":2,"tags":["x",{"y":null}]}"#),
            (Operation::Delete, Some("b"), r#"{"n":1}"#),
        ];
        fixture.committed(1, &first).await;
        let copies = async |fixture: &SinkFixture| -> Vec<Document> {
            let mut copies = in_order(&fixture.client, "copy_of_orders").await;
            copies.iter_mut().for_each(|copy| drop(copy.remove("_id").expect("a document has an id")));
            copies
        };
        assert_eq!(copies(&fixture).await, [doc! { "n": 2_i64, "tags": ["x", { "y": null }] }]);
        let second: [Row<'_>; 2] = [(Operation::Truncate, None, "{}"), (INSERT, Some("c"), r#"{"n":3}"#)];
        fixture.committed(2, &second).await;
        assert_eq!(copies(&fixture).await, [doc! { "n": 3_i64 }]);
    });
}

#[test]
fn a_change_that_the_server_refuses_is_rejected_by_its_row_and_changes_nothing() {
    let base = Base::new();
    block_on(async {
        let mut fixture = SinkFixture::new(&base, Mirror::into("copy").expect("a name")).await;
        let copy = fixture.client.database(&cx()).await.expect("it is open").collection::<Document>("copy");
        let mut unique = IndexModel::default();
        unique.keys = doc! { "mail": 1 };
        let mut options = watchkeeper_mongodb::mongodb::options::IndexOptions::default();
        options.unique = Some(true);
        unique.options = Some(options);
        copy.create_index(unique).await.expect("an index can be made");
        let rows: [Row<'_>; 3] = [
            (INSERT, Some("a"), r#"{"mail":"x"}"#),
            (INSERT, Some("b"), r#"{"mail":"y"}"#),
            (INSERT, Some("c"), r#"{"mail":"x"}"#),
        ];
        let answer = fixture.transact(1, &rows).await.expect("the server answers");
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), [2]);
        assert!(in_order(&fixture.client, "copy").await.is_empty(), "a rejected transaction changes nothing");
        fixture.committed(1, &rows[..2]).await;
        assert_eq!(in_order(&fixture.client, "copy").await.len(), 2);
        let again = fixture.transact(1, &rows).await.expect("the server answers");
        assert!(matches!(again, Transacted::AlreadyDone), "what was done is not rejected afterwards: {again:?}");
    });
}

/// Counts changes in the transaction, and can be made to stop in the middle of it.
struct Count {
    stuck: Arc<AtomicBool>,
}

#[async_trait]
impl Handle for Count {
    async fn handle(&self, open: &mut Open<'_>, change: &Change) -> Result<(), Native> {
        if change.key() == Some(b"poison") {
            return Err(refuse("poison"));
        }
        let totals = open.database().collection::<Document>("totals");
        let count = totals.update_one(doc! { "_id": "orders" }, doc! { "$inc": { "count": 1 } });
        count.upsert(true).session(open.session()).await?;
        if self.stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

async fn total(client: &Client) -> i32 {
    in_order(client, "totals").await.first().map_or(0, |total| total.get_i32("count").expect("a count is a number"))
}

#[test]
fn a_handler_writes_in_the_transaction_of_its_checkpoint() {
    let base = Base::new();
    block_on(async {
        let mut fixture = SinkFixture::new(&base, PerChange(Count { stuck: Arc::default() })).await;
        fixture.committed(1, &[(INSERT, Some("a"), "{}"), (INSERT, Some("b"), "{}")]).await;
        assert_eq!(total(&fixture.client).await, 2);
        let again = fixture.transact(1, &[(INSERT, Some("a"), "{}"), (INSERT, Some("b"), "{}")]).await;
        assert!(matches!(again, Ok(Transacted::AlreadyDone)), "{again:?}");
        let poison = fixture.transact(2, &[(INSERT, Some("c"), "{}"), (INSERT, Some("poison"), "{}")]).await;
        let Ok(Transacted::Rejected(faults)) = poison else { panic!("{poison:?}") };
        assert_eq!(faults[0].row, 1);
        assert_eq!(total(&fixture.client).await, 2, "neither a repetition nor a rejection counts");
    });
}

#[test]
fn a_successor_does_not_wait_for_a_holder_that_is_stuck_in_its_transaction() {
    let base = Base::new();
    block_on(async {
        let stuck = Arc::new(AtomicBool::new(false));
        let mut fixture = SinkFixture::new(&base, PerChange(Count { stuck: Arc::clone(&stuck) })).await;
        fixture.committed(1, &[(INSERT, Some("a"), "{}")]).await;
        // A commit without rows runs in a session of its own, beside which the sink's must not be forgotten.
        let gap = LedgerEntry {
            kind: LedgerKind::Gap,
            sink: String::new(),
            change_id: String::new(),
            cause: "a test".to_owned(),
            before: None,
            change: None,
        };
        let noted = CheckpointWrite { ledger: vec![gap], ..write(&fixture.grant, 2) };
        let noted = fixture.writer.write_and_commit(&cx(), &batch(&[]), &[], &noted).await;
        assert!(matches!(noted, Ok(Transacted::Committed)), "{noted:?}");
        stuck.store(true, Ordering::SeqCst);
        let short = cx().within(Duration::from_millis(300));
        let rows = batch(&[(INSERT, Some("b"), "{}")]);
        let old = fixture.grant.clone();
        // Abandoned in the middle, as a holder that died: its transaction has written and is still open.
        let abandoned = fixture.writer.write_and_commit(&short, &rows, &[0], &write(&old, 3)).await;
        assert!(abandoned.is_err(), "{abandoned:?}");
        let successor = Grant { tenure: Entropy::from_system().tenure(), epoch: Epoch(2), ..old.clone() };
        let begun = Instant::now();
        let claim = fixture.sink.checkpoints().claim(&cx(), &successor).await.expect("nobody is in the way");
        assert!(matches!(claim, Claim::Claimed(Some(_))), "{claim:?}");
        assert!(begun.elapsed() < Duration::from_secs(1), "the claim took {:?}", begun.elapsed());
        stuck.store(false, Ordering::SeqCst);
        let late = fixture.transact(3, &[(INSERT, Some("b"), "{}")]).await;
        assert!(matches!(late, Ok(Transacted::Fenced)), "{late:?}");
        assert_eq!(total(&fixture.client).await, 1, "nothing of the old holder came through");
    });
}

#[test]
fn events_are_in_the_order_of_the_stream() {
    let base = Base::new();
    block_on(async {
        let mut fixture = SinkFixture::new(&base, Events::into("log").expect("a name")).await;
        let bodies: Vec<String> = (0..30).map(|n| format!(r#"{{"n":{n}}}"#)).collect();
        let rows: Vec<Row<'_>> = bodies.iter().map(|body| (INSERT, Some("a"), body.as_str())).collect();
        fixture.committed(1, &rows[..15]).await;
        fixture.committed(2, &rows[15..]).await;
        let events = in_order(&fixture.client, "log").await;
        let order: Vec<i64> =
            events.iter().map(|event| event.get_document("event").expect("a body").get_i64("n").expect("n")).collect();
        assert_eq!(order, (0..30).collect::<Vec<_>>());
        assert!(Events::into("watchkeeper_leases").is_err(), "our own collections are no targets");
    });
}

#[test]
fn a_late_write_does_not_bring_back_what_was_deleted() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        let writer = versioned(&base, "copy").await;
        let rows = batch(&[
            (INSERT, Some("a"), r#"{"n":1}"#),
            (Operation::Update, Some("a"), r#"{"n":2}"#),
            (Operation::Delete, Some("a"), r#"{"n":2}"#),
            (INSERT, Some("a"), r#"{"n":4}"#),
        ]);
        let live = async || {
            let copies = in_order(&client, "copy").await;
            let there = copies
                .iter()
                .filter(|copy| copy.get_document("_watchkeeper").is_ok_and(|mark| !mark.contains_key("deleted")));
            there.map(|copy| copy.get_i64("n").expect("n")).collect::<Vec<_>>()
        };
        let written = writer.write(&cx(), 0, &rows, &[0, 2]).await.expect("the server answers");
        assert!(written.done == 2 && written.rejected.is_empty(), "{written:?}");
        assert_eq!(live().await, Vec::<i64>::new());
        writer.write(&cx(), 0, &rows, &[1]).await.expect("the server answers");
        assert_eq!(live().await, Vec::<i64>::new(), "an update from before the delete came late");
        writer.write(&cx(), 0, &rows, &[3]).await.expect("the server answers");
        assert_eq!(live().await, [4], "a newer one counts");
    });
}

#[test]
fn a_mirror_forgets_what_was_dropped_and_refuses_what_was_renamed() {
    let base = Base::new();
    block_on(async {
        let mut fixture = SinkFixture::new(&base, Mirror::into("copy").expect("a name")).await;
        fixture.committed(1, &[(INSERT, Some("a"), r#"{"n":1}"#)]).await;
        let renamed = fixture.transact(2, &[(Operation::Rename, None, "{}")]).await.expect("the server answers");
        let Transacted::Rejected(faults) = renamed else { panic!("{renamed:?}") };
        assert!(faults[0].error.to_string().contains("was renamed, which a mirror cannot follow"), "{faults:?}");
        assert_eq!(in_order(&fixture.client, "copy").await.len(), 1, "nothing was done");
        fixture.committed(2, &[(Operation::Drop, None, "{}")]).await;
        assert!(in_order(&fixture.client, "copy").await.is_empty());

        let (rows, writer) = (batch(&[(Operation::Rename, None, "{}")]), versioned(&base, "other").await);
        let written = writer.write(&cx(), 0, &rows, &[0]).await.expect("the server answers");
        assert_eq!(written.rejected.len(), 1, "{written:?}");
    });
}

pub(crate) async fn versioned(base: &Base, collection: &str) -> Arc<dyn watchkeeper_core::SinkWriter> {
    let sink = Versioned::new(base.client().await, Mirror::into(collection).expect("a name"));
    let grant = Grant { key: LeaseKey::new("orders"), tenure: Entropy::from_system().tenure(), epoch: Epoch(1) };
    let store = watchkeeper_core::StoreIdentity(Entropy::from_system().uuid());
    let (stream, name) = ("orders".to_owned(), "copy".to_owned());
    let context = SinkContext { grant, stream, sink: name, partition: 0, lanes: 1, store };
    match sink.open(&cx(), &context).await.expect("it can be opened") {
        OpenedSink::Plain(writer) => writer,
        OpenedSink::Transactional(_) => panic!("it has no transactions"),
    }
}

#[test]
fn an_update_that_tells_only_what_differs_is_refused_with_a_remedy() {
    block_on(async {
        let shop = crate::source::Shop::open().await;
        let mut stream = shop.watch(watchkeeper_mongodb::View::collection("orders")).await;
        shop.insert(doc! { "_id": 1, "n": 1 }).await;
        shop.orders().update_one(doc! {}, doc! { "$set": { "n": 2 } }).await.expect("it is taken");
        let changes = crate::source::read(&mut *stream, 2).await;
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        fixture.deliver(&changes[..1]).await;
        let answer = fixture.offer(&changes[1]).await;
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        let reported = faults[0].error.to_string();
        assert!(
            reported.contains("does not tell the whole document") && reported.contains("updateLookup"),
            "{reported}"
        );
        let writer = versioned(&shop.base, "other").await;
        let written = writer.write(&cx(), 0, changes[1].batch(), &[changes[1].row()]).await.expect("an answer");
        assert_eq!(written.rejected.len(), 1, "{written:?}");
    });
}
