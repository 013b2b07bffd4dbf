//! What becomes of a rejected change.
//!
//! A dead letter parks its key: later changes of that key follow it into the ledger, so that they are
//! not applied before it, until all of them have been replayed in order. This is the bookkeeping of it,
//! pure; entries are written by the commit that passes their changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use watchkeeper_core::{Change, LedgerEntry, LedgerKind, LedgerRecord, Position, StoredChange};

/// What to do with a change that a sink will never take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnReject {
    /// Halt the stream until a person has looked.
    #[default]
    Stop,
    /// Keep it in the ledger for replay, and go on.
    DeadLetter {
        /// What waits for the replay.
        #[serde(default)]
        park: Park,
    },
    /// Note it in the ledger, and go on.
    Skip,
}

/// What waits for the replay of a dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Park {
    /// All later changes of its key, so that the order of a key holds.
    #[default]
    Key,
    /// Only itself: for sinks that take whole documents, where a later change makes up for it.
    Change,
}

/// How much may be parked before the stream halts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkLimits {
    /// So many keys.
    pub keys_max: usize,
    /// So many open entries.
    pub entries_max: u64,
}

impl Default for ParkLimits {
    fn default() -> Self {
        Self { keys_max: 1_000, entries_max: 10_000 }
    }
}

/// The open dead letters of one sink, and the keys they park.
#[derive(Debug)]
pub struct Parked {
    sink: String,
    park: Park,
    limits: ParkLimits,
    /// Open entries by namespace and key. Nested, so that looking needs no key of its own.
    keys: BTreeMap<Arc<str>, BTreeMap<Bytes, u64>>,
    keys_count: usize,
    entries: u64,
}

impl Parked {
    /// Nothing is parked for `sink`.
    pub fn new(sink: impl Into<String>, park: Park, limits: ParkLimits) -> Self {
        Self { sink: sink.into(), park, limits, keys: BTreeMap::new(), keys_count: 0, entries: 0 }
    }

    /// Takes over what earlier tenures have left in the ledger: all open letters of this sink. The
    /// ledger is read in pages, so this may be called with one after the other.
    pub fn restore(&mut self, records: &[LedgerRecord]) {
        records.iter().filter(|record| record.resolution.is_none()).for_each(|record| self.park(&record.entry));
    }

    /// Whether a change of this key has to follow others into the ledger.
    pub fn is_parked(&self, namespace: &str, key: &[u8]) -> bool {
        self.keys.get(namespace).is_some_and(|keys| keys.contains_key(key))
    }

    /// Counts an entry that is now open, and parks its key. Entries of other sinks and those that are
    /// no letters are passed over. A change without a key parks nothing, but is counted.
    pub fn park(&mut self, entry: &LedgerEntry) {
        if !self.is_ours(entry) {
            return;
        }
        self.entries += 1;
        if let Some((namespace, key)) = self.parked_key(entry) {
            let open = self.keys.entry(namespace).or_default().entry(key).or_default();
            self.keys_count += usize::from(*open == 0);
            *open += 1;
        }
    }

    /// Counts an entry that is no longer open. Its key stays parked until none of its entries is left.
    pub fn unpark(&mut self, entry: &LedgerEntry) {
        if !self.is_ours(entry) {
            return;
        }
        self.entries = self.entries.saturating_sub(1);
        let Some((namespace, key)) = self.parked_key(entry) else { return };
        let Some(keys) = self.keys.get_mut(&namespace) else { return };
        let Some(open) = keys.get_mut(&key) else { return };
        *open -= 1;
        if *open == 0 {
            keys.remove(&key);
            self.keys_count -= 1;
        }
        if keys.is_empty() {
            self.keys.remove(&namespace);
        }
    }

    fn is_ours(&self, entry: &LedgerEntry) -> bool {
        entry.kind.is_letter() && entry.sink == self.sink
    }

    fn parked_key(&self, entry: &LedgerEntry) -> Option<(Arc<str>, Bytes)> {
        if self.park == Park::Change {
            return None;
        }
        let change = entry.change.as_ref()?;
        Some((Arc::clone(&change.namespace), change.key.clone()?))
    }

    /// How many keys are parked.
    pub fn keys(&self) -> usize {
        self.keys_count
    }

