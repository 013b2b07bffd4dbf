//! A mirror in a database that does not keep the stream's checkpoint.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawBson, RawDocumentBuf, doc, rawdoc};
use watchkeeper_core::{
    Batch, Change, Cx, Error, ErrorKind, Fault, FaultKind, Finding, FlushRejection, Grade, OpenedSink, Operation,
    Result, Sink, SinkContext, SinkProfile, SinkWriter, Version, Written, rename_rejection,
};

use super::collections::Mirror;
use super::document::{joined, raw};
use super::merged_writes::{MergedWrite, MergedWrites, parts, with_id};
use super::{Apply, Failure, is_duplicate};
use crate::client::{Client, Reply, number_bson};
use crate::payload::scan::Fields;

/// The field of a mirrored document in which its version stands.
const MARK: &str = "_watchkeeper";

/// Keeps the newest document of every key, and never lets an older version overwrite a newer one.
///
/// The version of the source stands in the field `_watchkeeper` of every document. A deleted one stays as a tombstone, which has
/// `_watchkeeper.deleted` and nothing else, so that a late write cannot bring it back; the server removes tombstones after a day.
/// Readers leave them out with `{"_watchkeeper.deleted": {"$exists": false}}`.
///
/// The source may be such a copy itself: its versions are replaced by those of this copy's source, and its tombstones are deletes. A
/// field `_watchkeeper` that is something else is the user's own: there is no room for it, so the change is rejected.
///
/// What is not prevented: that a late write from before a truncate brings in a document that was never written here.
#[derive(Debug, Clone)]
pub struct Versioned {
    client: Client,
    mirror: Mirror,
    tombstones: Duration,
}

impl Versioned {
    /// A sink into collections of the client's database.
    pub fn new(client: Client, mirror: Mirror) -> Self {
        Self { client, mirror, tombstones: Duration::from_secs(24 * 60 * 60) }
    }

    async fn prepare(&self, cx: &Cx) -> Result<()> {
        self.mirror.prepare(cx, &self.client).await?;
        match self.mirror.only_target() {
            Some(collection) => self.forget_tombstones_of(cx, collection).await,
            None => Ok(()),
        }
    }

    /// Has the server remove the tombstones of a collection in time.
    async fn forget_tombstones_of(&self, cx: &Cx, collection: &str) -> Result<()> {
        let index = doc! {
            "key": { format!("{MARK}.deleted"): 1 },
            "name": "watchkeeper_tombstones",
            "expireAfterSeconds": number_bson(self.tombstones.as_secs()),
        };
        self.client.write(cx, doc! { "createIndexes": collection, "indexes": [index] }).await.map(drop)
    }
}

#[async_trait]
impl Sink for Versioned {
    fn profile(&self) -> SinkProfile {
        let mut profile = SinkProfile::new(Grade::Versioned, self.client.config().timeout);
        profile.acts_on_barriers = true;
        profile.whole_rows = true;
        profile.mirrors = true;
        profile
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.prepare(cx).await?;
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, _context: &SinkContext) -> Result<OpenedSink> {
        self.prepare(cx).await?;
        let prepared = self.mirror.only_target().map(str::to_owned).into_iter().collect();
        Ok(OpenedSink::Plain(Arc::new(Writer { sink: self.clone(), prepared: Mutex::new(prepared) })))
    }
}

#[derive(Debug)]
struct Writer {
    sink: Versioned,
    /// The collections whose tombstones are seen to.
    prepared: Mutex<BTreeSet<String>>,
}

/// The mark of a version.
fn mark(version: Version) -> Document {
    doc! { "time": number_bson(version.time), "ordinal": number_bson(version.ordinal) }
}

/// What a document becomes if it is older than `version`; it stays as it is otherwise.
fn unless_newer(version: Version, becomes: RawDocumentBuf) -> Result<RawDocumentBuf> {
    let stored = ["time", "ordinal"].map(|part| Bson::String(format!("${MARK}.{part}")));
    // Arrays are compared part by part, and what is missing is less than every number.
    let [time, ordinal] = [number_bson(version.time), number_bson(version.ordinal)];
    let older = doc! { "$lt": [Bson::Array(stored.into()), [time, ordinal]] };
    let mut choice = RawArrayBuf::from_iter([raw(&older)?, becomes]);
    choice.push("$$ROOT");
    Ok(rawdoc! { "$replaceWith": { "$cond": choice } })
}

fn tombstone(version: Version) -> Result<RawDocumentBuf> {
    let mut mark = mark(version);
    mark.insert("deleted", "$$NOW");
    raw(&doc! { "_id": "$_id", MARK: mark })
}

/// The statement that brings about what has become of a document by this version.
fn statement(merged_write: &MergedWrite, version: Version) -> Result<RawDocumentBuf> {
    let becomes = match &merged_write.document {
        Some(document) => {
            let mark = raw(&doc! { MARK: mark(version) })?;
            rawdoc! { "$literal": joined(&RawDocumentBuf::new(), document, &mark)? }
        }
        None => tombstone(version)?,
    };
    let stages = RawArrayBuf::from_iter([unless_newer(version, becomes)?]);
    Ok(rawdoc! { "q": with_id(merged_write.id.clone()), "u": stages, "upsert": true })
}

