use rusqlite::Transaction;
use watchkeeper_core::{Change, Error, Grant, Image, Operation, Result, ValueRef, Visit, rename_rejection};

use super::Apply;
use crate::error::Failure;

/// Appends every change to a table, in order, with its body as JSON text ([`Change::json`]) whatever the source.
#[derive(Debug, Clone)]
pub struct Events {
    table: Name,
}

impl Events {
    /// Into this table, made where it is missing.
    pub fn into(table: &str) -> Result<Self> {
        Ok(Self { table: Name::new(table)? })
    }
}

impl Apply for Events {
    fn prepare(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let table = &self.table.quoted;
        transaction.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {table}(
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL,
                operation TEXT NOT NULL,
                namespace TEXT NOT NULL,
                key BLOB,
                time_millis INTEGER NOT NULL,
                version_time INTEGER NOT NULL,
                version_ordinal INTEGER NOT NULL,
                epoch INTEGER NOT NULL,
                tenure TEXT NOT NULL,
                body TEXT NOT NULL)"
        ))?;
        Ok(())
    }

    fn table(&self) -> Option<String> {
        Some(self.table.written.clone())
    }

    fn apply(&self, transaction: &Transaction<'_>, change: &Change, grant: &Grant) -> Result<(), Failure> {
        let sql = format!(
            "INSERT INTO {}(id, operation, namespace, key, time_millis, version_time, version_ordinal, epoch, tenure, body)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            self.table.quoted
        );
        let version = change.version();
        let values = (
            change.id().to_string(),
            change.operation().as_str(),
            change.namespace(),
            change.key(),
            change.time().0.cast_signed(),
            version.time.cast_signed(),
            version.ordinal.cast_signed(),
            grant.epoch.0.cast_signed(),
            grant.tenure.to_string(),
            change.json()?,
        );
        transaction.prepare_cached(&sql)?.execute(values)?;
        Ok(())
    }
}

/// Keeps the newest body of every key, as JSON text ([`Change::json`]): an upsert or a delete for each change.
///
/// A change that does not tell the whole row is rejected.
#[derive(Debug, Clone)]
pub struct Mirror {
    table: Name,
}

impl Mirror {
    /// Into this table, made where it is missing.
    pub fn into(table: &str) -> Result<Self> {
        Ok(Self { table: Name::new(table)? })
    }
}

impl Apply for Mirror {
    fn prepare(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let table = &self.table.quoted;
        transaction.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {table}(
                namespace TEXT NOT NULL,
                key BLOB NOT NULL,
                time_millis INTEGER NOT NULL,
                version_time INTEGER NOT NULL,
                version_ordinal INTEGER NOT NULL,
                body TEXT NOT NULL,
                PRIMARY KEY (namespace, key)) WITHOUT ROWID"
        ))?;
        Ok(())
    }

    fn table(&self) -> Option<String> {
        Some(self.table.written.clone())
    }

    fn apply(&self, transaction: &Transaction<'_>, change: &Change, _grant: &Grant) -> Result<(), Failure> {
        let (table, namespace) = (&self.table.quoted, change.namespace());
        let Some(key) = change.key() else {
            return match change.operation() {
                Operation::Truncate | Operation::Drop => {
                    transaction.execute(&format!("DELETE FROM {table} WHERE namespace = ?1"), [namespace])?;
                    Ok(())
                }
                Operation::Rename => Err(Failure::Refused(rename_rejection(change))),
                _ => Ok(()),
            };
        };
        if change.operation() == Operation::Delete || RowAfter::of(change)?.is_gone {
            let sql = format!("DELETE FROM {table} WHERE namespace = ?1 AND key = ?2");
            transaction.prepare_cached(&sql)?.execute((namespace, key))?;
            return Ok(());
        }
        let sql = format!("INSERT OR REPLACE INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
        let (time, version) = (change.time().0.cast_signed(), change.version());
        let (version, ordinal) = (version.time.cast_signed(), version.ordinal.cast_signed());
        transaction.prepare_cached(&sql)?.execute((namespace, key, time, version, ordinal, change.json()?))?;
        Ok(())
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }

    fn mirrors(&self) -> bool {
        true
    }
}

/// What a change tells of its row as it is since the change.
#[derive(Default)]
struct RowAfter {
    /// Whether it was deleted since: the change that did so will come.
    is_gone: bool,
    leaves_values_out: bool,
    depth: usize,
}

impl RowAfter {
    /// Refuses a change that does not tell the whole row: a mirror of its body would lose the rest.
    fn of(change: &Change) -> Result<Self, Failure> {
        let mut row = Self::default();
        let payload = change.batch().payload();
        if !payload.image(change.body(), change.operation(), Image::After, &mut row)? {
            let cause = format!("this {} does not tell the whole row", change.operation().as_str());
            let remedy = "let the source tell it (full_document, REPLICA IDENTITY)";
            return Err(Failure::Refused(Error::config(cause).remedy(remedy)));
        }
        if row.leaves_values_out {
            let cause = "this change leaves out large values that did not change";
            let remedy = "let the source tell all of them (ALTER TABLE … REPLICA IDENTITY FULL)";
            return Err(Failure::Refused(Error::config(cause).remedy(remedy)));
        }
        Ok(row)
    }
}

impl Visit for RowAfter {
    fn value(&mut self, value: ValueRef<'_>) {
        self.is_gone |= self.depth == 0 && value == ValueRef::Null;
        self.leaves_values_out |= value == ValueRef::Unchanged;
    }

    fn quoted(&mut self, _quoted: &str) -> Result<()> {
        Ok(())
    }

    fn begin_document(&mut self) {
        self.depth += 1;
    }

    fn key(&mut self, _key: &str) {}

    fn end_document(&mut self) {
        self.depth -= 1;
    }

    fn begin_array(&mut self) {
        self.depth += 1;
    }

    fn end_array(&mut self) {
        self.depth -= 1;
    }
}

/// A name of a table that is not one of ours.
#[derive(Debug, Clone)]
struct Name {
    written: String,
    quoted: String,
}

impl Name {
    fn new(table: &str) -> Result<Self> {
        // Names of tables are the same in upper and lower case.
        let begins = |prefix: &str| table.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        if begins("watchkeeper_") || begins("sqlite_") || table.is_empty() || table.contains('\0') {
            return Err(Error::config(format!("{table:?} cannot be a table of a sink")).remedy("choose another name"));
        }
        Ok(Self { written: table.to_owned(), quoted: format!("\"{}\"", table.replace('"', "\"\"")) })
    }
}
