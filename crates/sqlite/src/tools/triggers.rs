//! The triggers that fill the log.
//!
//! `INSERT OR REPLACE` and `UPDATE OR REPLACE` remove rows without firing their delete triggers (unless the
//! connection has `recursive_triggers` on). A trigger before the change cannot log these rows: the same trigger fires for
//! `INSERT OR IGNORE` and for upserts, which remove nothing. So it only sets the rows in conflict aside, and the trigger
//! after the change, which fires only when the change was made, logs them.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::shape::{Compared, Shape};
use super::written::value;
use crate::error::Failure;

const KINDS: [&str; 5] = ["before_insert", "after_insert", "after_delete", "before_update", "after_update"];

const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";

const LOG: &str = "INSERT INTO watchkeeper_changes(tbl, op, key, old_key, before, after, changed, millis)";

/// Removes the triggers of a table, as far as they are there.
pub(crate) fn remove(connection: &Connection, table: &str) -> Result<(), Failure> {
    for kind in KINDS {
        connection.execute_batch(&format!("DROP TRIGGER IF EXISTS {}", trigger(kind, table)))?;
    }
    Ok(())
}

/// Makes the triggers of a table.
pub(crate) fn make(connection: &Connection, shape: &Shape) -> Result<(), Failure> {
    statements(shape).try_for_each(|(_, sql)| Ok(connection.execute_batch(&sql)?))
}

/// What makes each trigger, by its name.
fn statements(shape: &Shape) -> impl Iterator<Item = (String, String)> {
    KINDS.iter().zip(bodies(shape)).map(|(kind, body)| {
        let (name, table) = (trigger(kind, &shape.table), name(&shape.table));
        let when = kind.replace('_', " ");
        (plain(kind, &shape.table), format!("CREATE TRIGGER {name} {when} ON {table} BEGIN {body} END"))
    })
}

/// The triggers that a table has.
#[derive(Debug)]
pub(crate) struct Triggers {
    /// What made each of ours, as the schema has it.
    made: BTreeMap<String, String>,
}

impl Triggers {
    /// Those that are on this table: the ones of a table that was renamed went with it.
    pub(crate) fn of(connection: &Connection, table: &str) -> Result<Self, Failure> {
        let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE";
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut made = rows.collect::<rusqlite::Result<BTreeMap<String, String>>>()?;
        made.retain(|name, _| KINDS.iter().any(|kind| plain(kind, table).eq_ignore_ascii_case(name)));
        Ok(Self { made })
    }

    /// Whether none is missing.
    pub(crate) fn are_whole(&self) -> bool {
        self.made.len() == KINDS.len()
    }

    /// Whether they are what would be made for this shape now.
    pub(crate) fn are_made_for(&self, shape: &Shape) -> bool {
        statements(shape).all(|(name, sql)| self.made.get(&name) == Some(&sql))
    }
}

/// The name of a trigger, without quotes.
fn plain(kind: &str, table: &str) -> String {
    format!("watchkeeper_{kind}_{table}")
}

fn trigger(kind: &str, table: &str) -> String {
    name(&plain(kind, table))
}

/// In the order of [`KINDS`].
fn bodies(shape: &Shape) -> [String; 5] {
    let table = literal(&shape.table);
    let (old_key, new_key) = (key(shape, "OLD"), key(shape, "NEW"));
    let (old, new) = (row(shape, "OLD"), row(shape, "NEW"));
    let clear = format!("DELETE FROM watchkeeper_displaced WHERE tbl = {table};");
    let displaced = |condition: &str| {
        format!(
            "{LOG} SELECT {table}, 'delete', key, NULL, row, NULL, NULL, {NOW}
                FROM watchkeeper_displaced WHERE tbl = {table} AND ({condition});"
        )
    };
    let moved = moved(shape);
    [
        format!("{clear} {}", set_aside_for_insert(shape)),
        format!(
            "{} {clear} {LOG} VALUES ({table}, 'insert', {new_key}, NULL, NULL, {new}, NULL, {NOW});",
            displaced(&format!("exact OR key = {new_key}"))
        ),
        // With recursive triggers the displaced rows come by here, and must not be logged again.
        format!(
            "DELETE FROM watchkeeper_displaced WHERE tbl = {table} AND key = {old_key};
            {LOG} VALUES ({table}, 'delete', {old_key}, NULL, {old}, NULL, NULL, {NOW});"
        ),
        format!("{clear} {}", set_aside_for_update(shape, &moved)),
        format!(
            "{} {clear} {LOG} VALUES ({table},
                CASE WHEN {old_key} = {new_key} THEN 'update' ELSE 'rekey' END,
                {new_key}, {old_key}, {old}, {new}, {}, {NOW});",
            displaced(&moved),
            changed(shape)
        ),
    ]
}

