//! From one raw event to one row.

use mongodb::bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use watchkeeper_core::{BatchBuilder, Error, Operation, Result, RowParts, SourceTime};

use super::pipeline::ASIDE;
use crate::payload::{canonical_key, damaged};
use crate::position::Token;

/// What the stream needs of an event.
#[derive(Debug, Default)]
pub(super) struct Event<'a> {
    token: Option<&'a RawDocument>,
    operation: Option<&'a str>,
    namespace: Option<&'a RawDocument>,
    key: Option<&'a RawDocument>,
    wall_millis: Option<i64>,
}

impl<'a> Event<'a> {
    /// Looks for it in the event, or where it was kept aside.
    pub(super) fn read(raw: &'a RawDocument, aside: bool) -> Result<Self> {
        let mut event = Self::default();
        for field in raw.iter() {
            let (name, value) = field.map_err(damaged)?;
            match (name.as_str(), value) {
                ("_id", RawBsonRef::Document(token)) => event.token = Some(token),
                (ASIDE, RawBsonRef::Document(kept)) if aside => {
                    for field in kept.iter() {
                        let (name, value) = field.map_err(damaged)?;
                        match name.as_str() {
                            "o" => event.note("operationType", value),
                            "n" => event.note("ns", value),
                            "k" => event.note("documentKey", value),
                            _ => event.note("wallTime", value),
                        }
                    }
                }
                (name, value) if !aside => event.note(name, value),
                _ => {}
            }
        }
        Ok(event)
    }

    /// The collection and the `_id` that it is about.
    pub(super) fn subject(&self) -> Option<(&'a str, RawBsonRef<'a>)> {
        let collection = self.namespace?.get_str("coll").ok()?;
        Some((collection, self.key?.get("_id").ok()??))
    }

    fn note(&mut self, name: &str, value: RawBsonRef<'a>) {
        match (name, value) {
            ("operationType", RawBsonRef::String(operation)) => self.operation = Some(operation),
            ("ns", RawBsonRef::Document(namespace)) => self.namespace = Some(namespace),
            ("documentKey", RawBsonRef::Document(key)) => self.key = Some(key),
            ("wallTime", RawBsonRef::DateTime(time)) => self.wall_millis = Some(time.timestamp_millis()),
            _ => {}
        }
    }
}

/// Reused from row to row, so that a row costs no allocation.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) token: Token,
    namespace: String,
    key: Vec<u8>,
    position: Vec<u8>,
}

/// A row but for its body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    operation: Operation,
    has_key: bool,
    time: SourceTime,
}

impl Head {
    pub(super) fn is_invalidate(self) -> bool {
        self.operation == Operation::Invalidate
    }
}

impl Scratch {
    /// Takes up the next event. `scope` names what is watched, for events without a namespace.
    pub(super) fn take_up(&mut self, event: &Event<'_>, scope: &str) -> Result<Head> {
        let operation = operation(event.operation.ok_or_else(|| dropped("operationType"))?);
        self.token.read(event.token.ok_or_else(|| dropped("_id"))?)?;
        self.token.start_after = operation == Operation::Invalidate;
        self.name(event.namespace, scope);
        self.key.clear();
        let has_key = operation.has_row();
        if has_key {
            canonical_key(event.key.ok_or_else(|| dropped("documentKey"))?, &mut self.key)?;
        }
        let wall = event.wall_millis.and_then(|millis| u64::try_from(millis).ok()).map(SourceTime);
        let time = wall.or_else(|| self.token.time()).unwrap_or_default();
        Ok(Head { operation, has_key, time })
    }

    /// Makes the position of the event. `progress` is that of a running snapshot.
    pub(super) fn place(&mut self, progress: Option<&[u8]>) {
        self.position.clear();
        self.token.encode(progress, &mut self.position);
    }

    fn name(&mut self, namespace: Option<&RawDocument>, scope: &str) {
        self.namespace.clear();
        let part = |name: &str| namespace.and_then(|namespace| namespace.get_str(name).ok());
        match (part("db"), part("coll")) {
            (Some(database), Some(collection)) => {
                self.namespace.push_str(database);
                self.namespace.push('.');
                self.namespace.push_str(collection);
            }
            (Some(database), None) => self.namespace.push_str(database),
            _ => self.namespace.push_str(scope),
        }
    }

    /// The row in a batch; its body is given by the caller, or lies in the received bytes.
    pub(super) fn parts<'a>(&'a self, head: Head, builder: &mut BatchBuilder, body: &'a [u8]) -> RowParts<'a> {
        RowParts {
            operation: head.operation,
            namespace: builder.namespace(&self.namespace),
            half: 0,
            committable: true,
            key: head.has_key.then_some(&self.key),
            position: &self.position,
            body,
            time: head.time,
            version: self.token.version(),
        }
    }
}

/// The event without what was kept aside: as the user's pipeline made it.
pub(super) fn without_aside(raw: &RawDocument) -> Result<RawDocumentBuf> {
    let mut event = RawDocumentBuf::new();
    for field in raw.iter() {
        let (name, value) = field.map_err(damaged)?;
        if name.as_str() != ASIDE {
            event.append(name, value);
        }
    }
    Ok(event)
}

fn operation(name: &str) -> Operation {
    match name {
        "insert" => Operation::Insert,
        "update" => Operation::Update,
        "replace" => Operation::Replace,
        "delete" => Operation::Delete,
        "drop" => Operation::Drop,
        "rename" => Operation::Rename,
        "dropDatabase" => Operation::DropDatabase,
        "invalidate" => Operation::Invalidate,
        "create" => Operation::Create,
        "createIndexes" => Operation::CreateIndexes,
        "dropIndexes" => Operation::DropIndexes,
        "modify" => Operation::Modify,
        "shardCollection" => Operation::ShardCollection,
        _ => Operation::Other,
    }
}

fn dropped(field: &str) -> Error {
    Error::config(format!("the pipeline drops {field}, without which an event can not be placed"))
        .remedy("keep it, or use $match, $project, $set, $unset or $replaceRoot, which Watchkeeper can complete")
}
