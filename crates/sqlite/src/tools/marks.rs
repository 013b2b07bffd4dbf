//! Marks in the log where history was lost: a table was not logged for a while, and then again.
//!
//! A mark has a number as changes do, so it lies after all that was logged before the loss, and whoever goes on after it
//! has passed the loss. It is pruned as changes are; nobody who would have to see it is left then.

use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{Error, Result};

use crate::clock::wall_millis;
use crate::error::Failure;

/// What a row of the log that is a mark has as its operation.
pub(crate) const LOST: &str = "lost";

/// Marks that changes of a table are missing before here.
pub(crate) fn mark_lost(connection: &Connection, table: &str) -> Result<(), Failure> {
    let sql = "INSERT INTO watchkeeper_changes(tbl, op, key, millis) VALUES (?1, ?2, '', ?3)";
    connection.execute(sql, (table, LOST, wall_millis()))?;
    let sql = "INSERT OR REPLACE INTO watchkeeper_meta VALUES (?1, ?2)";
    connection.execute(sql, (lost_name(table), connection.last_insert_rowid()))?;
    connection.execute("DELETE FROM watchkeeper_meta WHERE name = ?1", [uninstalled_name(table)])?;
    Ok(())
}

/// The newest mark of these tables, or of all without them.
pub(crate) fn newest(connection: &Connection, tables: Option<&[String]>) -> Result<Option<u64>, Failure> {
    let mut statement = connection.prepare("SELECT name, value FROM watchkeeper_meta WHERE name GLOB 'log/lost/*'")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let marks = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_wanted = |name: &str| tables.is_none_or(|tables| tables.iter().any(|table| lost_name(table) == name));
    Ok(marks.into_iter().filter(|(name, _)| is_wanted(name)).map(|(_, number)| number.cast_unsigned()).max())
}

/// What a reader is told that comes upon a mark.
pub(crate) fn mark_error(table: &str, number: u64) -> Error {
    Error::position_lost(format!(
        "changes of {table} before change {number} are not in the log: it was not logged for a while"
    ))
    .remedy("accept the gap, or copy the table again")
}

/// Notes that a table is no longer logged while the log goes on.
pub(crate) fn note_uninstalled(connection: &Connection, table: &str) -> Result<(), Failure> {
    let sql = "INSERT OR REPLACE INTO watchkeeper_meta VALUES (?1, 1)";
    connection.execute(sql, [uninstalled_name(table)])?;
    Ok(())
}

/// Whether a table was logged before, in this log.
pub(crate) fn was_uninstalled(connection: &Connection, table: &str) -> Result<bool, Failure> {
    let sql = "SELECT 1 FROM watchkeeper_meta WHERE name = ?1";
    let found = connection.query_row(sql, [uninstalled_name(table)], |_| Ok(())).optional()?;
    Ok(found.is_some())
}

fn lost_name(table: &str) -> String {
    format!("log/lost/{}", table.to_ascii_lowercase())
}

fn uninstalled_name(table: &str) -> String {
    format!("log/uninstalled/{}", table.to_ascii_lowercase())
}
