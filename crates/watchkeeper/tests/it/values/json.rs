//! JSON by its value: numbers with every digit, members of objects in any order.

use std::collections::BTreeMap;

use watchkeeper::core::payload::JsonPayload;
use watchkeeper::core::{Payload, ValueRef, Visit};

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// A decimal number. Two are equal by value, however they are written.
#[derive(Debug, Clone)]
pub(super) struct Number {
    text: String,
    is_negative: bool,
    /// Without zeros at either end.
    digits: String,
    /// The power of ten behind the last digit.
    exponent: i64,
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        (self.is_negative, &self.digits, self.exponent) == (other.is_negative, &other.digits, other.exponent)
    }
}

/// More digits than these have no number in MongoDB, which then keeps them as text.
const DIGITS_OF_DECIMAL128: usize = 34;

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let exponent = exponent.parse::<i64>().ok()? - i64::try_from(fraction.len()).ok()?;
        let digits = all.trim_start_matches('0').trim_end_matches('0').to_owned();
        // The digits of zero say nothing of its exponent; its sign is kept.
        let zeros = if digits.is_empty() { -exponent } else { (all.len() - all.trim_end_matches('0').len()) as i64 };
        Some(Self { text: text.to_owned(), is_negative, digits, exponent: exponent + zeros })
    }

    /// Whether MongoDB has no number with all these digits; zeros at the end of a fraction are digits, too.
    fn is_too_long(&self) -> bool {
        let mantissa = self.text.split(['e', 'E']).next().unwrap_or_default();
        let significant = mantissa.trim_start_matches(['-', '0', '.']).bytes().filter(u8::is_ascii_digit).count();
        let is_long = mantissa.contains('.') && significant > DIGITS_OF_DECIMAL128;
        self.digits.len() > DIGITS_OF_DECIMAL128 || is_long
    }
}

impl Json {
    pub(super) fn parse(text: &str) -> Self {
        let mut builder = Builder::default();
        JsonPayload.walk(text.as_bytes(), &mut builder).unwrap_or_else(|error| panic!("{text} is no JSON: {error}"));
        builder.done.expect("JSON has a value")
    }

    /// The same without the marks of decimals.
    pub(super) fn unmarked(self) -> Self {
        match self {
            Self::Array(items) => Self::Array(items.into_iter().map(Self::unmarked).collect()),
            Self::Object(fields) => match fields.get("$numberDecimal") {
                Some(Self::Text(digits)) if fields.len() == 1 => {
                    Self::Number(Number::parse(digits).expect("a decimal of JSON is a number"))
                }
                _ => Self::Object(fields.into_iter().map(|(key, value)| (key, value.unmarked())).collect()),
            },
            other => other,
        }
    }

    /// The text that the server's own functions read: values with marks are what these stand for.
    pub(super) fn plain(&self) -> String {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(truth) => truth.to_string(),
            Self::Number(number) => number.text.clone(),
            Self::Text(read) => text(read),
            Self::Array(items) => format!("[{}]", items.iter().map(Self::plain).collect::<Vec<_>>().join(",")),
            Self::Object(fields) => match fields.first_key_value() {
                // Inside of JSON a number is not text.
                Some((mark, Self::Text(digits))) if mark == "$numberDecimal" && Number::parse(digits).is_some() => {
                    digits.clone()
                }
                Some((mark, Self::Text(digits))) if mark == "$numberDecimal" || mark == "$numberDouble" => text(digits),
                Some((mark, Self::Object(binary))) if mark == "$binary" => {
                    let Some(Self::Text(base64)) = binary.get("base64") else { panic!("{binary:?} is no binary") };
                    let hex: String = decode_base64(base64).iter().map(|byte| format!("{byte:02x}")).collect();
                    text(&format!("\\x{hex}"))
                }
                _ => {
                    let field = |(key, value): (&String, &Self)| format!("{}:{}", text(key), value.plain());
                    format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
                }
            },
        }
    }

    /// Whether a document of MongoDB has this value: numbers that are too long for it are text there.
    pub(super) fn is_kept_as(&self, found: &Self) -> bool {
        match (self, found) {
            (Self::Number(number), Self::Text(text)) => {
                number.is_too_long() && Number::parse(text).as_ref() == Some(number)
            }
            (Self::Array(items), Self::Array(others)) => {
                items.len() == others.len() && items.iter().zip(others).all(|(item, other)| item.is_kept_as(other))
            }
            (Self::Object(fields), Self::Object(others)) => {
                let same =
                    |(key, value): (&String, &Self)| others.get(key).is_some_and(|other| value.is_kept_as(other));
                fields.len() == others.len() && fields.iter().all(same)
            }
            (value, other) => value == other,
        }
    }
}

pub(super) fn decode_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits =
            group.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(digit(*byte)) << (18 - 6 * at));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

#[derive(Default)]
struct Builder {
    open: Vec<(Json, String)>,
    done: Option<Json>,
}

impl Builder {
    fn put(&mut self, value: Json) {
        match self.open.last_mut() {
            Some((Json::Array(items), _)) => items.push(value),
            Some((Json::Object(fields), key)) => drop(fields.insert(std::mem::take(key), value)),
            _ => self.done = Some(value),
        }
    }

    fn end(&mut self) {
        let (value, _) = self.open.pop().expect("what ends has begun");
        self.put(value);
    }
}

impl Visit for Builder {
    fn value(&mut self, value: ValueRef<'_>) {
        let number = |text: &str| Json::Number(Number::parse(text).expect("it is a number"));
        self.put(match value {
            ValueRef::Null => Json::Null,
            ValueRef::Bool(truth) => Json::Bool(truth),
            ValueRef::Int32(whole) => number(&whole.to_string()),
            ValueRef::Int64(whole) => number(&whole.to_string()),
            ValueRef::Double(real) => number(&serde_json::Value::from(real).to_string()),
            ValueRef::Json(text) | ValueRef::Decimal(text) => number(&text),
            ValueRef::Str(text) => Json::Text(text.into_owned()),
            other => panic!("{other:?} is no value of JSON"),
        });
    }

    fn begin_document(&mut self) {
        self.open.push((Json::Object(BTreeMap::new()), String::new()));
    }

    fn key(&mut self, key: &str) {
        key.clone_into(&mut self.open.last_mut().expect("a key is in a document").1);
    }

    fn end_document(&mut self) {
        self.end();
    }

    fn begin_array(&mut self) {
        self.open.push((Json::Array(Vec::new()), String::new()));
    }

    fn end_array(&mut self) {
        self.end();
    }
}

#[test]
fn numbers_are_equal_by_value() {
    for (one, other) in [("1.50", "15e-1"), ("100", "1E+2"), ("0.0", "0"), ("1e400", "10e399")] {
        assert_eq!(Json::parse(one), Json::parse(other));
    }
    for (one, other) in [("1.5", "1.51"), ("1", "-1"), ("1", "\"1\""), ("10", "1")] {
        assert_ne!(Json::parse(one), Json::parse(other));
    }
}
