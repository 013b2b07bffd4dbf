//! The laws of [`Records`].

mod documents;
mod logs;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use watchkeeper_core::memory::RecordStore;
use watchkeeper_core::{Cx, Entropy, PutOutcome, Record, Records, Revision};

pub use documents::*;
pub use logs::*;

use super::lawful::{Broken, Law, ensure};
use super::macros::law_list;
use crate::world::World;

/// A store of records on the bench.
#[derive(Debug)]
pub struct RecordsBench {
    /// The context of all calls.
    pub cx: Cx,
    /// The store.
    pub a: Arc<dyn Records>,
    /// The same store, as another client sees it.
    pub b: Arc<dyn Records>,
    /// For names that nobody used before.
    pub entropy: Arc<Entropy>,
    /// A time after which the age of a record shows clearly.
    pub while_aging: Duration,
}

impl RecordsBench {
    /// The reference in memory, in virtual time.
    pub fn in_memory(world: &World) -> Self {
        let notes = RecordStore::new(world.clock());
        Self::in_world(world, Arc::new(notes.clone()), Arc::new(notes))
    }

    /// Two clients of one store, in virtual time.
    pub fn in_world(world: &World, a: Arc<dyn Records>, b: Arc<dyn Records>) -> Self {
        Self { cx: world.cx(), a, b, entropy: world.entropy(), while_aging: Duration::from_secs(2) }
    }

    fn name(&self) -> String {
        format!("law/{}", self.entropy.uuid())
    }

    /// Writes, and expects it to be done.
    async fn put(&self, name: &str, expected: Option<Revision>, text: &str) -> Result<Revision, Broken> {
        match self.a.put_if(&self.cx, name, expected, bytes(text)).await? {
            PutOutcome::Done(revision) => Ok(revision),
            PutOutcome::Conflict => {
                Err(Broken::new(format!("{name} is as expected ({expected:?}), yet there is a conflict")))
            }
        }
    }

    /// Writes as the other client, and expects a conflict that changes nothing.
    async fn ensure_conflict(&self, name: &str, expected: Option<Revision>) -> Law {
        let before = self.text(name).await?;
        let answer = self.b.put_if(&self.cx, name, expected, bytes("in conflict")).await?;
        ensure!(
            answer == PutOutcome::Conflict,
            "{name} is not as expected ({expected:?}), yet the answer is {answer:?}"
        );
        let after = self.text(name).await?;
        ensure!(before == after, "a conflict changed {before:?} to {after:?}");
        Ok(())
    }

    /// The document as the other client sees it.
    async fn seen(&self, name: &str) -> Result<Option<Record>, Broken> {
        Ok(self.b.get(&self.cx, name).await?)
    }

    async fn text(&self, name: &str) -> Result<Option<(Bytes, Revision)>, Broken> {
        Ok(self.seen(name).await?.map(|record| (record.bytes, record.revision)))
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

law_list! {
    /// One test per law of records. The argument is a `fn(&LawOf<RecordsBench>) -> Law`.
    records_laws, records, RecordsBench, $, [
        r1_of_many_at_once_one_creates,
        r1_of_many_at_once_one_updates,
        r1_unexpected_state_is_a_conflict,
        r2_revisions_are_never_reused,
        r3_oversized_is_refused_and_changes_nothing,
        r3_largest_is_taken,
        r4_document_of_another_revision_stays,
        r4_expected_document_is_deleted,
        r5_newest_entries_are_kept_in_order,
        r5_appends_at_once_are_all_kept,
        r5_logs_are_independent,
        tail_is_the_newest_with_the_oldest_first,
        get_gives_what_was_put,
        list_is_by_prefix_in_the_order_of_names,
        list_takes_the_prefix_literally,
        age_is_since_the_last_write,
    ]
}
