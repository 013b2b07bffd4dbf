//! Commands of this backend: to keep a log of an application's tables, and to stop it.

mod alter;
mod commands;
mod keys;
pub(crate) mod marks;
mod name;
mod shape;
mod triggers;
mod written;

use std::path::Path;

use rusqlite::Connection;
use watchkeeper_core::{Cx, Entropy, Error, Result};

pub use alter::alter;
pub(crate) use alter::alter_note;
pub use commands::{Alter, Install, Uninstall};
pub(crate) use keys::key_findings;
pub(crate) use name::plain;
pub(crate) use shape::{Shape, exists, installed};
pub(crate) use triggers::Triggers;

use crate::client::{Client, Schema, write_on};
use crate::error::Failure;
use crate::json;

/// The log and what belongs to it, in the application's own database.
///
/// No strict tables here: the application may use an older SQLite than ours.
pub(crate) const SCHEMA: Schema = Schema {
    role: "log",
    version: 1,
    sql: "CREATE TABLE watchkeeper_changes(
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        tbl TEXT NOT NULL,
        op TEXT NOT NULL,
        key TEXT NOT NULL,
        old_key TEXT,
        before TEXT,
        after TEXT,
        changed TEXT,
        millis INTEGER NOT NULL);
    CREATE TABLE watchkeeper_displaced(
        tbl TEXT NOT NULL, key TEXT NOT NULL, row TEXT NOT NULL, exact INTEGER NOT NULL);
    CREATE TABLE watchkeeper_tables(name TEXT PRIMARY KEY, columns TEXT NOT NULL);
    CREATE TABLE watchkeeper_consumers(
        name TEXT PRIMARY KEY, acknowledged INTEGER NOT NULL, seen_millis INTEGER NOT NULL);
    INSERT INTO watchkeeper_meta VALUES ('pruned_through', 0);",
};

/// Notices deletions from the log that are not pruning: they count as pruning, so that no reader goes on past changes that are gone. Pruning itself
/// says first how far it goes.
pub(crate) const GUARD: &str = "CREATE TRIGGER IF NOT EXISTS watchkeeper_deleted AFTER DELETE ON watchkeeper_changes
    WHEN OLD.seq > (SELECT value FROM watchkeeper_meta WHERE name = 'pruned_through')
    BEGIN UPDATE watchkeeper_meta SET value = OLD.seq WHERE name = 'pruned_through'; END";

/// Makes sure that a log has its guard: one that an older version of this program made has none.
pub(crate) fn ensure_guard(connection: &Connection) -> Result<(), Failure> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = 'watchkeeper_deleted'";
    if !connection.prepare_cached(sql)?.exists([])? {
        connection.execute_batch(GUARD)?;
    }
    Ok(())
}

/// The command that logs a table.
pub(crate) fn install_command(file: &Path, table: &str) -> String {
    format!("watchkeeper sqlite install --db {} --table {table}", file.display())
}

/// Begins to log the changes of these tables. Repeating it is harmless, and takes up new columns.
///
/// A table whose triggers are gone, or that was not logged for a while, gets a mark in the log: whoever reads up to it
/// is told that history is lost.
///
/// # Errors
/// `Config` for a table that cannot be followed, with the reason; then nothing was changed.
pub async fn install(cx: &Cx, client: &Client, tables: &[&str]) -> Result<()> {
    let tables: Vec<String> = tables.iter().map(|table| plain(table)).collect();
    client.run(cx, move |connection| install_on(connection, &tables)).await
}

/// Which of these tables are logged already, as they are now: an installation changes nothing of them.
pub(crate) fn already_logged(connection: &Connection, tables: &[String]) -> Result<Vec<bool>, Failure> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'watchkeeper_tables'";
    if connection.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(vec![false; tables.len()]);
    }
    let known = installed(connection)?;
    let is_logged = |table: &String| -> Result<bool, Failure> {
        let is_known = known.iter().any(|(known, _)| known.eq_ignore_ascii_case(table));
        Ok(is_known && Triggers::of(connection, table)?.are_made_for(&Shape::inspect(connection, table)?))
    };
    tables.iter().map(is_logged).collect()
}

pub(crate) fn install_on(connection: &mut Connection, tables: &[String]) -> Result<(), Failure> {
    SCHEMA.ensure_on(connection)?;
    write_on(connection, |transaction| {
        let log = Entropy::from_system().uuid().to_string();
        transaction.execute("INSERT OR IGNORE INTO watchkeeper_meta VALUES ('log', ?1)", [log])?;
        ensure_guard(transaction)?;
        tables.iter().try_for_each(|table| install_one(transaction, table))
    })
}

fn install_one(connection: &Connection, table: &str) -> Result<(), Failure> {
    let shape = Shape::inspect(connection, table)?;
    keys::refuse_missing(connection, &shape.table)?;
    let triggers = Triggers::of(connection, &shape.table)?;
    let is_known = installed(connection)?.iter().any(|(known, _)| known.eq_ignore_ascii_case(&shape.table));
    if (is_known && !triggers.are_whole()) || marks::was_uninstalled(connection, &shape.table)? {
        marks::mark_lost(connection, &shape.table)?;
    }
    if !triggers.are_made_for(&shape) {
        triggers::remove(connection, &shape.table)?;
        triggers::make(connection, &shape)?;
    }
    note_columns(connection, &shape)
}

