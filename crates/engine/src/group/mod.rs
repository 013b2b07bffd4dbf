//! What the instances of a group tell each other, on top of [`Records`].
//!
//! Nothing here is a lock and nothing here fences: a record may be stale the moment it has been read.
//! Who runs a stream is decided by its lease, who may write by its checkpoint. Records are for what
//! is agreed on slowly (who is there, what people want) and for what people look at afterwards.
//!
//! Every document is JSON with a version `v`. Fields that a reader does not know are left alone, so
//! that instances of different versions can share a group while it is being upgraded.

pub mod agent;
pub mod control;
pub mod election;
pub mod journal;
pub mod poison;
pub mod registry;
pub mod report;
pub mod slots;
pub mod store_binding;
pub mod view;

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use watchkeeper_core::{Cx, Error, PutOutcome, Record, Records, Result};

/// How often a document is read again because someone else wrote in between. More than a group has
/// instances that write one document at the same moment.
pub(crate) const ATTEMPTS: usize = 16;

/// The version of the documents that this program writes.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    #[serde(flatten)]
    document: &'a T,
}

#[derive(Deserialize)]
struct Stored<T> {
    /// People who write a document by hand may leave it out.
    #[serde(default, rename = "v")]
    _v: u32,
    #[serde(flatten)]
    document: T,
}

/// The bytes of a document.
pub(crate) fn encode<T: Serialize>(name: &str, document: &T) -> Result<Bytes> {
    let bytes = serde_json::to_vec(&Written { v: VERSION, document });
    bytes.map(Bytes::from).map_err(|error| Error::internal(format!("{name} cannot be written")).caused_by(error))
}

/// The document of a record.
pub(crate) fn decode<T: DeserializeOwned>(record: &Record) -> Result<T> {
    let stored = serde_json::from_slice::<Stored<T>>(&record.bytes);
    stored.map(|stored| stored.document).map_err(|error| {
        Error::corrupt(format!("record {} cannot be read: {error}", record.name))
            .remedy("correct it by hand or delete it")
            .caused_by(error)
    })
}

/// Reads a document, changes it and writes it, again and again until nobody came in between. A
/// document that `change` leaves as it was is not written. `change` is also given how long ago the document was written.
pub(crate) async fn amend<T>(records: &dyn Records, cx: &Cx, name: &str, change: impl Fn(&mut T, Duration)) -> Result<T>
where
    T: Serialize + DeserializeOwned + Default + Clone + PartialEq,
{
    for _ in 0..ATTEMPTS {
        cx.check()?;
        let record = records.get(cx, name).await?;
        let before: T = record.as_ref().map(decode).transpose()?.unwrap_or_default();
        let mut document = before.clone();
        change(&mut document, record.as_ref().map_or(Duration::ZERO, |record| record.age));
        if document == before {
            return Ok(document);
        }
        let expected = record.map(|record| record.revision);
        if let PutOutcome::Done(_) = records.put_if(cx, name, expected, encode(name, &document)?).await? {
            return Ok(document);
        }
    }
    Err(Error::unavailable(format!("{name} was changed by others {ATTEMPTS} times in a row")))
}

/// Deletes a document whatever it says; the answer is what it said. That there is none is as good.
pub(crate) async fn remove(records: &dyn Records, cx: &Cx, name: &str) -> Result<Option<Record>> {
    for _ in 0..ATTEMPTS {
        cx.check()?;
        let Some(record) = records.get(cx, name).await? else { return Ok(None) };
        if let PutOutcome::Done(_) = records.delete_if(cx, name, record.revision).await? {
            return Ok(Some(record));
        }
    }
    Err(Error::unavailable(format!("{name} was changed by others {ATTEMPTS} times in a row")))
}