    /// How many entries are open.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Why the stream has to halt, if more is parked than may be.
    pub fn over_limit(&self) -> Option<String> {
        let Self { sink, limits, keys_count, entries, .. } = self;
        if *keys_count > limits.keys_max {
            return Some(format!("sink {sink}: {keys_count} keys are parked, at most {} may be", limits.keys_max));
        }
        (*entries > limits.entries_max)
            .then(|| format!("sink {sink}: {entries} dead letters are open, at most {} may be", limits.entries_max))
    }
}

/// The ledger entry of `change`, which `sink` did not take.
pub fn entry_for(
    kind: LedgerKind,
    sink: &str,
    change: &Change,
    cause: impl Into<String>,
    before: Option<Position>,
) -> LedgerEntry {
    LedgerEntry {
        kind,
        sink: sink.to_owned(),
        change_id: change.id().to_string(),
        cause: cause.into(),
        before,
        change: Some(StoredChange::keep(change)),
    }
}

/// The open letters among `records`, grouped by sink and key, each group in the order of numbers: the
/// order in which the changes happened. Groups do not depend on each other; they come in the order of
/// their first numbers. A change without a key is a group of its own.
pub fn replay_order(mut records: Vec<LedgerRecord>) -> Vec<Vec<LedgerRecord>> {
    records.retain(|record| record.resolution.is_none() && record.entry.kind.is_letter());
    records.sort_by_key(|record| record.number);
    let mut groups: Vec<Vec<LedgerRecord>> = Vec::new();
    let mut places = BTreeMap::new();
    for record in records {
        let place = group_of(&record.entry).map(|group| *places.entry(group).or_insert(groups.len()));
        match place.and_then(|place| groups.get_mut(place)) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups
}

fn group_of(entry: &LedgerEntry) -> Option<(String, Arc<str>, Bytes)> {
    let change = entry.change.as_ref()?;
    Some((entry.sink.clone(), Arc::clone(&change.namespace), change.key.clone()?))
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::payload::JsonPayload;
    use watchkeeper_core::{BatchBuilder, Operation, Resolution, RowParts, SourceTime, Version};

    use super::*;

    fn change(namespace: &str, key: Option<&str>) -> Change {
        let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
        let namespace = builder.namespace(namespace);
        builder.push(RowParts {
            operation: Operation::Insert,
            namespace,
            half: 0,
            committable: true,
            key: key.map(str::as_bytes),
            position: b"\x07",
            body: b"{}",
            time: SourceTime(1),
            version: Version::default(),
        });
        Change::new(Arc::new(builder.finish(Position::new("7", None))), 0)
    }

    fn letter(sink: &str, namespace: &str, key: &str) -> LedgerEntry {
        entry_for(LedgerKind::DeadLetter, sink, &change(namespace, Some(key)), "no", None)
    }

    fn record(number: u64, entry: LedgerEntry) -> LedgerRecord {
        LedgerRecord::new(number, entry, None)
    }

    fn parked() -> Parked {
        Parked::new("search", Park::Key, ParkLimits::default())
    }

    #[test]
    fn policies_are_written_as_people_write_them() {
        let read = |text| serde_json::from_str::<OnReject>(text).expect("a policy");
        assert_eq!(OnReject::default(), OnReject::Stop);
        assert_eq!(read(r#""stop""#), OnReject::Stop);
        assert_eq!(read(r#""skip""#), OnReject::Skip);
        assert_eq!(read(r#"{"dead-letter":{}}"#), OnReject::DeadLetter { park: Park::Key });
        let change = OnReject::DeadLetter { park: Park::Change };
        let text = serde_json::to_string(&change).expect("a policy is text");
        assert_eq!((text.as_str(), read(&text)), (r#"{"dead-letter":{"park":"change"}}"#, change));
    }

    #[test]
    fn a_key_is_parked_until_its_last_entry_is_settled() {
        let mut parked = parked();
        let (first, second) = (letter("search", "orders", "1"), letter("search", "orders", "1"));
        parked.park(&first);
        parked.park(&LedgerEntry { kind: LedgerKind::Parked, ..second.clone() });
        assert!(parked.is_parked("orders", b"1"));
        assert!(!parked.is_parked("orders", b"2") && !parked.is_parked("users", b"1"));
        assert_eq!((parked.keys(), parked.entries()), (1, 2));
        parked.unpark(&first);
        assert!(parked.is_parked("orders", b"1"));
        parked.unpark(&second);
        assert!(!parked.is_parked("orders", b"1"));
        assert_eq!((parked.keys(), parked.entries()), (0, 0));
        parked.unpark(&second);
        assert_eq!((parked.keys(), parked.entries()), (0, 0));
    }

    #[test]
    fn only_open_letters_of_this_sink_are_restored() {
        let resolved = LedgerRecord::new(1, letter("search", "o", "1"), Some(Resolution::Replayed));
        let skipped = LedgerEntry { kind: LedgerKind::Skipped, ..letter("search", "o", "2") };
        let follower = LedgerEntry { kind: LedgerKind::Parked, ..letter("search", "o", "4") };
        let keyless = entry_for(LedgerKind::DeadLetter, "search", &change("o", None), "no", None);
        let records = [
            resolved,
            record(2, skipped),
            record(3, letter("other", "o", "3")),
            record(4, follower),
            record(5, keyless),
        ];
        let mut parked = parked();
        parked.restore(&records);
        let keys: Vec<_> = ["1", "2", "3", "4"].map(|key| parked.is_parked("o", key.as_bytes())).into();
        assert_eq!(keys, [false, false, false, true]);
        assert_eq!((parked.keys(), parked.entries()), (1, 2));
    }

    #[test]
    fn parking_only_the_change_parks_no_key() {
        let mut parked = Parked::new("search", Park::Change, ParkLimits::default());
        parked.restore(&[record(1, letter("search", "orders", "1"))]);
        assert!(!parked.is_parked("orders", b"1"));
        assert_eq!((parked.keys(), parked.entries()), (0, 1));
    }

    #[test]
    fn too_many_keys_or_entries_are_over_the_limit() {
        let mut parked = Parked::new("search", Park::Key, ParkLimits { keys_max: 2, entries_max: 3 });
        for key in ["1", "2", "2"] {
            parked.park(&letter("search", "orders", key));
            assert_eq!(parked.over_limit(), None);
        }
        parked.park(&letter("search", "orders", "2"));
        let cause = parked.over_limit().expect("four entries are too many");
        assert_eq!(cause, "sink search: 4 dead letters are open, at most 3 may be");
        parked.unpark(&letter("search", "orders", "2"));
        parked.unpark(&letter("search", "orders", "2"));
        assert_eq!(parked.over_limit(), None);
        parked.park(&letter("search", "orders", "3"));
        let cause = parked.over_limit().expect("three keys are too many");
        assert_eq!(cause, "sink search: 3 keys are parked, at most 2 may be");
    }

    #[test]
    fn an_entry_says_what_is_needed_to_deliver_it_again() {
        let (change, before) = (change("orders", Some("1")), Position::new("6", None));
        let entry = entry_for(LedgerKind::DeadLetter, "search", &change, "mapping", Some(before.clone()));
        assert_eq!(
            (entry.kind, entry.sink.as_str(), entry.cause.as_str()),
            (LedgerKind::DeadLetter, "search", "mapping")
        );
        assert_eq!((entry.change_id.as_str(), entry.before), ("log:07", Some(before)));
        let stored = entry.change.expect("it is kept");
        assert_eq!((&*stored.namespace, stored.key.as_deref()), ("orders", Some(&b"1"[..])));
    }

    #[test]
    fn a_replay_goes_key_by_key_in_the_order_of_numbers() {
        let keyless = || entry_for(LedgerKind::DeadLetter, "search", &change("orders", None), "no", None);
        let resolved = LedgerRecord::new(2, letter("search", "orders", "1"), Some(Resolution::Purged));
        let skipped = record(3, LedgerEntry { kind: LedgerKind::Skipped, ..letter("search", "orders", "1") });
        let records = vec![
            record(9, letter("search", "orders", "1")),
            record(8, letter("search", "users", "1")),
            record(7, keyless()),
            record(6, letter("search", "orders", "2")),
            record(5, letter("other", "orders", "1")),
            record(4, letter("search", "orders", "1")),
            record(10, keyless()),
            record(11, letter("search", "orders", "2")),
            skipped,
            resolved,
        ];
        let groups = replay_order(records);
        let numbers: Vec<Vec<_>> =
            groups.iter().map(|group| group.iter().map(|record| record.number).collect()).collect();
        assert_eq!(numbers, [vec![4, 9], vec![5], vec![6, 11], vec![7], vec![8], vec![10]]);
    }
}
