//! Changes and checkpoint in one transaction.

mod audit;
mod collections;
mod document;
mod versioned;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::Document;
use mongodb::{ClientSession, Database};
use watchkeeper_core::{
    Batch, Change, CheckpointStore, CheckpointWrite, Commit, Cx, Error, ErrorKind, Fault, FaultKind, Finding, Grade,
    Grant, OpenedSink, Result, Sink, SinkContext, SinkProfile, Transacted, TransactionalWriter,
};

pub use audit::{Audit, AuditQuery};
pub(crate) use collections::Name;
pub use collections::{Events, Mirror};
pub use versioned::Versioned;

use crate::checkpoint::{Checkpoints, Seat};
use crate::client::{Client, Reply, Statements, raw_command};
use crate::error::{Class, Doing, code, translate_code};

/// Why changes were not applied.
#[derive(Debug)]
pub enum Failure {
    /// The change at this place of the slice can never be applied: the stream's policy for rejected changes decides.
    Refused(usize, Error),
    /// Nothing is wrong with the changes: they are tried again.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    /// What the driver said while the change at this place was applied.
    fn native(at: usize, native: mongodb::error::Error, client: &Client) -> Self {
        if let Some(Refusal(reason)) = native.get_custom::<Refusal>() {
            return Self::Refused(at, Error::config(reason.clone()));
        }
        // The server undid it for reasons of its own: the same may work the next time.
        let transient = native.contains_label("TransientTransactionError");
        match code(&native) {
            Some(code) if !transient => Self::coded(at, code, &native.kind.to_string(), client),
            _ => Self::Failed(client.error(native, Doing::Reading)),
        }
    }

    /// What the server said of the statement for the change at this place.
    fn coded(at: usize, code: i32, said: &str, client: &Client) -> Self {
        match OF_THE_CHANGE.contains(&code) {
            true => Self::Refused(at, translate_code(code, said, Some(ErrorKind::Config), client.place())),
            false => {
                let kind = Class::of_code(code).kind(Doing::Reading);
                Self::Failed(translate_code(code, said, Some(kind), client.place()))
            }
        }
    }

    /// The same failure, of the change that the nth statement was for.
    fn placed(self, places: &[usize]) -> Self {
        match self {
            Self::Refused(at, error) => Self::Refused(places.get(at).or(places.first()).copied().unwrap_or(at), error),
            failed @ Self::Failed(_) => failed,
        }
    }
}

/// Codes of statements that fail the same way however often they are tried: values that do not fit, a violated index or
/// validator, a document that is too large.
const OF_THE_CHANGE: [i32; 14] = [2, 9, 14, 28, 40, 52, 55, 57, 66, 121, 10334, 11000, 17280, 17419];

/// What changes do to the database: written by those who want more than [`Events`] or a [`Mirror`].
///
/// Whatever is done with the session that it is given is committed with the checkpoint that passes the changes, or not at all.
#[async_trait]
pub trait Apply: Send + Sync + 'static {
    /// Makes the collections that it needs, when a writer is opened. Called often, so it looks first.
    async fn prepare(&self, _cx: &Cx, _client: &Client) -> Result<()> {
        Ok(())
    }

    /// Applies changes in order, inside of the open transaction.
    ///
    /// # Errors
    /// [`Failure::Refused`], or an error of the driver that is the change's fault, rejects a change; all else is tried again.
    /// Either way nothing of the transaction remains.
    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure>;

    /// Whether a change without a key does more than be noted.
    fn acts_on_barriers(&self) -> bool {
        false
    }

    /// Whether it can do nothing with an update that tells only what differs.
    fn needs_whole_documents(&self) -> bool {
        false
    }
}

