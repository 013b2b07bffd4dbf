//! Changes and checkpoint in one transaction.

mod tables;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Transaction};
use watchkeeper_core::{
    Batch, Change, CheckpointWrite, Commit, Cx, Error, Fault, FaultKind, Finding, Grade, Grant, OpenedSink, Result,
    Sink, SinkContext, SinkProfile, SinkTarget, Transacted, TransactionalWriter,
};

pub use tables::{Events, Mirror};

use crate::checkpoint::{Checkpoints, commit};
use crate::client::{Client, write_on};
use crate::error::Failure;

/// What a change does to the database: a handler that is given the open transaction.
///
/// It runs on the database thread, so it may block on nothing but this transaction, and every other writer of the
/// file waits for it. Whatever it writes is committed with the checkpoint that passes the change, or not at all.
pub trait Apply: Send + Sync + 'static {
    /// Makes the tables that it needs, when a writer is opened. Called often, so it looks first.
    fn prepare(&self, _transaction: &Transaction<'_>) -> Result<(), Failure> {
        Ok(())
    }

    /// The table that [`prepare`](Self::prepare) makes where it is missing. One that a stream has written to is not made anew.
    fn table(&self) -> Option<String> {
        None
    }

    /// Applies one change, under this grant.
    ///
    /// # Errors
    /// [`Failure::refuse`], a violated constraint or an unreadable payload reject the change; [`Failure::fatal`] gives up
    /// the watch; all else is tried again.
    fn apply(&self, transaction: &Transaction<'_>, change: &Change, grant: &Grant) -> Result<(), Failure>;

    /// Whether a change without a key does more than be noted.
    fn acts_on_barriers(&self) -> bool {
        false
    }

    /// Whether it keeps rows as they are at the source: see [`SinkProfile::mirrors`].
    fn mirrors(&self) -> bool {
        false
    }
}

impl<F> Apply for F
where
    F: Fn(&Transaction<'_>, &Change) -> Result<(), Failure> + Send + Sync + 'static,
{
    fn apply(&self, transaction: &Transaction<'_>, change: &Change, _grant: &Grant) -> Result<(), Failure> {
        self(transaction, change)
    }
}

/// A sink into the database that keeps the stream's checkpoint: exactly once.
///
/// ```no_run
/// use watchkeeper_core::{Change, Cx, Operation, Result};
/// use watchkeeper_sqlite::rusqlite::Transaction;
/// use watchkeeper_sqlite::{Client, Config, Failure, Transactional};
///
/// /// Counts the orders, in the transaction of the checkpoint that passes them.
/// fn count(transaction: &Transaction<'_>, change: &Change) -> Result<(), Failure> {
///     if change.operation() == Operation::Insert {
///         transaction.execute("UPDATE totals SET orders = orders + 1", [])?;
///     }
///     Ok(())
/// }
///
/// async fn open(cx: &Cx) -> Result<Transactional> {
///     let client = Client::open(cx, Config::existing("totals.db")).await?;
///     Transactional::open(cx, client, count).await
/// }
/// ```
#[derive(Clone)]
pub struct Transactional {
    checkpoints: Checkpoints,
    apply: Arc<dyn Apply>,
}

impl std::fmt::Debug for Transactional {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactional").field("checkpoints", &self.checkpoints).finish_non_exhaustive()
    }
}

impl Transactional {
    /// A sink into the client's file, where the stream's checkpoint has to be kept too.
    pub async fn open(cx: &Cx, client: Client, apply: impl Apply) -> Result<Self> {
        Ok(Self { checkpoints: Checkpoints::open(cx, client).await?, apply: Arc::new(apply) })
    }

    /// The checkpoints of the same file, for the stream's settings.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }
}

#[async_trait]
impl Sink for Transactional {
    fn profile(&self) -> SinkProfile {
        let mut profile = SinkProfile::new(Grade::Transactional, Duration::ZERO);
        profile.store = Some(self.checkpoints.store_identity());
        profile.acts_on_barriers = self.apply.acts_on_barriers();
        profile.mirrors = self.apply.mirrors();
        profile
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let apply = Arc::clone(&self.apply);
        self.checkpoints.client().write(cx, move |transaction| apply.prepare(transaction)).await?;
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        self.require_store(context)?;
        let apply = Arc::clone(&self.apply);
        self.checkpoints.client().write(cx, move |transaction| apply.prepare(transaction)).await?;
        Ok(self.writer(context))
    }

