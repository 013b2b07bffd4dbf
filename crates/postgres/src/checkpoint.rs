//! Fenced checkpoints and the ledger.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use watchkeeper_core::checkpoint::one_answer;
use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Epoch, Error, ErrorKind, Grant, LeaseKey,
    LedgerEntry, LedgerQuery, LedgerRecord, Result, StoreIdentity,
};

use crate::client::{Client, Schema, Value, Work};
use crate::json;

mod slice;
mod sql;

use slice::{CommitResult, Slice, commit_result};

pub(crate) const SCHEMA: Schema = Schema { role: "checkpoint", steps: &[sql::TABLES] };

/// Checkpoints in a PostgreSQL database.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    client: Client,
    identity: StoreIdentity,
    statements: Arc<Statements>,
}

/// The statements, with the schema in its place.
#[derive(Debug)]
struct Statements {
    begin: String,
    claimed: String,
    claim_now: String,
    claim: String,
    blockers: String,
    evict: String,
    commit_now: String,
    commit: String,
    ledger: String,
}

/// How often a claim looks again when others are at the same row.
const CLAIM_TRIES: usize = 8;

impl Checkpoints {
    /// The checkpoints in the client's database, whose tables are made where they are missing.
    ///
    /// # Errors
    /// `Denied` when they are missing and may not be made.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        let identity = client.ensure(cx, SCHEMA).await?;
        let statements = Statements {
            begin: client.sql(sql::BEGIN),
            claimed: client.sql(sql::CLAIMED),
            claim_now: client.sql(sql::CLAIM_NOW),
            claim: client.sql(sql::CLAIM),
            blockers: client.sql(sql::BLOCKERS),
            evict: client.sql(sql::EVICT),
            commit_now: client.sql(&sql::commit(false)),
            commit: client.sql(&sql::commit(true)),
            ledger: client.sql(sql::LEDGER),
        };
        Ok(Self { client, identity, statements: Arc::new(statements) })
    }

    /// The checkpoint of a key, also where nothing was ever opened: nothing is made.
    pub(crate) async fn peek(cx: &Cx, client: &Client, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        if client.inspect(cx, SCHEMA).await?.is_none() {
            return Ok(None);
        }
        Self::stored(cx, client, &client.sql(sql::CLAIMED), key).await
    }

    async fn stored(cx: &Cx, client: &Client, claimed: &str, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let rows = client.read(cx, claimed, &[(&key.as_str(), Type::TEXT)]).await?;
        let text = rows.first().and_then(|row| row.get::<_, Option<String>>(2));
        text.map(|text| json::read(client, &text)).transpose()
    }

    /// The identity of the database.
    pub fn store_identity(&self) -> StoreIdentity {
        self.identity
    }

    /// The connections behind it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Begins a transaction with the commit of one write, by the rules C5 to C7. From then on the row is locked: whoever claims
    /// meanwhile has to end this transaction first, so that nothing of it is ever seen beside its successor's.
    pub(crate) async fn begin_with(&self, cx: &Cx, write: &CheckpointWrite) -> Result<(Work, Commit)> {
        let slice = Slice::of(&[write])?;
        let (work, rows) = Work::begin_with(&self.client, cx, &self.statements.commit, &slice.values()).await?;
        match rows.first().map(|row| commit_result(&self.client, row, write)).transpose()? {
            Some(CommitResult::Known(commit)) => Ok((work, commit)),
            // Only when it was claimed between two looks: the next try finds out by whom.
            _ => Err(busy(&self.client, &write.grant.key)),
        }
    }

    /// Tries many writes in one round trip, without waiting for anyone.
    async fn commit_now(&self, cx: &Cx, writes: &[&CheckpointWrite]) -> Result<Vec<Result<CommitResult>>> {
        let slice = Slice::of(writes)?;
        let rows = self.client.write(cx, &self.statements.commit_now, &slice.values()).await?;
        Ok(rows.iter().zip(writes).map(|(row, write)| commit_result(&self.client, row, write)).collect())
    }

    /// Writes a key that someone has locked, once that one is done.
    async fn commit_patiently(&self, cx: &Cx, write: &CheckpointWrite) -> Result<Commit> {
        let slice = Slice::of(&[write])?;
        let rows = self.client.write(cx, &self.statements.commit, &slice.values()).await?;
        match rows.first().map(|row| commit_result(&self.client, row, write)).transpose()? {
            Some(CommitResult::Known(commit)) => Ok(commit),
            _ => Err(busy(&self.client, &write.grant.key)),
        }
    }

    /// Commits writes of different keys, each whatever becomes of the others.
    async fn commit_round(&self, cx: &Cx, writes: &[&CheckpointWrite]) -> Vec<Result<Commit>> {
        let merged_writes = match self.commit_now(cx, writes).await {
            Ok(merged_writes) => merged_writes,
            Err(error) => {
                let (kind, advice) = (error.kind(), error.advice().unwrap_or_default().to_owned());
                let same = || Err(Error::new(kind, error.message().to_owned()).remedy(advice.clone()));
                return writes.iter().map(|_| same()).collect();
            }
        };
        let mut answers = Vec::with_capacity(writes.len());
        for (commit_result, write) in merged_writes.into_iter().zip(writes) {
            answers.push(match commit_result {
                Ok(CommitResult::Known(commit)) => Ok(commit),
                Ok(CommitResult::Locked) => self.commit_patiently(cx, write).await,
                Err(error) => Err(error),
            });
        }
        answers
    }

    fn claim_values<'a>(key: &'a &'a str, epoch: &'a i64, tenure: &'a Uuid) -> [Value<'a>; 3] {
        [(key, Type::TEXT), (epoch, Type::INT8), (tenure, Type::UUID)]
    }

    /// The newest claimed epoch, if the row says that `grant` is behind it.
    fn newer(grant: &Grant, row: &Row) -> Option<Epoch> {
        let (epoch, tenure): (i64, Uuid) = (row.get(0), row.get(1));
        let newest = Epoch(epoch.cast_unsigned());
        let ours = newest == grant.epoch && tenure == grant.tenure.0;
        (!ours && newest >= grant.epoch).then_some(newest)
    }

    /// What the row that was claimed, or not, says.
    fn claimed(&self, grant: &Grant, row: &Row) -> Result<Claim> {
        if let Some(newest) = Self::newer(grant, row) {
            return Ok(Claim::Behind { newest });
        }
        Ok(Claim::Claimed(self.checkpoint(row.get(2))?.map(Box::new)))
    }

    fn checkpoint(&self, text: Option<String>) -> Result<Option<Checkpoint>> {
        text.map(|text| json::read(&self.client, &text)).transpose()
    }

    /// Ends the open transactions of an older claim that have locked the row. They could hang for ever, such as those of a
    /// process that was stopped, and hold locks on the target's rows as well.
    async fn evict(&self, cx: &Cx, grant: &Grant) -> Result<()> {
        let (key, epoch) = (grant.key.as_str(), grant.epoch.0.cast_signed());
        let ended = self.client.read(cx, &self.statements.evict, &[(&key, Type::TEXT), (&epoch, Type::INT8)]).await;
        match ended {
            Ok(ended) => tracing::info!(key, sessions = ended.len(), "ended transactions of an earlier holder"),
            // Who may not end them waits for them.
            Err(error) if error.kind() == ErrorKind::Denied => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Waits for whoever has locked the row; says who, if that takes too long.
    async fn claim_patiently(&self, cx: &Cx, grant: &Grant) -> Result<Option<Row>> {
        let (key, epoch) = (grant.key.as_str(), grant.epoch.0.cast_signed());
        let blockers =
            self.client.read(cx, &self.statements.blockers, &[(&key, Type::TEXT), (&epoch, Type::INT8)]).await?;
        let values = Self::claim_values(&key, &epoch, &grant.tenure.0);
        match self.client.write(cx, &self.statements.claim, &values).await {
            Ok(rows) => Ok(rows.into_iter().next()),
            Err(error) => match blockers.first() {
                Some(blocker) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {
                    Err(self.blocked(grant, blocker, error))
                }
                _ => Err(error),
            },
        }
    }

    fn blocked(&self, grant: &Grant, row: &Row, error: Error) -> Error {
        let (pid, user, name, state): (i32, String, String, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
        let seconds: i64 = row.get(4);
        let (place, key) = (self.client.place(), &grant.key);
        let who = format!("session {pid} (user {user:?}, application {name:?}, {state}, for {seconds} s)");
        Error::new(error.kind(), format!("{place}: the checkpoint of {key} is locked by an open transaction of {who}"))
            .remedy(format!("run SELECT pg_terminate_backend({pid}), or GRANT pg_signal_backend to this user"))
            .caused_by(error)
    }
}

fn busy(client: &Client, key: &LeaseKey) -> Error {
    Error::unavailable(format!("{}: the checkpoint of {key} is being claimed", client.place()))
        .remedy("it is tried again")
}

/// Writes in rounds, in each of which every key stands once: a statement cannot write a row twice.
fn rounds(writes: &[CheckpointWrite]) -> Vec<Vec<usize>> {
    let (mut left, mut rounds) = (Vec::from_iter(0..writes.len()), Vec::new());
    while !left.is_empty() {
        let mut seen = BTreeSet::new();
        let (round, later): (Vec<_>, Vec<_>) = left.iter().partition(|n| seen.insert(writes[**n].grant.key.as_str()));
        rounds.push(round);
        left = later;
    }
    rounds
}

#[async_trait]
impl CheckpointStore for Checkpoints {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        self.client.ensure(cx, SCHEMA).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        let cx = self.client.bounded(cx);
        let (key, epoch) = (grant.key.as_str(), grant.epoch.0.cast_signed());
        let values = Self::claim_values(&key, &epoch, &grant.tenure.0);
        for _ in 0..CLAIM_TRIES {
            if let Some(row) = self.client.write(&cx, &self.statements.claim_now, &values).await?.first() {
                return self.claimed(grant, row);
            }
            // Locked, or not there.
            let rows = self.client.read(&cx, &self.statements.claimed, &[(&key, Type::TEXT)]).await?;
            let Some(row) = rows.first() else {
                if !self.client.write(&cx, &self.statements.begin, &values).await?.is_empty() {
                    return Ok(Claim::Claimed(None));
                }
                continue;
            };
            // Epochs only grow, so this is true whoever has locked it; and nobody ends the work of a newer one.
            if let Some(newest) = Self::newer(grant, row) {
                return Ok(Claim::Behind { newest });
            }
            self.evict(&cx, grant).await?;
            if let Some(row) = self.claim_patiently(&cx, grant).await? {
                return self.claimed(grant, &row);
            }
        }
        Err(busy(&self.client, &grant.key))
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let mut answers: Vec<Option<Result<Commit>>> = writes.iter().map(|_| None).collect();
        for round in rounds(writes) {
            let part: Vec<&CheckpointWrite> = round.iter().map(|n| &writes[*n]).collect();
            for (n, answer) in round.iter().zip(self.commit_round(cx, &part).await) {
                answers[*n] = Some(answer);
            }
        }
        let missing = || Err(Error::unknown("a commit was not answered").remedy("it is repeated"));
        one_answer(answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect())
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        Self::stored(cx, &self.client, &self.statements.claimed, key).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let key = key.as_str();
        let values: [Value<'_>; 4] =
            [(&key, Type::TEXT), (&after, Type::INT8), (&query.open_only, Type::BOOL), (&limit, Type::INT8)];
        let rows = self.client.read(cx, &self.statements.ledger, &values).await?;
        rows.iter().map(|row| ledger_record(&self.client, row)).collect()
    }
}

fn ledger_record(client: &Client, row: &Row) -> Result<LedgerRecord> {
    let (number, entry): (i64, String) = (row.get(0), row.get(1));
    let (body, word): (Option<Vec<u8>>, Option<String>) = (row.get(2), row.get(3));
    let mut entry: LedgerEntry = json::read(client, &entry)?;
    if let Some(change) = &mut entry.change {
        change.body = body.map(Into::into);
    }
    let resolution = word.map(|word| slice::resolution(&word).ok_or_else(|| json::damaged(client))).transpose()?;
    Ok(LedgerRecord::new(number.cast_unsigned(), entry, resolution))
}
