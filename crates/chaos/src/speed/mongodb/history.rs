//! What is read: inserts, and updates of what was inserted.

use watchkeeper_core::{Cx, Result};
use watchkeeper_mongodb::mongodb::bson::{Document, Timestamp, doc};
use watchkeeper_mongodb::mongodb::options::WriteConcern;
use watchkeeper_mongodb::{CallPurpose, Client, Config};

use crate::cluster::cx;

/// The collection.
pub(super) const EVENTS: &str = "events";

/// So many in one command.
const TOGETHER: u64 = 5_000;

/// A cluster time, which is passed to a process as one number.
pub(super) fn timestamp(number: u64) -> Timestamp {
    Timestamp { time: (number >> 32) as u32, increment: number as u32 }
}

/// Writes so many changes, a quarter of them updates; the time at which they begin.
pub(super) async fn write(url: &str, changes: u64) -> Result<u64> {
    let cx: Cx = cx();
    let client = Client::open(&cx, Config::new(url)?).await?;
    let said = |native| client.error(native, CallPurpose::Writing);
    let database = client.database(&cx).await?;
    database.create_collection(EVENTS).await.map_err(said)?;
    let reply = database.run_command(doc! { "ping": 1 }).await.map_err(said)?;
    let at = reply.get_timestamp("operationTime").unwrap_or(Timestamp { time: 0, increment: 0 });
    let events = database.collection::<Document>(EVENTS);
    let inserts = changes - changes / 4;
    let quickly = WriteConcern::nodes(1);
    for first in (0..inserts).step_by(TOGETHER as usize) {
        let documents = (first..inserts.min(first + TOGETHER)).map(document);
        events.insert_many(documents).write_concern(quickly.clone()).await.map_err(said)?;
    }
    for first in (0..changes / 4).step_by(TOGETHER as usize) {
        let updates: Vec<Document> = (first..(changes / 4).min(first + TOGETHER)).map(update).collect();
        database.run_command(doc! { "update": EVENTS, "updates": updates }).await.map_err(said)?;
    }
    // One tick later, since the creation itself is not told.
    Ok((u64::from(at.time) << 32) | u64::from(at.increment.saturating_add(1)))
}

fn document(number: u64) -> Document {
    let id = number.cast_signed();
    doc! {
        "_id": id,
        "group": id % 10,
        "customer": format!("c{:07}", number * 7919 % 1_000_003),
        "status": "new",
        "amount": number as f64 * 1.25,
        "at": id * 1_000,
        "tags": [format!("a{}", number % 50), format!("b{}", number % 7)],
        "address": { "city": format!("town{}", number % 999), "zip": format!("{:05}", number % 99_999) },
        "note": "Four weeks after the last order, the same again, please.".repeat(2),
    }
}

fn update(number: u64) -> Document {
    let set = doc! { "status": format!("s{}", number % 9), "amount": number as f64 * 2.5 };
    doc! { "q": { "_id": number.cast_signed() }, "u": { "$set": set, "$inc": { "version": 1 } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_as_large_as_is_said() {
        let bytes = watchkeeper_mongodb::mongodb::bson::serialize_to_vec(&document(123_456)).expect("it is a document");
        assert!((285..=305).contains(&bytes.len()), "{}", bytes.len());
    }
}
