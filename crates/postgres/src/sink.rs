//! Changes and checkpoint in one transaction.

mod deferred;
mod divide;
mod image;
mod name;
mod rekey;
mod rows;
mod tables;
mod versioned;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, Change, CheckpointStore, CheckpointWrite, Commit, Cx, Error, ErrorKind, Fault, FaultKind, Finding, Grade,
    Grant, OpenedSink, Result, Sink, SinkContext, SinkProfile, SinkTarget, Transacted, TransactionalWriter,
};

pub use name::Table;
pub use rows::{Missing, Rows, VersionedRows};
pub use tables::{Events, Mirror};
pub use versioned::Versioned;

use crate::checkpoint::Checkpoints;
use crate::client::{Client, Value, Work};
use crate::error::{CallPurpose, Class, is_column_gone, is_doubtful, native, to_error, unchanged};

/// Why changes were not applied.
#[derive(Debug)]
pub enum Failure {
    /// A change can never be applied: the stream's policy for rejected changes decides. Which one, by its place in the slice, if
    /// that is known; if not, they are applied one by one to find it.
    Refused(Option<usize>, Error),
    /// Nothing is wrong with the changes: they are tried again.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A violated constraint, a value that does not fit, and what a trigger raises are the change's fault.
impl From<tokio_postgres::Error> for Failure {
    fn from(native: tokio_postgres::Error) -> Self {
        let refused = Class::of(&native) == Class::Refused;
        let error = to_error(native, CallPurpose::Reading, "postgres");
        if refused { Self::Refused(None, error) } else { Self::Failed(error) }
    }
}

/// The failure of a change that can never be applied, for this reason.
pub fn refuse(reason: impl Into<String>) -> Failure {
    Failure::Refused(None, Error::config(reason).remedy("choose what becomes of refused changes (on_reject)"))
}

impl Failure {
    /// The same failure, of the change at this place.
    fn at(self, place: usize) -> Self {
        match self {
            Self::Refused(_, error) => Self::Refused(Some(place), error),
            failed @ Self::Failed(_) => failed,
        }
    }
}

/// What changes do to the database: written by those who want more than [`Events`], a [`Mirror`] or [`Rows`].
///
/// Whatever is done on the connection that it is given is committed with the checkpoint that passes the changes, or not at all.
#[async_trait]
pub trait Apply: Send + Sync + 'static {
    /// Makes the tables that it needs, when a writer is opened. Called often, so it looks first.
    async fn prepare(&self, _cx: &Cx, _client: &Client) -> Result<()> {
        Ok(())
    }

    /// The table that [`prepare`](Self::prepare) makes where it is missing. One that a stream has written to is not made anew.
    fn table(&self) -> Option<&Table> {
        None
    }

    /// As [`prepare`](Self::prepare), without making a missing [`table`](Self::table): the answer is whether it is there.
    async fn prepare_existing(&self, cx: &Cx, client: &Client) -> Result<bool> {
        self.prepare(cx, client).await.map(|()| true)
    }

    /// Is told which sink of which stream is opened, before anything else: for those who log.
    fn note_opening(&self, _context: &SinkContext) {}

    /// Applies changes in order, inside of the open transaction.
    ///
    /// # Errors
    /// [`Failure::Refused`] rejects a change; all else is tried again. Either way nothing of the transaction remains.
    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure>;

    /// Whether a change without a key does more than be noted.
    fn acts_on_barriers(&self) -> bool {
        false
    }

    /// Whether it keeps rows as they are at the source: see [`SinkProfile::mirrors`].
    fn mirrors(&self) -> bool {
        false
    }
}

/// A handler of single changes that is given the open transaction.
///
/// ```no_run
/// use watchkeeper_core::{Change, Operation};
/// use watchkeeper_postgres::{Failure, Handle, Open};
///
/// /// Counts the orders, in the transaction of the checkpoint that passes them.
/// struct Count;
///
/// #[async_trait::async_trait]
/// impl Handle for Count {
///     async fn handle(&self, open: &Open<'_>, change: &Change) -> Result<(), Failure> {
///         if change.operation() == Operation::Insert {
///             open.execute("UPDATE totals SET count = count + 1 WHERE name = 'orders'", &[]).await?;
///         }
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Handle: Send + Sync + 'static {
    /// Applies one change.
    ///
    /// # Errors
    /// A violated constraint rejects the change, as does [`refuse`]; all else is tried again.
    async fn handle(&self, open: &Open<'_>, change: &Change) -> Result<(), Failure>;
}

