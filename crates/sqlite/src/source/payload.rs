//! The values in the rows of the log.
//!
//! The log is JSON, which has neither bytes nor infinities nor text that is not UTF-8. Its triggers and its reader mark these as
//! documents with one field. No other value of a row is a document, so that each mark can be taken for what it stands for.

use std::borrow::Cow;

use watchkeeper_core::payload::{JsonPayload, TEXT_NOT_UTF8};
use watchkeeper_core::{Payload, Result, ValueRef, Visit};

/// Rows as `{before, after, changed}`, with every value as the table has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogRows;

/// Values lie in a row, and rows in the body.
const VALUE_DEPTH: usize = 2;

const BYTES: &str = "$hex";
const TEXT: &str = "$textHex";
const REAL: &str = "$numberDouble";

impl Payload for LogRows {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        let found = JsonPayload.get(body, path)?;
        if path.len() == VALUE_DEPTH && found == Some(ValueRef::Document) {
            for mark in [BYTES, TEXT, REAL] {
                if let Some(ValueRef::Str(text)) = JsonPayload.get(body, &[path, &[mark]].concat())? {
                    return Ok(Some(unmarked(mark, &text)));
                }
            }
        }
        Ok(found)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        JsonPayload.walk(body, &mut Unmarking { visit, depth: 0, mark: String::new() })
    }

    fn sends_whole_rows(&self) -> bool {
        true
    }

    /// SQLite keeps JSON as text.
    fn has_json_strings(&self) -> bool {
        false
    }

    fn has_binary_bytes(&self) -> bool {
        true
    }
}

/// The value that a mark stands for.
fn unmarked<'a>(mark: &str, text: &str) -> ValueRef<'a> {
    match mark {
        BYTES => ValueRef::Binary(0, unhex(text).into()),
        TEXT => ValueRef::Binary(TEXT_NOT_UTF8, unhex(text).into()),
        REAL if text.parse::<f64>().is_ok() => ValueRef::Double(text.parse().unwrap_or_default()),
        _ => ValueRef::Str(Cow::Owned(text.to_owned())),
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    text.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |byte, sign| byte << 4 | digit(*sign))).collect()
}

/// Passes on what is visited, with values instead of their marks.
struct Unmarking<'a> {
    visit: &'a mut dyn Visit,
    depth: usize,
    /// The mark whose text comes next.
    mark: String,
}

impl Unmarking<'_> {
    fn is_in_mark(&self) -> bool {
        self.depth > VALUE_DEPTH
    }
}

impl Visit for Unmarking<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Str(text) if self.is_in_mark() => self.visit.value(unmarked(&self.mark, &text)),
            // A number with other digits than a `double` is written with elsewhere is one all the same: the table has no decimals.
            ValueRef::Json(text) if text.parse::<f64>().is_ok() => {
                self.visit.value(ValueRef::Double(text.parse().unwrap_or_default()));
            }
            value => self.visit.value(value),
        }
    }

    fn begin_document(&mut self) {
        self.depth += 1;
        if !self.is_in_mark() {
            self.visit.begin_document();
        }
    }

    fn key(&mut self, key: &str) {
        if self.is_in_mark() { key.clone_into(&mut self.mark) } else { self.visit.key(key) }
    }

    fn end_document(&mut self) {
        if !self.is_in_mark() {
            self.visit.end_document();
        }
        self.depth -= 1;
    }

    fn begin_array(&mut self) {
        self.depth += 1;
        self.visit.begin_array();
    }

    fn end_array(&mut self) {
        self.depth -= 1;
        self.visit.end_array();
    }
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::format::JsonWriter;

    use super::*;

    const BODY: &[u8] =
        br#"{"before":null,"after":{"$hex":{"$hex":"00fF"},"t":{"$textHex":"41FF"},"r":{"$numberDouble":"-Infinity"},
        "n":1.5e+300,"s":"{\"$hex\":\"00\"}"},"changed":["$hex"]}"#;

    #[test]
    fn marks_are_the_values_that_they_stand_for() {
        let get = |name: &str| LogRows.get(BODY, &["after", name]).expect("it is JSON");
        assert_eq!(get("$hex"), Some(ValueRef::Binary(0, vec![0, 255].into())));
        assert_eq!(get("t"), Some(ValueRef::Binary(TEXT_NOT_UTF8, vec![0x41, 255].into())));
        assert_eq!(get("r"), Some(ValueRef::Double(f64::NEG_INFINITY)));
        assert_eq!(get("n"), Some(ValueRef::Double(1.5e300)));
        assert_eq!(get("s"), Some(ValueRef::Str(r#"{"$hex":"00"}"#.into())));
        assert_eq!(LogRows.get(BODY, &["after"]).expect("it is JSON"), Some(ValueRef::Document));
    }

    #[test]
    fn everything_else_is_visited_as_it_is() {
        let mut out = Vec::new();
        LogRows.walk(BODY, &mut JsonWriter::new(&mut out)).expect("it is JSON");
        let expected = concat!(
            r#"{"before":null,"after":{"$hex":{"$binary":{"base64":"AP8=","subType":"00"}},"#,
            r#""t":{"$binary":{"base64":"Qf8=","subType":"80"}},"r":{"$numberDouble":"-Infinity"},"#,
            r#""n":1.5e+300,"s":"{\"$hex\":\"00\"}"},"changed":["$hex"]}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
