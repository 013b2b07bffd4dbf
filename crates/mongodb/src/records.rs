//! Small documents and logs.
//!
//! Revisions are drawn at random: they are only compared for equality, so no counter is needed.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{Cx, Entropy, Error, PutOutcome, Record, Records, Result, Revision};

use crate::client::{ChangeHints, Client, DUPLICATE, Reply, Topic, ensure, number, number_bson, publish};

pub(crate) const DOCUMENTS: &str = "watchkeeper_records";
const LOGS: &str = "watchkeeper_logs";
/// The newest number of every log.
const HEADS: &str = "watchkeeper_log_heads";

/// Records in MongoDB.
#[derive(Debug, Clone)]
pub struct RecordStore {
    client: Client,
    entropy: Arc<Entropy>,
    /// Started by the first who waits, and kept, so that waiting again costs nothing.
    hints: Arc<Mutex<Option<ChangeHints>>>,
}

impl RecordStore {
    /// The records in the client's database, whose collections are made where they are missing.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        ensure(cx, &client, &[DOCUMENTS, LOGS, HEADS]).await?;
        client.can_tail(cx).await?;
        Ok(Self { client, entropy: Arc::new(Entropy::from_system()), hints: Arc::default() })
    }

    /// A revision that was never used: revisions are compared for being equal, never for their order, so a number out
    /// of 2^62 needs no counter that all would have to write.
    fn fresh_revision(&self) -> u64 {
        self.entropy.next() >> 2
    }

    async fn find(&self, cx: &Cx, collection: &str, filter: Document, more: Document) -> Result<Vec<Record>> {
        let mut projection = doc! { "bytes": 1, "revision": 1, "at": 1 };
        let tells = self.client.has_clock(cx).await?;
        if tells {
            projection.insert("age_ms", doc! { "$subtract": ["$$NOW", "$at"] });
        }
        let mut command = doc! { "find": collection, "filter": filter, "projection": projection };
        command.extend(more);
        let mut found = self.client.rows(cx, command).await?;
        if !tells && !found.is_empty() {
            let now = self.time(cx).await?;
            for document in &mut found {
                let at = document.get_datetime("at").map_or(now, |at| at.timestamp_millis());
                document.insert("age_ms", (now - at).max(0));
            }
        }
        let record = |document: &Document| {
            let damaged = || Error::corrupt(format!("{}: a record is not what it should be", self.client.place()));
            read(document).ok_or_else(damaged)
        };
        found.iter().map(record).collect()
    }

    /// The clock of the server that writes, in milliseconds, where it cannot be asked together with what is read.
    async fn time(&self, cx: &Cx) -> Result<i64> {
        let hello = self.client.read(cx, doc! { "hello": 1 }).await?;
        let time = hello.get_datetime("localTime").map(|time| time.timestamp_millis());
        time.map_err(|_| {
            Error::config(format!("{}: the server does not tell its time", self.client.place()))
                .remedy("use a server of MongoDB 5.0 or newer")
        })
    }

    async fn write_one(&self, cx: &Cx, update: Document) -> Result<Reply> {
        self.client.write(cx, doc! { "update": DOCUMENTS, "updates": [update] }).await
    }

    fn kept_hints(&self) -> Option<ChangeHints> {
        let kept = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone().filter(|hints| !hints.has_ended())
    }

    async fn change_hints(&self, cx: &Cx) -> Result<ChangeHints> {
        if let Some(hints) = self.kept_hints() {
            return Ok(hints);
        }
        let hints = ChangeHints::start(cx, &self.client, Topic::Record).await?;
        *self.hints.lock().unwrap_or_else(PoisonError::into_inner) = Some(hints.clone());
        Ok(hints)
    }
}

fn read(document: &Document) -> Option<Record> {
    let (name, revision) = match document.get("_id")? {
        Bson::String(name) => (name.clone(), number(document.get("revision"))?),
        Bson::Document(id) => (id.get_str("log").ok()?.to_owned(), number(id.get("number"))?),
        _ => return None,
    };
    let Some(Bson::Binary(Binary { bytes, .. })) = document.get("bytes") else { return None };
    let age = std::time::Duration::from_millis(number(document.get("age_ms")).unwrap_or(0));
    Some(Record::new(name, Bytes::copy_from_slice(bytes), Revision(revision), age))
}

/// A writing, with the server's time.
fn writing(bytes: &Bytes, revision: u64) -> Document {
    let bytes = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() });
    doc! { "$set": { "bytes": bytes, "revision": number_bson(revision) }, "$currentDate": { "at": true } }
}

