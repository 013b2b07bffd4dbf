//! A versioned copy in another database of the servers. Its oplog is the record of every write to it.

use watchkeeper_core::{Error, Result};
use watchkeeper_drill::Arrival;
use watchkeeper_mongodb::mongodb::bson::Document;
use watchkeeper_mongodb::mongodb::change_stream::event::ChangeStreamEvent;

pub(super) const COLLECTION: &str = "orders_copy";

/// The database of the copy of what is in the database `url`.
pub(super) fn url(url: &str) -> String {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    format!("{address}_copy?{options}")
}

/// What a change of the copy wrote, if it wrote a number.
pub(super) fn write(event: &ChangeStreamEvent<Document>) -> Result<Option<Arrival>> {
    let fields = event.full_document.as_ref().or_else(|| Some(&event.update_description.as_ref()?.updated_fields));
    let Some(number) = fields.and_then(|fields| fields.get_i64("number").ok()) else { return Ok(None) };
    let key = event.document_key.as_ref().and_then(|key| key.get_str("_id").ok());
    let key = key.ok_or_else(|| Error::corrupt("a document of the copy has no key"))?.to_owned();
    Ok(Some(Arrival { key, number: number.cast_unsigned(), epoch: 0 }))
}
