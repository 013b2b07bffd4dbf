//! Keys that may be missing: SQLite lets the columns of a primary key be NULL unless they are declared otherwise.

use rusqlite::Connection;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{Error, Finding};

use super::triggers::name;
use crate::error::Failure;

const REMEDY: &str = "add NOT NULL to the columns of its primary key";

/// Refuses a table that has rows without a key: all of them would be one.
pub(super) fn refuse_missing(connection: &Connection, table: &str) -> Result<(), Failure> {
    for column in nullable(connection, table)? {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE {} IS NULL)", name(table), name(&column));
        if connection.query_row(&sql, [], |row| row.get(0))? {
            let cause = format!("the table {table} cannot be followed: {table}.{column} is NULL in some rows");
            let remedy = "rows without a key cannot be told apart: give them one, and add NOT NULL";
            return Err(Error::config(cause).remedy(remedy).into());
        }
    }
    Ok(())
}

/// What may go wrong with the keys of a table later.
pub(crate) fn key_findings(connection: &Connection, table: &str) -> Result<Vec<Finding>, Failure> {
    let finding = |column: String| {
        let what = format!("{table}.{column} may be NULL: rows without a key cannot be told apart");
        Finding { severity: Severity::Warning, what, remedy: Some(REMEDY.to_owned()) }
    };
    Ok(nullable(connection, table)?.into_iter().map(finding).collect())
}

/// The columns of the primary key that may be NULL.
fn nullable(connection: &Connection, table: &str) -> Result<Vec<String>, Failure> {
    // A key without an index is the row's number, which every row has. In strict tables and those without row numbers the
    // columns of the key are listed as NOT NULL.
    let sql = "SELECT name FROM pragma_table_info(?1) WHERE pk > 0 AND NOT \"notnull\"
        AND EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk') ORDER BY pk";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([table], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
