//! What tables look like, and which of their columns are the key.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;
use watchkeeper_core::{Error, Result};

use super::catalog::{Column, key_of};
use super::keys::{Compared, KnownKeys, other_key};
use super::pgoutput::{Cell, Cut, Images, Tuple, odd};
use super::settings::Choice;

/// The replica identity of a table whose old rows are sent whole.
const FULL: u8 = b'f';

/// How values of a column that are equal to the server are made equal as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canonical {
    Exact,
    /// 1 and 1.00 are one number.
    Decimal,
    /// 0 and -0 are one number.
    Float,
    /// Blanks at the end do not count.
    Padded,
    /// Neither does case.
    Caseless,
}

/// A table as the log describes it.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// Schema and table, with a point between.
    pub(super) name: String,
    /// The columns as bodies carry them, so that a body can be read on its own.
    pub(super) described: Vec<u8>,
    /// For each column whether and how it belongs to the key.
    key: Vec<Option<Canonical>>,
    columns: Vec<(String, u32)>,
    /// The key by which its rows have to be told apart, if this is another one.
    other_key: Option<Vec<String>>,
    /// Whether it is not known any more by what its rows were told apart.
    is_key_forgotten: bool,
    /// Whether it was said that its rows are passed over.
    is_warned_of: bool,
}

/// A type that is not built in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NamedType {
    /// A domain over this built-in type: its values have the same texts.
    Domain(u32),
    /// A type of this name, or a domain over it.
    Other(String),
}

/// Types that are built in have lower numbers.
const FIRST_OTHER_TYPE: u32 = 16_384;

impl NamedType {
    /// By the name of the type, or of the one below a domain, and by its schema, which is empty for the server's own.
    pub(super) fn new(schema: &str, name: &str) -> Self {
        let mut built_in = (1..FIRST_OTHER_TYPE).filter_map(Type::from_oid);
        match built_in.find(|kind| schema.is_empty() && kind.name() == name) {
            Some(kind) => Self::Domain(kind.oid()),
            None => Self::Other(name.to_owned()),
        }
    }
}

/// What is known of types that are not built in.
pub(super) type TypeNames = BTreeMap<u32, NamedType>;

/// The type by which values are read: for a domain the one below it.
fn base_type(kind: u32, types: &TypeNames) -> u32 {
    match types.get(&kind) {
        Some(NamedType::Domain(base)) => *base,
        _ => kind,
    }
}

/// A relation message, of which the key may still have to be asked for.
pub(super) struct Described {
    pub(super) relation: Relation,
    /// Whether every column counts as key, so that the primary key has to be asked for.
    pub(super) is_full: bool,
}

impl Relation {
    /// Reads a relation message behind its id.
    pub(super) fn read(rest: &[u8], types: &TypeNames) -> Result<Described> {
        let mut cut = Cut(rest);
        let (schema, table, identity) = (cut.text()?, cut.text()?, cut.byte()?);
        // The system's own tables come without the name of their schema.
        let schema = if schema.is_empty() { "pg_catalog" } else { schema };
        let mut columns = Vec::new();
        for _ in 0..cut.u16()? {
            let is_key = cut.byte()? & 1 == 1;
            let (name, kind, _modifier) = (cut.text()?.to_owned(), cut.u32()?, cut.u32()?);
            columns.push((name, kind, is_key));
        }
        let relation = Self::new(format!("{schema}.{table}"), columns, types)?;
        Ok(Described { relation, is_full: identity == FULL })
    }

    /// A table with these columns: name, type, and whether it belongs to the key.
    pub(super) fn new(name: String, columns: Vec<(String, u32, bool)>, types: &TypeNames) -> Result<Self> {
        let canon = |kind, is_key: bool| is_key.then(|| canon(kind, types));
        let key = columns.iter().map(|(_, kind, is_key)| canon(*kind, *is_key)).collect();
        let columns: Vec<_> = columns.into_iter().map(|(name, kind, _)| (name, kind)).collect();
        Ok(Self {
            name,
            described: describe(&columns, types)?,
            key,
            columns,
            other_key: None,
            is_key_forgotten: false,
            is_warned_of: false,
        })
    }

    /// The same table with the key that the catalog has now.
    pub(super) fn with_key_of(mut self, now: &[Column], types: &TypeNames) -> Self {
        let key = key_of(&self.columns, now);
        self.is_key_forgotten = key.is_none();
        let is_key = |at: usize| key.as_ref().is_some_and(|key| key.contains(&at));
        let columns = self.columns.iter().enumerate();
        self.key = columns.map(|(at, (_, kind))| is_key(at).then(|| canon(*kind, types))).collect();
        self
    }

