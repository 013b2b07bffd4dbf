use std::collections::BTreeMap;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use watchkeeper_core::{Change, Cx, Operation, Result};

use super::image::{Document, after, body, require_key};
use super::rekey::{halves, incomplete};
use super::{Apply, Failure, Open, Table};
use crate::client::{Client, Value};

/// At most so many rows in one statement, and about so many bytes.
const ROWS_MAX: usize = 10_000;
const BYTES_MAX: usize = 16_000_000;

pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Appends every change to a table. Sorted by `number` they are in the order of the stream.
#[derive(Debug, Clone)]
pub struct Events {
    table: Table,
}

/// The columns of many events.
#[derive(Debug, Default)]
struct Columns<'a> {
    ids: Vec<String>,
    operations: Vec<&'static str>,
    namespaces: Vec<&'a str>,
    keys: Vec<Option<&'a [u8]>>,
    times: Vec<i64>,
    versions: Vec<i64>,
    ordinals: Vec<i64>,
    events: Vec<Option<String>>,
    bytes: usize,
}

impl<'a> Columns<'a> {
    fn push(&mut self, change: &'a Change) -> Result<()> {
        let (version, event) = (change.version(), body(change)?);
        self.bytes += event.as_ref().map_or(0, String::len) + 256;
        self.ids.push(change.id().to_string());
        self.operations.push(change.operation().as_str());
        self.namespaces.push(change.namespace());
        self.keys.push(change.key());
        self.times.push(number(change.time().0));
        self.versions.push(number(version.time));
        self.ordinals.push(number(version.ordinal));
        self.events.push(event);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.ids.len() >= ROWS_MAX || self.bytes >= BYTES_MAX
    }
}

impl Events {
    /// Into this table, made where it is missing.
    ///
    /// # Errors
    /// `Config` when it cannot be one.
    pub fn into(table: &str) -> Result<Self> {
        Ok(Self { table: Table::new(table)? })
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    async fn insert(&self, open: &Open<'_>, columns: &Columns<'_>) -> Result<(), Failure> {
        if columns.ids.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "INSERT INTO {} (id, operation, namespace, key, time, version_time, version_ordinal, event, epoch, tenure, seq)
            SELECT id, operation, namespace, key, timestamptz 'epoch' + time * interval '1 millisecond', version, ordinal,
                event::json, $9, $10, $11
            FROM unnest($1, $2, $3, $4, $5, $6, $7, $8) WITH ORDINALITY
                AS e (id, operation, namespace, key, time, version, ordinal, event, n)
            ORDER BY n",
            self.table.sql()
        );
        let (epoch, seq) = (number(open.grant().epoch.0), number(open.seq()));
        let values: [Value<'_>; 11] = [
            (&columns.ids, Type::TEXT_ARRAY),
            (&columns.operations, Type::TEXT_ARRAY),
            (&columns.namespaces, Type::TEXT_ARRAY),
            (&columns.keys, Type::BYTEA_ARRAY),
            (&columns.times, Type::INT8_ARRAY),
            (&columns.versions, Type::INT8_ARRAY),
            (&columns.ordinals, Type::INT8_ARRAY),
            (&columns.events, Type::TEXT_ARRAY),
            (&epoch, Type::INT8),
            (&open.grant().tenure.0, Type::UUID),
            (&seq, Type::INT8),
        ];
        open.state(&sql, &values).await.map(drop)
    }
}

#[async_trait]
impl Apply for Events {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        let columns = "number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, operation text NOT NULL,
            namespace text NOT NULL, key bytea, time timestamptz NOT NULL, version_time bigint NOT NULL,
            version_ordinal bigint NOT NULL, event json, epoch bigint NOT NULL, tenure uuid NOT NULL, seq bigint NOT NULL";
        self.table.ensure(cx, client, columns).await
    }

    fn table(&self) -> Option<&Table> {
        Some(&self.table)
    }

    async fn prepare_existing(&self, cx: &Cx, client: &Client) -> Result<bool> {
        self.table.is_usable(cx, client).await
    }

    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        let mut columns = Columns::default();
        for (at, change) in changes.iter().enumerate() {
            columns.push(change).map_err(|error| Failure::Refused(Some(at), error))?;
            if columns.is_full() {
                self.insert(open, &std::mem::take(&mut columns)).await?;
            }
        }
        self.insert(open, &columns).await
    }
}

/// Keeps the newest document of every key, with the version of the source: an upsert or a delete for each change.
///
/// Changes of one key that come together are written once, as the last of them leaves it.
#[derive(Debug, Clone)]
pub struct Mirror {
    pub(super) table: Table,
}

/// The columns of a mirror. `deleted` is set only by a sink that leaves tombstones.
const MIRROR: &str = "namespace text NOT NULL, key bytea NOT NULL, document json, time timestamptz NOT NULL,
    version_time bigint NOT NULL, version_ordinal bigint NOT NULL, deleted timestamptz, PRIMARY KEY (namespace, key)";

