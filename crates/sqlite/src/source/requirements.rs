//! What has to be there before the log is read. A source is made whatever its tables are like: they concern only the stream that reads them,
//! and only once it does.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{Cx, Error, Finding, Result, StartAt};

use super::{ChangeLog, guard, identity};
use crate::error::Failure;
use crate::tools::{SCHEMA, Shape, install_command, installed, marks, plain};

impl ChangeLog {
    /// The same log, if it can be read.
    pub(super) async fn required(self, cx: &Cx) -> Result<Self> {
        let client = self.client.clone();
        client.read(cx, move |transaction| self.require(transaction)).await
    }

    /// The same log with its tables as it spells them now.
    ///
    /// # Errors
    /// `Config` when there is no log, or a table was never logged; `PositionLost` when there is no log any more that a position could
    /// belong to.
    pub(super) fn settled(&self, connection: &Connection, start: &StartAt) -> Result<Self, Failure> {
        if matches!(start, StartAt::After(_)) {
            self.current(connection)?;
        }
        self.require(connection)
    }

    fn require(&self, connection: &Connection) -> Result<Self, Failure> {
        self.require_log(connection)?;
        let Some(named) = &self.named else { return Ok(self.clone()) };
        let tables = logged(connection, self.file(), named)?;
        Ok(Self { tables: Some(tables.into()), ..self.clone() })
    }

    /// Refuses a file without a log.
    pub(super) fn require_log(&self, connection: &Connection) -> Result<(), Failure> {
        require_log(connection, self.file(), self.named.as_deref().unwrap_or_default())
    }

    /// What is wrong with the tables that are read.
    pub(super) fn findings(&self, connection: &Connection) -> Result<Vec<Finding>, Failure> {
        let log = self.require(connection)?;
        guard::findings(connection, log.file(), log.tables.as_deref())
    }

    /// The name of a table as the changes that this stream reads have it. A table that is no longer logged keeps its name as long as the
    /// log has changes of it.
    ///
    /// # Errors
    /// `Config` for a table that this stream does not read, or that was never logged, and for a file without a log.
    pub(super) fn change_name(&self, connection: &Connection, table: &str) -> Result<String, Failure> {
        self.require_log(connection)?;
        let table = plain(table);
        let is_watched = |named: &[String]| named.iter().any(|named| named.eq_ignore_ascii_case(&table));
        if !self.named.as_deref().is_none_or(is_watched) {
            return Err(Error::config(format!("the stream does not watch {table}"))
                .remedy("correct the name, or add the table to `tables` of the source")
                .into());
        }
        // Asked first, since it is answered at once for every table that is logged now.
        let not_logged = match logged(connection, self.file(), std::slice::from_ref(&table)) {
            Ok(spelled) => return Ok(spelled.into_iter().next().unwrap_or(table)),
            Err(not_logged) => not_logged,
        };
        let sql = "SELECT tbl FROM watchkeeper_changes WHERE tbl = ?1 COLLATE NOCASE LIMIT 1";
        let former: Option<String> = connection.query_row(sql, [&table], |row| row.get(0)).optional()?;
        former.ok_or(not_logged)
    }

    /// The tables that are read, as the log spells them as far as it knows them.
    pub(crate) fn watched(&self, connection: &Connection) -> Result<Vec<String>, Failure> {
        let known = match identity(connection)? {
            Some(_) => installed(connection)?.into_iter().map(|(table, _)| table).collect(),
            None => Vec::new(),
        };
        let Some(named) = &self.named else { return Ok(known) };
        let spelled = |table: &String| {
            let known = known.iter().find(|known| known.eq_ignore_ascii_case(table));
            known.unwrap_or(table).clone()
        };
        Ok(named.iter().map(spelled).collect())
    }
}

/// Refuses a file without a log. The tables are those that should be in it, as far as that is known.
fn require_log(connection: &Connection, file: &Path, tables: &[String]) -> Result<(), Failure> {
    if identity(connection)?.is_some() && SCHEMA.is_there(connection)? {
        return Ok(());
    }
    tables.iter().try_for_each(|table| Shape::inspect(connection, table).map(drop))?;
    let table = tables.first().map_or("TABLE", String::as_str);
    Err(Error::config("no table of this database is logged")
        .remedy(format!("run `{}`", install_command(file, table)))
        .into())
}

/// The tables as the log spells them. One that was uninstalled is named as it was: what became of it is told when it is read.
fn logged(connection: &Connection, file: &Path, tables: &[String]) -> Result<Vec<String>, Failure> {
    let known: Vec<String> = installed(connection)?.into_iter().map(|(table, _)| table).collect();
    let spelled = |table: &String| {
        if let Some(known) = known.iter().find(|known| known.eq_ignore_ascii_case(table)) {
            return Ok(known.clone());
        }
        if marks::was_uninstalled(connection, table)? {
            return Ok(table.clone());
        }
        // To install what cannot be installed is no remedy; so that is told first.
        Shape::inspect(connection, table)?;
        let remedy = format!("run `{}`", install_command(file, table));
        let cause = format!("the table {table} is not logged; those that are: {}", known.join(", "));
        Err(Failure::from(Error::config(cause).remedy(remedy)))
    };
    tables.iter().map(spelled).collect()
}
