//! By which columns the rows of published tables are told apart.
//!
//! A copy finds its rows again by them. When a table is given another primary key or replica identity, the log goes on with other
//! keys and says nothing: the copy would keep every old row beside its new one. So the columns are remembered beside the
//! position, by numbers that they keep when they are renamed, and each description of a table in the log is compared with
//! the one before it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::publication_definition::{Digest, PublicationDefinition};
use super::relation::Relation;
use super::settings::{Settings, literal};

/// What tells the rows of a table apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    /// The number of the table, which it keeps when it is renamed.
    pub(super) id: u32,
    /// The numbers of its columns, the smallest first; none while the table has no key.
    pub(super) columns: Vec<i16>,
    /// Their names, in the same order.
    pub(super) names: Vec<String>,
    /// Schema and table, with a point between. It is not stored.
    #[serde(default, skip_serializing)]
    pub(super) table: String,
}

impl Key {
    /// Its part of a [`Digest`].
    pub(super) fn print(&self) -> (u32, u64) {
        let columns: Vec<u8> = self.columns.iter().flat_map(|column| column.to_be_bytes()).collect();
        (self.id, xxh3_64(&[&self.id.to_be_bytes()[..], &columns].concat()))
    }

    /// What is remembered of a table that was told apart by `before`.
    fn after(&self, before: &Self) -> Result<Self> {
        if before.columns.is_empty() || before.columns == self.columns {
            return Ok(self.clone());
        }
        if self.columns.is_empty() {
            // It may get its key back; nothing can be told of it until then.
            return Ok(Self { columns: before.columns.clone(), names: before.names.clone(), ..self.clone() });
        }
        Err(other_key(&self.table, &before.names, &self.names))
    }
}

/// An expression that is an array of [`Key`] as JSON: one for each table that the publication `p` tells of.
pub(super) fn expression(settings: &Settings) -> String {
    let names: Vec<_> = settings.qualified().iter().map(|name| literal(name)).collect();
    let chosen = match names.is_empty() {
        true => String::new(),
        false => format!("AND t.schemaname || '.' || t.tablename IN ({})", names.join(", ")),
    };
    format!(
        "(SELECT coalesce(pg_catalog.jsonb_agg(k), '[]') FROM (
            SELECT c.oid::bigint AS id, t.schemaname || '.' || t.tablename AS \"table\",
                coalesce(pg_catalog.jsonb_agg(a.attnum ORDER BY a.attnum) FILTER (WHERE a.attnum > 0), '[]') AS columns,
                coalesce(pg_catalog.jsonb_agg(a.attname ORDER BY a.attnum) FILTER (WHERE a.attnum > 0), '[]') AS names
            FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
            JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
            LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
                AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
            LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
                AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            WHERE t.pubname = p.pubname {chosen} GROUP BY 1, 2 ORDER BY 1) k)"
    )
}

/// What is remembered of keys from now on. Tables that come are taken in, and those that go forgotten.
///
/// # Errors
/// `PositionLost` when rows of a table are told apart by other columns than before.
pub(super) fn compared(before: &PublicationDefinition, now: &PublicationDefinition) -> Result<Option<Vec<Key>>> {
    let Some(keys) = &now.keys else { return Ok(before.keys.clone()) };
    if let Some(many) = &before.keys_of_many {
        require_among(many, &now.name, keys)?;
    }
    let old: BTreeMap<u32, &Key> = before.keys.iter().flatten().map(|key| (key.id, key)).collect();
    let remembered = keys.iter().map(|key| old.get(&key.id).map_or_else(|| Ok(key.clone()), |old| key.after(old)));
    remembered.collect::<Result<_>>().map(Some)
}

/// The same for more tables than are remembered one by one. Where some have gone nothing is known of the others.
fn require_among(many: &Digest, publication: &str, keys: &[Key]) -> Result<()> {
    let is_certain = keys.iter().all(|key| !key.columns.is_empty()) && many.counts_as(keys.iter().map(Key::print));
    if !is_certain || many.is_in(keys.iter().map(Key::print)) {
        return Ok(());
    }
    Err(lost(&format!("rows of a table of publication {publication} are told apart by other columns than before")))
}

/// What the log has said of keys so far.
#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    /// Whether all that comes has to have the keys that were remembered. Otherwise what is left of older ones may still come.
    is_strict: bool,
    names: BTreeMap<u32, Vec<String>>,
    /// The numbers of the tables that are given out, as far as they are known.
    chosen: BTreeSet<u32>,
}

/// How a description of a table compares with what was known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// It has the key that it had, or is new.
    Alike,
    /// Its key is another one; only the server can tell whether that was known when reading began.
    Doubtful,
    /// Its key is another one than this, which was remembered.
    Other(Vec<String>),
}

impl KnownKeys {
    /// What is known of the log behind a place for which this was remembered.
    pub(super) fn of(remembered: Option<&PublicationDefinition>) -> Self {
        let keys = remembered.and_then(|scope| scope.keys.as_deref());
        let with_columns = keys.unwrap_or_default().iter().filter(|key| !key.columns.is_empty());
        let names = with_columns.map(|key| (key.id, key.names.clone())).collect();
        let chosen = keys.unwrap_or_default().iter().map(|key| key.id).collect();
        Self { is_strict: keys.is_some(), names, chosen }
    }

    /// Whether a table is one of those that are given out.
    pub(super) fn has_chosen(&self, id: u32) -> bool {
        self.chosen.contains(&id)
    }

    /// Takes in that a table is given out.
    pub(super) fn choose(&mut self, id: u32) {
        self.chosen.insert(id);
    }

    /// Takes in how the log describes a table.
    pub(super) fn describe(&mut self, id: u32, relation: &Relation) -> Compared {
        let now: Vec<_> = relation.key_names().map(str::to_owned).collect();
        if now.is_empty() {
            return Compared::Alike;
        }
        let other = self.names.get(&id).filter(|before| is_other(before, &now, relation));
        if let (Some(before), true) = (other, self.is_strict) {
            return Compared::Other(before.clone());
        }
        let compared = if other.is_some() { Compared::Doubtful } else { Compared::Alike };
        self.names.insert(id, now);
        compared
    }
}

/// Whether a key is another one, and not only called otherwise: a column of it is still there, but not in the key.
fn is_other(before: &[String], now: &[String], relation: &Relation) -> bool {
    before.len() != now.len() || before.iter().any(|name| !now.contains(name) && relation.has_column(name))
}

/// The error of rows that are told apart by other columns than before.
pub(super) fn other_key(table: &str, before: &[String], now: &[String]) -> Error {
    let (before, now) = (before.join(", "), now.join(", "));
    lost(&format!("the rows of {table} are told apart by ({now}) from here on, not by ({before})"))
}

fn lost(cause: &str) -> Error {
    Error::position_lost(format!("{cause}: a copy would keep the old rows beside the new ones")).remedy(
        "begin anew with a snapshot, into emptied targets; or go on with what the targets have: watchkeeper accept-gap STREAM \
         --to now; if nothing was written since, the old key can be given back instead",
    )
}