impl Mirror {
    /// Into this table, made where it is missing.
    ///
    /// # Errors
    /// `Config` when it cannot be one.
    pub fn into(table: &str) -> Result<Self> {
        Ok(Self { table: Table::new(table)? })
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// What becomes of a key.
#[derive(Debug)]
struct MergedWrite<'a> {
    change: &'a Change,
    /// As it is to be; `None` when it is to be taken away.
    document: Option<Document>,
}

/// What changes come to, by namespace and key. In their order, so that two who write the same keys never wait crosswise.
#[derive(Debug, Default)]
pub(super) struct MergedWrites<'a> {
    by_key: BTreeMap<(&'a str, &'a [u8]), MergedWrite<'a>>,
    bytes: usize,
}

impl<'a> MergedWrites<'a> {
    /// Whether a change can be noted over what was noted before: not if it needs what that leaves.
    pub(super) fn takes(&self, change: &'a Change, key: &'a [u8], document: Option<&Document>) -> bool {
        let depends = document.is_some_and(Document::is_partial);
        let full = self.by_key.len() >= ROWS_MAX || self.bytes >= BYTES_MAX;
        let follows = depends && self.by_key.contains_key(&(change.namespace(), key));
        !full && !follows
    }

    pub(super) fn note(&mut self, change: &'a Change, key: &'a [u8], document: Option<Document>) {
        self.bytes += document.as_ref().map_or(0, |document| document.json.len()) + 256;
        self.by_key.insert((change.namespace(), key), MergedWrite { change, document });
    }

    pub(super) fn columns(&self) -> MergedWriteColumns<'_> {
        let mut columns = MergedWriteColumns::default();
        for ((namespace, key), merged_write) in &self.by_key {
            let version = merged_write.change.version();
            columns.namespaces.push(namespace);
            columns.keys.push(key);
            columns.documents.push(merged_write.document.as_ref().map(|document| document.json.as_str()));
            columns
                .unchanged
                .push(merged_write.document.as_ref().filter(|document| document.is_partial()).map(unchanged));
            columns.times.push(number(merged_write.change.time().0));
            columns.versions.push(number(version.time));
            columns.ordinals.push(number(version.ordinal));
        }
        columns
    }
}

/// The names of the fields that a document leaves out, as JSON.
fn unchanged(document: &Document) -> String {
    serde_json::Value::from(document.unchanged.clone()).to_string()
}

/// The document of a change with a key.
pub(super) fn document(change: &Change) -> Result<Option<Document>> {
    if change.operation() == Operation::Delete { Ok(None) } else { after(change) }
}

/// The same, but not of a row that comes and leaves something out: nothing under its key belongs to it.
fn whole_insert(change: &Change) -> Result<Option<Document>> {
    let document = document(change)?;
    let is_partial = document.as_ref().is_some_and(Document::is_partial);
    if is_partial && change.operation() == Operation::Insert { Err(incomplete()) } else { Ok(document) }
}

/// The columns of many fates.
#[derive(Debug, Default)]
pub(super) struct MergedWriteColumns<'a> {
    namespaces: Vec<&'a str>,
    keys: Vec<&'a [u8]>,
    documents: Vec<Option<&'a str>>,
    /// Which fields each leaves out; none where it is whole.
    unchanged: Vec<Option<String>>,
    times: Vec<i64>,
    versions: Vec<i64>,
    ordinals: Vec<i64>,
}

/// How the columns are named in a statement.
pub(super) const MERGED_WRITES: &str = "(SELECT namespace, key, document::json AS document, unchanged::jsonb AS unchanged, unchanged IS NOT NULL AS partial,
    timestamptz 'epoch' + time * interval '1 millisecond' AS time, version, ordinal
    FROM unnest($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY
        AS f (namespace, key, document, unchanged, time, version, ordinal, n) ORDER BY n) AS f";

/// A document over the stored one `m`, from which it takes what did not change.
pub(super) const MERGED: &str = "CASE WHEN f.partial AND m.document IS NOT NULL
    THEN (f.document::jsonb || (SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}')
        FROM jsonb_each(m.document::jsonb) o WHERE f.unchanged ? o.key))::json ELSE f.document END";

/// Whether the stored document does not have all that a document leaves out.
pub(super) const LACKING: &str = "(f.partial AND (m.document IS NULL
    OR NOT m.document::jsonb ?& ARRAY(SELECT jsonb_array_elements_text(f.unchanged))))";

impl MergedWriteColumns<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether any of them leaves out what did not change.
    pub(super) fn are_partial(&self) -> bool {
        self.unchanged.iter().any(Option::is_some)
    }

    /// How many documents there are to be.
    fn kept(&self) -> u64 {
        self.documents.iter().flatten().count() as u64
    }

    pub(super) fn values(&self) -> [Value<'_>; 7] {
        [
            (&self.namespaces, Type::TEXT_ARRAY),
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.documents, Type::TEXT_ARRAY),
            (&self.unchanged, Type::TEXT_ARRAY),
            (&self.times, Type::INT8_ARRAY),
            (&self.versions, Type::INT8_ARRAY),
            (&self.ordinals, Type::INT8_ARRAY),
        ]
    }
}

