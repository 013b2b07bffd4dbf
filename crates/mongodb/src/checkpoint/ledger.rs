//! What was passed over, numbered by key.

use mongodb::bson::{Bson, Document, doc};
use watchkeeper_core::{Cx, Grant, LeaseKey, LedgerEntry, LedgerQuery, LedgerRecord, Resolution, Result};

use super::{binary, damaged, read, stored};
use crate::client::{Client, number, number_bson};

pub(crate) const COLLECTION: &str = "watchkeeper_ledger";

/// Key and number together, so that the entries of a key lie together in order.
fn id(key: &LeaseKey, number: impl Into<Bson>) -> Document {
    doc! { "key": key.as_str(), "number": number.into() }
}

/// An entry as it is stored.
pub(super) fn document(key: &LeaseKey, number: u64, entry: &LedgerEntry) -> Result<Document> {
    let mut entry = entry.clone();
    // Bodies stand beside the entry, as plain bytes.
    let body = entry.change.as_mut().and_then(|change| change.body.take());
    let mut document = doc! { "_id": id(key, number_bson(number)), "entry": stored(&entry)? };
    if let Some(body) = body {
        document.insert("body", binary(&body));
    }
    Ok(document)
}

/// The statement that settles an entry.
pub(super) fn settle(key: &LeaseKey, number: u64, resolution: Resolution) -> Result<Document> {
    let word = mongodb::bson::serialize_to_bson(&resolution)
        .map_err(|error| watchkeeper_core::Error::internal("a resolution cannot be stored").caused_by(error))?;
    Ok(doc! { "q": { "_id": id(key, number_bson(number)) }, "u": { "$set": { "resolution": word } } })
}

/// Lets a document that was just made by `grant` go on with the numbers that its key's ledger has: the one before may have been
/// removed, and its entries were not.
pub(super) async fn continue_numbers(cx: &Cx, client: &Client, grant: &Grant) -> Result<()> {
    let range = doc! { "$gt": id(&grant.key, Bson::MinKey), "$lt": id(&grant.key, Bson::MaxKey) };
    let find = doc! { "find": COLLECTION, "filter": { "_id": range }, "sort": { "_id": -1 }, "limit": 1 };
    let newest = client.rows(cx, find).await?.pop();
    let newest =
        newest.as_ref().and_then(|entry| entry.get_document("_id").ok()).and_then(|id| number(id.get("number")));
    let Some(newest) = newest else { return Ok(()) };
    let own = doc! {
        "_id": grant.key.as_str(), "epoch": number_bson(grant.epoch.0), "tenure": grant.tenure.to_string(),
    };
    let update = doc! { "q": own, "u": { "$max": { "ledger": number_bson(newest) } } };
    client.write(cx, doc! { "update": super::COLLECTION, "updates": [update] }).await?.whole(client).map(drop)
}

pub(super) async fn find(cx: &Cx, client: &Client, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
    if query.limit == 0 {
        return Ok(Vec::new());
    }
    let range = doc! { "$gt": id(key, number_bson(query.after)), "$lt": id(key, Bson::MaxKey) };
    let mut filter = doc! { "_id": range };
    if query.open_only {
        filter.insert("resolution", Bson::Null);
    }
    let limit = number_bson(query.limit as u64);
    let command = doc! { "find": COLLECTION, "filter": filter, "sort": { "_id": 1 }, "limit": limit };
    client.rows(cx, command).await?.into_iter().map(|document| record(client, document)).collect()
}

fn record(client: &Client, mut document: Document) -> Result<LedgerRecord> {
    let number = document.get_document("_id").ok().and_then(|id| number(id.get("number")));
    let number = number.ok_or_else(|| damaged(client))?;
    let Some(Bson::Document(entry)) = document.remove("entry") else { return Err(damaged(client)) };
    let mut entry: LedgerEntry = read(client, entry)?;
    if let (Some(change), Some(Bson::Binary(body))) = (&mut entry.change, document.remove("body")) {
        change.body = Some(body.bytes.into());
    }
    let resolution = document.remove("resolution").map(mongodb::bson::deserialize_from_bson::<Resolution>);
    let resolution = resolution.transpose().map_err(|error| damaged(client).caused_by(error))?;
    Ok(LedgerRecord::new(number, entry, resolution))
}
