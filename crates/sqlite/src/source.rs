//! The change log of an application's tables, as a source.

mod guard;
mod payload;
mod position;
mod read;
mod reader;
mod real;
mod repair;
mod requirements;
mod times;

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{
    ChangeStream, Cx, Error, Finding, Payload, Pedigree, Position, Result, Severity, Source, SourceTime, StartAt,
};

use crate::client::{Client, Process, write_on, write_or_evict};
use crate::clock::wall_millis;
use crate::error::Failure;
use crate::json;
use crate::tools::{ensure_guard, exists, install_command, marks, plain};
use payload::LogRows;
use position::LogPosition;

/// What it is, in words.
pub(crate) const LOG: &str = "a SQLite log";
use reader::{Reader, Start};

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
    /// The only tables whose changes are given out, as they were named; all without it.
    named: Option<Arc<[String]>>,
    /// The same as the log spells them.
    tables: Option<Arc<[String]>>,
}

impl ChangeLog {
    /// The log in the client's file, read on behalf of `consumer`: what it has not acknowledged is kept.
    ///
    /// # Errors
    /// `Config` when no table is logged.
    pub async fn open(cx: &Cx, client: Client, consumer: &str) -> Result<Self> {
        let log = Self::new(client, consumer);
        log.clone().required(cx).await
    }

    /// A log that may not be there yet: whoever opens it is told.
    pub(crate) fn new(client: Client, consumer: &str) -> Self {
        Self { client, consumer: consumer.into(), retention: Retention::default(), named: None, tables: None }
    }

    /// The same log, of which only the changes of these tables are given out.
    ///
    /// # Errors
    /// `Config` for a table that is not logged.
    pub async fn only(self, cx: &Cx, tables: Vec<String>) -> Result<Self> {
        self.named(tables).required(cx).await
    }