/// The documents that are new at the source, have a number for their `_id`, and were there already: as tombstones, or from a write
/// that is repeated.
fn found_again<'a>(merged: &'a [MergedWrite], reply: &Reply) -> Vec<&'a MergedWrite> {
    let made: BTreeSet<usize> = reply.upserted().chain(reply.errors().map(|(index, ..)| index)).collect();
    let is_number = |id: &RawBson| {
        matches!(id, RawBson::Int32(_) | RawBson::Int64(_) | RawBson::Double(_) | RawBson::Decimal128(_))
    };
    let found = merged.iter().enumerate().filter(|(index, merged_write)| {
        merged_write.is_new && merged_write.document.is_some() && is_number(&merged_write.id) && !made.contains(index)
    });
    found.map(|(_, merged_write)| merged_write).collect()
}

/// The statement that deletes a document of this version whose `_id` has another type than it should have.
fn of_another_type(merged_write: &MergedWrite, version: Version) -> Result<RawDocumentBuf> {
    let kind = i32::from(merged_write.id.element_type() as u8);
    let id = rawdoc! { "$eq": merged_write.id.clone(), "$not": { "$type": kind } };
    let mark = mark(version).into_iter().map(|(part, number)| (format!("{MARK}.{part}"), number));
    let mut condition = raw(&mark.collect())?;
    condition.append(cstr!("_id"), id);
    Ok(rawdoc! { "q": condition, "limit": 1 })
}

/// What has become of a document, if its source may be a versioned copy.
fn unmarked(merged_write: MergedWrite) -> Result<MergedWrite, Failure> {
    let Some(document) = &merged_write.document else { return Ok(merged_write) };
    let Some(mark) = Fields::of(document.as_bytes())?.find(MARK.as_bytes())? else { return Ok(merged_write) };
    let names: Option<Vec<&[u8]>> =
        mark.document().and_then(|mark| Fields::of(mark).ok()?.map(|field| Some(field.ok()?.name)).collect());
    match names.as_deref() {
        Some([b"time", b"ordinal"]) => Ok(merged_write),
        Some([b"time", b"ordinal", b"deleted"]) => Ok(MergedWrite { document: None, ..merged_write }),
        _ => Err(Failure::Refused(merged_write.at, taken())),
    }
}

/// The error of a document that has no room for its version.
fn taken() -> Error {
    Error::config(format!("the document has a field {MARK} of its own, where this sink keeps versions"))
        .remedy("rename it at the source, leave it out with a pipeline, or use mode = \"mirror\"")
}

impl Writer {
    /// Sees to the tombstones of a collection before it is first written to.
    async fn prepare(&self, cx: &Cx, target: &str) -> Result<()> {
        if self.prepared.lock().unwrap_or_else(PoisonError::into_inner).contains(target) {
            return Ok(());
        }
        self.sink.forget_tombstones_of(cx, target).await?;
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(target.to_owned());
        Ok(())
    }

    /// Writes what `changes` came to, of which those from `first` on were noted; the places of those that the server refuses.
    async fn send(
        &self,
        cx: &Cx,
        changes: &[Change],
        first: usize,
        merged: &mut MergedWrites,
    ) -> Result<Vec<(usize, Error)>> {
        let (mut rejected, places) = (Vec::new(), merged.places().collect::<BTreeSet<_>>());
        for (target, merged) in merged.take_by_target() {
            for part in parts(merged) {
                rejected.extend(self.update(cx, changes, &target, &part).await?);
            }
        }
        if rejected.iter().any(|(_, error)| is_duplicate(error)) {
            rejected.retain(|(_, error)| !is_duplicate(error));
            let again = self.repeat(cx, changes, first).await?;
            // What was refused on the way, and came right later, is no matter.
            rejected.extend(again.into_iter().filter(|(at, error)| places.contains(at) && is_duplicate(error)));
        }
        Ok(rejected)
    }

    /// Writes changes from `first` on one by one, since values of a unique index may have moved from one document to another:
    /// what is written already stays as it is.
    async fn repeat(&self, cx: &Cx, changes: &[Change], first: usize) -> Result<Vec<(usize, Error)>> {
        let mut rejected = Vec::new();
        for (at, change) in changes.iter().enumerate().skip(first) {
            let Some(key) = change.key() else { continue };
            // What cannot be read was told before.
            if let Ok(Some(merged_write)) = self.merged_write(at, change, key) {
                let Ok(target) = self.sink.mirror.target(change) else { continue };
                rejected.extend(self.update(cx, changes, &target, &[merged_write]).await?);
            }
        }
        Ok(rejected)
    }

