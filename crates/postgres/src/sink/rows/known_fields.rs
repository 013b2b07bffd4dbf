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
const INSPECT_AFTER: Duration = Duration::from_secs(1);

/// So many fields without columns are remembered. What is more is looked for in every batch that has it.
const OTHERS_MAX: usize = 1_000;

/// What is known of the fields of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownFields {
    /// Those that columns are taken from.
    taken: BTreeSet<String>,
    /// Those that no column takes.
    others: BTreeSet<String>,
    inspected: Instant,
    /// Whether a field without a column was found before: those that are there from the beginning are left out on purpose.
    began: bool,
}

impl KnownFields {
    pub(super) fn of(columns: &[Column]) -> Self {
        let taken = columns.iter().map(|column| column.name.clone()).collect();
        Self { taken, others: BTreeSet::new(), inspected: Instant::now(), began: false }
    }

    /// Whether it is known what becomes of a field.
    pub(super) fn knows(&self, field: &str) -> bool {
        self.taken.contains(field) || self.others.contains(field)
    }

    /// Whether a column may have come for a field that had none.
    pub(super) fn is_due(&self) -> bool {
        !self.others.is_empty() && self.inspected.elapsed() >= INSPECT_AFTER
    }

    fn remember<'a>(&mut self, fields: impl IntoIterator<Item = &'a String>) {
        for field in fields {
            if self.others.len() < OTHERS_MAX && !self.knows(field) {
                self.others.insert(field.clone());
            }
        }
    }

    /// Columns of before that are not among those that were found.
    fn lost(&self, found: &[Column]) -> BTreeSet<String> {
        let found: BTreeSet<_> = found.iter().map(|column| &column.name).collect();
        self.taken.iter().filter(|column| !found.contains(column)).cloned().collect()
    }
}

/// Which table it is and whose sink writes it, for those who read the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) stream: String,
    pub(super) sink: String,
    pub(super) table: String,
}

impl Target {
    fn report_lost(&self, columns: &BTreeSet<String>) {
        let Self { stream, sink, table } = self;
        for field in columns {
            tracing::warn!(
                stream,
                sink,
                table,
                field,
                "the table has no column for this field any more, so it is not written; if the column was renamed, rename it back, or name the columns to write (columns)"
            );
        }
    }

    fn report_added(&self, column: &str, is_late: bool) {
        let Self { stream, sink, table } = self;
        if is_late {
            tracing::warn!(
                stream,
                sink,
                table,
                column,
                "a column came after its field and is written from now on; rows that were written before lack it: update them in the source, or copy it"
            );
        } else {
            tracing::info!(stream, sink, table, column, "a column came with its field and is written from now on");
        }
    }

    fn report_untaken(&self, field: &str, is_new: bool) {
        let Self { stream, sink, table } = self;
        if is_new {
            tracing::warn!(
                stream,
                sink,
                table,
                field,
                "a field came that no column takes, so it is not written; add a column of its name before the source has it"
            );
        } else {
            tracing::info!(stream, sink, table, field, "no column takes this field, so it is not written");
        }
    }
}

impl Shape {
    /// This shape after another look, which found `self`: with the columns of before that are still there, and those that came for
    /// fields of the source. A column that came, but no field with it yet, is not taken: its changes would be rejected.
    ///
    /// Where a column went, all are taken, as they are when the table is opened: one of those that came may be the same column
    /// under another name, and would be null from now on.
    pub(super) fn following(mut self, before: &Self, strangers: &BTreeSet<String>, target: &Target) -> Self {
        let Some(old) = &before.follows else { return self };
        let lost = old.lost(&self.columns);
        if lost.is_empty() {
            self.retain(|column| column.in_key || old.knows(&column.name) || strangers.contains(&column.name));
        }
        let mut follows = KnownFields::of(&self.columns);
        follows.began = true;
        follows.remember(&old.others);
        follows.remember(&lost);
        follows.remember(strangers);
        target.report_lost(&lost);
        for column in follows.taken.difference(&old.taken) {
            if old.others.contains(column) || strangers.contains(column) {
                target.report_added(column, old.others.contains(column));
            }
        }
        for field in strangers.difference(&follows.taken).filter(|field| !lost.contains(*field)) {
            target.report_untaken(field, old.began);
        }
        self.follows = Some(follows);
        self
    }

    /// This shape in place of that of `before`, with whose columns the table was written until now.
    pub(super) fn replacing(mut self, before: &Self, target: &Target) -> Self {
        let (Some(old), Some(follows)) = (&before.follows, &mut self.follows) else { return self };
        let lost = old.lost(&self.columns);
        target.report_lost(&lost);
        follows.began = old.began;
        follows.remember(&old.others);
        follows.remember(&lost);
        self
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
