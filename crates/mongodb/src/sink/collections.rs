use async_trait::async_trait;
use mongodb::bson::raw::cstr;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, DateTime, RawDocument, RawDocumentBuf, doc, rawdoc};
use watchkeeper_core::{Change, Cx, Error, Operation, Result, rename_rejection};

use super::document::{body, raw};
use super::merged_writes::{BYTES_MAX, MergedWrite, MergedWrites, STATEMENT_BYTES, STATEMENTS_MAX};
use super::name::{Name, Origins};
use super::{Apply, Failure, Open};
use crate::client::{Client, create, number_bson};

/// The server's limit for a document.
pub(super) const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What may stand around a document in its command. The server lets commands be larger than documents by 16 KiB, and some of
/// that is for what the driver adds.
const AROUND_BYTES_MAX: usize = 14 * 1024;

/// Appends every change to a collection. Sorted by `_id` they are in the order of the stream.
#[derive(Debug, Clone)]
pub struct Events {
    collection: Name,
}

impl Events {
    /// Into this collection, made where it is missing.
    pub fn into(collection: &str) -> Result<Self> {
        Ok(Self { collection: Name::new(collection)? })
    }

    fn document(open: &Open<'_>, change: &Change, place: usize) -> Result<RawDocumentBuf> {
        let (grant, version) = (open.grant(), change.version());
        let key = change.key().map(|key| Binary { subtype: BinarySubtype::Generic, bytes: key.to_vec() });
        let (epoch, seq) = (number_bson(grant.epoch.0), number_bson(open.seq()));
        let mut document = raw(&doc! {
            "_id": { "stream": grant.key.as_str(), "epoch": epoch, "seq": seq, "place": number_bson(place as u64) },
            "change": change.id().to_string(),
            "operation": change.operation().as_str(),
            "namespace": change.namespace(),
            "key": key,
            "time": DateTime::from_millis(i64::try_from(change.time().0).unwrap_or(i64::MAX)),
            "version": { "time": number_bson(version.time), "ordinal": number_bson(version.ordinal) },
            "tenure": grant.tenure.to_string(),
        })?;
        document.append(cstr!("event"), body(change)?);
        Ok(document)
    }
}

#[async_trait]
impl Apply for Events {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        create(cx, client, doc! { "create": self.collection.as_str() }).await
    }

    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        append(open, &self.collection, changes, Self::document).await
    }
}

