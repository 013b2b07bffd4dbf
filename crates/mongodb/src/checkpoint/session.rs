//! Transactions that end with a checkpoint.
//!
//! A write without ledger entries is one update of one document. With ledger entries, or with the rows of a sink, it is
//! a transaction in the session of the grant. That session is stored in the checkpoint's document before its first
//! transaction, and a claim kills the session that it finds there: the server would otherwise keep the transaction of a
//! dead client open, and the document locked, for a minute. After a commit of unknown outcome the holder kills its own
//! session before it begins again, for the same reason.
//!
//! Rows come first and the checkpoint last, so that a claim meets the lock for as short a time as possible. A row that
//! is refused is reported only after a check whether the same write had been done before.

use mongodb::ClientSession;
use mongodb::bson::{Binary, Bson, Document, doc};
use mongodb::options::{ReadConcern, TransactionOptions, WriteConcern};
use watchkeeper_core::{CheckpointWrite, Cx, Error, ErrorKind, Grant, Result};

use super::{COLLECTION, ledger, moved_by, next_of};
use crate::client::{Client, Reply, number, number_bson};
use crate::error::CallPurpose;

/// At most so many bytes of bodies in one insert. The server's limit for a message is 48 MB.
const INSERT_BYTES_MAX: usize = 16_000_000;

/// How many of a grant's newest sessions are known to its successor. There are two at a time (the sink's, and one for commits
/// without rows), and a new one after every commit of unknown outcome.
const SESSIONS_KEPT: i32 = 16;

/// Where the transactions of one grant are made: one after the other, in one session.
///
/// A transaction whose client is gone stays open at the server for a minute, and locks the checkpoint against everyone. So
/// the session is written into the checkpoint's document before its first transaction, where a successor finds and kills it;
/// and a transaction whose end is not known is killed here before the next one begins.
pub(crate) struct CheckpointSession {
    client: Client,
    grant: Grant,
    session: Option<ClientSession>,
    /// Set while a transaction may be open.
    doubtful: Option<Binary>,
}

impl std::fmt::Debug for CheckpointSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl CheckpointSession {
    /// A seat for this grant; nothing is sent yet.
    pub(crate) fn new(client: Client, grant: Grant) -> Self {
        Self { client, grant, session: None, doubtful: None }
    }

    /// Whose it is.
    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The session of the open transaction, for statements of others.
    ///
    /// # Errors
    /// `Internal` when there is none: it has to be begun first.
    pub(crate) fn session(&mut self) -> Result<&mut ClientSession> {
        self.session.as_mut().ok_or_else(|| Error::internal("a statement without a transaction"))
    }

    /// Begins a transaction. Not if the grant is no longer the newest claim.
    ///
    /// # Cancel safety
    /// Cancel safe: what may be open is killed by the next one.
    pub(crate) async fn begin(&mut self, cx: &Cx) -> Result<bool> {
        self.clear(cx).await?;
        if self.session.is_none() && !self.register(cx).await? {
            return Ok(false);
        }
        let cx = self.client.bounded(cx);
        let mut options = TransactionOptions::default();
        options.read_concern = Some(ReadConcern::snapshot());
        options.write_concern = Some(WriteConcern::majority());
        options.max_commit_time = cx.remaining();
        let client = self.client.clone();
        let session = self.session()?;
        let id = id_of(session)?;
        let begun = session.start_transaction().with_options(options).await;
        begun.map_err(|native| client.error(native, CallPurpose::Reading))?;
        self.doubtful = Some(id);
        Ok(true)
    }

    /// Kills what may be open.
    async fn clear(&mut self, cx: &Cx) -> Result<()> {
        let Some(id) = self.doubtful.clone() else { return Ok(()) };
        kill(cx, &self.client, vec![id]).await?;
        (self.session, self.doubtful) = (None, None);
        Ok(())
    }

    /// Makes a session and writes it into the document. Whether the grant is still the newest claim.
    async fn register(&mut self, cx: &Cx) -> Result<bool> {
        let bounded = self.client.bounded(cx);
        let driver = self.client.driver(&bounded).await?;
        let start =
            async { driver.start_session().await.map_err(|native| self.client.error(native, CallPurpose::Reading)) };
        let session = bounded.run(start).await.map_err(not_sent)?;
        let update = doc! {
            "q": {
                "_id": self.grant.key.as_str(),
                "epoch": number_bson(self.grant.epoch.0),
                "tenure": self.grant.tenure.to_string(),
            },
            "u": { "$push": { "sessions": { "$each": [id_of(&session)?], "$slice": -SESSIONS_KEPT } } },
        };
        let write = self.client.write(cx, doc! { "update": COLLECTION, "updates": [update] }).await;
        // To know a session that is not used yet is no change that anyone could see.
        let reply = write.map_err(not_sent)?.whole(&self.client)?;
        let newest = reply.count() == 1;
        self.session = newest.then_some(session);
        Ok(newest)
    }

