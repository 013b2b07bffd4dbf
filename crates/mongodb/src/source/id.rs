//! Values of `_id` as servers store them.

use mongodb::bson::{RawDocumentBuf, Timestamp};
use watchkeeper_core::{Error, Result};

use crate::payload::damaged;
use crate::payload::scan::{Field, Fields};

const INT64: u8 = 0x12;
const TIMESTAMP: u8 = 0x11;
const MAX_KEY: u8 = 0x7f;

/// The value of an `_id`, with its type. Servers also store what the driver makes no value of, such as text that is not UTF-8: kept as
/// bytes it can be compared, sent back and stored in a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Id {
    kind: u8,
    value: Vec<u8>,
}

impl Id {
    /// The `_id` of a document.
    pub(super) fn of(document: &[u8]) -> Result<Self> {
        let id = Fields::of(document)?.find(b"_id")?;
        id.map(Self::from).ok_or_else(|| Error::corrupt("a document has no _id"))
    }

    /// As a field of this name.
    pub(super) fn as_field(&self) -> Field<'_> {
        Field { kind: self.kind, name: b"_id", value: &self.value }
    }

    /// Whether it is the largest of all values.
    pub(super) fn is_largest(&self) -> bool {
        self.kind == MAX_KEY
    }

    /// A document that has nothing else.
    pub(super) fn key(&self) -> Result<RawDocumentBuf> {
        let mut key = RawFields::default();
        key.append("_id", self.as_field());
        key.finish()
    }
}

impl From<Field<'_>> for Id {
    fn from(field: Field<'_>) -> Self {
        Self { kind: field.kind, value: field.value.to_vec() }
    }
}

/// The bytes of a document that is made of raw values.
#[derive(Debug)]
pub(super) struct RawFields(Vec<u8>);

impl Default for RawFields {
    fn default() -> Self {
        // The length comes first, and is known at the end.
        Self(vec![0; 4])
    }
}

impl RawFields {
    /// Appends the value of a field under another name.
    pub(super) fn append(&mut self, name: &str, Field { kind, value, .. }: Field<'_>) {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.0.extend_from_slice(value);
    }

    /// Appends a whole number.
    pub(super) fn append_number(&mut self, name: &str, number: i64) {
        self.append(name, Field { kind: INT64, name: b"", value: &number.to_le_bytes() });
    }

    /// Appends a cluster time.
    pub(super) fn append_timestamp(&mut self, name: &str, at: Timestamp) {
        let value = u64::from(at.time) << 32 | u64::from(at.increment);
        self.append(name, Field { kind: TIMESTAMP, name: b"", value: &value.to_le_bytes() });
    }

    /// All bytes.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.0.push(0);
        // Values come from documents, whose length is a number of this type.
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }

    fn finish(self) -> Result<RawDocumentBuf> {
        RawDocumentBuf::from_bytes(self.into_bytes()).map_err(damaged)
    }
}

/// The cluster time that a field is.
pub(super) fn timestamp(field: &Field<'_>) -> Option<Timestamp> {
    let value = (field.kind == TIMESTAMP).then(|| field.value.try_into().ok().map(u64::from_le_bytes))??;
    // Both halves fit.
    Some(Timestamp { time: (value >> 32) as u32, increment: value as u32 })
}
