//! What a publication is made of.
//!
//! The log tells of what is published at the time of each change, and says nothing of what is not. A table that is taken out of
//! a publication and put back looks as before, but what was written meanwhile never comes. Only the number of its entry in
//! the catalog is another one then, as it is when its filter or its columns were changed; so these numbers are remembered beside
//! the position.

use serde::{Deserialize, Serialize};

use super::keys::{self, Key};
use super::settings::{Choice, Settings, literal};
use super::wire::{Failure, Wire};

/// So many entries are remembered one by one. The pedigree is written with every commit.
const LISTED_MAX: usize = 100;

/// Since this version a publication can tell of all tables of a schema.
pub(super) const HAS_SCHEMAS: u32 = 15;

/// What a publication can be told to leave out: its letter, its column in the catalog, and its name.
pub(super) const OPTIONS: [(char, &str, &str); 5] = [
    ('i', "pubinsert", "inserts"),
    ('u', "pubupdate", "updates"),
    ('d', "pubdelete", "deletes"),
    ('t', "pubtruncate", "truncates"),
    ('r', "pubviaroot", "tables in parts under their own name"),
];

/// A publication, as far as it concerns a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublicationDefinition {
    /// Its name: a stream may be given another one on purpose.
    pub(super) name: String,
    /// One that is dropped and made anew has another number.
    pub(super) id: u32,
    /// Whether it is FOR ALL TABLES.
    pub(super) all: bool,
    /// The transaction that wrote its options last, and the owner that it has since.
    pub(super) altered: u32,
    pub(super) owner: u32,
    /// The letters of the options that are on.
    #[serde(alias = "told")]
    pub(super) published: String,
    /// The letters of those that were on, and are off since.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) lapsed: String,
    pub(super) entries: Vec<Entry>,
    /// In place of the entries, if there are too many of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) many: Option<Digest>,
    /// What tells the rows of its tables apart; not known in what older versions have stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<Vec<Key>>,
    /// In place of the keys, if there are too many of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keys_of_many: Option<Digest>,
    /// For which tables it was asked for.
    #[serde(skip)]
    pub(super) chosen: u64,
}

/// What makes a publication tell of a table, or of all those of a schema.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Entry {
    /// One that is taken out and put back has another number.
    pub(super) id: u32,
    pub(super) schema: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) table: Option<String>,
    /// Whether it is not there any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) gone: bool,
}

/// What is remembered of entries that are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    /// For which tables they were asked for.
    chosen: u64,
    count: u64,
    /// The largest number. Those of entries that were made later are larger.
    newest: u32,
    sum: u64,
}

impl Digest {
    /// Of numbers and what stands for them.
    fn of(chosen: u64, prints: impl Iterator<Item = (u32, u64)>) -> Self {
        prints.fold(Self { chosen, count: 0, newest: 0, sum: 0 }, |digest, (id, print)| Self {
            chosen,
            count: digest.count + 1,
            newest: digest.newest.max(id),
            sum: digest.sum.wrapping_add(print),
        })
    }

    /// Those that were there then, by their numbers.
    fn old(&self, prints: impl Iterator<Item = (u32, u64)>) -> Self {
        Self::of(self.chosen, prints.filter(|(id, _)| !self.is_older_than(*id)))
    }

    /// Whether all of these are still among `prints`.
    pub(super) fn is_in(&self, prints: impl Iterator<Item = (u32, u64)>) -> bool {
        let old = self.old(prints);
        (old.count, old.sum) == (self.count, self.sum)
    }

    /// Whether there are still as many of them.
    pub(super) fn counts_as(&self, prints: impl Iterator<Item = (u32, u64)>) -> bool {
        self.old(prints).count == self.count
    }

    /// Whether what has this number was made after these.
    pub(super) fn is_older_than(&self, id: u32) -> bool {
        id > self.newest
    }
}

impl Entry {
    /// Its part of a [`Digest`].
    pub(super) fn print(&self) -> (u32, u64) {
        (self.id, xxhash_rust::xxh3::xxh3_64(&self.id.to_be_bytes()))
    }

    /// What it tells of, in words.
    pub(super) fn subject(&self) -> String {
        match &self.table {
            Some(table) => format!("table {}.{table}", self.schema),
            None => format!("schema {}", self.schema),
        }
    }

    /// Whether there are tables of which both tell.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let is_same_table = self.table == other.table || self.table.is_none() || other.table.is_none();
        self.schema == other.schema && is_same_table
    }

    /// Whether it can tell of a table that is given out.
    fn concerns(&self, choice: &Choice) -> bool {
        match &self.table {
            Some(table) => choice.has(&format!("{}.{table}", self.schema)),
            None => choice.has_some_in(&self.schema),
        }
    }
}

