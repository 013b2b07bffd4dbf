//! Canonical keys: equal keys have equal bytes, whatever the types of their numbers.
//!
//! The bytes are JSON text, so that people can read them: an `_id` of `1`, `1.0`, `NumberLong(1)` or
//! `NumberDecimal("1.00")` is `1`. The form is fixed for ever, since lanes and partitions are chosen by it.

mod bytes;

use std::cmp::Ordering;

use mongodb::bson::{RawBsonRef, RawDocument};
use watchkeeper_core::format::JsonWriter;
use watchkeeper_core::{Result, Visit};

use super::scan::Fields;
use super::{damaged, scalar};

/// Appends the canonical form of a `documentKey` to `out`: the value of `_id` alone, or, in a sharded collection,
/// all of it in the order of the server. A text that is not UTF-8 stands there with its bytes, as `{"$notUtf8":"ff41"}`, and a
/// value that is damaged with its type and its bytes, as `{"$notBson":"05:…"}`.
///
/// # Errors
/// `Corrupt` when it is not BSON.
pub fn canonical_key(document_key: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
    // Most keys are one whole number: those need not be made a value of first.
    if let Some(whole) = one_integer(document_key.as_bytes()) {
        integer(whole, out);
        return Ok(());
    }
    let start = out.len();
    key_of_values(document_key, out).or_else(|_| {
        // Servers store text that is not UTF-8 when a driver sends it: that must not stop a stream.
        out.truncate(start);
        bytes::key(document_key, out)
    })
}

fn key_of_values(document_key: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
    let mut fields = document_key.iter();
    match (fields.next().transpose().map_err(damaged)?, fields.next()) {
        (Some((name, id)), None) if name.as_str() == "_id" => value(id, out),
        _ => document(document_key, out),
    }
}

/// The `_id` of a key that has nothing else, if it is a whole number of one of the two types for them.
fn one_integer(document_key: &[u8]) -> Option<i64> {
    let mut fields = Fields::of(document_key).ok()?;
    let id = fields.next()?.ok().filter(|field| field.name == b"_id")?;
    fields.next().is_none().then(|| id.integer())?
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
        RawBsonRef::Double(real) => number(&real.to_string(), out),
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
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, content);
}

fn integer(whole: i64, out: &mut Vec<u8>) {
    // Most keys that are numbers are these; the form is that of `number`.
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, &whole);
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
    let name = match Decimal::parse(written) {
        Decimal::Finite { digits, .. } if digits.is_empty() => return out.push(b'0'),
        Decimal::Finite { negative, digits, exponent } => {
            let sign = if negative { "-" } else { "" };
            let plain = match usize::try_from(exponent) {
                Ok(zeros) if zeros <= DIGITS => format!("{sign}{digits}{}", "0".repeat(zeros)),
                _ => format!("{sign}{digits}e{exponent}"),
            };
            return out.extend_from_slice(plain.as_bytes());
        }
        Decimal::NaN => "NaN",
        Decimal::Infinite { negative: false } => "Infinity",
        Decimal::Infinite { negative: true } => "-Infinity",
    };
    out.extend_from_slice(format!("{{\"$numberDouble\":\"{name}\"}}").as_bytes());
}

/// A number of whatever type, as servers compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decimal {
    /// Not a number; less than all others.
    NaN,
    /// An infinity.
    Infinite {
        /// Whether it is the lesser one.
        negative: bool,
    },
    /// Digits without zeros at either end, times ten to the exponent. Zero has no digits.
    Finite {
        /// Whether it is less than zero.
        negative: bool,
        /// The digits.
        digits: String,
        /// Of ten.
        exponent: i64,
    },
}

impl Decimal {
    /// The number that a value is.
    pub(crate) fn of(value: RawBsonRef<'_>) -> Option<Self> {
        Some(match value {
            RawBsonRef::Int32(whole) => Self::parse(&whole.to_string()),
            RawBsonRef::Int64(whole) => Self::parse(&whole.to_string()),
            RawBsonRef::Double(real) if real.is_finite() => Self::parse(&format!("{real:.*e}", DIGITS - 1)),
            RawBsonRef::Double(real) => Self::parse(&real.to_string()),
            RawBsonRef::Decimal128(decimal) => Self::parse(&decimal.to_string()),
            _ => return None,
        })
    }

