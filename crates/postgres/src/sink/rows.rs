//! Changes into tables whose columns have types of their own.

mod encode;
mod field;
mod known_fields;
mod literal;
mod origins;
mod plan;
mod shape;
mod versioned;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio_postgres::types::Type;
use watchkeeper_core::{Change, Cx, Error, Operation, Result, SinkContext};

pub use shape::Missing;
pub use versioned::VersionedRows;

use self::known_fields::Target;
use self::origins::Origins;
use self::plan::{Plan, Row, Statement};
use self::shape::Shape;
use super::image::require_key;
use super::rekey::{halves, incomplete};
use super::{Apply, Failure, Open, Table};
use crate::client::Client;
use crate::error::is_doubtful;

/// Keeps the rows of one source table in a table with columns of their own: an upsert or a delete for each change.
///
/// The table is the user's: its columns and their types are as they were created, and the server converts every field by the type
/// of its column, as its own input functions do. Times, numbers of any length, bytes, UUIDs, enums, JSON and arrays arrive
/// as what they are; a field that does not fit its column, or would become another value there, is a rejected change. The primary key of the table has to be the key of the
/// source. A truncate of the source empties the table; that of one of several tables whose changes come is rejected.
///
/// Changes of one row that come together are written once, as the last of them leaves it, and many rows by one statement.
#[derive(Debug, Clone)]
pub struct Rows {
    table: Table,
    /// Columns and the fields that they are taken from.
    fields: Vec<(String, String)>,
    missing: Missing,
    origins: Origins,
    /// As the table was when a writer was opened last.
    shape: Arc<Mutex<Option<Arc<Shape>>>>,
    target: Arc<Mutex<Target>>,
}

impl Rows {
    /// Into this table, which has to be there. Every column is taken from the field of its name; one that a document does not have is
    /// null, and one that a table of the source does not have is a rejected change.
    ///
    /// # Errors
    /// `Config` when it cannot be the name of a table.
    pub fn into(table: &str) -> Result<Self> {
        let table = Table::new(table)?;
        let target = Target { table: table.written().to_owned(), ..Target::default() };
        Ok(Self {
            table,
            fields: Vec::new(),
            missing: Missing::default(),
            origins: Origins::default(),
            shape: Arc::default(),
            target: Arc::new(Mutex::new(target)),
        })
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

    /// Says that changes of several tables may come. It is found out anyway as soon as they have come.
    #[must_use]
    pub fn of_several(mut self) -> Self {
        self.origins.are_several = true;
        self
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Looks at the table, and refuses what cannot be written into.
    pub(crate) async fn inspect(&self, cx: &Cx, client: &Client) -> Result<()> {
        let shape = Shape::inspect(cx, client, &self.table, &self.fields, self.missing).await?;
        self.table.require_seen(cx, client).await?;
        let shape = match self.shape() {
            Ok(before) => shape.replacing(&before, &self.target()),
            Err(_) => shape,
        };
        self.keep(Arc::new(shape));
        Ok(())
    }

    /// The fields that the table's primary key is taken from, as it was last looked at.
    pub(crate) fn key_fields(&self) -> Result<Vec<String>> {
        let shape = self.shape()?;
        Ok(shape.columns.iter().filter(|column| column.in_key).map(|column| column.path.join(".")).collect())
    }

    /// Notes whose sink writes the table from now on.
    fn note_writer(&self, context: &SinkContext) {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        (target.stream, target.sink) = (context.stream.clone(), context.sink.clone());
    }

    fn target(&self) -> Target {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn shape(&self) -> Result<Arc<Shape>> {
        let shape = self.shape.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shape.ok_or_else(|| Error::internal("rows were written before their table was looked at"))
    }

    /// Looks at the table again, for columns that take the `strangers` among the fields.
    fn follow(&self, found: Shape, strangers: &BTreeSet<String>) -> Result<Arc<Shape>> {
        let next = Arc::new(found.following(&*self.shape()?, strangers, &self.target()));
        self.keep(Arc::clone(&next));
        Ok(next)
    }

    fn keep(&self, shape: Arc<Shape>) {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = Some(shape);
    }

    async fn send(&self, open: &Open<'_>, shape: &Shape, plan: &mut Plan<'_>) -> Result<(), Failure> {
        for statement in std::mem::take(plan).statements(shape) {
            if open.is_probing {
                probe(open, &statement).await?;
            }
            let found = open.state(&statement.sql, &[(&statement.rows, Type::TEXT)]).await?;
            if !statement.is_done_by(found) {
                return Err(Failure::Refused(None, incomplete()));
            }
        }
        Ok(())
    }

    /// What a change does, by the table as it is now: it is looked at again where the change tells a field that no column takes yet.
    /// Once for all changes of a transaction, since all of them were read before it.
    async fn row<'a>(
        &self,
        open: &Open<'_>,
        snapshot: &mut TableSnapshot,
        plan: &mut Plan<'a>,
        change: &'a Change,
    ) -> Result<Result<Row>, Failure> {
        let row = Row::of(&snapshot.shape, change, &mut snapshot.strangers);
        if !may_take(snapshot.found.as_ref(), &snapshot.strangers) {
            return Ok(row);
        }
        self.send(open, &snapshot.shape, plan).await?;
        self.inspect_within(open, snapshot).await?;
        Ok(Row::of(&snapshot.shape, change, &mut snapshot.strangers))
    }

    async fn inspect_within(&self, open: &Open<'_>, snapshot: &mut TableSnapshot) -> Result<(), Failure> {
        let found = match snapshot.found.take() {
            Some(found) => found,
            None => Shape::inspect_within(open, &self.table, self.missing).await?,
        };
        snapshot.shape = self.follow(found.clone(), &std::mem::take(&mut snapshot.strangers))?;
        snapshot.found = Some(found);
        Ok(())
    }

    /// Does both halves of a key update at once if the second leaves something out; if not, it is left to others.
    async fn rekey<'a>(
        &self,
        open: &Open<'_>,
        snapshot: &mut TableSnapshot,
        plan: &mut Plan<'a>,
        changes: &'a [Change],
    ) -> Result<bool, Failure> {
        let Some((old, new)) = halves(changes) else { return Ok(false) };
        let Ok(new) = self.row(open, snapshot, plan, new).await? else { return Ok(false) };
        let Ok(old) = Row::of(&snapshot.shape, old, &mut snapshot.strangers) else { return Ok(false) };
        if new.is_whole() {
            return Ok(false);
        }
        self.send(open, &snapshot.shape, plan).await?;
        let (statement, key) = (new.rename(&snapshot.shape), old.only_key());
        if open.is_probing {
            probe(open, &statement).await?;
        }
        let found = open.state(&statement.sql, &[(&statement.rows, Type::TEXT), (&key, Type::TEXT)]).await?;
        match statement.is_done_by(found) {
            true => Ok(true),
            false if new.is_partial() => Err(Failure::Refused(None, incomplete())),
            // There was no row to take anything from: a new one gets defaults.
            false => Ok(false),
        }
    }
}

/// Converts the rows of a statement, and nothing else. What fails then although it does not fail without rows is their fault, whatever
/// the server calls it: types have input functions of their own.
async fn probe(open: &Open<'_>, statement: &Statement) -> Result<(), Failure> {
    open.state(&statement.conversion, &[(&"[]", Type::TEXT)]).await?;
    match open.state(&statement.conversion, &[(&statement.rows, Type::TEXT)]).await {
        Err(Failure::Failed(error)) if is_doubtful(&error) => Err(Failure::Refused(None, error)),
        other => other.map(drop),
    }
}

/// How the table is seen while changes are applied.
struct TableSnapshot {
    shape: Arc<Shape>,
    /// Fields of the changes that no column is known to take.
    strangers: BTreeSet<String>,
    /// The table as it was looked at since these changes were read: whatever they tell, its column was there by then.
    found: Option<Shape>,
}

/// Whether the table has columns for fields that no column is known to take, or may have them, as long as it was not `found`. Each column is taken
/// from the first change on that tells it, so the columns that one batch brings may be taken one after another.
fn may_take(found: Option<&Shape>, strangers: &BTreeSet<String>) -> bool {
    let has = |found: &Shape| found.columns.iter().any(|column| strangers.contains(&column.name));
    !strangers.is_empty() && found.is_none_or(has)
}

/// Whether all rows go with a change.
fn clears(change: &Change) -> bool {
    matches!(change.operation(), Operation::Drop | Operation::Truncate)
}

#[async_trait]
impl Apply for Rows {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        self.inspect(cx, client).await
    }