fn fits(name: &str, bytes: &Bytes) -> Result<()> {
    if bytes.len() <= RECORD_BYTES_MAX {
        return Ok(());
    }
    Err(Error::config(format!("record {name} has {} bytes, more than {RECORD_BYTES_MAX}", bytes.len())))
}

/// The smallest text above all that begin with `prefix`; `None` when there is none.
fn end_of(prefix: &str) -> Option<String> {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        // The surrogates between are no letters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

fn entry(log: &str, number: impl Into<Bson>) -> Document {
    doc! { "log": log, "number": number.into() }
}

#[async_trait]
impl Records for RecordStore {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        let found = self.find(cx, DOCUMENTS, doc! { "_id": name }, doc! { "limit": 1 }).await?;
        Ok(found.into_iter().next())
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let mut range = doc! { "$gte": prefix };
        if let Some(end) = end_of(prefix) {
            range.insert("$lt", end);
        }
        self.find(cx, DOCUMENTS, doc! { "_id": range }, doc! { "sort": { "_id": 1 } }).await
    }

    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        fits(name, &bytes)?;
        let revision = self.fresh_revision();
        let update = writing(&bytes, revision);
        let statement = match expected {
            Some(expected) => doc! { "q": { "_id": name, "revision": number_bson(expected.0) }, "u": update },
            // A document that is there has a revision, so this would make another of its name, which is refused.
            None => doc! { "q": { "_id": name, "revision": { "$exists": false } }, "u": update, "upsert": true },
        };
        let reply = self.write_one(cx, statement).await?;
        if reply.errors().any(|(_, code, _)| code == DUPLICATE) {
            return Ok(PutOutcome::Conflict);
        }
        if reply.whole(&self.client)?.count() == 0 {
            return Ok(PutOutcome::Conflict);
        }
        publish(cx, &self.client, Topic::Record).await;
        Ok(PutOutcome::Done(Revision(revision)))
    }

    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let delete = doc! { "q": { "_id": name, "revision": number_bson(expected.0) }, "limit": 1 };
        let reply = self.client.write(cx, doc! { "delete": DOCUMENTS, "deletes": [delete] }).await?;
        if reply.whole(&self.client)?.count() == 0 {
            return Ok(PutOutcome::Conflict);
        }
        publish(cx, &self.client, Topic::Record).await;
        Ok(PutOutcome::Done(expected))
    }

    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        fits(log, &bytes)?;
        let count = doc! {
            "findAndModify": HEADS, "query": { "_id": log }, "update": { "$inc": { "number": 1_i64 } },
            "upsert": true, "new": true,
        };
        let reply = match self.client.write(cx, count.clone()).await {
            Err(error) if crate::client::is_code(&error, DUPLICATE) => self.client.write(cx, count).await?,
            answer => answer?,
        };
        let newest = reply.value().and_then(|head| number(head.get("number")));
        let newest = newest.ok_or_else(|| Error::corrupt(format!("the log {log} has no number")))?;
        let statement = doc! {
            "q": { "_id": entry(log, number_bson(newest)) }, "u": writing(&bytes, newest), "upsert": true,
        };
        let insert = doc! { "update": LOGS, "updates": [statement] };
        self.client.write(cx, insert).await?.whole(&self.client)?;
        let Some(oldest) = newest.checked_sub(keep as u64).filter(|oldest| *oldest > 0) else { return Ok(()) };
        let range = doc! { "$gte": entry(log, Bson::MinKey), "$lte": entry(log, number_bson(oldest)) };
        let trim = doc! { "delete": LOGS, "deletes": [{ "q": { "_id": range }, "limit": 0 }] };
        self.client.write(cx, trim).await?.whole(&self.client)?;
        Ok(())
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let range = doc! { "$gte": entry(log, Bson::MinKey), "$lte": entry(log, Bson::MaxKey) };
        let more = doc! { "sort": { "_id": -1 }, "limit": number_bson(limit as u64) };
        let mut newest = self.find(cx, LOGS, doc! { "_id": range }, more).await?;
        newest.reverse();
        Ok(newest)
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        let mut hints = self.change_hints(cx).await?;
        hints.mark_seen();
        cx.run(hints.changed()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_letter() {
        assert_eq!(end_of("a/").as_deref(), Some("a0"));
        assert_eq!(end_of("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of(""), None);
    }
}
