use std::collections::BTreeMap;

/// What a writer knows of a change that it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The database has answered that it is durable.
    Acknowledged,
    /// The answer was lost: it may be there or not.
    Unknown,
}

/// What a writer wrote: for every key the changes 1, 2, 3 …, each with what is known of it.
///
/// What the database refused was never written and is not entered: its number is used again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    keys: BTreeMap<String, Vec<Entry>>,
}

impl Ledger {
    /// The number that the next change of a key has.
    pub fn next(&self, key: &str) -> u64 {
        self.keys.get(key).map_or(0, Vec::len) as u64 + 1
    }

    /// Enters the next change of a key.
    pub fn enter(&mut self, key: &str, entry: Entry) {
        self.keys.entry(key.to_owned()).or_default().push(entry);
    }

    /// What is known of a change; `None` if it was never written.
    pub fn get(&self, key: &str, number: u64) -> Option<Entry> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        self.keys.get(key)?.get(at).copied()
    }

    /// Every change, by key and number.
    pub fn entries(&self) -> impl Iterator<Item = (&str, u64, Entry)> {
        self.keys.iter().flat_map(|(key, entries)| {
            entries.iter().zip(1..).map(move |(entry, number)| (key.as_str(), number, *entry))
        })
    }

    /// How many changes there are, known or not.
    pub fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest change of every key that must arrive.
    pub fn newest(&self) -> impl Iterator<Item = (&str, u64)> {
        let due = |entries: &Vec<Entry>| entries.iter().rposition(|entry| *entry == Entry::Acknowledged);
        self.keys.iter().filter_map(move |(key, entries)| Some((key.as_str(), due(entries)? as u64 + 1)))
    }
}
