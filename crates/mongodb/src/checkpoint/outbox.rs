//! Ledgers on servers without transactions.
//!
//! A write carries its ledger into the checkpoint's own document, its *outbox*, so both are written in one step. From there
//! it is carried into the ledger's collection, by the writer at once; if that one died in between, by whoever writes or reads next. Carrying
//! the same outbox twice changes nothing.

use mongodb::bson::{Bson, Document, doc};
use watchkeeper_core::{CheckpointWrite, Cx, LeaseKey, LedgerEntry, Result};

use super::{COLLECTION, Checkpoints, Claimed, damaged, ledger, moved_by, next_of};
use crate::client::{Client, number_bson};

/// At most so many bytes of bodies: a document may have 16 MB. What is left out is read again at the source, as bodies above
/// 1 MiB are anyway.
const BODIES_BYTES_MAX: usize = 6_000_000;

impl Checkpoints {
    /// A write with its ledger in the outbox. Whether it was the next one.
    pub(super) async fn commit_with_outbox(&self, cx: &Cx, write: &CheckpointWrite) -> Result<bool> {
        let claimed = Claimed::load(cx, &self.client, &write.grant.key).await?;
        let Some(claimed) = claimed.filter(|claimed| claimed.is_by(&write.grant)) else { return Ok(false) };
        carry(cx, &self.client, &write.grant.key, claimed.outbox).await?;
        let outbox = pack(write, claimed.ledger)?;
        let mut moved = moved_by(write)?;
        moved.insert("outbox", outbox.clone());
        let entries = i64::try_from(write.ledger.len()).unwrap_or(i64::MAX);
        let update = doc! { "q": next_of(write), "u": { "$set": moved, "$inc": { "ledger": entries } } };
        let reply = self.client.write(cx, doc! { "update": COLLECTION, "updates": [update] }).await?;
        if reply.whole(&self.client)?.count() == 0 {
            return Ok(false);
        }
        // It is committed. Whoever comes next carries what is left here.
        let _ = carry(cx, &self.client, &write.grant.key, Some(outbox)).await;
        Ok(true)
    }

    /// Carries what was left in an outbox, so that the ledger tells all that is committed.
    pub(super) async fn carry_rest(&self, cx: &Cx, key: &LeaseKey) -> Result<()> {
        let claimed = Claimed::load(cx, &self.client, key).await?;
        carry(cx, &self.client, key, claimed.and_then(|claimed| claimed.outbox)).await
    }
}

/// The ledger of a write, whose newest number was `last` before.
fn pack(write: &CheckpointWrite, last: u64) -> Result<Document> {
    let key = &write.grant.key;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for (number, entry) in (last + 1..).zip(&write.ledger) {
        bytes += body_of(entry);
        let entry = if bytes > BODIES_BYTES_MAX { without_body(entry) } else { entry.clone() };
        entries.push(Bson::from(ledger::document(key, number, &entry)?));
    }
    let settled = write.resolve.iter().map(|(number, resolution)| ledger::settle(key, *number, *resolution));
    let settled = settled.map(|statement| statement.map(Bson::from)).collect::<Result<Vec<_>>>()?;
    let (tenure, seq) = (write.grant.tenure.to_string(), number_bson(write.seq));
    Ok(doc! { "of": { "tenure": tenure, "seq": seq }, "entries": entries, "settled": settled })
}

fn body_of(entry: &LedgerEntry) -> usize {
    entry.change.as_ref().and_then(|change| change.body.as_ref()).map_or(0, |body| body.len())
}

fn without_body(entry: &LedgerEntry) -> LedgerEntry {
    let mut entry = entry.clone();
    entry.change.iter_mut().for_each(|change| change.body = None);
    entry
}

/// Writes an outbox into the ledger and empties it. Entries come before what became of them.
async fn carry(cx: &Cx, client: &Client, key: &LeaseKey, outbox: Option<Document>) -> Result<()> {
    let Some(outbox) = outbox else { return Ok(()) };
    let part = |name: &str| outbox.get_array(name).map_err(|_| damaged(client));
    let mut statements = Vec::new();
    for entry in part("entries")?.iter().filter_map(Bson::as_document) {
        let mut rest = entry.clone();
        let id = rest.remove("_id").ok_or_else(|| damaged(client))?;
        // What is there already may have been settled since: it stays as it is.
        statements.push(doc! { "q": { "_id": id }, "u": { "$setOnInsert": rest }, "upsert": true });
    }
    statements.extend(part("settled")?.iter().filter_map(Bson::as_document).cloned());
    if !statements.is_empty() {
        client.write(cx, doc! { "update": ledger::COLLECTION, "updates": statements }).await?.whole(client)?;
    }
    let of = outbox.get_document("of").map_err(|_| damaged(client))?;
    let own = doc! { "_id": key.as_str(), "outbox.of": of };
    let empty = doc! { "q": own, "u": { "$unset": { "outbox": "" } } };
    client.write(cx, doc! { "update": COLLECTION, "updates": [empty] }).await?.whole(client).map(drop)
}
