//! Changes and checkpoint in one transaction.

mod audit;
mod collections;
mod document;
mod merged_writes;
mod name;
mod validity;
mod versioned;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::Document;
use mongodb::{ClientSession, Database};
use watchkeeper_core::{
    Change, CheckpointWrite, Cx, Error, Finding, Grade, Grant, OpenedSink, Result, Sink, SinkContext, SinkProfile,
};

pub use audit::{Audit, AuditQuery};
pub use collections::{Events, Mirror};
pub(crate) use name::Name;
pub use versioned::Versioned;
use writer::Writer;

use crate::checkpoint::{CheckpointSession, Checkpoints};
use crate::client::{Client, Reply, Statements, raw_command};
use crate::error::{CallPurpose, Class, code, translate_code, translate_refusal};

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
            _ => Self::Failed(client.error(native, CallPurpose::Reading)),
        }
    }

    /// What the server said of the statement for the change at this place.
    fn coded(at: usize, code: i32, said: &str, client: &Client) -> Self {
        match OF_THE_CHANGE.contains(&code) {
            true => Self::Refused(at, translate_refusal(code, said, client.place())),
            false => {
                let kind = Class::of_code(code).kind(CallPurpose::Reading);
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

/// Whether a change was refused since a unique index of the target has its value.
fn is_duplicate(error: &Error) -> bool {
    error.class() == Class::Duplicate.name()
}

/// Codes of statements that fail the same way however often they are tried: values that do not fit, a violated index or
/// validator, a document that is too large, a name that no collection can have, a collection that takes no transactions.
const OF_THE_CHANGE: [i32; 17] = [2, 9, 14, 28, 40, 52, 55, 57, 66, 73, 121, 263, 10334, 11000, 17280, 17419, 17420];

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

    /// Whether changes of one document that come together are written once, so that documents pass each other on their way. If
    /// a unique index refuses that, all are applied again with [`Open::in_order`].
    fn merges_changes(&self) -> bool {
        false
    }

    /// Whether it keeps documents as they are at the source: see [`SinkProfile::mirrors`].
    fn mirrors(&self) -> bool {
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
pub struct PerChange<H>(pub H);

#[async_trait]
impl<H: Handle> Apply for PerChange<H> {
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
    in_order: bool,
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

    /// Whether every change has to be applied by itself, in the order of the source.
    pub fn in_order(&self) -> bool {
        self.in_order
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
        profile.mirrors = self.apply.mirrors();
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
        let checkpoint_session = CheckpointSession::new(self.checkpoints.client().clone(), context.grant.clone());
        let (checkpoints, apply) = (self.checkpoints.clone(), Arc::clone(&self.apply));
        Ok(OpenedSink::Transactional(Box::new(Writer::new(checkpoints, apply, checkpoint_session))))
    }
}
