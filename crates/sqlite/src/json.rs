//! Values inside a column, as text that people can read.

use serde::Serialize;
use serde::de::DeserializeOwned;
use watchkeeper_core::Error;

use crate::error::Failure;

/// The text of a value.
pub(crate) fn text<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|error| Error::internal("a value cannot be written as JSON").caused_by(error).into())
}

/// The value of a text.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    read_bytes(text.as_bytes())
}

/// The value of a text that may have been damaged.
pub(crate) fn read_bytes<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| {
        Error::corrupt("a stored value is not what it should be")
            .remedy("restore the file from a backup; the tables watchkeeper_* are not to be edited")
            .caused_by(error)
            .into()
    })
}
