//! Changes into tables whose columns have types of their own.

mod field;
mod plan;
mod shape;
mod versioned;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio_postgres::types::Type;
use watchkeeper_core::{Change, Cx, Error, Operation, Result};

pub use shape::Missing;
pub use versioned::VersionedRows;

use self::plan::{Plan, Row};
use self::shape::Shape;
use super::rekey::{halves, incomplete};
use super::{Apply, Failure, Open, Table};
use crate::client::Client;

/// Keeps the rows of one source table in a table with columns of their own: an upsert or a delete for each change.
///
/// The table is the user's: its columns and their types are as they were created, and the server converts every field by the type
/// of its column, as its own input functions do. Times, numbers of any length, bytes, UUIDs, enums, JSON and arrays arrive
/// as what they are; a field that does not fit its column is a rejected change. Only JSON's own null is the null
/// of SQL here, as the server has it. The primary key of the table has to be the key of the
/// source. A truncate of the source empties the table.
///
/// Changes of one row that come together are written once, as the last of them leaves it, and many rows by one statement.
#[derive(Debug, Clone)]
pub struct Rows {
    table: Table,
    /// Columns and the fields that they are taken from.
    fields: Vec<(String, String)>,
    missing: Missing,
    /// As the table was when a writer was opened last.
    shape: Arc<Mutex<Option<Arc<Shape>>>>,
}

impl Rows {
    /// Into this table, which has to be there. Every column is taken from the field of its name; one that a document does not have is
    /// null, and one that a table of the source does not have is a rejected change.
    ///
    /// # Errors
    /// `Config` when it can not be the name of a table.
    pub fn into(table: &str) -> Result<Self> {
        Ok(Self { table: Table::new(table)?, fields: Vec::new(), missing: Missing::default(), shape: Arc::default() })
    }

    /// Takes a column from this field, with points between the parts of its way (`address.city`). Columns that are not named
    /// are left alone then.
    #[must_use]
    pub fn column(mut self, column: &str, field: &str) -> Self {
        self.fields.push((column.to_owned(), field.to_owned()));
        self
    }

    /// What becomes of columns whose fields the source does not have.
    #[must_use]
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Looks at the table, and refuses what can not be written into.
    pub(crate) async fn look(&self, cx: &Cx, client: &Client) -> Result<()> {
        let shape = Shape::look(cx, client, &self.table, &self.fields, self.missing).await?;
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(shape));
        Ok(())
    }

    /// The fields that the table's primary key is taken from, as it was last looked at.
    pub(crate) fn key_fields(&self) -> Result<Vec<String>> {
        let shape = self.shape()?;
        Ok(shape.columns.iter().filter(|column| column.in_key).map(|column| column.path.join(".")).collect())
    }

    fn shape(&self) -> Result<Arc<Shape>> {
        let shape = self.shape.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shape.ok_or_else(|| Error::internal("rows were written before their table was looked at"))
    }

    async fn send(&self, open: &Open<'_>, shape: &Shape, plan: &mut Plan<'_>) -> Result<(), Failure> {
        for statement in std::mem::take(plan).statements(shape) {
            let found = open.state(&statement.sql, &[(&statement.rows, Type::TEXT)]).await?;
            if !statement.is_done_by(found) {
                return Err(Failure::Refused(None, incomplete()));
            }
        }
        Ok(())
    }

    /// Does both halves of a key update at once if the second leaves something out; if not, it is left to others.
    async fn rekey(
        &self,
        open: &Open<'_>,
        shape: &Shape,
        plan: &mut Plan<'_>,
        changes: &[Change],
    ) -> Result<bool, Failure> {
        let Some((old, new)) = halves(changes) else { return Ok(false) };
        let (Ok(old), Ok(new)) = (Row::of(shape, old), Row::of(shape, new)) else { return Ok(false) };
        if new.is_whole() {
            return Ok(false);
        }
        self.send(open, shape, plan).await?;
        let (statement, key) = (new.rename(shape), old.only_key());
        let found = open.state(&statement.sql, &[(&statement.rows, Type::TEXT), (&key, Type::TEXT)]).await?;
        match statement.is_done_by(found) {
            true => Ok(true),
            false if new.is_partial() => Err(Failure::Refused(None, incomplete())),
            // There was no row to take anything from: a new one gets defaults.
            false => Ok(false),
        }
    }
}

/// Whether all rows go with a change.
fn clears(change: &Change) -> bool {
    matches!(change.operation(), Operation::Drop | Operation::Truncate)
}

#[async_trait]
impl Apply for Rows {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        self.look(cx, client).await
    }

    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        let shape = self.shape()?;
        let (mut plan, mut at) = (Plan::default(), 0);
        while let Some(change) = changes.get(at) {
            if self.rekey(open, &shape, &mut plan, &changes[at..]).await? {
                at += 2;
                continue;
            }
            if let Some(key) = change.key() {
                let row = Row::of(&shape, change).map_err(|error| Failure::Refused(Some(at), error))?;
                if row.is_partial() && change.operation() == Operation::Insert {
                    // Nothing under its key belongs to a row that comes.
                    return Err(Failure::Refused(Some(at), incomplete()));
                }
                if !plan.takes(change, key, &row) {
                    self.send(open, &shape, &mut plan).await?;
                }
                plan.note(change, key, row);
            } else if clears(change) {
                self.send(open, &shape, &mut plan).await?;
                open.state(&shape.clear(), &[]).await?;
            }
            at += 1;
        }
        self.send(open, &shape, &mut plan).await
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }
}
