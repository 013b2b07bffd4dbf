//! A [`Value`] as what serde reads types from.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{Value, unchangeable};
use crate::format::iso_date;

/// Why a value does not fit a type, and where in the row it is.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The field, as a path; empty for the row itself.
    path: String,
    message: String,
    /// Whether the source did not send the value, so that no other type of it would do.
    is_unsent: bool,
}

impl DecodeError {
    fn unsent() -> Self {
        let message = "the source did not send this value, since the update did not change it".to_owned();
        Self { path: String::new(), message, is_unsent: true }
    }

    /// What to do about it.
    pub(super) fn remedy(&self) -> &'static str {
        if self.is_unsent {
            "ALTER TABLE … REPLICA IDENTITY FULL at the source, read what changed with update(), or give the field the type decode::Unchangeable"
        } else {
            "change the type, or dead-letter what does not fit it"
        }
    }

    fn below(mut self, part: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{part}{dot}{}", self.path);
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: String::new(), message: message.to_string(), is_unsent: false }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        // A row has no units: that is how its nulls are shown to types that do not know them.
        match unexpected {
            Unexpected::Unit => Self::custom(format_args!("it is null, expected {expected}; an Option takes both")),
            other => Self::custom(format_args!("invalid type: {other}, expected {expected}")),
        }
    }
}

impl Value {
    /// A whole number, if that is what it is.
    fn whole(&self) -> Option<i128> {
        match self {
            Self::Whole(whole) | Self::DateTime(whole) => Some((*whole).into()),
            // Above 2^63 a double may stand for many whole numbers.
            Self::Double(double) if double.fract() == 0.0 && double.abs() < 9.3e18 => Some(*double as i128),
            Self::Digits(digits) => {
                let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
                if fraction.bytes().all(|digit| digit == b'0') { whole.parse().ok() } else { None }
            }
            _ => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Self::Whole(whole) => Some(*whole as f64),
            Self::Double(double) => Some(*double),
            Self::Digits(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// The text of what has one.
    fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) | Self::Digits(text) => Some(text.clone()),
            Self::Whole(whole) => Some(whole.to_string()),
            Self::Double(double) => Some(double.to_string()),
            Self::DateTime(millis) => Some(iso_date(*millis).unwrap_or_else(|| millis.to_string())),
            _ => None,
        }
    }

    /// Bytes: those of a binary value, or those that text holds in the form that PostgreSQL's JSON functions print.
    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes.clone()),
            Self::Text(text) => unhex(text.strip_prefix("\\x")?),
            Self::Map(fields) => match fields.as_slice() {
                [(name, Self::Text(text))] if name == "$hex" => unhex(text),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The double that is written with the same digits, but for zeros at the end.
fn exact_double(digits: &str) -> Option<f64> {
    let significant = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    digits.parse().ok().filter(|double: &f64| double.to_string() == significant)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    text.as_bytes().chunks(2).map(pair).collect()
}

macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            match self.whole().and_then(|whole| <$number>::try_from(whole).ok()) {
                Some(number) => visitor.$visit(number),
                None => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Value {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Unchanged => Err(DecodeError::unsent()),
            Self::Bool(truth) => visitor.visit_bool(truth),
            Self::Whole(whole) => visitor.visit_i64(whole),
            Self::Double(double) => visitor.visit_f64(double),
            Self::Text(text) => visitor.visit_string(text),
            Self::Digits(digits) => match exact_double(&digits) {
                Some(double) => visitor.visit_f64(double),
                None => visitor.visit_string(digits),
            },
            Self::DateTime(_) => visitor.visit_string(self.text().unwrap_or_default()),
            Self::Bytes(bytes) => visitor.visit_byte_buf(bytes),
            Self::List(items) => visitor.visit_seq(Items { items: items.into_iter(), at: 0 }),
            Self::Map(fields) => visitor.visit_map(Fields { fields: fields.into_iter(), value: None }),
        }
    }

    numbers! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
        deserialize_i128 visit_i128 i128, deserialize_u128 visit_u128 u128,
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.float() {
            Some(float) => visitor.visit_f64(float),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.text() {
            Some(text) => visitor.visit_string(text),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.bytes() {
            Some(bytes) => visitor.visit_byte_buf(bytes),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_bytes(visitor)
    }

    /// Also bytes: `Vec<u8>` asks for a sequence.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.bytes() {
            Some(bytes) => SeqAccessDeserializer::new(byte_items(bytes)).deserialize_any(visitor),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Self::Null => visitor.visit_none(),
            some => visitor.visit_some(some),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self {
            Self::Unchanged if name == unchangeable::NAME => visitor.visit_unit(),
            value => visitor.visit_newtype_struct(value),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self {
            Self::Map(fields) => {
                let fields = Fields { fields: fields.into_iter(), value: None };
                MapAccessDeserializer::new(fields).deserialize_enum(name, variants, visitor)
            }
            other => match other.text() {
                Some(text) => visitor.visit_enum(text.into_deserializer()),
                None => other.deserialize_any(visitor),
            },
        }
    }

    forward_to_deserialize_any! {
        bool char unit unit_struct tuple tuple_struct map struct identifier
    }
}

impl<'de> IntoDeserializer<'de, DecodeError> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

fn byte_items(bytes: Vec<u8>) -> Items {
    let items: Vec<_> = bytes.into_iter().map(|byte| Value::Whole(byte.into())).collect();
    Items { items: items.into_iter(), at: 0 }
}

/// The fields of a row, each of which an error names.
struct Fields {
    fields: std::vec::IntoIter<(String, Value)>,
    value: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        self.value = self.fields.next();
        match &self.value {
            Some((key, _)) => seed.deserialize(key.clone().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let no_key = || de::Error::custom("a value was asked for before its key");
        let (key, value) = self.value.take().ok_or_else(no_key)?;
        seed.deserialize(value).map_err(|error: DecodeError| error.below(&key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.fields.len())
    }
}

/// The items of an array, each of which an error names.
struct Items {
    items: std::vec::IntoIter<Value>,
    at: usize,
}

impl<'de> SeqAccess<'de> for Items {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let at = self.at;
        self.at += 1;
        seed.deserialize(item).map(Some).map_err(|error: DecodeError| error.below(&format!("[{at}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}
