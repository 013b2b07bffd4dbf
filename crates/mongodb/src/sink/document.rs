//! Documents of whatever a payload tells.

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp, oid::ObjectId, raw::CString};
use watchkeeper_core::payload::{Image, ValueRef, Visit};
use watchkeeper_core::{Change, Result};

/// Builds a value of the parts of a payload, in their order.
#[derive(Debug, Default)]
struct Builder {
    /// What is open: documents with the key that is due, and arrays.
    open: Vec<Frame>,
    done: Option<Bson>,
}

#[derive(Debug)]
enum Frame {
    Document(Document, String),
    Array(Vec<Bson>),
}

impl Builder {
    fn put(&mut self, value: Bson) {
        match self.open.last_mut() {
            Some(Frame::Document(document, key)) => {
                document.insert(std::mem::take(key), value);
            }
            Some(Frame::Array(values)) => values.push(value),
            None => self.done = Some(value),
        }
    }

    fn end(&mut self) {
        match self.open.pop() {
            Some(Frame::Document(document, _)) => self.put(Bson::Document(document)),
            Some(Frame::Array(values)) => self.put(Bson::Array(values)),
            None => {}
        }
    }
}

impl Visit for Builder {
    fn value(&mut self, value: ValueRef<'_>) {
        // A value that the source did not send is left out: null would be another value.
        if value != ValueRef::Unchanged {
            self.put(bson(&value));
        }
    }

    fn begin_document(&mut self) {
        self.open.push(Frame::Document(Document::new(), String::new()));
    }

    fn key(&mut self, name: &str) {
        if let Some(Frame::Document(_, key)) = self.open.last_mut() {
            name.clone_into(key);
        }
    }

    fn end_document(&mut self) {
        self.end();
    }

    fn begin_array(&mut self) {
        self.open.push(Frame::Array(Vec::new()));
    }

    fn end_array(&mut self) {
        self.end();
    }
}

/// A single value, as MongoDB has it.
fn bson(value: &ValueRef<'_>) -> Bson {
    match value {
        ValueRef::Bool(flag) => Bson::Boolean(*flag),
        ValueRef::Int32(number) => Bson::Int32(*number),
        ValueRef::Int64(number) => Bson::Int64(*number),
        ValueRef::Double(number) => Bson::Double(*number),
        ValueRef::Decimal(digits) => {
            digits.parse::<Decimal128>().map_or_else(|_| Bson::String(digits.to_string()), Bson::Decimal128)
        }
        ValueRef::Str(text) => Bson::String(text.to_string()),
        ValueRef::Json(text) => json(text),
        ValueRef::Binary(subtype, bytes) => {
            Bson::Binary(Binary { subtype: BinarySubtype::from(*subtype), bytes: bytes.to_vec() })
        }
        ValueRef::ObjectId(bytes) => Bson::ObjectId(ObjectId::from_bytes(*bytes)),
        ValueRef::DateTime(millis) => Bson::DateTime(DateTime::from_millis(*millis)),
        ValueRef::Timestamp(time, increment) => Bson::Timestamp(Timestamp { time: *time, increment: *increment }),
        ValueRef::Regex(pattern, options) => regex(pattern, options),
        _ => Bson::Null,
    }
}

/// So many digits a `double` holds, whatever they are.
const DIGITS_OF_DOUBLE: usize = 15;

/// JSON as a value: numbers as such, with all their digits, and everything else as its text.
fn json(text: &str) -> Bson {
    let as_text = || Bson::String(text.to_owned());
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && digits <= DIGITS_OF_DOUBLE => Bson::Double(number),
        Ok(_) => text.parse::<Decimal128>().map_or_else(|_| as_text(), Bson::Decimal128),
        Err(_) => as_text(),
    }
}

fn regex(pattern: &str, options: &str) -> Bson {
    match (CString::try_from(pattern), CString::try_from(options)) {
        (Ok(pattern), Ok(options)) => Bson::RegularExpression(Regex { pattern, options }),
        _ => Bson::String(pattern.to_owned()),
    }
}

/// Everything that a change's body tells.
pub(super) fn body(change: &Change) -> Result<Bson> {
    let mut builder = Builder::default();
    if !change.body().is_empty() {
        change.batch().payload().walk(change.body(), &mut builder)?;
    }
    Ok(builder.done.unwrap_or(Bson::Null))
}

/// What was changed, as it is since the change. `None` when the body does not tell it.
pub(super) fn after(change: &Change) -> Result<Option<Bson>> {
    image(change, Image::After)
}

/// An image of a change. `None` when the body does not tell it.
pub(super) fn image(change: &Change, image: Image) -> Result<Option<Bson>> {
    let mut builder = Builder::default();
    let told = change.batch().payload().image(change.body(), change.operation(), image, &mut builder)?;
    Ok(told.then(|| builder.done.unwrap_or(Bson::Null)))
}

/// A field of a change whose body is a whole event.
pub(super) fn field(change: &Change, name: &str) -> Result<Option<Bson>> {
    let payload = change.batch().payload();
    let mut builder = Builder::default();
    let told = payload.is_whole_event() && payload.walk_field(change.body(), name, &mut builder)?;
    Ok(if told { builder.done } else { None })
}

/// The `_id` under which a change's document is kept in a mirror: the source's own where an event names it, else the
/// canonical key.
pub(super) fn mirrored_id(change: &Change, key: &[u8]) -> Result<Bson> {
    if let Some(Bson::Document(mut key)) = field(change, "documentKey")?
        && let Some(id) = key.remove("_id")
    {
        return Ok(id);
    }
    Ok(Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: key.to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_json_keeps_its_digits_and_other_json_is_text() {
        assert_eq!(json("1.50"), Bson::Double(1.5));
        assert_eq!(json("1e5"), Bson::Double(100_000.0));
        for long in ["12345678901234567890.5", "0.12345678901234567890"] {
            assert_eq!(json(long), Bson::Decimal128(long.parse().expect("34 digits fit")));
        }
        assert_eq!(json("{\"a\": 1}"), Bson::String("{\"a\": 1}".to_owned()));
    }
}