    fn target(&self) -> Option<SinkTarget> {
        let table = self.apply.table()?;
        let file = self.checkpoints.client().config().path.display();
        let identity = format!("{}/{}", self.checkpoints.store_identity().0, table.to_ascii_lowercase());
        Some(SinkTarget { identity, name: format!("table {table} in {file}") })
    }

    async fn open_existing(&self, cx: &Cx, context: &SinkContext) -> Result<Option<OpenedSink>> {
        self.require_store(context)?;
        let apply = Arc::clone(&self.apply);
        let prepare = move |transaction: &Transaction<'_>| {
            if let Some(table) = apply.table()
                && !has_table(transaction, &table)?
            {
                return Ok(false);
            }
            apply.prepare(transaction).map(|()| true)
        };
        let is_there = self.checkpoints.client().write(cx, prepare).await?;
        Ok(is_there.then(|| self.writer(context)))
    }
}

/// Whether the file has a table or a view of this name.
fn has_table(transaction: &Transaction<'_>, table: &str) -> Result<bool, Failure> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ?1 COLLATE NOCASE";
    Ok(transaction.prepare_cached(sql)?.exists([table])?)
}

impl Transactional {
    fn require_store(&self, context: &SinkContext) -> Result<()> {
        if context.store != self.checkpoints.store_identity() {
            return Err(Error::config("the checkpoint is not kept in this sink's database")
                .remedy("keep the stream's checkpoint in the store of its transactional sink"));
        }
        Ok(())
    }

    fn writer(&self, context: &SinkContext) -> OpenedSink {
        let (client, apply) = (self.checkpoints.client().clone(), Arc::clone(&self.apply));
        OpenedSink::Transactional(Box::new(Writer { client, apply, grant: context.grant.clone() }))
    }
}

struct Writer {
    client: Client,
    apply: Arc<dyn Apply>,
    grant: Grant,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// Why a transaction is rolled back.
enum RollbackCause {
    /// This row cannot be applied.
    Rejected(u32, FaultKind, Failure),
    Failed(Failure),
}

impl From<Failure> for RollbackCause {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What one transaction is made of.
struct Work {
    apply: Arc<dyn Apply>,
    grant: Grant,
    batch: Arc<Batch>,
    rows: Vec<u32>,
    write: CheckpointWrite,
}

impl Work {
    fn transact(&self, connection: &mut Connection) -> Result<Transacted, RollbackCause> {
        let mut rejected = None;
        let done = write_on(connection, |transaction| {
            let answer = commit(transaction, &self.write)?;
            if answer == Commit::Committed {
                self.apply_rows(transaction, &mut rejected)?;
            }
            Ok(answer)
        });
        match (done, rejected) {
            (Ok(Commit::Committed), _) => Ok(Transacted::Committed),
            (Ok(Commit::AlreadyDone), _) => Ok(Transacted::AlreadyDone),
            (Ok(Commit::Fenced), _) => Ok(Transacted::Fenced),
            (Err(failure), Some((row, kind))) => Err(RollbackCause::Rejected(row, kind, failure)),
            (Err(failure), None) => Err(RollbackCause::Failed(failure)),
        }
    }

    /// Applies the rows in order. The first that cannot be applied ends it: what came after it might fail only
    /// because of it.
    fn apply_rows(
        &self,
        transaction: &Transaction<'_>,
        rejected: &mut Option<(u32, FaultKind)>,
    ) -> Result<(), Failure> {
        for row in &self.rows {
            let change = Change::new(Arc::clone(&self.batch), *row);
            let applied = self.apply.apply(transaction, &change, &self.grant);
            if let Err(failure) = applied {
                *rejected = failure.of_the_change().map(|kind| (*row, kind));
                return Err(failure);
            }
        }
        Ok(())
    }
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
        let (apply, grant) = (Arc::clone(&self.apply), self.grant.clone());
        let (batch, rows, write) = (Arc::clone(batch), rows.to_vec(), write.clone());
        let work = Work { apply, grant, batch, rows, write };
        let path = self.client.config().path.clone();
        let transact = move |connection: &mut Connection| match work.transact(connection) {
            Ok(answer) => Ok(answer),
            Err(RollbackCause::Failed(failure)) => Err(failure),
            Err(RollbackCause::Rejected(row, kind, failure)) => {
                let error = failure.into_rejection(&path);
                Ok(Transacted::Rejected(vec![Fault { row, kind, error }]))
            }
        };
        self.client.run(cx, transact).await
    }

    async fn close(&mut self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
