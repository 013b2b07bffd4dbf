//! Where the checkpoint of a stream is kept, whether it has ever committed one, and which targets it has written to.
//!
//! A transactional sink brings the store of its stream's checkpoint with it. Whoever gives a stream another sink may so give
//! it another store, in which there is no checkpoint. A checkpoint may also be removed from its store. In both cases the stream would
//! begin anew, and what changed since the last commit would be passed over silently. So the store that a stream began in, and that its
//! first checkpoint is stored there, are noted next to the leases, which stay where they are.
//!
//! In the same way the table of a sink may be removed. Made anew it would lack everything that was delivered before, silently. So the
//! targets that a stream has written to are noted as well.
//!
//! The first checkpoint of a stream has no position. Then it is noted that the stream has a checkpoint, and only then
//! positions are committed. So a crash in between raises no false alarm, and a checkpoint that is noted but missing was
//! removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Component, Cx, Error, Records, Result, StoreIdentity};

use super::{amend, decode};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoreBinding {
    store: Option<StoreIdentity>,
    /// Whether a checkpoint was stored there. Written after the first checkpoint, which has no position yet, and before any that has one:
    /// so a checkpoint that is missing was removed, whenever an instance crashed.
    #[serde(default)]
    committed: bool,
    /// The identities of the targets that the stream has written to since it began.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    targets: BTreeSet<String>,
}

/// The homes of a group's streams.
#[derive(Debug, Clone)]
pub struct StoreBindings {
    records: Arc<dyn Records>,
    group: String,
}

impl StoreBindings {
    /// The homes of the streams of `group`.
    pub fn new(records: Arc<dyn Records>, group: &str) -> Self {
        Self { records, group: group.to_owned() }
    }

    /// The names of all streams that have ever begun, in their order.
    ///
    /// # Errors
    /// What the records say when they do not answer.
    pub async fn streams(&self, cx: &Cx) -> Result<Vec<String>> {
        let prefix = format!("{}/home/", self.group);
        let records = self.records.list(cx, &prefix).await?;
        let mut names: Vec<_> =
            records.iter().filter_map(|record| record.name.strip_prefix(&prefix)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// Notes that a stream begins in `store`, where it has no position. The answer is whether it has committed a checkpoint before.
    ///
    /// # Errors
    /// `Config` if it has begun elsewhere before.
    pub async fn settle(&self, cx: &Cx, stream: &str, store: StoreIdentity) -> Result<bool> {
        let binding = self.amend(cx, stream, |binding: &mut StoreBinding| {
            binding.store.get_or_insert(store);
        });
        let binding = binding.await?;
        if binding.store == Some(store) {
            return Ok(binding.committed);
        }
        Err(Error::config(format!("stream {stream:?} has no checkpoint in this store, but began in another one")).remedy(
            format!(
                "its sinks decide which store that is: give it back those that it had, and look there where it stands \
                (watchkeeper checkpoint show {stream}); then it can begin there with the new ones: watchkeeper checkpoint set \
                {stream} POSITION"
            ),
        ))
    }

    /// Notes that a checkpoint of a stream is stored in `store`.
    pub async fn note_committed(&self, cx: &Cx, stream: &str, store: StoreIdentity) -> Result<()> {
        let note = |binding: &mut StoreBinding| (binding.store, binding.committed) = (Some(store), true);
        self.amend(cx, stream, note).await.map(drop)
    }

    /// Notes that a stream writes to these targets.
    pub async fn note_targets(&self, cx: &Cx, stream: &str, targets: &[String]) -> Result<()> {
        self.amend(cx, stream, |binding| binding.targets.extend(targets.iter().cloned())).await.map(drop)
    }

    /// Whether a stream has written to a target since it began.
    pub async fn has_written(&self, cx: &Cx, stream: &str, target: &str) -> Result<bool> {
        Ok(self.read(cx, stream).await?.targets.contains(target))
    }

    /// Forgets which targets a stream has written to: it delivers everything anew.
    pub async fn forget_targets(&self, cx: &Cx, stream: &str) -> Result<()> {
        self.amend(cx, stream, |binding| binding.targets.clear()).await.map(drop)
    }

    /// Whether a checkpoint of a stream was stored in `store`.
    pub async fn has_committed(&self, cx: &Cx, stream: &str, store: StoreIdentity) -> Result<bool> {
        let binding = self.read(cx, stream).await?;
        Ok(binding.committed && binding.store == Some(store))
    }

    /// The store that a stream began in, if it has begun.
    pub async fn store(&self, cx: &Cx, stream: &str) -> Result<Option<StoreIdentity>> {
        Ok(self.read(cx, stream).await?.store)
    }

    async fn read(&self, cx: &Cx, stream: &str) -> Result<StoreBinding> {
        let record = self.records.get(cx, &self.name(stream)).await.map_err(failed)?;
        Ok(record.as_ref().map(decode).transpose().map_err(failed)?.unwrap_or_default())
    }

    async fn amend(&self, cx: &Cx, stream: &str, change: impl Fn(&mut StoreBinding)) -> Result<StoreBinding> {
        amend(&*self.records, cx, &self.name(stream), |binding, _| change(binding)).await.map_err(failed)
    }

    fn name(&self, stream: &str) -> String {
        format!("{}/home/{stream}", self.group)
    }
}

fn failed(error: Error) -> Error {
    error.raised_by(&Component::Records)
}
