//! A mirror in a database that does not keep the stream's checkpoint.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use watchkeeper_core::{
    Batch, Change, Cx, Error, Fault, FaultKind, Finding, FlushRejection, Grade, OpenedSink, Operation, Result, Sink,
    SinkContext, SinkProfile, SinkTarget, SinkWriter, Written,
};

use super::image::require_key;
use super::rekey::{incomplete, incomplete_key_update, is_incomplete};
use super::tables::{LACKING, MERGED, MERGED_WRITES, MergedWriteColumns, MergedWrites, Mirror, document, number};
use crate::client::Client;
use crate::error::is_doubtful;

/// How long the mark of a deleted row is kept.
pub(super) const TOMBSTONES: &str = "1 day";

/// Keeps the newest document of every key, and never lets an older version overwrite a newer one.
///
/// The version of the source stands beside every document. A deleted one stays as a tombstone, with `deleted` set and no
/// document, so that a late write cannot bring it back; tombstones of more than a day are removed whenever the sink is opened.
/// Readers leave them out with `WHERE deleted IS NULL`.
///
/// What is not prevented: that a late write from before a truncate brings in a row that was never written here.
#[derive(Debug, Clone)]
pub struct Versioned {
    client: Client,
    mirror: Mirror,
}

impl Versioned {
    /// A sink into a table of the client's database.
    pub fn new(client: Client, mirror: Mirror) -> Self {
        Self { client, mirror }
    }

    fn writer(&self) -> OpenedSink {
        OpenedSink::Plain(Arc::new(Writer { client: self.client.clone(), mirror: self.mirror.clone() }))
    }

    async fn prepare(&self, cx: &Cx) -> Result<()> {
        self.mirror.make(cx, &self.client).await?;
        self.clean(cx).await
    }

    async fn clean(&self, cx: &Cx) -> Result<()> {
        let table = self.mirror.table.sql();
        let sql = format!("DELETE FROM {table} WHERE deleted < clock_timestamp() - interval '{TOMBSTONES}'");
        self.client.write(cx, &sql, &[]).await.map(drop)
    }
}

#[async_trait]
impl Sink for Versioned {
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

    async fn open(&self, cx: &Cx, _context: &SinkContext) -> Result<OpenedSink> {
        self.prepare(cx).await?;
        Ok(self.writer())
    }

    /// By the address of its database: a sink that is no checkpoint store knows no other identity of it.
    fn target(&self) -> Option<SinkTarget> {
        Some(self.mirror.table.target(self.client.place(), &self.client))
    }

    async fn open_existing(&self, cx: &Cx, _context: &SinkContext) -> Result<Option<OpenedSink>> {
        if !self.mirror.table.is_usable(cx, &self.client).await? {
            return Ok(None);
        }
        self.clean(cx).await?;
        Ok(Some(self.writer()))
    }
}

#[derive(Debug)]
struct Writer {
    client: Client,
    mirror: Mirror,
}

impl Writer {
    async fn send(&self, cx: &Cx, merged: &mut MergedWrites<'_>) -> Result<()> {
        let merged = std::mem::take(merged);
        let columns = merged.columns();
        if columns.is_empty() {
            return Ok(());
        }
        let table = self.mirror.table.sql();
        if columns.are_partial() && self.lack_documents(cx, &columns).await? {
            return Err(incomplete());
        }
        let sql = format!(
            "INSERT INTO {table} AS t (namespace, key, document, time, version_time, version_ordinal, deleted)
            SELECT f.namespace, f.key, {MERGED}, f.time, f.version, f.ordinal,
                CASE WHEN f.document IS NULL THEN clock_timestamp() END
            FROM {MERGED_WRITES} LEFT JOIN {table} m ON m.namespace = f.namespace AND m.key = f.key
            WHERE NOT {LACKING}
            ON CONFLICT (namespace, key) DO UPDATE SET document = excluded.document, time = excluded.time,
                version_time = excluded.version_time, version_ordinal = excluded.version_ordinal,
                deleted = excluded.deleted
            WHERE (t.version_time, t.version_ordinal) < (excluded.version_time, excluded.version_ordinal)"
        );
        self.client.write(cx, &sql, &columns.values()).await.map(drop)
    }

