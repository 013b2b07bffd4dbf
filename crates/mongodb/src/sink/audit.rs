//! A log of who changed what, to be asked later.

use async_trait::async_trait;
use mongodb::bson::raw::cstr;
use mongodb::bson::{DateTime, Document, RawBson, RawDocumentBuf, doc};
use watchkeeper_core::payload::Image;
use watchkeeper_core::{Change, Cx, Operation, Result, ValueRef};

use super::collections::append;
use super::document::{after, field, image, mirrored_id, raw};
use super::name::Name;
use super::{Apply, Failure, Open};
use crate::client::{Client, create, number_bson};

/// Appends a record of every change to a collection, which has the indexes that [`AuditQuery`] asks by.
///
/// A record tells `timestamp` (when it was changed, by the source's clock), `sourceCollection`, `operationType`, `documentId`,
/// `resumeToken`, `clusterTime`, and, where the change tells them, the whole `document` and its `changes`.
/// That of a gap (`operationType` is `gap`) tells its `cause`.
#[derive(Debug, Clone)]
pub struct Audit {
    collection: Name,
}

impl Audit {
    /// The collection that is used when none is named.
    pub const USUAL: &str = "audit_log";

    /// Into this collection, made where it is missing.
    pub fn into(collection: &str) -> Result<Self> {
        Ok(Self { collection: Name::new(collection)? })
    }

    fn record(open: &Open<'_>, change: &Change, place: usize) -> Result<RawDocumentBuf> {
        let grant = open.grant();
        let (epoch, seq) = (number_bson(grant.epoch.0), number_bson(open.seq()));
        let namespace = change.namespace();
        let collection = namespace.split_once('.').map_or(namespace, |(_, name)| name);
        let by_source = || DateTime::from_millis(i64::try_from(change.time().0).unwrap_or(i64::MAX));
        let time = match field(change, "wallTime")? {
            Some(RawBson::DateTime(time)) => time,
            _ => by_source(),
        };
        let id = change.key().map(|key| mirrored_id(change, key)).transpose()?;
        let token = field(change, "_id")?.unwrap_or_else(|| RawBson::String(change.position().to_string()));
        let mut record = raw(&doc! {
            "_id": { "stream": grant.key.as_str(), "epoch": epoch, "seq": seq, "place": number_bson(place as u64) },
            "timestamp": time,
            "sourceCollection": collection,
            "operationType": change.operation().as_str(),
        })?;
        record.append(cstr!("documentId"), id.unwrap_or(RawBson::Null));
        record.append(cstr!("resumeToken"), token);
        record.append(cstr!("clusterTime"), field(change, "clusterTime")?.unwrap_or(RawBson::Null));
        let parts = [(cstr!("document"), after(change)?), (cstr!("changes"), image(change, Image::Difference)?)];
        for (name, part) in parts {
            if let Some(part @ RawBson::Document(_)) = part {
                record.append(name, part);
            }
        }
        if change.operation() == Operation::Gap
            && let Some(ValueRef::Str(cause)) = change.get(&["cause"])?
        {
            record.append(cstr!("cause"), &*cause);
        }
        Ok(record)
    }
}

#[async_trait]
impl Apply for Audit {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        let collection = self.collection.as_str();
        create(cx, client, doc! { "create": collection }).await?;
        let indexes = [
            doc! { "key": { "timestamp": -1 }, "name": "timestamp_-1" },
            doc! { "key": { "sourceCollection": 1, "operationType": 1 }, "name": "sourceCollection_1_operationType_1" },
        ];
        client.write(cx, doc! { "createIndexes": collection, "indexes": indexes.to_vec() }).await.map(drop)
    }

    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        append(open, &self.collection, changes, Self::record).await
    }
}

/// A question to an audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only changes of this collection.
    pub collection: Option<String>,
    /// Only such changes, such as `update`.
    pub operation: Option<String>,
    /// Not older than this.
    pub since: Option<DateTime>,
    /// Not newer than this.
    pub until: Option<DateTime>,
    /// At most so many.
    pub limit: u32,
}

/// The newest twenty.
impl Default for AuditQuery {
    fn default() -> Self {
        Self { collection: None, operation: None, since: None, until: None, limit: 20 }
    }
}

impl AuditQuery {
    /// The command that asks the audit log in `collection`, newest first.
    pub fn command(&self, collection: &str) -> Document {
        let mut filter = Document::new();
        let named = [("sourceCollection", &self.collection), ("operationType", &self.operation)];
        for (field, wanted) in named {
            if let Some(wanted) = wanted {
                filter.insert(field, wanted.as_str());
            }
        }
        let bounds = [("$gte", self.since), ("$lte", self.until)];
        let time: Document = bounds.into_iter().filter_map(|(than, at)| Some((than.to_owned(), at?.into()))).collect();
        if !time.is_empty() {
            filter.insert("timestamp", time);
        }
        let limit = i64::from(self.limit.max(1));
        doc! { "find": collection, "filter": filter, "sort": { "timestamp": -1 }, "limit": limit }
    }

    /// What the audit log in `collection` tells, newest first.
    pub async fn ask(&self, cx: &Cx, client: &Client, collection: &str) -> Result<Vec<Document>> {
        client.rows(cx, self.command(collection)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_asks_only_for_what_was_said() {
        assert_eq!(AuditQuery::default().command("log").get("filter"), Some(&doc! {}.into()));
        let since = DateTime::from_millis(5);
        let query = AuditQuery { operation: Some("update".into()), since: Some(since), ..AuditQuery::default() };
        let filter = doc! { "operationType": "update", "timestamp": { "$gte": since } };
        assert_eq!(query.command("log").get("filter"), Some(&filter.into()));
    }
}
