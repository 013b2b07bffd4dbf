//! From the server's text of a value to the value.
//!
//! The text is what PostgreSQL itself prints, with settings that lose nothing. Numbers and truth values become such, decimals
//! keep their digits, JSON stays the text it is, times are written as the server's own JSON functions write them, and what has
//! no better form (intervals, ranges, addresses, enums) stays text.

use std::borrow::Cow;

use tokio_postgres::types::{Kind, Type};
use watchkeeper_core::{Result, ValueRef, Visit};

use super::pgoutput::odd;

/// The value of a text, which for an array says only that it is one.
pub(super) fn value(kind: u32, text: &[u8]) -> Result<ValueRef<'_>> {
    let text = std::str::from_utf8(text).map_err(|_| odd("a text that is not UTF-8"))?;
    let Some(kind) = Type::from_oid(kind) else { return Ok(ValueRef::Str(text.into())) };
    Ok(if element(&kind).is_some() && !has_bounds(text) { ValueRef::Array } else { scalar(&kind, text) })
}

/// Visits the value of a text.
pub(super) fn visit_value(kind: u32, text: &[u8], visit: &mut dyn Visit) -> Result<()> {
    let read = std::str::from_utf8(text).map_err(|_| odd("a text that is not UTF-8"))?;
    match Type::from_oid(kind) {
        Some(kind) => match element(&kind) {
            // An array that does not count from 1 would be another one without its bounds: it stays the text it is.
            Some(_) if has_bounds(read) => visit.value(ValueRef::Str(read.into())),
            Some(element) if is_vector(&kind) => visit_vector(element, read, visit),
            Some(element) => visit_array(element, read, visit)?,
            None => visit.value(scalar(&kind, read)),
        },
        None => visit.value(ValueRef::Str(read.into())),
    }
    Ok(())
}

/// Whether the text of an array begins with its bounds: `[0:1]={1,2}`.
fn has_bounds(text: &str) -> bool {
    text.starts_with('[')
}

/// The type of an array's elements; `None` for what is no array. Boxes are parted by other signs.
fn element(kind: &Type) -> Option<&Type> {
    match kind.kind() {
        Kind::Array(element) if *element != Type::BOX => Some(element),
        _ => None,
    }
}

/// Whether it is one of the old vectors of the catalog, which are arrays that are written otherwise.
fn is_vector(kind: &Type) -> bool {
    matches!(*kind, Type::INT2_VECTOR | Type::OID_VECTOR)
}

fn scalar<'a>(kind: &Type, text: &'a str) -> ValueRef<'a> {
    let as_text = || ValueRef::Str(Cow::Borrowed(text));
    match *kind {
        Type::BOOL => ValueRef::Bool(text == "t"),
        Type::INT2 | Type::INT4 => text.parse().map_or_else(|_| as_text(), ValueRef::Int32),
        Type::INT8 | Type::OID => text.parse().map_or_else(|_| as_text(), ValueRef::Int64),
        // Rust reads NaN and Infinity as PostgreSQL writes them.
        Type::FLOAT4 | Type::FLOAT8 => text.parse().map_or_else(|_| as_text(), ValueRef::Double),
        Type::NUMERIC => ValueRef::Decimal(text.into()),
        Type::JSON | Type::JSONB => ValueRef::Json(text.into()),
        Type::BYTEA => unhex(text).map_or_else(as_text, |bytes| ValueRef::Binary(0, bytes.into())),
        Type::TIMESTAMP => ValueRef::Str(text.replacen(' ', "T", 1).into()),
        Type::TIMESTAMPTZ => ValueRef::Str(with_zone(text).into()),
        _ => as_text(),
    }
}

/// `2026-01-02 03:04:05.678+00` as `2026-01-02T03:04:05.678+00:00`.
fn with_zone(text: &str) -> String {
    let text = text.replacen(' ', "T", 1);
    let (instant, era) = text.split_once(' ').map_or((text.as_str(), ""), |(instant, era)| (instant, era));
    let hours_only = instant.len() >= 3 && matches!(instant.as_bytes()[instant.len() - 3], b'+' | b'-');
    let minutes = if hours_only && instant.contains('T') { ":00" } else { "" };
    let space = if era.is_empty() { "" } else { " " };
    format!("{instant}{minutes}{space}{era}")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    digits.chunks(2).map(pair).collect()
}

/// Visits a vector as the server prints it: `1 2`. Its own JSON functions make an array of it, too.
fn visit_vector(element: &Type, text: &str, visit: &mut dyn Visit) {
    visit.begin_array();
    text.split_whitespace().for_each(|item| visit.value(scalar(element, item)));
    visit.end_array();
}

