//! Where changes arrive: a table that takes everything, so that whatever goes wrong can be seen in it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use watchkeeper::core::{
    CheckpointWrite, Finding, Grant, OpenedSink, SinkContext, Transacted, TransactionalWriter, ValueRef,
};
use watchkeeper::sqlite::rusqlite::Transaction;
use watchkeeper::sqlite::{Apply, Failure, Transactional};
use watchkeeper::{Batch, Change, Cx, Error, Result, Sink, SinkProfile};
use watchkeeper_drill::Event;

use super::fault_hooks::FaultHooks;

/// No constraint forbids a duplicate, a hole or an old epoch: if one came, it would be counted.
const RECEIVED: &str = "CREATE TABLE IF NOT EXISTS received(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    n INTEGER NOT NULL,
    written_micros INTEGER NOT NULL,
    epoch INTEGER NOT NULL)";

/// The handler: notes every change with the epoch under which it came, in the transaction of the checkpoint.
#[derive(Debug)]
pub(super) struct Receipts {
    hooks: Arc<FaultHooks>,
}

impl Receipts {
    pub(super) fn new(hooks: Arc<FaultHooks>) -> Self {
        Self { hooks }
    }
}

impl Apply for Receipts {
    fn prepare(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        Ok(transaction.execute_batch(RECEIVED)?)
    }

    fn apply(&self, transaction: &Transaction<'_>, change: &Change, grant: &Grant) -> Result<(), Failure> {
        let [id, n, written] = ["id", "n", "written_micros"].map(|column| change.get(&["after", column]));
        let (Some(ValueRef::Str(id)), Some(ValueRef::Int64(n)), Some(ValueRef::Int64(written))) = (id?, n?, written?)
        else {
            return Err(Failure::refuse("a change is not one of an order"));
        };
        let sql = "INSERT INTO received(id, n, written_micros, epoch) VALUES (?1, ?2, ?3, ?4)";
        transaction.prepare_cached(sql)?.execute((id, n, written, grant.epoch.0.cast_signed()))?;
        // After the write, so that what is rolled back is worth it.
        match self.hooks.fails() {
            true => Err(Failure::fatal("the handler was told to fail")),
            false => Ok(()),
        }
    }
}

/// The sink, with a write held in hand on request, and told when it refuses one.
#[derive(Debug)]
pub(super) struct Handled {
    sink: Transactional,
    hooks: Arc<FaultHooks>,
}

impl Handled {
    pub(super) fn new(sink: Transactional, hooks: Arc<FaultHooks>) -> Self {
        Self { sink, hooks }
    }
}

#[async_trait]
impl Sink for Handled {
    fn profile(&self) -> SinkProfile {
        self.sink.profile()
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.sink.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let OpenedSink::Transactional(writer) = self.sink.open(cx, context).await? else {
            return Err(Error::internal("a transactional sink opened as another"));
        };
        let (hooks, epoch) = (Arc::clone(&self.hooks), context.grant.epoch.0);
        Ok(OpenedSink::Transactional(Box::new(Writer { writer: Arc::new(Mutex::new(writer)), hooks, epoch })))
    }
}

type Shared = Arc<Mutex<Box<dyn TransactionalWriter>>>;

#[derive(Debug)]
struct Writer {
    /// Shared with a write that is held in hand, which outlives its tenure.
    writer: Shared,
    hooks: Arc<FaultHooks>,
    epoch: u64,
}

#[async_trait]
impl TransactionalWriter for Writer {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        let (writer, batch, epoch) = (Arc::clone(&self.writer), Arc::clone(batch), self.epoch);
        let request = Request { writer, batch, rows: rows.to_vec(), write: write.clone(), epoch };
        if rows.is_empty() || !self.hooks.holds() {
            return request.send(cx).await;
        }
        let (hooks, late) = (Arc::clone(&self.hooks), Cx::new(Arc::clone(cx.clock())));
        let held = async move {
            // Without a listener there is nobody to say go, and the process is about to end.
            if (Event::Holding { epoch }).emit().is_ok() {
                hooks.go().await;
            }
            request.send(&late.within(LATE)).await
        };
        // A task of its own, without the lease as its deadline: like a request whose bytes have left the process, it
        // arrives whatever has become of its sender. Only the store can refuse it.
        tokio::spawn(held).await.unwrap_or_else(|error| Err(Error::unknown("a late write broke off").caused_by(error)))
    }

    async fn close(&mut self, cx: &Cx) -> Result<()> {
        self.writer.lock().await.close(cx).await
    }
}

/// How long a write that was held may take once it is let go.
const LATE: Duration = Duration::from_secs(600);

struct Request {
    writer: Shared,
    batch: Arc<Batch>,
    rows: Vec<u32>,
    write: CheckpointWrite,
    epoch: u64,
}

impl Request {
    async fn send(self, cx: &Cx) -> Result<Transacted> {
        let answer = self.writer.lock().await.write_and_commit(cx, &self.batch, &self.rows, &self.write).await;
        if matches!(answer, Ok(Transacted::Fenced)) {
            // Without a listener the process is about to end.
            let _ = Event::Refused { epoch: self.epoch, changes: self.rows.len() as u64 }.emit();
        }
        answer
    }
}
