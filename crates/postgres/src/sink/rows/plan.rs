//! What changes come to, row by row, before it is written by few statements.

use std::collections::{BTreeMap, BTreeSet};

use watchkeeper_core::payload::{Image, Visit};
use watchkeeper_core::{Change, Error, Operation, Result};

use super::field::{ColumnValue, Fields};
use super::known_fields::KnownFields;
use super::shape::{Missing, Shape};

/// At most so many rows in one statement, and about so many bytes.
const ROWS_MAX: usize = 10_000;
const BYTES_MAX: usize = 16_000_000;

/// What becomes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowWrite {
    /// It is taken away.
    Gone,
    /// It is as the columns say that are told.
    Kept {
        /// For each column whether it is told.
        present: Vec<bool>,
        /// The columns that have the null of JSON, which the server would take for that of SQL.
        json_nulls: Vec<usize>,
        /// Whether one is not told because it did not change, so that the row has to be there already.
        needs_old: bool,
    },
}

/// What a change does to its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) merged_write: RowWrite,
    /// Its columns as a JSON object, of which a row that goes has its key only.
    json: String,
    /// Its key as a JSON object.
    pub(super) key: String,
}

impl Row {
    /// What a change with a key does. Fields that no column is known to take are noted in `strangers`.
    ///
    /// # Errors
    /// The change does not tell it: it can never be written.
    pub(super) fn of(shape: &Shape, change: &Change, strangers: &mut BTreeSet<String>) -> Result<Self> {
        if change.operation() == Operation::Delete {
            return Self::gone(shape, change);
        }
        let payload = change.batch().payload();
        let (mut fields, mut nothing) = (Fields::of(&shape.columns, &**payload), IsNull::default());
        let mut both = Tee { fields: &mut fields, nothing: &mut nothing, follows: shape.follows.as_ref(), strangers };
        let present = payload.image(change.body(), change.operation(), Image::After, &mut both)?;
        if nothing.0 {
            // It was deleted since; the change that did so will come.
            return Self::gone(shape, change);
        }
        if !present {
            return Err(missing_part(
                change,
                "the whole row",
                "let the source tell it (full_document, REPLICA IDENTITY)",
            ));
        }
        let values = fields.into_values();
        let keeps = shape.missing == Missing::Keep;
        let missing = values.iter().position(|value| *value == ColumnValue::Missing);
        if let Some(at) = missing.filter(|_| !keeps && payload.sends_whole_rows()) {
            return Err(shape.missing_field(at, change.namespace()));
        }
        if let Some((at, cause)) = refused(&values, |_| true) {
            return Err(shape.unfit(at, cause));
        }
        let json_nulls = (0..values.len()).filter(|at| values[*at] == ColumnValue::JsonNull).collect();
        let is_present =
            |value: &ColumnValue| !(*value == ColumnValue::Unchanged || keeps && *value == ColumnValue::Missing);
        let (present, needs_old) = (values.iter().map(is_present).collect(), values.contains(&ColumnValue::Unchanged));
        let key = object(shape, &values, |at| shape.columns[at].in_key);
        let key = key.ok_or_else(|| missing_part(change, "its key", "name the fields of the key in `columns`"))?;
        let json = object(shape, &values, |_| true);
        Ok(Self {
            merged_write: RowWrite::Kept { present, json_nulls, needs_old },
            json: json.unwrap_or_default(),
            key,
        })
    }

    /// Whether it leaves out columns that did not change.
    pub(super) fn is_partial(&self) -> bool {
        matches!(&self.merged_write, RowWrite::Kept { needs_old: true, .. })
    }

    /// Whether it says what becomes of every column, so that nothing depends on what was there before.
    pub(super) fn is_whole(&self) -> bool {
        !matches!(&self.merged_write, RowWrite::Kept { present, .. } if present.contains(&false))
    }

