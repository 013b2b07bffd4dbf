//! A transaction that ends with a checkpoint.

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mongodb::options::{ReadConcern, TransactionOptions, WriteConcern};
use watchkeeper_core::{CheckpointWrite, Cx, Error, ErrorKind, Result};

use super::{COLLECTION, ledger, moved_by, next_of};
use crate::client::{Client, number};
use crate::error::Doing;

/// At most so many bytes of bodies in one insert. The server's limit for a message is 48 MB.
const INSERT_BYTES_MAX: usize = 16_000_000;

/// An open transaction of the checkpoint's database.
pub(crate) struct Transaction {
    cx: Cx,
    client: Client,
    session: ClientSession,
}

impl Transaction {
    /// Begins one in a session of its own.
    pub(crate) async fn begin(cx: &Cx, client: &Client) -> Result<Self> {
        let cx = client.bounded(cx);
        let driver = client.driver(&cx).await?;
        let start = async { driver.start_session().await.map_err(|native| client.error(native, Doing::Reading)) };
        let session = cx.run(start).await?;
        Self::begin_in(&cx, client, session).await
    }

    /// Begins one in this session.
    pub(crate) async fn begin_in(cx: &Cx, client: &Client, mut session: ClientSession) -> Result<Self> {
        let cx = client.bounded(cx);
        let mut options = TransactionOptions::default();
        options.read_concern = Some(ReadConcern::snapshot());
        options.write_concern = Some(WriteConcern::majority());
        options.max_commit_time = cx.remaining();
        let begun = session.start_transaction().with_options(options).await;
        begun.map_err(|native| client.error(native, Doing::Reading))?;
        Ok(Self { cx, client: client.clone(), session })
    }

    /// The session, for statements of others.
    pub(crate) fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// The session, after the end.
    pub(crate) fn into_session(self) -> ClientSession {
        self.session
    }

    async fn state(&mut self, command: Document) -> Result<crate::client::Reply> {
        let answer = self.cx.run(self.client.state(&mut self.session, command)).await;
        // Not committed yet: whatever became of the statement, nothing is changed.
        answer.map_err(|error| match error.kind() {
            ErrorKind::Unknown => Error::unavailable(error.message().to_owned()).caused_by(error),
            _ => error,
        })
    }

    /// Writes checkpoint and ledger by the rules C5 to C7. Whether it was the next write of the newest claim; if not,
    /// nothing was stated.
    pub(crate) async fn checkpoint(&mut self, write: &CheckpointWrite) -> Result<bool> {
        let entries = i64::try_from(write.ledger.len()).unwrap_or(i64::MAX);
        // The document is always written, never only looked at: reading the epoch alone would be write skew.
        let ask = doc! {
            "findAndModify": COLLECTION,
            "query": next_of(write),
            "update": { "$set": moved_by(write)?, "$inc": { "ledger": entries } },
            "new": true,
            "fields": { "ledger": 1 },
        };
        let reply = self.state(ask).await?;
        let Some(after) = reply.value() else { return Ok(false) };
        let last = number(after.get("ledger")).unwrap_or(0);
        self.note(write, last.saturating_sub(write.ledger.len() as u64)).await?;
        Ok(true)
    }

    /// Writes the ledger, whose newest number was `last` before.
    async fn note(&mut self, write: &CheckpointWrite, last: u64) -> Result<()> {
        let key = &write.grant.key;
        if !write.resolve.is_empty() {
            let settle = |(number, resolution): &(u64, _)| ledger::settle(key, *number, *resolution);
            let updates = write.resolve.iter().map(settle).collect::<Result<Vec<_>>>()?;
            self.state(doc! { "update": ledger::COLLECTION, "updates": updates }).await?;
        }
        let (mut documents, mut bytes) = (Vec::new(), 0);
        for (number, entry) in (last + 1..).zip(&write.ledger) {
            bytes += entry.change.as_ref().and_then(|change| change.body.as_ref()).map_or(0, |body| body.len());
            documents.push(ledger::document(key, number, entry)?);
            if bytes > INSERT_BYTES_MAX {
                self.insert(std::mem::take(&mut documents)).await?;
                bytes = 0;
            }
        }
        self.insert(documents).await
    }

    async fn insert(&mut self, documents: Vec<Document>) -> Result<()> {
        if !documents.is_empty() {
            self.state(doc! { "insert": ledger::COLLECTION, "documents": documents }).await?;
        }
        Ok(())
    }

    /// Commits.
    ///
    /// # Errors
    /// `Unknown` unless the server says that it has undone it.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        let Self { cx, client, session } = self;
        let commit =
            async { session.commit_transaction().await.map_err(|native| client.error(native, Doing::Committing)) };
        cx.run(commit).await
    }

    /// Gives it up. If that fails, the server does so before long.
    pub(crate) async fn abort(&mut self) {
        let Self { cx, client, session } = self;
        let abort = async { session.abort_transaction().await.map_err(|native| client.error(native, Doing::Reading)) };
        let _ = cx.run(abort).await;
    }
}
