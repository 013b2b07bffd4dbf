//! A quick look at raw BSON: the fields of one document in their order, without a look inside of their values.
//!
//! Every event is looked at once, and most of its fields are not asked for. The driver's own iterator makes a value of each
//! of them, which costs more than all else that a change goes through here.

use watchkeeper_core::{Error, Result};

/// An array, as BSON numbers the types.
pub(crate) const ARRAY: u8 = 0x04;
const TEXT: u8 = 0x02;
pub(crate) const DOCUMENT: u8 = 0x03;
const BINARY: u8 = 0x05;
const DATE_TIME: u8 = 0x09;
const NULL: u8 = 0x0a;
const SCOPED_CODE: u8 = 0x0f;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// One field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    /// The number of its type.
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
    /// The bytes of its value, as its type lays them out.
    pub(crate) value: &'a [u8],
}

impl<'a> Field<'a> {
    /// The bytes of a text, which need not be UTF-8: servers store what drivers send.
    pub(crate) fn text(&self) -> Option<&'a [u8]> {
        match self.value {
            [_, _, _, _, text @ .., 0] if self.kind == TEXT => Some(text),
            _ => None,
        }
    }

    /// The document, array or scope within, as bytes of fields.
    pub(crate) fn inner(&self) -> Option<&'a [u8]> {
        match self.kind {
            DOCUMENT | ARRAY => Some(self.value),
            SCOPED_CODE => {
                // The length of all of it comes first, then that of the code.
                let (length, rest) = self.value.get(4..)?.split_first_chunk()?;
                rest.get(u32::from_le_bytes(*length) as usize..)
            }
            _ => None,
        }
    }

    /// Whether it is nothing.
    pub(crate) fn is_null(&self) -> bool {
        self.kind == NULL
    }

    /// The bytes of a document within.
    pub(crate) fn document(&self) -> Option<&'a [u8]> {
        (self.kind == DOCUMENT).then_some(self.value)
    }

    /// The content of a binary value.
    pub(crate) fn binary(&self) -> Option<&'a [u8]> {
        match self.value {
            [_, _, _, _, _, content @ ..] if self.kind == BINARY => Some(content),
            _ => None,
        }
    }

    /// A whole number, of whichever of the two types there are for them.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self.kind {
            INT32 => self.value.try_into().ok().map(i32::from_le_bytes).map(i64::from),
            INT64 => self.value.try_into().ok().map(i64::from_le_bytes),
            _ => None,
        }
    }

    /// The milliseconds of a time.
    pub(crate) fn millis(&self) -> Option<i64> {
        (self.kind == DATE_TIME).then(|| self.value.try_into().ok().map(i64::from_le_bytes))?
    }
}

