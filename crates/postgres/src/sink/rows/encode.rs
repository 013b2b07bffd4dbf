//! Values as the server converts them by the types of their columns.
//!
//! Rows are sent as JSON, which the server takes apart by itself. Most values are written in JSON as they are, or as the text that the
//! type's own input function reads. What would become another value on that way is written otherwise here, or refused.

use std::io::Write;

use serde::Deserialize;
use serde::de::IgnoredAny;
use watchkeeper_core::payload::{ValueRef, Visit};

use super::literal::{ArrayLiteral, HstoreLiteral, VectorLiteral};

/// What is special about a type, or about the elements of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Special {
    #[default]
    Nothing,
    /// `json` and `jsonb`, whose text is not to be taken for a string.
    Json,
    Bytes,
    Uuid,
    /// `hstore`, which becomes JSON by itself but does not come back from it.
    Hstore,
    /// A type of texts, which takes every text.
    Text,
    /// A type of dates or times, whose input function also reads words that mean another time at each reading.
    Time,
    /// `int2vector` and `oidvector`, which are no arrays to JSON: the server would make broken ones of them.
    Vector,
}

/// Types of ranges of dates and times.
const TIME_RANGES: [&str; 6] =
    ["daterange", "tsrange", "tstzrange", "datemultirange", "tsmultirange", "tstzmultirange"];

/// What the server takes for a time of its own clock, alone or with a time of day (`today 12:00`), and its word for midnight.
const RELATIVE: [&str; 5] = ["now", "today", "tomorrow", "yesterday", "allballs"];

/// What text of a source may stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Texts {
    /// See [`Payload::has_json_strings`](watchkeeper_core::Payload::has_json_strings).
    pub(super) has_json_strings: bool,
    /// See [`Payload::has_binary_bytes`](watchkeeper_core::Payload::has_binary_bytes).
    pub(super) has_binary_bytes: bool,
}

impl Texts {
    /// Those of JSON.
    pub(super) const JSON: Self = Self { has_json_strings: true, has_binary_bytes: false };
}

/// How values get into a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Kind {
    pub(super) special: Special,
    pub(super) is_array: bool,
}

impl Kind {
    /// By the name and the category of a type that is no domain and no array.
    pub(super) fn new(name: &str, category: &str, is_array: bool) -> Self {
        let special = match name {
            "json" | "jsonb" => Special::Json,
            "bytea" => Special::Bytes,
            "uuid" => Special::Uuid,
            "hstore" => Special::Hstore,
            "int2vector" | "oidvector" => Special::Vector,
            _ if category == "S" => Special::Text,
            _ if category == "D" || TIME_RANGES.contains(&name) => Special::Time,
            _ => Special::Nothing,
        };
        Self { special, is_array }
    }
}

/// What became of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Encoded {
    /// JSON that the server converts.
    Json(Vec<u8>),
    /// The null of JSON, which the server would take for that of SQL.
    JsonNull,
    /// Why it would become another value.
    Refused(String),
}

/// Writes the value of one column.
#[derive(Debug)]
pub(super) enum Encoder {
    Json(JsonValue),
    Array(ArrayLiteral),
    Hstore(HstoreLiteral),
    Vector(VectorLiteral),
}

impl Encoder {
    /// For a column of this kind, from a source with such texts.
    pub(super) fn new(kind: Kind, texts: Texts) -> Self {
        match kind {
            Kind { special: Special::Json, is_array: true } => Self::Array(ArrayLiteral::new(texts.has_json_strings)),
            Kind { special: Special::Hstore, .. } => Self::Hstore(HstoreLiteral::default()),
            Kind { special: Special::Vector, is_array } => Self::Vector(VectorLiteral::new(is_array)),
            Kind { special, is_array } => Self::Json(JsonValue { special, is_array, texts, ..JsonValue::default() }),
        }
    }

    pub(super) fn finish(self) -> Encoded {
        match self {
            Self::Json(value) => value.finish(),
            Self::Array(literal) => literal.finish(),
            Self::Hstore(literal) => literal.finish(),
            Self::Vector(literal) => literal.finish(),
        }
    }

