//! From one raw event to one row.

use mongodb::bson::RawDocument;
use watchkeeper_core::{BatchBuilder, Error, Operation, Result, RowParts, SourceTime};

use super::pipeline::ASIDE;
use crate::payload::scan::{ARRAY, Field, Fields};
use crate::payload::{canonical_key, damaged};
use crate::position::Token;

/// The longest that is shown of a key in messages.
const KEY_CHARS_MAX: usize = 200;

/// What the stream needs of an event, as it lies in it.
#[derive(Debug, Default)]
pub(super) struct Event<'a> {
    token: Option<&'a [u8]>,
    operation: Option<&'a [u8]>,
    namespace: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    wall_millis: Option<i64>,
    /// Whether something was left out of it because it is too large.
    pub(super) is_cut: bool,
}

impl<'a> Event<'a> {
    /// Looks for it in the event, or where it was kept aside.
    pub(super) fn read(raw: &'a [u8], aside: bool) -> Result<Self> {
        let mut event = Self::default();
        for field in Fields::of(raw)? {
            let field = field?;
            if field.name == b"_id" {
                event.token = field.document().or(event.token);
            } else if !aside {
                event.note(field.name, &field);
            } else if field.name == ASIDE.as_bytes()
                && let Some(kept) = field.document()
            {
                event.note_kept(kept)?;
            }
        }
        Ok(event)
    }

    fn note_kept(&mut self, kept: &'a [u8]) -> Result<()> {
        for field in Fields::of(kept)? {
            let field = field?;
            let name: &[u8] = match field.name {
                b"left" => {
                    self.is_cut = field.kind == ARRAY && Fields::of(field.value)?.next().is_some();
                    continue;
                }
                b"o" => b"operationType",
                b"n" => b"ns",
                b"k" => b"documentKey",
                _ => b"wallTime",
            };
            self.note(name, &field);
        }
        Ok(())
    }

    /// Whether its key was left out, too: then it is about a document, and does not tell which.
    pub(super) fn lacks_key(&self) -> bool {
        self.is_cut && self.key.is_none() && self.operation.is_some_and(|name| operation(name).has_row())
    }

    /// The collection and the `_id` that it is about.
    pub(super) fn subject(&self) -> Option<(&'a str, Field<'a>)> {
        let collection = RawDocument::from_bytes(self.namespace?).ok()?.get_str("coll").ok()?;
        Some((collection, Fields::of(self.key?).and_then(|fields| fields.find(b"_id")).ok()??))
    }

    /// Whether it tells that a document is gone.
    pub(super) fn is_delete(&self) -> bool {
        self.operation == Some(b"delete")
    }

    /// Keeps what is needed. What has another type than an event's has was made by a pipeline, and is left alone.
    fn note(&mut self, name: &[u8], field: &Field<'a>) {
        match name {
            b"operationType" => self.operation = field.text().or(self.operation),
            b"ns" => self.namespace = field.document().or(self.namespace),
            b"documentKey" => self.key = field.document().or(self.key),
            b"wallTime" => self.wall_millis = field.millis().or(self.wall_millis),
            _ => {}
        }
    }
}

/// Reused from row to row, so that a row costs no allocation.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) token: Token,
    namespace: String,
    /// The bytes that the namespace was read from: mostly those of the next event are the same.
    namespace_read: Vec<u8>,
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

    pub(super) fn time(self) -> SourceTime {
        self.time
    }
}

impl Scratch {
    /// Takes up the next event. `scope` names what is watched, for events without a namespace.
    pub(super) fn take_up(&mut self, event: &Event<'_>, scope: &str) -> Result<Head> {
        let operation = operation(event.operation.ok_or_else(|| dropped("operationType"))?);
        self.token.read(event.token.ok_or_else(|| dropped("_id"))?)?;
        self.token.start_after = operation == Operation::Invalidate;
        self.name(event.namespace, scope)?;
        self.key.clear();
        let has_key = operation.has_row() && !event.lacks_key();
        if has_key {
            let key = event.key.ok_or_else(|| dropped("documentKey"))?;
            canonical_key(RawDocument::from_bytes(key).map_err(damaged)?, &mut self.key)?;
        }
        let wall = event.wall_millis.and_then(|millis| u64::try_from(millis).ok()).map(SourceTime);
        let time = wall.or_else(|| self.token.time()).unwrap_or_default();
        Ok(Head { operation, has_key, time })
    }

    /// The event as messages name it.
    pub(super) fn description(&self, head: Head) -> String {
        let key = String::from_utf8_lossy(&self.key);
        let key: String = key.chars().take(KEY_CHARS_MAX).collect();
        let at = self.token.timestamp().filter(|_| !head.has_key);
        let at = at.map(|at| format!("at the operation time {}:{}", at.time, at.increment)).unwrap_or_default();
        format!("{} of {} {key}{at}", head.operation.as_str(), self.namespace).trim_end().to_owned()
    }

    /// Makes the position of the event. `progress` is that of a running snapshot.
    pub(super) fn place(&mut self, progress: Option<&[u8]>) {
        self.position.clear();
        self.token.encode(progress, &mut self.position);
    }