    /// The same, whether they are logged or not.
    pub(crate) fn named(self, tables: Vec<String>) -> Self {
        let tables: Arc<[String]> = tables.iter().map(|table| plain(table)).collect();
        Self { named: Some(Arc::clone(&tables)), tables: Some(tables), ..self }
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
    pub(crate) fn compare_numbers(a: &Position, b: &Position) -> Option<Ordering> {
        Some(Self::number(a).ok()?.cmp(&Self::number(b).ok()?))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn file(&self) -> &Path {
        &self.client.config().path
    }

    /// The identity of the log that is there now.
    fn current(&self, connection: &Connection) -> Result<String, Failure> {
        let uninstalled = || {
            let table = self.tables.as_ref().and_then(|tables| tables.first()).map_or("TABLE", |table| table.as_str());
            let command = install_command(self.file(), table);
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
    fn still_there(&self, connection: &Connection, place: LogPosition) -> Result<(), Failure> {
        place.still_there(connection)?;
        // As long as there is something to read, that comes first, and the reader tells what is lost after it.
        if place.number < bounds(connection)?.1 { Ok(()) } else { self.require_logged(connection) }
    }

    fn require_logged(&self, connection: &Connection) -> Result<(), Failure> {
        guard::require_logged(connection, self.file(), self.tables.as_deref())
    }

    /// Where to begin, of the log that [`ChangeLog::settled`] gave.
    fn start(&self, connection: &Connection, start: &StartAt) -> Result<Start, Failure> {
        let origin = self.current(connection)?;
        let (after, note) = self.after(connection, start)?;
        Ok(Start { log: self.clone(), origin, after, note })
    }

    /// After which change to begin, and what a person should know of that.
    fn after(&self, connection: &Connection, start: &StartAt) -> Result<(LogPosition, Option<String>), Failure> {
        if let StartAt::After(position) = start {
            let place = LogPosition::of(position)?;
            self.still_there(connection, place)?;
            return Ok((place, None));
        }
        start.require_in_log(LOG)?;
        self.require_logged(connection)?;
        let (pruned, newest) = bounds(connection)?;
        let number = match start {
            StartAt::Now => newest,
            // What lies before a loss cannot be gone on from, past the loss, as if nothing had happened.
            StartAt::Oldest => marks::newest(connection, self.tables.as_deref())?.unwrap_or(0).max(pruned),
            StartAt::Time(time) => times::committed_before(connection, *time)?,
            unknown => return Err(unknown.unknown_to(LOG).into()),
        };
        let note = match start {
            StartAt::Time(time) => times::note(connection, self.tables.as_deref(), number, *time)?,
            _ => None,
        };
        Ok((LogPosition::after(connection, number)?, note))
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

/// Up to where the log has been pruned, and its newest change.
fn bounds(connection: &Connection) -> Result<(u64, u64), Failure> {
    let sql = "SELECT value FROM watchkeeper_meta WHERE name = 'pruned_through'";
    let pruned: i64 = connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    let newest: i64 = connection.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?;
    Ok((pruned.cast_unsigned(), newest.cast_unsigned()))
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
    async fn resolve_names(&self, cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        let log = self.clone();
        let resolve = move |transaction: &rusqlite::Transaction<'_>| {
            names.iter().map(|name| log.change_name(transaction, name)).collect()
        };
        self.client.read(cx, resolve).await
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let log = self.clone();
        self.client.read(cx, move |transaction| log.findings(transaction)).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        let log = self.clone();
        let observation = move |transaction: &rusqlite::Transaction<'_>| {
            log.require_log(transaction)?;
            log.current(transaction)
        };
        Ok(Pedigree(self.client.read(cx, observation).await?.into()))
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        let (log, place, pedigree) = (self.clone(), LogPosition::of(position), pedigree.clone());
        let observation = move |transaction: &rusqlite::Transaction<'_>| {
            if Pedigree(log.current(transaction)?.into()) != pedigree {
                return Err(another_log().into());
            }
            log.still_there(transaction, place?)
        };
        self.client.read(cx, observation).await
    }

    async fn preflight(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        let (log, start, pedigree) = (self.clone(), start.clone(), pedigree.cloned());
        let observation = move |transaction: &rusqlite::Transaction<'_>| {
            let log = log.settled(transaction, &start)?;
            let current = Pedigree(log.current(transaction)?.into());
            if pedigree.is_some_and(|pedigree| pedigree != current) {
                return Err(another_log().into());
            }
            Ok(log.start(transaction, &start)?.note)
        };
        let vetted = self.client.read(cx, observation).await;
        let note = vetted.as_ref().ok().cloned().flatten();
        let mut found = Finding::of_start(vetted.map(drop))?;
        found.extend(note.map(|what| Finding { severity: Severity::Note, what, remedy: None }));
        Ok(found)
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        Self::compare_numbers(a, b)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(LogRows)
    }

    async fn open(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        let (log, config) = (self.clone(), self.client.config().clone());
        let begin = move |connection: &mut Connection| {
            // In one transaction, so that nothing is pruned between the look and the note.
            let begin = |transaction: &rusqlite::Transaction<'_>| {
                let start = log.settled(transaction, &at)?.start(transaction, &at)?;
                ensure_guard(transaction)?;
                hold_back(transaction, &log.consumer, start.after.number)?;
                times::mark(transaction, log.retention)?;
                Ok(start)
            };
            if !config.evict {
                return write_on(connection, begin);
            }
            write_or_evict(connection, &config.path, begin, |connection| last_reader(connection, &log.consumer))
        };
        let start = self.client.run(cx, begin).await?;
        Ok(Box::new(Reader::new(cx, start, true).await?))
    }

    async fn peek(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        let log = self.clone();
        let begin =
            move |transaction: &rusqlite::Transaction<'_>| log.settled(transaction, &at)?.start(transaction, &at);
        let start = self.client.read(cx, begin).await?;
        Ok(Box::new(Reader::new(cx, start, false).await?))
    }
}