    pub(super) fn visit(&mut self) -> &mut dyn Visit {
        match self {
            Self::Json(value) => value,
            Self::Array(literal) => literal,
            Self::Hstore(literal) => literal,
            Self::Vector(literal) => literal,
        }
    }
}

/// A value as JSON.
#[derive(Debug, Default)]
pub(super) struct JsonValue {
    special: Special,
    is_array: bool,
    texts: Texts,
    json: Vec<u8>,
    comma: bool,
    /// How many documents and arrays are open.
    documents: usize,
    arrays: usize,
    is_json_null: bool,
    refused: Option<String>,
}

impl JsonValue {
    fn finish(self) -> Encoded {
        match self.refused {
            Some(cause) => Encoded::Refused(cause),
            None if self.is_json_null => Encoded::JsonNull,
            None => Encoded::Json(self.json),
        }
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            self.json.push(b',');
        }
    }

    fn refuse(&mut self, cause: &str) {
        self.refused.get_or_insert_with(|| cause.to_owned());
    }

    /// Writes the value of a column of JSON that is told as a whole.
    fn whole_json(&mut self, value: &ValueRef<'_>) {
        let text = match value {
            ValueRef::Json(text) => text,
            ValueRef::Str(text) if !self.texts.has_json_strings => {
                if !is_json(text) {
                    return self.refuse("text that is not JSON does not fit into JSON");
                }
                text
            }
            ValueRef::Binary(..) => return self.refuse("bytes do not fit into JSON"),
            other => return write_value(&mut self.json, other),
        };
        self.is_json_null = text.trim_ascii() == "null";
        self.json.extend_from_slice(text.as_bytes());
    }

    /// Whether what is visited is the value of the column, or an element of its array, and no part of either.
    fn is_own_value(&self) -> bool {
        self.documents == 0 && self.is_array == (self.arrays > 0)
    }

    /// Writes what is no bytes into a column of bytes. The server would read the text of a number, and take `\x41` in any text for a byte.
    fn text_as_bytes(&mut self, value: &ValueRef<'_>) {
        match value {
            ValueRef::Str(text) if self.texts.has_binary_bytes => self.bytes(0, text.as_bytes()),
            ValueRef::Str(_) | ValueRef::Null => write_value(&mut self.json, value),
            _ => self.refuse("bytea takes bytes and text, and no other value"),
        }
    }

    fn bytes(&mut self, subtype: u8, bytes: &[u8]) {
        let is_uuid = bytes.len() == 16 && matches!(subtype, 0 | 4);
        match self.special {
            Special::Bytes => write_text(&mut self.json, &format!("\\x{}", hex(bytes))),
            Special::Uuid if is_uuid => write_text(&mut self.json, &hex(bytes)),
            Special::Text if is_uuid && subtype == 4 => write_text(&mut self.json, &hex(bytes)),
            _ if subtype == watchkeeper_core::payload::TEXT_NOT_UTF8 => {
                self.refuse("text that is not UTF-8 fits only into bytea")
            }
            _ => self.refuse("bytes fit only into bytea"),
        }
    }
}

impl Visit for JsonValue {
    fn value(&mut self, value: ValueRef<'_>) {
        self.separate();
        let is_inside = self.documents > 0;
        match &value {
            value if self.special == Special::Json && !is_inside && self.arrays == 0 => self.whole_json(value),
            ValueRef::Binary(subtype, bytes) if self.special != Special::Json && !is_inside => {
                self.bytes(*subtype, bytes)
            }
            value if self.special == Special::Bytes && self.is_own_value() => self.text_as_bytes(value),
            ValueRef::Str(text) if self.special == Special::Time && is_relative(text) => {
                self.refuse("the server would read it as a time of its own clock")
            }
            value => write_value(&mut self.json, value),
        }
    }

