//! Changes of a logged table that SQLite refuses as long as triggers name its columns.
//!
//! The triggers of the log name every column, since a trigger cannot ask for "all of them"; and SQLite refuses to drop a column that a
//! trigger names. Between two sets of triggers, in one transaction, it is free to go: nobody else can write meanwhile, so that no change is
//! missed and nothing is lost for readers.

use std::path::Path;

#[allow(unused_imports, reason = "it brings `next` of `Batch`, which older versions of rusqlite have without it")]
use fallible_iterator::FallibleIterator;
use rusqlite::{Batch, Connection, ErrorCode};
use watchkeeper_core::{Cx, Error, Finding, Result, Severity};

use super::{Shape, Triggers, installed, note_columns, triggers};
use crate::client::Client;
use crate::error::Failure;

/// Runs `ALTER TABLE` statements with the triggers of the log out of the way, and makes these anew. The answer is the logged tables that have
/// other columns than before.
///
/// # Errors
/// `Config` for other statements, for those that SQLite refuses, and when a table could not be logged any more; then nothing was changed.
pub async fn alter(cx: &Cx, client: &Client, sql: &str) -> Result<Vec<String>> {
    let sql = sql.to_owned();
    client.write(cx, move |transaction| alter_on(transaction, &sql)).await
}

/// What whoever installs or checks a log should know.
pub(crate) fn alter_note(file: &Path) -> Finding {
    let what = "the application's ALTER TABLE … DROP COLUMN fails on a logged table, since SQLite drops no column that a trigger names";
    let remedy = format!(
        "run it as `watchkeeper sqlite alter --db {} --sql 'ALTER TABLE …'`, which loses nothing",
        file.display()
    );
    Finding { severity: Severity::Note, what: what.to_owned(), remedy: Some(remedy) }
}

fn alter_on(connection: &Connection, sql: &str) -> Result<Vec<String>, Failure> {
    let mut logged = Vec::new();
    for (table, columns) in installed(connection)? {
        // A table that has lost its triggers has lost history, which only an installation may pass over, with a mark.
        if Triggers::of(connection, &table)?.are_whole() {
            triggers::remove(connection, &table)?;
            logged.push((table, columns));
        }
    }
    run(connection, sql)?;
    let mut altered = Vec::new();
    for (table, columns) in logged {
        let shape = Shape::inspect(connection, &table)?;
        triggers::make(connection, &shape)?;
        note_columns(connection, &shape)?;
        if shape.columns != columns {
            altered.push(table);
        }
    }
    Ok(altered)
}

fn run(connection: &Connection, sql: &str) -> Result<(), Failure> {
    let mut batch = Batch::new(connection, sql);
    loop {
        let mut statement = match batch.next() {
            Ok(Some(statement)) => statement,
            Ok(None) => return Ok(()),
            Err(native) => return Err(refused(native)),
        };
        let text = statement.expanded_sql().unwrap_or_default();
        let mut words = text.split_ascii_whitespace().map(str::to_ascii_uppercase);
        if (words.next().as_deref(), words.next().as_deref()) != (Some("ALTER"), Some("TABLE")) {
            return Err(Error::config(format!("{text:?} is no ALTER TABLE statement"))
                .remedy("run other statements yourself: the log's triggers do not stand in their way")
                .into());
        }
        statement.execute([]).map_err(refused)?;
    }
}

/// What SQLite says of the statement itself is a matter of whoever wrote it.
fn refused(native: rusqlite::Error) -> Failure {
    let is_wrong = matches!(native, rusqlite::Error::SqlInputError { .. })
        || native.sqlite_error_code() == Some(ErrorCode::Unknown);
    if !is_wrong {
        return native.into();
    }
    Error::config(native.to_string()).remedy("correct the statement; nothing was changed").caused_by(native).into()
}
