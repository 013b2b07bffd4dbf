//! Random histories: what is written to a source while a stream copies it, drawn from a seed.
//!
//! A [`Plan`] names a source, a sink and the [`Step`]s of one run: transactions, changes of the schema, and starts, kills and
//! stops of the instance that copies. It is data only. Whoever runs it applies the steps to real systems, and compares source
//! and target at the end. The same seed gives the same plan.
//!
//! Every statement is valid where it stands: rows that are updated exist, keys that are inserted are free. Every row has a
//! column `rev`, whose values grow over the whole plan, so that the order in which changes arrive can be checked.
//!
//! A plan ends in one of two ways: the target equals the source, or the stream halts with a cause that is named ([`Halt`]).

mod draw;
mod model;
mod value;

pub use draw::Narrow;
pub use value::{Kind, Value};

use std::fmt;

use crate::servers::postgres::Version;

/// Where changes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Tables of SQLite with a change log.
    Sqlite,
    /// Tables of PostgreSQL with a change log.
    ChangeLog,
    /// Tables of PostgreSQL, by logical replication.
    Replication,
    /// Collections of MongoDB.
    Mongodb,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sqlite, Self::ChangeLog, Self::Replication, Self::Mongodb];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::ChangeLog => "log",
            Self::Replication => "replication",
            Self::Mongodb => "mongodb",
        }
    }

    /// Whether it is a database of PostgreSQL.
    pub fn is_postgres(self) -> bool {
        matches!(self, Self::ChangeLog | Self::Replication)
    }
}

/// Where changes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sink {
    /// Files of lines.
    File,
    /// SQLite, `mode = "events"`.
    SqliteEvents,
    /// SQLite, `mode = "mirror"`.
    SqliteMirror,
    /// PostgreSQL, `mode = "events"`.
    PostgresEvents,
    /// PostgreSQL, `mode = "mirror"`.
    PostgresMirror,
    /// PostgreSQL, `mode = "versioned"`.
    PostgresVersioned,
    /// PostgreSQL, `mode = "rows"`.
    PostgresRows,
    /// PostgreSQL, `mode = "versioned_rows"`.
    PostgresVersionedRows,
    /// MongoDB, `mode = "events"`.
    MongodbEvents,
    /// MongoDB, `mode = "mirror"`.
    MongodbMirror,
    /// MongoDB, `mode = "versioned"`.
    MongodbVersioned,
}

impl Sink {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::File,
        Self::SqliteEvents,
        Self::SqliteMirror,
        Self::PostgresEvents,
        Self::PostgresMirror,
        Self::PostgresVersioned,
        Self::PostgresRows,
        Self::PostgresVersionedRows,
        Self::MongodbEvents,
        Self::MongodbMirror,
        Self::MongodbVersioned,
    ];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::SqliteEvents => "sqlite-events",
            Self::SqliteMirror => "sqlite-mirror",
            Self::PostgresEvents => "postgres-events",
            Self::PostgresMirror => "postgres-mirror",
            Self::PostgresVersioned => "postgres-versioned",
            Self::PostgresRows => "postgres-rows",
            Self::PostgresVersionedRows => "postgres-versioned-rows",
            Self::MongodbEvents => "mongodb-events",
            Self::MongodbMirror => "mongodb-mirror",
            Self::MongodbVersioned => "mongodb-versioned",
        }
    }

    /// Whether it writes into typed columns.
    pub fn has_typed_columns(self) -> bool {
        matches!(self, Self::PostgresRows | Self::PostgresVersionedRows)
    }

    /// Whether it keeps every change, and not the newest rows only.
    pub fn keeps_events(self) -> bool {
        matches!(self, Self::File | Self::SqliteEvents | Self::PostgresEvents | Self::MongodbEvents)
    }

    /// Whether it writes changes and checkpoint together, so that nothing arrives twice.
    pub fn is_transactional(self) -> bool {
        !matches!(self, Self::File | Self::PostgresVersioned | Self::PostgresVersionedRows | Self::MongodbVersioned)
    }

    /// Whether it keeps the newest row of each key, so that it cannot follow a rename.
    pub fn is_mirror(self) -> bool {
        !self.keeps_events()
    }

    /// Whether it writes to this kind of database.
    pub fn is_postgres(self) -> bool {
        self.as_str().starts_with("postgres")
    }

    /// Whether it writes to this kind of database.
    pub fn is_mongodb(self) -> bool {
        self.as_str().starts_with("mongodb")
    }
}

/// Where the stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the oldest change, before which the tables are empty.
    Oldest,
    /// With a snapshot of what exists.
    Snapshot,
}

/// A table or a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// The type of its key, which is the column `id` (`_id` in MongoDB).
    pub key: Kind,
    /// Its columns beside `id` and `rev`. Documents have any of these fields.
    pub columns: Vec<Column>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Kind,
}

/// Fields and their values.
pub type Fields = Vec<(String, Value)>;

/// A write.
// The fields are what their names say.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// A row of a free key.
    Insert { table: String, key: Value, rev: u64, fields: Fields },
    /// Other values of some columns.
    Update { table: String, key: Value, rev: u64, fields: Fields },
    /// Another document under the same key. Only of MongoDB.
    Replace { table: String, key: Value, rev: u64, fields: Fields },
    /// The row gets another key. Not of MongoDB.
    MoveKey { table: String, from: Value, to: Value, rev: u64 },
    /// No row of this key.
    Delete { table: String, key: Value },
    /// No row at all. Only of PostgreSQL.
    Truncate { table: String },
}

