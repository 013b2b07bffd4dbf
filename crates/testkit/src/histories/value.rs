//! Values of all types that sources have.

use watchkeeper_core::Entropy;

use super::Source;

/// A type. Each source has some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// 64-bit integers.
    Integer,
    /// 64-bit floating point numbers.
    Float,
    /// Text.
    Text,
    /// True or false.
    Boolean,
    /// Bytes.
    Bytes,
    /// Decimal numbers of any length.
    Decimal,
    /// A point in time.
    Time,
    /// A day.
    Date,
    /// A UUID.
    Uuid,
    /// JSON: `jsonb` in PostgreSQL, a document in MongoDB.
    Json,
    /// A list of integers.
    Integers,
    /// A list of texts.
    Texts,
    /// A value of any type that the source has, where columns do not have one.
    Any,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// None.
    Null,
    /// A 64-bit integer.
    Integer(i64),
    /// A floating point number.
    Float(f64),
    /// Text.
    Text(String),
    /// True or false.
    Boolean(bool),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A decimal number, as text.
    Decimal(String),
    /// Milliseconds since 1970.
    Time(i64),
    /// Days since 1970.
    Date(i32),
    /// A UUID.
    Uuid(u128),
    /// A field of an object.
    Json(String, Box<Value>),
    /// A list.
    List(Vec<Value>),
}

/// Texts that are hard for somebody.
const TEXTS: [&str; 12] = [
    "",
    " ",
    "null",
    "it's",
    "back\\slash \"quoted\"",
    "two\nlines\tand a tab",
    "Grüße, 世界 🌊",
    "\\x00ff",
    "{\"$hex\":\"00\"}",
    "{a,b}",
    "1e3",
    "%s ${NAME} $$",
];

impl Kind {
    /// The types that a source has, and that a copy of another system takes as they are.
    pub(super) fn of(source: Source, foreign: bool) -> &'static [Self] {
        use Kind::{Any, Boolean, Bytes, Date, Decimal, Float, Integer, Integers, Json, Text, Texts, Time, Uuid};
        match (source, foreign) {
            (Source::Sqlite, false) => &[Integer, Float, Text, Bytes, Any],
            (Source::ChangeLog | Source::Replication, false) => {
                &[Integer, Float, Text, Boolean, Bytes, Decimal, Time, Date, Uuid, Json, Integers, Texts]
            }
            (Source::Mongodb, false) => {
                &[Integer, Float, Text, Boolean, Bytes, Decimal, Time, Json, Integers, Texts, Any]
            }
            (_, true) => &[Integer, Text],
        }
    }

    /// The types that keys have.
    pub(super) fn of_keys(source: Source, foreign: bool) -> &'static [Self] {
        use Kind::{Any, Bytes, Date, Decimal, Integer, Text, Time, Uuid};
        match (source, foreign) {
            (Source::Sqlite, false) => &[Integer, Text],
            (Source::ChangeLog | Source::Replication, false) => &[Integer, Text, Uuid, Decimal, Bytes, Time, Date],
            (Source::Mongodb, false) => &[Integer, Text, Any],
            (_, true) => &[Integer, Text],
        }
    }

    /// A value of this type, sometimes none.
    pub(super) fn draw(self, entropy: &Entropy) -> Value {
        if entropy.below(8) == 0 { Value::Null } else { self.draw_some(entropy) }
    }

    fn draw_some(self, entropy: &Entropy) -> Value {
        let below = |bound| entropy.below(bound);
        match self {
            Self::Integer => Value::Integer(match below(4) {
                0 => [0, -1, i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1][usize::try_from(below(6)).unwrap_or(0)],
                _ => i64::try_from(below(1_000_000)).unwrap_or(0) - 500_000,
            }),
            Self::Float => Value::Float(match below(4) {
                0 => [0.0, 0.1, 1e300, -2.5e-7][usize::try_from(below(4)).unwrap_or(0)],
                _ => below(1_000_000) as f64 / 64.0,
            }),
            Self::Text => Value::Text(text(entropy)),
            Self::Boolean => Value::Boolean(below(2) == 0),
            Self::Bytes => Value::Bytes((0..below(12)).map(|_| below(256) as u8).collect()),
            Self::Decimal => Value::Decimal(match below(3) {
                0 => format!("{}.{:020}", below(1000), below(u64::MAX)),
                1 => format!("-0.00{}", below(100)),
                _ => format!("{}", below(1 << 40)),
            }),
            Self::Time => Value::Time(i64::try_from(below(2_000_000_000_000)).unwrap_or(0)),
            Self::Date => Value::Date(i32::try_from(below(40_000)).unwrap_or(0) - 10_000),
            Self::Uuid => Value::Uuid(entropy.uuid().as_u128()),
            Self::Json => {
                let inner = [Self::Integer, Self::Text, Self::Boolean, Self::Texts];
                let inner = inner[usize::try_from(below(4)).unwrap_or(0)].draw_some(entropy);
                Value::Json(["a", "b c", "ü"][usize::try_from(below(3)).unwrap_or(0)].to_owned(), Box::new(inner))
            }
            Self::Integers => Value::List((0..below(4)).map(|_| Self::Integer.draw_some(entropy)).collect()),
            Self::Texts => Value::List((0..below(4)).map(|_| Self::Text.draw_some(entropy)).collect()),
            Self::Any => {
                let kinds = [Self::Integer, Self::Float, Self::Text, Self::Bytes];
                kinds[usize::try_from(below(4)).unwrap_or(0)].draw_some(entropy)
            }
        }
    }

    /// The `number`-th key of this type. Different numbers give different keys.
    pub(super) fn key(self, number: u64) -> Value {
        let signed = i64::try_from(number).unwrap_or(0);
        match self {
            Self::Text => Value::Text(format!("key {number} {}", TEXTS[number as usize % TEXTS.len()])),
            Self::Bytes => Value::Bytes(number.to_be_bytes().to_vec()),
            Self::Decimal => Value::Decimal(format!("{number}.50")),
            Self::Time => Value::Time(signed * 1_000),
            Self::Date => Value::Date(i32::try_from(number).unwrap_or(0)),
            Self::Uuid => Value::Uuid(u128::from(number) << 64 | 7),
            // Integers and floats of one number are one key to MongoDB, so texts stand between them.
            Self::Any if number.is_multiple_of(3) => Value::Text(format!("any {number}")),
            Self::Any if number % 3 == 1 => Value::Float(signed as f64 + 0.5),
            _ => Value::Integer(signed),
        }
    }
}

fn text(entropy: &Entropy) -> String {
    match entropy.below(3) {
        0 => TEXTS[usize::try_from(entropy.below(TEXTS.len() as u64)).unwrap_or(0)].to_owned(),
        1 => format!("{:x}", entropy.next()),
        // Long enough to be stored out of line.
        _ if entropy.below(10) == 0 => format!("{:016x}", entropy.next()).repeat(600),
        _ => format!("word {}", entropy.below(100)),
    }
}