    /// The statement that brings this row under its new key, with what it has under its old one where that did not change.
    /// `$1` is the row, `$2` the old key.
    pub(super) fn rename(&self, shape: &Shape) -> Statement {
        let (present, json_nulls): (&[bool], &[usize]) = match &self.merged_write {
            RowWrite::Kept { present, json_nulls, .. } => (present, json_nulls),
            RowWrite::Gone => (&[], &[]),
        };
        let conversion = shape.conversion(|at, _| present[at]);
        Statement { sql: shape.rename(present, json_nulls), conversion, rows: array(&[&self.json]), finds: Some(1) }
    }

    /// Its key, as the only one of an array.
    pub(super) fn only_key(&self) -> String {
        array(&[&self.key])
    }

    fn gone(shape: &Shape, change: &Change) -> Result<Self> {
        let payload = change.batch().payload();
        let mut fields = Fields::of(&shape.columns, &**payload);
        let present = payload.image(change.body(), change.operation(), Image::Before, &mut fields)?;
        let values = fields.into_values();
        if let Some((at, cause)) = refused(&values, |at| shape.columns[at].in_key) {
            return Err(shape.unfit(at, cause));
        }
        let mut key = present.then(|| object(shape, &values, |at| shape.columns[at].in_key)).flatten();
        if key.is_none() {
            // Sources of documents tell of a deleted one its key alone.
            let mut fields = Fields::of(&shape.columns, &**payload);
            payload.walk_field(change.body(), "documentKey", &mut fields)?;
            key = object(shape, &fields.into_values(), |at| shape.columns[at].in_key);
        }
        let key = key
            .ok_or_else(|| missing_part(change, "its key", "let the source tell it (REPLICA IDENTITY, pre-images)"))?;
        Ok(Self { merged_write: RowWrite::Gone, json: key.clone(), key })
    }
}

/// The first of the `wanted` columns whose value would become another one, and why.
fn refused(values: &[ColumnValue], wanted: impl Fn(usize) -> bool) -> Option<(usize, &str)> {
    values.iter().enumerate().find_map(|(at, value)| match value {
        ColumnValue::Refused(cause) if wanted(at) => Some((at, cause.as_str())),
        _ => None,
    })
}

fn missing_part(change: &Change, what: &str, remedy: &str) -> Error {
    let operation = change.operation().as_str();
    Error::config(format!("this {operation} does not tell {what}, so it cannot be written")).remedy(remedy.to_owned())
}

/// Some columns as a JSON object; `None` if the key is not all there.
fn object(shape: &Shape, values: &[ColumnValue], wanted: impl Fn(usize) -> bool) -> Option<String> {
    let mut json = String::from("{");
    for (at, (column, value)) in shape.columns.iter().zip(values).enumerate() {
        let text = match value {
            ColumnValue::Value(text) => std::str::from_utf8(text).ok()?,
            ColumnValue::JsonNull if !column.in_key => continue,
            _ if column.in_key => return None,
            _ => continue,
        };
        if column.in_key && text == "null" {
            return None;
        }
        if wanted(at) {
            json.push_str(if json.len() == 1 { "" } else { "," });
            json.push_str(&serde_json::Value::from(column.name.as_str()).to_string());
            json.push(':');
            json.push_str(text);
        }
    }
    json.push('}');
    Some(json)
}

/// Whether an image is null.
#[derive(Default)]
struct IsNull(bool);

/// Lets two see the same, and notes fields that are not known.
struct Tee<'a, 'b> {
    fields: &'a mut Fields<'b>,
    nothing: &'a mut IsNull,
    follows: Option<&'a KnownFields>,
    strangers: &'a mut BTreeSet<String>,
}

impl Visit for Tee<'_, '_> {
    fn value(&mut self, value: watchkeeper_core::ValueRef<'_>) {
        self.nothing.0 |= self.fields.is_outside() && value == watchkeeper_core::ValueRef::Null;
        self.fields.value(value);
    }

    fn begin_document(&mut self) {
        self.fields.begin_document();
    }

    fn key(&mut self, key: &str) {
        if self.fields.is_outermost() && self.follows.is_some_and(|follows| !follows.knows(key)) {
            self.strangers.insert(key.to_owned());
        }
        self.fields.key(key);
    }

    fn end_document(&mut self) {
        self.fields.end_document();
    }

