//! Whether a stream would begin anew in a store that is not its own, asked as a run asks it and without noting anything.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper::Result;
use watchkeeper::core::{
    Checkpoint, Cx, Entropy, Finding, PutOutcome, Record, Records, Revision, Severity, StoreIdentity,
};
use watchkeeper::engine::checkpoint::history::{History, HistoryEntry};
use watchkeeper::engine::checkpoint::lost;
use watchkeeper::engine::group::journal::Journal;
use watchkeeper::engine::group::store_binding::StoreBindings;
use watchkeeper::engine::stream::key_of;

use crate::config::{Config, System};
use crate::when::iso;

/// Refuses a stream that has no checkpoint in `keeper`, where it would be kept, if it began in another store. The answer is whether it has
/// committed one before, or `None` where that cannot be found out: what cannot be reached is reported elsewhere.
pub(super) async fn require(cx: &Cx, config: &Config, stream: &str, keeper: &System) -> Result<Option<bool>> {
    let group = &config.group;
    let Some(records) = records(cx, group.records.as_ref().unwrap_or(&group.store)).await else { return Ok(None) };
    let Some(identity) = identity(cx, keeper).await else { return Ok(None) };
    let bindings = StoreBindings::new(Arc::new(ReadOnlyRecords(Arc::clone(&records))), &group.settings.group);
    bindings.settle(cx, stream, identity).await?;
    let history = history(records, config, stream);
    lost::has_committed(cx, &bindings, (stream, identity), &history).await.map(Some)
}

fn history(records: Arc<dyn Records>, config: &Config, stream: &str) -> History {
    let group = &config.group.settings.group;
    History::new(records, group, &key_of(group, stream), 1)
}

/// A hint that a stream without a checkpoint and without a history may have committed before: an instance had its watch.
pub(super) async fn former_tenure(cx: &Cx, config: &Config, stream: &str) -> Option<Finding> {
    let group = &config.group;
    let records = records(cx, group.records.as_ref().unwrap_or(&group.store)).await?;
    let journal = Journal::new(records, &group.settings.group);
    let newest = cx.run(journal.recent(cx, stream, 1)).await.ok()?.into_iter().next()?;
    let (to, epoch, at) = (&newest.to, newest.epoch, iso(newest.at_millis));
    let what = format!(
        "there is none, although {to} ran the stream under epoch {epoch} at {at}: if a checkpoint was committed, it was removed, and the \
         stream begins anew where its settings say"
    );
    let remedy =
        format!("if it has delivered before, choose where it resumes: watchkeeper checkpoint set {stream} POSITION");
    Some(Finding { severity: Severity::Warning, what, remedy: Some(remedy) })
}

/// The checkpoint of a stream that has lost it, as `status` shows it.
pub(super) async fn lost(cx: &Cx, config: &Config, stream: &str, what: &str) -> Checkpoint {
    let newest = newest(cx, config, stream).await;
    Checkpoint::lost(None, &lost::lost(stream, what, newest.as_ref()))
}

/// The newest position of a stream's history, as far as it can be read.
pub(super) async fn newest(cx: &Cx, config: &Config, stream: &str) -> Option<HistoryEntry> {
    let group = &config.group;
    let records = records(cx, group.records.as_ref().unwrap_or(&group.store)).await?;
    lost::newest(cx, &history(records, config, stream)).await
}

pub(super) async fn records(cx: &Cx, system: &System) -> Option<Arc<dyn Records>> {
    system.backend.peek_store(cx, &mut system.options.clone()).await.ok()??.records
}

/// Whose store it is, if that can be found out. One that is still to be made will have an identity that nobody has yet.
async fn identity(cx: &Cx, system: &System) -> Option<StoreIdentity> {
    let offer = system.backend.peek_store(cx, &mut system.options.clone()).await.ok()??;
    match offer.checkpoints {
        Some(checkpoints) => checkpoints.identity(cx).await.ok(),
        None => Some(StoreIdentity(Entropy::from_system().uuid())),
    }
}

/// Records to look at: what is written to them is forgotten.
#[derive(Debug)]
struct ReadOnlyRecords(Arc<dyn Records>);

#[async_trait]
impl Records for ReadOnlyRecords {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        self.0.get(cx, name).await
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        self.0.list(cx, prefix).await
    }

    async fn put_if(&self, _cx: &Cx, _name: &str, expected: Option<Revision>, _bytes: Bytes) -> Result<PutOutcome> {
        Ok(PutOutcome::Done(expected.unwrap_or(Revision(0))))
    }

    async fn delete_if(&self, _cx: &Cx, _name: &str, expected: Revision) -> Result<PutOutcome> {
        Ok(PutOutcome::Done(expected))
    }

    async fn append(&self, _cx: &Cx, _log: &str, _bytes: Bytes, _keep: usize) -> Result<()> {
        Ok(())
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        self.0.tail(cx, log, limit).await
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        self.0.changed(cx).await
    }
}
