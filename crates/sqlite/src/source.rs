//! The change log of an application's tables, as a source.

mod guard;
mod mend;
mod payload;
mod place;
mod read;
mod reader;

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{
    ChangeStream, Cx, Error, Finding, Payload, Pedigree, Position, Result, Source, SourceTime, StartAt,
};

use crate::client::{Client, Process, write_on, write_or_evict};
use crate::clock::wall_millis;
use crate::error::Failure;
use crate::json;
use crate::tools::{SCHEMA, Shape, exists, install_command, installed, marks};
pub(crate) use guard::findings;
use payload::LogRows;
use place::Place;
use reader::Reader;

const NEWEST: &str = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'watchkeeper_changes'), 0)";

/// How long the log keeps what has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// What everybody has acknowledged stays for so long, so that an operator can go back.
    pub rewind: Duration,
    /// A consumer that has not been seen for so long no longer holds the log back.
    pub abandoned: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { rewind: Duration::from_secs(3_600), abandoned: Duration::from_secs(7 * 24 * 3_600) }
    }
}

/// The changes of the tables that [`tools::install`](crate::tools::install) has put under watch.
#[derive(Debug, Clone)]
pub struct ChangeLog {
    client: Client,
    consumer: Arc<str>,
    retention: Retention,
    /// The only tables whose changes are given out; all without it.
    tables: Option<Arc<[String]>>,
}

impl ChangeLog {
    /// The log in the client's file, read on behalf of `consumer`: what it has not acknowledged is kept.
    ///
    /// # Errors
    /// `Config` when no table is logged.
    pub async fn open(cx: &Cx, client: Client, consumer: &str) -> Result<Self> {
        Self::open_for(cx, client, consumer, Vec::new()).await
    }

    /// As above, for these tables, which an error names.
    pub(crate) async fn open_for(cx: &Cx, client: Client, consumer: &str, tables: Vec<String>) -> Result<Self> {
        let file = client.config().path.clone();
        client.run(cx, move |connection| require_log(connection, &file, &tables)).await?;
        Ok(Self { client, consumer: consumer.into(), retention: Retention::default(), tables: None })
    }

    /// The same log, of which only the changes of these tables are given out.
    ///
    /// # Errors
    /// `Config` for a table that is not logged.
    pub async fn only(self, cx: &Cx, tables: Vec<String>) -> Result<Self> {
        let file = self.client.config().path.clone();
        let tables = self.client.read(cx, move |transaction| logged(transaction, &file, &tables)).await?;
        Ok(Self { tables: Some(tables.into()), ..self })
    }

    /// The same log with another retention.
    #[must_use]
    pub fn keep(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// The position after change `number`.
    pub fn position(number: u64, time: Option<SourceTime>) -> Position {
        Position::new(number.to_be_bytes().to_vec(), time)
    }

    /// The change that a position is after.
    pub fn number(position: &Position) -> Result<u64> {
        let bytes = position.bytes.as_ref().try_into();
        bytes.map(u64::from_be_bytes).map_err(|_| {
            Error::position_lost("the position is not one of a SQLite log")
                .remedy("point the stream at the log it was reading, or move the checkpoint on purpose")
        })
    }
}

impl ChangeLog {
    fn file(&self) -> &Path {
        &self.client.config().path
    }

    /// The identity of the log that is there now.
    fn current(&self, connection: &Connection) -> Result<String, Failure> {
        let uninstalled = || {
            let command = install_command(self.file(), "TABLE");
            Error::position_lost(format!("the log of {} was uninstalled", self.file().display()))
                .remedy(format!("run `{command}`, then accept the gap: what changed meanwhile is not in the log"))
        };
        Ok(identity(connection)?.ok_or_else(uninstalled)?)
    }

    /// Refuses another log than the one that was opened.
    fn require_same(&self, connection: &Connection, origin: &str) -> Result<(), Failure> {
        // Asked with every batch; the current log is looked for only to say what has become of this one.
        let sql = "SELECT 1 FROM watchkeeper_meta WHERE name = 'log' AND value = ?1";
        if connection.prepare_cached(sql)?.exists([origin])? {
            return Ok(());
        }
        self.current(connection)?;
        Err(another_log().into())
    }

