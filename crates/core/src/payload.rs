//! Lazy payloads: core names the values, each backend brings the decoder of its own bytes.

use std::borrow::Cow;

use crate::error::{Error, Result};

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

    /// Visits everything in `body` in order.
    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()>;

    /// Whether a body is the whole event (as with MongoDB) and not only the row.
    fn is_whole_event(&self) -> bool {
        false
    }
}

/// Bodies that are JSON text. The reference's; also for sources that store JSON.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonPayload;

impl JsonPayload {
    fn parse(body: &[u8]) -> Result<serde_json::Value> {
        serde_json::from_slice(body).map_err(|error| Error::corrupt("a payload is not JSON").caused_by(error))
    }
}

impl Payload for JsonPayload {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        let root = Self::parse(body)?;
        let found = path.iter().try_fold(&root, |value, key| match value {
            serde_json::Value::Array(items) => key.parse::<usize>().ok().and_then(|at| items.get(at)),
            other => other.get(key),
        });
        Ok(found.map(scalar))
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        walk_json(&Self::parse(body)?, visit);
        Ok(())
    }
}

fn scalar<'a>(value: &serde_json::Value) -> ValueRef<'a> {
    match value {
        serde_json::Value::Null => ValueRef::Null,
        serde_json::Value::Bool(truth) => ValueRef::Bool(*truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => ValueRef::Int64(whole),
            (None, Some(real)) if !number.is_u64() => ValueRef::Double(real),
            _ => ValueRef::Decimal(Cow::Owned(number.to_string())),
        },
        serde_json::Value::String(text) => ValueRef::Str(Cow::Owned(text.clone())),
        serde_json::Value::Array(_) => ValueRef::Array,
        serde_json::Value::Object(_) => ValueRef::Document,
    }
}

fn walk_json(value: &serde_json::Value, visit: &mut dyn Visit) {
    match value {
        serde_json::Value::Array(items) => {
            visit.begin_array();
            items.iter().for_each(|item| walk_json(item, visit));
            visit.end_array();
        }
        serde_json::Value::Object(fields) => {
            visit.begin_document();
            for (key, field) in fields {
                visit.key(key);
                walk_json(field, visit);
            }
            visit.end_document();
        }
        other => visit.value(scalar(other)),
    }
}
