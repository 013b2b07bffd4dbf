//! Fenced checkpoints and the ledger.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};
use watchkeeper_core::checkpoint::{missing_record, one_answer};
use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Epoch, Error, Grant, LeaseKey, LedgerEntry,
    LedgerQuery, LedgerRecord, Resolution, Result, StoreIdentity, TenureId,
};

use crate::client::{Client, Process, Schema, write_on, write_or_evict};
use crate::error::Failure;
use crate::json;

pub(crate) const SCHEMA: Schema = Schema {
    role: "checkpoint",
    version: 1,
    sql: "CREATE TABLE watchkeeper_checkpoints(
        key TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        tenure TEXT NOT NULL,
        seq INTEGER NOT NULL,
        checkpoint TEXT,
        pid INTEGER NOT NULL,
        started INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE watchkeeper_ledger(
        key TEXT NOT NULL,
        number INTEGER NOT NULL,
        entry TEXT NOT NULL,
        body BLOB,
        resolution TEXT,
        PRIMARY KEY (key, number)) STRICT;",
};

/// Checkpoints in a SQLite file.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    client: Client,
    identity: StoreIdentity,
}

impl Checkpoints {
    /// The checkpoints in the client's file, whose tables are made where they are missing.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        client.maintain(cx, SCHEMA).await?;
        let identity = client.read(cx, |transaction| stored_identity(transaction)).await?;
        Ok(Self { client, identity })
    }

    /// The checkpoint of a key, also where nothing was ever opened: nothing is made.
    pub(crate) async fn peek(cx: &Cx, client: &Client, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let key = key.clone();
        let observation = move |transaction: &rusqlite::Transaction<'_>| {
            if !SCHEMA.is_there(transaction)? {
                return Ok(None);
            }
            load(transaction, &key)
        };
        client.read(cx, observation).await
    }

    /// The identity of the file.
    pub fn store_identity(&self) -> StoreIdentity {
        self.identity
    }

    /// The connection behind it.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

fn stored_identity(connection: &Connection) -> Result<StoreIdentity, Failure> {
    let sql = "SELECT value FROM watchkeeper_meta WHERE name = 'identity'";
    let text: String = connection.query_row(sql, [], |row| row.get(0))?;
    let identity = text.parse().map_err(|error| Error::corrupt("the identity of the file is no UUID").caused_by(error));
    Ok(StoreIdentity(identity?))
}

/// The newest claim of a key.
struct Claimed {
    epoch: Epoch,
    tenure: String,
    seq: u64,
    /// As it is stored, which need not be text if someone edited it: a claim takes effect whatever it is (C11).
    checkpoint: Option<Vec<u8>>,
}

impl Claimed {
    fn load(connection: &Connection, key: &LeaseKey) -> Result<Option<Self>, Failure> {
        let sql = "SELECT epoch, tenure, seq, checkpoint FROM watchkeeper_checkpoints WHERE key = ?1";
        let claimed = |row: &Row<'_>| {
            let (epoch, seq): (i64, i64) = (row.get(0)?, row.get(2)?);
            let (epoch, seq) = (Epoch(epoch.cast_unsigned()), seq.cast_unsigned());
            let tenure = String::from_utf8_lossy(row.get_ref(1)?.as_bytes()?).into_owned();
            let checkpoint = row.get_ref(3)?.as_bytes_or_null()?.map(<[u8]>::to_vec);
            Ok(Self { epoch, tenure, seq, checkpoint })
        };
        Ok(connection.prepare_cached(sql)?.query_row([key.as_str()], claimed).optional()?)
    }

    fn is_by(&self, epoch: Epoch, tenure: TenureId) -> bool {
        self.epoch == epoch && self.tenure == tenure.to_string()
    }

    fn checkpoint(&self) -> Result<Option<Checkpoint>, Failure> {
        self.checkpoint.as_deref().map(json::read_bytes).transpose()
    }
}

fn load(connection: &Connection, key: &LeaseKey) -> Result<Option<Checkpoint>, Failure> {
    Claimed::load(connection, key)?.map_or(Ok(None), |claimed| claimed.checkpoint())
}

/// Claims by the rules C1 to C4. The inner error is that of a stored checkpoint that cannot be read: the claim is written nevertheless
/// (C11).
fn claim(connection: &Connection, grant: &Grant) -> Result<Result<Claim, Failure>, Failure> {
    let stored = Claimed::load(connection, &grant.key)?;
    let checkpoint = stored.as_ref().map_or(Ok(None), Claimed::checkpoint);
    match stored {
        Some(claimed) if claimed.is_by(grant.epoch, grant.tenure) => {}
        Some(claimed) if claimed.epoch >= grant.epoch => return Ok(Ok(Claim::Behind { newest: claimed.epoch })),
        _ => {
            let sql = "INSERT INTO watchkeeper_checkpoints VALUES (?1, ?2, ?3, 0, NULL, ?4, ?5)
                ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, tenure = excluded.tenure, seq = 0,
                    pid = excluded.pid, started = excluded.started";
            let (pid, started) = Process::own();
            let values = (grant.key.as_str(), grant.epoch.0.cast_signed(), grant.tenure.to_string(), pid, started);
            connection.prepare_cached(sql)?.execute(values)?;
        }
    }
    Ok(checkpoint.map(|checkpoint| Claim::Claimed(checkpoint.map(Box::new))))
}

