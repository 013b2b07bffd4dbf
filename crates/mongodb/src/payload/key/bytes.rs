//! Keys with texts in them that are not UTF-8, or with values that are damaged, which the driver makes no values of.

use mongodb::bson::RawDocument;
use watchkeeper_core::Result;

use super::{text, value};
use crate::payload::scan::{ARRAY, DOCUMENT, Field, Fields};

/// Appends the canonical form of a `documentKey`, with the bytes of such texts.
pub(super) fn key(document_key: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
    let mut fields = Fields::of(document_key.as_bytes())?;
    match (fields.next().transpose()?, fields.next()) {
        (Some(id), None) if id.name == b"_id" => field_value(&id, out),
        _ => document(document_key.as_bytes(), out),
    }
}

fn document(bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.push(b'{');
    for (at, field) in Fields::of(bytes)?.enumerate() {
        let field = field?;
        if at > 0 {
            out.push(b',');
        }
        match std::str::from_utf8(field.name) {
            Ok(name) => text(name, out),
            Err(_) => text(&format!("$notUtf8:{}", hex(field.name)), out),
        }
        out.push(b':');
        field_value(&field, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn array(bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.push(b'[');
    for (at, item) in Fields::of(bytes)?.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        field_value(&item?, out)?;
    }
    out.push(b']');
    Ok(())
}

fn field_value(field: &Field<'_>, out: &mut Vec<u8>) -> Result<()> {
    match (field.kind, field.text()) {
        (_, Some(content)) => match std::str::from_utf8(content) {
            Ok(content) => text(content, out),
            Err(_) => out.extend_from_slice(format!("{{\"$notUtf8\":\"{}\"}}", hex(content)).as_bytes()),
        },
        (DOCUMENT, _) => document(field.value, out)?,
        (ARRAY, _) => array(field.value, out)?,
        _ => {
            let (alone, start) = (alone(field), out.len());
            let known = RawDocument::from_bytes(&alone).ok().and_then(|alone| alone.get("v").ok().flatten());
            if known.is_none_or(|known| value(known, out).is_err()) {
                // Servers store values that contradict themselves, as a binary of the old subtype with another length than its own.
                out.truncate(start);
                let raw = format!("{{\"$notBson\":\"{:02x}:{}\"}}", field.kind, hex(field.value));
                out.extend_from_slice(raw.as_bytes());
            }
        }
    }
    Ok(())
}

/// A document that has nothing but this field, for the driver to make a value of.
fn alone(field: &Field<'_>) -> Vec<u8> {
    let length = 4 + 3 + field.value.len() + 1;
    // It was a part of a document, whose length is a number of this type.
    let mut bytes = i32::try_from(length).unwrap_or(i32::MAX).to_le_bytes().to_vec();
    bytes.extend_from_slice(&[field.kind, b'v', 0]);
    bytes.extend_from_slice(field.value);
    bytes.push(0);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