/// Notes the columns that the triggers of a table know.
fn note_columns(connection: &Connection, shape: &Shape) -> Result<(), Failure> {
    // A table that was created again may be spelled in another way.
    connection.execute("DELETE FROM watchkeeper_tables WHERE name = ?1 COLLATE NOCASE", [&shape.table])?;
    let sql = "INSERT INTO watchkeeper_tables VALUES (?1, ?2)";
    connection.execute(sql, (&shape.table, json::text(&shape.columns)?))?;
    Ok(())
}

/// What becomes of changes that a consumer has not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// They are kept: nothing is done as long as there are some.
    Keep,
    /// They are lost.
    Discard,
}

/// Stops logging these tables. With the last of them the log itself is removed.
///
/// # Errors
/// `Config` for a table that is not logged, and for changes that somebody has not read yet, unless they may be discarded;
/// then nothing was changed.
pub async fn uninstall(cx: &Cx, client: &Client, tables: &[&str], unread: Unread) -> Result<()> {
    let tables: Vec<String> = tables.iter().map(|table| plain(table)).collect();
    let all = move |transaction: &rusqlite::Transaction<'_>| {
        if tables.is_empty() {
            return Ok(());
        }
        tables.iter().try_for_each(|table| uninstall_one(transaction, table))?;
        let is_last = installed(transaction)?.is_empty();
        if unread == Unread::Keep {
            // The whole log goes with the last table, with what is left of tables that went before.
            refuse_unread(transaction, (!is_last).then_some(&tables))?;
        }
        if is_last {
            transaction.execute_batch(REMOVE)?;
        }
        Ok(())
    };
    client.write(cx, all).await
}

/// A log that is installed again is another one, so its identity goes too.
const REMOVE: &str = "DROP TABLE watchkeeper_changes;
    DROP TABLE watchkeeper_displaced;
    DROP TABLE watchkeeper_tables;
    DROP TABLE watchkeeper_consumers;
    DELETE FROM watchkeeper_meta WHERE name IN ('log', 'pruned_through', 'schema/log') OR name LIKE 'log/%';";

fn uninstall_one(connection: &Connection, table: &str) -> Result<(), Failure> {
    let sql = "DELETE FROM watchkeeper_tables WHERE name = ?1 COLLATE NOCASE";
    if !exists(connection, "watchkeeper_tables")? || connection.execute(sql, [table])? == 0 {
        return Err(Error::config(format!("the table {table} is not logged"))
            .remedy("look at watchkeeper_tables for those that are")
            .into());
    }
    marks::note_uninstalled(connection, table)?;
    triggers::remove(connection, table)
}

/// Refuses to go on when a consumer has not acknowledged all changes of these tables, or of all without them.
fn refuse_unread(connection: &Connection, tables: Option<&Vec<String>>) -> Result<(), Failure> {
    let sql = "SELECT name, (SELECT count(*) FROM watchkeeper_changes WHERE seq > acknowledged AND op <> 'lost'
            AND (?1 IS NULL OR lower(tbl) IN (SELECT lower(value) FROM json_each(?1)))) AS unread
        FROM watchkeeper_consumers WHERE unread > 0 ORDER BY name";
    let tables = tables.map(json::text).transpose()?;
    let mut statement = connection.prepare(sql)?;
    let read = statement.query_map([tables], |row| {
        let (stream, unread): (String, i64) = (row.get(0)?, row.get(1)?);
        let changes = if unread == 1 { "change" } else { "changes" };
        Ok(format!("{stream} has {unread} {changes} to read"))
    })?;
    let read = read.collect::<rusqlite::Result<Vec<_>>>()?;
    if read.is_empty() {
        return Ok(());
    }
    Err(Error::config(format!("changes would be lost: {}", read.join(", ")))
        .remedy("let it read them first, or discard them with --yes")
        .into())
}

/// Rows that one step of pruning removes, so that the application never waits long for the write lock.
const STEP: i64 = 500;

/// Drops the log up to and including change `through`, in small steps. Whoever has not read it has lost it.
pub async fn prune(cx: &Cx, client: &Client, through: u64) -> Result<()> {
    let through = i64::try_from(through).unwrap_or(i64::MAX);
    while client.write(cx, move |transaction| prune_step(transaction, through)).await? {}
    Ok(())
}

/// One step; whether more is to be done.
pub(crate) fn prune_step(connection: &Connection, through: i64) -> Result<bool, Failure> {
    let sql = "SELECT max(seq) FROM (SELECT seq FROM watchkeeper_changes WHERE seq <= ?1 ORDER BY seq LIMIT ?2)";
    let last: Option<i64> = connection.prepare_cached(sql)?.query_row((through, STEP), |row| row.get(0))?;
    let Some(last) = last else { return Ok(false) };
    let sql = "UPDATE watchkeeper_meta SET value = max(value, ?1) WHERE name = 'pruned_through'";
    connection.prepare_cached(sql)?.execute([last])?;
    connection.prepare_cached("DELETE FROM watchkeeper_changes WHERE seq <= ?1")?.execute([last])?;
    Ok(last < through)
}