/// A handler of single changes that is given the open transaction.
///
/// ```no_run
/// use watchkeeper_core::{Change, Operation};
/// use watchkeeper_mongodb::mongodb::bson::{Document, doc};
/// use watchkeeper_mongodb::{Handle, Open};
///
/// /// Counts the orders, in the transaction of the checkpoint that passes them.
/// struct Count;
///
/// #[async_trait::async_trait]
/// impl Handle for Count {
///     async fn handle(&self, open: &mut Open<'_>, change: &Change) -> Result<(), watchkeeper_mongodb::mongodb::error::Error> {
///         if change.operation() == Operation::Insert {
///             let totals = open.database().collection::<Document>("totals");
///             let count = totals.update_one(doc! { "_id": "orders" }, doc! { "$inc": { "count": 1 } });
///             count.upsert(true).session(open.session()).await?;
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
    /// A violated index or validator rejects the change, as does [`refuse`]; all else is tried again.
    async fn handle(&self, open: &mut Open<'_>, change: &Change) -> Result<(), mongodb::error::Error>;
}

/// The error of a change that can never be applied, for this reason.
pub fn refuse(reason: impl Into<String>) -> mongodb::error::Error {
    mongodb::error::Error::custom(Refusal(reason.into()))
}

#[derive(Debug)]
struct Refusal(String);

/// A [`Handle`] as what a [`Transactional`] sink applies.
#[derive(Debug, Clone)]
pub struct Each<H>(pub H);

#[async_trait]
impl<H: Handle> Apply for Each<H> {
    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        for (at, change) in changes.iter().enumerate() {
            let cx = open.cx.clone();
            let handled = async { Ok(self.0.handle(open, change).await) };
            if let Err(native) = cx.run(handled).await? {
                return Err(Failure::native(at, native, &open.client));
            }
        }
        Ok(())
    }
}

/// An open transaction, as it is lent to those who apply changes.
pub struct Open<'a> {
    cx: Cx,
    client: Client,
    write: &'a CheckpointWrite,
    session: &'a mut ClientSession,
}

impl std::fmt::Debug for Open<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("grant", &self.write.grant).finish_non_exhaustive()
    }
}

impl Open<'_> {
    /// The session. Everything that is to belong to the transaction has to be done in it.
    pub fn session(&mut self) -> &mut ClientSession {
        self.session
    }

    /// The database of checkpoint and sink. Others of the same servers are reached through the session's client.
    pub fn database(&self) -> Database {
        self.session.client().database(self.client.config().database())
    }

    /// Under which grant.
    pub fn grant(&self) -> &Grant {
        &self.write.grant
    }

    /// Which commit of the grant this will be.
    pub fn seq(&self) -> u64 {
        self.write.seq
    }

    /// Sends a command with these statements; the first that fails is told with its place among them.
    async fn state_each(&mut self, command: Document, statements: Statements) -> Result<(), Failure> {
        let (database, command) = (self.database(), raw_command(&command, statements)?);
        let sent = async { Ok(database.run_raw_command(command).session(&mut *self.session).await) };
        let reply = Reply(self.cx.run(sent).await?.map_err(|native| Failure::native(0, native, &self.client))?);
        match reply.first_error() {
            None => Ok(()),
            Some((at, code, said)) => Err(Failure::coded(at, code, &said, &self.client)),
        }
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
    /// `Config` where the servers have no transactions.
    pub async fn open(cx: &Cx, client: Client, apply: impl Apply) -> Result<Self> {
        let checkpoints = Checkpoints::open(cx, client).await?;
        if !checkpoints.has_transactions() {
            return Err(without_transactions(checkpoints.client()));
        }
        Ok(Self { checkpoints, apply: Arc::new(apply) })
    }

    /// The checkpoints of the same database, for the stream's settings.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }
}

/// The error of servers on which nothing can be written together with a checkpoint.
pub(crate) fn without_transactions(client: &Client) -> Error {
    Error::config(format!("{}: these servers have no transactions of several collections", client.place())).remedy(
        "use a replica set of MongoDB 5.0 or newer, or a sink that needs none, such as mode = \"versioned\" there",
    )
}

