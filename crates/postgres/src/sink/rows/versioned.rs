//! Typed rows in a database that does not keep the stream's checkpoint.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use watchkeeper_core::{
    Batch, Change, Cx, Error, Finding, FlushRejection, Grade, OpenedSink, Operation, Result, Sink, SinkContext,
    SinkProfile, SinkWriter, Written,
};

use super::super::Table;
use super::super::image::require_key;
use super::super::rekey::{incomplete, incomplete_key_update};
use super::super::tables::number;
use super::super::versioned::{TOMBSTONES, VersionedPut, write};
use super::known_fields::KnownFields;
use super::plan::{Plan, Row, RowWrite};
use super::shape::Shape;
use super::{Rows, clears, may_take};
use crate::client::{Client, Value, Work};
use crate::error::{is_column_gone, is_doubtful};

/// Typed rows as those of [`Rows`], of which an older version never overwrites a newer one.
///
/// The table stays as its owner made it. Which version each row has stands beside it, in a table of the same name with `_versions`
/// behind it, made where it is missing: with every row, in the same transaction, and with what was deleted, for a day, so
/// that a late write cannot bring it back.
#[derive(Debug, Clone)]
pub struct VersionedRows {
    client: Client,
    rows: Rows,
    versions: Table,
}

const VERSIONS: &str = "namespace text NOT NULL, key bytea NOT NULL, row json NOT NULL, version_time bigint NOT NULL,
    version_ordinal bigint NOT NULL, deleted timestamptz, PRIMARY KEY (namespace, key)";

impl VersionedRows {
    /// Into a table of the client's database.
    ///
    /// # Errors
    /// `Config` when the name of the table is too long for another one beside it.
    pub fn new(client: Client, rows: Rows) -> Result<Self> {
        let versions = rows.table().suffixed("_versions")?;
        Ok(Self { client, rows, versions })
    }

    /// The table of the versions.
    pub fn versions(&self) -> &Table {
        &self.versions
    }

    /// Refuses to write a table in several lanes if its rows depend on one another: a value that moves from one row to another may come
    /// before it has gone, and good changes would be rejected.
    pub(crate) async fn require_independence(&self, cx: &Cx, lanes: usize) -> Result<()> {
        if lanes <= 1 {
            return Ok(());
        }
        let sql = "SELECT indexrelid::regclass::text FROM pg_catalog.pg_index WHERE indrelid = to_regclass($1)
            AND (indisunique OR indisexclusion) AND NOT indisprimary ORDER BY 1 LIMIT 1";
        let rows = self.client.read(cx, sql, &[(&self.rows.table().sql(), Type::TEXT)]).await?;
        let Some(index) = rows.first().map(|row| row.get::<_, String>(0)) else { return Ok(()) };
        let cause = format!(
            "{:?} has the unique index {index} beside its primary key, and {lanes} lanes keep the order of each key only: \
             a value that moves from one row to another would be rejected",
            self.rows.table().written()
        );
        Err(Error::config(cause).remedy("write concurrency = 1 for this stream, or drop the index"))
    }

    async fn prepare(&self, cx: &Cx) -> Result<()> {
        self.rows.inspect(cx, &self.client).await?;
        self.versions.ensure(cx, &self.client, VERSIONS).await?;
        let table = self.versions.sql();
        let sql = format!("DELETE FROM {table} WHERE deleted < clock_timestamp() - interval '{TOMBSTONES}'");
        self.client.write(cx, &sql, &[]).await.map(drop)
    }
}

#[async_trait]
impl Sink for VersionedRows {
    fn profile(&self) -> SinkProfile {
        let settle = self.client.config().map_or(Duration::from_secs(10), |config| config.timeout);
        let mut profile = SinkProfile::new(Grade::Versioned, settle);
        profile.acts_on_barriers = true;
        profile.mirrors = true;
        profile
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.prepare(cx).await?;
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let (client, versions) = (self.client.clone(), self.versions.sql().to_owned());
        self.rows.note_writer(context);
        self.prepare(cx).await?;
        self.require_independence(cx, context.lanes).await?;
        Ok(OpenedSink::Plain(Arc::new(Writer { client, rows: self.rows.clone(), versions })))
    }
}

