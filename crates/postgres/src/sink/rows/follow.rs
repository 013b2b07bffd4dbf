//! Columns that come and go while a stream runs.
//!
//! The columns of a table are looked at when a writer is opened. Where each is taken from the field of its name, one that is added to
//! the table and to the source later shows as a field that no column takes: then the table is looked at again, before the
//! change is written. What still has no column is remembered, and looked for again only now and then.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::field::Column;
use super::shape::Shape;

/// After so long a column is looked for again that was not there.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// So many fields without columns are remembered. What is more is looked for in every batch that has it.
const OTHERS_MAX: usize = 1_000;

/// What is known of the fields of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Follows {
    /// Those that columns are taken from.
    taken: BTreeSet<String>,
    /// Those that no column takes.
    others: BTreeSet<String>,
    looked: Instant,
    /// Whether a field without a column was found before: those that are there from the beginning are left out on purpose.
    began: bool,
}

impl Follows {
    pub(super) fn of(columns: &[Column]) -> Self {
        let taken = columns.iter().map(|column| column.name.clone()).collect();
        Self { taken, others: BTreeSet::new(), looked: Instant::now(), began: false }
    }

    /// Whether it is known what becomes of a field.
    pub(super) fn knows(&self, field: &str) -> bool {
        self.taken.contains(field) || self.others.contains(field)
    }

    /// Whether a column may have come for a field that had none.
    pub(super) fn is_due(&self) -> bool {
        !self.others.is_empty() && self.looked.elapsed() >= LOOK_AFTER
    }

    fn remember(&mut self, fields: &BTreeSet<String>) {
        let room = OTHERS_MAX.saturating_sub(self.others.len());
        let fresh: Vec<_> = fields.iter().filter(|field| !self.knows(field)).take(room).cloned().collect();
        self.others.extend(fresh);
    }
}

impl Shape {
    /// This shape after another look, which found `self`: with the columns of before that are still there, and those that came for
    /// fields of the source. A column that came, but no field with it yet, is not taken: its changes would be rejected.
    pub(super) fn following(mut self, before: &Self, strangers: &BTreeSet<String>) -> Self {
        let Some(old) = &before.follows else { return self };
        self.columns.retain(|column| column.in_key || old.knows(&column.name) || strangers.contains(&column.name));
        let mut follows = Follows::of(&self.columns);
        follows.began = true;
        follows.remember(&old.others);
        follows.remember(strangers);
        self.tell(old, &follows, strangers);
        self.follows = Some(follows);
        self
    }

    fn tell(&self, old: &Follows, new: &Follows, strangers: &BTreeSet<String>) {
        let table = &self.table;
        for column in new.taken.difference(&old.taken) {
            if old.others.contains(column) {
                tracing::warn!(
                    table,
                    column,
                    "a column came after its field and is written from now on; rows that were written before lack it: update them in the source, or copy it"
                );
            } else {
                tracing::info!(table, column, "a column came with its field and is written from now on");
            }
        }
        for field in strangers.difference(&new.taken) {
            if old.began {
                tracing::warn!(
                    table,
                    field,
                    "a field came that no column takes, so it is not written; add a column of its name before the source has it"
                );
            } else {
                tracing::info!(table, field, "no column takes this field, so it is not written");
            }
        }
    }

    /// The same, with fields remembered that no column takes.
    pub(super) fn remembering(&self, strangers: &BTreeSet<String>) -> Self {
        let mut shape = self.clone();
        if let Some(follows) = &mut shape.follows {
            follows.remember(strangers);
        }
        shape
    }
}
