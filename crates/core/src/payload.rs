//! Lazy payloads: core names the values, each backend brings the decoder of its own bytes.

pub(crate) mod json;

use std::borrow::Cow;

use crate::change::Operation;
use crate::error::Result;

/// The subtype of [`ValueRef::Binary`] for text whose bytes are not UTF-8: a user-defined one, so that it is not taken for plain bytes.
pub const TEXT_NOT_UTF8: u8 = 0x80;

/// One value of a payload.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ValueRef<'a> {
    /// Nothing.
    Null,
    /// Not sent by the source because it did not change (large values of PostgreSQL).
    Unchanged,
    /// A truth value.
    Bool(bool),
    /// 32 bits.
    Int32(i32),
    /// 64 bits.
    Int64(i64),
    /// A binary floating point number.
    Double(f64),
    /// A decimal number as its digits.
    Decimal(Cow<'a, str>),
    /// Text.
    Str(Cow<'a, str>),
    /// Bytes with the source's subtype.
    Binary(u8, Cow<'a, [u8]>),
    /// A MongoDB object id.
    ObjectId([u8; 12]),
    /// Milliseconds since 1970.
    DateTime(i64),
    /// Seconds since 1970 and an increment.
    Timestamp(u32, u32),
    /// A regular expression and its options.
    Regex(Cow<'a, str>, Cow<'a, str>),
    /// JSON text, passed through as it is.
    Json(Cow<'a, str>),
    /// A document; walk it to look inside.
    Document,
    /// An array; walk it to look inside.
    Array,
}

/// Takes the parts of a payload in order.
pub trait Visit {
    /// A value: of the payload itself, of the last key, or the next of an array.
    fn value(&mut self, value: ValueRef<'_>);
    /// A value that is text, as JSON writes it: with its quotation marks and escapes. A visitor that writes JSON itself need not
    /// hold the whole text a second time.
    ///
    /// # Errors
    /// An escape stands for no character.
    fn quoted(&mut self, quoted: &str) -> Result<()> {
        self.value(ValueRef::Str(json::unquoted(quoted)?));
        Ok(())
    }
    /// A document begins.
    fn begin_document(&mut self);
    /// The key of what follows.
    fn key(&mut self, key: &str);
    /// The document ends.
    fn end_document(&mut self);
    /// An array begins.
    fn begin_array(&mut self);
    /// The array ends.
    fn end_array(&mut self);
}

/// Decodes one kind of body. Stateless, so that one serves all batches of a source.
pub trait Payload: Send + Sync + std::fmt::Debug {
    /// The value at `path`, or `None` if there is none.
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>>;

    /// Visits everything in `body` in order. Before an error a part of it may have been visited.
    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()>;

    /// Whether a body is the whole event (as with MongoDB) and not only the row.
    fn is_whole_event(&self) -> bool {
        false
    }

    /// Whether a row as it is since a change is always told with every column of its table, so that one that is absent is not there.
    /// Documents may lack fields, and what an application writes by itself is its own.
    fn sends_whole_rows(&self) -> bool {
        false
    }

    /// The new name, as changes of it carry it, of what the rename with this body has renamed. `None` where the body does not
    /// tell it.
    fn renamed_to(&self, _body: &[u8]) -> Option<String> {
        None
    }

    /// Whether a [`ValueRef::Str`] may be a JSON string of the source, as in bodies that are JSON throughout. If not, it is
    /// text, which a target of a JSON type has to parse.
    fn has_json_strings(&self) -> bool {
        true
    }

    /// Whether bytes are always told as [`ValueRef::Binary`], so that a [`ValueRef::Str`] is text and nothing else. If not, the text `\x41` may
    /// stand for bytes, as in JSON that PostgreSQL has written.
    fn has_binary_bytes(&self) -> bool {
        false
    }

    /// Visits what stands under `key` of the outermost document. Answers whether there is such a key;
    /// if not, nothing is visited.
    fn walk_field(&self, body: &[u8], key: &str, visit: &mut dyn Visit) -> Result<bool> {
        let mut field = Field::new(key, visit);
        self.walk(body, &mut field)?;
        Ok(field.found)
    }

    /// Visits one image of what the change was made to. Answers whether the body tells it; if not,
    /// nothing is visited.
    ///
    /// As provided, a document with `before` or `after` in it, each a document or null, tells both.
    /// Any other body is the row alone: as it was for a delete, as it is now for the rest. Changes
    /// without a row (a truncate, a gap) have no image, whatever their body. A payload whose events
    /// name their images otherwise says so here, mostly by [`walk_field`](Self::walk_field).
    fn image(&self, body: &[u8], operation: Operation, image: Image, visit: &mut dyn Visit) -> Result<bool> {
        if body.is_empty() || !operation.has_row() {
            return Ok(false);
        }
        let [before, after] = [self.get(body, &["before"])?, self.get(body, &["after"])?];
        let is_row = |side: &Option<ValueRef<'_>>| matches!(side, None | Some(ValueRef::Null | ValueRef::Document));
        if (before.is_some() || after.is_some()) && is_row(&before) && is_row(&after) {
            return match image {
                Image::Before => self.walk_field(body, "before", visit),
                Image::After => self.walk_field(body, "after", visit),
                Image::Difference | Image::Added => Ok(false),
            };
        }
        let of_body = if operation == Operation::Delete { Image::Before } else { Image::After };
        if image == of_body {
            self.walk(body, visit)?;
        }
        Ok(image == of_body)
    }
}

/// What a body may tell of the row or document that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Image {
    /// As it was before the change.
    Before,
    /// As it is since the change.
    After,
    /// What an update set and removed, from sources that may tell only that.
    Difference,
    /// What the source was told to add to its events, such as a computed field.
    Added,
}

/// Passes on only what stands under one key of the outermost document.
struct Field<'a> {
    key: &'a str,
    visit: &'a mut dyn Visit,
    depth: usize,
    /// Whether the parts visited now belong to the key.
    inside: bool,
    found: bool,
}

impl<'a> Field<'a> {
    fn new(key: &'a str, visit: &'a mut dyn Visit) -> Self {
        Self { key, visit, depth: 0, inside: false, found: false }
    }

    fn begin(&mut self, pass_on: fn(&mut dyn Visit)) {
        if self.inside {
            pass_on(self.visit);
        }
        self.depth += 1;
    }

    fn end(&mut self, pass_on: fn(&mut dyn Visit)) {
        self.depth -= 1;
        if self.inside && self.depth > 0 {
            pass_on(self.visit);
        }
    }
}

impl Visit for Field<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        if self.inside {
            self.visit.value(value);
        }
    }

    fn quoted(&mut self, quoted: &str) -> Result<()> {
        if self.inside { self.visit.quoted(quoted) } else { Ok(()) }
    }

    fn begin_document(&mut self) {
        self.begin(|visit| visit.begin_document());
    }

    fn key(&mut self, key: &str) {
        if self.depth > 1 {
            if self.inside {
                self.visit.key(key);
            }
            return;
        }
        // The first wins where a key stands twice, so that at most one value is visited.
        self.inside = !self.found && key == self.key;
        self.found |= self.inside;
    }

    fn end_document(&mut self) {
        self.end(|visit| visit.end_document());
    }

    fn begin_array(&mut self) {
        self.begin(|visit| visit.begin_array());
    }

    fn end_array(&mut self) {
        self.end(|visit| visit.end_array());
    }
}

/// Bodies that are JSON text. The reference's; also for sources that store JSON.
///
/// A number that neither 64 bits nor a `double` hold exactly is visited as [`ValueRef::Json`], with all of its digits.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonPayload;

impl Payload for JsonPayload {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        json::find(body, path)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        // Not parsed into a tree, which would lose the order of keys.
        json::walk(body, visit)
    }
}

/// Bodies that are JSON text, of tables whose rows are always [told whole](Payload::sends_whole_rows).
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonRows;

impl Payload for JsonRows {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        JsonPayload.get(body, path)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        JsonPayload.walk(body, visit)
    }

    fn sends_whole_rows(&self) -> bool {
        true
    }
}
