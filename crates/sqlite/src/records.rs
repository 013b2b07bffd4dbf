//! Small documents and logs, beside the leases.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row};
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{Cx, Error, PutOutcome, Record, Records, Result, Revision};

use crate::client::{ChangeHints, Client, Schema};
use crate::clock::{Stamp, wall_millis};
use crate::error::Failure;

pub(crate) const SCHEMA: Schema = Schema {
    role: "records",
    version: 1,
    sql: "CREATE TABLE watchkeeper_records(
        name TEXT PRIMARY KEY,
        bytes BLOB NOT NULL,
        revision INTEGER NOT NULL,
        boot TEXT NOT NULL,
        millis INTEGER NOT NULL,
        wall_millis INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE watchkeeper_logs(
        name TEXT NOT NULL,
        bytes BLOB NOT NULL,
        revision INTEGER NOT NULL,
        boot TEXT NOT NULL,
        millis INTEGER NOT NULL,
        wall_millis INTEGER NOT NULL,
        PRIMARY KEY (name, revision)) STRICT, WITHOUT ROWID;
    INSERT OR IGNORE INTO watchkeeper_meta VALUES ('revision', 0);",
};

const NEWEST: &str = "SELECT value FROM watchkeeper_meta WHERE name = 'revision'";

/// Records in a SQLite file.
#[derive(Debug, Clone)]
pub struct RecordStore {
    client: Client,
    /// Started by the first who waits, and kept, so that waiting again costs nothing.
    hints: Arc<Mutex<Option<ChangeHints>>>,
}

impl RecordStore {
    /// The records in the client's file, whose tables are made where they are missing.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        client.maintain(cx, SCHEMA).await?;
        Ok(Self { client, hints: Arc::default() })
    }

    fn kept_hints(&self) -> Option<ChangeHints> {
        let kept = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone().filter(|hints| !hints.has_ended())
    }

    async fn change_hints(&self, cx: &Cx) -> Result<ChangeHints> {
        if let Some(hints) = self.kept_hints() {
            return Ok(hints);
        }
        let hints = ChangeHints::start(cx, &self.client, NEWEST).await?;
        *self.hints.lock().unwrap_or_else(PoisonError::into_inner) = Some(hints.clone());
        Ok(hints)
    }
}

fn fits(name: &str, bytes: &Bytes) -> Result<()> {
    if bytes.len() <= RECORD_BYTES_MAX {
        return Ok(());
    }
    Err(Error::config(format!("record {name} has {} bytes, more than {RECORD_BYTES_MAX}", bytes.len())))
}

