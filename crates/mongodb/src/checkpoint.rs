//! Fenced checkpoints and the ledger.
//!
//! A checkpoint without ledger entries is one update; see `session` for writes with a ledger or with rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use serde::Serialize;
use serde::de::DeserializeOwned;
use watchkeeper_core::checkpoint::{missing_record, one_answer};
use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Epoch, Error, Grant, LeaseKey, LedgerQuery,
    LedgerRecord, Result, StoreIdentity,
};

use crate::client::{Client, DUPLICATE, ensure, is_code, number, number_bson};

mod ledger;
mod outbox;
mod session;

pub(crate) use session::CheckpointSession;

pub(crate) const COLLECTION: &str = "watchkeeper_checkpoints";

/// The longest time for a claim. A predecessor that opened a transaction just now, in a session that was not known yet, holds
/// it up; then it is claimed again, and the session is known.
const CLAIM_MAX: Duration = Duration::from_secs(2);

/// How often a claim is tried that was overtaken by another one's.
const CLAIM_TRIES: usize = 3;

/// Checkpoints in MongoDB: one document per key, and the ledger in a collection beside it.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    client: Client,
    identity: StoreIdentity,
    /// Whether the server has them.
    transactions: bool,
    /// Where writes with a ledger are committed, by key: as many as there are streams.
    checkpoint_sessions: Arc<Mutex<BTreeMap<LeaseKey, Arc<tokio::sync::Mutex<CheckpointSession>>>>>,
}

impl Checkpoints {
    /// The checkpoints in the client's database, whose collections are made where they are missing.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        let identity = ensure(cx, &client, &[COLLECTION, ledger::COLLECTION]).await?;
        let transactions = client.has_transactions(cx).await?;
        Ok(Self { client, identity, transactions, checkpoint_sessions: Arc::default() })
    }

    /// The checkpoint of a key, also where nothing was ever opened.
    pub(crate) async fn peek(cx: &Cx, client: &Client, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        match Claimed::load(cx, client, key).await? {
            Some(claimed) => claimed.checkpoint(client),
            None => Ok(None),
        }
    }

    /// The identity of the database.
    pub fn store_identity(&self) -> StoreIdentity {
        self.identity
    }

    /// Whether changes and checkpoint can be written in one transaction.
    pub(crate) fn has_transactions(&self) -> bool {
        self.transactions
    }

    /// The connections behind it.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// The newest claim of a key.
#[derive(Debug)]
struct Claimed {
    epoch: Epoch,
    tenure: String,
    seq: u64,
    checkpoint: Option<Bson>,
    /// The newest number of the ledger.
    ledger: u64,
    /// What was committed and is not in the ledger yet, where there are no transactions.
    outbox: Option<Document>,
}

impl Claimed {
    fn read(client: &Client, document: &Document) -> Result<Self> {
        let field = |name: &str| number(document.get(name)).ok_or_else(|| damaged(client));
        Ok(Self {
            epoch: Epoch(field("epoch")?),
            tenure: document.get_str("tenure").map_err(|_| damaged(client))?.to_owned(),
            seq: field("seq")?,
            checkpoint: document.get("checkpoint").filter(|stored| **stored != Bson::Null).cloned(),
            ledger: number(document.get("ledger")).unwrap_or(0),
            outbox: document.get_document("outbox").ok().cloned(),
        })
    }

    async fn load(cx: &Cx, client: &Client, key: &LeaseKey) -> Result<Option<Self>> {
        let find = doc! { "find": COLLECTION, "filter": { "_id": key.as_str() }, "limit": 1 };
        let found = client.rows(cx, find).await?;
        found.first().map(|document| Self::read(client, document)).transpose()
    }

    fn is_by(&self, grant: &Grant) -> bool {
        self.epoch == grant.epoch && self.tenure == grant.tenure.to_string()
    }

    fn checkpoint(&self, client: &Client) -> Result<Option<Checkpoint>> {
        stored_checkpoint(client, self.checkpoint.as_ref())
    }

    /// What a write means that was not taken; `None` when it is the next one.
    fn answer(client: &Client, claimed: Option<&Self>, write: &CheckpointWrite) -> Result<Option<Commit>> {
        match claimed {
            None => Err(missing_record(client.place(), &write.grant.key)),
            Some(claimed) if !claimed.is_by(&write.grant) => Ok(Some(Commit::Fenced)),
            Some(claimed) if claimed.seq == write.seq => Ok(Some(Commit::AlreadyDone)),
            Some(claimed) if claimed.seq + 1 == write.seq => Ok(None),
            Some(claimed) => {
                let (got, stored) = (write.seq, claimed.seq);
                Err(Error::internal(format!("commit {got} after {stored} of one tenure")))
            }
        }
    }
}