impl Mirror {
    /// Makes the table where it is missing.
    pub(super) async fn make(&self, cx: &Cx, client: &Client) -> Result<()> {
        self.table.ensure(cx, client, MIRROR).await
    }

    async fn send(&self, open: &Open<'_>, merged: &mut MergedWrites<'_>) -> Result<(), Failure> {
        let merged = std::mem::take(merged);
        let columns = merged.columns();
        if columns.is_empty() {
            return Ok(());
        }
        let table = self.table.sql();
        // MERGE would need PostgreSQL 15, and INSERT cannot look at the old row to merge it: so the old rows are joined.
        let sql = format!(
            "WITH f AS MATERIALIZED (SELECT * FROM {MERGED_WRITES}),
            gone AS (DELETE FROM {table} m USING f
                WHERE m.namespace = f.namespace AND m.key = f.key AND f.document IS NULL)
            INSERT INTO {table} AS t (namespace, key, document, time, version_time, version_ordinal)
            SELECT f.namespace, f.key, {MERGED}, f.time, f.version, f.ordinal
            FROM f LEFT JOIN {table} m ON m.namespace = f.namespace AND m.key = f.key
            WHERE f.document IS NOT NULL AND NOT {LACKING} {OVER}"
        );
        let written = open.state(&sql, &columns.values()).await?;
        if written == columns.kept() { Ok(()) } else { Err(Failure::Refused(None, incomplete())) }
    }

    /// Brings a row under its new key, with what it has under its old one where that did not change.
    async fn rename(&self, open: &Open<'_>, old: &[u8], new: &Change, document: Document) -> Result<(), Failure> {
        let table = self.table.sql();
        let sql = format!(
            "WITH m AS (DELETE FROM {table} WHERE namespace = $8 AND key = $9 RETURNING document)
            INSERT INTO {table} AS t (namespace, key, document, time, version_time, version_ordinal)
            SELECT f.namespace, f.key, {MERGED}, f.time, f.version, f.ordinal
            FROM {MERGED_WRITES} CROSS JOIN m WHERE NOT {LACKING} {OVER}"
        );
        let mut merged = MergedWrites::default();
        merged.note(new, new.key().unwrap_or_default(), Some(document));
        let (columns, namespace) = (merged.columns(), new.namespace());
        let mut values = columns.values().to_vec();
        values.extend([(&namespace as _, Type::TEXT), (&old as _, Type::BYTEA)]);
        let written = open.state(&sql, &values).await?;
        if written == 1 { Ok(()) } else { Err(Failure::Refused(None, incomplete())) }
    }

    /// Does both halves of a key update at once if the second leaves out what did not change; if not, it is left to others.
    async fn rekey(&self, open: &Open<'_>, merged: &mut MergedWrites<'_>, changes: &[Change]) -> Result<bool, Failure> {
        let Some((old, new)) = halves(changes) else { return Ok(false) };
        let (Some(old), Ok(Some(document))) = (old.key(), document(new)) else { return Ok(false) };
        if !document.is_partial() || new.key().is_none() {
            return Ok(false);
        }
        self.send(open, merged).await?;
        self.rename(open, old, new, document).await?;
        Ok(true)
    }
}

/// What becomes of a document that is there under the same key.
const OVER: &str = "ON CONFLICT (namespace, key) DO UPDATE SET document = excluded.document, time = excluded.time,
    version_time = excluded.version_time, version_ordinal = excluded.version_ordinal, deleted = NULL";

#[async_trait]
impl Apply for Mirror {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        self.make(cx, client).await
    }

    fn table(&self) -> Option<&Table> {
        Some(&self.table)
    }

    async fn prepare_existing(&self, cx: &Cx, client: &Client) -> Result<bool> {
        self.table.is_usable(cx, client).await
    }

    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        let (mut merged, mut at) = (MergedWrites::default(), 0);
        while let Some(change) = changes.get(at) {
            if self.rekey(open, &mut merged, &changes[at..]).await? {
                at += 2;
                continue;
            }
            if let Some(key) = change.key() {
                let document = whole_insert(change).map_err(|error| Failure::Refused(Some(at), error))?;
                if !merged.takes(change, key, document.as_ref()) {
                    self.send(open, &mut merged).await?;
                }
                merged.note(change, key, document);
            } else if matches!(change.operation(), Operation::Drop | Operation::Truncate) {
                self.send(open, &mut merged).await?;
                let sql = format!("DELETE FROM {} WHERE namespace = $1", self.table.sql());
                open.state(&sql, &[(&change.namespace(), Type::TEXT)]).await?;
            } else {
                require_key(change).map_err(|error| Failure::Refused(Some(at), error))?;
            }
            at += 1;
        }
        self.send(open, &mut merged).await
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }

    fn mirrors(&self) -> bool {
        true
    }
}