#[async_trait]
impl Sink for Transactional {
    fn profile(&self) -> SinkProfile {
        let mut profile = SinkProfile::new(Grade::Transactional, Duration::ZERO);
        profile.store = Some(self.checkpoints.store_identity());
        profile.acts_on_barriers = self.apply.acts_on_barriers();
        profile.whole_rows = self.apply.needs_whole_documents();
        profile
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.apply.prepare(cx, self.checkpoints.client()).await?;
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        if context.store != self.checkpoints.store_identity() {
            return Err(Error::config("the checkpoint is not kept in this sink's database")
                .remedy("keep the stream's checkpoint in the store of its transactional sink"));
        }
        self.apply.prepare(cx, self.checkpoints.client()).await?;
        let seat = Seat::new(self.checkpoints.client().clone(), context.grant.clone());
        let (checkpoints, apply) = (self.checkpoints.clone(), Arc::clone(&self.apply));
        Ok(OpenedSink::Transactional(Box::new(Writer { checkpoints, apply, seat })))
    }
}

struct Writer {
    checkpoints: Checkpoints,
    apply: Arc<dyn Apply>,
    seat: Seat,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("seat", &self.seat).finish_non_exhaustive()
    }
}

/// Why a transaction was given up.
enum Undone {
    /// The change at this place can not be applied.
    Rejected(usize, Error),
    /// The checkpoint is not the next one of the newest claim.
    NotNext,
    Failed(Error),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Writer {
    /// Changes first, the checkpoint last, since whoever claims has to wait from there on.
    async fn fill(&mut self, cx: &Cx, changes: &[Change], write: &CheckpointWrite) -> Result<(), Undone> {
        let client = self.checkpoints.client().clone();
        let cx = client.bounded(cx);
        let mut open = Open { cx: cx.clone(), client, write, session: self.seat.session()? };
        self.apply.apply(&mut open, changes).await?;
        match self.seat.checkpoint(&cx, write).await? {
            true => Ok(()),
            false => Err(Undone::NotNext),
        }
    }

    /// What has become of a write that was not taken for the next one, or whose changes can not be applied: perhaps because
    /// they had been applied before.
    async fn look(&self, cx: &Cx, write: &CheckpointWrite) -> Result<Option<Transacted>> {
        let answer = self.checkpoints.standing(cx, write).await?;
        Ok(answer.map(|commit| match commit {
            Commit::Committed => Transacted::Committed,
            Commit::AlreadyDone => Transacted::AlreadyDone,
            Commit::Fenced => Transacted::Fenced,
        }))
    }
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(at, error) => Self::Rejected(at, error),
            // Nothing was committed, so nothing is changed.
            Failure::Failed(error) if error.kind() == ErrorKind::Unknown => {
                Self::Failed(Error::unavailable(error.message().to_owned()).caused_by(error))
            }
            Failure::Failed(error) => Self::Failed(error),
        }
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
            return Ok(match answers.first() {
                Some(Commit::Committed) => Transacted::Committed,
                Some(Commit::AlreadyDone) => Transacted::AlreadyDone,
                _ => Transacted::Fenced,
            });
        }
        if !self.seat.begin(cx).await? {
            return Ok(Transacted::Fenced);
        }
        let changes: Vec<Change> = rows.iter().map(|row| Change::new(Arc::clone(batch), *row)).collect();
        let undone = match self.fill(cx, &changes, write).await {
            Ok(()) => return self.seat.commit(cx).await.map(|()| Transacted::Committed),
            Err(undone) => undone,
        };
        self.seat.abort(cx).await;
        let (at, error) = match undone {
            Undone::Failed(error) => return Err(error),
            Undone::NotNext => {
                let changed = || Error::unavailable("the checkpoint was changed meanwhile");
                return self.look(cx, write).await?.ok_or_else(changed);
            }
            Undone::Rejected(at, error) => (at, error),
        };
        if let Some(answer) = self.look(cx, write).await? {
            return Ok(answer);
        }
        let row = rows.get(at).copied().ok_or_else(|| Error::internal("a change was rejected that was not there"))?;
        Ok(Transacted::Rejected(vec![Fault { row, kind: FaultKind::Reject, error }]))
    }

    async fn close(&mut self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
