//! Changes are bytes until someone looks.
//!
//! A [`Batch`] owns two buffers: the bodies as the source gave them, and an index of canonical keys
//! and positions. A [`Row`] is ranges in them. Handlers take an owned, cheap [`Change`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Result;
use crate::payload::{Payload, ValueRef};
use crate::position::{Pedigree, Position, SourceTime, Version};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names are the sources' own words")]
#[non_exhaustive]
pub enum Operation {
    Insert,
    Update,
    Replace,
    Delete,
    /// Read by a snapshot, not from the log.
    Read,
    Truncate,
    Drop,
    Rename,
    DropDatabase,
    Invalidate,
    Create,
    CreateIndexes,
    DropIndexes,
    Modify,
    ShardCollection,
    /// History was lost here; see the body.
    Gap,
    /// Something newer than this program.
    Other,
}

impl Operation {
    /// The name that events carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::Read => "read",
            Self::Truncate => "truncate",
            Self::Drop => "drop",
            Self::Rename => "rename",
            Self::DropDatabase => "dropDatabase",
            Self::Invalidate => "invalidate",
            Self::Create => "create",
            Self::CreateIndexes => "createIndexes",
            Self::DropIndexes => "dropIndexes",
            Self::Modify => "modify",
            Self::ShardCollection => "shardCollection",
            Self::Gap => "gap",
            Self::Other => "other",
        }
    }

    /// Whether it is about one row or document, and not about a whole table, the log, or something
    /// unknown.
    pub fn has_row(self) -> bool {
        matches!(self, Self::Insert | Self::Update | Self::Replace | Self::Delete | Self::Read)
    }

    /// Whether it changes what a name stands for, or all rows under it at once, so that a copy of them is wrong without it.
    pub fn redefines_names(self) -> bool {
        matches!(self, Self::Truncate | Self::Drop | Self::Rename | Self::DropDatabase | Self::Invalidate)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Version 1 of the hash that lanes and partitions are chosen by: XXH3-64 of the canonical key.
///
/// Fixed for ever: partitions of two program versions must agree on it.
pub fn key_hash_v1(canonical_key: &[u8]) -> u64 {
    xxh3_64(canonical_key)
}

/// A range of a buffer. Batches are far below 4 GiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The range `start..end` of a buffer.
    ///
    /// # Panics
    /// When the buffer is larger than 4 GiB, which the limits on batches exclude.
    pub fn new(range: Range<usize>) -> Self {
        let narrow = |at: usize| u32::try_from(at).expect("a batch is limited far below 4 GiB");
        Self { start: narrow(range.start), end: narrow(range.end) }
    }

    fn of(self, buffer: &Bytes) -> &[u8] {
        &buffer[self.start as usize..self.end as usize]
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// One change of a batch, as ranges in the batch's buffers.
#[derive(Debug, Clone)]
pub struct Row {
    /// What happened.
    pub operation: Operation,
    /// Index into the batch's namespaces.
    pub namespace: u16,
    /// Which half of a key update this is: 0 for whole changes and the first half, 1 for the second.
    pub half: u8,
    /// Whether the position after this row is a place to resume from. The first half of a key update
    /// is not, so the halves are never committed apart.
    pub committable: bool,
    /// [`key_hash_v1`] of the canonical key; meaningless without a key.
    pub key_hash: u64,
    /// The source's time of the change.
    pub time: SourceTime,
    /// What targets compare.
    pub version: Version,
    key: Span,
    position: Span,
    body: Span,
}

impl Row {
    /// Whether this change has no key, and so is a barrier over all lanes.
    pub fn is_barrier(&self) -> bool {
        self.key == Span::default()
    }
}

/// What a row is built from.
#[derive(Debug, Clone, Copy)]
pub struct RowParts<'a> {
    /// What happened.
    pub operation: Operation,
    /// From [`BatchBuilder::namespace`].
    pub namespace: u16,
    /// See [`Row::half`].
    pub half: u8,
    /// See [`Row::committable`].
    pub committable: bool,
    /// Canonical key bytes; equal keys have equal bytes whatever their type. `None` makes a barrier.
    pub key: Option<&'a [u8]>,
    /// The position after this change, less what all rows of its batch [share](BatchBuilder::share).
    pub position: &'a [u8],
    /// The payload as the source gave it.
    pub body: &'a [u8],
    /// The source's time of the change.
    pub time: SourceTime,
    /// What targets compare.
    pub version: Version,
}

/// Changes in source order, with the position after them.
#[derive(Debug)]
pub struct Batch {
    /// The place of this batch within one opening of the source; set by the engine.
    pub seq: u64,
    /// A safe restart point before all rows, if one is known; set by the engine.
    pub before: Option<Position>,
    /// A safe restart point after all rows. It may advance with no rows.
    pub end: Position,
    /// A fresher pedigree to store beside positions from here on, if the source has one.
    pub pedigree: Option<Pedigree>,
    rows: Vec<Row>,
    /// What the positions of all rows begin with.
    shared: Bytes,
    index: Bytes,
    bodies: Bytes,
    namespaces: Vec<Arc<str>>,
    origin: Arc<str>,
    payload: Arc<dyn Payload>,
}

impl Batch {
    /// The changes.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether only the position moved.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes that this batch keeps alive.
    pub fn size(&self) -> usize {
        self.bodies.len() + self.index.len() + self.rows.len() * size_of::<Row>()
    }

    /// The namespace of row `row`.
    pub fn namespace(&self, row: u32) -> &Arc<str> {
        &self.namespaces[usize::from(self.rows[row as usize].namespace)]
    }

    /// The new name of what row `row` renames, if it is a rename whose payload tells it.
    pub fn renamed_to(&self, row: u32) -> Option<String> {
        let is_rename = self.rows[row as usize].operation == Operation::Rename;
        is_rename.then(|| self.payload.renamed_to(self.body(row))).flatten()
    }

    /// The canonical key of row `row`; `None` for a barrier.
    pub fn key(&self, row: u32) -> Option<&[u8]> {
        let row = &self.rows[row as usize];
        (!row.is_barrier()).then(|| row.key.of(&self.index))
    }

    /// The payload of row `row`, as the source gave it.
    pub fn body(&self, row: u32) -> &[u8] {
        self.rows[row as usize].body.of(&self.bodies)
    }

    /// The payload of row `row`, sharing the batch's buffer.
    pub fn body_bytes(&self, row: u32) -> Bytes {
        self.bodies.slice(self.rows[row as usize].body.range())
    }

    /// The position after row `row`.
    pub fn position(&self, row: u32) -> Position {
        let row = &self.rows[row as usize];
        if self.shared.is_empty() {
            return Position::new(self.index.slice(row.position.range()), Some(row.time));
        }
        Position::new([&self.shared, row.position.of(&self.index)].concat(), Some(row.time))
    }

    /// What the positions of all rows begin with; see [`BatchBuilder::share`].
    pub fn shared(&self) -> &Bytes {
        &self.shared
    }

    /// A safe restart point before row `row`, if one is known.
    pub fn position_before(&self, row: u32) -> Option<Position> {
        let earlier = (0..row).rev().find(|at| self.rows[*at as usize].committable);
        earlier.map(|at| self.position(at)).or_else(|| self.before.clone())
    }

    /// The identity of the log, the first part of every change id.
    pub fn origin(&self) -> &Arc<str> {
        &self.origin
    }

    /// How bodies are decoded.
    pub fn payload(&self) -> &Arc<dyn Payload> {
        &self.payload
    }

    /// The deterministic id of row `row`, rendered when shown.
    pub fn id(&self, row: u32) -> ChangeId<'_> {
        ChangeId { batch: self, row }
    }
}

