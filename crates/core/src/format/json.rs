//! Relaxed extended JSON (version 2), written part by part.

use std::io::Write;

use crate::error::Result;
use crate::payload::json::{self, Part};
use crate::payload::{ValueRef, Visit};

/// Writes what it visits as relaxed extended JSON.
#[derive(Debug)]
pub struct JsonWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Whether something was written at this depth, so that a comma is due.
    comma: bool,
}

impl<'a> JsonWriter<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, comma: false }
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            self.out.push(b',');
        }
    }

    fn text(&mut self, text: &str) {
        // Writing to a vector cannot fail.
        let _ = serde_json::to_writer(&mut *self.out, text);
    }

    fn tagged(&mut self, tag: &str, text: &str) {
        let _ = write!(self.out, "{{\"{tag}\":");
        self.text(text);
        self.out.push(b'}');
    }

    fn double(&mut self, number: f64) {
        if number.is_finite() {
            let _ = serde_json::to_writer(&mut *self.out, &number);
        } else {
            let name = match (number.is_nan(), number > 0.0) {
                (true, _) => "NaN",
                (false, true) => "Infinity",
                (false, false) => "-Infinity",
            };
            self.tagged("$numberDouble", name);
        }
    }

    fn date(&mut self, millis: i64) {
        match iso_date(millis) {
            Some(text) => self.tagged("$date", &text),
            // Years that ISO 8601 in four digits cannot say.
            None => {
                let _ = write!(self.out, "{{\"$date\":{{\"$numberLong\":\"{millis}\"}}}}");
            }
        }
    }
}

impl JsonWriter<'_> {
    /// A key and its value.
    pub fn field(&mut self, key: &str, value: ValueRef<'_>) {
        self.key(key);
        self.value(value);
    }

    /// A key and its text.
    pub fn text_field(&mut self, key: &str, text: &str) {
        self.field(key, ValueRef::Str(text.into()));
    }
}

impl Visit for JsonWriter<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        self.separate();
        match value {
            ValueRef::Null => self.out.extend_from_slice(b"null"),
            ValueRef::Unchanged => self.out.extend_from_slice(b"{\"$unchanged\":true}"),
            ValueRef::Bool(truth) => self.out.extend_from_slice(if truth { b"true" } else { b"false" }),
            ValueRef::Int32(number) => drop(write!(self.out, "{number}")),
            ValueRef::Int64(number) => drop(write!(self.out, "{number}")),
            ValueRef::Double(number) => self.double(number),
            ValueRef::Decimal(digits) => self.tagged("$numberDecimal", &digits),
            ValueRef::Str(text) => self.text(&text),
            ValueRef::Binary(subtype, bytes) => {
                let text = base64(&bytes);
                drop(write!(self.out, "{{\"$binary\":{{\"base64\":\"{text}\",\"subType\":\"{subtype:02x}\"}}}}"));
            }
            ValueRef::ObjectId(bytes) => self.tagged("$oid", &hex(&bytes)),
            ValueRef::DateTime(millis) => self.date(millis),
            ValueRef::Timestamp(seconds, increment) => {
                drop(write!(self.out, "{{\"$timestamp\":{{\"t\":{seconds},\"i\":{increment}}}}}"));
            }
            ValueRef::Regex(pattern, options) => {
                self.out.extend_from_slice(b"{\"$regularExpression\":{\"pattern\":");
                self.text(&pattern);
                self.out.extend_from_slice(b",\"options\":");
                self.text(&options);
                self.out.extend_from_slice(b"}}");
            }
            // Line breaks between the parts of JSON (its strings have none) would break what is written line by line.
            ValueRef::Json(text) => {
                let in_one_line = |byte: u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte };
                self.out.extend(text.bytes().map(in_one_line));
            }
            ValueRef::Document => self.out.extend_from_slice(b"{}"),
            ValueRef::Array => self.out.extend_from_slice(b"[]"),
        }
    }

    /// As if it were decoded and written anew, in parts.
    fn quoted(&mut self, quoted: &str) -> Result<()> {
        self.separate();
        self.out.push(b'"');
        json::unescape(quoted, |part| match part {
            Part::Plain(text) => self.out.extend_from_slice(text.as_bytes()),
            Part::Escaped(text) => {
                let start = self.out.len();
                self.text(text);
                // Without the quotation marks of its own.
                self.out.pop();
                self.out.remove(start);
            }
        })?;
        self.out.push(b'"');
        Ok(())
    }

    fn begin_document(&mut self) {
        self.separate();
        self.out.push(b'{');
        self.comma = false;
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.text(key);
        self.out.push(b':');
        self.comma = false;
    }

    fn end_document(&mut self) {
        self.out.push(b'}');
        self.comma = true;
    }

    fn begin_array(&mut self) {
        self.separate();
        self.out.push(b'[');
        self.comma = false;
    }

    fn end_array(&mut self) {
        self.out.push(b']');
        self.comma = true;
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, byte| (group << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// ISO 8601 in UTC with milliseconds, for the years 1970 to 9999 (as relaxed extended JSON asks).
pub(crate) fn iso_date(millis: i64) -> Option<String> {
    let millis = u64::try_from(millis).ok()?;
    let (days, in_day) = (millis / 86_400_000, millis % 86_400_000);
    // Days since 0000-03-01, so that leap days fall at the end of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1_000 % 60);
    let fraction = in_day % 1_000;
    (year <= 9999).then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z"))
}

#[cfg(test)]
mod tests {
    use super::{JsonWriter, base64, iso_date};
    use crate::payload::{JsonPayload, Payload};

    #[test]
    fn texts_are_written_as_if_they_were_decoded_first() {
        for text in [
            r#""""#,
            r#""plain""#,
            r#""\u00e9\n\r\t\b\f\/\"\\end""#,
            r#""\ud83d\ude00 \u0000\u001f\u007f \u2028""#,
            r#""\uD83D\uDE00\uE000\\u0041""#,
        ] {
            let mut out = Vec::new();
            JsonPayload.walk(text.as_bytes(), &mut JsonWriter::new(&mut out)).expect("it is JSON");
            let decoded: String = serde_json::from_str(text).expect("it is JSON");
            assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&decoded).unwrap(), "{text}");
        }
        for text in [r#""\ud83d""#, r#""\ud83dx""#, r#""\ude00""#, r#""\ud83d\n12345""#, r#""\ud83d\u0041""#] {
            let mut out = Vec::new();
            JsonPayload.walk(text.as_bytes(), &mut JsonWriter::new(&mut out)).expect_err("half of a character");
        }
    }

    #[test]
    fn dates_are_iso_8601() {
        assert_eq!(iso_date(0).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(iso_date(951_782_400_123).as_deref(), Some("2000-02-29T00:00:00.123Z"));
        assert_eq!(iso_date(253_402_300_799_999).as_deref(), Some("9999-12-31T23:59:59.999Z"));
        assert_eq!(iso_date(253_402_300_800_000), None);
        assert_eq!(iso_date(-1), None);
    }

    #[test]
    fn bytes_are_base64() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foo"), "Zm9v");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