#[async_trait]
impl<H: Handle + ?Sized> Handle for Arc<H> {
    async fn handle(&self, open: &Open<'_>, change: &Change) -> Result<(), Failure> {
        (**self).handle(open, change).await
    }
}

/// A [`Handle`] as what a [`Transactional`] sink applies.
#[derive(Debug, Clone)]
pub struct PerChange<H>(pub H);

#[async_trait]
impl<H: Handle> Apply for PerChange<H> {
    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        for (at, change) in changes.iter().enumerate() {
            let handled = async { Ok(self.0.handle(open, change).await) };
            open.cx.run(handled).await?.map_err(|failure| failure.at(at))?;
        }
        Ok(())
    }
}

/// An open transaction, as it is lent to those who apply changes: a connection for their statements.
///
/// It is not theirs to end: after a COMMIT or ROLLBACK of their own the transaction is refused.
#[derive(Debug)]
pub struct Open<'a> {
    cx: Cx,
    work: &'a Work,
    write: &'a CheckpointWrite,
    /// Whether it is asked for which changes an error is to blame that does not say so.
    is_probing: bool,
}

impl Open<'_> {
    /// Under which grant.
    pub fn grant(&self) -> &Grant {
        &self.write.grant
    }

    /// Which commit of the grant this will be.
    pub fn seq(&self) -> u64 {
        self.write.seq
    }

    /// Until when, and for whom.
    pub fn cx(&self) -> &Cx {
        &self.cx
    }

    /// Sends statements without values.
    async fn run(&self, sql: &str) -> Result<(), Failure> {
        let sent = async { Ok(self.work.connection().batch_execute(sql).await) };
        self.cx.run(sent).await?.map_err(Failure::from)
    }

    /// Sends a statement about changes; the answer is how many rows it was about.
    async fn state(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, Failure> {
        let sent = async { Ok(self.work.connection().execute_typed(sql, values).await) };
        self.cx.run(sent).await?.map_err(Failure::from)
    }
}

impl Deref for Open<'_> {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        self.work.connection()
    }
}

/// A sink into the database that keeps the stream's checkpoint: exactly once.
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
    /// A sink into the client's database, where the stream's checkpoint has to be kept too.
    ///
    /// # Errors
    /// As [`Checkpoints::open`].
    pub async fn open(cx: &Cx, client: Client, apply: impl Apply) -> Result<Self> {
        Ok(Self { checkpoints: Checkpoints::open(cx, client).await?, apply: Arc::new(apply) })
    }

    /// The checkpoints of the same database, for the stream's settings.
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
        self.apply.prepare(cx, self.checkpoints.client()).await?;
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        self.require_store(context)?;
        self.apply.note_opening(context);
        self.apply.prepare(cx, self.checkpoints.client()).await?;
        Ok(self.writer())
    }

    fn target(&self) -> Option<SinkTarget> {
        let database = self.checkpoints.store_identity().0.to_string();
        self.apply.table().map(|table| table.target(&database, self.checkpoints.client()))
    }

    async fn open_existing(&self, cx: &Cx, context: &SinkContext) -> Result<Option<OpenedSink>> {
        self.require_store(context)?;
        self.apply.note_opening(context);
        let is_there = self.apply.prepare_existing(cx, self.checkpoints.client()).await?;
        Ok(is_there.then(|| self.writer()))
    }
}

impl Transactional {
    fn require_store(&self, context: &SinkContext) -> Result<()> {
        if context.store != self.checkpoints.store_identity() {
            return Err(Error::config("the checkpoint is not kept in this sink's database")
                .remedy("keep the stream's checkpoint in the store of its transactional sink"));
        }
        Ok(())
    }

    fn writer(&self) -> OpenedSink {
        let (checkpoints, apply) = (self.checkpoints.clone(), Arc::clone(&self.apply));
        OpenedSink::Transactional(Box::new(Writer { checkpoints, apply }))
    }
}

struct Writer {
    checkpoints: Checkpoints,
    apply: Arc<dyn Apply>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("checkpoints", &self.checkpoints).finish_non_exhaustive()
    }
}

/// How changes are given to those who apply them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApplyUnit {
    All,
    /// In ever smaller parts, to find all that are refused.
    Divided,
    /// The same, where the error does not say whether a change is to blame.
    Probed,
}

/// What became of one try.
enum AttemptOutcome {
    Answered(Transacted),
    /// With the places and the reasons of those that were found.
    Refused(Vec<(usize, Error)>),
}