/// Visits an array as the server prints it: `{1,NULL,"a \"b\""}`, nested for more dimensions.
fn visit_array(element: &Type, text: &str, visit: &mut dyn Visit) -> Result<()> {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match first {
            '{' => visit.begin_array(),
            '}' => visit.end_array(),
            ',' => {}
            '"' => {
                let (item, after) = quoted(&rest[1..])?;
                visit.value(owned(scalar(element, &item)));
                rest = after;
                continue;
            }
            _ => {
                let length = rest.find([',', '}']).ok_or_else(|| odd("an array without an end"))?;
                let (item, after) = rest.split_at(length);
                visit.value(if item == "NULL" { ValueRef::Null } else { scalar(element, item) });
                rest = after;
                continue;
            }
        }
        rest = &rest[first.len_utf8()..];
    }
    Ok(())
}

/// The text up to the closing quote, and what comes after that.
fn quoted(text: &str) -> Result<(String, &str)> {
    let (mut item, mut signs) = (String::new(), text.char_indices());
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Ok((item, &text[at + 1..])),
            '\\' => item.extend(signs.next().map(|(_, escaped)| escaped)),
            other => item.push(other),
        }
    }
    Err(odd("an array without an end"))
}

/// The same value without the text it was read from.
pub(super) fn owned<'a>(value: ValueRef<'_>) -> ValueRef<'a> {
    let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
    match value {
        ValueRef::Decimal(text) => ValueRef::Decimal(own(text)),
        ValueRef::Str(text) => ValueRef::Str(own(text)),
        ValueRef::Json(text) => ValueRef::Json(own(text)),
        ValueRef::Binary(kind, bytes) => ValueRef::Binary(kind, Cow::Owned(bytes.into_owned())),
        ValueRef::Bool(truth) => ValueRef::Bool(truth),
        ValueRef::Int32(number) => ValueRef::Int32(number),
        ValueRef::Int64(number) => ValueRef::Int64(number),
        ValueRef::Double(number) => ValueRef::Double(number),
        ValueRef::Array => ValueRef::Array,
        ValueRef::Document => ValueRef::Document,
        ValueRef::Unchanged => ValueRef::Unchanged,
        // No other kind is made of a column.
        _ => ValueRef::Null,
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::types::Type;
    use watchkeeper_core::format::JsonWriter;

    use super::visit_value;

    fn json(kind: &Type, text: &str) -> String {
        let mut out = Vec::new();
        visit_value(kind.oid(), text.as_bytes(), &mut JsonWriter::new(&mut out)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_keep_what_they_say() {
        let cases = [
            (Type::BOOL, "t", "true"),
            (Type::INT2, "-7", "-7"),
            (Type::INT8, "9223372036854775807", "9223372036854775807"),
            (Type::FLOAT8, "NaN", r#"{"$numberDouble":"NaN"}"#),
            (Type::FLOAT8, "-Infinity", r#"{"$numberDouble":"-Infinity"}"#),
            (Type::NUMERIC, "1.10", r#"{"$numberDecimal":"1.10"}"#),
            (Type::JSONB, "{\"a\":\n1}", "{\"a\": 1}"),
            (Type::BYTEA, "\\x00ff", r#"{"$binary":{"base64":"AP8=","subType":"00"}}"#),
            (Type::TIMESTAMP, "2026-01-02 03:04:05.678901", r#""2026-01-02T03:04:05.678901""#),
            (Type::TIMESTAMPTZ, "2026-01-02 03:04:05+00", r#""2026-01-02T03:04:05+00:00""#),
            (Type::TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC", r#""0044-03-15T00:00:00+00:00 BC""#),
            (Type::TIMESTAMPTZ, "infinity", r#""infinity""#),
            (Type::TEXT, "a\"b", r#""a\"b""#),
            (Type::INT4_ARRAY, "{1,NULL,-3}", "[1,null,-3]"),
            (Type::INT4_ARRAY, "[0:1]={1,2}", "\"[0:1]={1,2}\""),
            (Type::INT4_ARRAY, "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
            (Type::TEXT_ARRAY, r#"{a,"NULL","b\"c","d,e",NULL,""}"#, r#"["a","NULL","b\"c","d,e",null,""]"#),
            (Type::JSONB_ARRAY, r#"{"{\"a\": 1}"}"#, r#"[{"a": 1}]"#),
            (Type::NUMERIC_ARRAY, "{1.10}", r#"[{"$numberDecimal":"1.10"}]"#),
            (Type::TEXT_ARRAY, "{}", "[]"),
            (Type::INT2_VECTOR, "1 -2", "[1,-2]"),
            (Type::OID_VECTOR, "", "[]"),
            (Type::INT2_VECTOR_ARRAY, r#"{"1 2"}"#, r#"["1 2"]"#),
        ];
        for (kind, text, expected) in cases {
            assert_eq!(json(&kind, text), expected, "{kind} {text}");
        }
    }
}
