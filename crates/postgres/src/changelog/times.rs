//! Which transactions had ended at a time in the past.
//!
//! The time of a row is that of its statement, and a lower bound of the time of its commit: a row from before a time may have been
//! committed long after it. So a row says nothing about its own transaction. It does tell of others: those before the oldest one that was
//! open when it was logged had ended by then. Readers leave marks that say the same, and a server that keeps the times of commits is asked
//! for them. A start by time begins after the newest transactions that are known to have ended, and so never skips one that was open.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Result, SourceTime};

use super::ChangeLog;
use super::pedigree::LogObservation;
use super::position::LogPosition;
use crate::client::{Value, quoted};

/// The transactions that are known to have ended before a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All that can be seen.
    All,
    /// All below this one.
    Below(u64),
    /// Nobody knows of any.
    Unknown,
}

/// So many rows before the time are asked for the oldest open transaction: one of a transaction that began long ago knows less.
const ASKED_ROWS: u32 = 1_000;

/// What is known of a time.
pub(super) async fn ended_before(
    cx: &Cx,
    log: &ChangeLog,
    observation: &LogObservation,
    time: SourceTime,
) -> Result<Ended> {
    let sql = "SELECT to_timestamp($1 / 1000) > clock_timestamp(), current_setting('track_commit_timestamp') = 'on'";
    let rows = log.client.read(cx, sql, &[(&millis(time), Type::FLOAT8)]).await?;
    let Some(row) = rows.first() else { return Ok(Ended::Unknown) };
    if row.get(0) {
        // What can be seen was committed before now, and so before a time that is still to come.
        return Ok(Ended::All);
    }
    let by_commits = if row.get(1) { by_commits(cx, log, observation, time).await? } else { Ended::Unknown };
    let by_rows = if log.is_own() { by_rows(cx, log, observation, time).await? } else { Ended::Unknown };
    Ok(match (by_commits, by_rows) {
        (Ended::All, _) | (_, Ended::All) => Ended::All,
        (Ended::Below(a), Ended::Below(b)) => Ended::Below(a.max(b)),
        (Ended::Below(xid), Ended::Unknown) | (Ended::Unknown, Ended::Below(xid)) => Ended::Below(xid),
        (Ended::Unknown, Ended::Unknown) => Ended::Unknown,
    })
}

/// What rows of the log and marks of its readers tell.
async fn by_rows(cx: &Cx, log: &ChangeLog, observation: &LogObservation, time: SourceTime) -> Result<Ended> {
    let of_rows = if knows_open(cx, log).await? {
        log.client.sql(&format!(
            "(SELECT oldest_open::text FROM (SELECT oldest_open FROM {{schema}}.log
                WHERE time < to_timestamp($1 / 1000) AND oldest_open IS NOT NULL ORDER BY id DESC LIMIT {ASKED_ROWS}) AS r
                ORDER BY r.oldest_open DESC LIMIT 1)"
        ))
    } else {
        "NULL::text".to_owned()
    };
    let of_marks = log.client.sql(
        "(SELECT pg_snapshot_xmin(snapshot)::text FROM {schema}.log_marks WHERE time < to_timestamp($1 / 1000)
            ORDER BY time DESC LIMIT 1)",
    );
    let rows = log.client.read(cx, &format!("SELECT {of_rows}, {of_marks}"), &[(&millis(time), Type::FLOAT8)]).await?;
    // Rows that were copied from another server tell of transactions that this one has not had.
    let is_own = |xid: &u64| *xid <= observation.now.xmax();
    let number = |n: usize| rows.first()?.get::<_, Option<String>>(n)?.parse::<u64>().ok().filter(is_own);
    Ok(number(0).max(number(1)).map_or(Ended::Unknown, Ended::Below))
}

/// Whether rows tell of the oldest transaction that was open: those of a log that an older version of this program made do not.
async fn knows_open(cx: &Cx, log: &ChangeLog) -> Result<bool> {
    let sql =
        "SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'oldest_open' AND NOT attisdropped";
    let table = log.client.sql("{schema}.log");
    Ok(!log.client.read(cx, sql, &[(&table, Type::TEXT)]).await?.is_empty())
}

/// What the times of commits tell. Those of transactions that are too old are not kept; then nothing is known of them.
async fn by_commits(cx: &Cx, log: &ChangeLog, observation: &LogObservation, time: SourceTime) -> Result<Ended> {
    let script = log.script();
    let (table, xid) = (&script.table, quoted(&script.columns.xid));
    // Numbers of transactions are given again after 2^32: half of that is asked for.
    let sql = format!(
        "SELECT {xid}::text FROM {table} WHERE pg_visible_in_snapshot({xid}, $2::pg_snapshot)
            AND CASE WHEN {xid} > $3::xid8 THEN coalesce(pg_xact_commit_timestamp({xid}::xid) >= to_timestamp($1 / 1000), true) ELSE true END
            ORDER BY {xid} LIMIT 1"
    );
    let (now, recent) = (observation.now.to_string(), observation.now.xmax().saturating_sub(1 << 31).to_string());
    let values: &[Value<'_>] = &[(&millis(time), Type::FLOAT8), (&now, Type::TEXT), (&recent, Type::TEXT)];
    let rows = log.client.read(cx, &sql, values).await?;
    let first = rows.first().map(|row| row.get::<_, String>(0));
    Ok(match first.map(|xid| xid.parse()) {
        None => Ended::All,
        Some(Ok(xid)) => Ended::Below(xid),
        Some(Err(_)) => Ended::Unknown,
    })
}

/// What comes from before the time, as a sentence, if anything does.
pub(super) async fn note(cx: &Cx, log: &ChangeLog, place: &LogPosition, time: SourceTime) -> Result<Option<String>> {
    let script = log.script();
    let (table, id, unread) = (&script.table, quoted(&script.columns.id), script.unread(place));
    let column = script.columns.time.as_ref().map_or_else(|| "NULL".to_owned(), |name| quoted(name));
    let entity = script.columns.entity.as_ref().map_or_else(|| "NULL".to_owned(), |name| quoted(name));
    let iso = |time: &str| format!("to_char({time} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')");
    let sql = format!(
        "SELECT first.id, {}, {} FROM (SELECT {id}::bigint AS id, {column}::timestamptz AS time FROM {table}
            WHERE {unread} AND ($2::text[] IS NULL OR {entity}::text = ANY ($2)) ORDER BY {id} LIMIT 1) AS first
            WHERE coalesce(first.time < to_timestamp($1 / 1000), true)",
        iso("first.time"),
        iso("to_timestamp($1 / 1000)"),
    );
    let wanted = log.wanted.as_deref().map(<[String]>::to_vec);
    let rows = log.client.read(cx, &sql, &[(&millis(time), Type::FLOAT8), (&wanted, Type::TEXT_ARRAY)]).await?;
    Ok(rows.first().map(|row| {
        let (id, at, time): (i64, Option<String>, String) = (row.get(0), row.get(1), row.get(2));
        let of = at.map_or_else(String::new, |at| format!(" of {at}"));
        format!(
            "reading begins with change {id}{of}, so that no transaction is skipped that was open at {time}; changes from before that time may come again"
        )
    }))
}

/// Exact up to the year 287396.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of this age of the world are below 2^53")]
fn millis(time: SourceTime) -> f64 {
    time.0 as f64
}