/// The fields of a document, from the first to the last, or to the first that is damaged.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of the document (or the items of the array) that these bytes are.
    ///
    /// # Errors
    /// `Corrupt` when they are none.
    pub(crate) fn of(document: &'a [u8]) -> Result<Self> {
        match document.split_first_chunk() {
            Some((length, [fields @ .., 0])) if u32::from_le_bytes(*length) as usize == document.len() => {
                Ok(Self(fields))
            }
            _ => Err(damaged()),
        }
    }

    /// The field of this name, if there is one.
    pub(crate) fn find(mut self, name: &[u8]) -> Result<Option<Field<'a>>> {
        self.find_map(|field| field.map(|field| (field.name == name).then_some(field)).transpose()).transpose()
    }

    fn take(&mut self, kind: u8, rest: &'a [u8]) -> Option<Field<'a>> {
        let end = rest.iter().position(|byte| *byte == 0)?;
        let (name, rest) = (&rest[..end], &rest[end + 1..]);
        let (value, rest) = rest.split_at_checked(length(kind, rest)?)?;
        self.0 = rest;
        Some(Field { kind, name, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.0.split_first()?;
        Some(self.take(*kind, rest).ok_or_else(|| {
            // Behind it nothing can be found any more.
            self.0 = &[];
            damaged()
        }))
    }
}

/// How many bytes the value of this type has that `rest` begins with.
fn length(kind: u8, rest: &[u8]) -> Option<usize> {
    let stated = || rest.first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
    let beyond = |more: usize| stated().map(|length| length.saturating_add(more));
    match kind {
        0x01 | DATE_TIME | 0x11 | INT64 => Some(8),
        TEXT | 0x0d | 0x0e => beyond(4),
        // These count their own length.
        DOCUMENT | ARRAY | SCOPED_CODE => stated(),
        BINARY => beyond(5),
        0x06 | NULL | 0x7f | 0xff => Some(0),
        0x07 => Some(12),
        0x08 => Some(1),
        // Two texts, each with a zero at its end.
        0x0b => rest.iter().enumerate().filter(|(_, byte)| **byte == 0).nth(1).map(|(at, _)| at + 1),
        0x0c => beyond(16),
        INT32 => Some(4),
        0x13 => Some(16),
        _ => None,
    }
}

fn damaged() -> Error {
    Error::corrupt("an event is not BSON")
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;
    use mongodb::bson::spec::BinarySubtype;
    use mongodb::bson::{
        Binary, Bson, DateTime, DbPointer, JavaScriptCodeWithScope, RawDocumentBuf, Regex, Timestamp, doc,
    };

    use super::*;

    /// A field of every type that there is, and something behind each.
    fn everything() -> RawDocumentBuf {
        let scope = doc! { "x": 1 };
        let values = [
            Bson::Double(1.5),
            Bson::String("größer".to_owned()),
            Bson::Document(doc! { "a": { "b": 1 } }),
            Bson::Array(vec![Bson::Int32(1), Bson::Null]),
            Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3] }),
            Bson::Undefined,
            Bson::ObjectId(ObjectId::from_bytes([7; 12])),
            Bson::Boolean(true),
            Bson::DateTime(DateTime::from_millis(1_700_000_000_123)),
            Bson::Null,
            Bson::RegularExpression(Regex {
                pattern: "^a".try_into().expect("no zero"),
                options: "i".try_into().expect("no zero"),
            }),
            Bson::DbPointer(pointer()),
            Bson::JavaScriptCode("f()".to_owned()),
            Bson::Symbol("s".to_owned()),
            Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code: "g()".to_owned(), scope }),
            Bson::Int32(-5),
            Bson::Timestamp(Timestamp { time: 1, increment: 2 }),
            Bson::Int64(1 << 40),
            Bson::Decimal128("1.25".parse().expect("a number")),
            Bson::MinKey,
            Bson::MaxKey,
        ];
        let named = values.into_iter().enumerate().map(|(at, value)| (format!("field{at}"), value));
        RawDocumentBuf::try_from(&named.collect::<mongodb::bson::Document>()).expect("a document")
    }

    /// It has no constructor.
    fn pointer() -> DbPointer {
        let json =
            serde_json::json!({ "$dbPointer": { "$ref": "db.c", "$id": { "$oid": "070707070707070707070707" } } });
        match serde_json::from_value(json) {
            Ok(Bson::DbPointer(pointer)) => pointer,
            other => panic!("{other:?} is no pointer"),
        }
    }

    #[test]
    fn fields_of_every_type_are_those_that_the_driver_finds() {
        let document = everything();
        let found: Vec<Field<'_>> =
            Fields::of(document.as_bytes()).and_then(Iterator::collect).expect("it is not damaged");
        let expected: Vec<_> = document.iter_elements().map(|element| element.expect("it is not damaged")).collect();
        assert_eq!(found.len(), 21);
        assert_eq!(found.len(), expected.len());
        for (field, element) in found.iter().zip(expected) {
            assert_eq!(field.name, element.key().as_str().as_bytes());
            assert_eq!(field.kind, element.element_type() as u8, "{:?}", element.key());
            assert_eq!(field.value.len(), element.size(), "{:?}", element.key());
        }
    }

    #[test]
    fn values_are_read_as_what_they_are_only() {
        let document = everything();
        let of = |name: &str| {
            let found = Fields::of(document.as_bytes()).and_then(|fields| fields.find(name.as_bytes()));
            found.expect("it is not damaged").expect("it is there")
        };
        assert_eq!(of("field1").text(), Some("größer".as_bytes()));
        assert_eq!(of("field4").binary(), Some(&[1, 2, 3][..]));
        assert_eq!(of("field8").millis(), Some(1_700_000_000_123));
        assert_eq!(of("field15").integer(), Some(-5));
        assert_eq!(of("field17").integer(), Some(1 << 40));
        let inner = of("field2").document().expect("a document");
        let inner = Fields::of(inner).and_then(|fields| fields.find(b"a")).expect("it is not damaged");
        assert!(inner.is_some_and(|field| field.document().is_some()));
        // These have eight bytes, too.
        assert_eq!((of("field8").integer(), of("field16").integer(), of("field16").millis()), (None, None, None));
        assert_eq!((of("field15").text(), of("field15").document(), of("field1").integer()), (None, None, None));
        let missing = Fields::of(document.as_bytes()).and_then(|fields| fields.find(b"field"));
        assert_eq!(missing.expect("it is not damaged"), None);
    }

    #[test]
    fn damaged_bytes_are_refused_wherever_they_end() {
        let document = everything();
        let bytes = document.as_bytes();
        for end in 0..bytes.len() {
            assert!(Fields::of(&bytes[..end]).is_err(), "{end} bytes are no document");
            // As long as it says, but cut off inside.
            let mut cut = bytes[..end].to_vec();
            cut.push(0);
            let length = u32::try_from(cut.len()).expect("it is small");
            if let Some(stated) = cut.first_chunk_mut() {
                *stated = length.to_le_bytes();
            }
            // Nothing is read from beyond its end, and it comes to one.
            let found = Fields::of(&cut).map_or(0, |fields| fields.take_while(Result::is_ok).count());
            assert!(found <= 21, "{found} fields in {end} bytes");
        }
        let unknown = [8, 0, 0, 0, 0x20, b'a', 0, 0];
        let mut fields = Fields::of(&unknown).expect("its length is right");
        assert!(fields.next().is_some_and(|field| field.is_err()));
        assert!(fields.next().is_none(), "nothing is found behind what is damaged");
    }
}
