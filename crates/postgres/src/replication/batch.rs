//! A batch in the making, and how changes are written into it.

use std::sync::Arc;

use watchkeeper_core::{Batch, BatchBuilder, Limits, Operation, Result, RowParts, Version};

use super::body::{self, RowPayload};
use super::decode::{Decoder, Transaction};
use super::pgoutput::{Cell, Tuple};
use super::relation::Relation;
use super::version_origin::Origin;

/// A batch that is being made.
pub(super) struct BatchInProgress {
    builder: BatchBuilder,
    bodies: Vec<u8>,
    origin: Origin,
}

impl BatchInProgress {
    pub(super) fn new(origin: &Origin) -> Self {
        let builder = BatchBuilder::new(Arc::clone(&origin.name), Arc::new(RowPayload));
        Self { builder, bodies: Vec::new(), origin: origin.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    pub(super) fn is_full(&self, limits: Limits) -> bool {
        let size = self.builder.size() + self.bodies.len();
        self.builder.len() >= limits.rows || (size >= limits.bytes && !self.is_empty())
    }

    pub(super) fn finish(self, decoder: &Decoder) -> Batch {
        self.builder.finish_over(self.bodies.into(), decoder.end())
    }

    /// Appends a row whose body was written from `start` on. Its version is told by its place in the log, and is ranked here.
    pub(super) fn push(&mut self, parts: RowParts<'_>, start: usize) {
        let (end, version) = (self.bodies.len(), self.origin.version(parts.version));
        self.builder.push_in_place(RowParts { version, ..parts }, start..end);
    }

    pub(super) fn namespace(&mut self, name: &str) -> u16 {
        self.builder.namespace(name)
    }

    pub(super) fn bodies(&mut self) -> &mut Vec<u8> {
        &mut self.bodies
    }
}

/// Which part of a change a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangePart {
    Whole,
    First,
    Second,
}

/// Writes the rows of one change.
pub(super) struct RowWriter<'a> {
    pub(super) filling: &'a mut BatchInProgress,
    pub(super) transaction: &'a Transaction,
    pub(super) position: &'a [u8],
    pub(super) relation: &'a Relation,
}

impl RowWriter<'_> {
    pub(super) fn write(
        &mut self,
        operation: Operation,
        half: ChangePart,
        key: &[u8],
        images: impl FnOnce(&mut Vec<u8>),
    ) {
        let namespace = self.filling.namespace(&self.relation.name);
        let bodies = self.filling.bodies();
        let start = bodies.len();
        body::begin_row(self.transaction.xid, &self.relation.described, bodies);
        images(bodies);
        let second = u64::from(half == ChangePart::Second);
        let parts = RowParts {
            operation,
            namespace,
            half: u8::from(half == ChangePart::Second),
            committable: half != ChangePart::First,
            key: Some(key),
            position: self.position,
            body: &[],
            time: self.transaction.time,
            version: Version { time: self.transaction.commit.0, ordinal: self.transaction.ordinal * 2 + second },
        };
        self.filling.push(parts, start);
    }
}

/// The part of a change's images that is the old one.
pub(super) fn old_image(tuples: &[u8]) -> Result<&[u8]> {
    let rest = Tuple::begin(tuples.get(1..).unwrap_or_default())?.rest()?;
    Ok(&tuples[..tuples.len() - rest.len()])
}

/// Writes a new image, in which what was not sent is taken from the old one.
pub(super) fn write_filled(mut new: Tuple<'_>, mut old: Option<Tuple<'_>>, out: &mut Vec<u8>) -> Result<()> {
    out.push(b'N');
    out.extend_from_slice(&new.left().to_be_bytes());
    while let Some(cell) = new.next()? {
        let before = match &mut old {
            Some(old) => old.next()?,
            None => None,
        };
        match (cell, before) {
            (Cell::Unchanged, Some(Cell::Text(text))) | (Cell::Text(text), _) => write_text(text, out),
            (Cell::Unchanged, _) => out.push(b'u'),
            (Cell::Null, _) => out.push(b'n'),
        }
    }
    Ok(())
}

/// Writes a value as images hold it.
pub(super) fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b't');
    // A value is limited to 1 GiB by the server.
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text);
}
