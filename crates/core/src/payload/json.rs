//! JSON text, visited part by part with every number as it was written.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{ValueRef, Visit};
use crate::error::{Error, Result};

/// Documents and arrays may lie so deep in each other, as everywhere where JSON is parsed.
const DEPTH_MAX: usize = 127;

fn not_json(error: serde_json::Error) -> Error {
    Error::corrupt("a payload is not JSON").caused_by(error)
}

/// Visits everything in `body`.
///
/// A parser would make a `double` of every number with a point in it, and cut off what that cannot hold: digits of a
/// `numeric`, zeros at its end. So the text is checked first, and then taken apart here, which is simple if it is known to be JSON.
pub(super) fn walk(body: &[u8], visit: &mut dyn Visit) -> Result<()> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    IgnoredAny::deserialize(&mut parser).and_then(|_| parser.end()).map_err(not_json)?;
    let text = std::str::from_utf8(body).map_err(|error| Error::corrupt("a payload is not UTF-8").caused_by(error))?;
    JsonCursor { text, open: Vec::new() }.run(visit)
}

/// What is open, and for a document whether a key comes next.
enum Frame {
    Document { key_is_next: bool },
    Array,
}

/// The way through a text that is JSON.
struct JsonCursor<'a> {
    text: &'a str,
    open: Vec<Frame>,
}