/// The sessions in which the claimant's transactions run.
fn sessions_of(document: &Document) -> Vec<Binary> {
    document.get_array("sessions").into_iter().flatten().filter_map(session_id).collect()
}

fn session_id(value: &Bson) -> Option<Binary> {
    match value {
        Bson::Binary(id) => Some(id.clone()),
        _ => None,
    }
}

fn damaged(client: &Client) -> Error {
    Error::corrupt(format!("{}: a document of {COLLECTION} or its ledger cannot be read", client.place())).remedy(
        "restore it from a backup, or set the stream's checkpoint; collections watchkeeper_* are not to be edited",
    )
}

/// The checkpoint in a document. What is there and is no checkpoint is damaged, not absent.
fn stored_checkpoint(client: &Client, stored: Option<&Bson>) -> Result<Option<Checkpoint>> {
    match stored {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::Document(document)) => read(client, document.clone()).map(Some),
        Some(_) => Err(damaged(client)),
    }
}

fn read<T: DeserializeOwned>(client: &Client, document: Document) -> Result<T> {
    mongodb::bson::deserialize_from_document(document).map_err(|error| damaged(client).caused_by(error))
}

fn stored<T: Serialize>(value: &T) -> Result<Document> {
    mongodb::bson::serialize_to_document(value)
        .map_err(|error| Error::internal("a value cannot be stored").caused_by(error))
}

/// Bytes as a value.
fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() })
}

/// The document that this write may change: claimed by its grant, one commit behind.
fn next_of(write: &CheckpointWrite) -> Document {
    doc! {
        "_id": write.grant.key.as_str(),
        "epoch": number_bson(write.grant.epoch.0),
        "tenure": write.grant.tenure.to_string(),
        "seq": number_bson(write.seq.saturating_sub(1)),
    }
}

/// What it changes there.
fn moved_by(write: &CheckpointWrite) -> Result<Document> {
    Ok(doc! { "seq": number_bson(write.seq), "checkpoint": stored(&write.to_checkpoint())? })
}

/// What a claim makes of a document by a lower epoch, or of none.
fn claiming(grant: &Grant) -> Document {
    let claim = doc! { "epoch": number_bson(grant.epoch.0), "tenure": grant.tenure.to_string(), "seq": 0_i64 };
    doc! { "$set": claim, "$unset": { "sessions": "" } }
}

impl Checkpoints {
    /// Ends the transactions that an older claimant may have left open: they have locked the document, and the server would
    /// undo them only after a minute.
    async fn kill_older_sessions(&self, cx: &Cx, grant: &Grant) -> Result<()> {
        let find = doc! { "find": COLLECTION, "filter": { "_id": grant.key.as_str() }, "limit": 1 };
        let Some(document) = self.client.rows(cx, find).await?.pop() else { return Ok(()) };
        // Only what is needed is read: whether the rest is damaged is for the claim to say, once it has taken effect.
        let sessions = sessions_of(&document);
        let is_older = number(document.get("epoch")).is_none_or(|epoch| epoch < grant.epoch.0);
        match is_older && !sessions.is_empty() {
            true => session::kill(cx, &self.client, sessions).await,
            false => Ok(()),
        }
    }

    /// The document before the claim, and whether it was by a lower epoch and could be claimed; `None` when it was made by it.
    async fn take(&self, cx: &Cx, grant: &Grant) -> Result<Option<(Document, bool)>> {
        let cx = &cx.within(CLAIM_MAX);
        for _ in 0..CLAIM_TRIES {
            // A document whose epoch is no number would be neither older nor newer than any claim, and could never be claimed.
            let claimable = doc! { "$or": [
                { "epoch": { "$lt": number_bson(grant.epoch.0) } },
                { "epoch": { "$not": { "$type": "number" } } },
            ] };
            let mut older = doc! { "_id": grant.key.as_str() };
            older.extend(claimable);
            let command = doc! {
                "findAndModify": COLLECTION, "query": older, "update": claiming(grant), "upsert": true, "new": false,
            };
            match self.client.write(cx, command).await {
                Err(error) if is_code(&error, DUPLICATE) => {}
                answer => return Ok(answer?.value().cloned().map(|before| (before, true))),
            }
            // There is one that is not older, or another one made it at the same moment.
            let find = doc! { "find": COLLECTION, "filter": { "_id": grant.key.as_str() }, "limit": 1 };
            let found = self.client.rows(cx, find).await?.pop();
            let newest = found.filter(|found| number(found.get("epoch")).is_none_or(|epoch| epoch >= grant.epoch.0));
            if let Some(newest) = newest {
                return Ok(Some((newest, false)));
            }
        }
        Err(Error::unavailable("the checkpoint was changed meanwhile").remedy("it is claimed again"))
    }