    fn merged_write(&self, at: usize, change: &Change, key: &[u8]) -> Result<Option<MergedWrite>, Failure> {
        let Some(merged_write) = MergedWrite::of(at, change, key)? else { return Ok(None) };
        let merged_write = unmarked(merged_write)?;
        // Every statement is an upsert by a pipeline, also that of a tombstone.
        merged_write.require_readable_id()?;
        merged_write.require_unique_fields()?;
        Ok(Some(merged_write))
    }

    async fn update(
        &self,
        cx: &Cx,
        changes: &[Change],
        target: &str,
        merged: &[MergedWrite],
    ) -> Result<Vec<(usize, Error)>> {
        self.prepare(cx, target).await?;
        let statement = |merged_write: &MergedWrite| statement(merged_write, changes[merged_write.at].version());
        let updates = merged.iter().map(statement).collect::<Result<_>>()?;
        let client = &self.sink.client;
        let command = doc! { "update": target, "ordered": false };
        let reply = client.write_each(cx, command, (cstr!("updates"), updates)).await?;
        self.retype(cx, changes, target, &found_again(merged, &reply)).await?;
        let mut rejected = Vec::new();
        for (index, code, said) in reply.errors() {
            let at = merged.get(index).map_or(0, |merged_write| merged_write.at);
            match Failure::coded(at, code, &said, client) {
                Failure::Refused(at, error) => rejected.push((at, error)),
                // Others of the command may be written; they are repeated without harm.
                Failure::Failed(error) => return Err(Error::new(ErrorKind::Unknown, error.message()).caused_by(error)),
            }
        }
        Ok(rejected)
    }

    /// Writes documents anew that were found under an `_id` that is an equal number of another type: that of a tombstone, which no
    /// update changes. Whoever is interrupted in between has not committed it, so it is written again.
    async fn retype(&self, cx: &Cx, changes: &[Change], target: &str, merged: &[&MergedWrite]) -> Result<()> {
        if merged.is_empty() {
            return Ok(());
        }
        let (client, delete) = (&self.sink.client, doc! { "delete": target });
        let of_another_type =
            |merged_write: &&MergedWrite| of_another_type(merged_write, changes[merged_write.at].version());
        let deletes = merged.iter().map(of_another_type).collect::<Result<_>>()?;
        let deleted = client.write_each(cx, delete, (cstr!("deletes"), deletes)).await?.whole(client)?;
        if deleted.count() == 0 {
            return Ok(());
        }
        let statement = |merged_write: &&MergedWrite| statement(merged_write, changes[merged_write.at].version());
        let updates = merged.iter().map(statement).collect::<Result<_>>()?;
        let command = doc! { "update": target, "ordered": false };
        client.write_each(cx, command, (cstr!("updates"), updates)).await?.whole(client).map(drop)
    }

    /// Leaves a tombstone in the place of everything that is older than a truncate.
    async fn clear(&self, cx: &Cx, target: &str, version: Version) -> Result<()> {
        self.prepare(cx, target).await?;
        let stages = RawArrayBuf::from_iter([unless_newer(version, tombstone(version)?)?]);
        let all = rawdoc! { "q": {}, "u": stages, "multi": true };
        let (client, command) = (&self.sink.client, doc! { "update": target });
        client.write_each(cx, command, (cstr!("updates"), vec![all])).await?.whole(client).map(drop)
    }
}

#[async_trait]
impl SinkWriter for Writer {
    async fn write(&self, cx: &Cx, _lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let changes: Vec<Change> = rows.iter().map(|row| Change::new(Arc::clone(batch), *row)).collect();
        let (mut merged, mut rejected, mut first) = (MergedWrites::default(), Vec::new(), 0);
        for (at, change) in changes.iter().enumerate() {
            if change.operation() == Operation::Rename {
                rejected.push((at, rename_rejection(change)));
                continue;
            }
            if !Mirror::concerns(change) {
                continue;
            }
            let target = match self.sink.mirror.target(change) {
                Ok(target) => target,
                Err(error) => {
                    rejected.push((at, error));
                    continue;
                }
            };
            if let Some(key) = change.key() {
                match self.merged_write(at, change, key) {
                    Err(Failure::Refused(at, error)) => rejected.push((at, error)),
                    Err(Failure::Failed(error)) => return Err(error),
                    Ok(merged_write) => {
                        merged_write.into_iter().for_each(|merged_write| merged.note(target.clone(), key, merged_write))
                    }
                }
            } else {
                rejected.extend(self.send(cx, &changes[..at], first, &mut merged).await?);
                self.clear(cx, &target, change.version()).await?;
                first = at + 1;
            }
        }
        rejected.extend(self.send(cx, &changes, first, &mut merged).await?);
        rejected.sort_by_key(|(at, _)| *at);
        let fault = |(at, error): (usize, Error)| Fault { row: rows[at], kind: FaultKind::Reject, error };
        Ok(Written { done: rows.len(), rejected: rejected.into_iter().map(fault).collect(), stopped: None })
    }

    /// Every write has waited for the majority, so there is nothing left to do.
    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