impl Writer {
    /// The checkpoint first: its row is locked from then on, so that nobody can claim it while this transaction is open
    /// without ending it, and a stale one does nothing at all.
    async fn transact(
        &self,
        cx: &Cx,
        changes: &[Change],
        write: &CheckpointWrite,
        portion: ApplyUnit,
    ) -> Result<AttemptOutcome> {
        let (work, commit) = self.checkpoints.begin_with(cx, write).await?;
        match commit {
            Commit::Committed => {}
            Commit::AlreadyDone | Commit::Fenced => {
                work.rollback(cx).await;
                return Ok(AttemptOutcome::Answered(transacted(commit)));
            }
        }
        let open = Open {
            cx: self.checkpoints.client().bounded(cx),
            work: &work,
            write,
            is_probing: portion == ApplyUnit::Probed,
        };
        let filled = match portion {
            ApplyUnit::All => self.apply.apply(&open, changes).await.map(|()| Vec::new()),
            ApplyUnit::Divided | ApplyUnit::Probed => divide::apply(&*self.apply, &open, changes).await,
        };
        match filled {
            Ok(refused) if refused.is_empty() => match work.commit(cx).await {
                // By a constraint that is looked at only when a transaction ends; the server has undone it.
                Err(error) if portion == ApplyUnit::All && is_refused(&error) => {
                    Ok(AttemptOutcome::Refused(vec![(0, error)]))
                }
                committed => committed.map(|()| AttemptOutcome::Answered(Transacted::Committed)),
            },
            Ok(refused) => {
                work.rollback(cx).await;
                Ok(AttemptOutcome::Refused(refused))
            }
            Err(failure) => {
                work.rollback(cx).await;
                match failure {
                    Failure::Refused(at, error) => Ok(AttemptOutcome::Refused(vec![(at.unwrap_or(0), error)])),
                    // Nothing was committed, so nothing is changed.
                    Failure::Failed(error) => Err(unchanged(overdue(error, changes.len()))),
                }
            }
        }
    }
}

/// Whether the server does not take a change, and nothing is wrong with the rest.
fn is_refused(error: &Error) -> bool {
    native(error).is_some_and(|native| Class::of(native) == Class::Refused)
}

/// Says what can be done about a transaction that was broken off because its time was up: tried again it would take as long.
fn overdue(error: Error, changes: usize) -> Error {
    if !error.is_late() && native(&error).is_none_or(|native| Class::of(native) != Class::Late) {
        return error;
    }
    let cause = format!("{changes} changes in one transaction take longer than the lease leaves: {}", error.message());
    Error::new(error.kind(), cause)
        .late()
        .remedy("write less at once (the stream's `batch`: rows, bytes), or allow more time (the group's `lease`, the sink's `timeout`)")
        .caused_by(error)
}

fn transacted(commit: Commit) -> Transacted {
    match commit {
        Commit::Committed => Transacted::Committed,
        Commit::AlreadyDone => Transacted::AlreadyDone,
        Commit::Fenced => Transacted::Fenced,
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
        if rows.is_empty() {
            let answers = self.checkpoints.commit(cx, std::slice::from_ref(write)).await?;
            return Ok(answers.first().map_or(Transacted::Fenced, |commit| transacted(*commit)));
        }
        let changes: Vec<Change> = rows.iter().map(|row| Change::new(Arc::clone(batch), *row)).collect();
        let mut tried = self.transact(cx, &changes, write, ApplyUnit::All).await;
        if tried.as_ref().is_err_and(is_column_gone) {
            // The table is another one than it was when this writer was opened.
            self.apply.prepare_existing(cx, self.checkpoints.client()).await?;
            tried = self.transact(cx, &changes, write, ApplyUnit::All).await;
        }
        if matches!(&tried, Ok(AttemptOutcome::Refused(_))) && changes.len() > 1 {
            tried = self.transact(cx, &changes, write, ApplyUnit::Divided).await;
        }
        if tried.as_ref().is_err_and(is_doubtful) {
            tried = self.transact(cx, &changes, write, ApplyUnit::Probed).await;
        }
        let refused = match tried? {
            AttemptOutcome::Answered(answer) => return Ok(answer),
            AttemptOutcome::Refused(refused) => refused,
        };
        let faults = refused.into_iter().map(|(at, error)| {
            let row =
                rows.get(at).copied().ok_or_else(|| Error::internal("a change was rejected that was not there"))?;
            let error = Error::new(ErrorKind::Config, error.message().to_owned())
                .remedy(error.advice().unwrap_or("correct the row or the table").to_owned())
                .caused_by(error);
            Ok(Fault { row, kind: FaultKind::Reject, error })
        });
        faults.collect::<Result<_>>().map(Transacted::Rejected)
    }

    async fn close(&mut self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
