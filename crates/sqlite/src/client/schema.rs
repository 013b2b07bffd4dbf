use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{Cx, Entropy, Error, Result};

use super::{Client, write_on};
use crate::error::Failure;

/// Tables of one role, with the version of their shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schema {
    /// What the tables are for.
    pub(crate) role: &'static str,
    /// Grows when their shape changes.
    pub(crate) version: i64,
    /// Makes them where they are missing.
    pub(crate) sql: &'static str,
}

/// What belongs to the file as a whole: versions, identities, counters.
const META: &str = "CREATE TABLE IF NOT EXISTS watchkeeper_meta(
    name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;";

impl Client {
    /// Makes sure that the tables of a role are there, in the shape that this program knows.
    pub(crate) async fn ensure(&self, cx: &Cx, schema: Schema) -> Result<()> {
        self.run(cx, move |connection| schema.ensure_on(connection)).await
    }

    /// The same, also in a file that takes this one's place later.
    pub(crate) async fn maintain(&self, cx: &Cx, schema: Schema) -> Result<()> {
        self.ensure(cx, schema).await?;
        self.maintained.add(schema);
        Ok(())
    }
}

/// The tables that a client needs in its file, whichever that is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Maintained(Arc<Mutex<Vec<Schema>>>);

impl Maintained {
    fn add(&self, schema: Schema) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.iter().all(|known| known.role != schema.role) {
            all.push(schema);
        }
    }

    pub(super) fn ensure_on(&self, connection: &mut Connection) -> Result<(), Failure> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.into_iter().try_for_each(|schema| schema.ensure_on(connection))
    }
}

impl Schema {
    /// Looks before it writes, so that an opening waits for no other writer when all is there.
    pub(crate) fn ensure_on(self, connection: &mut Connection) -> Result<(), Failure> {
        if self.is_there(connection)? {
            return Ok(());
        }
        write_on(connection, |transaction| {
            transaction.execute_batch(META)?;
            if !self.is_there(transaction)? {
                transaction.execute_batch(self.sql)?;
                let name = self.name();
                transaction.execute("INSERT INTO watchkeeper_meta VALUES (?1, ?2)", (name, self.version))?;
                // The identity of the file is made once, by whoever comes first.
                let identity = Entropy::from_system().uuid().to_string();
                transaction.execute("INSERT OR IGNORE INTO watchkeeper_meta VALUES ('identity', ?1)", [identity])?;
            }
            Ok(())
        })
    }

    fn name(self) -> String {
        format!("schema/{}", self.role)
    }

    /// Whether the tables are there, in the shape that this program knows.
    pub(crate) fn is_there(self, connection: &Connection) -> Result<bool, Failure> {
        let meta = "SELECT count(*) FROM sqlite_schema WHERE name = 'watchkeeper_meta'";
        if connection.query_row(meta, [], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(false);
        }
        let sql = "SELECT value FROM watchkeeper_meta WHERE name = ?1";
        let stored: Option<i64> = connection.query_row(sql, [self.name()], |row| row.get(0)).optional()?;
        match stored {
            Some(version) if version != self.version => {
                let (role, known) = (self.role, self.version);
                let cause = format!("the {role} tables have version {version}, this program knows {known}");
                Err(Error::config(cause).remedy("run one version of Watchkeeper on a file").into())
            }
            stored => Ok(stored.is_some()),
        }
    }
}
