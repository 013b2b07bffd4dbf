//! From rows of the log to changes.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use watchkeeper_core::{
    Batch, BatchBuilder, Error, Limits, Operation, Position, RowParts, SourceTime, Version, Window,
};

use super::ChangeLog;
use super::payload::LogRows;
use super::position::LogPosition;
use super::real::with_numbers;
use super::repair::repaired;
use crate::error::Failure;
use crate::tools::marks::{self, LOST};

/// Rows of other tables that are passed over in one go: a long log of them must not hold up the thread.
const PASSED_MAX: usize = 10_000;

/// The next changes, or `None` if there are none. Of a log of many tables it may be an empty batch, which ends
/// after what was passed over.
pub(super) fn batch(
    connection: &Connection,
    log: &ChangeLog,
    origin: &Arc<str>,
    after: LogPosition,
    limits: Limits,
) -> Result<Option<Batch>, Failure> {
    // Asked every time: the log may be pruned, or the file restored from a backup, while it is read.
    log.require_same(connection, origin)?;
    after.still_there(connection)?;
    let sql = "SELECT seq, tbl, op, key, old_key, before, after, changed, millis
        FROM watchkeeper_changes WHERE seq > ?1 ORDER BY seq";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([after.number.cast_signed()])?;
    let mut builder = BatchBuilder::new(Arc::clone(origin), Arc::new(LogRows));
    let (mut end, mut passed) = (None, 0);
    while let Some(row) = rows.next()? {
        let is_wanted = is_wanted(row, log.tables.as_deref())?;
        if is_wanted && row.get_ref(2)?.as_str().is_ok_and(|operation| operation == LOST) {
            // What was logged before the loss is given out first.
            let Some(end) = end else { return Err(lost(row)?.into()) };
            return Ok(Some(builder.finish(end)));
        }
        if is_wanted {
            end = Some(push(&mut builder, row)?);
        } else {
            let (number, millis): (i64, i64) = (row.get(0)?, row.get(8)?);
            let time = SourceTime(millis.cast_unsigned());
            end = Some(ChangeLog::position(number.cast_unsigned(), Some(time)));
            passed += 1;
        }
        if passed >= PASSED_MAX || builder.len() >= limits.rows || builder.size() >= limits.bytes {
            break;
        }
    }
    Ok(end.map(|end| builder.finish(end)))
}

/// What a mark in the log says.
fn lost(row: &Row<'_>) -> Result<Error, Failure> {
    Ok(marks::mark_error(&row.get::<_, String>(1)?, row.get::<_, i64>(0)?.cast_unsigned()))
}

fn is_wanted(row: &Row<'_>, tables: Option<&[String]>) -> Result<bool, Failure> {
    let Some(tables) = tables else { return Ok(true) };
    let table = row.get_ref(1)?;
    Ok(table.as_str().is_ok_and(|table| tables.iter().any(|wanted| wanted == table)))
}

/// The text of a column of the log; nothing for NULL.
fn text(value: ValueRef<'_>) -> Cow<'_, str> {
    match value {
        ValueRef::Text(bytes) => with_numbers(repaired(bytes)),
        _ => Cow::Borrowed(""),
    }
}

/// Appends a row of the log; the answer is the position after it.
fn push(builder: &mut BatchBuilder, row: &Row<'_>) -> Result<Position, Failure> {
    let text = |column| row.get_ref(column).map(text);
    let (seq, millis): (i64, i64) = (row.get(0)?, row.get(8)?);
    let (before, after, changed) = (text(5)?, text(6)?, text(7)?);
    let (number, time) = (seq.cast_unsigned(), SourceTime(millis.cast_unsigned()));
    let namespace = builder.namespace(&text(1)?);
    let position = number.to_be_bytes();
    let mut add = |operation, half: u8, committable, key: &str, body: &str| {
        builder.push(RowParts {
            operation,
            namespace,
            half,
            committable,
            key: Some(key.as_bytes()),
            position: &position,
            body: body.as_bytes(),
            time,
            version: Version { time: number, ordinal: u64::from(half) },
        });
    };
    let (key, old_key) = (text(3)?, text(4)?);
    match &*text(2)? {
        "insert" => add(Operation::Insert, 0, true, &key, &body("", &after, "")),
        "update" => add(Operation::Update, 0, true, &key, &body(&before, &after, &changed)),
        "delete" => add(Operation::Delete, 0, true, &key, &body(&before, "", "")),
        // An update of the key is two changes under one position.
        "rekey" => {
            add(Operation::Delete, 0, false, &old_key, &body(&before, "", ""));
            add(Operation::Insert, 1, true, &key, &body("", &after, ""));
        }
        other => return Err(Error::corrupt(format!("change {number} of the log is a {other:?}")).into()),
    }
    Ok(ChangeLog::position(number, Some(time)))
}

/// `before`, `after` and the names of the `changed` columns, which are JSON already.
fn body(before: &str, after: &str, changed: &str) -> String {
    let or = |text: &str, absent: &'static str| if text.is_empty() { absent.to_owned() } else { text.to_owned() };
    let (before, after) = (or(before, "null"), or(after, "null"));
    if changed.is_empty() {
        return format!(r#"{{"before":{before},"after":{after}}}"#);
    }
    format!(r#"{{"before":{before},"after":{after},"changed":{changed}}}"#)
}

/// How far the log reaches.
pub(super) fn window(connection: &Connection) -> Result<Window, Failure> {
    let time = |order: &str| {
        let sql = format!("SELECT (SELECT millis FROM watchkeeper_changes ORDER BY seq {order} LIMIT 1)");
        let millis: Option<i64> = connection.query_row(&sql, [], |row| row.get(0))?;
        Ok::<_, Failure>(millis.map(|millis| SourceTime(millis.cast_unsigned())))
    };
    Ok(Window { oldest: time("ASC")?, newest: time("DESC")?, room: None })
}