#[derive(Debug)]
struct Writer {
    client: Client,
    rows: Rows,
    /// As it stands in SQL.
    versions: String,
}

impl Writer {
    /// Notes the versions of all rows; the answer is whose are newer than what was there. Their rows in the table of versions are
    /// locked from then on, so that only one at a time decides about a row.
    async fn advance(&self, cx: &Cx, plan: &Plan<'_>) -> Result<(Work, BTreeSet<(String, Vec<u8>)>)> {
        let (mut namespaces, mut keys, mut rows, mut gone) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut times, mut ordinals) = (Vec::new(), Vec::new());
        for (namespace, key, change, row) in plan.rows() {
            namespaces.push(namespace);
            keys.push(key);
            rows.push(row.key.as_str());
            gone.push(row.merged_write == RowWrite::Gone);
            times.push(number(change.version().time));
            ordinals.push(number(change.version().ordinal));
        }
        let sql = format!(
            "INSERT INTO {versions} AS v (namespace, key, row, version_time, version_ordinal, deleted)
            SELECT namespace, key, row::json, time, ordinal, CASE WHEN gone THEN clock_timestamp() END
            FROM unnest($1, $2, $3, $4, $5, $6) WITH ORDINALITY AS f (namespace, key, row, gone, time, ordinal, n) ORDER BY n
            ON CONFLICT (namespace, key) DO UPDATE SET row = excluded.row, version_time = excluded.version_time,
                version_ordinal = excluded.version_ordinal, deleted = excluded.deleted
            WHERE (v.version_time, v.version_ordinal) < (excluded.version_time, excluded.version_ordinal)
            RETURNING namespace, key",
            versions = self.versions
        );
        let values: [Value<'_>; 6] = [
            (&namespaces, Type::TEXT_ARRAY),
            (&keys, Type::BYTEA_ARRAY),
            (&rows, Type::TEXT_ARRAY),
            (&gone, Type::BOOL_ARRAY),
            (&times, Type::INT8_ARRAY),
            (&ordinals, Type::INT8_ARRAY),
        ];
        let (work, won) = Work::begin_with(&self.client, cx, &sql, &values).await?;
        Ok((work, won.iter().map(|row| (row.get(0), row.get(1))).collect()))
    }

    /// The versions first: what follows is a statement of its own, which sees what whoever was waited for has written.
    async fn send(&self, cx: &Cx, shape: &Shape, plan: &mut Plan<'_>) -> Result<()> {
        let mut plan = std::mem::take(plan);
        if plan.is_empty() {
            return Ok(());
        }
        let (work, winners) = self.advance(cx, &plan).await?;
        plan.keep(&winners);
        for statement in plan.statements(shape) {
            let found = work.execute(cx, &statement.sql, &[(&statement.rows, Type::TEXT)]).await?;
            if !statement.is_done_by(found) {
                work.rollback(cx).await;
                return Err(incomplete());
            }
        }
        work.commit(cx).await
    }

    /// Takes away everything that is older than a truncate.
    async fn clear(&self, cx: &Cx, shape: &Shape, change: &Change) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET deleted = clock_timestamp(), version_time = $2, version_ordinal = $3
            WHERE namespace = $1 AND (version_time, version_ordinal) < ($2, $3) RETURNING row::text",
            self.versions
        );
        let (time, ordinal) = (number(change.version().time), number(change.version().ordinal));
        let values: [Value<'_>; 3] = [(&change.namespace(), Type::TEXT), (&time, Type::INT8), (&ordinal, Type::INT8)];
        let (work, gone) = Work::begin_with(&self.client, cx, &sql, &values).await?;
        let keys: Vec<String> = gone.iter().map(|row| row.get(0)).collect();
        let keys = format!("[{}]", keys.join(","));
        work.query(cx, &shape.delete(), &[(&keys, Type::TEXT)]).await?;
        work.commit(cx).await
    }
}