/// Appends a document for every change, made by `document` of the change and its place in the transaction.
pub(super) async fn append(
    open: &mut Open<'_>,
    collection: &Name,
    changes: &[Change],
    document: impl Fn(&Open<'_>, &Change, usize) -> Result<RawDocumentBuf> + Send,
) -> Result<(), Failure> {
    let (mut documents, mut first, mut bytes) = (Vec::new(), 0, 0);
    for (at, change) in changes.iter().enumerate() {
        let document = document(open, change, at).map_err(|error| unreadable(at, error))?;
        fits(at, &document, 0)?;
        let size = STATEMENT_BYTES + document.as_bytes().len();
        bytes += size;
        if bytes > BYTES_MAX || documents.len() >= STATEMENTS_MAX {
            insert(open, collection, first, std::mem::take(&mut documents)).await?;
            (first, bytes) = (at, size);
        }
        documents.push(document);
    }
    insert(open, collection, first, documents).await
}

/// Inserts the documents of the changes from `first` on.
async fn insert(
    open: &mut Open<'_>,
    collection: &Name,
    first: usize,
    documents: Vec<RawDocumentBuf>,
) -> Result<(), Failure> {
    if documents.is_empty() {
        return Ok(());
    }
    let places: Vec<usize> = (first..first + documents.len()).collect();
    let command = doc! { "insert": collection.as_str() };
    open.state_each(command, (cstr!("documents"), documents)).await.map_err(|failure| failure.placed(&places))
}

/// Keeps the newest document of every key: an upsert or a delete for each change.
///
/// Changes of one key that come together are written once, as the last of them leaves it. When a collection is dropped or truncated, all
/// that was mirrored of it is deleted; that is rejected where documents of other collections lie among them. A collection that is renamed is rejected: its documents are elsewhere now without a
/// change having told of them, so what the mirror has is no longer what the source has. An update that tells only what differs is
/// rejected as well; `check` finds such a stream beforehand.
#[derive(Debug, Clone)]
pub struct Mirror {
    collection: Name,
    origins: Origins,
}

impl Mirror {
    /// Into this collection, made where it is missing. `{collection}` in it stands for the name of the changed collection or
    /// table, and `{database}` for that of its database or schema; without them all changes go into one, and their keys have
    /// to differ.
    pub fn into(collection: &str) -> Result<Self> {
        Ok(Self { collection: Name::new(collection)?, origins: Origins::default() })
    }

    /// Says that changes of several collections may come. It is found out anyway as soon as they have come.
    #[must_use]
    pub fn of_several(mut self) -> Self {
        self.origins.are_several = true;
        self
    }

    /// The one collection that it writes, if it is always the same.
    pub(super) fn only_target(&self) -> Option<&str> {
        (!self.collection.is_pattern()).then_some(self.collection.as_str())
    }

    /// The collection that a change is written to.
    ///
    /// # Errors
    /// `Config` when the change would go into a collection that may not be written: it is rejected.
    pub(super) fn target(&self, change: &Change) -> Result<String> {
        let target = self.collection.name_for(change.namespace())?;
        self.origins.note(&self.collection, &target, change)?;
        Ok(target)
    }

    /// Whether a change can be about what is mirrored: not if it has no key and tells nothing of a collection.
    pub(super) fn concerns(change: &Change) -> bool {
        change.key().is_some() || matches!(change.operation(), Operation::Drop | Operation::Truncate)
    }
}

#[async_trait]
impl Apply for Mirror {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        match self.only_target() {
            Some(collection) => create(cx, client, doc! { "create": collection }).await,
            None => Ok(()),
        }
    }

    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        let mut merged = MergedWrites::default();
        for (at, change) in changes.iter().enumerate() {
            if change.operation() == Operation::Rename {
                return Err(Failure::Refused(at, rename_rejection(change)));
            }
            if !Self::concerns(change) {
                continue;
            }
            let target = self.target(change).map_err(|error| Failure::Refused(at, error))?;
            if let Some(key) = change.key() {
                let Some(merged_write) = MergedWrite::of(at, change, key)? else { continue };
                if open.in_order() && !merged.keep_pace_with(&target, key, &merged_write) {
                    merged.send(open).await?;
                }
                merged.note(target, key, merged_write);
            } else {
                merged.send(open).await?;
                let all = rawdoc! { "q": {}, "limit": 0 };
                let cleared = open.state_each(doc! { "delete": target }, (cstr!("deletes"), vec![all])).await;
                cleared.map_err(|failure| failure.placed(&[at]))?;
            }
        }
        merged.send(open).await
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }

    fn merges_changes(&self) -> bool {
        true
    }

    fn mirrors(&self) -> bool {
        true
    }

    fn needs_whole_documents(&self) -> bool {
        true
    }
}

/// Refuses a document that the server would not take, with so much around it.
pub(super) fn fits(at: usize, document: &RawDocument, around: usize) -> Result<(), Failure> {
    let bytes = document.as_bytes().len();
    if bytes <= DOCUMENT_BYTES_MAX && bytes + around <= DOCUMENT_BYTES_MAX + AROUND_BYTES_MAX {
        return Ok(());
    }
    let cause = format!("a change comes to a document of {bytes} bytes, and the server takes 16 MiB");
    Err(Failure::Refused(at, Error::config(cause).remedy("leave fields out of it at the source")))
}

/// A payload that cannot be read is the change's fault.
pub(super) fn unreadable(at: usize, error: Error) -> Failure {
    Failure::Refused(at, error)
}