    /// Whether there is nothing that one of them could take from what did not change.
    async fn lack_documents(&self, cx: &Cx, columns: &MergedWriteColumns<'_>) -> Result<bool> {
        let sql = format!(
            "SELECT 1 FROM {MERGED_WRITES} LEFT JOIN {} m ON m.namespace = f.namespace AND m.key = f.key
            WHERE {LACKING}
                AND (m.key IS NULL OR (m.version_time, m.version_ordinal) < (f.version, f.ordinal)) LIMIT 1",
            self.mirror.table.sql()
        );
        Ok(!self.client.read(cx, &sql, &columns.values()).await?.is_empty())
    }

    /// Leaves a tombstone in the place of everything that is older than a truncate.
    async fn clear(&self, cx: &Cx, change: &Change) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET document = NULL, deleted = clock_timestamp(), version_time = $2, version_ordinal = $3
            WHERE namespace = $1 AND (version_time, version_ordinal) < ($2, $3)",
            self.mirror.table.sql()
        );
        let (time, ordinal) = (number(change.version().time), number(change.version().ordinal));
        let values: [crate::Value<'_>; 3] =
            [(&change.namespace(), Type::TEXT), (&time, Type::INT8), (&ordinal, Type::INT8)];
        self.client.write(cx, &sql, &values).await.map(drop)
    }
}

#[async_trait]
impl VersionedPut for Writer {
    async fn put(&self, cx: &Cx, changes: &[Change]) -> Result<Vec<(usize, Error)>> {
        let (mut merged, mut rejected) = (MergedWrites::default(), Vec::new());
        for (at, change) in changes.iter().enumerate() {
            if let Some(key) = change.key() {
                match document(change) {
                    Err(error) => rejected.push((at, error)),
                    Ok(Some(document)) if document.is_partial() && change.operation() == Operation::Insert => {
                        rejected.push((at, incomplete_key_update()));
                    }
                    Ok(document) => {
                        if !merged.takes(change, key, document.as_ref()) {
                            self.send(cx, &mut merged).await?;
                        }
                        merged.note(change, key, document);
                    }
                }
            } else if matches!(change.operation(), Operation::Drop | Operation::Truncate) {
                self.send(cx, &mut merged).await?;
                self.clear(cx, change).await?;
            } else if let Err(error) = require_key(change) {
                rejected.push((at, error));
            }
        }
        self.send(cx, &mut merged).await?;
        Ok(rejected)
    }
}

/// A writer whose writes are transactions of their own.
#[async_trait]
pub(super) trait VersionedPut: Send + Sync {
    /// Writes changes, all that come together at once. Those that cannot be written are told by their place.
    async fn put(&self, cx: &Cx, changes: &[Change]) -> Result<Vec<(usize, Error)>>;

    /// Why the values of a change cannot be converted, if an error that does not say so comes from there.
    async fn unconvertible(&self, _cx: &Cx, _change: &Change) -> Result<Option<Error>> {
        Ok(None)
    }
}

fn is_refused(error: &Error) -> bool {
    is_incomplete(error) || super::is_refused(error)
}

/// Puts the rows of a batch, and finds those that the server refuses.
pub(super) async fn write(writer: &dyn VersionedPut, cx: &Cx, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
    let changes: Vec<Change> = rows.iter().map(|row| Change::new(Arc::clone(batch), *row)).collect();
    let rejected = match writer.put(cx, &changes).await {
        Ok(rejected) => rejected,
        // One of them cannot be written: found by writing them one by one. What was written already stays as it is.
        Err(error) if is_refused(&error) || is_doubtful(&error) => one_by_one(writer, cx, &changes).await?,
        Err(error) => return Err(error),
    };
    let fault = |(at, error): (usize, Error)| Fault { row: rows[at], kind: FaultKind::Reject, error };
    Ok(Written { done: rows.len(), rejected: rejected.into_iter().map(fault).collect(), stopped: None })
}

async fn one_by_one(writer: &dyn VersionedPut, cx: &Cx, changes: &[Change]) -> Result<Vec<(usize, Error)>> {
    let mut rejected = Vec::new();
    for (at, change) in changes.iter().enumerate() {
        match writer.put(cx, std::slice::from_ref(change)).await {
            Ok(refused) => rejected.extend(refused.into_iter().map(|(_, error)| (at, error))),
            Err(error) if is_refused(&error) => rejected.push((at, error)),
            Err(error) if is_doubtful(&error) => match writer.unconvertible(cx, change).await? {
                Some(cause) => rejected.push((at, cause)),
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(rejected)
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