    /// Gives it the name that its table has now, under which it is wanted.
    pub(super) fn go_by(&mut self, now: Option<&str>, wanted: &Choice) {
        let then = &self.name;
        match now.filter(|now| wanted.has(now)) {
            Some(now) => now.clone_into(&mut self.name),
            None if now == Some(then.as_str()) => {}
            None => {
                tracing::warn!(table = %then, ?now, "a table that was told of goes by a name that the stream does not name; its changes under it are not told")
            }
        }
    }

    /// Whether its rows can be told apart, and by the key that they have in copies.
    pub(super) fn can_be_reported(&self) -> bool {
        self.other_key.is_none() && self.key.iter().any(Option::is_some)
    }

    /// Whether nothing tells its rows apart, and nothing did before.
    pub(super) fn is_keyless(&self) -> bool {
        !self.can_be_reported() && self.other_key.is_none() && !self.is_key_forgotten
    }

    /// Refuses an old key that lacks a part. No key has nulls: it is then that of a partition which tells its rows apart by other
    /// columns than the whole under whose name they come.
    pub(super) fn require_key(&self, mut old: Tuple<'_>) -> Result<()> {
        for canon in &self.key {
            let cell = old.next()?.ok_or_else(|| odd("a row with fewer columns than its table"))?;
            if canon.is_some() && !matches!(cell, Cell::Text(_)) {
                return Err(unlike(&self.name));
            }
        }
        Ok(())
    }

    /// Why its rows cannot be told.
    pub(super) fn refusal(&self) -> Error {
        let now: Vec<_> = self.key_names().map(str::to_owned).collect();
        match &self.other_key {
            Some(before) => other_key(&self.name, before, &now),
            None if self.is_key_forgotten => forgotten(&self.name),
            None => keyless(&self.name),
        }
    }

    /// The names of the key's columns.
    pub(super) fn key_names(&self) -> impl Iterator<Item = &str> {
        let named = self.columns.iter().zip(&self.key);
        named.filter(|(_, key)| key.is_some()).map(|((name, _), _)| name.as_str())
    }

    pub(super) fn has_column(&self, name: &str) -> bool {
        self.columns.iter().any(|(column, _)| column == name)
    }

    /// Whether an update gives the row another key.
    pub(super) fn moves(&self, images: &Images<'_>) -> Result<bool> {
        let (Some(old), Some(new)) = (images.old, images.new) else { return Ok(false) };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        self.write_key(old, None, &mut before)?;
        self.write_key(new, images.old, &mut after)?;
        Ok(before != after)
    }

    /// Appends the canonical key of a row. What `tuple` did not send is taken from `old`.
    pub(super) fn write_key(&self, mut tuple: Tuple<'_>, mut old: Option<Tuple<'_>>, out: &mut Vec<u8>) -> Result<()> {
        for canon in &self.key {
            let cell = tuple.next()?.ok_or_else(|| odd("a row with fewer columns than its table"))?;
            let before = match &mut old {
                Some(old) => old.next()?,
                None => None,
            };
            let Some(canon) = canon else { continue };
            match (cell, before) {
                (Cell::Text(text), _) | (Cell::Unchanged, Some(Cell::Text(text))) => write_part(*canon, text, out),
                // An index that is a replica identity has no nulls, but a row read by a snapshot is not checked.
                _ => out.extend_from_slice(&u32::MAX.to_be_bytes()),
            }
        }
        Ok(())
    }
}

fn describe(columns: &[(String, u32)], types: &TypeNames) -> Result<Vec<u8>> {
    let narrow = |length: usize| u16::try_from(length).map_err(|_| odd("a table with too many columns"));
    let mut out = narrow(columns.len())?.to_be_bytes().to_vec();
    for (name, kind) in columns {
        out.extend_from_slice(&base_type(*kind, types).to_be_bytes());
        out.extend_from_slice(&narrow(name.len())?.to_be_bytes());
        out.extend_from_slice(name.as_bytes());
    }
    Ok(out)
}

fn canon(kind: u32, types: &TypeNames) -> Canonical {
    match Type::from_oid(base_type(kind, types)) {
        Some(Type::NUMERIC) => Canonical::Decimal,
        Some(Type::FLOAT4 | Type::FLOAT8) => Canonical::Float,
        Some(Type::BPCHAR) => Canonical::Padded,
        None if types.get(&kind).is_some_and(is_citext) => Canonical::Caseless,
        _ => Canonical::Exact,
    }
}

fn is_citext(kind: &NamedType) -> bool {
    matches!(kind, NamedType::Other(name) if name == "citext")
}

/// Appends a part of a key with its length, so that the parts of two keys never run into each other.
fn write_part(canon: Canonical, text: &[u8], out: &mut Vec<u8>) {
    let lower;
    let text = match canon {
        Canonical::Exact => text,
        Canonical::Decimal if text.contains(&b'.') => {
            let digits = trimmed(text, b'0');
            digits.strip_suffix(b".").unwrap_or(digits)
        }
        Canonical::Decimal => text,
        Canonical::Float if text == b"-0" => b"0",
        Canonical::Float => text,
        Canonical::Padded => trimmed(text, b' '),
        Canonical::Caseless => {
            lower = String::from_utf8_lossy(text).to_lowercase();
            lower.as_bytes()
        }
    };
    // A value is limited to 1 GiB by the server.
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text);
}

