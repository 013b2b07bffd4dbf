//! How far a snapshot is, as a position keeps it.

use std::cmp::Ordering;

use mongodb::bson::Timestamp;
use watchkeeper_core::{Position, Stage};

use crate::payload::scan::{Field, Fields};
use crate::position::Token;
use crate::source::id::{Id, RawFields, timestamp};
use crate::source::order;
use crate::source::view::{Scope, View};

/// The range that was read last: changes up to its time are in its rows already.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fresh {
    pub(super) collection: usize,
    /// It begins behind this `_id`.
    pub(super) from: Option<Id>,
    pub(super) at: Timestamp,
}

/// How far a snapshot is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Progress {
    /// So many collections are finished.
    pub(super) collection: usize,
    /// The next one is finished up to and including this `_id`.
    pub(super) through: Option<Id>,
    pub(super) fresh: Option<Fresh>,
    /// So many rows were read, over all collections.
    pub(super) rows: u64,
    /// Of about so many, as they were when it began; zero when that is not known.
    pub(super) rows_expected: u64,
}

impl Progress {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut document = RawFields::default();
        document.append_number("c", i64::try_from(self.collection).unwrap_or(i64::MAX));
        if let Some(through) = &self.through {
            document.append("t", through.as_field());
        }
        if let Some(fresh) = &self.fresh {
            document.append_number("fc", i64::try_from(fresh.collection).unwrap_or(i64::MAX));
            document.append_timestamp("fa", fresh.at);
            if let Some(from) = &fresh.from {
                document.append("ff", from.as_field());
            }
        }
        for (name, rows) in [("n", self.rows), ("ne", self.rows_expected)] {
            document.append_number(name, i64::try_from(rows).unwrap_or(i64::MAX));
        }
        document.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let fields: Vec<Field<'_>> = Fields::of(bytes).and_then(Iterator::collect).ok()?;
        let field = |name: &str| fields.iter().find(|field| field.name == name.as_bytes());
        let number = |name: &str| field(name).and_then(Field::integer);
        let place = |name: &str| number(name).and_then(|number| usize::try_from(number).ok());
        let value = |name: &str| field(name).map(|field| Id::from(*field));
        let fresh = field("fa").and_then(timestamp);
        let fresh = fresh.and_then(|at| Some(Fresh { collection: place("fc")?, from: value("ff"), at }));
        // Builds before this did not count.
        let rows = |name: &str| number(name).and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0);
        let (rows, rows_expected) = (rows("n"), rows("ne"));
        Some(Self { collection: place("c")?, through: value("t"), fresh, rows, rows_expected })
    }

    /// Whether a change has to be delivered: its key was read, and not as late as this. A delete is also delivered of a key
    /// that counts as not yet read, since whoever read it before a crash may have delivered it without committing that.
    pub(super) fn wants(&self, collection: usize, id: &Field<'_>, at: Timestamp, deletes: bool) -> bool {
        let behind = |bound: &Option<Id>| {
            // What cannot be compared counts as not yet read, and as read again.
            bound.as_ref().is_none_or(|bound| order::compare(id, &bound.as_field()) == Some(Ordering::Greater))
        };
        let is_read = match collection.cmp(&self.collection) {
            Ordering::Less => true,
            Ordering::Equal => self.through.is_some() && !behind(&self.through),
            Ordering::Greater => false,
        };
        let in_rows = |fresh: &Fresh| fresh.collection == collection && behind(&fresh.from) && at <= fresh.at;
        (is_read || deletes) && !self.fresh.as_ref().is_some_and(in_rows)
    }

    fn compare(&self, other: &Self) -> Option<Ordering> {
        match self.collection.cmp(&other.collection) {
            Ordering::Equal => match (&self.through, &other.through) {
                (None, None) => Some(Ordering::Equal),
                (None, Some(_)) => Some(Ordering::Less),
                (Some(_), None) => Some(Ordering::Greater),
                (Some(a), Some(b)) => order::compare(&a.as_field(), &b.as_field()),
            },
            order => Some(order),
        }
    }
}

