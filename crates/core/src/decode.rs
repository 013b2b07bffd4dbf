//! Typed decoding of changes: any `serde::Deserialize` type from any source, by one mapping of values.
//!
//! | value at the source | decodes into |
//! |---|---|
//! | null | `None`, `()` |
//! | truth value | `bool` |
//! | whole number | every integer type that holds it, `f32`, `f64`, and text with its digits |
//! | floating point number | `f32`, `f64`, integers if it is whole, and text |
//! | decimal (`numeric`, `Decimal128`) | text with all of its digits, `f32`, `f64`, integers if it is whole |
//! | text, enums, intervals, ranges, addresses, UUIDs | text |
//! | date with time | text in RFC 3339; from MongoDB also an integer, the milliseconds since 1970 |
//! | bytes (`bytea`, `BLOB`, BSON binary) | `Vec<u8>` and byte buffers |
//! | MongoDB `ObjectId` | text, its 24 hexadecimal digits |
//! | MongoDB `Timestamp` | a struct or map with `t` and `i` |
//! | MongoDB regular expression | a struct or map with `pattern` and `options` |
//! | document, row, JSON object | a struct or map |
//! | array | a sequence or tuple |
//! | a large value that PostgreSQL did not send because it did not change | [`Unchangeable`]; every other type is an error |
//!
//! A type that takes whatever comes (`serde_json::Value`, a decimal type) is given a decimal as a number where a `double` holds all
//! of its digits, and as text otherwise: no digit is lost. Fields that a type does not name are ignored, as serde does.

mod build;
mod deserialize;
mod unchangeable;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

pub use deserialize::DecodeError;
pub use unchangeable::Unchangeable;

use crate::change::Change;
use crate::error::{Error, Result};
use crate::format::JsonWriter;
use crate::payload::Image;

use build::Builder;

/// One value of a payload, on its way into a type.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    /// The source did not send it, since it did not change.
    Unchanged,
    Bool(bool),
    Whole(i64),
    Double(f64),
    /// A number as its digits.
    Digits(String),
    Text(String),
    Bytes(Vec<u8>),
    /// Milliseconds since 1970.
    DateTime(i64),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    /// The fields of a row or document; `None` for anything else.
    fn fields(&self) -> Option<&[(String, Value)]> {
        match self {
            Self::Map(fields) => Some(fields),
            _ => None,
        }
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.fields()?.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// The fields that an update changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Update<T> {
    /// The new values of the changed fields. Fields that did not change are absent, so `T` is a map, or a struct whose fields
    /// are options. MongoDB names nested fields by their path (`address.city`).
    pub set: T,
    /// The fields that were removed.
    pub removed: Vec<String>,
}

impl Change {
    /// The row or document as it is since the change, decoded by the [mapping of this module](crate::decode).
    ///
    /// `None` when the change has no such image: deletes, and updates of MongoDB without `full_document`.
    ///
    /// ```
    /// use serde::Deserialize;
    /// use watchkeeper_core::{Change, Result};
    ///
    /// #[derive(Deserialize)]
    /// struct Order {
    ///     id: i64,
    ///     item: String,
    ///     /// A decimal with all of its digits.
    ///     price: Option<String>,
    /// }
    ///
    /// fn show(change: &Change) -> Result<()> {
    ///     if let Some(order) = change.after::<Order>()? {
    ///         println!("{}: {} for {:?}", order.id, order.item, order.price);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// `Corrupt`, naming the change and the field, when the image does not fit `T`. A handler that passes it on with `?` rejects the
    /// change: trying again would not help.
    pub fn after<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.image_as(Image::After)
    }

    /// The row or document as it was before the change.
    ///
    /// `None` when the source does not send it: see the page of each source for the setting that makes it do so.
    ///
    /// ```
    /// use serde::Deserialize;
    /// use watchkeeper_core::{Change, Operation, Result};
    ///
    /// #[derive(Deserialize)]
    /// struct Order {
    ///     item: String,
    /// }
    ///
    /// /// What was removed, where the source sends it.
    /// fn removed(change: &Change) -> Result<Option<String>> {
    ///     if change.operation() != Operation::Delete {
    ///         return Ok(None);
    ///     }
    ///     Ok(change.before::<Order>()?.map(|order| order.item))
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`after`](Self::after).
    pub fn before<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.image_as(Image::Before)
    }

    /// The fields that an update changed.
    ///
    /// From MongoDB it is the update description. From other sources it is the difference between the row before and after;
    /// `None` when the source sends only one of them, and for changes that are no updates.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    ///
    /// use watchkeeper_core::{Change, Result};
    ///
    /// fn show(change: &Change) -> Result<()> {
    ///     if let Some(update) = change.update::<BTreeMap<String, String>>()? {
    ///         for (field, value) in &update.set {
    ///             println!("{field} is now {value}");
    ///         }
    ///         for field in &update.removed {
    ///             println!("{field} was removed");
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`after`](Self::after).
    pub fn update<T: DeserializeOwned>(&self) -> Result<Option<Update<T>>> {
        if let Some(description) = self.image_value(Image::Difference)? {
            return self.described_update(&description).map(Some);
        }
        let (before, after) = (self.image_value(Image::Before)?, self.image_value(Image::After)?);
        let (Some(Value::Map(before)), Some(Value::Map(after))) = (before, after) else { return Ok(None) };
        let old: BTreeMap<_, _> = before.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let is_changed =
            |key: &String, value: &Value| *value != Value::Unchanged && old.get(key.as_str()) != Some(&value);
        let changed = after.iter().filter(|(key, value)| is_changed(key, value));
        let set = Value::Map(changed.cloned().collect());
        let is_there = |name: &str| after.iter().any(|(key, _)| key == name);
        let removed = before.iter().map(|(key, _)| key).filter(|key| !is_there(key)).cloned().collect();
        Ok(Some(Update { set: self.decode(set)?, removed }))
    }

    /// The payload as JSON text, readable whatever the source: what the format `native` shows of it.
    ///
    /// # Errors
    /// `Corrupt` when the payload cannot be read.
    pub fn json(&self) -> Result<String> {
        let mut text = Vec::new();
        if self.body().is_empty() {
            return Ok("null".to_owned());
        }
        self.batch().payload().walk(self.body(), &mut JsonWriter::new(&mut text))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn image_as<T: DeserializeOwned>(&self, image: Image) -> Result<Option<T>> {
        match self.image_value(image)? {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.decode(value).map(Some),
        }
    }

    fn image_value(&self, image: Image) -> Result<Option<Value>> {
        let mut builder = Builder::default();
        let has_image = self.batch().payload().image(self.body(), self.operation(), image, &mut builder)?;
        if !has_image {
            return Ok(None);
        }
        builder.finish().map(Some)
    }

    /// An update as MongoDB describes it.
    fn described_update<T: DeserializeOwned>(&self, description: &Value) -> Result<Update<T>> {
        let set = description.field("updatedFields").cloned().unwrap_or(Value::Map(Vec::new()));
        let removed = description.field("removedFields").cloned().unwrap_or(Value::List(Vec::new()));
        Ok(Update { set: self.decode(set)?, removed: self.decode(removed)? })
    }

    fn decode<T: DeserializeOwned>(&self, value: Value) -> Result<T> {
        T::deserialize(value).map_err(|error| {
            let wanted = std::any::type_name::<T>();
            Error::corrupt(format!("change {} of {} does not fit {wanted}: {error}", self.id(), self.namespace()))
                .remedy(error.remedy())
        })
    }
}