    /// Refuses a position whose history is gone, or has not happened in this file, or is no longer logged after it.
    fn still_there(&self, connection: &Connection, place: Place) -> Result<(), Failure> {
        place.still_there(connection)?;
        // As long as there is something to read, that comes first, and the reader tells what is lost after it.
        if place.number < bounds(connection)?.1 { Ok(()) } else { self.require_logged(connection) }
    }

    fn require_logged(&self, connection: &Connection) -> Result<(), Failure> {
        guard::require_logged(connection, self.file(), self.tables.as_deref())
    }

    /// After which change to begin.
    fn start(&self, connection: &Connection, start: &StartAt) -> Result<Place, Failure> {
        if let StartAt::After(position) = start {
            let place = Place::of(position)?;
            self.still_there(connection, place)?;
            return Ok(place);
        }
        self.require_logged(connection)?;
        let (pruned, newest) = bounds(connection)?;
        let number = match start {
            StartAt::Now => newest,
            // What lies before a loss can not be gone on from, past the loss, as if nothing had happened.
            StartAt::Oldest => marks::newest(connection, self.tables.as_deref())?.unwrap_or(0).max(pruned),
            StartAt::Time(time) => first_at(connection, *time, newest)?,
            StartAt::Operation(time) => return Err(time.unknown_to("a SQLite log").into()),
            StartAt::After(_) | StartAt::Snapshot => {
                return Err(Error::config("a SQLite log can not begin with a snapshot of its tables")
                    .remedy("begin with the oldest change, and copy what was there before the log by hand")
                    .into());
            }
        };
        Place::after(connection, number)
    }
}

fn another_log() -> Error {
    Error::position_lost("the checkpoint belongs to another log than the one that answers now")
        .remedy("point the stream at the log it was reading, or move the checkpoint on purpose")
}

/// The identity of the log, if there is one.
fn identity(connection: &Connection) -> Result<Option<String>, Failure> {
    if !exists(connection, "watchkeeper_meta")? || !exists(connection, "watchkeeper_changes")? {
        return Ok(None);
    }
    let sql = "SELECT value FROM watchkeeper_meta WHERE name = 'log'";
    Ok(connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?)
}

/// Refuses a file without a log. The tables are those that should be in it, as far as that is known.
pub(crate) fn require_log(connection: &mut Connection, file: &Path, tables: &[String]) -> Result<(), Failure> {
    if identity(connection)?.is_some() {
        return SCHEMA.ensure_on(connection);
    }
    tables.iter().try_for_each(|table| Shape::look(connection, table).map(drop))?;
    let table = tables.first().map_or("TABLE", String::as_str);
    Err(Error::config("no table of this database is logged")
        .remedy(format!("run `{}`", install_command(file, table)))
        .into())
}

/// The tables as the log spells them.
pub(crate) fn logged(connection: &Connection, file: &Path, tables: &[String]) -> Result<Vec<String>, Failure> {
    let known: Vec<String> = installed(connection)?.into_iter().map(|(table, _)| table).collect();
    let spelled = |table: &String| {
        if let Some(known) = known.iter().find(|known| known.eq_ignore_ascii_case(table)) {
            return Ok(known.clone());
        }
        // To install what can not be installed is no remedy; so that is told first.
        Shape::look(connection, table)?;
        let remedy = format!("run `{}`", install_command(file, table));
        let cause = format!("the table {table} is not logged; those that are: {}", known.join(", "));
        Err(Failure::from(Error::config(cause).remedy(remedy)))
    };
    tables.iter().map(spelled).collect()
}

/// Up to where the log has been pruned, and its newest change.
fn bounds(connection: &Connection) -> Result<(u64, u64), Failure> {
    let sql = "SELECT value FROM watchkeeper_meta WHERE name = 'pruned_through'";
    let pruned: i64 = connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    let newest: i64 = connection.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?;
    Ok((pruned.cast_unsigned(), newest.cast_unsigned()))
}

/// Before the first change at or after a time.
fn first_at(connection: &Connection, time: SourceTime, newest: u64) -> Result<u64, Failure> {
    let sql = "SELECT seq FROM watchkeeper_changes WHERE millis >= ?1 ORDER BY seq LIMIT 1";
    let first: Option<i64> = connection.query_row(sql, [time.0.cast_signed()], |row| row.get(0)).optional()?;
    Ok(first.map_or(newest, |seq| seq.cast_unsigned() - 1))
}

/// Notes that a consumer reads after `number`, which holds the log back from there.
///
/// Never moves it forward: another opening for the same consumer may still be reading what lies before.
fn hold_back(connection: &Connection, consumer: &str, number: u64) -> Result<(), Failure> {
    let sql = "INSERT INTO watchkeeper_consumers VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE
        SET acknowledged = min(acknowledged, excluded.acknowledged), seen_millis = excluded.seen_millis";
    connection.prepare_cached(sql)?.execute((consumer, number.cast_signed(), wall_millis()))?;
    let process = json::text(&Process::own())?;
    connection.execute("INSERT OR REPLACE INTO watchkeeper_meta VALUES (?1, ?2)", (reader_name(consumer), process))?;
    Ok(())
}

/// The process that last opened the log for a consumer, as number and start.
fn last_reader(connection: &Connection, consumer: &str) -> Result<Option<(i32, i64)>, Failure> {
    let sql = "SELECT value FROM watchkeeper_meta WHERE name = ?1";
    let process: Option<String> = connection.query_row(sql, [reader_name(consumer)], |row| row.get(0)).optional()?;
    process.as_deref().map(json::read).transpose()
}

fn reader_name(consumer: &str) -> String {
    format!("log/reader/{consumer}")
}

#[async_trait]
impl Source for ChangeLog {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let log = self.clone();
        let look = move |transaction: &rusqlite::Transaction<'_>| {
            log.current(transaction)?;
            findings(transaction, log.file(), log.tables.as_deref())
        };
        self.client.read(cx, look).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        let log = self.clone();
        let identity = self.client.read(cx, move |transaction| log.current(transaction)).await?;
        Ok(Pedigree(identity.into()))
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        let (log, place, pedigree) = (self.clone(), Place::of(position), pedigree.clone());
        let look = move |transaction: &rusqlite::Transaction<'_>| {
            if Pedigree(log.current(transaction)?.into()) != pedigree {
                return Err(another_log().into());
            }
            log.still_there(transaction, place?)
        };
        self.client.read(cx, look).await
    }

    async fn vet(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        let (log, start, pedigree) = (self.clone(), start.clone(), pedigree.cloned());
        let look = move |transaction: &rusqlite::Transaction<'_>| {
            let current = Pedigree(log.current(transaction)?.into());
            if pedigree.is_some_and(|pedigree| pedigree != current) {
                return Err(another_log().into());
            }
            log.start(transaction, &start).map(drop)
        };
        Finding::of_start(self.client.read(cx, look).await)
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        Some(Self::number(a).ok()?.cmp(&Self::number(b).ok()?))
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(LogRows)
    }

    async fn open(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        let (log, config) = (self.clone(), self.client.config().clone());
        let begin = move |connection: &mut Connection| {
            // In one transaction, so that nothing is pruned between the look and the note.
            let begin = |transaction: &rusqlite::Transaction<'_>| {
                let origin = log.current(transaction)?;
                let after = log.start(transaction, &at)?;
                hold_back(transaction, &log.consumer, after.number)?;
                Ok((origin, after))
            };
            if !config.evict {
                return write_on(connection, begin);
            }
            write_or_evict(connection, &config.path, begin, |connection| last_reader(connection, &log.consumer))
        };
        let (origin, after) = self.client.run(cx, begin).await?;
        Ok(Box::new(Reader::new(cx, self, origin.into(), after, true).await?))
    }

    async fn peek(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        let log = self.clone();
        let begin = move |transaction: &rusqlite::Transaction<'_>| {
            Ok((log.current(transaction)?, log.start(transaction, &at)?))
        };
        let (origin, after) = self.client.read(cx, begin).await?;
        Ok(Box::new(Reader::new(cx, self, origin.into(), after, false).await?))
    }
}
