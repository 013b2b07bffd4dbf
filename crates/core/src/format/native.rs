//! `native`: the event as its source shows it, in relaxed extended JSON.

use super::{Format, JsonWriter};
use crate::change::Change;
use crate::error::Result;
use crate::payload::{ValueRef, Visit};

/// A whole event as it came; for sources whose bodies are rows, an envelope around the row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Native;

impl Format for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()> {
        let payload = change.batch().payload();
        let mut writer = JsonWriter::new(out);
        if payload.is_whole_event() {
            return payload.walk(change.body(), &mut writer);
        }
        writer.begin_document();
        writer.text_field("_id", &change.id().to_string());
        writer.text_field("operationType", change.operation().as_str());
        writer.text_field("ns", change.namespace());
        writer.field("wallTime", ValueRef::DateTime(change.time().0.cast_signed()));
        writer.key("document");
        if change.body().is_empty() {
            writer.value(ValueRef::Null);
        } else {
            payload.walk(change.body(), &mut writer)?;
        }
        writer.end_document();
        Ok(())
    }
}
