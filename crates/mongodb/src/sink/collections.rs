use std::collections::BTreeMap;

use async_trait::async_trait;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc, spec::BinarySubtype};
use watchkeeper_core::{Change, Cx, Error, Operation, Result};

use super::document::{after, body, mirrored_id};
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

    fn document(open: &Open<'_>, change: &Change, place: usize) -> Result<Document> {
        let (grant, version) = (open.grant(), change.version());
        let key = change.key().map(|key| Binary { subtype: BinarySubtype::Generic, bytes: key.to_vec() });
        let (epoch, seq) = (number_bson(grant.epoch.0), number_bson(open.seq()));
        Ok(doc! {
            "_id": { "stream": grant.key.as_str(), "epoch": epoch, "seq": seq, "place": number_bson(place as u64) },
            "change": change.id().to_string(),
            "operation": change.operation().as_str(),
            "namespace": change.namespace(),
            "key": key,
            "time": DateTime::from_millis(i64::try_from(change.time().0).unwrap_or(i64::MAX)),
            "version": { "time": number_bson(version.time), "ordinal": number_bson(version.ordinal) },
            "tenure": grant.tenure.to_string(),
            "event": body(change)?,
        })
    }
}

#[async_trait]
impl Apply for Events {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        create(cx, client, doc! { "create": self.collection.0.as_str() }).await
    }

    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        let mut load = Load::new("insert", "documents", &self.collection.0);
        for (at, change) in changes.iter().enumerate() {
            fits(at, change)?;
            let document = Self::document(open, change, at).map_err(|error| unreadable(at, error))?;
            load.add(open, at, change.body().len(), document).await?;
        }
        load.send(open).await
    }
}

/// Keeps the newest document of every key: an upsert or a delete for each change.
///
/// Changes of one key that come together are written once, as the last of them leaves it.
#[derive(Debug, Clone)]
pub struct Mirror {
    collection: Name,
}

/// What stands for the source's collection in the name of a mirror's.
const SOURCE: &str = "{collection}";

impl Mirror {
    /// Into this collection, made where it is missing. `{collection}` in it stands for the name of the changed collection or
    /// table; without it all changes go into one, and their keys have to differ.
    pub fn into(collection: &str) -> Result<Self> {
        Ok(Self { collection: Name::new(collection)? })
    }

    fn target(&self, change: &Change) -> String {
        let source = change.namespace();
        let source = source.split_once('.').map_or(source, |(_, name)| name);
        self.collection.0.replace(SOURCE, source)
    }
}

/// What becomes of a document: put as it is here, or taken away.
type Fate = (usize, Bson, Option<Document>);

/// What changes come to, by target and key.
#[derive(Debug, Default)]
struct Fates(BTreeMap<(String, Vec<u8>), Fate>);

impl Fates {
    fn note(&mut self, target: String, at: usize, change: &Change, key: &[u8]) -> Result<(), Failure> {
        let id = mirrored_id(change, key).map_err(|error| unreadable(at, error))?;
        let document = match change.operation() {
            Operation::Delete => None,
            _ => match after(change).map_err(|error| unreadable(at, error))? {
                Some(Bson::Document(mut document)) => {
                    document.insert("_id", id.clone());
                    Some(document)
                }
                // It was deleted since; the change that did so will come.
                Some(Bson::Null) => None,
                _ => return Err(Failure::Refused(at, incomplete(change))),
            },
        };
        self.0.insert((target, key.to_vec()), (at, id, document));
        Ok(())
    }

    /// Writes all, in any order: no two are about the same document.
    async fn send(&mut self, open: &mut Open<'_>) -> Result<(), Failure> {
        let mut loads: BTreeMap<(String, bool), Load> = BTreeMap::new();
        for ((target, _), (at, id, document)) in std::mem::take(&mut self.0) {
            let upsert = document.is_some();
            let load = loads.entry((target.clone(), upsert)).or_insert_with(|| match upsert {
                true => Load::new("update", "updates", &target),
                false => Load::new("delete", "deletes", &target),
            });
            let (size, statement) = match document {
                Some(document) => {
                    let size = document.iter().count() * 64;
                    (size, doc! { "q": { "_id": id }, "u": document, "upsert": true })
                }
                None => (64, doc! { "q": { "_id": id }, "limit": 1 }),
            };
            load.add(open, at, size, statement).await?;
        }
        for load in loads.values_mut() {
            load.send(open).await?;
        }
        Ok(())
    }
}

fn incomplete(change: &Change) -> Error {
    let operation = change.operation().as_str();
    Error::config(format!("this {operation} does not tell the whole document, so it can not be mirrored"))
        .remedy("let the source tell it, with full_document = \"updateLookup\" or \"required\"")
}

#[async_trait]
impl Apply for Mirror {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        if self.collection.0.contains(SOURCE) {
            return Ok(());
        }
        create(cx, client, doc! { "create": self.collection.0.as_str() }).await
    }

    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        let mut fates = Fates::default();
        for (at, change) in changes.iter().enumerate() {
            fits(at, change)?;
            let target = self.target(change);
            if let Some(key) = change.key() {
                fates.note(target, at, change, key)?;
            } else if matches!(change.operation(), Operation::Drop | Operation::Truncate) {
                fates.send(open).await?;
                let all = doc! { "q": {}, "limit": 0 };
                open.state(doc! { "delete": target, "deletes": [all] })
                    .await
                    .map_err(|failure| failure.placed(&[at]))?;
            }
        }
        fates.send(open).await
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }
}

/// Statements of one command, sent when there are many.
#[derive(Debug)]
struct Load {
    command: &'static str,
    list: &'static str,
    collection: String,
    statements: Vec<Document>,
    /// Which change each is for.
    places: Vec<usize>,
    bytes: usize,
}

impl Load {
    fn new(command: &'static str, list: &'static str, collection: &str) -> Self {
        let collection = collection.to_owned();
        Self { command, list, collection, statements: Vec::new(), places: Vec::new(), bytes: 0 }
    }

    async fn add(&mut self, open: &mut Open<'_>, at: usize, size: usize, statement: Document) -> Result<(), Failure> {
        if self.bytes + size > BYTES_MAX || self.statements.len() >= STATEMENTS_MAX {
            self.send(open).await?;
        }
        self.bytes += size;
        self.places.push(at);
        self.statements.push(statement);
        Ok(())
    }

    async fn send(&mut self, open: &mut Open<'_>) -> Result<(), Failure> {
        if self.statements.is_empty() {
            return Ok(());
        }
        let (statements, places) = (std::mem::take(&mut self.statements), std::mem::take(&mut self.places));
        self.bytes = 0;
        let command = doc! { self.command: self.collection.as_str(), self.list: statements };
        open.state(command).await.map_err(|failure| failure.placed(&places))
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

/// A name of a collection that is not one of ours.
#[derive(Debug, Clone)]
struct Name(String);

impl Name {
    fn new(collection: &str) -> Result<Self> {
        let ours = collection.starts_with("watchkeeper_") || collection.starts_with("system.");
        if ours || collection.is_empty() || collection.contains(['\0', '$']) {
            let cause = format!("{collection:?} can not be a collection of a sink");
            return Err(Error::config(cause).remedy("choose another name"));
        }
        Ok(Self(collection.to_owned()))
    }
}