/// Log identity and the change's own part of its position (and `.1` for the second half of a key update):
/// the same however often and in whatever batches the change is read.
#[derive(Debug, Clone, Copy)]
pub struct ChangeId<'a> {
    batch: &'a Batch,
    row: u32,
}

impl fmt::Display for ChangeId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = &self.batch.rows[self.row as usize];
        write!(f, "{}:", self.batch.origin)?;
        row.position.of(&self.batch.index).iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if row.half > 0 { write!(f, ".{}", row.half) } else { Ok(()) }
    }
}

/// Builds a batch row by row.
#[derive(Debug)]
pub struct BatchBuilder {
    origin: Arc<str>,
    payload: Arc<dyn Payload>,
    shared: Bytes,
    rows: Vec<Row>,
    index: Vec<u8>,
    bodies: Vec<u8>,
    namespaces: Vec<Arc<str>>,
}

impl BatchBuilder {
    /// A batch of the log `origin`, whose bodies are decoded by `payload`.
    pub fn new(origin: Arc<str>, payload: Arc<dyn Payload>) -> Self {
        // The index starts with a byte of padding, so that the empty span means "no key".
        let (shared, rows, index) = (Bytes::new(), Vec::new(), vec![0]);
        Self { origin, payload, shared, rows, index, bodies: Vec::new(), namespaces: Vec::new() }
    }

    /// The positions of all rows begin with these bytes, and go on with what each row is pushed with.
    ///
    /// For sources whose positions say more than which change they come after, such as what else had been read by then:
    /// it is kept once for all rows, and is no part of their ids, which must not depend on it.
    #[must_use]
    pub fn share(self, shared: Bytes) -> Self {
        Self { shared, ..self }
    }

