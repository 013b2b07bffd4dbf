//! Canonical keys: equal keys have equal bytes, whatever the types of their numbers.
//!
//! The bytes are JSON text, so that people can read them: an `_id` of `1`, `1.0`, `NumberLong(1)` or
//! `NumberDecimal("1.00")` is `1`. The form is fixed for ever, since lanes and partitions are chosen by it.

use mongodb::bson::{RawBsonRef, RawDocument};
use watchkeeper_core::Result;
use watchkeeper_core::format::JsonWriter;

use super::{damaged, scalar};
use watchkeeper_core::Visit;

/// Appends the canonical form of a `documentKey` to `out`: the value of `_id` alone, or, in a sharded collection,
/// all of it in the order of the server.
///
/// # Errors
/// `Corrupt` when it is not BSON.
pub fn canonical_key(document_key: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
    let mut fields = document_key.iter();
    match (fields.next().transpose().map_err(damaged)?, fields.next()) {
        (Some((name, id)), None) if name.as_str() == "_id" => value(id, out),
        _ => document(document_key, out),
    }
}

fn document(document: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
    out.push(b'{');
    for (at, field) in document.iter().enumerate() {
        let (name, inner) = field.map_err(damaged)?;
        if at > 0 {
            out.push(b',');
        }
        text(name.as_str(), out);
        out.push(b':');
        value(inner, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn value(value_of: RawBsonRef<'_>, out: &mut Vec<u8>) -> Result<()> {
    match value_of {
        RawBsonRef::Int32(whole) => integer(i64::from(whole), out),
        RawBsonRef::Int64(whole) => integer(whole, out),
        RawBsonRef::Double(real) if real.is_finite() => double(real, out),
        RawBsonRef::Double(real) => named(&real.to_string(), out),
        RawBsonRef::Decimal128(decimal) => number(&decimal.to_string(), out),
        // To a server a symbol is a text.
        RawBsonRef::String(content) | RawBsonRef::Symbol(content) => text(content, out),
        RawBsonRef::Document(inner) => document(inner, out)?,
        RawBsonRef::Array(items) => {
            out.push(b'[');
            for (at, item) in items.into_iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                value(item.map_err(damaged)?, out)?;
            }
            out.push(b']');
        }
        other => JsonWriter::new(out).value(scalar(other)?),
    }
    Ok(())
}

fn text(content: &str, out: &mut Vec<u8>) {
    // Writing to a vector can not fail.
    let _ = serde_json::to_writer(out, content);
}

fn integer(whole: i64, out: &mut Vec<u8>) {
    // Most keys that are numbers are these; the form is that of `number`.
    out.extend_from_slice(whole.to_string().as_bytes());
}

/// The digits that a decimal number of MongoDB has: a double is compared with one after rounding to them.
const DIGITS: usize = 34;

fn double(real: f64, out: &mut Vec<u8>) {
    // Below 2^53 every whole number is exact.
    if real.fract() == 0.0 && real.abs() < 9_007_199_254_740_992.0 {
        return integer(real as i64, out);
    }
    number(&format!("{real:.*e}", DIGITS - 1), out);
}

/// Appends a number that is written with decimal digits, perhaps a point, perhaps an exponent.
fn number(written: &str, out: &mut Vec<u8>) {
    let (sign, rest) = written.strip_prefix('-').map_or(("", written), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let Ok(exponent) = exponent.parse::<i64>() else { return named(written, out) };
    let all = format!("{whole}{fraction}");
    if !all.bytes().all(|digit| digit.is_ascii_digit()) {
        return named(written, out);
    }
    let significant = all.trim_start_matches('0');
    let digits = significant.trim_end_matches('0');
    if digits.is_empty() {
        return out.push(b'0');
    }
    let zeros = i64::try_from(significant.len() - digits.len()).unwrap_or(0);
    let exponent = exponent - i64::try_from(fraction.len()).unwrap_or(0) + zeros;
    let plain = match usize::try_from(exponent) {
        Ok(zeros) if zeros <= DIGITS => format!("{sign}{digits}{}", "0".repeat(zeros)),
        _ => format!("{sign}{digits}e{exponent}"),
    };
    out.extend_from_slice(plain.as_bytes());
}

/// Appends what is no number in JSON: infinities, and what is not a number at all.
fn named(written: &str, out: &mut Vec<u8>) {
    let lower = written.to_ascii_lowercase();
    let name = match (lower.contains("nan"), lower.starts_with('-')) {
        (true, _) => "NaN",
        (false, false) => "Infinity",
        (false, true) => "-Infinity",
    };
    out.extend_from_slice(format!("{{\"$numberDouble\":\"{name}\"}}").as_bytes());
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, Decimal128, RawDocumentBuf, doc, oid::ObjectId};

    use super::*;

    fn key(id: impl Into<Bson>) -> String {
        key_of(doc! { "_id": id.into() })
    }

    fn key_of(document: mongodb::bson::Document) -> String {
        let raw = RawDocumentBuf::try_from(&document).expect("a document");
        let mut out = Vec::new();
        canonical_key(&raw, &mut out).expect("a key");
        String::from_utf8(out).expect("text")
    }

    fn decimal(digits: &str) -> Decimal128 {
        digits.parse().expect("a decimal number")
    }

    #[test]
    fn equal_numbers_are_one_key_whatever_their_type() {
        for id in [Bson::Int32(1), Bson::Int64(1), Bson::Double(1.0), decimal("1").into(), decimal("1.00").into()] {
            assert_eq!(key(id), "1");
        }
        assert_eq!(key(decimal("1E+3")), key(1_000));
        assert_eq!(key(0.5), key(decimal("0.50")));
        assert_eq!(key(-0.0), key(0));
        assert_eq!(key(decimal("-0.000")), "0");
        assert_eq!(key(-2.5), "-25e-1");
        assert_eq!(key(1_152_921_504_606_846_976.0), key(1_152_921_504_606_846_976_i64));
        assert_eq!(key(f64::NAN), key(decimal("NaN")));
        assert_eq!(key(f64::NEG_INFINITY), key(decimal("-Infinity")));
        // What a server rounds a double to before it compares it with a decimal.
        assert_eq!(key(0.1), key(decimal("0.1000000000000000055511151231257827")));
    }

    #[test]
    fn different_keys_differ() {
        let id = ObjectId::from_bytes([7; 12]);
        let keys = [
            key(1),
            key("1"),
            key(0.1),
            key(decimal("0.1")),
            key(id),
            key(id.to_hex()),
            key(9_007_199_254_740_993_i64),
            key(9_007_199_254_740_992.0),
            key(true),
            key(Bson::Null),
            key(doc! { "a": 1, "b": 2 }),
            key(doc! { "b": 2, "a": 1 }),
            key(f64::INFINITY),
        ];
        for (n, key) in keys.iter().enumerate() {
            assert!(!keys[..n].contains(key), "{key} stands for two");
        }
    }

    #[test]
    fn numbers_inside_of_keys_are_canonical_too() {
        assert_eq!(key(doc! { "a": 1.0, "b": [2_i64, "x"] }), r#"{"a":1,"b":[2,"x"]}"#);
        assert_eq!(key_of(doc! { "region": "eu", "_id": 1.0 }), r#"{"region":"eu","_id":1}"#);
        assert_eq!(key(ObjectId::from_bytes([7; 12])), r#"{"$oid":"070707070707070707070707"}"#);
    }
}