    /// Sends a statement of the open transaction.
    pub(crate) async fn state(&mut self, cx: &Cx, command: Document) -> Result<Reply> {
        let client = self.client.clone();
        let cx = client.bounded(cx);
        let answer = cx.run(client.state(self.session()?, command)).await;
        // Not committed yet: whatever became of the statement, nothing is changed.
        answer.map_err(not_sent)
    }

    /// Writes checkpoint and ledger by the rules C5 to C7. Whether it was the next write of the newest claim.
    pub(crate) async fn checkpoint(&mut self, cx: &Cx, write: &CheckpointWrite) -> Result<bool> {
        let entries = i64::try_from(write.ledger.len()).unwrap_or(i64::MAX);
        // The document is always written, never only looked at: reading the epoch alone would be write skew.
        let ask = doc! {
            "findAndModify": COLLECTION,
            "query": next_of(write),
            "update": { "$set": moved_by(write)?, "$inc": { "ledger": entries } },
            "new": true,
            "fields": { "ledger": 1 },
        };
        let reply = self.state(cx, ask).await?;
        let Some(after) = reply.value() else { return Ok(false) };
        let newest = number(after.get("ledger")).unwrap_or(0);
        self.note(cx, write, newest.saturating_sub(write.ledger.len() as u64)).await?;
        Ok(true)
    }

    /// Writes the ledger, whose newest number was `last` before.
    async fn note(&mut self, cx: &Cx, write: &CheckpointWrite, last: u64) -> Result<()> {
        let key = &write.grant.key;
        if !write.resolve.is_empty() {
            let settle = |(number, resolution): &(u64, _)| ledger::settle(key, *number, *resolution);
            let updates = write.resolve.iter().map(settle).collect::<Result<Vec<_>>>()?;
            self.state(cx, doc! { "update": ledger::COLLECTION, "updates": updates }).await?;
        }
        let (mut documents, mut bytes) = (Vec::new(), 0);
        for (number, entry) in (last + 1..).zip(&write.ledger) {
            bytes += entry.change.as_ref().and_then(|change| change.body.as_ref()).map_or(0, |body| body.len());
            documents.push(ledger::document(key, number, entry)?);
            if bytes > INSERT_BYTES_MAX {
                self.insert(cx, std::mem::take(&mut documents)).await?;
                bytes = 0;
            }
        }
        self.insert(cx, documents).await
    }

    async fn insert(&mut self, cx: &Cx, documents: Vec<Document>) -> Result<()> {
        if !documents.is_empty() {
            self.state(cx, doc! { "insert": ledger::COLLECTION, "documents": documents }).await?;
        }
        Ok(())
    }

    /// Commits.
    ///
    /// # Errors
    /// `Unknown` unless the server says that it has undone it.
    pub(crate) async fn commit(&mut self, cx: &Cx) -> Result<()> {
        let client = self.client.clone();
        let cx = client.bounded(cx);
        let session = self.session()?;
        let commit = async {
            session.commit_transaction().await.map_err(|native| client.error(native, CallPurpose::Committing))
        };
        let answer = cx.run(commit).await;
        if answer.as_ref().map_or_else(Error::kind, |()| ErrorKind::Internal) != ErrorKind::Unknown {
            self.doubtful = None;
        }
        answer
    }

    /// Gives the transaction up. If that fails it stays doubtful.
    pub(crate) async fn abort(&mut self, cx: &Cx) {
        let client = self.client.clone();
        let cx = client.bounded(cx);
        let Ok(session) = self.session() else { return };
        let abort =
            async { session.abort_transaction().await.map_err(|native| client.error(native, CallPurpose::Reading)) };
        if cx.run(abort).await.is_ok() {
            self.doubtful = None;
        }
    }
}

/// Ends sessions with all that is open in them.
pub(super) async fn kill(cx: &Cx, client: &Client, sessions: Vec<Binary>) -> Result<()> {
    let sessions: Vec<Document> = sessions.into_iter().map(|id| doc! { "id": id }).collect();
    client.read(cx, doc! { "killSessions": sessions }).await.map(drop)
}

fn id_of(session: &ClientSession) -> Result<Binary> {
    match session.id().get("id") {
        Some(Bson::Binary(id)) => Ok(id.clone()),
        _ => Err(Error::internal("a session without an id")),
    }
}

/// What is not known of something that no one can see is at least no change.
fn not_sent(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unknown => Error::unavailable(error.message().to_owned())
            .remedy(error.advice().unwrap_or("it is tried again").to_owned())
            .caused_by(error),
        _ => error,
    }
}