    fn begin_document(&mut self) {
        if self.special == Special::Bytes {
            self.refuse("bytea takes bytes and text, and no documents");
        }
        self.separate();
        self.documents += 1;
        self.json.push(b'{');
        self.comma = false;
    }

    fn key(&mut self, key: &str) {
        self.separate();
        write_text(&mut self.json, key);
        self.json.push(b':');
        self.comma = false;
    }

    fn end_document(&mut self) {
        self.documents -= 1;
        self.json.push(b'}');
        self.comma = true;
    }

    fn begin_array(&mut self) {
        self.separate();
        self.arrays += 1;
        self.json.push(b'[');
        self.comma = false;
    }

    fn end_array(&mut self) {
        self.arrays -= 1;
        self.json.push(b']');
        self.comma = true;
    }
}

/// Whether a text of a time has a word in it that means another time whenever it is read.
fn is_relative(text: &str) -> bool {
    let mut words = text.split(|character: char| !character.is_ascii_alphabetic());
    words.any(|word| RELATIVE.iter().any(|relative| word.eq_ignore_ascii_case(relative)))
}

fn is_json(text: &str) -> bool {
    let mut parser = serde_json::Deserializer::from_str(text);
    IgnoredAny::deserialize(&mut parser).and_then(|_| parser.end()).is_ok()
}

/// Writes a text as a string of JSON.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Whether digits are a number of JSON, too: infinities and the like are not.
fn is_number(digits: &str) -> bool {
    is_json(digits)
}

