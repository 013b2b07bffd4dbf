//! The collections that Watchkeeper keeps, and the identity of their database.

use mongodb::bson::{Bson, Document, doc};
use uuid::Uuid;
use watchkeeper_core::{Cx, Entropy, Error, Result, StoreIdentity};

use super::{Client, Reply, number};
use crate::error::translate_code;

/// Holds one document: the identity and the version of the collections.
pub(super) const META: &str = "watchkeeper_meta";

/// All collections that Watchkeeper may keep in a database.
pub(crate) const STORED_IN: [&str; 8] = [
    "watchkeeper_meta",
    "watchkeeper_leases",
    "watchkeeper_pulses",
    "watchkeeper_checkpoints",
    "watchkeeper_ledger",
    "watchkeeper_records",
    "watchkeeper_logs",
    "watchkeeper_log_heads",
];

/// The version of the collections that this build reads and writes.
const VERSION: u64 = 1;

/// The server's code for a collection that is there already.
const EXISTS: i32 = 48;

/// The code of a key that is there already.
pub(crate) const DUPLICATE: i32 = 11000;

/// Makes the collections that are missing, and tells the identity of their database.
///
/// Collections are made beforehand, since making one is the one thing that a transaction may have to wait for.
pub(crate) async fn ensure(cx: &Cx, client: &Client, collections: &[&str]) -> Result<StoreIdentity> {
    for collection in collections {
        create(cx, client, doc! { "create": *collection }).await?;
    }
    let fresh = Entropy::from_system().uuid().to_string();
    let update = doc! { "$setOnInsert": { "uuid": fresh, "version": number_bson(VERSION) } };
    let ask = doc! {
        "findAndModify": META, "query": { "_id": "identity" }, "update": update, "upsert": true, "new": true,
    };
    let reply = match client.write(cx, ask.clone()).await {
        // Two made it at once; now it is there.
        Err(error) if is_code(&error, DUPLICATE) => client.write(cx, ask).await?,
        answer => answer?,
    };
    identity(client, &reply)
}

fn identity(client: &Client, reply: &Reply) -> Result<StoreIdentity> {
    let place = client.place();
    let damaged = || Error::corrupt(format!("{place}: the identity of the database is damaged"));
    let stored = reply.value().ok_or_else(damaged)?;
    let version = number(stored.get("version")).ok_or_else(damaged)?;
    if version > VERSION {
        let cause = format!("{place}: the collections are of version {version}, this build knows {VERSION}");
        return Err(Error::config(cause).remedy("use a newer build of Watchkeeper"));
    }
    let uuid = stored.get_str("uuid").ok().and_then(|text| Uuid::parse_str(text).ok());
    uuid.map(StoreIdentity)
        .ok_or_else(|| damaged().remedy("restore it from a backup; collections watchkeeper_* are not to be edited"))
}

/// Whether a collection is there.
pub(crate) async fn is_there(cx: &Cx, client: &Client, name: &str) -> Result<bool> {
    let found = client.read(cx, doc! { "listCollections": 1, "nameOnly": true, "filter": { "name": name } }).await?;
    let there = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    Ok(there.is_ok_and(|batch| !batch.is_empty()))
}

/// Makes a collection, unless it is there.
pub(crate) async fn create(cx: &Cx, client: &Client, command: Document) -> Result<()> {
    if is_there(cx, client, command.get_str("create").unwrap_or_default()).await? {
        return Ok(());
    }
    match client.write(cx, command).await {
        Err(error) if is_code(&error, EXISTS) => Ok(()),
        Err(error) => Err(error),
        Ok(reply) => match reply.errors().next() {
            Some((_, code, said)) => Err(translate_code(code, &said, None, client.place())),
            None => Ok(()),
        },
    }
}

/// Whether the server said this code.
pub(crate) fn is_code(error: &Error, code: i32) -> bool {
    error.native().and_then(crate::error::code) == Some(code)
}

/// A number as it is stored. Epochs and revisions stay far below the largest.
pub(crate) fn number_bson(number: u64) -> Bson {
    Bson::Int64(i64::try_from(number).unwrap_or(i64::MAX))
}
