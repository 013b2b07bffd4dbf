//! How long changes are kept: what consumers have acknowledged, and pruning.
//!
//! Pruning is told by a snapshot, as places are: the changes of all transactions that had ended then may be gone. It is
//! written by the very transaction that removes them.

use std::time::Duration;

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Result, SourceTime, Window};

use super::ChangeLog;
use super::install::Unread;
use super::pedigree::{LogObservation, require_unpruned};
use super::position::LogPosition;
use super::query::{Raw, time};
use super::snapshot::Snapshot;
use crate::client::{Client, Work};

/// Rows that one step of pruning removes, so that its transaction stays short.
const STEP: i64 = 5_000;

/// Steps of pruning after one note: more than a log grows in that time, yet an end to it.
const STEPS: usize = 20;

/// A moment in this many is noted, over the time that a log is kept to go back to.
const MARKS: u32 = 60;

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

/// Looks at a place and notes that a consumer reads after it, which holds the log back from there, in one transaction: so
/// that nothing is pruned in between. It never moves the consumer forward: another opening may still be reading.
pub(super) async fn hold_back(cx: &Cx, log: &ChangeLog, place: &LogPosition) -> Result<()> {
    let work = log.client.begin(cx).await?;
    // Pruning waits for this, or has passed by and is seen.
    let sql = log.client.sql("SELECT pruned_through::text FROM {schema}.log_meta FOR SHARE");
    let pruned = one(&work, cx, &sql).await?.ok_or_else(|| log.uninstalled())?;
    require_unpruned(&pruned, place)?;
    let sql = log.client.sql("SELECT acknowledged::text FROM {schema}.log_consumers WHERE name = $1 FOR UPDATE");
    let rows = work.query(cx, &sql, &[(&&*log.consumer, Type::TEXT)]).await?;
    let known: Option<Snapshot> = rows.first().map(|row| row.get::<_, String>(0).parse()).transpose()?;
    let earlier = known.map_or_else(|| place.read.clone(), |known| known.common(&place.read));
    write_note(&work, cx, log, &earlier).await?;
    work.commit(cx).await
}

async fn one(work: &Work, cx: &Cx, sql: &str) -> Result<Option<Snapshot>> {
    let rows = work.query(cx, sql, &[]).await?;
    rows.first().map(|row| row.get::<_, String>(0).parse()).transpose()
}

async fn write_note(work: &Work, cx: &Cx, log: &ChangeLog, acknowledged: &Snapshot) -> Result<()> {
    let sql = log.client.sql(
        "INSERT INTO {schema}.log_consumers VALUES ($1, $2::pg_snapshot, clock_timestamp()) ON CONFLICT (name) DO UPDATE
            SET acknowledged = excluded.acknowledged, seen = excluded.seen",
    );
    let acknowledged = acknowledged.to_string();
    work.query(cx, &sql, &[(&&*log.consumer, Type::TEXT), (&acknowledged, Type::TEXT)]).await?;
    Ok(())
}

/// Notes how far the consumer is, unless the log is another one by now: of a log that was restored nothing may go that
/// nobody has read, and the next read tells what happened.
pub(super) async fn note(cx: &Cx, log: &ChangeLog, origin: &str, place: &LogPosition) -> Result<()> {
    let work = log.client.begin(cx).await?;
    let sql = LogObservation::sql(&log.script(), Some(&log.meta()), place.last);
    let rows = work.query(cx, &sql, &[]).await?;
    let row = rows.first().ok_or_else(|| Error::internal("a look at the log told nothing"))?;
    let observation = LogObservation::of(row)?;
    if observation.identity.origin() != origin || observation.require(place).is_err() {
        work.rollback(cx).await;
        return Ok(());
    }
    write_note(&work, cx, log, &place.read).await?;
    work.commit(cx).await
}

/// Prunes what every consumer has acknowledged and nobody may want to go back to.
pub(super) async fn prune_some(cx: &Cx, log: &ChangeLog) -> Result<()> {
    for _ in 0..STEPS {
        if !prune_acknowledged(cx, log).await? {
            break;
        }
    }
    Ok(())
}

/// One step; whether more is to be done.
async fn prune_acknowledged(cx: &Cx, log: &ChangeLog) -> Result<bool> {
    let Retention { rewind, abandoned } = log.retention;
    let work = log.client.begin(cx).await?;
    let Some(pruned) = turn(&work, cx, &log.client).await? else {
        work.rollback(cx).await;
        return Ok(false);
    };
    let sql = log.client.sql(
        "SELECT acknowledged::text FROM {schema}.log_consumers WHERE seen > clock_timestamp() - $1 * interval '1 second'",
    );
    let rows = work.query(cx, &sql, &[(&abandoned.as_secs_f64(), Type::FLOAT8)]).await?;
    let acknowledged: Vec<Snapshot> = rows.iter().map(|row| row.get::<_, String>(0).parse()).collect::<Result<_>>()?;
    let through = old_enough(&work, cx, log, rewind).await?;
    let through = through.into_iter().find(|mark| acknowledged.iter().all(|known| mark.is_in(known)));
    let Some(through) = through.filter(|through| pruned.is_in(through)) else {
        work.commit(cx).await?;
        return Ok(false);
    };
    let gone = remove(&work, cx, &log.client, &through).await?;
    work.commit(cx).await?;
    Ok(gone >= STEP)
}

