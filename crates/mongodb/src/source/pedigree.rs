//! Whose position it is: recognised before anything is read, since servers accept foreign tokens and skip silently.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use mongodb::bson::{Bson, Document, Timestamp, doc};
use serde::{Deserialize, Serialize};
use watchkeeper_core::change::key_hash_v1;
use watchkeeper_core::{Cx, Error, ErrorKind, Pedigree, Result};

use super::Feed;
use super::pipeline::{change_stream, stages};
use super::view::{Scope, View};
use crate::position::Token;

/// An entry of the oplog that existed at or before a position. Its term tells it from an entry that was written at the same
/// time after the data had been restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    time: u32,
    increment: u32,
    term: i64,
}

/// What is stored beside a position. What could not be found out is `None`, and is then not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceLineage {
    /// The identity of the replica set or of the sharded cluster.
    pub(super) cluster: Option<String>,
    /// What is watched, for messages.
    scope: String,
    /// The UUID of the one collection that is watched.
    collection: Option<String>,
    /// A hash of pipeline and options.
    view: String,
    /// The newest entry that is known to lie at or before the position.
    pub(super) mark: Option<Mark>,
    /// The token of an event at or before the position, where the oplog may not be read: the stream has to show it still.
    #[serde(default, alias = "witness")]
    pub(super) proof: Option<String>,
}

impl SourceLineage {
    pub(super) fn to_pedigree(&self) -> Pedigree {
        // A struct of texts and numbers always has a JSON.
        Pedigree(serde_json::to_vec(self).unwrap_or_default().into())
    }

    fn of(pedigree: &Pedigree) -> Option<Self> {
        serde_json::from_slice(&pedigree.0).ok()
    }
}

/// The cluster of positions with this pedigree, if they are of a change stream and it is known.
pub(crate) fn cluster_of(pedigree: &Pedigree) -> Option<String> {
    SourceLineage::of(pedigree)?.cluster
}

fn lost(cause: impl Into<String>) -> Error {
    Error::position_lost(cause)
        .remedy("point the stream at the cluster it was reading, or move the checkpoint on purpose")
}

pub(super) fn restored() -> Error {
    lost("the history that the checkpoint was made with is gone: were the server's data restored from a backup?")
}

impl Feed {
    /// What is watched, as messages name it.
    pub(super) fn scope_name(&self) -> String {
        let database = self.client.config().database();
        match &self.view.scope {
            Scope::Cluster => "the whole cluster".to_owned(),
            Scope::Database => database.to_owned(),
            Scope::Collections(names) => format!("{database}.{}", names.join("+")),
        }
    }

    fn view_hash(&self) -> String {
        // The order of fields in a pipeline says nothing of which one it is.
        let pipeline = self.view.pipeline.iter().map(in_order).collect();
        let sorted = View { pipeline, ..(*self.view).clone() };
        let shown = doc! {
            "scope": self.scope_name(), "changeStream": change_stream(&self.view), "stages": stages(&sorted).0,
            "collation": self.view.collation.clone(),
        };
        format!("{:016x}", key_hash_v1(shown.to_string().as_bytes()))
    }

    /// The lineage of positions from now on.
    pub(super) async fn lineage(&self, cx: &Cx) -> Result<SourceLineage> {
        let mark = self.newest(cx).await?.and_then(|entry| mark(&entry));
        // A mark is the better proof, and the newer one.
        let proof = if mark.is_none() { self.remembered() } else { None };
        Ok(SourceLineage {
            cluster: self.cluster(cx).await?,
            scope: self.scope_name(),
            collection: self.collection_uuid(cx).await?,
            view: self.view_hash(),
            mark,
            proof,
        })
    }

