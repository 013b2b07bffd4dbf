//! What changes that come together make of documents.

use std::collections::BTreeMap;

use mongodb::bson::raw::cstr;
use mongodb::bson::spec::ElementType;
use mongodb::bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, doc, rawdoc};
use watchkeeper_core::{Change, Error, Operation};

use super::collections::{DOCUMENT_BYTES_MAX, fits, unreadable};
use super::document::{after, joined, mirrored_id};
use super::validity::{has_unreadable_text, repeated_field};
use super::{Failure, Open};
use crate::payload::scan::{Field, Fields};

/// At most so many statements in one command, and so many bytes of bodies; the server takes 100,000 and 48 MB.
pub(super) const STATEMENTS_MAX: usize = 10_000;
pub(super) const BYTES_MAX: usize = 12_000_000;

/// What becomes of a document.
#[derive(Debug)]
pub(super) struct MergedWrite {
    /// The place of the last change of it.
    pub(super) at: usize,
    /// The document's `_id`.
    pub(super) id: RawBson,
    /// As it is to be; `None` when it is to be taken away.
    pub(super) document: Option<RawDocumentBuf>,
    /// Whether it was not there before, or was taken away meanwhile.
    pub(super) is_new: bool,
    /// About how large a statement with it is.
    pub(super) bytes: usize,
}

impl MergedWrite {
    /// What a change makes of its document; `None` when it tells that another change will.
    pub(super) fn of(at: usize, change: &Change, key: &[u8]) -> Result<Option<Self>, Failure> {
        let id = mirrored_id(change, key).map_err(|error| unreadable(at, error))?;
        let document = match change.operation() {
            Operation::Delete => None,
            _ => match after(change).map_err(|error| unreadable(at, error))? {
                Some(RawBson::Document(document)) => Some(identified(&id, &document, at)?),
                // It was deleted since; the change that did so will come.
                Some(RawBson::Null) => return Ok(None),
                _ => return Err(Failure::Refused(at, incomplete(change))),
            },
        };
        let mut bytes = STATEMENT_BYTES;
        if let Some(document) = &document {
            bytes += document.as_bytes().len();
            // Below the limit only an `_id` that stands there twice could be too much.
            let around =
                if bytes > DOCUMENT_BYTES_MAX / 2 { rawdoc! { "_id": id.clone() }.as_bytes().len() } else { 0 };
            fits(at, document, around)?;
        }
        let is_new = matches!(change.operation(), Operation::Insert | Operation::Read);
        let merged_write = Self { at, id, document, is_new, bytes };
        if merged_write.document.is_some() {
            merged_write.require_readable_id()?;
        }
        if merged_write.document.as_deref().is_some_and(needs_literal) {
            merged_write.require_unique_fields()?;
        }
        Ok(Some(merged_write))
    }

    /// Refuses an `_id` that the answer to an upsert would repeat, so that the driver could not read that answer.
    pub(super) fn require_readable_id(&self) -> Result<(), Failure> {
        if !has_unreadable_text(&self.id) {
            return Ok(());
        }
        let cause = "its _id holds text that is not UTF-8, which the answer of the target would repeat";
        Err(Failure::Refused(
            self.at,
            Error::config(cause).remedy(
                "give the document another _id at the source, or keep its changes as events (mode = \"events\")",
            ),
        ))
    }

    /// Refuses a document in which a field is there twice, or such an `_id`: a server that evaluates it in a pipeline may crash.
    pub(super) fn require_unique_fields(&self) -> Result<(), Failure> {
        let of_id = || repeated_field(rawdoc! { "_id": self.id.clone() }.as_bytes());
        let Some(name) = self.document.as_ref().map_or_else(of_id, |document| repeated_field(document.as_bytes()))
        else {
            return Ok(());
        };
        let cause = format!("the document has the field {name} twice, with which servers do not evaluate a pipeline");
        Err(Failure::Refused(self.at, Error::config(cause).remedy(ONCE)))
    }

    /// The statement that brings it about.
    fn statement(self) -> RawDocumentBuf {
        match self.document {
            Some(document) if needs_literal(&document) => {
                let stages = RawArrayBuf::from_iter([rawdoc! { "$replaceWith": { "$literal": document } }]);
                rawdoc! { "q": with_id(self.id), "u": stages, "upsert": true }
            }
            Some(document) => rawdoc! { "q": with_id(self.id), "u": document, "upsert": true },
            None => rawdoc! { "q": with_id(self.id), "limit": 1 },
        }
    }
}

/// What to do about a field that is there twice.
const ONCE: &str = "write the document with each field once at the source; mode = \"mirror\" takes such a document unless a name in it begins \
     with a dollar sign, and mode = \"events\" takes every one";

/// The condition that a document has this `_id`, whatever that is made of.
pub(super) fn with_id(id: RawBson) -> RawDocumentBuf {
    rawdoc! { "_id": { "$eq": id } }
}

/// Whether a document has to be written by a pipeline, which costs the server more. When it is replaced otherwise, servers take a
/// timestamp of zero for "now", and refuse fields whose names begin with a dollar sign.
fn needs_literal(document: &RawDocument) -> bool {
    let is_special = |field: Field<'_>| {
        let is_now = field.kind == ElementType::Timestamp as u8 && field.value.iter().all(|byte| *byte == 0);
        (is_now && field.name != b"_id") || field.name.starts_with(b"$")
    };
    Fields::of(document.as_bytes()).is_ok_and(|fields| fields.filter_map(Result::ok).any(is_special))
}

