//! Values that a source may leave out because they did not change.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The name by which a deserializer of this crate recognises [`Unchangeable`].
pub(super) const NAME: &str = "$watchkeeper::Unchangeable";

/// A field that PostgreSQL does not send when it is large and an update did not change it.
///
/// ```
/// use serde::Deserialize;
/// use watchkeeper_core::decode::Unchangeable;
///
/// #[derive(Deserialize)]
/// struct Article {
///     id: i64,
///     text: Unchangeable<Option<String>>,
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unchangeable<T> {
    /// It is what it was before; its value was not sent.
    Unchanged,
    /// Its value.
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unchangeable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = Unchangeable<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value that may be unchanged")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Unchangeable::Unchanged)
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                T::deserialize(deserializer).map(Unchangeable::Value)
            }
        }

        deserializer.deserialize_newtype_struct(NAME, Either(PhantomData))
    }
}
