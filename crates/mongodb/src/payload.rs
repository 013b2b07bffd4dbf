//! Events are raw BSON until someone looks.

mod key;
pub(crate) mod scan;

use std::borrow::Cow;

use mongodb::bson::raw::RawElement;
use mongodb::bson::{RawArray, RawBson, RawBsonRef, RawDocument};
use watchkeeper_core::payload::TEXT_NOT_UTF8;
use watchkeeper_core::{Error, Image, Operation, Payload, Result, ValueRef, Visit};

pub(crate) use key::Decimal;
pub use key::canonical_key;
use scan::{Field, Fields};

use crate::source::FullDocument;
use crate::{Shown, View};

/// What an event has by itself; everything else was added by a pipeline.
pub(crate) const OF_EVENTS: [&str; 18] = [
    "_id",
    "operationType",
    "clusterTime",
    "wallTime",
    "fullDocument",
    "fullDocumentBeforeChange",
    "ns",
    "nsType",
    "to",
    "documentKey",
    "updateDescription",
    "operationDescription",
    "txnNumber",
    "lsid",
    "collectionUUID",
    "splitEvent",
    "stateBeforeChange",
    "degraded",
];

/// Bodies that are whole events of a change stream, as raw BSON.
#[derive(Debug, Clone, Copy, Default)]
pub struct BsonPayload {
    looked_up: bool,
}

impl BsonPayload {
    /// Of events whose documents are looked up when they are read. A document that is null has then been deleted since, and
    /// the event that tells so follows. In other events null says only that there is no image: the document may live on.
    pub fn looked_up() -> Self {
        Self { looked_up: true }
    }

    /// Of the events of a stream with these settings. Where its pipeline may have made the null, that says nothing of the document.
    pub(crate) fn showing(view: &View) -> Self {
        let keeps_documents = FullDocument::behind(&view.pipeline) == FullDocument::Kept;
        Self { looked_up: view.full_document == Shown::UpdateLookup && keeps_documents }
    }
}

/// The field of an event in which this image lies, if it has one. An image that was not to be had is null.
pub(crate) fn image_in(event: &[u8], operation: Operation, image: Image) -> Result<Option<Field<'_>>> {
    let name: &[u8] = match image {
        _ if !operation.has_row() => return Ok(None),
        Image::Before => b"fullDocumentBeforeChange",
        Image::After => b"fullDocument",
        Image::Difference => b"updateDescription",
        // An event has no field for any other image.
        _ => return Ok(None),
    };
    Fields::of(event)?.find(name)
}

impl Payload for BsonPayload {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        let mut value = RawBsonRef::Document(document(body)?);
        for name in path {
            let next = match value {
                RawBsonRef::Document(inner) => inner.get(name).map_err(damaged)?,
                RawBsonRef::Array(items) => match name.parse() {
                    Ok(at) => items.get(at).map_err(damaged)?,
                    Err(_) => None,
                },
                _ => None,
            };
            let Some(next) = next else { return Ok(None) };
            value = next;
        }
        scalar(value).map(Some)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        walk_document(document(body)?, visit)
    }

    fn is_whole_event(&self) -> bool {
        true
    }

    fn renamed_to(&self, body: &[u8]) -> Option<String> {
        let to = document(body).ok()?.get_document("to").ok()?;
        Some(format!("{}.{}", to.get_str("db").ok()?, to.get_str("coll").ok()?))
    }

    fn walk_field(&self, body: &[u8], key: &str, visit: &mut dyn Visit) -> Result<bool> {
        let event = document(body)?;
        let Some(element) = element(event, key)? else { return Ok(false) };
        walk_element(event, &element, visit)?;
        Ok(true)
    }

    fn image(&self, body: &[u8], operation: Operation, image: Image, visit: &mut dyn Visit) -> Result<bool> {
        if image == Image::Added {
            return walk_added(document(body)?, visit);
        }
        let Some(field) = image_in(body, operation, image)? else { return Ok(false) };
        if let Some(row) = field.document() {
            walk_document(document(row)?, visit)?;
            return Ok(true);
        }
        // Only the document beside an update is looked up: that of every other change is told by the change itself.
        let is_looked_up = self.looked_up && operation == Operation::Update;
        let gone = is_looked_up && image == Image::After && field.is_null();
        if gone {
            visit.value(ValueRef::Null);
        }
        Ok(gone)
    }
}

pub(crate) fn document(body: &[u8]) -> Result<&RawDocument> {
    RawDocument::from_bytes(body).map_err(damaged)
}

