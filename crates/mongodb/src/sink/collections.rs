use std::collections::BTreeMap;

use async_trait::async_trait;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Binary, DateTime, RawBson, RawDocument, RawDocumentBuf, doc, rawdoc, spec::BinarySubtype};
use watchkeeper_core::{Change, Cx, Error, Operation, Result};

use super::document::{after, body, joined, mirrored_id, raw};
use super::{Apply, Failure, Open};
use crate::client::{Client, create, number_bson};

/// At most so many statements in one command, and so many bytes of bodies; the server takes 100,000 and 48 MB.
const STATEMENTS_MAX: usize = 10_000;
const BYTES_MAX: usize = 12_000_000;

/// The server's limit for a document, less what stands around a body.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024 - 4096;

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
        create(cx, client, doc! { "create": self.collection.0.as_str() }).await
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
        fits(at, change)?;
        bytes += STATEMENT_BYTES + change.body().len();
        if bytes > BYTES_MAX || documents.len() >= STATEMENTS_MAX {
            insert(open, collection, first, std::mem::take(&mut documents)).await?;
            (first, bytes) = (at, STATEMENT_BYTES + change.body().len());
        }
        documents.push(document(open, change, at).map_err(|error| unreadable(at, error))?);
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
/// that was mirrored of it is deleted. A collection that is renamed is rejected: its documents are elsewhere now without a
/// change having told of them, so what the mirror has is no longer what the source has. An update that tells only what differs is
/// rejected as well; `check` finds such a stream beforehand.
#[derive(Debug, Clone)]
pub struct Mirror {
    collection: Name,
}

/// What stands for the source's collection in the name of a mirror's.
const COLLECTION: &str = "{collection}";

/// What stands for the database of the source's collection.
const DATABASE: &str = "{database}";

impl Mirror {
    /// Into this collection, made where it is missing. `{collection}` in it stands for the name of the changed collection or
    /// table, and `{database}` for that of its database or schema; without them all changes go into one, and their keys have
    /// to differ.
    pub fn into(collection: &str) -> Result<Self> {
        Ok(Self { collection: Name::new(collection)? })
    }

    /// The one collection that it writes, if it is always the same.
    pub(super) fn only_target(&self) -> Option<&str> {
        (!self.collection.is_pattern()).then_some(&self.collection.0)
    }

    /// The collection that a change is written to.
    pub(super) fn target(&self, change: &Change) -> String {
        self.collection.name_for(change.namespace())
    }
}

/// What becomes of a document.
#[derive(Debug)]
pub(super) struct Fate {
    /// The place of the last change of it.
    pub(super) at: usize,
    /// The document's `_id`.
    pub(super) id: RawBson,
    /// As it is to be; `None` when it is to be taken away.
    pub(super) document: Option<RawDocumentBuf>,
    /// About how large a statement with it is.
    pub(super) bytes: usize,
}

impl Fate {
    /// The statement that brings it about.
    fn statement(self) -> RawDocumentBuf {
        match self.document {
            Some(document) => rawdoc! { "q": { "_id": self.id }, "u": document, "upsert": true },
            None => rawdoc! { "q": { "_id": self.id }, "limit": 1 },
        }
    }
}

/// A document with this `_id`, whatever a pipeline has made of its own.
fn identified(id: &RawBson, document: &RawDocument, at: usize) -> Result<RawDocumentBuf, Failure> {
    let mut first = RawDocumentBuf::new();
    first.append(cstr!("_id"), id.as_raw_bson_ref());
    joined(&first, document, &RawDocumentBuf::new()).map_err(|error| unreadable(at, error))
}

/// What a statement has beside its document.
const STATEMENT_BYTES: usize = 256;

/// Parts of a list that each fit into one command.
pub(super) fn parts(fates: Vec<Fate>) -> Vec<Vec<Fate>> {
    let mut parts: Vec<Vec<Fate>> = Vec::new();
    let mut bytes = 0;
    for fate in fates {
        bytes += fate.bytes;
        match parts.last_mut() {
            Some(part) if bytes <= BYTES_MAX && part.len() < STATEMENTS_MAX => part.push(fate),
            _ => {
                bytes = fate.bytes;
                parts.push(vec![fate]);
            }
        }
    }
    parts
}

/// What changes come to, by target and key.
#[derive(Debug, Default)]
pub(super) struct Fates(BTreeMap<(String, Vec<u8>), Fate>);

impl Fates {
    /// Notes what a change comes to, over what was noted of its key.
    pub(super) fn note(&mut self, target: String, at: usize, change: &Change, key: &[u8]) -> Result<(), Failure> {
        let id = mirrored_id(change, key).map_err(|error| unreadable(at, error))?;
        let document = match change.operation() {
            Operation::Delete => None,
            _ => match after(change).map_err(|error| unreadable(at, error))? {
                Some(RawBson::Document(document)) => Some(identified(&id, &document, at)?),
                // It was deleted since; the change that did so will come.
                Some(RawBson::Null) => return Ok(()),
                _ => return Err(Failure::Refused(at, incomplete(change))),
            },
        };
        let bytes = STATEMENT_BYTES + document.as_ref().map_or(0, |_| change.body().len());
        self.0.insert((target, key.to_vec()), Fate { at, id, document, bytes });
        Ok(())
    }

