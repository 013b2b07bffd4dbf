//! What exists at some point of a plan.

use watchkeeper_core::Entropy;

use super::{Column, Table};

/// A table as it is at some point of the plan.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) table: Table,
    /// The numbers of the keys that exist.
    pub(super) keys: Vec<u64>,
    /// The next number of a key that was never used.
    pub(super) next_key: u64,
    /// The next number of a column that was never used.
    pub(super) next_column: u64,
    /// Numbers of keys that are free again.
    pub(super) freed: Vec<u64>,
    /// Whether it exists: a collection that was dropped does so again with its next document.
    pub(super) exists: bool,
}

impl Rows {
    pub(super) fn of(table: Table) -> Self {
        let next_column = table.columns.len() as u64;
        Self { table, keys: Vec::new(), next_key: 1, next_column, freed: Vec::new(), exists: true }
    }

    /// A row of this key is inserted.
    pub(super) fn insert(&mut self, key: u64) {
        self.keys.push(key);
        self.exists = true;
    }

    /// The collection is dropped or renamed.
    pub(super) fn drop_all(&mut self) {
        self.clear();
        self.exists = false;
    }

    /// An empty collection takes the place of this one, which need not exist.
    pub(super) fn replace_by_empty(&mut self) {
        self.clear();
        self.exists = true;
    }

    /// The number of a free key, now and then one that was used before.
    pub(super) fn free_key(&mut self, entropy: &Entropy) -> u64 {
        if !self.freed.is_empty() && entropy.below(3) == 0 {
            return self.freed.swap_remove(at(entropy, self.freed.len()));
        }
        self.next_key += 1;
        self.next_key - 1
    }

    /// The number of a key that exists.
    pub(super) fn some_key(&self, entropy: &Entropy) -> Option<u64> {
        if self.keys.is_empty() { None } else { Some(self.keys[at(entropy, self.keys.len())]) }
    }

    pub(super) fn remove(&mut self, key: u64) {
        self.keys.retain(|present| *present != key);
        self.freed.push(key);
    }

    pub(super) fn clear(&mut self) {
        self.freed.append(&mut self.keys);
    }

    /// The name of a column that there never was.
    pub(super) fn new_column(&mut self) -> String {
        self.next_column += 1;
        format!("c{}", self.next_column)
    }

    /// A column that exists.
    pub(super) fn some_column(&self, entropy: &Entropy) -> Option<&Column> {
        let columns = &self.table.columns;
        if columns.is_empty() { None } else { Some(&columns[at(entropy, columns.len())]) }
    }
}

/// A place in a list of this length.
pub(super) fn at(entropy: &Entropy, length: usize) -> usize {
    usize::try_from(entropy.below(length as u64)).unwrap_or(0)
}
