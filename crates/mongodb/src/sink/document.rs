//! Documents of whatever a payload tells.
//!
//! What a change stream tells is BSON already: it is taken as it lies there, byte by byte. Everything else is put together of
//! the values that its payload names.
//!
//! A document is copied byte by byte, so that no value becomes another one. The `_id` of a copy is never the canonical
//! key of an event, which is another value than the document's own. Only the source's settings tell whether null next
//! to an update means *deleted since*; the payload (`BsonPayload`) carries that, and answers with a null image only
//! then.

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{
    Binary, Bson, DateTime, Decimal128, Document, RawBson, RawDocument, RawDocumentBuf, Regex, Timestamp,
    oid::ObjectId, raw::CString,
};
use watchkeeper_core::payload::{Image, ValueRef, Visit};
use watchkeeper_core::{Change, Error, Result};

use crate::payload::scan::{Field, Fields};
use crate::payload::{damaged, image_in};

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
        ValueRef::Decimal(digits) => decimal(digits),
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

/// So many digits a decimal holds.
const DIGITS_OF_DECIMAL128: usize = 34;

/// JSON as a value: numbers as such, with all their digits, and everything else as its text.
fn json(text: &str) -> Bson {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && fits_double(text) => Bson::Double(number),
        Ok(_) => decimal(text),
        Err(_) => Bson::String(text.to_owned()),
    }
}

/// A number with all its digits; as text if it has too many of them.
fn decimal(text: &str) -> Bson {
    let as_text = || Bson::String(text.to_owned());
    let significant = text.trim_start_matches(['-', '+', '0', '.']).bytes().filter(u8::is_ascii_digit).count();
    // Longer ones would be cut off at the zeros.
    if ends_with_zeros(text) && significant > DIGITS_OF_DECIMAL128 {
        return as_text();
    }
    text.parse::<Decimal128>().map_or_else(|_| as_text(), Bson::Decimal128)
}

/// Whether a `double` holds all digits of a number. It does not hold zeros at the end of a fraction: `1.10` would be `1.1`.
fn fits_double(number: &str) -> bool {
    number.bytes().filter(u8::is_ascii_digit).count() <= DIGITS_OF_DOUBLE && !ends_with_zeros(number)
}

/// Whether a number has a fraction that ends with a zero.
fn ends_with_zeros(number: &str) -> bool {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    mantissa.contains('.') && mantissa.ends_with('0')
}

fn regex(pattern: &str, options: &str) -> Bson {
    match (CString::try_from(pattern), CString::try_from(options)) {
        (Ok(pattern), Ok(options)) => Bson::RegularExpression(Regex { pattern, options }),
        _ => Bson::String(pattern.to_owned()),
    }
}

/// The body of a change that a change stream has told: whole events that are BSON are no other source's.
fn event(change: &Change) -> Option<&[u8]> {
    let is_event = change.batch().payload().is_whole_event() && Fields::of(change.body()).is_ok();
    is_event.then(|| change.body())
}

/// A document of bytes that lie in an event.
fn as_it_lies(bytes: &[u8]) -> Result<RawDocumentBuf> {
    RawDocumentBuf::from_bytes(bytes.to_vec()).map_err(damaged)
}

impl Builder {
    /// What was built, in the form in which it is sent.
    fn finish(self) -> Result<RawBson> {
        let unfit = |native| Error::config("a value does not fit into a document").caused_by(native);
        self.done.unwrap_or(Bson::Null).try_into().map_err(unfit)
    }
}

/// Everything that a change's body tells.
pub(super) fn body(change: &Change) -> Result<RawBson> {
    if let Some(event) = event(change) {
        return as_it_lies(event).map(RawBson::Document);
    }
    let mut builder = Builder::default();
    if !change.body().is_empty() {
        change.batch().payload().walk(change.body(), &mut builder)?;
    }
    builder.finish()
}

/// What was changed, as it is since the change; null when it is known to be no more. `None` when the body does not tell it.
pub(super) fn after(change: &Change) -> Result<Option<RawBson>> {
    image(change, Image::After)
}

/// An image of a change. `None` when the body does not tell it.
pub(super) fn image(change: &Change, image: Image) -> Result<Option<RawBson>> {
    if let Some(event) = event(change)
        && let Some(found) = image_in(event, change.operation(), image)?
        && let Some(document) = found.document()
    {
        return as_it_lies(document).map(RawBson::Document).map(Some);
    }
    let mut builder = Builder::default();
    let found = change.batch().payload().image(change.body(), change.operation(), image, &mut builder)?;
    found.then(|| builder.finish()).transpose()
}

/// A field of a change that a change stream has told.
pub(super) fn field(change: &Change, name: &str) -> Result<Option<RawBson>> {
    let Some(event) = event(change) else { return Ok(None) };
    value(crate::payload::document(event)?, name)
}

fn value(document: &RawDocument, name: &str) -> Result<Option<RawBson>> {
    Ok(document.get(name).map_err(damaged)?.map(Into::into))
}

