//! Documents as relaxed extended JSON, as MongoDB specifies it: independent of how sinks write it.

use serde_json::{Map, Value, json};
use watchkeeper_mongodb::mongodb::bson::{Bson, DateTime, Document};

/// A document.
pub(super) fn relaxed(document: &Document) -> Value {
    Value::Object(document.iter().map(|(name, value)| (name.clone(), of(value))).collect::<Map<_, _>>())
}

/// A value.
pub(super) fn of(value: &Bson) -> Value {
    match value {
        Bson::Null => Value::Null,
        Bson::Int32(number) => json!(number),
        Bson::Int64(number) => json!(number),
        Bson::Double(number) => json!(number),
        Bson::String(text) => json!(text),
        Bson::Boolean(value) => json!(value),
        Bson::Binary(binary) => {
            let subtype = format!("{:02x}", u8::from(binary.subtype));
            json!({ "$binary": { "base64": base64(&binary.bytes), "subType": subtype } })
        }
        Bson::Decimal128(number) => json!({ "$numberDecimal": number.to_string() }),
        Bson::DateTime(time) => json!({ "$date": date(*time) }),
        Bson::Timestamp(time) => json!({ "$timestamp": { "t": time.time, "i": time.increment } }),
        Bson::ObjectId(id) => json!({ "$oid": id.to_hex() }),
        Bson::Document(document) => relaxed(document),
        Bson::Array(values) => values.iter().map(of).collect(),
        other => json!(format!("{other:?}")),
    }
}

/// Without fractions of a second where there are none.
fn date(time: DateTime) -> String {
    time.try_to_rfc3339_string().unwrap_or_else(|_| time.timestamp_millis().to_string())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let padded = [chunk[0], chunk.get(1).copied().unwrap_or(0), chunk.get(2).copied().unwrap_or(0)];
        let number = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..4 {
            let digit = (number >> (18 - 6 * place)) & 63;
            text.push(if place > chunk.len() { '=' } else { char::from(DIGITS[digit as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_base64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
