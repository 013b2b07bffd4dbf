//! Whether a stream would begin anew in a store that is not its own, asked as a run asks it and without noting anything.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper::Result;
use watchkeeper::core::{Checkpoint, Cx, Entropy, Put, Record, Records, Revision, StoreIdentity};
use watchkeeper::engine::checkpoint::history::History;
use watchkeeper::engine::checkpoint::lost;
use watchkeeper::engine::group::home::Homes;
use watchkeeper::engine::stream::key_of;

use crate::config::{Config, System};

/// Refuses a stream that has no checkpoint in `keeper`, where it would be kept, if it began in another store. The answer is whether it has
/// committed one before. What can not be reached was told already.
pub(super) async fn require(cx: &Cx, config: &Config, stream: &str, keeper: &System) -> Result<bool> {
    let group = &config.group;
    let Some(records) = records(cx, group.records.as_ref().unwrap_or(&group.store)).await else { return Ok(false) };
    let Some(identity) = identity(cx, keeper).await else { return Ok(false) };
    Homes::new(Arc::new(Unwritten(records)), &group.settings.group).settle(cx, stream, identity).await
}

/// The checkpoint of a stream that has lost it, as `status` shows it.
pub(super) async fn lost(cx: &Cx, config: &Config, stream: &str, what: &str) -> Checkpoint {
    let group = &config.group;
    let newest = match records(cx, group.records.as_ref().unwrap_or(&group.store)).await {
        Some(records) => {
            let key = key_of(&group.settings.group, stream);
            lost::newest(cx, &History::new(records, &group.settings.group, &key, 1)).await
        }
        None => None,
    };
    Checkpoint::lost(None, &lost::lost(stream, what, newest.as_ref()))
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
struct Unwritten(Arc<dyn Records>);

#[async_trait]
impl Records for Unwritten {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        self.0.get(cx, name).await
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        self.0.list(cx, prefix).await
    }

    async fn put_if(&self, _cx: &Cx, _name: &str, expected: Option<Revision>, _bytes: Bytes) -> Result<Put> {
        Ok(Put::Done(expected.unwrap_or(Revision(0))))
    }

    async fn delete_if(&self, _cx: &Cx, _name: &str, expected: Revision) -> Result<Put> {
        Ok(Put::Done(expected))
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