impl JsonCursor<'_> {
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
                    self.text(&rest[..length], visit)?;
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
            return Err(Error::corrupt(format!("a payload is JSON of more than {DEPTH_MAX} levels"))
                .remedy("store it with fewer levels, or leave that column out of what is watched"));
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
    fn text(&mut self, quoted: &str, visit: &mut dyn Visit) -> Result<()> {
        if let Some(Frame::Document { key_is_next: key_is_next @ true }) = self.open.last_mut() {
            *key_is_next = false;
            visit.key(&unquoted(quoted)?);
            return Ok(());
        }
        visit.quoted(quoted)?;
        self.value_is_over();
        Ok(())
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

/// A part of a quoted text.
pub(crate) enum Part<'a> {
    /// Text that is written like this again: without escapes, or one of the short ones.
    Plain(&'a str),
    /// What another escape stands for.
    Escaped(&'a str),
}

/// Visits the parts of a quoted text in order. Two escapes that are one character together are one part.
pub(crate) fn unescape(quoted: &str, mut part: impl FnMut(Part<'_>)) -> Result<()> {
    let mut rest = quoted.get(1..quoted.len() - 1).unwrap_or_default();
    while !rest.is_empty() {
        let plain = rest.find('\\').unwrap_or(rest.len());
        let is_high = |digits: &str| ["d8", "d9", "da", "db"].iter().any(|high| digits.eq_ignore_ascii_case(high));
        let length = match rest.as_bytes().get(1) {
            _ if plain > 0 => plain,
            Some(b'u') if rest.get(2..4).is_some_and(is_high) => 12,
            Some(b'u') => 6,
            _ => 2,
        };
        let (this, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        rest = after;
        if length > 2 && plain == 0 {
            let text: String = serde_json::from_str(&format!("\"{this}\"")).map_err(not_json)?;
            part(Part::Escaped(&text));
        } else if this == "\\/" {
            part(Part::Escaped("/"));
        } else {
            part(Part::Plain(this));
        }
    }
    Ok(())
}

/// Refuses a text with an escape that is half of a character, without making the text.
fn require_characters(quoted: &str) -> Result<()> {
    let has_half = quoted.contains("\\ud") || quoted.contains("\\uD");
    if has_half { unescape(quoted, |_| {}) } else { Ok(()) }
}

/// The text that a quoted one stands for.
pub(super) fn unquoted(quoted: &str) -> Result<Cow<'_, str>> {
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
    let real = text.parse::<f64>().ok().filter(|real| real.is_finite());
    let is_written_so = |real: &f64| serde_json::to_string(real).is_ok_and(|again| again == text);
    real.filter(is_written_so).map_or_else(|| ValueRef::Json(text.into()), ValueRef::Double)
}

/// The value at `path`, in which a number is a place in an array. The first wins where a key stands twice.
///
/// Nothing is parsed into a tree, which would refuse numbers that no `double` holds.
pub(super) fn find<'a>(body: &[u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
    let mut find = ValueSearch { path, counts: Vec::new(), on_path: 0, is_next: true, found: None };
    walk(body, &mut find)?;
    Ok(find.found)
}

/// Looks for one value on the way through a text.
struct ValueSearch<'p, 'a> {
    path: &'p [&'p str],
    /// What is open: how many values came of an array, nothing of a document.
    counts: Vec<Option<usize>>,
    /// How many of the open ones lie on the path; they are the outermost.
    on_path: usize,
    /// Whether the value that comes next would lie on the path, if all that is open does.
    is_next: bool,
    found: Option<ValueRef<'a>>,
}

impl ValueSearch<'_, '_> {
    /// The part of the path that leads further from what is open.
    fn wanted(&self) -> Option<&str> {
        self.counts.len().checked_sub(1).and_then(|depth| self.path.get(depth).copied())
    }

    /// Takes a value that comes, and answers whether it lies on the path.
    fn come(&mut self, value: &ValueRef<'_>) -> bool {
        if let Some(Some(count)) = self.counts.last().copied() {
            self.is_next = self.wanted().is_some_and(|wanted| wanted.parse() == Ok(count));
            self.counts.pop();
            self.counts.push(Some(count + 1));
        }
        let depth = self.counts.len();
        let is_on_path = std::mem::take(&mut self.is_next) && depth == self.on_path;
        if is_on_path && depth == self.path.len() && self.found.is_none() {
            self.found = Some(owned(value));
        }
        is_on_path
    }

    fn enter(&mut self, value: &ValueRef<'_>, count: Option<usize>) {
        self.on_path += usize::from(self.come(value));
        self.counts.push(count);
    }

    fn leave(&mut self) {
        self.counts.pop();
        self.on_path = self.on_path.min(self.counts.len());
    }
}

impl Visit for ValueSearch<'_, '_> {
    fn value(&mut self, value: ValueRef<'_>) {
        self.come(&value);
    }

    fn quoted(&mut self, quoted: &str) -> Result<()> {
        // Only what is looked for is worth a copy.
        let is_looked_for = self.counts.len() == self.path.len();
        if !is_looked_for {
            require_characters(quoted)?;
        }
        self.come(&ValueRef::Str(if is_looked_for { unquoted(quoted)? } else { Cow::Borrowed("") }));
        Ok(())
    }

    fn begin_document(&mut self) {
        self.enter(&ValueRef::Document, None);
    }

    fn key(&mut self, key: &str) {
        self.is_next = self.wanted() == Some(key);
    }

    fn end_document(&mut self) {
        self.leave();
    }

    fn begin_array(&mut self) {
        self.enter(&ValueRef::Array, Some(0));
    }

    fn end_array(&mut self) {
        self.leave();
    }
}

/// A value that JSON has, as its own. A number that a `double` holds nearly is one here.
fn owned<'a>(value: &ValueRef<'_>) -> ValueRef<'a> {
    match value {
        ValueRef::Bool(truth) => ValueRef::Bool(*truth),
        ValueRef::Int64(whole) => ValueRef::Int64(*whole),
        ValueRef::Double(real) => ValueRef::Double(*real),
        ValueRef::Decimal(digits) => ValueRef::Decimal(Cow::Owned(digits.to_string())),
        ValueRef::Str(text) => ValueRef::Str(Cow::Owned(text.to_string())),
        ValueRef::Json(text) if text.parse::<u64>().is_ok() => ValueRef::Decimal(Cow::Owned(text.to_string())),
        ValueRef::Json(text) => match text.parse::<f64>().ok().filter(|real| real.is_finite()) {
            Some(real) => ValueRef::Double(real),
            None => ValueRef::Json(Cow::Owned(text.to_string())),
        },
        ValueRef::Document => ValueRef::Document,
        ValueRef::Array => ValueRef::Array,
        _ => ValueRef::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_beside_numbers_that_no_double_holds() {
        let body = br#"{"x":{"a":9},"after":{"n":1e400,"list":[1,[2,{"a":3.50}]],"a":"t"},"u":18446744073709551615}"#;
        let get = |path: &[&str]| find(body, path).expect("it is JSON");
        assert_eq!(get(&["after", "n"]), Some(ValueRef::Json("1e400".into())));
        assert_eq!(get(&["after", "list", "1", "1", "a"]), Some(ValueRef::Double(3.5)));
        assert_eq!(get(&["after", "list", "0"]), Some(ValueRef::Int64(1)));
        assert_eq!(get(&["after", "a"]), Some(ValueRef::Str("t".into())));
        assert_eq!(get(&["u"]), Some(ValueRef::Decimal("18446744073709551615".into())));
        assert_eq!((get(&["after"]), get(&["after", "list"])), (Some(ValueRef::Document), Some(ValueRef::Array)));
        assert_eq!(get(&[]), Some(ValueRef::Document));
        assert_eq!((get(&["a"]), get(&["after", "list", "7"]), get(&["u", "a"])), (None, None, None));
    }
}