/// A document with this `_id`, whatever a pipeline has made of its own.
fn identified(id: &RawBson, document: &RawDocument, at: usize) -> Result<RawDocumentBuf, Failure> {
    let mut first = RawDocumentBuf::new();
    first.append(cstr!("_id"), id.as_raw_bson_ref());
    joined(&first, document, &RawDocumentBuf::new()).map_err(|error| unreadable(at, error))
}

/// What a statement has beside its document.
pub(super) const STATEMENT_BYTES: usize = 256;

/// Parts of a list that each fit into one command.
pub(super) fn parts(merged: Vec<MergedWrite>) -> Vec<Vec<MergedWrite>> {
    let mut parts: Vec<Vec<MergedWrite>> = Vec::new();
    let mut bytes = 0;
    for merged_write in merged {
        bytes += merged_write.bytes;
        match parts.last_mut() {
            Some(part) if bytes <= BYTES_MAX && part.len() < STATEMENTS_MAX => part.push(merged_write),
            _ => {
                bytes = merged_write.bytes;
                parts.push(vec![merged_write]);
            }
        }
    }
    parts
}

/// What changes come to, by target and key.
#[derive(Debug, Default)]
pub(super) struct MergedWrites(BTreeMap<(String, Vec<u8>), MergedWrite>);

impl MergedWrites {
    /// Notes what a change comes to, over what was noted of its key.
    pub(super) fn note(&mut self, target: String, key: &[u8], merged_write: MergedWrite) {
        let key = (target, key.to_vec());
        let was_new = self.0.get(&key).is_some_and(|before| before.is_new || before.document.is_none());
        self.0.insert(key, MergedWrite { is_new: merged_write.is_new || was_new, ..merged_write });
    }

    /// Whether a fate can be sent together with all others without passing one of them.
    pub(super) fn keep_pace_with(&self, target: &str, key: &[u8], merged_write: &MergedWrite) -> bool {
        // All of them are alike, since the first was.
        let alike = self.0.first_key_value().is_none_or(|((other, _), noted)| {
            other == target && noted.document.is_some() == merged_write.document.is_some()
        });
        alike && !self.0.contains_key(&(target.to_owned(), key.to_vec()))
    }

    /// The places of the changes that decide.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.0.values().map(|merged_write| merged_write.at)
    }

    /// All that was noted, by target, and there in the order of the source, but deletes first: what they free for a unique index
    /// may be taken by others.
    pub(super) fn take_by_target(&mut self) -> BTreeMap<String, Vec<MergedWrite>> {
        let mut targets: BTreeMap<String, Vec<MergedWrite>> = BTreeMap::new();
        for ((target, _), merged_write) in std::mem::take(&mut self.0) {
            targets.entry(target).or_default().push(merged_write);
        }
        targets
            .values_mut()
            .for_each(|merged| merged.sort_by_key(|merged_write| (merged_write.document.is_some(), merged_write.at)));
        targets
    }

    /// Writes all: no two are about the same document.
    pub(super) async fn send(&mut self, open: &mut Open<'_>) -> Result<(), Failure> {
        for (target, merged) in self.take_by_target() {
            let (upserts, deletes): (Vec<_>, Vec<_>) =
                merged.into_iter().partition(|merged_write| merged_write.document.is_some());
            for (command, list, merged) in
                [("delete", cstr!("deletes"), deletes), ("update", cstr!("updates"), upserts)]
            {
                for part in parts(merged) {
                    let (places, statements): (Vec<usize>, Vec<RawDocumentBuf>) =
                        part.into_iter().map(|merged_write| (merged_write.at, merged_write.statement())).unzip();
                    let command = doc! { command: target.as_str() };
                    let stated = open.state_each(command, (list, statements)).await;
                    stated.map_err(|failure| failure.placed(&places))?;
                }
            }
        }
        Ok(())
    }
}

fn incomplete(change: &Change) -> Error {
    let operation = change.operation().as_str();
    Error::config(format!("this {operation} does not tell the whole document, so it cannot be mirrored"))
        .remedy("let the source tell it, with full_document = \"updateLookup\", or with stored images (watchkeeper mongodb setup --images), and keep fullDocument in its pipeline")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(bytes: &[usize]) -> Vec<usize> {
        let merged_write =
            |bytes: &usize| MergedWrite { at: 0, id: RawBson::Null, document: None, is_new: false, bytes: *bytes };
        parts(bytes.iter().map(merged_write).collect()).iter().map(Vec::len).collect()
    }

    #[test]
    fn no_command_is_larger_than_the_server_takes() {
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&[BYTES_MAX, 1, BYTES_MAX - 1, 1]), [1, 2, 1]);
        // One alone may be larger than a part should be, but never than the server takes.
        assert_eq!(sizes(&[BYTES_MAX + 5, 5]), [1, 1]);
        assert_eq!(sizes(&vec![1; STATEMENTS_MAX + 1]), [STATEMENTS_MAX, 1]);
    }
}