    /// Remembers the collection of a lineage that positions are about to be stored with.
    pub(super) fn note_identified(&self, lineage: &SourceLineage) {
        self.identified.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&lineage.collection);
    }

    /// Refuses a stream that was opened from another place than a position, if the collection was replaced after it had been
    /// identified: no event of that stream tells so, and its positions would be stored as those of the collection before.
    ///
    /// # Errors
    /// `Unavailable`: it has to be identified and opened again.
    pub(super) async fn require_identified(&self, cx: &Cx) -> Result<()> {
        let identified = self.identified.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !differ(&identified, &self.collection_uuid(cx).await?) {
            return Ok(());
        }
        let cause = format!("{} was replaced by another collection while it was opened", self.scope_name());
        Err(Error::unavailable(cause).remedy("it is opened again"))
    }

    /// The identity of the replica set, or of the sharded cluster; `None` when this user may not know.
    pub(crate) async fn cluster(&self, cx: &Cx) -> Result<Option<String>> {
        let config = self.ask(cx, "admin", doc! { "replSetGetConfig": 1 }).await;
        let of_set = |answer: &Document| {
            let settings = answer.get_document("config").and_then(|config| config.get_document("settings")).ok()?;
            settings.get_object_id("replicaSetId").ok().map(|id| id.to_hex())
        };
        match config {
            Ok(answer) => return Ok(of_set(&answer)),
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(_) => {}
        }
        // A mongos has no such command, but its cluster has an identity too.
        let version =
            permitted(self.first(cx, "config", doc! { "find": "version", "limit": 1, "singleBatch": true }).await)?;
        Ok(version.flatten().and_then(|version| version.get_object_id("clusterId").ok().map(|id| id.to_hex())))
    }

    async fn collection_uuid(&self, cx: &Cx) -> Result<Option<String>> {
        let Scope::Collections(names) = &self.view.scope else { return Ok(None) };
        let [name] = names.as_slice() else { return Ok(None) };
        let list = doc! { "listCollections": 1, "filter": { "name": name } };
        let found = permitted(self.first(cx, self.client.config().database(), list).await)?.flatten();
        let info = found.as_ref().and_then(|found| found.get_document("info").ok());
        Ok(match info.and_then(|info| info.get("uuid")) {
            Some(Bson::Binary(uuid)) => Some(uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            _ => None,
        })
    }

    /// The oldest entry of the oplog; `None` when this user may not read it, or there is none (a mongos).
    pub(crate) async fn oldest(&self, cx: &Cx) -> Result<Option<Document>> {
        // By what is there now: an older view, as that of a majority may be, shows entries that have been cut off since.
        self.entry(cx, doc! {}, 1, "local").await
    }

    /// The newest entry of the oplog.
    pub(crate) async fn newest(&self, cx: &Cx) -> Result<Option<Document>> {
        self.entry(cx, doc! {}, -1, "majority").await
    }

    /// The entry of the oplog at this time, if a majority has it: then it cannot be rolled back.
    pub(super) async fn entry_at(&self, cx: &Cx, at: Timestamp) -> Result<Option<Document>> {
        self.entry(cx, doc! { "ts": { "$gte": at, "$lte": at } }, 1, "majority").await
    }

    async fn entry(&self, cx: &Cx, filter: Document, direction: i32, concern: &str) -> Result<Option<Document>> {
        let find = doc! {
            "find": "oplog.rs", "filter": filter, "sort": { "$natural": direction }, "limit": 1, "singleBatch": true,
            "projection": { "ts": 1, "t": 1 }, "readConcern": { "level": concern },
        };
        Ok(permitted(self.first(cx, "local", find).await)?.flatten())
    }

    /// Refuses a position of another cluster, of data that was restored since, of a collection that was replaced, of another
    /// pipeline, of the future, or of history that is gone.
    pub(super) async fn recognise(&self, cx: &Cx, token: &Token, pedigree: &Pedigree) -> Result<()> {
        let other = || lost("the checkpoint belongs to another log than the one that answers now");
        let stored = SourceLineage::of(pedigree).ok_or_else(other)?;
        let cluster = self.cluster(cx).await?;
        if differ(&stored.cluster, &cluster) {
            return Err(lost("the checkpoint belongs to another cluster than the one that answers now"));
        }
        if stored.view != self.view_hash() {
            let cause = format!("the checkpoint of {} was made with another scope, pipeline or options", stored.scope);
            // Not as lost: a policy for gaps must not pass over what a slip in a file has caused.
            return Err(Error::config(cause).remedy("put them back, or set the checkpoint again on purpose"));
        }
        self.not_of_the_future(cx, token).await?;
        self.still_there(cx, token).await?;
        self.same_history(cx, &stored).await?;
        self.same_collection(cx, token, &stored).await?;
        self.remember(stored.proof);
        Ok(())
    }

    /// Refuses a token that is newer than everything that has happened: its server would skip what happens until then.
    pub(super) async fn not_of_the_future(&self, cx: &Cx, token: &Token) -> Result<()> {
        let Some(at) = token.timestamp() else { return Ok(()) };
        match self.operation_time(cx).await? {
            // A stream from now on begins one tick after what has happened, and events of that tick lie after its token.
            Some(now) if at > (Timestamp { increment: now.increment.saturating_add(1), ..now }) => {
                let cause =
                    format!("the position is {}s in the future of this cluster", at.time - now.time.min(at.time));
                Err(lost(cause))
            }
            _ => Ok(()),
        }
    }

    /// The time of the newest operation that the server knows of.
    pub(super) async fn operation_time(&self, cx: &Cx) -> Result<Option<Timestamp>> {
        let answer = self.ask(cx, "admin", doc! { "ping": 1 }).await?;
        Ok(answer.get_timestamp("operationTime").ok())
    }

    async fn still_there(&self, cx: &Cx, token: &Token) -> Result<()> {
        let (Some(at), Some(oldest)) = (token.timestamp(), self.oldest(cx).await?) else { return Ok(()) };
        match oldest.get_timestamp("ts") {
            Ok(oldest) if at < oldest => {
                let seconds = oldest.time - at.time;
                Err(Error::position_lost(format!(
                    "the position has left the oplog, whose oldest entry is {seconds}s newer"
                ))
                .remedy("choose what becomes of the gap (on_history_lost), and enlarge the oplog"))
            }
            _ => Ok(()),
        }
    }

    /// Looks up the entry that was there when the position was stored. After a restore it is gone, or of another term.
    async fn same_history(&self, cx: &Cx, stored: &SourceLineage) -> Result<()> {
        let Some(mark) = stored.mark else { return self.still_shown(cx, stored).await };
        let at = Timestamp { time: mark.time, increment: mark.increment };
        // What has left the oplog cannot be looked up; that alone proves nothing.
        match self.oldest(cx).await?.map(|oldest| oldest.get_timestamp("ts")) {
            Some(Ok(oldest)) if oldest <= at => {}
            _ => return Ok(()),
        }
        // By what the primary has itself: just after an election it does not yet know what a majority has.
        let found = self.entry(cx, doc! { "ts": { "$gte": at, "$lte": at } }, 1, "local").await?;
        if found.as_ref().and_then(self::mark) == Some(mark) {
            return Ok(());
        }
        Err(restored())
    }

    /// Refuses a position of a collection that was replaced without an event that would tell so.
    async fn same_collection(&self, cx: &Cx, token: &Token, stored: &SourceLineage) -> Result<()> {
        let now = self.collection_uuid(cx).await?;
        // After an invalidate another collection is what is expected.
        if token.start_after || !differ(&stored.collection, &now) {
            return Ok(());
        }
        if self.shows_the_end(cx, token).await? {
            return Ok(());
        }
        Err(lost(format!("{} was replaced by another collection of its name", stored.scope)))
    }
}

pub(super) fn mark(entry: &Document) -> Option<Mark> {
    let at = entry.get_timestamp("ts").ok()?;
    Some(Mark { time: at.time, increment: at.increment, term: entry.get_i64("t").ok()? })
}

/// Whether two things are known not to be the same.
fn differ(a: &Option<String>, b: &Option<String>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// `None` for what this user may not read, or this server does not have.
fn permitted<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Config) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A document with its fields in the order of their names, at every depth.
fn in_order(document: &Document) -> Document {
    let sorted: BTreeMap<&String, &Bson> = document.iter().collect();
    sorted.into_iter().map(|(name, value)| (name.clone(), value_in_order(value))).collect()
}

fn value_in_order(value: &Bson) -> Bson {
    match value {
        Bson::Document(inner) => in_order(inner).into(),
        Bson::Array(items) => Bson::Array(items.iter().map(value_in_order).collect()),
        other => other.clone(),
    }
}