/// One counter for all names, so that no name ever sees a revision twice. Deleting counts too, so that those
/// who follow the counter are told.
fn next_revision(connection: &Connection) -> Result<i64, Failure> {
    let sql = "UPDATE watchkeeper_meta SET value = value + 1 WHERE name = 'revision' RETURNING value";
    Ok(connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

fn stored_revision(connection: &Connection, name: &str) -> Result<Option<Revision>, Failure> {
    let sql = "SELECT revision FROM watchkeeper_records WHERE name = ?1";
    let found = connection.prepare_cached(sql)?.query_row([name], |row| row.get::<_, i64>(0)).optional()?;
    Ok(found.map(|revision| Revision(revision.cast_unsigned())))
}

fn record(row: &Row<'_>, now: &Stamp) -> rusqlite::Result<Record> {
    let (bytes, revision): (Vec<u8>, i64) = (row.get(1)?, row.get(2)?);
    let at = Stamp { boot: row.get(3)?, millis: row.get(4)? };
    let (bytes, revision) = (bytes.into(), Revision(revision.cast_unsigned()));
    Ok(Record::new(row.get::<_, String>(0)?, bytes, revision, at.age(now)))
}

fn put(
    connection: &Connection,
    name: &str,
    expected: Option<Revision>,
    bytes: &[u8],
    now: &Stamp,
) -> Result<PutOutcome, Failure> {
    if stored_revision(connection, name)? != expected {
        return Ok(PutOutcome::Conflict);
    }
    let revision = next_revision(connection)?;
    let sql = "INSERT OR REPLACE INTO watchkeeper_records VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = (name, bytes, revision, &now.boot, now.millis, wall_millis());
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(PutOutcome::Done(Revision(revision.cast_unsigned())))
}

fn append(connection: &Connection, log: &str, bytes: &[u8], keep: usize, now: &Stamp) -> Result<(), Failure> {
    let revision = next_revision(connection)?;
    let sql = "INSERT INTO watchkeeper_logs VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = (log, bytes, revision, &now.boot, now.millis, wall_millis());
    connection.prepare_cached(sql)?.execute(values)?;
    let sql = "DELETE FROM watchkeeper_logs WHERE name = ?1 AND revision <=
        (SELECT revision FROM watchkeeper_logs WHERE name = ?1 ORDER BY revision DESC LIMIT 1 OFFSET ?2)";
    connection.prepare_cached(sql)?.execute((log, i64::try_from(keep).unwrap_or(i64::MAX)))?;
    Ok(())
}

#[async_trait]
impl Records for RecordStore {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        let (name, now) = (name.to_owned(), self.client.now());
        let get = move |transaction: &rusqlite::Transaction<'_>| {
            let sql = "SELECT name, bytes, revision, boot, millis FROM watchkeeper_records WHERE name = ?1";
            Ok(transaction.prepare_cached(sql)?.query_row([name], |row| record(row, &now)).optional()?)
        };
        self.client.read(cx, get).await
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let (prefix, now) = (prefix.to_owned(), self.client.now());
        let list = move |transaction: &rusqlite::Transaction<'_>| {
            let sql =
                "SELECT name, bytes, revision, boot, millis FROM watchkeeper_records WHERE name >= ?1 ORDER BY name";
            let mut statement = transaction.prepare_cached(sql)?;
            let rows = statement.query_map([&prefix], |row| record(row, &now))?;
            // Names are in the order of their bytes, so the first with another beginning ends the list.
            let found = rows.take_while(|row| row.as_ref().map_or(true, |record| record.name.starts_with(&prefix)));
            Ok(found.collect::<rusqlite::Result<_>>()?)
        };
        self.client.read(cx, list).await
    }

    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        fits(name, &bytes)?;
        let (name, client) = (name.to_owned(), self.client.clone());
        self.client.write(cx, move |transaction| put(transaction, &name, expected, &bytes, &client.now())).await
    }

    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let name = name.to_owned();
        let delete = move |transaction: &rusqlite::Transaction<'_>| {
            if stored_revision(transaction, &name)? != Some(expected) {
                return Ok(PutOutcome::Conflict);
            }
            next_revision(transaction)?;
            transaction.execute("DELETE FROM watchkeeper_records WHERE name = ?1", [name])?;
            Ok(PutOutcome::Done(expected))
        };
        self.client.write(cx, delete).await
    }

    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        fits(log, &bytes)?;
        let (log, client) = (log.to_owned(), self.client.clone());
        self.client.write(cx, move |transaction| append(transaction, &log, &bytes, keep, &client.now())).await
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        let (log, now) = (log.to_owned(), self.client.now());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let tail = move |transaction: &rusqlite::Transaction<'_>| {
            let sql = "SELECT name, bytes, revision, boot, millis FROM watchkeeper_logs
                WHERE name = ?1 ORDER BY revision DESC LIMIT ?2";
            let mut statement = transaction.prepare_cached(sql)?;
            let rows = statement.query_map((log, limit), |row| record(row, &now))?;
            let mut newest = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            newest.reverse();
            Ok(newest)
        };
        self.client.read(cx, tail).await
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        let mut hints = self.change_hints(cx).await?;
        hints.mark_seen();
        cx.run(hints.changed()).await
    }
}