    fn parse(written: &str) -> Self {
        let (negative, rest) = written.strip_prefix('-').map_or((false, written), |rest| (true, rest));
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let exponent = exponent.strip_prefix('+').unwrap_or(exponent).parse::<i64>();
        let (Ok(exponent), true) = (exponent, all.bytes().all(|digit| digit.is_ascii_digit())) else {
            let is_nan = rest.to_ascii_lowercase().contains("nan");
            return if is_nan { Self::NaN } else { Self::Infinite { negative } };
        };
        let significant = all.trim_start_matches('0');
        let digits = significant.trim_end_matches('0');
        // Lengths of texts that a number is written with are small.
        let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
        let exponent = exponent - length(fraction) + length(significant) - length(digits);
        Self::Finite { negative: negative && !digits.is_empty(), digits: digits.to_owned(), exponent }
    }

    /// What decides first: kind and sign, then size, then digits.
    fn weight(&self) -> (i8, i64, &str) {
        match self {
            Self::NaN => (-3, 0, ""),
            Self::Infinite { negative } => (if *negative { -2 } else { 2 }, 0, ""),
            Self::Finite { digits, .. } if digits.is_empty() => (0, 0, ""),
            Self::Finite { negative, digits, exponent } => {
                let size = exponent + i64::try_from(digits.len()).unwrap_or(i64::MAX);
                (if *negative { -1 } else { 1 }, size, digits)
            }
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.weight(), other.weight());
        // Of two that are less than zero the larger digits are the lesser number. Digits compare as text, since they
        // begin at the same place.
        let within = (a.1, a.2).cmp(&(b.1, b.2));
        a.0.cmp(&b.0).then(if a.0 == -1 { within.reverse() } else { within })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
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
            key(mongodb::bson::DateTime::from_millis(1)),
            key(mongodb::bson::Timestamp { time: 0, increment: 1 }),
            key_of(doc! { "_id": 1, "region": 2 }),
            key_of(doc! { "region": 1 }),
        ];
        for (n, key) in keys.iter().enumerate() {
            assert!(!keys[..n].contains(key), "{key} stands for two");
        }
    }

    /// A key whose every `~` is a byte that no text in UTF-8 has.
    fn spoilt(document: mongodb::bson::Document) -> String {
        let raw = RawDocumentBuf::try_from(&document).expect("a document");
        let bytes = raw.as_bytes().iter().map(|byte| if *byte == b'~' { 0xff } else { *byte }).collect();
        let mut out = Vec::new();
        canonical_key(&RawDocumentBuf::from_bytes(bytes).expect("a document"), &mut out).expect("a key");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn texts_that_are_none_are_keys_by_their_bytes() {
        assert_eq!(spoilt(doc! { "_id": "~A" }), r#"{"$notUtf8":"ff41"}"#);
        assert_ne!(spoilt(doc! { "_id": "~A" }), spoilt(doc! { "_id": "~B" }));
        let within = r#"{"a":1,"b":[{"$notUtf8":"ff"},{"$oid":"070707070707070707070707"}]}"#;
        for one in [Bson::Int32(1), Bson::Double(1.0)] {
            let id = doc! { "a": one, "b": ["~", ObjectId::from_bytes([7; 12])] };
            assert_eq!(spoilt(doc! { "_id": id }), within, "the rest is as canonical as ever");
        }
        assert_eq!(spoilt(doc! { "region": "~", "_id": 1.0 }), r#"{"region":{"$notUtf8":"ff"},"_id":1}"#);
        assert_eq!(spoilt(doc! { "_id": { "~": true } }), r#"{"$notUtf8:ff":true}"#);
    }

    #[test]
    fn numbers_inside_of_keys_are_canonical_too() {
        assert_eq!(key(doc! { "a": 1.0, "b": [2_i64, "x"] }), r#"{"a":1,"b":[2,"x"]}"#);
        assert_eq!(key_of(doc! { "region": "eu", "_id": 1.0 }), r#"{"region":"eu","_id":1}"#);
        assert_eq!(key(ObjectId::from_bytes([7; 12])), r#"{"$oid":"070707070707070707070707"}"#);
    }
}