    fn begin_array(&mut self) {
        self.fields.begin_array();
    }

    fn end_array(&mut self) {
        self.fields.end_array();
    }
}

/// What many changes come to, each row once. In the order of their keys, so that two who write the same rows never wait
/// crosswise.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    rows: BTreeMap<(&'a str, &'a [u8]), (&'a Change, Row)>,
    keys: BTreeSet<String>,
    bytes: usize,
}

impl<'a> Plan<'a> {
    /// Whether a change can be noted over what was noted before: not if it needs what that leaves, or if another key of the
    /// source comes to the same row, which one statement cannot write twice.
    pub(super) fn takes(&self, change: &Change, key: &[u8], row: &Row) -> bool {
        let full = self.rows.len() >= ROWS_MAX || self.bytes >= BYTES_MAX;
        let earlier = self.rows.get(&(change.namespace(), key)).map(|(_, earlier)| earlier);
        let same_row = match earlier {
            Some(earlier) => !row.is_whole() || earlier.key != row.key,
            None => self.keys.contains(&row.key),
        };
        !full && !same_row
    }

    pub(super) fn note(&mut self, change: &'a Change, key: &'a [u8], row: Row) {
        self.bytes += row.json.len() + 256;
        self.keys.insert(row.key.clone());
        self.rows.insert((change.namespace(), key), (change, row));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Every change that decides, with its namespace, key and row, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'a str, &'a [u8], &'a Change, &Row)> + '_ {
        self.rows.iter().map(|((namespace, key), (change, row))| (*namespace, *key, *change, row))
    }

    /// Keeps what has won: those whose place in [`rows`](Self::rows) is in `winners`.
    pub(super) fn keep(&mut self, winners: &BTreeSet<(String, Vec<u8>)>) {
        self.rows.retain(|(namespace, key), _| winners.contains(&((*namespace).to_owned(), key.to_vec())));
    }

    /// What goes first, then what comes, by the columns that are told.
    pub(super) fn statements(&self, shape: &Shape) -> Vec<Statement> {
        let mut gone = Vec::new();
        let mut kept: BTreeMap<WrittenColumns<'_>, Vec<&str>> = BTreeMap::new();
        for (_, row) in self.rows.values() {
            match &row.merged_write {
                RowWrite::Gone => gone.push(row.json.as_str()),
                RowWrite::Kept { present, json_nulls, needs_old } => {
                    kept.entry((present, json_nulls, *needs_old)).or_default().push(&row.json);
                }
            }
        }
        let deletes = || {
            let conversion = shape.conversion(|_, column| column.in_key);
            Statement { sql: shape.delete(), conversion, rows: array(&gone), finds: None }
        };
        let comes = |(&(present, json_nulls, needs_old), rows): (&WrittenColumns<'_>, &Vec<&str>)| {
            let sql = if needs_old { shape.update(present, json_nulls) } else { shape.upsert(present, json_nulls) };
            let conversion = shape.conversion(|at, column| present[at] || column.in_key);
            Statement { sql, conversion, rows: array(rows), finds: needs_old.then_some(rows.len() as u64) }
        };
        let deletes = (!gone.is_empty()).then(deletes);
        deletes.into_iter().chain(kept.iter().map(comes)).collect()
    }
}

/// What rows that one statement writes have in common: the columns they have values for, those that are JSON null, and whether the old row is
/// needed.
type WrittenColumns<'a> = (&'a [bool], &'a [usize], bool);

/// A statement about rows.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) sql: String,
    /// Only converts the rows, and writes nothing.
    pub(super) conversion: String,
    /// The rows, as a JSON array: its first value.
    pub(super) rows: String,
    /// How many rows it has to find, since they take from there what did not change.
    finds: Option<u64>,
}

impl Statement {
    /// Whether so many rows are those that it has to find.
    pub(super) fn is_done_by(&self, found: u64) -> bool {
        self.finds.is_none_or(|finds| finds == found)
    }
}

fn array(rows: &[&str]) -> String {
    format!("[{}]", rows.join(","))
}