/// The process that has claimed before `grant`, as it wrote itself down with its claim.
fn claimer(connection: &Connection, grant: &Grant) -> Result<Option<(i32, i64)>, Failure> {
    let sql = "SELECT pid, started FROM watchkeeper_checkpoints WHERE key = ?1 AND epoch < ?2 AND tenure <> ?3";
    let values = (grant.key.as_str(), grant.epoch.0.cast_signed(), grant.tenure.to_string());
    Ok(connection.query_row(sql, values, |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

/// Commits one write by the rules C5 to C7 and C10, inside the caller's write transaction.
pub(crate) fn commit(connection: &Connection, write: &CheckpointWrite) -> Result<Commit, Failure> {
    let claimed = Claimed::load(connection, &write.grant.key)?;
    let Some(claimed) = claimed else { return Err(missing_record("SQLite", &write.grant.key).into()) };
    if !claimed.is_by(write.grant.epoch, write.grant.tenure) {
        return Ok(Commit::Fenced);
    }
    if write.seq == claimed.seq {
        return Ok(Commit::AlreadyDone);
    }
    if write.seq != claimed.seq + 1 {
        let (got, stored) = (write.seq, claimed.seq);
        return Err(Error::internal(format!("commit {got} after {stored} of one tenure")).into());
    }
    let sql = "UPDATE watchkeeper_checkpoints SET seq = ?2, checkpoint = ?3 WHERE key = ?1";
    let values = (write.grant.key.as_str(), write.seq.cast_signed(), json::text(&write.to_checkpoint())?);
    connection.prepare_cached(sql)?.execute(values)?;
    note(connection, write)?;
    Ok(Commit::Committed)
}

fn note(connection: &Connection, write: &CheckpointWrite) -> Result<(), Failure> {
    let key = write.grant.key.as_str();
    for (number, resolution) in &write.resolve {
        let sql = "UPDATE watchkeeper_ledger SET resolution = ?3 WHERE key = ?1 AND number = ?2";
        let values = (key, number.cast_signed(), json::text(resolution)?);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    for entry in &write.ledger {
        // Bodies are bytes, which JSON would blow up to four times their size.
        let mut entry = entry.clone();
        let body = entry.change.as_mut().and_then(|change| change.body.take());
        let sql = "INSERT INTO watchkeeper_ledger SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, NULL
            FROM watchkeeper_ledger WHERE key = ?1";
        connection.prepare_cached(sql)?.execute((key, json::text(&entry)?, body.as_deref()))?;
    }
    Ok(())
}

fn ledger(connection: &Connection, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>, Failure> {
    let sql = "SELECT number, entry, body, resolution FROM watchkeeper_ledger
        WHERE key = ?1 AND number > ?2 AND (resolution IS NULL OR NOT ?3) ORDER BY number LIMIT ?4";
    let after = i64::try_from(query.after).unwrap_or(i64::MAX);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((key.as_str(), after, query.open_only, limit))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(ledger_record(row)?);
    }
    Ok(found)
}

fn ledger_record(row: &Row<'_>) -> Result<LedgerRecord, Failure> {
    let (number, entry): (i64, String) = (row.get(0)?, row.get(1)?);
    let (body, resolution): (Option<Vec<u8>>, Option<String>) = (row.get(2)?, row.get(3)?);
    let mut entry: LedgerEntry = json::read(&entry)?;
    if let Some(change) = &mut entry.change {
        change.body = body.map(Into::into);
    }
    let resolution = resolution.as_deref().map(json::read::<Resolution>).transpose()?;
    Ok(LedgerRecord::new(number.cast_unsigned(), entry, resolution))
}

#[async_trait]
impl CheckpointStore for Checkpoints {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        self.client.read(cx, |transaction| stored_identity(transaction)).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        let (grant, config) = (grant.clone(), self.client.config());
        if !config.evict {
            let claim =
                move |connection: &mut Connection| write_on(connection, |transaction| claim(transaction, &grant))?;
            return self.client.run(cx, claim).await;
        }
        let path = config.path.clone();
        let claim = move |connection: &mut Connection| {
            let replaced = |connection: &Connection| claimer(connection, &grant);
            write_or_evict(connection, &path, |transaction| claim(transaction, &grant), replaced)?
        };
        self.client.run(cx, claim).await
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let (writes, path) = (writes.to_vec(), self.client.config().path.clone());
        let each = move |connection: &mut Connection| {
            let mut one = |write| write_on(connection, |transaction| commit(transaction, write));
            let answers = writes.iter().map(|write| one(write).map_err(|failure| failure.into_error(&path)));
            Ok(one_answer(answers.collect())?)
        };
        self.client.run(cx, each).await
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let key = key.clone();
        self.client.read(cx, move |transaction| load(transaction, &key)).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        let (key, query) = (key.clone(), *query);
        self.client.read(cx, move |transaction| ledger(transaction, &key, &query)).await
    }
}