impl PublicationDefinition {
    /// Without what does not concern the tables that are given out. What cannot be told apart is then not known.
    pub(super) fn narrowed(mut self, choice: &Choice) -> Self {
        self.chosen = choice.digest();
        self.many = self.many.filter(|many| many.chosen == self.chosen);
        self.entries.retain(|entry| entry.concerns(choice));
        self.entries.sort();
        self.keys_of_many = self.keys_of_many.filter(|many| many.chosen == self.chosen);
        // What is stored has no names of tables; it is found by their numbers.
        let is_chosen = |key: &Key| key.table.is_empty() || choice.has(&key.table);
        self.keys.iter_mut().for_each(|keys| keys.retain(is_chosen));
        self
    }

    /// As it is stored.
    pub(super) fn condensed(&self) -> Self {
        let mut stored = self.clone();
        if stored.entries.len() > LISTED_MAX {
            let there = stored.entries.iter().filter(|entry| !entry.gone);
            stored.many = Some(Digest::of(stored.chosen, there.map(Entry::print)));
            stored.entries.clear();
        }
        if let Some(keys) = stored.keys.take_if(|keys| keys.len() > LISTED_MAX) {
            stored.keys_of_many = Some(Digest::of(stored.chosen, keys.iter().map(Key::print)));
        }
        stored
    }
}

/// The publication as it is now, if there is one.
pub(super) async fn ask(wire: &mut Wire, settings: &Settings) -> Result<Option<PublicationDefinition>, Failure> {
    let rows = wire.query(&format!("SELECT {}", expression(settings, wire.major))).await?;
    let text = rows.first().and_then(|row| row.first()).and_then(Option::as_deref);
    text.map(serde_json::from_str).transpose().map_err(|error| Failure::Io(std::io::Error::other(error)))
}

/// An expression that is the [`PublicationDefinition`] of the publication as JSON, or null if there is none, on a server of this version.
pub(super) fn expression(settings: &Settings, version: u32) -> String {
    let letters = OPTIONS.map(|(letter, column, _)| {
        format!("CASE WHEN pg_catalog.to_jsonb(p) -> '{column}' = 'true' THEN '{letter}' END")
    });
    let entries = if settings.tables.is_empty() { all_entries(version) } else { entries_of(settings, version) };
    format!(
        "(SELECT pg_catalog.jsonb_build_object('name', p.pubname, 'id', p.oid::bigint, 'all', p.puballtables,
            'altered', p.xmin::text::bigint, 'owner', p.pubowner::bigint, 'published', pg_catalog.concat({}), 'entries', (SELECT coalesce(pg_catalog.jsonb_agg(e), '[]') FROM ({entries}) e),
            'keys', {})
        FROM pg_catalog.pg_publication p WHERE p.pubname = {})",
        letters.join(", "),
        keys::expression(settings),
        literal(&settings.publication)
    )
}

/// All entries as they are.
fn all_entries(version: u32) -> String {
    let tables = "SELECT r.oid::bigint AS id, n.nspname AS schema, c.relname AS \"table\"
        FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = p.oid";
    let schemas = "SELECT s.oid::bigint, n.nspname, NULL FROM pg_catalog.pg_publication_namespace s
        JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid";
    if version < HAS_SCHEMAS { tables.to_owned() } else { format!("{tables} UNION ALL {schemas}") }
}

/// Whatever makes it tell of the named tables, under their names: entries of their own, of a whole of which they are parts, or
/// of a schema.
fn entries_of(settings: &Settings, version: u32) -> String {
    let named = settings.qualified().into_iter().map(|name| {
        let (schema, table) = name.split_once('.').unwrap_or(("public", &name));
        format!("({}, {})", literal(schema), literal(table))
    });
    let named: Vec<_> = named.collect();
    let own = "SELECT r.oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid";
    let schema = "SELECT s.oid FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace";
    let ways = if version < HAS_SCHEMAS { own.to_owned() } else { format!("{own} UNION ALL {schema}") };
    format!(
        "SELECT w.id::bigint, n.nspname AS schema, t.relname AS \"table\" FROM (VALUES {}) AS named (schema, name)
        JOIN pg_catalog.pg_namespace n ON n.nspname = named.schema::name
        JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = named.name::name
        CROSS JOIN LATERAL (SELECT t.oid UNION SELECT relid FROM pg_catalog.pg_partition_ancestors(t.oid)) line (id)
        JOIN pg_catalog.pg_class c ON c.oid = line.id CROSS JOIN LATERAL ({ways}) w (id)",
        named.join(", ")
    )
}