    /// All that was noted, by target.
    pub(super) fn take_by_target(&mut self) -> BTreeMap<String, Vec<Fate>> {
        let mut targets: BTreeMap<String, Vec<Fate>> = BTreeMap::new();
        for ((target, _), fate) in std::mem::take(&mut self.0) {
            targets.entry(target).or_default().push(fate);
        }
        targets
    }

    /// Writes all, in any order: no two are about the same document.
    async fn send(&mut self, open: &mut Open<'_>) -> Result<(), Failure> {
        for (target, fates) in self.take_by_target() {
            let (upserts, deletes): (Vec<_>, Vec<_>) = fates.into_iter().partition(|fate| fate.document.is_some());
            for (command, list, fates) in [("update", cstr!("updates"), upserts), ("delete", cstr!("deletes"), deletes)]
            {
                for part in parts(fates) {
                    let (places, statements): (Vec<usize>, Vec<RawDocumentBuf>) =
                        part.into_iter().map(|fate| (fate.at, fate.statement())).unzip();
                    let command = doc! { command: target.as_str() };
                    let stated = open.state_each(command, (list, statements)).await;
                    stated.map_err(|failure| failure.placed(&places))?;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn renamed(change: &Change) -> Error {
    Error::config(format!("{} was renamed, which a mirror can not follow", change.namespace()))
        .remedy("empty the mirror and begin anew with start = \"snapshot\", or skip this change if the mirror may keep what it has")
}

fn incomplete(change: &Change) -> Error {
    let operation = change.operation().as_str();
    Error::config(format!("this {operation} does not tell the whole document, so it can not be mirrored"))
        .remedy("let the source tell it, with full_document = \"updateLookup\", or with stored images (watchkeeper mongodb setup --images)")
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
        let mut fates = Fates::default();
        for (at, change) in changes.iter().enumerate() {
            fits(at, change)?;
            let target = self.target(change);
            if let Some(key) = change.key() {
                fates.note(target, at, change, key)?;
            } else if change.operation() == Operation::Rename {
                return Err(Failure::Refused(at, renamed(change)));
            } else if matches!(change.operation(), Operation::Drop | Operation::Truncate) {
                fates.send(open).await?;
                let all = rawdoc! { "q": {}, "limit": 0 };
                let cleared = open.state_each(doc! { "delete": target }, (cstr!("deletes"), vec![all])).await;
                cleared.map_err(|failure| failure.placed(&[at]))?;
            }
        }
        fates.send(open).await
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }

    fn needs_whole_documents(&self) -> bool {
        true
    }
}

fn fits(at: usize, change: &Change) -> Result<(), Failure> {
    if change.body().len() <= BODY_BYTES_MAX {
        return Ok(());
    }
    let cause = format!("a change of {} bytes does not fit into a document", change.body().len());
    Err(Failure::Refused(at, Error::config(cause).remedy("leave fields out of it at the source")))
}

/// A payload that can not be read is the change's fault.
fn unreadable(at: usize, error: Error) -> Failure {
    Failure::Refused(at, error)
}

/// A name of a collection that is not one of ours. What it may stand for depends on the change.
#[derive(Debug, Clone)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it stands for many collections.
    pub(crate) fn is_pattern(&self) -> bool {
        [COLLECTION, DATABASE].iter().any(|part| self.0.contains(part))
    }

    /// Whether collections of one name in several databases have one name here.
    pub(crate) fn mixes_databases(&self) -> bool {
        self.0.contains(COLLECTION) && !self.0.contains(DATABASE)
    }

    /// The collection for changes of this namespace.
    pub(crate) fn name_for(&self, namespace: &str) -> String {
        let (database, collection) = namespace.split_once('.').unwrap_or(("", namespace));
        if !self.is_pattern() {
            return self.0.clone();
        }
        self.0.replace(DATABASE, database).replace(COLLECTION, collection)
    }

    pub(crate) fn new(collection: &str) -> Result<Self> {
        let ours = collection.starts_with("watchkeeper_") || collection.starts_with("system.");
        if ours || collection.is_empty() || collection.contains(['\0', '$']) {
            let cause = format!("{collection:?} can not be a collection of a sink");
            return Err(Error::config(cause).remedy("choose another name"));
        }
        Ok(Self(collection.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(bytes: &[usize]) -> Vec<usize> {
        let fate = |bytes: &usize| Fate { at: 0, id: RawBson::Null, document: None, bytes: *bytes };
        parts(bytes.iter().map(fate).collect()).iter().map(Vec::len).collect()
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