/// How far a snapshot is, by a position of it.
pub(in crate::source) fn stage(view: &View, position: &Position) -> Option<Stage> {
    let (_, progress) = Token::decode_with_progress(position).ok()?;
    let progress = Progress::decode(progress?)?;
    let Scope::Collections(names) = &view.scope else { return None };
    let of = (progress.rows_expected > 0).then_some(progress.rows_expected.max(progress.rows));
    let what = match names.get(progress.collection) {
        Some(name) => format!("snapshot: reading {name}, {} of {}", progress.collection + 1, names.len()),
        None => "snapshot: all is read, and the changes meanwhile are caught up with".to_owned(),
    };
    Some(Stage { what, done: progress.rows, of, unit: "rows" })
}

/// Whether rows of a snapshot are still to be read, by a position of it.
pub(in crate::source) fn is_unfinished(view: &View, position: &Position) -> bool {
    let Ok((_, Some(progress))) = Token::decode_with_progress(position) else { return false };
    match &view.scope {
        Scope::Collections(names) => {
            Progress::decode(progress).is_none_or(|progress| progress.collection < names.len())
        }
        // How many there are is known to the server.
        _ => true,
    }
}

/// Which of two positions is earlier. A snapshot moves on in two ways; where they contradict, nothing is known.
pub(in crate::source) fn compare(a: &Position, b: &Position) -> Option<Ordering> {
    let ((a, progress_a), (b, progress_b)) =
        (Token::decode_with_progress(a).ok()?, Token::decode_with_progress(b).ok()?);
    let of_progress = match (progress_a, progress_b) {
        (None, None) => return Some(a.data.cmp(&b.data)),
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => Progress::decode(a)?.compare(&Progress::decode(b)?)?,
    };
    match (a.data.cmp(&b.data), of_progress) {
        (Ordering::Equal, order) | (order, Ordering::Equal) => Some(order),
        (of_token, of_progress) => (of_token == of_progress).then_some(of_token),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{RawDocumentBuf, doc};

    use super::*;

    fn id(number: i32) -> Id {
        let document = RawDocumentBuf::try_from(&doc! { "_id": number }).expect("a document");
        Id::of(document.as_bytes()).expect("it has one")
    }

    fn at(increment: u32) -> Timestamp {
        Timestamp { time: 7, increment }
    }

    fn progress() -> Progress {
        let fresh = Fresh { collection: 1, from: Some(id(10)), at: at(5) };
        Progress { collection: 1, through: Some(id(20)), fresh: Some(fresh), rows: 20, rows_expected: 50 }
    }

    #[test]
    fn only_changes_of_what_was_read_and_later_are_wanted() {
        let asked = |collection, number: i32, increment, deletes| {
            progress().wants(collection, &id(number).as_field(), at(increment), deletes)
        };
        let wants = |collection, id, increment| asked(collection, id, increment, false);
        assert!(wants(0, 99, 1), "a collection that is finished");
        assert!(wants(1, 10, 1) && wants(1, 3, 9), "ranges before the last one");
        assert!(!wants(1, 11, 5) && wants(1, 11, 6) && !wants(1, 20, 1), "the last range");
        assert!(!wants(1, 21, 9) && !wants(2, 1, 9), "what is not yet read");
        let deletes = |collection, id, increment| asked(collection, id, increment, true);
        assert!(deletes(1, 21, 9) && deletes(2, 1, 9), "it may have been delivered before a crash");
        assert!(!deletes(1, 11, 5) && deletes(1, 11, 6), "rows that were read after the delete show what came of it");
    }

    #[test]
    fn progress_is_kept_in_bytes() {
        for progress in [Progress::default(), progress()] {
            assert_eq!(Progress::decode(&progress.encode()), Some(progress));
        }
        assert_eq!(Progress::decode(b"half"), None);
        // As earlier builds wrote it, with the driver.
        let earlier = doc! {
            "c": 1_i64, "t": 20, "fc": 1_i64, "fa": at(5), "ff": 10, "n": 20_i64, "ne": 50_i64,
        };
        let earlier = RawDocumentBuf::try_from(&earlier).expect("a document");
        assert_eq!(earlier.as_bytes(), progress().encode());
    }
}