/// The `_id` under which a change's document is kept: the source's own if that is a change stream, else the canonical key.
///
/// # Errors
/// `Config` when an event does not tell it. Its canonical key is no substitute, since that would be another document's `_id`.
pub(super) fn mirrored_id(change: &Change, key: &[u8]) -> Result<RawBson> {
    let Some(event) = event(change) else {
        return Ok(Binary { subtype: BinarySubtype::Generic, bytes: key.to_vec() }.into());
    };
    let image = |image| image_in(event, change.operation(), image);
    let key = Fields::of(event)?.find(b"documentKey")?;
    for found in [key, image(Image::After)?, image(Image::Before)?].into_iter().flatten() {
        if let Some(document) = found.document()
            && let Some(id) = value(crate::payload::document(document)?, "_id")?
        {
            return Ok(id);
        }
    }
    let cause = format!("this {} does not tell the _id of its document", change.operation().as_str());
    Err(Error::config(cause).remedy("keep documentKey in the pipeline of the source"))
}

/// A document of all fields of `first`, those of `middle` whose names neither of the others has, and all of `last`, each as it
/// lies there.
pub(super) fn joined(first: &RawDocument, middle: &RawDocument, last: &RawDocument) -> Result<RawDocumentBuf> {
    let ends: Vec<Field<'_>> =
        Fields::of(first.as_bytes())?.chain(Fields::of(last.as_bytes())?).collect::<Result<_>>()?;
    let mut bytes = vec![0; 4];
    let mut put = |field: Field<'_>| {
        bytes.push(field.kind);
        bytes.extend_from_slice(field.name);
        bytes.push(0);
        bytes.extend_from_slice(field.value);
    };
    Fields::of(first.as_bytes())?.try_for_each(|field| field.map(&mut put))?;
    for field in Fields::of(middle.as_bytes())? {
        let field = field?;
        if !ends.iter().any(|end| end.name == field.name) {
            put(field);
        }
    }
    Fields::of(last.as_bytes())?.try_for_each(|field| field.map(&mut put))?;
    bytes.push(0);
    let length =
        u32::try_from(bytes.len()).map_err(|error| Error::config("a document is too large").caused_by(error))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    RawDocumentBuf::from_bytes(bytes).map_err(damaged)
}

/// A document in the form in which it is sent.
pub(super) fn raw(document: &Document) -> Result<RawDocumentBuf> {
    RawDocumentBuf::try_from(document).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn fields_are_joined_as_they_lie_there() {
        let part = |document: Document| raw(&document).expect("a document");
        // Text that is not UTF-8: servers store what drivers send.
        let mut middle = part(doc! { "_id": 1, "text": "ZZ", "mark": 2, "n": 1.5 }).into_bytes();
        let at = middle.windows(2).position(|two| two == b"ZZ").expect("it is there");
        middle[at..at + 2].copy_from_slice(&[0xff, 0xfe]);
        let middle = RawDocumentBuf::from_bytes(middle).expect("a document");
        let made = joined(&part(doc! { "_id": 7 }), &middle, &part(doc! { "mark": true })).expect("they fit");
        let fields: Vec<_> = Fields::of(made.as_bytes()).and_then(Iterator::collect).expect("a document");
        assert_eq!(fields.iter().map(|field| field.name).collect::<Vec<_>>(), [&b"_id"[..], b"text", b"n", b"mark"]);
        assert_eq!((fields[0].integer(), fields[1].text()), (Some(7), Some(&[0xff, 0xfe][..])));
        assert!(made.get_bool("mark").is_ok_and(|mark| mark));
        let nothing = RawDocumentBuf::new();
        assert_eq!(joined(&nothing, &middle, &nothing).expect("they fit"), middle);
    }

    #[test]
    fn a_number_of_json_keeps_its_digits_and_other_json_is_text() {
        for (short, double) in [("1.5", 1.5), ("1e5", 100_000.0), ("-0.05", -0.05), ("1.5e10", 1.5e10)] {
            assert_eq!(json(short), Bson::Double(double));
        }
        // A double holds neither more digits nor zeros at the end.
        for exact in ["12345678901234567890.5", "0.12345678901234567890", "1.50", "0.000", "100.0", "1.0e5"] {
            let decimal = json(exact);
            assert_eq!(decimal, Bson::Decimal128(exact.parse().expect("34 digits fit")));
        }
        let Bson::Decimal128(decimal) = json("-1.50") else { panic!("it keeps its zero") };
        assert_eq!(decimal.to_string(), "-1.50");
        // More digits than a decimal holds, also if the last ones are zeros.
        for long in ["1234567890123456789012345678901234.50", "1234567890123456789012345678901234500.00"] {
            assert_eq!(json(long), Bson::String(long.to_owned()));
        }
        assert_eq!(json("{\"a\": 1}"), Bson::String("{\"a\": 1}".to_owned()));
    }
}
