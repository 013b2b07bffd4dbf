//! Builds a [`Value`] from the parts that a payload visits.

use std::borrow::Cow;

use super::Value;
use crate::error::{Error, Result};
use crate::payload::{JsonPayload, Payload, ValueRef, Visit};

/// Collects visited parts.
#[derive(Debug, Default)]
pub(super) struct Builder {
    open: Vec<Frame>,
    done: Option<Value>,
    error: Option<Error>,
}

#[derive(Debug)]
enum Frame {
    List(Vec<Value>),
    Map { fields: Vec<(String, Value)>, key: String },
}

impl Builder {
    /// The value, once everything was visited.
    pub(super) fn finish(self) -> Result<Value> {
        match (self.error, self.done) {
            (Some(error), _) => Err(error),
            (None, Some(value)) if self.open.is_empty() => Ok(value),
            (None, _) => Err(Error::corrupt("a payload ends in the middle of a value")),
        }
    }

    fn push(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.done = Some(value),
            Some(Frame::List(items)) => items.push(value),
            Some(Frame::Map { fields, key }) => fields.push((std::mem::take(key), value)),
        }
    }

    fn close(&mut self) {
        match self.open.pop() {
            Some(Frame::List(items)) => self.push(Value::List(items)),
            Some(Frame::Map { fields, .. }) => self.push(Value::Map(fields)),
            None => {}
        }
    }

    /// JSON text inside a payload (a `jsonb` column) decodes like the rest of it.
    fn json(&mut self, text: &str) {
        // A number that no machine type holds exactly keeps its digits; walking it would end here again.
        if text.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
            return self.push(number(text));
        }
        let mut inner = Self::default();
        match JsonPayload.walk(text.as_bytes(), &mut inner).and_then(|()| inner.finish()) {
            Ok(value) => self.push(value),
            Err(error) => self.error = Some(error),
        }
    }
}

fn number(digits: &str) -> Value {
    digits.parse().map_or_else(|_| Value::Digits(digits.to_owned()), Value::Whole)
}

fn text(text: Cow<'_, str>) -> Value {
    Value::Text(text.into_owned())
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

impl Visit for Builder {
    fn value(&mut self, value: ValueRef<'_>) {
        let value = match value {
            ValueRef::Unchanged => Value::Unchanged,
            ValueRef::Json(json) => return self.json(&json),
            ValueRef::Null => Value::Null,
            ValueRef::Bool(truth) => Value::Bool(truth),
            ValueRef::Int32(whole) => Value::Whole(whole.into()),
            ValueRef::Int64(whole) => Value::Whole(whole),
            ValueRef::Double(double) => Value::Double(double),
            ValueRef::Decimal(digits) => Value::Digits(digits.into_owned()),
            ValueRef::Str(read) => text(read),
            ValueRef::Binary(_, bytes) => Value::Bytes(bytes.into_owned()),
            ValueRef::ObjectId(bytes) => Value::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            ValueRef::DateTime(millis) => Value::DateTime(millis),
            ValueRef::Timestamp(seconds, increment) => {
                map([("t", Value::Whole(seconds.into())), ("i", Value::Whole(increment.into()))])
            }
            ValueRef::Regex(pattern, options) => map([("pattern", text(pattern)), ("options", text(options))]),
            ValueRef::Document => Value::Map(Vec::new()),
            ValueRef::Array => Value::List(Vec::new()),
        };
        self.push(value);
    }

    fn begin_document(&mut self) {
        self.open.push(Frame::Map { fields: Vec::new(), key: String::new() });
    }

    fn key(&mut self, key: &str) {
        if let Some(Frame::Map { key: current, .. }) = self.open.last_mut() {
            key.clone_into(current);
        }
    }

    fn end_document(&mut self) {
        self.close();
    }

    fn begin_array(&mut self) {
        self.open.push(Frame::List(Vec::new()));
    }

    fn end_array(&mut self) {
        self.close();
    }
}
