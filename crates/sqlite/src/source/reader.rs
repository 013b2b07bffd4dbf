//! The open log.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Cx, Finding, Limits, Moment, Position, Result, Source, Window,
};

use super::guard::KnownSchema;
use super::position::LogPosition;
use super::{ChangeLog, Retention, read, times};
use crate::client::ChangeHints;
use crate::clock::wall_millis;
use crate::error::Failure;
use crate::tools::prune_step;

/// The newest change, with the schema's version in front: a reader has to look when either is another.
const HINTS: &str = "SELECT (((SELECT schema_version FROM pragma_schema_version) & 4194303) << 40)
    + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'watchkeeper_changes'), 0)";

/// How often an acknowledgement is written: each is a write to the application's own file.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Transactions of pruning after one note: more than a log grows in that time, yet an end to it.
const PRUNE_STEPS: usize = 60;

pub(super) struct Reader {
    log: ChangeLog,
    /// The identity of the log that was opened.
    origin: Arc<str>,
    /// Of the tables, when they were last looked at.
    known: KnownSchema,
    after: LogPosition,
    hints: ChangeHints,
    /// Whether it reads on behalf of the log's consumer, whose acknowledgements it may write.
    consumes: bool,
    /// What was acknowledged and is not yet written.
    acknowledged: Option<LogPosition>,
    noted: Moment,
    /// What a person should know of where it begins.
    note: Option<String>,
}

/// What an opening begins with.
pub(super) struct Start {
    pub(super) log: ChangeLog,
    pub(super) origin: String,
    pub(super) after: LogPosition,
    pub(super) note: Option<String>,
}

impl Reader {
    pub(super) async fn new(cx: &Cx, start: Start, consumes: bool) -> Result<Self> {
        let Start { log, origin, after, note } = start;
        if let (Some(note), true) = (&note, consumes) {
            tracing::info!(consumer = &*log.consumer, "{note}");
        }
        let hints = ChangeHints::start(cx, &log.client, HINTS).await?;
        let (origin, known) = (origin.into(), KnownSchema::default());
        Ok(Self { log, origin, known, after, hints, consumes, acknowledged: None, noted: cx.now(), note })
    }

    /// The next changes, if there are any. Says what has become of the tables meanwhile.
    async fn read(&mut self, cx: &Cx, limits: Limits) -> Result<Option<Batch>> {
        let (after, log, origin, mut known) =
            (self.after, self.log.clone(), Arc::clone(&self.origin), self.known.clone());
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            let batch = read::batch(transaction, &log, &origin, after, limits)?;
            let news = known.inspect(transaction, log.file(), log.tables.as_deref(), batch.is_some())?;
            Ok((batch, known, news))
        };
        let (batch, known, news) = self.log.client.read(cx, read).await?;
        self.known = known;
        for Finding { what, remedy, .. } in news {
            tracing::warn!(consumer = &*self.log.consumer, "{what}; {}", remedy.unwrap_or_default());
        }
        Ok(batch)
    }

    async fn write_note(&mut self, cx: &Cx) -> Result<()> {
        let Some(place) = self.acknowledged else { return Ok(()) };
        let (log, origin) = (self.log.clone(), Arc::clone(&self.origin));
        let noted = move |transaction: &rusqlite::Transaction<'_>| {
            log.require_same(transaction, &origin)?;
            // Of a file that was restored nothing may go that nobody has read; the next read tells what happened.
            match place.still_there(transaction) {
                Err(Failure::Described(_)) => return Ok(0),
                answer => answer?,
            }
            note(transaction, &log.consumer, place.number)?;
            times::mark(transaction, log.retention)?;
            prunable(transaction, log.retention)
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

#[async_trait]
impl ChangeStream for Reader {
    fn position(&self) -> Option<Position> {
        Some(self.after.position())
    }

    fn opening_note(&self) -> Option<String> {
        self.note.clone()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let until = cx.now() + limits.wait;
        loop {
            self.hints.mark_seen();
            if let Some(batch) = self.read(cx, limits).await? {
                // Moved only when the batch is handed out, so a dropped call loses nothing.
                self.after = LogPosition::of(&batch.end)?;
                return Ok(batch);
            }
            tokio::select! {
                biased;
                changed = self.hints.changed() => changed?,
                () = cx.clock().sleep_until(until) => {
                    let empty = BatchBuilder::new(Arc::clone(&self.origin), self.log.payload());
                    return Ok(empty.finish(self.after.position()));
                }
            }
        }
    }

    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        let place = LogPosition::of(position)?;
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
        let (log, origin) = (self.log.clone(), Arc::clone(&self.origin));
        let observation = move |transaction: &rusqlite::Transaction<'_>| {
            log.require_same(transaction, &origin)?;
            read::window(transaction)
        };
        self.log.client.read(cx, observation).await
    }

    async fn close(mut self: Box<Self>, cx: &Cx) -> Result<()> {
        self.write_note(cx).await
    }
}
