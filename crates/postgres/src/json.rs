//! What is stored as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use watchkeeper_core::{Error, Result};

use crate::client::Client;

pub(crate) fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::internal("a value cannot be stored").caused_by(error))
}

pub(crate) fn read<T: DeserializeOwned>(client: &Client, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| damaged(client).caused_by(error))
}

/// The error of a row that this program did not write so.
pub(crate) fn damaged(client: &Client) -> Error {
    Error::corrupt(format!("{}: a row of schema {} cannot be read", client.place(), client.schema()))
        .remedy("look who else wrote there; restore the table from a backup")
}
