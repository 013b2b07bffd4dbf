//! Changes that were fatal, and to how many instances.
//!
//! A change that kills whoever handles it would tour the group: each instance dies of it, the next
//! one takes over. Counting the *distinct* instances stops that after the second.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use watchkeeper_core::change::key_hash_v1;
use watchkeeper_core::{Cx, InstanceId, Records, Result};

use super::{amend, remove};

/// So many changes are remembered per stream; the one named longest ago is forgotten first.
pub const CHANGES_KEPT: usize = 16;

/// So many instances are remembered per change; far more than ever decide anything.
const INSTANCES_KEPT: usize = 32;

/// Longer ids are cut and told apart by a hash, so that all fit into one record.
const ID_BYTES_MAX: usize = 1_024;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Suspects {
    #[serde(default)]
    changes: Vec<Suspect>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Suspect {
    id: String,
    instances: BTreeSet<InstanceId>,
}

impl Suspects {
    /// Adds a verdict; the change moves to the end.
    fn add(&mut self, id: &str, instance: InstanceId) {
        let known = self.changes.iter().position(|suspect| suspect.id == id);
        let fresh = || Suspect { id: id.to_owned(), instances: BTreeSet::new() };
        let mut suspect = known.map_or_else(fresh, |at| self.changes.remove(at));
        if suspect.instances.len() < INSTANCES_KEPT {
            suspect.instances.insert(instance);
        }
        self.changes.push(suspect);
        let excess = self.changes.len().saturating_sub(CHANGES_KEPT);
        self.changes.drain(..excess);
    }

    fn count(&self, id: &str) -> usize {
        self.changes.iter().find(|suspect| suspect.id == id).map_or(0, |suspect| suspect.instances.len())
    }
}

/// The fatal changes of a group's streams.
#[derive(Debug, Clone)]
pub struct Poison {
    records: Arc<dyn Records>,
    group: String,
}

impl Poison {
    /// The fatal changes of `group`'s streams.
    pub fn new(records: Arc<dyn Records>, group: &str) -> Self {
        Self { records, group: group.to_owned() }
    }

    /// Writes down that a change was fatal to an instance; the answer is to how many distinct ones it
    /// has been. It is stored when this returns, so the instance may release, or die, right after.
    pub async fn record(&self, cx: &Cx, stream: &str, change_id: &str, instance: InstanceId) -> Result<usize> {
        let id = shorten(change_id);
        let add = |suspects: &mut Suspects, _| suspects.add(&id, instance);
        Ok(amend(&*self.records, cx, &self.name(stream), add).await?.count(&id))
    }

    /// Forgets a stream's fatal changes: a person has dealt with them, and they get another chance.
    pub async fn clear(&self, cx: &Cx, stream: &str) -> Result<()> {
        remove(&*self.records, cx, &self.name(stream)).await.map(drop)
    }

    fn name(&self, stream: &str) -> String {
        format!("{}/poison/{stream}", self.group)
    }
}

fn shorten(id: &str) -> Cow<'_, str> {
    if id.len() <= ID_BYTES_MAX {
        return Cow::Borrowed(id);
    }
    let end = (0..=ID_BYTES_MAX).rev().find(|at| id.is_char_boundary(*at)).unwrap_or(0);
    let start = &id[..end];
    Cow::Owned(format!("{start}…{:016x}", key_hash_v1(id.as_bytes())))
}