/// A number that the row will be given is not known yet before the insert, so a conflict by the key alone has
/// to be confirmed after it; one by another index (`exact`) is certain.
fn set_aside_for_insert(shape: &Shape) -> String {
    let by_index = any(shape.unique.iter().map(|index| equal(index)));
    let by_key = equal(&shape.key);
    format!(
        "INSERT INTO watchkeeper_displaced(tbl, key, row, exact) SELECT {}, {}, {}, coalesce({by_index}, 0)
            FROM {} AS t WHERE {by_key} OR {by_index};",
        literal(&shape.table),
        key(shape, "t"),
        row(shape, "t"),
        name(&shape.table)
    )
}

fn set_aside_for_update(shape: &Shape, moved: &str) -> String {
    let conflict = any(std::iter::once(&shape.key).chain(&shape.unique).map(|index| equal(index)));
    let same = shape.key.iter().map(|part| format!("t.{0} IS OLD.{0}", name(&part.column)));
    let same = same.collect::<Vec<_>>().join(" AND ");
    format!(
        "INSERT INTO watchkeeper_displaced(tbl, key, row, exact) SELECT {}, {}, {}, 1
            FROM {} AS t WHERE ({moved}) AND ({conflict}) AND NOT ({same});",
        literal(&shape.table),
        key(shape, "t"),
        row(shape, "t"),
        name(&shape.table)
    )
}

/// Whether an update touches a column by which rows can be in conflict.
fn moved(shape: &Shape) -> String {
    let columns = std::iter::once(&shape.key).chain(&shape.unique).flatten();
    any(columns.map(|part| format!("OLD.{0} IS NOT NEW.{0} COLLATE BINARY", name(&part.column))))
}

/// Whether the row `t` has the new row's values in all columns of an index.
fn equal(index: &[Compared]) -> String {
    let parts = index.iter().map(|part| {
        let column = name(&part.column);
        format!("t.{column} = NEW.{column} COLLATE {}", name(&part.collation))
    });
    format!("({})", parts.collect::<Vec<_>>().join(" AND "))
}

fn any(conditions: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = conditions.collect();
    if all.is_empty() { "0".to_owned() } else { format!("({})", all.join(" OR ")) }
}

/// The names of the columns that an update changed, as a JSON array.
fn changed(shape: &Shape) -> String {
    let each = shape.columns.iter().map(|column| {
        let (column, text) = (name(column), literal(column));
        format!("CASE WHEN OLD.{column} IS NOT NEW.{column} COLLATE BINARY THEN {text} END")
    });
    let each = each.collect::<Vec<_>>().join(", ");
    format!("(SELECT json_group_array(value) FROM json_each(json_array({each})) WHERE value IS NOT NULL)")
}

/// A row as a JSON object.
fn row(shape: &Shape, side: &str) -> String {
    let fields = shape.columns.iter().enumerate().map(|(n, column)| {
        let label = format!("{}{}:", if n == 0 { "{" } else { "," }, serde_json::Value::from(column.as_str()));
        format!("{} || {}", literal(&label), value(&format!("{side}.{}", name(column))))
    });
    format!("{} || '}}'", fields.collect::<Vec<_>>().join(" || "))
}

/// The canonical key as a JSON array: what the primary key holds to be equal has the same text.
fn key(shape: &Shape, side: &str) -> String {
    let parts = shape.key.iter().enumerate().map(|(n, part)| {
        let column = format!("{side}.{}", name(&part.column));
        let text = match part.collation.to_ascii_uppercase().as_str() {
            "NOCASE" => format!("lower({column})"),
            "RTRIM" => format!("rtrim({column})"),
            _ => column.clone(),
        };
        let sign = if n == 0 { "'['" } else { "','" };
        format!(
            "{sign} || CASE WHEN typeof({column}) = 'text' THEN json_quote({text})
                WHEN typeof({column}) = 'real' AND {column} = CAST({column} AS INTEGER)
                    THEN json_quote(CAST({column} AS INTEGER))
                ELSE {} END",
            value(&column)
        )
    });
    format!("({} || ']')", parts.collect::<Vec<_>>().join(" || "))
}

/// An identifier.
pub(super) fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A text.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