    /// Makes room for so many more rows at once, whose keys and positions have about so many bytes each.
    pub fn reserve(&mut self, rows: usize, index_bytes: usize) {
        self.rows.reserve(rows);
        self.index.reserve(rows.saturating_mul(index_bytes));
    }

    /// The number of a namespace in this batch.
    ///
    /// # Panics
    /// With more than 65,536 namespaces in one batch.
    pub fn namespace(&mut self, name: &str) -> u16 {
        let known = self.namespaces.iter().position(|known| &**known == name);
        let index = known.unwrap_or_else(|| {
            self.namespaces.push(name.into());
            self.namespaces.len() - 1
        });
        u16::try_from(index).expect("a batch is limited to 65,536 namespaces")
    }

    /// Appends a change, copying its bytes.
    pub fn push(&mut self, parts: RowParts<'_>) {
        let body = append(&mut self.bodies, parts.body);
        self.push_row(parts, body);
    }

    fn push_row(&mut self, parts: RowParts<'_>, body: Span) {
        let key = parts.key.map_or_else(Span::default, |key| append(&mut self.index, key));
        let position = append(&mut self.index, parts.position);
        self.rows.push(Row {
            operation: parts.operation,
            namespace: parts.namespace,
            half: parts.half,
            committable: parts.committable,
            key_hash: parts.key.map_or(0, key_hash_v1),
            time: parts.time,
            version: parts.version,
            key,
            position,
            body,
        });
    }

    /// How many changes there are so far.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes so far.
    pub fn size(&self) -> usize {
        // Less the padding.
        self.bodies.len() + self.index.len() - 1
    }

    /// The batch, ending at `end`.
    pub fn finish(self, end: Position) -> Batch {
        let bodies = self.bodies.into();
        Self { bodies: Vec::new(), ..self }.finish_over(bodies, end)
    }

    /// Appends a change whose body lies at `body` of a buffer that [`finish_over`](Self::finish_over)
    /// will be given: the bytes are not copied. `parts.body` is not looked at.
    pub fn push_in_place(&mut self, parts: RowParts<'_>, body: Range<usize>) {
        self.push_row(parts, Span::new(body));
    }

    /// The batch over `bodies`, a buffer that the source received and gives away.
    pub fn finish_over(self, bodies: Bytes, end: Position) -> Batch {
        Batch {
            seq: 0,
            before: None,
            end,
            pedigree: None,
            rows: self.rows,
            shared: self.shared,
            index: self.index.into(),
            bodies,
            namespaces: self.namespaces,
            origin: self.origin,
            payload: self.payload,
        }
    }
}

fn append(buffer: &mut Vec<u8>, bytes: &[u8]) -> Span {
    let start = buffer.len();
    buffer.extend_from_slice(bytes);
    Span::new(start..buffer.len())
}

/// One change, owned and cheap: it shares its batch.
#[derive(Debug, Clone)]
pub struct Change {
    batch: Arc<Batch>,
    row: u32,
}

impl Change {
    /// Row `row` of `batch`.
    pub fn new(batch: Arc<Batch>, row: u32) -> Self {
        Self { batch, row }
    }

    /// The batch it came in.
    pub fn batch(&self) -> &Arc<Batch> {
        &self.batch
    }

    /// Its place in the batch.
    pub fn row(&self) -> u32 {
        self.row
    }

    fn parts(&self) -> &Row {
        &self.batch.rows[self.row as usize]
    }

    /// What happened.
    pub fn operation(&self) -> Operation {
        self.parts().operation
    }

    /// Where it happened: a collection or a table.
    pub fn namespace(&self) -> &str {
        self.batch.namespace(self.row)
    }

    /// The canonical key; `None` for a drop, rename, truncate or invalidate.
    pub fn key(&self) -> Option<&[u8]> {
        self.batch.key(self.row)
    }

    /// The source's time.
    pub fn time(&self) -> SourceTime {
        self.parts().time
    }

    /// What targets compare.
    pub fn version(&self) -> Version {
        self.parts().version
    }

    /// The position after this change.
    pub fn position(&self) -> Position {
        self.batch.position(self.row)
    }

    /// The deterministic id, the same at every delivery.
    pub fn id(&self) -> ChangeId<'_> {
        self.batch.id(self.row)
    }

    /// The payload, as the source gave it.
    pub fn body(&self) -> &[u8] {
        self.batch.body(self.row)
    }

    /// The new name of what was renamed, if this is a rename whose payload tells it.
    pub fn renamed_to(&self) -> Option<String> {
        self.batch.renamed_to(self.row)
    }

    /// One value of the payload, decoded on demand.
    pub fn get(&self, path: &[&str]) -> Result<Option<ValueRef<'_>>> {
        self.batch.payload.get(self.body(), path)
    }
}
