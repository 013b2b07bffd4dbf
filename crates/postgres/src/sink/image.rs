//! What a change tells, as JSON.

use watchkeeper_core::format::JsonWriter;
use watchkeeper_core::payload::{Image, ValueRef, Visit};
use watchkeeper_core::{Change, Error, Operation, Result, rename_rejection};

/// A document, and which values are missing that the source did not send because they did not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) json: String,
    /// The names of their fields.
    pub(super) unchanged: Vec<String>,
}

impl Document {
    pub(super) fn is_partial(&self) -> bool {
        !self.unchanged.is_empty()
    }
}

/// Refuses a row of which nothing says which one it is, and a rename of its table or collection.
pub(super) fn require_key(change: &Change) -> Result<()> {
    use Operation::{Delete, Insert, Read, Rename, Replace, Update};
    let operation = change.operation();
    if operation == Rename {
        return Err(rename_rejection(change));
    }
    if change.key().is_some() || !matches!(operation, Insert | Update | Replace | Delete | Read) {
        return Ok(());
    }
    Err(Error::config(format!("this {} has no key: nothing says which row it is of", operation.as_str()))
        .remedy("give every row of the outbox a key, or keep such changes as events (mode = \"events\")"))
}

/// Everything that a change's body tells.
pub(super) fn body(change: &Change) -> Result<Option<String>> {
    if change.body().is_empty() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(change.body().len());
    change.batch().payload().walk(change.body(), &mut JsonWriter::new(&mut out))?;
    text(out).map(Some)
}

/// What was changed, as it is since the change. An error when the body does not tell it, `None` when it is no more.
pub(super) fn after(change: &Change) -> Result<Option<Document>> {
    let mut out = Vec::with_capacity(change.body().len());
    let mut known = KnownValues { writer: JsonWriter::new(&mut out), key: None, unchanged: Vec::new() };
    let payload = change.batch().payload();
    let has_image = payload.image(change.body(), change.operation(), Image::After, &mut known)?;
    let unchanged = std::mem::take(&mut known.unchanged);
    if !has_image || out.is_empty() {
        let operation = change.operation().as_str();
        let cause = format!("this {operation} does not tell the whole row, so it cannot be mirrored");
        return Err(Error::config(cause).remedy("let the source tell it (full_document, REPLICA IDENTITY)"));
    }
    // It was deleted since; the change that did so will come.
    if out == b"null" {
        return Ok(None);
    }
    Ok(Some(Document { json: text(out)?, unchanged }))
}

fn text(out: Vec<u8>) -> Result<String> {
    String::from_utf8(out).map_err(|error| Error::config("a change is not UTF-8").caused_by(error))
}

/// Writes what is known and leaves out what did not change.
struct KnownValues<'a> {
    writer: JsonWriter<'a>,
    /// The key that is due, until it is known that a value follows.
    key: Option<String>,
    unchanged: Vec<String>,
}

impl KnownValues<'_> {
    fn due(&mut self) {
        if let Some(key) = self.key.take() {
            self.writer.key(&key);
        }
    }
}

impl Visit for KnownValues<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        if value == ValueRef::Unchanged {
            self.unchanged.extend(self.key.take());
            return;
        }
        self.due();
        self.writer.value(value);
    }

    fn begin_document(&mut self) {
        self.due();
        self.writer.begin_document();
    }

    fn key(&mut self, key: &str) {
        self.key = Some(key.to_owned());
    }

    fn end_document(&mut self) {
        self.writer.end_document();
    }

    fn begin_array(&mut self) {
        self.due();
        self.writer.begin_array();
    }

    fn end_array(&mut self) {
        self.writer.end_array();
    }
}
