//! `debezium`: the envelope that consumers of Debezium's change events understand.
//!
//! Values look as with Debezium's settings for plain JSON without schemas: decimals are text, bytes are
//! base64, dates are milliseconds, and a value that the source did not send is
//! `__debezium_unavailable_value`. What only documents have (object ids, timestamps, regular expressions)
//! stays extended JSON. Images are always JSON, also those of documents, which Debezium itself writes as text with JSON in it.

use super::json::base64;
use super::{Format, JsonWriter};
use crate::change::{Change, Operation};
use crate::error::Result;
use crate::payload::{Image, ValueRef, Visit};

/// `{before, after, source, op, ts_ms, transaction}`.
///
/// * `op` is `c` for an insert, `u` for an update or replace, `d` for a delete, `r` for a row read by a
///   snapshot, `t` for a truncate. All that Debezium has no letter for (a gap, a drop, a rename) is a message, `m`, with
///   the prefix `watchkeeper.gap` (or whatever it was) and the body in base64, so that a consumer that knows
///   only rows passes over it.
/// * `ts_ms` is the source's time, and not the time of writing: repeated deliveries look the same.
/// * `source.position` and `source.id` are the change's own; `source.sequence` is its version as a pair that can be
///   compared, in the form that Debezium gives to sequences: text that is a JSON array.
/// * `updateDescription` and `added` (fields that a source was told to compute) are there only where a source tells them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Debezium;

impl Format for Debezium {
    fn name(&self) -> &'static str {
        "debezium"
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()> {
        let mut writer = JsonWriter::new(out);
        let op = letter(change.operation());
        writer.begin_document();
        if op == "m" {
            message(change, &mut writer)?;
        } else {
            image(change, Image::Before, "before", &mut writer)?;
            image(change, Image::After, "after", &mut writer)?;
            if change.operation() == Operation::Update {
                optional(change, Image::Difference, "updateDescription", &mut writer)?;
            }
            optional(change, Image::Added, "added", &mut writer)?;
        }
        source(change, &mut writer);
        writer.text_field("op", op);
        writer.field("ts_ms", ValueRef::Int64(change.time().0.cast_signed()));
        writer.field("transaction", ValueRef::Null);
        writer.end_document();
        Ok(())
    }
}

fn letter(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => "c",
        Operation::Update | Operation::Replace => "u",
        Operation::Delete => "d",
        Operation::Read => "r",
        Operation::Truncate => "t",
        _ => "m",
    }
}

/// The image under `key`, or null when the change does not tell it.
fn image(change: &Change, image: Image, key: &str, writer: &mut JsonWriter<'_>) -> Result<()> {
    writer.key(key);
    let payload = change.batch().payload();
    if !payload.image(change.body(), change.operation(), image, &mut Plain(writer))? {
        writer.value(ValueRef::Null);
    }
    Ok(())
}

/// An image that is left out where the source does not tell it, as Debezium does.
fn optional(change: &Change, image: Image, key: &str, writer: &mut JsonWriter<'_>) -> Result<()> {
    let mut rest = Vec::new();
    let mut apart = JsonWriter::new(&mut rest);
    let payload = change.batch().payload();
    if payload.image(change.body(), change.operation(), image, &mut Plain(&mut apart))? {
        writer.field(key, ValueRef::Json(String::from_utf8_lossy(&rest)));
    }
    Ok(())
}

fn message(change: &Change, writer: &mut JsonWriter<'_>) -> Result<()> {
    let mut content = Vec::new();
    if !change.body().is_empty() {
        change.batch().payload().walk(change.body(), &mut JsonWriter::new(&mut content))?;
    }
    writer.key("message");
    writer.begin_document();
    writer.text_field("prefix", &format!("watchkeeper.{}", change.operation()));
    writer.text_field("content", &base64(&content));
    writer.end_document();
    Ok(())
}

fn source(change: &Change, writer: &mut JsonWriter<'_>) {
    let version = change.version();
    // The first dot parts: a collection may have dots in its name, a database may not.
    let (db, table) = change.namespace().split_once('.').unwrap_or(("", change.namespace()));
    writer.key("source");
    writer.begin_document();
    writer.text_field("version", env!("CARGO_PKG_VERSION"));
    writer.text_field("connector", "watchkeeper");
    writer.text_field("name", change.batch().origin());
    writer.field("ts_ms", ValueRef::Int64(change.time().0.cast_signed()));
    writer.text_field("snapshot", if change.operation() == Operation::Read { "true" } else { "false" });
    writer.text_field("db", db);
    writer.text_field("table", table);
    writer.text_field("sequence", &format!("[\"{}\",\"{}\"]", version.time, version.ordinal));
    writer.text_field("position", &change.position().to_string());
    writer.text_field("id", &change.id().to_string());
    writer.end_document();
}

/// Turns the values that Debezium writes plainly into plain ones.
struct Plain<'a, 'b>(&'a mut JsonWriter<'b>);

impl Visit for Plain<'_, '_> {
    fn value(&mut self, value: ValueRef<'_>) {
        self.0.value(match value {
            ValueRef::Unchanged => ValueRef::Str("__debezium_unavailable_value".into()),
            ValueRef::Decimal(digits) => ValueRef::Str(digits),
            ValueRef::Binary(_, bytes) => ValueRef::Str(base64(&bytes).into()),
            ValueRef::DateTime(millis) => ValueRef::Int64(millis),
            other => other,
        });
    }

    fn quoted(&mut self, quoted: &str) -> Result<()> {
        self.0.quoted(quoted)
    }

    fn begin_document(&mut self) {
        self.0.begin_document();
    }

    fn key(&mut self, key: &str) {
        self.0.key(key);
    }

    fn end_document(&mut self) {
        self.0.end_document();
    }

    fn begin_array(&mut self) {
        self.0.begin_array();
    }

    fn end_array(&mut self) {
        self.0.end_array();
    }
}
