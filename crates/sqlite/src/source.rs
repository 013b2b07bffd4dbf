//! The change log of an application's tables, as a source.

mod mend;
mod place;
mod read;

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Cx, Error, Finding, Limits, Moment, Payload, Pedigree, Position, Result, Source,
    SourceTime, StartAt, Window,
};

use self::place::Place;
use crate::client::{Client, Pulse};
use crate::clock::wall_millis;
use crate::error::Failure;
use crate::tools::{SCHEMA, Shape, installed, key_findings, prune_step};

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
    origin: Arc<str>,
    /// The only tables whose changes are given out; all without it.
    tables: Option<Arc<[String]>>,
}

impl ChangeLog {
    /// The log in the client's file, read on behalf of `consumer`: what it has not acknowledged is kept.
    ///
    /// # Errors
    /// `Config` when no table is logged.
    pub async fn open(cx: &Cx, client: Client, consumer: &str) -> Result<Self> {
        let origin = client.run(cx, log_identity).await?;
        let (consumer, origin) = (consumer.into(), origin.into());
        Ok(Self { client, consumer, retention: Retention::default(), origin, tables: None })
    }

    /// The same log, of which only the changes of these tables are given out.
    ///
    /// # Errors
    /// `Config` for a table that is not logged.
    pub async fn only(self, cx: &Cx, tables: Vec<String>) -> Result<Self> {
        let tables = self.client.read(cx, move |transaction| logged(transaction, &tables)).await?;
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

pub(crate) fn log_identity(connection: &mut Connection) -> Result<String, Failure> {
    let there = "SELECT count(*) FROM sqlite_schema WHERE name IN ('watchkeeper_meta', 'watchkeeper_changes')";
    let tables: i64 = connection.query_row(there, [], |row| row.get(0))?;
    let stored = "SELECT value FROM watchkeeper_meta WHERE name = 'log'";
    let identity = match tables {
        2 => connection.query_row(stored, [], |row| row.get(0)).optional()?,
        _ => None,
    };
    let missing = || {
        Error::config("no table of this database is logged")
            .remedy("run `watchkeeper sqlite install --db FILE --table TABLE`")
    };
    let identity = identity.ok_or_else(missing)?;
    SCHEMA.ensure_on(connection)?;
    Ok(identity)
}

/// The tables as the log spells them.
pub(crate) fn logged(connection: &Connection, tables: &[String]) -> Result<Vec<String>, Failure> {
    let known: Vec<String> = installed(connection)?.into_iter().map(|(table, _)| table).collect();
    let spelled = |table: &String| {
        known.iter().find(|known| known.eq_ignore_ascii_case(table)).cloned().ok_or_else(|| {
            let remedy = format!("run `watchkeeper sqlite install --db FILE --table {table}`");
            let cause = format!("the table {table} is not logged; those that are: {}", known.join(", "));
            Failure::from(Error::config(cause).remedy(remedy))
        })
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

fn start(connection: &Connection, start: &StartAt) -> Result<Place, Failure> {
    let (pruned, newest) = bounds(connection)?;
    match start {
        StartAt::Now => Place::after(connection, newest),
        StartAt::Oldest => Place::after(connection, pruned),
        StartAt::Time(time) => {
            let sql = "SELECT seq FROM watchkeeper_changes WHERE millis >= ?1 ORDER BY seq LIMIT 1";
            let first: Option<i64> = connection.query_row(sql, [time.0.cast_signed()], |row| row.get(0)).optional()?;
            Place::after(connection, first.map_or(newest, |seq| seq.cast_unsigned() - 1))
        }
        StartAt::After(position) => {
            let place = Place::of(position)?;
            place.still_there(connection)?;
            Ok(place)
        }
        StartAt::Snapshot => Err(Error::config("a SQLite log can not begin with a snapshot of its tables")
            .remedy("begin with the oldest change, and copy what was there before the log by hand")
            .into()),
    }
}

/// Notes that a consumer reads after `number`, which holds the log back from there.
///
/// Never moves it forward: another opening for the same consumer may still be reading what lies before.
fn hold_back(connection: &Connection, consumer: &str, number: u64) -> Result<(), Failure> {
    let sql = "INSERT INTO watchkeeper_consumers VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE
        SET acknowledged = min(acknowledged, excluded.acknowledged), seen_millis = excluded.seen_millis";
    connection.prepare_cached(sql)?.execute((consumer, number.cast_signed(), wall_millis()))?;
    Ok(())
}

/// Notes how far a consumer is.
fn note(connection: &Connection, consumer: &str, acknowledged: u64) -> Result<(), Failure> {
    let sql = "INSERT OR REPLACE INTO watchkeeper_consumers VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute((consumer, acknowledged.cast_signed(), wall_millis()))?;
    Ok(())
}

/// How far the log may be pruned: what every consumer has acknowledged and nobody may want to go back to.
fn prunable(connection: &Connection, retention: Retention) -> Result<i64, Failure> {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let since = |duration: Duration| wall_millis().saturating_sub(millis(duration));
    let sql = "SELECT min(acknowledged) FROM watchkeeper_consumers WHERE seen_millis >= ?1";
    let slowest: Option<i64> = connection.query_row(sql, [since(retention.abandoned)], |row| row.get(0))?;
    let sql = "SELECT seq - 1 FROM watchkeeper_changes WHERE millis >= ?1 ORDER BY seq LIMIT 1";
    let kept: Option<i64> = connection.query_row(sql, [since(retention.rewind)], |row| row.get(0)).optional()?;
    let slowest = slowest.unwrap_or(0);
    Ok(kept.map_or(slowest, |kept| kept.min(slowest)))
}

pub(crate) fn findings(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let mut found = Vec::new();
    for (table, columns) in installed(connection)? {
        found.extend(key_findings(connection, &table)?);
        let now = match Shape::look(connection, &table) {
            Ok(shape) => shape.columns,
            Err(Failure::Told(error)) => {
                let remedy = Some("install it again, or uninstall it".to_owned());
                found.push(Finding { severity: Severity::Error, what: error.message().to_owned(), remedy });
                continue;
            }
            Err(failure) => return Err(failure),
        };
        if now != columns {
            let what = format!("the table {table} has other columns than its log knows");
            let remedy = Some("install it again, which keeps the log".to_owned());
            found.push(Finding { severity: Severity::Warning, what, remedy });
        }
    }
    Ok(found)
}

#[async_trait]
impl Source for ChangeLog {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.client.read(cx, |transaction| findings(transaction)).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        let identity = self.client.run(cx, log_identity).await?;
        Ok(Pedigree(identity.into()))
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        if self.identity(cx).await? != *pedigree {
            return Err(Error::position_lost("the checkpoint belongs to another log than the one that answers now")
                .remedy("point the stream at the log it was reading, or move the checkpoint on purpose"));
        }
        let place = Place::of(position)?;
        self.client.read(cx, move |transaction| place.still_there(transaction)).await
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        Some(Self::number(a).ok()?.cmp(&Self::number(b).ok()?))
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(JsonPayload)
    }

    async fn open(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        let consumer = Arc::clone(&self.consumer);
        // In one transaction, so that nothing is pruned between the look and the note.
        let begin = move |transaction: &rusqlite::Transaction<'_>| {
            let after = start(transaction, &at)?;
            hold_back(transaction, &consumer, after.number)?;
            Ok(after)
        };
        let after = self.client.write(cx, begin).await?;
        Ok(Box::new(Reader::new(cx, self, after, true).await?))
    }

    async fn peek(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        let after = self.client.read(cx, move |transaction| start(transaction, &at)).await?;
        Ok(Box::new(Reader::new(cx, self, after, false).await?))
    }
}

/// How often an acknowledgement is written: each is a write to the application's own file.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Transactions of pruning after one note: more than a log grows in that time, yet an end to it.
const PRUNE_STEPS: usize = 60;

struct Reader {
    log: ChangeLog,
    after: Place,
    pulse: Pulse,
    /// Whether it reads on behalf of the log's consumer, whose acknowledgements it may write.
    consumes: bool,
    /// What was acknowledged and is not yet written.
    acknowledged: Option<Place>,
    noted: Moment,
}

impl Reader {
    async fn new(cx: &Cx, log: &ChangeLog, after: Place, consumes: bool) -> Result<Self> {
        let pulse = Pulse::start(cx, &log.client, NEWEST).await?;
        // Another one than at first, if the file was replaced and the gap accepted.
        let origin = log.client.run(cx, log_identity).await?.into();
        let log = ChangeLog { origin, ..log.clone() };
        Ok(Self { log, after, pulse, consumes, acknowledged: None, noted: cx.now() })
    }

    async fn write_note(&mut self, cx: &Cx) -> Result<()> {
        let Some(place) = self.acknowledged else { return Ok(()) };
        let (consumer, retention) = (Arc::clone(&self.log.consumer), self.log.retention);
        let noted = move |transaction: &rusqlite::Transaction<'_>| {
            // Of a file that was restored nothing may go that nobody has read; the next read tells what happened.
            match place.still_there(transaction) {
                Err(Failure::Told(_)) => return Ok(0),
                answer => answer?,
            }
            note(transaction, &consumer, place.number)?;
            prunable(transaction, retention)
        };
        let through = self.log.client.write(cx, noted).await?;
        self.acknowledged = None;
        self.noted = cx.now();
        for _ in 0..PRUNE_STEPS {
            if !self.log.client.write(cx, move |transaction| prune_step(transaction, through)).await? {
                break;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl ChangeStream for Reader {
    fn position(&self) -> Option<Position> {
        Some(self.after.position())
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let until = cx.now() + limits.wait;
        loop {
            self.pulse.mark_seen();
            let (after, log) = (self.after, self.log.clone());
            let batch = self.log.client.read(cx, move |transaction| read::batch(transaction, &log, after, limits));
            if let Some(batch) = batch.await? {
                // Moved only when the batch is handed out, so a dropped call loses nothing.
                self.after = Place::of(&batch.end)?;
                return Ok(batch);
            }
            tokio::select! {
                biased;
                changed = self.pulse.changed() => changed?,
                () = cx.clock().sleep_until(until) => {
                    let empty = BatchBuilder::new(Arc::clone(&self.log.origin), self.log.payload());
                    return Ok(empty.finish(self.after.position()));
                }
            }
        }
    }

    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        let place = Place::of(position)?;
        self.acknowledged = self.consumes.then_some(place);
        if cx.now().since(self.noted) < NOTE_EVERY {
            return Ok(());
        }
        self.write_note(cx).await
    }

    /// Until it counts as abandoned, which takes days by default.
    fn holds_back(&self) -> bool {
        true
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.log.client.read(cx, |transaction| read::window(transaction)).await
    }

    async fn close(mut self: Box<Self>, cx: &Cx) -> Result<()> {
        self.write_note(cx).await
    }
}
