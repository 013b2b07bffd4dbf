//! Commands of this backend: to keep a log of an application's tables, and to stop it.

mod commands;
mod keys;
mod shape;
mod triggers;

use rusqlite::Connection;
use watchkeeper_core::{Cx, Entropy, Error, Result};

pub use commands::{Install, Uninstall};
pub(crate) use keys::key_findings;
pub(crate) use shape::{Shape, installed};

use crate::client::{Client, Schema};
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

/// Begins to log the changes of these tables. Repeating it is harmless, and takes up new columns.
///
/// # Errors
/// `Config` for a table that can not be followed, with the reason; then nothing was changed.
pub async fn install(cx: &Cx, client: &Client, tables: &[&str]) -> Result<()> {
    client.ensure(cx, SCHEMA).await?;
    let tables: Vec<String> = tables.iter().map(|table| (*table).to_owned()).collect();
    let all = move |transaction: &rusqlite::Transaction<'_>| {
        let log = Entropy::from_system().uuid().to_string();
        transaction.execute("INSERT OR IGNORE INTO watchkeeper_meta VALUES ('log', ?1)", [log])?;
        tables.iter().try_for_each(|table| install_one(transaction, table))
    };
    client.write(cx, all).await
}

fn install_one(connection: &Connection, table: &str) -> Result<(), Failure> {
    let shape = Shape::look(connection, table)?;
    keys::refuse_missing(connection, &shape.table)?;
    triggers::remove(connection, &shape.table)?;
    triggers::make(connection, &shape)?;
    let sql = "INSERT OR REPLACE INTO watchkeeper_tables VALUES (?1, ?2)";
    connection.execute(sql, (&shape.table, json::text(&shape.columns)?))?;
    Ok(())
}

/// Stops logging these tables. With the last of them the log itself is removed, and with it what was not
/// read yet.
pub async fn uninstall(cx: &Cx, client: &Client, tables: &[&str]) -> Result<()> {
    let tables: Vec<String> = tables.iter().map(|table| (*table).to_owned()).collect();
    let all = move |transaction: &rusqlite::Transaction<'_>| {
        tables.iter().try_for_each(|table| uninstall_one(transaction, table))?;
        if tables.is_empty() {
            return Ok(());
        }
        let left: i64 = transaction.query_row("SELECT count(*) FROM watchkeeper_tables", [], |row| row.get(0))?;
        if left == 0 {
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
    DELETE FROM watchkeeper_meta WHERE name IN ('log', 'pruned_through', 'schema/log');";

fn uninstall_one(connection: &Connection, table: &str) -> Result<(), Failure> {
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'watchkeeper_tables'";
    let is_there = connection.query_row(there, [], |row| row.get::<_, i64>(0))? > 0;
    let sql = "DELETE FROM watchkeeper_tables WHERE name = ?1 COLLATE NOCASE";
    if !is_there || connection.execute(sql, [table])? == 0 {
        return Err(Error::config(format!("the table {table} is not logged"))
            .remedy("look at watchkeeper_tables for those that are")
            .into());
    }
    triggers::remove(connection, table)
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
    connection.prepare_cached("DELETE FROM watchkeeper_changes WHERE seq <= ?1")?.execute([last])?;
    let sql = "UPDATE watchkeeper_meta SET value = max(value, ?1) WHERE name = 'pruned_through'";
    connection.prepare_cached(sql)?.execute([last])?;
    Ok(last < through)
}