pub(crate) fn damaged(native: mongodb::bson::error::Error) -> Error {
    Error::corrupt("an event is not BSON")
        .remedy("look at the document with the driver that wrote it, mend it, then resume the stream")
        .caused_by(native)
}

fn element<'a>(document: &'a RawDocument, key: &str) -> Result<Option<RawElement<'a>>> {
    for element in document.iter_elements() {
        let element = element.map_err(damaged)?;
        if element.key().as_str() == key {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// Visits, as one document, what a pipeline has added to an event.
fn walk_added(event: &RawDocument, visit: &mut dyn Visit) -> Result<bool> {
    let mut begun = false;
    for element in event.iter_elements() {
        let element = element.map_err(damaged)?;
        if OF_EVENTS.contains(&element.key().as_str()) {
            continue;
        }
        if !std::mem::replace(&mut begun, true) {
            visit.begin_document();
        }
        visit.key(element.key().as_str());
        walk_element(event, &element, visit)?;
    }
    if begun {
        visit.end_document();
    }
    Ok(begun)
}

fn walk_document(document: &RawDocument, visit: &mut dyn Visit) -> Result<()> {
    visit.begin_document();
    for element in document.iter_elements() {
        let element = element.map_err(damaged)?;
        visit.key(element.key().as_str());
        walk_element(document, &element, visit)?;
    }
    visit.end_document();
    Ok(())
}

fn walk_array(items: &RawArray, visit: &mut dyn Visit) -> Result<()> {
    visit.begin_array();
    let items = RawDocument::from_bytes(items.as_bytes()).map_err(damaged)?;
    for element in items.iter_elements() {
        walk_element(items, &element.map_err(damaged)?, visit)?;
    }
    visit.end_array();
    Ok(())
}

/// Visits an element of a document or an array, the bytes of which are those of `parent`.
fn walk_element(parent: &RawDocument, element: &RawElement<'_>, visit: &mut dyn Visit) -> Result<()> {
    match element.value() {
        Ok(value) => walk_value(value, visit),
        // Servers store text that is not UTF-8 when a driver sends it: that must not stop a stream, nor become another text.
        Err(_) => {
            let field = Fields::of(parent.as_bytes())?.find(element.key().as_str().as_bytes())?;
            if let Some(text) = field.and_then(|field| field.text()) {
                visit.value(ValueRef::Binary(TEXT_NOT_UTF8, Cow::Borrowed(text)));
                return Ok(());
            }
            let repaired: RawBson = element.value_utf8_lossy().map_err(damaged)?;
            walk_value(repaired.as_raw_bson_ref(), visit)
        }
    }
}

fn walk_value(value: RawBsonRef<'_>, visit: &mut dyn Visit) -> Result<()> {
    match value {
        RawBsonRef::Document(inner) => walk_document(inner, visit),
        RawBsonRef::Array(items) => walk_array(items, visit),
        other => {
            visit.value(scalar(other)?);
            Ok(())
        }
    }
}

fn scalar(value: RawBsonRef<'_>) -> Result<ValueRef<'_>> {
    Ok(match value {
        RawBsonRef::Null => ValueRef::Null,
        RawBsonRef::Boolean(truth) => ValueRef::Bool(truth),
        RawBsonRef::Int32(number) => ValueRef::Int32(number),
        RawBsonRef::Int64(number) => ValueRef::Int64(number),
        RawBsonRef::Double(number) => ValueRef::Double(number),
        RawBsonRef::Decimal128(number) => ValueRef::Decimal(Cow::Owned(number.to_string())),
        RawBsonRef::String(text) => ValueRef::Str(Cow::Borrowed(text)),
        RawBsonRef::Binary(binary) => ValueRef::Binary(binary.subtype.into(), Cow::Borrowed(binary.bytes)),
        RawBsonRef::ObjectId(id) => ValueRef::ObjectId(id.bytes()),
        RawBsonRef::DateTime(time) => ValueRef::DateTime(time.timestamp_millis()),
        RawBsonRef::Timestamp(at) => ValueRef::Timestamp(at.time, at.increment),
        RawBsonRef::RegularExpression(regex) => {
            ValueRef::Regex(Cow::Borrowed(regex.pattern.as_str()), Cow::Borrowed(regex.options.as_str()))
        }
        RawBsonRef::Document(_) => ValueRef::Document,
        RawBsonRef::Array(_) => ValueRef::Array,
        // Rare and mostly deprecated: the driver knows their extended JSON.
        rare => {
            let text = serde_json::to_string(&rare);
            ValueRef::Json(Cow::Owned(text.map_err(|error| Error::corrupt("a value has no JSON").caused_by(error))?))
        }
    })
}