    async fn commit_one(&self, cx: &Cx, write: &CheckpointWrite) -> Result<Commit> {
        if write.seq == 0 {
            return Err(Error::internal("the first commit of a tenure is 1"));
        }
        let alone = write.ledger.is_empty() && write.resolve.is_empty();
        let done = match alone {
            true => self.commit_alone(cx, write).await?,
            false if self.transactions => self.commit_with_ledger(cx, write).await?,
            false => self.commit_with_outbox(cx, write).await?,
        };
        if done {
            return Ok(Commit::Committed);
        }
        // Not the next one now; if it is when looked at again, another one with our grant was undone meanwhile.
        let changed = || Error::unavailable("the checkpoint was changed meanwhile");
        self.standing(cx, write).await?.ok_or_else(changed)
    }

    /// What a write means that was not taken: `None` when it could be taken now.
    pub(crate) async fn standing(&self, cx: &Cx, write: &CheckpointWrite) -> Result<Option<Commit>> {
        let claimed = Claimed::load(cx, &self.client, &write.grant.key).await?;
        Claimed::answer(&self.client, claimed.as_ref(), write)
    }

    /// A write without ledger: one document, so no transaction is needed. Whether it was the next one.
    async fn commit_alone(&self, cx: &Cx, write: &CheckpointWrite) -> Result<bool> {
        let update = doc! { "q": next_of(write), "u": { "$set": moved_by(write)? } };
        let reply = self.client.write(cx, doc! { "update": COLLECTION, "updates": [update] }).await?;
        Ok(reply.whole(&self.client)?.count() == 1)
    }

    /// The seat of a grant. A newer grant gets a new one.
    async fn checkpoint_session(&self, grant: &Grant) -> Arc<tokio::sync::Mutex<CheckpointSession>> {
        let fresh = || Arc::new(tokio::sync::Mutex::new(CheckpointSession::new(self.client.clone(), grant.clone())));
        let kept = {
            let mut checkpoint_sessions = self.checkpoint_sessions.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(checkpoint_sessions.entry(grant.key.clone()).or_insert_with(fresh))
        };
        if kept.lock().await.grant() == grant {
            return kept;
        }
        let fresh = fresh();
        self.checkpoint_sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(grant.key.clone(), Arc::clone(&fresh));
        fresh
    }

    async fn commit_with_ledger(&self, cx: &Cx, write: &CheckpointWrite) -> Result<bool> {
        let checkpoint_session = self.checkpoint_session(&write.grant).await;
        let mut checkpoint_session = checkpoint_session.lock().await;
        if !checkpoint_session.begin(cx).await? {
            return Ok(false);
        }
        match checkpoint_session.checkpoint(cx, write).await {
            Ok(true) => checkpoint_session.commit(cx).await.map(|()| true),
            answer => {
                checkpoint_session.abort(cx).await;
                answer
            }
        }
    }
}

#[async_trait]
impl CheckpointStore for Checkpoints {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        ensure(cx, &self.client, &[]).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        self.kill_older_sessions(cx, grant).await?;
        let Some((before, was_older)) = self.take(cx, grant).await? else {
            ledger::continue_numbers(cx, &self.client, grant).await?;
            return Ok(Claim::Claimed(None));
        };
        // Damaged or not, an older document is claimed by now (C11).
        let newest = Claimed::read(&self.client, &before)?;
        if !was_older {
            if !newest.is_by(grant) {
                return Ok(Claim::Behind { newest: newest.epoch });
            }
            if !before.contains_key("ledger") {
                // An earlier claim of this tenure may have been dropped right after it had made the document.
                ledger::continue_numbers(cx, &self.client, grant).await?;
            }
        }
        let checkpoint = stored_checkpoint(&self.client, before.get("checkpoint"))?;
        Ok(Claim::Claimed(checkpoint.map(Box::new)))
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            answers.push(self.commit_one(cx, write).await);
        }
        one_answer(answers)
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        Self::peek(cx, &self.client, key).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        if !self.transactions {
            self.carry_rest(cx, key).await?;
        }
        ledger::find(cx, &self.client, key, query).await
    }
}