/// A value as JSON that is converted by the type of its column: what has no JSON of its own is the text that the server reads.
pub(super) fn write_value(out: &mut Vec<u8>, value: &ValueRef<'_>) {
    match value {
        ValueRef::Bool(truth) => drop(write!(out, "{truth}")),
        ValueRef::Int32(number) => drop(write!(out, "{number}")),
        ValueRef::Int64(number) => drop(write!(out, "{number}")),
        ValueRef::Double(number) if number.is_finite() => drop(serde_json::to_writer(out, number)),
        ValueRef::Double(number) if number.is_nan() => write_text(out, "NaN"),
        ValueRef::Double(number) => write_text(out, if *number > 0.0 { "Infinity" } else { "-Infinity" }),
        ValueRef::Decimal(digits) if is_number(digits) => out.extend_from_slice(digits.as_bytes()),
        ValueRef::Decimal(digits) => write_text(out, digits),
        ValueRef::Str(text) => write_text(out, text),
        ValueRef::Binary(4, bytes) if bytes.len() == 16 => write_text(out, &hex(bytes)),
        ValueRef::Binary(_, bytes) => write_text(out, &format!("\\x{}", hex(bytes))),
        ValueRef::ObjectId(bytes) => write_text(out, &hex(bytes)),
        ValueRef::DateTime(millis) => write_text(out, &date(*millis)),
        ValueRef::Timestamp(seconds, _) => write_text(out, &date(i64::from(*seconds) * 1_000)),
        ValueRef::Regex(pattern, options) => write_text(out, &format!("/{pattern}/{options}")),
        ValueRef::Json(text) => out.extend_from_slice(text.as_bytes()),
        ValueRef::Document => out.extend_from_slice(b"{}"),
        ValueRef::Array => out.extend_from_slice(b"[]"),
        _ => out.extend_from_slice(b"null"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A moment in UTC, as PostgreSQL reads it, in whichever year.
fn date(millis: i64) -> String {
    let (days, in_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    // Days since 0000-03-01, so that leap days fall at the end of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1_000 % 60);
    // There is no year 0: before 1 stands 1 BC.
    let (year, before) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:03}+00{before}", in_day % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(special: Special, has_json_strings: bool, value: ValueRef<'_>) -> Encoded {
        let texts = Texts { has_json_strings, has_binary_bytes: !has_json_strings };
        let mut encoder = Encoder::new(Kind { special, is_array: false }, texts);
        encoder.visit().value(value);
        encoder.finish()
    }

    #[test]
    fn text_is_json_or_a_string_of_it_as_the_source_says() {
        let json = |text: &str| Encoded::Json(text.into());
        let text = |text: &'static str| ValueRef::Str(text.into());
        assert_eq!(encoded(Special::Json, true, text("[1]")), json("\"[1]\""));
        assert_eq!(encoded(Special::Json, false, text("[1]")), json("[1]"));
        assert_eq!(encoded(Special::Json, false, text(" null ")), Encoded::JsonNull);
        assert_eq!(encoded(Special::Json, true, ValueRef::Null), json("null"));
        assert!(matches!(encoded(Special::Json, false, text("[1")), Encoded::Refused(_)));
        assert_eq!(encoded(Special::Text, false, text("[1]")), json("\"[1]\""));
    }

    #[test]
    fn bytes_are_refused_by_what_has_none() {
        let bytes = |subtype| ValueRef::Binary(subtype, vec![1; 16].into());
        let hex = "01".repeat(16);
        assert_eq!(encoded(Special::Bytes, true, bytes(0)), Encoded::Json(format!("\"\\\\x{hex}\"").into()));
        assert_eq!(encoded(Special::Uuid, true, bytes(0)), Encoded::Json(format!("\"{hex}\"").into()));
        for special in [Special::Text, Special::Json, Special::Nothing] {
            assert!(matches!(encoded(special, true, bytes(0)), Encoded::Refused(_)), "{special:?}");
        }
    }

    #[test]
    fn text_in_bytes_is_bytes_where_it_can_be_nothing_else() {
        let json = |text: &str| Encoded::Json(text.into());
        let text = |text: &'static str| ValueRef::Str(text.into());
        assert_eq!(encoded(Special::Bytes, false, text("\\x41")), json(r#""\\x5c783431""#));
        assert_eq!(encoded(Special::Bytes, true, text("\\x41")), json(r#""\\x41""#), "JSON of PostgreSQL");
        assert_eq!(encoded(Special::Bytes, false, ValueRef::Null), json("null"));
        for value in [ValueRef::Int64(5), ValueRef::Double(0.5), ValueRef::Bool(true), ValueRef::Json("{}".into())] {
            assert!(matches!(encoded(Special::Bytes, false, value), Encoded::Refused(_)));
        }
    }

    #[test]
    fn words_that_mean_another_time_each_time_are_no_times() {
        let time = |text: &str| encoded(Special::Time, false, ValueRef::Str(text.to_owned().into()));
        for text in ["now", " NOW ", "today 12:00", "12:00Tomorrow", "yesterday allballs", "[today,)", "{now}"] {
            assert!(matches!(time(text), Encoded::Refused(_)), "{text}");
        }
        for text in
            ["infinity", "-infinity", "epoch", "2024-01-01 12:00:00", "Nov 19 2026", "20240101T000000 America/New_York"]
        {
            assert!(matches!(time(text), Encoded::Json(_)), "{text}");
        }
    }

    #[test]
    fn values_are_written_as_the_server_reads_them() {
        let id = [0xab; 16];
        for (value, json) in [
            (ValueRef::Decimal("1.50".into()), "1.50"),
            (ValueRef::Decimal("NaN".into()), "\"NaN\""),
            (ValueRef::Double(f64::NEG_INFINITY), "\"-Infinity\""),
            (ValueRef::Binary(0, vec![0, 255].into()), "\"\\\\x00ff\""),
            (ValueRef::Binary(4, id.to_vec().into()), "\"abababababababababababababababab\""),
            (ValueRef::DateTime(-1), "\"1969-12-31 23:59:59.999+00\""),
            (ValueRef::DateTime(1_709_164_800_000), "\"2024-02-29 00:00:00.000+00\""),
            (ValueRef::DateTime(-62_135_596_800_001), "\"0001-12-31 23:59:59.999+00 BC\""),
        ] {
            let mut out = Vec::new();
            write_value(&mut out, &value);
            assert_eq!(String::from_utf8_lossy(&out), json, "{value:?}");
        }
    }
}
