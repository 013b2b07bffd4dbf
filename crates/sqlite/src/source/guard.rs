//! Whether the triggers still log what is read.
//!
//! A table that is rebuilt (created anew, copied, dropped, renamed) loses its triggers without a word, and from then on the log
//! says nothing about it: that is lost history, and it has to be told. A table that was only altered is still logged, in
//! the shape that it had before.

use std::path::Path;

use rusqlite::Connection;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{Error, Finding};

use crate::error::Failure;
use crate::tools::{Shape, Triggers, exists, install_command, installed, key_findings};

/// What a reader knows of the schema, so that it looks at the tables only after a change of it.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownSchema {
    /// The schema's version at the last look that found all tables logged.
    version: Option<i64>,
    /// What was found then, and has been told.
    reported: Vec<Finding>,
}

impl KnownSchema {
    /// Looks at the tables if the schema has changed; what it answers is news.
    ///
    /// # Errors
    /// `PositionLost` for a table that is no longer logged; while there are `unread` changes only the next look says so.
    pub(super) fn inspect(
        &mut self,
        connection: &Connection,
        file: &Path,
        wanted: Option<&[String]>,
        unread: bool,
    ) -> Result<Vec<Finding>, Failure> {
        let version = connection.prepare_cached("PRAGMA schema_version")?.query_row([], |row| row.get(0))?;
        if self.version == Some(version) {
            return Ok(Vec::new());
        }
        let found = findings(connection, file, wanted)?;
        match lost(&found) {
            Some(_) if unread => return Ok(Vec::new()),
            Some(error) => return Err(error.into()),
            None => self.version = Some(version),
        }
        let news = found.iter().filter(|finding| !self.reported.contains(finding)).cloned().collect();
        self.reported = found;
        Ok(news)
    }
}

/// Refuses to go on when a table is no longer logged.
pub(super) fn require_logged(connection: &Connection, file: &Path, wanted: Option<&[String]>) -> Result<(), Failure> {
    lost(&findings(connection, file, wanted)?).map_or(Ok(()), |error| Err(error.into()))
}

fn lost(findings: &[Finding]) -> Option<Error> {
    let finding = findings.iter().find(|finding| finding.severity == Severity::Error)?;
    Some(Error::position_lost(finding.what.clone()).remedy(finding.remedy.clone().unwrap_or_default()))
}

/// What is wrong with the tables that are read: an error for each that is no longer logged, a warning for each that is
/// logged in another shape than it has.
pub(crate) fn findings(
    connection: &Connection,
    file: &Path,
    wanted: Option<&[String]>,
) -> Result<Vec<Finding>, Failure> {
    let known = installed(connection)?;
    let mut found = Vec::new();
    for table in wanted.unwrap_or_default() {
        if !known.iter().any(|(known, _)| known == table) {
            found.push(no_longer_logged(file, table, "it was uninstalled"));
        }
    }
    for (table, columns) in known {
        if wanted.is_none_or(|wanted| wanted.contains(&table)) {
            found.extend(key_findings(connection, &table)?);
            found.extend(finding(connection, file, &table, &columns)?);
        }
    }
    Ok(found)
}

fn finding(connection: &Connection, file: &Path, table: &str, columns: &[String]) -> Result<Option<Finding>, Failure> {
    if !exists(connection, table)? {
        return Ok(Some(dropped(file, table)));
    }
    let triggers = Triggers::of(connection, table)?;
    if !triggers.are_whole() {
        return Ok(Some(no_longer_logged(file, table, "its triggers are gone (was the table rebuilt?)")));
    }
    let remedy = format!("run `{}` again, which keeps the log", install_command(file, table));
    let (what, remedy) = match Shape::inspect(connection, table) {
        Ok(shape) if triggers.are_made_for(&shape) => return Ok(None),
        Ok(shape) => (difference(table, columns, &shape.columns), remedy),
        Err(Failure::Described(error)) => (error.message().to_owned(), format!("mend that, then {remedy}")),
        Err(failure) => return Err(failure),
    };
    Ok(Some(Finding { severity: Severity::Warning, what, remedy: Some(remedy) }))
}

fn no_longer_logged(file: &Path, table: &str, why: &str) -> Finding {
    let remedy = format!(
        "run `{}`, then accept the gap: what changed meanwhile is not in the log",
        install_command(file, table)
    );
    let what = format!("{table} is no longer logged: {why}");
    Finding { severity: Severity::Error, what, remedy: Some(remedy) }
}

fn dropped(file: &Path, table: &str) -> Finding {
    let remedy = format!(
        "create it and run `{}`, or stop logging it with `watchkeeper sqlite uninstall --db {} --table {table}`; then accept the gap",
        install_command(file, table),
        file.display()
    );
    let what = format!("{table} is no longer logged: the table is gone (was it dropped or renamed?)");
    Finding { severity: Severity::Error, what, remedy: Some(remedy) }
}

/// What has become of a table, in words.
fn difference(table: &str, known: &[String], now: &[String]) -> String {
    let without = |these: &[String], those: &[String]| {
        let left: Vec<_> = these.iter().filter(|column| !those.contains(column)).cloned().collect();
        left.join(", ")
    };
    let (new, old) = (without(now, known), without(known, now));
    match (new.is_empty(), old.is_empty()) {
        (false, true) => format!("{table} has columns that its changes lack: {new}"),
        (false, false) => format!("{table} has columns that its changes show under their old names ({old}): {new}"),
        (true, false) => format!("{table} no longer has columns that its triggers know: {old}"),
        (true, true) => format!(
            "{table} has other keys or unique indexes than its triggers know, or they were edited, or another version of Watchkeeper made them"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::install_on;

    fn shop() -> Connection {
        let mut connection = Connection::open_in_memory().expect("memory can be had");
        connection.execute_batch("CREATE TABLE orders(id INTEGER PRIMARY KEY, a)").expect("it is new");
        install_on(&mut connection, &["orders".to_owned()]).expect("it has a key");
        connection
    }

    fn mark_error(known: &mut KnownSchema, connection: &Connection) -> Vec<String> {
        let news = known.inspect(connection, Path::new("app.db"), None, false).expect("it is logged");
        news.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_new_column_is_reported_once() {
        let (mut connection, mut known) = (shop(), KnownSchema::default());
        assert!(mark_error(&mut known, &connection).is_empty());
        connection.execute_batch("ALTER TABLE orders ADD COLUMN note").expect("it is another name");
        assert_eq!(mark_error(&mut known, &connection), ["orders has columns that its changes lack: note"]);
        connection.execute_batch("CREATE TABLE other(x)").expect("it is another name");
        assert!(mark_error(&mut known, &connection).is_empty(), "it has been told");
        install_on(&mut connection, &["orders".to_owned()]).expect("it has a key");
        assert!(mark_error(&mut known, &connection).is_empty());
    }

    #[test]
    fn what_is_unread_comes_before_the_loss() {
        let (connection, mut known) = (shop(), KnownSchema::default());
        connection.execute_batch("DROP TABLE orders").expect("it is there");
        let mut observation = |unread| known.inspect(&connection, Path::new("app.db"), None, unread);
        assert!(observation(true).expect("there is something to read").is_empty());
        assert!(observation(false).is_err());
        assert!(observation(false).is_err(), "it stays lost");
    }
}