    fn name(&mut self, namespace: Option<&[u8]>, scope: &str) -> Result<()> {
        let Some(namespace) = namespace else {
            self.namespace_read.clear();
            scope.clone_into(&mut self.namespace);
            return Ok(());
        };
        if self.namespace_read == namespace {
            return Ok(());
        }
        let namespace_of = RawDocument::from_bytes(namespace).map_err(damaged)?;
        let part = |name: &str| namespace_of.get_str(name).ok();
        self.namespace.clear();
        match (part("db"), part("coll")) {
            (Some(database), Some(collection)) => {
                self.namespace.push_str(database);
                self.namespace.push('.');
                self.namespace.push_str(collection);
            }
            (Some(database), None) => self.namespace.push_str(database),
            _ => self.namespace.push_str(scope),
        }
        namespace.clone_into(&mut self.namespace_read);
        Ok(())
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

/// The event without what was kept aside: as the user's pipeline made it. Its values are copied as they are, since servers also
/// store what is no value.
pub(super) fn without_aside(raw: &[u8]) -> Result<Vec<u8>> {
    let mut event = vec![0; 4];
    for field in Fields::of(raw)? {
        let field = field?;
        if field.name != ASIDE.as_bytes() {
            event.push(field.kind);
            event.extend_from_slice(field.name);
            event.push(0);
            event.extend_from_slice(field.value);
        }
    }
    event.push(0);
    // It is shorter than the event that it was made from, whose length is a number of this type.
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    event[..4].copy_from_slice(&length.to_le_bytes());
    Ok(event)
}

fn operation(name: &[u8]) -> Operation {
    match name {
        b"insert" => Operation::Insert,
        b"update" => Operation::Update,
        b"replace" => Operation::Replace,
        b"delete" => Operation::Delete,
        b"drop" => Operation::Drop,
        b"rename" => Operation::Rename,
        b"dropDatabase" => Operation::DropDatabase,
        b"invalidate" => Operation::Invalidate,
        b"create" => Operation::Create,
        b"createIndexes" => Operation::CreateIndexes,
        b"dropIndexes" => Operation::DropIndexes,
        b"modify" => Operation::Modify,
        b"shardCollection" => Operation::ShardCollection,
        _ => Operation::Other,
    }
}

fn dropped(field: &str) -> Error {
    Error::config(format!("the pipeline drops {field}, without which an event cannot be placed"))
        .remedy("keep it, or use $match, $project, $set, $unset or $replaceRoot, which Watchkeeper can complete")
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};

    use super::*;

    const TOKEN: &str = "8263F0B2A1000000022B022C0100296E04";

    fn raw(event: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(event).expect("a document")
    }

    fn insert(namespace: Document) -> Document {
        doc! { "_id": { "_data": TOKEN }, "operationType": "insert", "ns": namespace, "documentKey": { "_id": 7 } }
    }

    #[test]
    fn every_event_gets_its_own_namespace_whatever_its_neighbours_have() {
        let mut scratch = Scratch::default();
        let mut name = |event: &Document| {
            let raw = raw(event);
            let event = Event::read(raw.as_bytes(), false).expect("an event");
            scratch.take_up(&event, "shop (all)").expect("it is whole");
            scratch.namespace.clone()
        };
        let orders = insert(doc! { "db": "shop", "coll": "orders" });
        let items = insert(doc! { "db": "shop", "coll": "items" });
        let nowhere = doc! { "_id": { "_data": TOKEN }, "operationType": "invalidate" };
        let database = doc! { "_id": { "_data": TOKEN }, "operationType": "dropDatabase", "ns": { "db": "shop" } };
        for (event, expected) in [
            (&orders, "shop.orders"),
            (&orders, "shop.orders"),
            (&items, "shop.items"),
            (&orders, "shop.orders"),
            (&nowhere, "shop (all)"),
            (&orders, "shop.orders"),
            (&database, "shop"),
            (&nowhere, "shop (all)"),
            (&nowhere, "shop (all)"),
            (&insert(doc! { "table": 1 }), "shop (all)"),
            (&items, "shop.items"),
        ] {
            assert_eq!(name(event), expected);
        }
    }

    #[test]
    fn what_a_pipeline_made_of_a_field_is_not_taken_for_it() {
        let wall = DateTime::from_millis(1_700_000_000_123);
        let kept = doc! {
            "o": "update", "n": { "db": "shop", "coll": "orders" }, "k": { "_id": 1.0 }, "w": wall
        };
        let mut event = doc! {
            "_id": { "_data": TOKEN }, "operationType": 5, "ns": "shop", "documentKey": Bson::Null, "wallTime": "noon"
        };
        let bytes = raw(&event);
        let read = Event::read(bytes.as_bytes(), false).expect("an event");
        assert!(read.token.is_some());
        assert!(read.operation.is_none() && read.namespace.is_none() && read.key.is_none());
        assert_eq!(read.wall_millis, None);
        event.insert(ASIDE, kept);
        let bytes = raw(&event);
        let read = Event::read(bytes.as_bytes(), true).expect("an event");
        let mut scratch = Scratch::default();
        let head = scratch.take_up(&read, "shop").expect("what it needs was kept aside");
        assert_eq!((head.operation, head.time), (Operation::Update, SourceTime(1_700_000_000_123)));
        assert_eq!((scratch.namespace.as_str(), scratch.key.as_slice()), ("shop.orders", &b"1"[..]));
        assert_eq!(read.subject().map(|(collection, _)| collection), Some("orders"));
    }
}