    fn note_opening(&self, context: &SinkContext) {
        self.note_writer(context);
    }

    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        self.origins.note(changes);
        let shape = self.shape()?;
        let is_due = shape.follows.as_ref().is_some_and(known_fields::KnownFields::is_due);
        let mut snapshot = TableSnapshot { shape, strangers: BTreeSet::new(), found: None };
        if is_due {
            self.inspect_within(open, &mut snapshot).await?;
        }
        let (mut plan, mut at) = (Plan::default(), 0);
        while let Some(change) = changes.get(at) {
            if self.rekey(open, &mut snapshot, &mut plan, &changes[at..]).await? {
                at += 2;
                continue;
            }
            if let Some(key) = change.key() {
                let row = self.row(open, &mut snapshot, &mut plan, change).await?;
                let row = row.map_err(|error| Failure::Refused(Some(at), error))?;
                if row.is_partial() && change.operation() == Operation::Insert {
                    // Nothing under its key belongs to a row that comes.
                    return Err(Failure::Refused(Some(at), incomplete()));
                }
                if !plan.takes(change, key, &row) {
                    self.send(open, &snapshot.shape, &mut plan).await?;
                }
                plan.note(change, key, row);
            } else if clears(change) {
                let sole = self.origins.require_sole(self.table.written(), change);
                sole.map_err(|error| Failure::Refused(Some(at), error))?;
                self.send(open, &snapshot.shape, &mut plan).await?;
                open.state(&snapshot.shape.clear(), &[]).await?;
            } else {
                require_key(change).map_err(|error| Failure::Refused(Some(at), error))?;
            }
            at += 1;
        }
        if !snapshot.strangers.is_empty() {
            self.keep(Arc::new(snapshot.shape.remembering(&snapshot.strangers)));
        }
        self.send(open, &snapshot.shape, &mut plan).await
    }

    fn acts_on_barriers(&self) -> bool {
        true
    }

    fn mirrors(&self) -> bool {
        true
    }
}