impl Writer {
    /// Looks at the table again, unless it was `found` before, for columns that take the `strangers` among the fields.
    async fn inspect(&self, cx: &Cx, found: &mut Option<Shape>, strangers: &BTreeSet<String>) -> Result<Arc<Shape>> {
        let shape = match found.take() {
            Some(shape) => shape,
            None => Shape::inspect(cx, &self.client, &self.rows.table, &[], self.rows.missing).await?,
        };
        self.rows.follow(found.insert(shape).clone(), strangers)
    }

    async fn put_now(&self, cx: &Cx, changes: &[Change]) -> Result<Vec<(usize, Error)>> {
        let mut shape = self.rows.shape()?;
        // What was looked at since these changes were read has the columns for whatever they tell.
        let (mut strangers, mut found) = (BTreeSet::new(), None);
        if shape.follows.as_ref().is_some_and(KnownFields::is_due) {
            shape = self.inspect(cx, &mut found, &strangers).await?;
        }
        let (mut plan, mut rejected) = (Plan::default(), Vec::new());
        for (at, change) in changes.iter().enumerate() {
            if let Some(key) = change.key() {
                let mut row = Row::of(&shape, change, &mut strangers);
                if may_take(found.as_ref(), &strangers) {
                    self.send(cx, &shape, &mut plan).await?;
                    shape = self.inspect(cx, &mut found, &std::mem::take(&mut strangers)).await?;
                    row = Row::of(&shape, change, &mut strangers);
                }
                match row {
                    Err(error) => rejected.push((at, error)),
                    Ok(row) if row.is_partial() && change.operation() == Operation::Insert => {
                        rejected.push((at, incomplete_key_update()));
                    }
                    Ok(row) => {
                        if !plan.takes(change, key, &row) {
                            self.send(cx, &shape, &mut plan).await?;
                        }
                        plan.note(change, key, row);
                    }
                }
            } else if clears(change) {
                self.send(cx, &shape, &mut plan).await?;
                self.clear(cx, &shape, change).await?;
            } else if let Err(error) = require_key(change) {
                rejected.push((at, error));
            }
        }
        self.send(cx, &shape, &mut plan).await?;
        if !strangers.is_empty() {
            self.rows.keep(Arc::new(shape.remembering(&strangers)));
        }
        Ok(rejected)
    }
}

#[async_trait]
impl VersionedPut for Writer {
    async fn put(&self, cx: &Cx, changes: &[Change]) -> Result<Vec<(usize, Error)>> {
        match self.put_now(cx, changes).await {
            Err(error) if is_column_gone(&error) => {
                self.rows.inspect(cx, &self.client).await?;
                self.put_now(cx, changes).await
            }
            answer => answer,
        }
    }

    async fn unconvertible(&self, cx: &Cx, change: &Change) -> Result<Option<Error>> {
        let (shape, mut plan) = (self.rows.shape()?, Plan::default());
        let (Some(key), Ok(row)) = (change.key(), Row::of(&shape, change, &mut BTreeSet::new())) else {
            return Ok(None);
        };
        plan.note(change, key, row);
        for statement in plan.statements(&shape) {
            self.client.read(cx, &statement.conversion, &[(&"[]", Type::TEXT)]).await?;
            match self.client.read(cx, &statement.conversion, &[(&statement.rows, Type::TEXT)]).await {
                Err(error) if is_doubtful(&error) => return Ok(Some(error)),
                other => other.map(drop)?,
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl SinkWriter for Writer {
    async fn write(&self, cx: &Cx, _lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        write(self, cx, batch, rows).await
    }

    /// Every write was committed, so there is nothing left to do.
    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