/// What was pruned, if nobody else prunes just now.
async fn turn(work: &Work, cx: &Cx, client: &Client) -> Result<Option<Snapshot>> {
    let sql = client.sql("SELECT pruned_through::text FROM {schema}.log_meta FOR UPDATE SKIP LOCKED");
    one(work, cx, &sql).await
}

/// Moments that are old enough to be pruned, the newest first. Notes one for later.
async fn old_enough(work: &Work, cx: &Cx, log: &ChangeLog, rewind: Duration) -> Result<Vec<Snapshot>> {
    let (rewind, between) = (rewind.as_secs_f64(), (rewind / MARKS).as_secs_f64());
    let sql = log.client.sql(
        "INSERT INTO {schema}.log_marks SELECT pg_current_snapshot() WHERE NOT EXISTS (SELECT FROM {schema}.log_marks
            WHERE time > clock_timestamp() - $1 * interval '1 second') ON CONFLICT DO NOTHING",
    );
    work.query(cx, &sql, &[(&between, Type::FLOAT8)]).await?;
    let sql = log.client.sql(
        "SELECT snapshot::text FROM {schema}.log_marks
            WHERE time <= clock_timestamp() - $1 * interval '1 second' ORDER BY time DESC",
    );
    let rows = work.query(cx, &sql, &[(&rewind, Type::FLOAT8)]).await?;
    rows.iter().map(|row| row.get::<_, String>(0).parse()).collect()
}

/// Removes a step of what had ended then; the answer is how many changes that were. Marks before are of no use any more.
async fn remove(work: &Work, cx: &Cx, client: &Client, through: &Snapshot) -> Result<i64> {
    let through = through.to_string();
    let sql = client.sql(
        "WITH gone AS (DELETE FROM {schema}.log WHERE id IN (SELECT id FROM {schema}.log
                WHERE xid < pg_snapshot_xmax($1::pg_snapshot) AND pg_visible_in_snapshot(xid, $1::pg_snapshot)
                ORDER BY xid LIMIT $2) RETURNING id),
            told AS (UPDATE {schema}.log_meta SET pruned_through = $1::pg_snapshot,
                pruned_id = greatest(pruned_id, (SELECT max(id) FROM gone)) WHERE pruned_through::text <> $1
                    OR EXISTS (SELECT FROM gone)),
            marks AS (DELETE FROM {schema}.log_marks
                WHERE time < (SELECT max(time) FROM {schema}.log_marks WHERE snapshot::text = $1))
        SELECT count(*) FROM gone",
    );
    let rows = work.query(cx, &sql, &[(&through, Type::TEXT), (&STEP, Type::INT8)]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Drops, in small steps, what every consumer has acknowledged, or all that is in the log now; whoever has not read it has
/// lost it then. The answer is how many changes are gone.
pub async fn prune(cx: &Cx, client: &Client, unread: Unread) -> Result<u64> {
    let rows = client.read(cx, "SELECT pg_current_snapshot()::text", &[]).await?;
    let now: Snapshot = rows.first().map_or_else(String::new, |row| row.get(0)).parse()?;
    let mut removed = 0;
    loop {
        let work = client.begin(cx).await?;
        let sql = client.sql("SELECT pruned_through::text FROM {schema}.log_meta FOR UPDATE");
        one(&work, cx, &sql).await?;
        let through = match unread {
            Unread::Discard => Some(now.clone()),
            Unread::Keep => slowest(&work, cx, client).await?,
        };
        let Some(through) = through else { return Ok(removed) };
        let gone = remove(&work, cx, client, &through).await?;
        work.commit(cx).await?;
        removed += gone.unsigned_abs();
        if gone < STEP {
            return Ok(removed);
        }
    }
}

/// What the consumer that is furthest behind has acknowledged.
async fn slowest(work: &Work, cx: &Cx, client: &Client) -> Result<Option<Snapshot>> {
    let sql = client.sql("SELECT acknowledged::text FROM {schema}.log_consumers");
    let rows = work.query(cx, &sql, &[]).await?;
    let all: Vec<Snapshot> = rows.iter().map(|row| row.get::<_, String>(0).parse()).collect::<Result<_>>()?;
    Ok(all.into_iter().reduce(|a, b| if a.is_in(&b) { a } else { b }))
}

/// How far the log reaches. What an outbox holds does not tell: removing rows is up to the application.
pub(super) async fn window(cx: &Cx, log: &ChangeLog) -> Result<Window> {
    if !log.is_own() {
        return Ok(Window::default());
    }
    let script = log.script();
    let Some(column) = &script.columns.time else { return Ok(Window::default()) };
    let (column, id, table) = (crate::client::quoted(column), crate::client::quoted(&script.columns.id), &script.table);
    let end = |order: &str| format!("(SELECT {column}::timestamptz FROM {table} ORDER BY {id} {order} LIMIT 1)");
    let rows = log.client.read(cx, &format!("SELECT {}, {}", end("ASC"), end("DESC")), &[]).await?;
    let at = |n: usize| -> Option<SourceTime> {
        let raw: Option<Raw<'_>> = rows.first()?.get(n);
        time(raw?.0)
    };
    Ok(Window { oldest: at(0), newest: at(1), room: None })
}
