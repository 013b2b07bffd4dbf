use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::Error;

use crate::error::Failure;
use crate::json;

/// What has to be known of a table to follow it.
#[derive(Debug)]
pub(crate) struct Shape {
    /// As the schema spells it.
    pub(crate) table: String,
    /// All columns, also generated ones.
    pub(crate) columns: Vec<String>,
    /// The columns of the primary key, in its order, with their collations.
    pub(crate) key: Vec<Compared>,
    /// The columns of every other unique index, with the collation that it compares by.
    pub(crate) unique: Vec<Vec<Compared>>,
}

/// A column of an index.
#[derive(Debug, Clone)]
pub(crate) struct Compared {
    pub(crate) column: String,
    pub(crate) collation: String,
}

fn refused(table: &str, why: &str, remedy: &str) -> Failure {
    Error::config(format!("the table {table} cannot be followed: {why}")).remedy(remedy).into()
}

impl Shape {
    /// Looks at a table, and refuses what cannot be followed.
    pub(crate) fn inspect(connection: &Connection, name: &str) -> Result<Self, Failure> {
        let table = spelled(connection, name)?;
        let (columns, mut key) = columns(connection, &table)?;
        if key.is_empty() {
            let remedy = "give it a primary key; a change without a key cannot be told from another";
            return Err(refused(&table, "it has no primary key", remedy));
        }
        let mut unique = Vec::new();
        for (index, origin, partial) in indexes(connection, &table)? {
            let compared = compared(connection, &index)?;
            match compared {
                Some(compared) if origin == "pk" => key = compared,
                Some(compared) if !partial => unique.push(compared),
                _ => {
                    let why = format!("its unique index {index} is over an expression or a part of the rows");
                    return Err(refused(&table, &why, "make it an index over whole columns, or not unique"));
                }
            }
        }
        Ok(Self { table, columns, key, unique })
    }
}

/// The table's name as the schema has it.
fn spelled(connection: &Connection, name: &str) -> Result<String, Failure> {
    let sql = "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE";
    let found = connection.query_row(sql, [name], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((table, kind)): Option<(String, String)> = found else {
        return Err(refused(name, "there is no such table", "correct its name, or create it first"));
    };
    if kind != "table" {
        return Err(refused(&table, &format!("it is a {kind}"), "name the tables behind it"));
    }
    if table.starts_with("watchkeeper_") || table.starts_with("sqlite_") {
        return Err(refused(&table, "it is no table of the application", "name another table"));
    }
    Ok(table)
}

/// Whether there is a table of this name.
pub(crate) fn exists(connection: &Connection, table: &str) -> Result<bool, Failure> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    Ok(connection.query_row(sql, [table], |row| row.get::<_, i64>(0))? > 0)
}

fn columns(connection: &Connection, table: &str) -> Result<(Vec<String>, Vec<Compared>), Failure> {
    let mut statement =
        connection.prepare("SELECT name, pk FROM pragma_table_xinfo(?1) WHERE hidden IN (0, 2, 3) ORDER BY cid")?;
    let rows = statement.query_map([table], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let all = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut key: Vec<_> = all.iter().filter(|(_, place)| *place > 0).collect();
    key.sort_by_key(|(_, place)| *place);
    // A key without an index of its own is the row's number, which is compared as numbers are.
    let compared = |column: &String| Compared { column: column.clone(), collation: "BINARY".to_owned() };
    let key = key.into_iter().map(|(column, _)| compared(column)).collect();
    Ok((all.into_iter().map(|(column, _)| column).collect(), key))
}

fn indexes(connection: &Connection, table: &str) -> Result<Vec<(String, String, bool)>, Failure> {
    let sql = "SELECT name, origin, partial FROM pragma_index_list(?1) WHERE \"unique\" ORDER BY seq";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The columns of an index; `None` if one of them is an expression.
fn compared(connection: &Connection, index: &str) -> Result<Option<Vec<Compared>>, Failure> {
    let mut statement = connection.prepare("SELECT name, coll FROM pragma_index_xinfo(?1) WHERE key ORDER BY seqno")?;
    let rows = statement.query_map([index], |row| {
        let (column, collation): (Option<String>, String) = (row.get(0)?, row.get(1)?);
        Ok(column.map(|column| Compared { column, collation }))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The tables that are logged, each with the columns that its triggers know.
pub(crate) fn installed(connection: &Connection) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let mut statement = connection.prepare("SELECT name, columns FROM watchkeeper_tables ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    rows.into_iter().map(|(table, columns)| Ok((table, json::read(&columns)?))).collect()
}
