//! Records: small documents with revisions, and bounded logs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{Cx, Error, PutOutcome, Record, Records, Result, Revision};

use crate::client::{ChangeHints, Client, Schema, Value};

const TABLES: &str = r#"
-- One counter for all names, so that no name ever sees a revision twice.
CREATE SEQUENCE {schema}.revisions;
CREATE TABLE {schema}.records (
    name text COLLATE "C" PRIMARY KEY,
    bytes bytea NOT NULL,
    revision bigint NOT NULL,
    at timestamptz NOT NULL
) WITH (fillfactor = 40);
CREATE TABLE {schema}.logs (
    name text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    bytes bytea NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (name, revision)
)"#;

pub(crate) const SCHEMA: Schema = Schema { role: "records", steps: &[TABLES] };

const AGE: &str = "(extract(epoch FROM clock_timestamp() - at) * 1000000)::int8";

/// Records in a PostgreSQL database.
#[derive(Debug, Clone)]
pub struct RecordStore {
    client: Client,
    channel: Arc<str>,
    hints: Arc<Mutex<Option<ChangeHints>>>,
}

impl RecordStore {
    /// The records in the client's database, whose tables are made where they are missing.
    ///
    /// # Errors
    /// `Denied` when they are missing and may not be made.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        client.ensure(cx, SCHEMA).await?;
        let channel = format!("{}_records", client.schema()).into();
        Ok(Self { client, channel, hints: Arc::default() })
    }

    fn kept_hints(&self) -> Option<ChangeHints> {
        let kept = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone().filter(|hints| !hints.has_ended())
    }

    async fn change_hints(&self, cx: &Cx) -> Result<ChangeHints> {
        if let Some(hints) = self.kept_hints() {
            return Ok(hints);
        }
        let hints = ChangeHints::start(cx, &self.client, &self.channel).await?;
        *self.hints.lock().unwrap_or_else(PoisonError::into_inner) = Some(hints.clone());
        Ok(hints)
    }

    /// A statement that writes (`done`, with a revision), and tells those who wait if it did.
    async fn put(&self, cx: &Cx, write: &str, values: &[Value<'_>]) -> Result<PutOutcome> {
        let channel = values.len() + 1;
        let sql = self.client.sql(&format!(
            "WITH done AS ({write}), told AS MATERIALIZED (SELECT pg_notify(${channel}, '') FROM done)
            SELECT done.revision FROM done, told"
        ));
        let name: &str = &self.channel;
        let values = [values, &[(&name, Type::TEXT)]].concat();
        let rows = self.client.write(cx, &sql, &values).await?;
        Ok(rows
            .first()
            .map_or(PutOutcome::Conflict, |row| PutOutcome::Done(Revision(row.get::<_, i64>(0).cast_unsigned()))))
    }
}

fn fits(name: &str, bytes: &Bytes) -> Result<()> {
    if bytes.len() <= RECORD_BYTES_MAX {
        return Ok(());
    }
    Err(Error::config(format!("record {name} has {} bytes, more than {RECORD_BYTES_MAX}", bytes.len()))
        .remedy("write less into it"))
}

fn record(row: &Row) -> Record {
    let (bytes, revision, age_us): (Vec<u8>, i64, i64) = (row.get(1), row.get(2), row.get(3));
    let age = Duration::from_micros(u64::try_from(age_us).unwrap_or(0));
    Record::new(row.get::<_, String>(0), bytes.into(), Revision(revision.cast_unsigned()), age)
}

#[async_trait]
impl Records for RecordStore {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        let sql = format!("SELECT name, bytes, revision, {AGE} FROM {{schema}}.records WHERE name = $1");
        let rows = self.client.read(cx, &self.client.sql(&sql), &[(&name, Type::TEXT)]).await?;
        Ok(rows.first().map(record))
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let sql = format!(
            "SELECT name, bytes, revision, {AGE} FROM {{schema}}.records
            WHERE name >= $1 AND starts_with(name, $1) ORDER BY name"
        );
        let rows = self.client.read(cx, &self.client.sql(&sql), &[(&prefix, Type::TEXT)]).await?;
        Ok(rows.iter().map(record).collect())
    }

    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        fits(name, &bytes)?;
        let bytes: &[u8] = &bytes;
        let Some(Revision(expected)) = expected else {
            let write = "INSERT INTO {schema}.records
                VALUES ($1, $2, nextval('{schema}.revisions'), clock_timestamp())
                ON CONFLICT (name) DO NOTHING RETURNING revision";
            return self.put(cx, write, &[(&name, Type::TEXT), (&bytes, Type::BYTEA)]).await;
        };
        let write = "UPDATE {schema}.records
            SET bytes = $2, revision = nextval('{schema}.revisions'), at = clock_timestamp()
            WHERE name = $1 AND revision = $3 RETURNING revision";
        let expected = expected.cast_signed();
        self.put(cx, write, &[(&name, Type::TEXT), (&bytes, Type::BYTEA), (&expected, Type::INT8)]).await
    }

    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let write = "DELETE FROM {schema}.records WHERE name = $1 AND revision = $2 RETURNING revision";
        self.put(cx, write, &[(&name, Type::TEXT), (&expected.0.cast_signed(), Type::INT8)]).await
    }

    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        fits(log, &bytes)?;
        let (bytes, keep): (&[u8], _) = (&bytes, i64::try_from(keep).unwrap_or(i64::MAX));
        let channel: &str = &self.channel;
        // The old ones are counted without the new one, which the same statement does not see yet.
        let sql = self.client.sql(
            "WITH added AS (INSERT INTO {schema}.logs
                SELECT $1, nextval('{schema}.revisions'), $2, clock_timestamp() WHERE $3 > 0),
            dropped AS (DELETE FROM {schema}.logs WHERE name = $1 AND revision <=
                (SELECT revision FROM {schema}.logs WHERE name = $1 ORDER BY revision DESC
                    LIMIT 1 OFFSET greatest($3 - 1, 0)))
            SELECT pg_notify($4, '')",
        );
        let values: [Value<'_>; 4] =
            [(&log, Type::TEXT), (&bytes, Type::BYTEA), (&keep, Type::INT8), (&channel, Type::TEXT)];
        self.client.write(cx, &sql, &values).await.map(drop)
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        let sql = format!(
            "SELECT name, bytes, revision, {AGE} FROM {{schema}}.logs
            WHERE name = $1 ORDER BY revision DESC LIMIT $2"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.client.read(cx, &self.client.sql(&sql), &[(&log, Type::TEXT), (&limit, Type::INT8)]).await?;
        Ok(rows.iter().rev().map(record).collect())
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        if !self.client.can_listen() {
            return cx.run(std::future::pending()).await;
        }
        let mut hints = self.change_hints(cx).await?;
        hints.mark_seen();
        cx.run(hints.changed()).await
    }
}
