//! `cloudevents`: CloudEvents 1.0 in its structured JSON form.

use std::fmt::Write;

use super::json::{hex, iso_date};
use super::{Format, JsonWriter};
use crate::change::Change;
use crate::error::Result;
use crate::payload::{ValueRef, Visit};

/// One event per change.
///
/// * `id` is the change's id, the same at every delivery: consumers drop repetitions by it.
/// * `source` is `/<log>/<namespace>`, percent-encoded where a URI asks for it.
/// * `type` is `watchkeeper.` and the operation, also for a gap or a drop.
/// * `subject` is the key: as it is when it is readable text, else `0x` and its bytes in hexadecimal digits (also for text that
///   itself begins with `0x`, so that two keys never look alike). A change without a key has no subject.
/// * `time` is the source's; it is left out when the source did not tell it.
/// * `data` is the body as the source shows it; it is left out when there is none.
#[derive(Debug, Clone, Copy, Default)]
pub struct CloudEvents;

impl Format for CloudEvents {
    fn name(&self) -> &'static str {
        "cloudevents"
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()> {
        let mut writer = JsonWriter::new(out);
        writer.begin_document();
        writer.text_field("specversion", "1.0");
        writer.text_field("id", &change.id().to_string());
        writer.text_field("source", &source(change));
        writer.text_field("type", &format!("watchkeeper.{}", change.operation()));
        let millis = Some(change.time().0).filter(|millis| *millis > 0);
        if let Some(time) = millis.and_then(|millis| iso_date(millis.cast_signed())) {
            writer.text_field("time", &time);
        }
        if let Some(subject) = change.key().and_then(subject) {
            writer.text_field("subject", &subject);
        }
        if !change.body().is_empty() {
            writer.field("datacontenttype", ValueRef::Str("application/json".into()));
            writer.key("data");
            change.batch().payload().walk(change.body(), &mut writer)?;
        }
        writer.end_document();
        Ok(())
    }
}

/// A reference to where the change happened. The namespace of a gap is empty, and then left out.
fn source(change: &Change) -> String {
    let mut source = String::new();
    let parts = [&**change.batch().origin(), change.namespace()];
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        source.push('/');
        encode(part, &mut source);
    }
    // A source must not be empty.
    if source.is_empty() { "/".to_owned() } else { source }
}

fn encode(part: &str, out: &mut String) {
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// The key as text; `None` for the empty key, since a subject must not be empty.
fn subject(key: &[u8]) -> Option<String> {
    let readable = |text: &&str| !text.starts_with("0x") && !text.chars().any(char::is_control);
    let text = std::str::from_utf8(key).ok().filter(readable).map(str::to_owned);
    (!key.is_empty()).then(|| text.unwrap_or_else(|| format!("0x{}", hex(key))))
}