/// A change of the schema. It is a transaction of its own.
// The fields are what their names say.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaChange {
    /// A new column, null in all rows.
    AddColumn { table: String, column: Column },
    /// A column less.
    DropColumn { table: String, column: String },
    /// Another name of a column. No change reports that for existing rows, so all are written again, with this `rev`.
    RenameColumn { table: String, from: String, to: String, rev: u64 },
    /// Another name of the table, and its own name back.
    RenameAndBack { table: String, meanwhile: String },
    /// A collection is dropped. It exists again with its next document.
    DropCollection { table: String },
    /// A table is dropped for good. Not of MongoDB.
    DropTable { table: String },
    /// A table is dropped, and another one, which is empty, gets its name. Not of MongoDB.
    RebuildTable { table: String },
    /// A table or collection gets another name for good. The collection exists again with its next document.
    Rename { table: String, to: String },
    /// An empty collection is renamed to the name of this one, which is dropped (`dropTarget`). Only of MongoDB.
    RenameOver { table: String },
    /// An aggregation that finds nothing replaces the collection (`$out`). Only of MongoDB.
    Out { table: String },
}

impl SchemaChange {
    /// The table or collection that it changes.
    pub fn table(&self) -> &str {
        match self {
            Self::AddColumn { table, .. }
            | Self::DropColumn { table, .. }
            | Self::RenameColumn { table, .. }
            | Self::RenameAndBack { table, .. }
            | Self::DropCollection { table }
            | Self::DropTable { table }
            | Self::RebuildTable { table }
            | Self::Rename { table, .. }
            | Self::RenameOver { table }
            | Self::Out { table } => table,
        }
    }

    /// Whether no row of the table is left, although the stream goes on.
    pub fn empties_collection(&self) -> bool {
        matches!(self, Self::DropCollection { .. } | Self::Rename { .. } | Self::RenameOver { .. } | Self::Out { .. })
    }
}

/// The end of a stream that cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// The table or collection that its cause has to name.
    pub table: String,
    /// The words of which its cause has to contain one.
    pub words: &'static [&'static str],
    /// Whether it stays halted until a person resumes it. Otherwise it gives up with the cause and tries again later: a table that left a
    /// publication may be put back.
    pub is_final: bool,
}

/// What happens next.
// The fields are what their names say.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Statements that are committed together, or rolled back.
    Transaction { statements: Vec<Statement>, commit: bool },
    /// A change of the schema.
    Schema(SchemaChange),
    /// The instance is started, if it does not run.
    Start,
    /// SIGKILL after so many milliseconds.
    Kill { after_ms: u64 },
    /// The instance is started, and gets SIGKILL so many milliseconds after the first rows have arrived: in the middle of its snapshot, if
    /// that takes longer.
    BreakSnapshot { after_ms: u64 },
    /// SIGTERM, and its end is waited for.
    Stop,
    /// Everything so far is waited for.
    CatchUp,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// Where changes come from.
    pub source: Source,
    /// Where they go.
    pub sink: Sink,
    /// The version of PostgreSQL, as source and as target.
    pub postgres: Version,
    /// Where the stream starts.
    pub start: Start,
    /// The stream's `concurrency`.
    pub concurrency: u64,
    /// The stream's `batch.rows`.
    pub batch_rows: u64,
    /// Whether typed columns keep their values when a change does not tell them (`missing = "keep"`), so that columns can come to
    /// the target before the source has them. A document then has to have a field to take its value away.
    pub keeps_missing: bool,
    /// What exists before anything else.
    pub tables: Vec<Table>,
    /// What happens, in order. The instance runs at the end.
    pub steps: Vec<Step>,
    /// How the stream has to halt because of the last step, if it has to.
    pub halt: Option<Halt>,
}

/// How many statements of a transaction are shown.
const SHOWN_MAX: usize = 60;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, source, sink, postgres, start, concurrency, batch_rows, keeps_missing, tables, steps, halt } =
            self;
        let (source, sink, major) = (source.as_str(), sink.as_str(), postgres.major());
        writeln!(
            f,
            "seed {seed}: {source} to {sink} (PostgreSQL {major}), start {start:?}, concurrency {concurrency}, batches of {batch_rows}, \
             missing columns are {}",
            if *keeps_missing { "kept" } else { "null" }
        )?;
        for Table { name, key, columns } in tables {
            let columns: Vec<_> = columns.iter().map(|column| format!("{} {:?}", column.name, column.kind)).collect();
            writeln!(f, "  table {name} (id {key:?}, rev, {})", columns.join(", "))?;
        }
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Transaction { statements, commit } => {
                    writeln!(f, "  {at:>3} {}", if *commit { "transaction" } else { "rolled back" })?;
                    let mut shown = statements.iter().take(SHOWN_MAX);
                    shown.try_for_each(|statement| writeln!(f, "        {statement:?}"))?;
                    if statements.len() > SHOWN_MAX {
                        writeln!(f, "        and {} more", statements.len() - SHOWN_MAX)?;
                    }
                }
                step => writeln!(f, "  {at:>3} {step:?}")?,
            }
        }
        halt.iter()
            .try_for_each(|halt| writeln!(f, "  the stream halts about {} ({})", halt.table, halt.words.join(", ")))
    }
}
