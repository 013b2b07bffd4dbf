//! Documents as relaxed extended JSON, as MongoDB specifies it: independent of how sinks write it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use watchkeeper_mongodb::mongodb::bson::{Bson, DateTime, Document};

use super::Trouble;

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

/// With three digits of the second's fraction, or none.
fn date(time: DateTime) -> String {
    let text = time.try_to_rfc3339_string().unwrap_or_else(|_| time.timestamp_millis().to_string());
    match text.trim_end_matches('Z').split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<3}Z"),
        None => text,
    }
}

/// A field that JSON has no form for.
#[derive(Debug, Deserialize)]
enum Extended {
    #[serde(rename = "$numberDecimal")]
    Decimal(String),
    #[serde(rename = "$binary")]
    Binary { base64: String },
}

/// A row whose fields are all JSON that PostgreSQL reads: without the forms of extended JSON.
pub(super) fn plain(row: &str) -> Result<String, Trouble> {
    let fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(row).map_err(|error| format!("a row of the target is no object: {error}: {row}"))?;
    let field = |name: &String, value: &RawValue| {
        let value = match serde_json::from_str(value.get()) {
            Ok(Extended::Decimal(digits)) => digits,
            Ok(Extended::Binary { base64 }) => {
                let digits: String = bytes(&base64).iter().map(|byte| format!("{byte:02x}")).collect();
                format!("\"\\\\x{digits}\"")
            }
            Err(_) => value.get().to_owned(),
        };
        format!("{}:{value}", Value::from(name.as_str()))
    };
    Ok(format!("{{{}}}", fields.iter().map(|(name, value)| field(name, value)).collect::<Vec<_>>().join(",")))
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What is written as base64.
pub(super) fn bytes(base64: &str) -> Vec<u8> {
    let digits = base64.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let (mut bytes, mut number, mut bits) = (Vec::new(), 0_usize, 0);
    for digit in digits {
        (number, bits) = ((number << 6 | digit) & 0xFFFF, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((number >> bits) as u8);
        }
    }
    bytes
}

fn base64(bytes: &[u8]) -> String {
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
    fn rows_become_plain() {
        let row = r#"{"a":{"$numberDecimal":"1.50"},"b":{"$binary":{"base64":"Zm8=","subType":"00"}},"c":{"d":[1]}}"#;
        assert_eq!(plain(row).as_deref(), Ok(r#"{"a":1.50,"b":"\\x666f","c":{"d":[1]}}"#));
    }

    #[test]
    fn dates_have_three_digits_or_none() {
        for (millis, text) in [(0, "1970-01-01T00:00:00Z"), (980, "1970-01-01T00:00:00.980Z")] {
            assert_eq!(date(DateTime::from_millis(millis)), text);
        }
    }

    #[test]
    fn bytes_are_base64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(super::bytes(text), bytes.as_bytes());
        }
    }
}
