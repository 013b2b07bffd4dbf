//! JSON text, visited part by part with every number as it was written.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{ValueRef, Visit};
use crate::error::{Error, Result};

/// Documents and arrays may lie so deep in each other, as everywhere where JSON is parsed.
const DEPTH_MAX: usize = 127;

pub(super) fn not_json(error: serde_json::Error) -> Error {
    Error::corrupt("a payload is not JSON").caused_by(error)
}

/// Visits everything in `body`.
///
/// A parser would make a `double` of every number with a point in it, and cut off what that can not hold: digits of a
/// `numeric`, zeros at its end. So the text is checked first, and then taken apart here, which is simple if it is known to be JSON.
pub(super) fn walk(body: &[u8], visit: &mut dyn Visit) -> Result<()> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    IgnoredAny::deserialize(&mut parser).and_then(|_| parser.end()).map_err(not_json)?;
    let text = std::str::from_utf8(body).map_err(|error| Error::corrupt("a payload is not UTF-8").caused_by(error))?;
    Walk { text, open: Vec::new() }.run(visit)
}

/// What is open, and for a document whether a key comes next.
enum Frame {
    Document { key_is_next: bool },
    Array,
}

/// The way through a text that is JSON.
struct Walk<'a> {
    text: &'a str,
    open: Vec<Frame>,
}

impl Walk<'_> {
    fn run(&mut self, visit: &mut dyn Visit) -> Result<()> {
        let mut rest = self.text;
        while let Some(first) = rest.bytes().next() {
            let length = match first {
                b'{' => self.enter(Frame::Document { key_is_next: true }, visit)?,
                b'[' => self.enter(Frame::Array, visit)?,
                b'}' | b']' => self.leave(visit),
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => 1,
                b'"' => {
                    let length = quoted_length(rest);
                    self.text(unquoted(&rest[..length])?, visit);
                    length
                }
                _ => {
                    let length = rest.find([',', ':', '}', ']', ' ', '\t', '\n', '\r']).unwrap_or(rest.len());
                    visit.value(word(&rest[..length]));
                    self.value_is_over();
                    length
                }
            };
            rest = &rest[length..];
        }
        Ok(())
    }

    fn enter(&mut self, frame: Frame, visit: &mut dyn Visit) -> Result<usize> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Error::corrupt(format!("a payload is JSON of more than {DEPTH_MAX} levels")));
        }
        match frame {
            Frame::Document { .. } => visit.begin_document(),
            Frame::Array => visit.begin_array(),
        }
        self.open.push(frame);
        Ok(1)
    }

    fn leave(&mut self, visit: &mut dyn Visit) -> usize {
        match self.open.pop() {
            Some(Frame::Document { .. }) => visit.end_document(),
            Some(Frame::Array) => visit.end_array(),
            None => {}
        }
        self.value_is_over();
        1
    }

    /// A key, or a value that is text.
    fn text(&mut self, text: Cow<'_, str>, visit: &mut dyn Visit) {
        if let Some(Frame::Document { key_is_next: key_is_next @ true }) = self.open.last_mut() {
            *key_is_next = false;
            return visit.key(&text);
        }
        visit.value(ValueRef::Str(text));
        self.value_is_over();
    }

    fn value_is_over(&mut self) {
        if let Some(Frame::Document { key_is_next }) = self.open.last_mut() {
            *key_is_next = true;
        }
    }
}

/// The length of the quoted text at the beginning, with its quotes.
fn quoted_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn unquoted(quoted: &str) -> Result<Cow<'_, str>> {
    if quoted.contains('\\') {
        return serde_json::from_str(quoted).map(Cow::Owned).map_err(not_json);
    }
    Ok(Cow::Borrowed(quoted.get(1..quoted.len() - 1).unwrap_or_default()))
}

/// A word without quotes: a number, or one of three names.
fn word(text: &str) -> ValueRef<'_> {
    match text {
        "null" => ValueRef::Null,
        "true" => ValueRef::Bool(true),
        "false" => ValueRef::Bool(false),
        number => self::number(number),
    }
}

/// A number as what holds it: 64 bits, a `double` that is written so again, or else its own text.
fn number(text: &str) -> ValueRef<'_> {
    if let Some(whole) = text.parse().ok().filter(|_| text != "-0") {
        return ValueRef::Int64(whole);
    }
    if text.parse::<u64>().is_ok() {
        return ValueRef::Decimal(text.into());
    }
    let real = text.parse::<f64>().ok().filter(|real| real.is_finite());
    let is_written_so = |real: &f64| serde_json::to_string(real).is_ok_and(|again| again == text);
    real.filter(is_written_so).map_or_else(|| ValueRef::Json(text.into()), ValueRef::Double)
}