fn trimmed(text: &[u8], end: u8) -> &[u8] {
    let kept = text.iter().rposition(|byte| *byte != end).map_or(0, |last| last + 1);
    &text[..kept]
}

/// All tables that were described since the stream was opened.
#[derive(Debug, Default)]
pub(super) struct Relations {
    known: BTreeMap<u32, Relation>,
    /// Whether a table was described that had been described before.
    repeated: bool,
    pub(super) types: TypeNames,
    pub(super) keys: KnownKeys,
}

impl Relations {
    /// Takes in a table; whether the server has to be asked if its key is another one than before.
    pub(super) fn put(&mut self, id: u32, mut relation: Relation) -> bool {
        let compared = self.keys.describe(id, &relation);
        let is_doubtful = compared == Compared::Doubtful;
        if let Compared::Other(before) = compared {
            relation.other_key = Some(before);
        }
        self.repeated |= self.known.insert(id, relation).is_some();
        is_doubtful
    }

    /// Whether a table was described again since this was asked last. The server does so when something about it changed, be it
    /// how it is published.
    pub(super) fn take_repeated(&mut self) -> bool {
        std::mem::take(&mut self.repeated)
    }

    /// Says once that rows of a table are passed over.
    pub(super) fn warn_of(&mut self, id: u32) {
        if let Some(relation) = self.known.get_mut(&id).filter(|relation| !relation.is_warned_of) {
            relation.is_warned_of = true;
            tracing::warn!(table = %relation.name, "a table has no key: its rows are passed over");
        }
    }

    pub(super) fn get(&self, id: u32) -> Result<&Relation> {
        self.known.get(&id).ok_or_else(|| odd(&format!("a change of a table that was not described ({id})")))
    }
}

/// The error of a table whose rows cannot be told apart.
pub(super) fn keyless(table: &str) -> Error {
    Error::config(format!("table {table} has no key that its rows can be told apart by"))
        .remedy(format!(
            "add a primary key, or a unique index and ALTER TABLE {table} REPLICA IDENTITY USING INDEX …; what was written before that stays \
             without one in the log: name the other tables in `tables`, or pass over such rows: keyless = \"pass\""
        ))
}

/// The error of rows whose old keys are not those of their table.
fn unlike(table: &str) -> Error {
    let cause = format!(
        "a partition of {table} tells its rows apart by other columns than {table} itself: a copy would keep the old rows"
    );
    Error::position_lost(cause).remedy(format!(
        "give each partition the REPLICA IDENTITY of {table} (new ones do not inherit it), then begin anew with a snapshot, into emptied \
         targets, or go on with what the targets have: watchkeeper accept-gap STREAM --to now"
    ))
}

/// The error of rows that were written before their table got the key that it has now, or was dropped.
fn forgotten(table: &str) -> Error {
    let cause = format!(
        "the log has rows of {table} that are older than its key: with REPLICA IDENTITY FULL it does not say by what they were told apart"
    );
    Error::position_lost(cause).remedy(
        "begin anew with a snapshot, into emptied targets; or go on without these rows: watchkeeper accept-gap STREAM --to now",
    )
}

#[cfg(test)]
mod tests {
    use tokio_postgres::types::Type;

    use super::{Canonical, NamedType, write_part};

    #[test]
    fn a_domain_over_a_built_in_type_is_read_as_that_type() {
        assert_eq!(NamedType::new("", "jsonb"), NamedType::Domain(Type::JSONB.oid()));
        assert_eq!(NamedType::new("", "_int4"), NamedType::Domain(Type::INT4_ARRAY.oid()));
        assert_eq!(NamedType::new("public", "jsonb"), NamedType::Other("jsonb".to_owned()));
    }

    #[test]
    fn values_that_are_equal_to_the_server_are_equal_as_keys() {
        let equal = [
            (Canonical::Decimal, "1.00", "1"),
            (Canonical::Decimal, "10", "10"),
            (Canonical::Decimal, "1.50", "1.5"),
            (Canonical::Decimal, "NaN", "NaN"),
            (Canonical::Float, "-0", "0"),
            (Canonical::Padded, "a b  ", "a b"),
            (Canonical::Caseless, "ÄbC", "äbc"),
        ];
        for (canon, a, b) in equal {
            let (mut one, mut other) = (Vec::new(), Vec::new());
            write_part(canon, a.as_bytes(), &mut one);
            write_part(canon, b.as_bytes(), &mut other);
            assert_eq!(one, other, "{a} and {b}");
            assert_eq!(&one[4..], b.as_bytes());
        }
    }
}
