//! Where a start by time begins.
//!
//! The time of a change is that of its statement: its transaction may have been committed long after. SQLite has one writer at a time, so the
//! changes of a transaction lie together, and all that lies before them was committed before it began; but the log does not say where one
//! begins, and a trigger cannot know. So whoever reads notes, from time to time, up to which change everything was committed then. A start
//! by time begins after the last of these marks before it, and so never in the middle of a transaction, and without skipping one.

use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::SourceTime;

use super::{NEWEST, Retention, bounds};
use crate::clock::wall_millis;
use crate::error::Failure;

/// A mark in this many parts of the time that a log is kept to go back to, and not more often than every second.
const MARKS: i64 = 600;
const MARK_EVERY_MS: i64 = 1_000;

/// So many are kept, however long a consumer holds the log back.
const MARKS_MAX: i64 = 2_000;

/// What the names of marks in `watchkeeper_meta` begin with; the time in milliseconds follows, in as many digits as the largest has.
const MARK: &str = "log/mark/";

fn mark_name(millis: i64) -> String {
    format!("{MARK}{millis:019}")
}

/// Marks up to which change everything is committed now, unless that was done shortly before. To be called in a transaction that has not
/// written to the log.
pub(super) fn mark(connection: &Connection, retention: Retention) -> Result<(), Failure> {
    let rewind = i64::try_from(retention.rewind.as_millis()).unwrap_or(i64::MAX);
    let (now, every) = (wall_millis(), (rewind / MARKS).max(MARK_EVERY_MS));
    let sql = "SELECT 1 FROM watchkeeper_meta WHERE name > ?1 AND name <= ?2";
    let since = (mark_name(now.saturating_sub(every).max(0)), mark_name(now));
    if connection.prepare_cached(sql)?.exists(since)? {
        return Ok(());
    }
    let newest: i64 = connection.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?;
    let sql = "INSERT OR REPLACE INTO watchkeeper_meta VALUES (?1, ?2)";
    connection.prepare_cached(sql)?.execute((mark_name(now), newest))?;
    let sql = "DELETE FROM watchkeeper_meta WHERE name GLOB ?1 AND (
        value < (SELECT value FROM watchkeeper_meta WHERE name = 'pruned_through')
        OR name <= (SELECT name FROM watchkeeper_meta WHERE name GLOB ?1 ORDER BY name DESC LIMIT 1 OFFSET ?2))";
    connection.prepare_cached(sql)?.execute((format!("{MARK}*"), MARKS_MAX))?;
    Ok(())
}

/// A change up to which everything was committed before a time; nothing that was committed at or after it has a number up to there.
pub(super) fn committed_before(connection: &Connection, time: SourceTime) -> Result<u64, Failure> {
    let (pruned, newest) = bounds(connection)?;
    let millis = i64::try_from(time.0).unwrap_or(i64::MAX);
    if millis > wall_millis() {
        // What can be seen was committed before now, and so before a time that is still to come.
        return Ok(newest);
    }
    let sql = "SELECT value FROM watchkeeper_meta WHERE name >= ?1 AND name < ?2 ORDER BY name DESC LIMIT 1";
    let marked: Option<i64> = connection.query_row(sql, (MARK, mark_name(millis)), |row| row.get(0)).optional()?;
    Ok(marked.map_or(0, i64::cast_unsigned).max(pruned))
}

/// What comes after change `number` from before the time, as a sentence, if anything does.
pub(super) fn note(
    connection: &Connection,
    tables: Option<&[String]>,
    number: u64,
    time: SourceTime,
) -> Result<Option<String>, Failure> {
    let sql = "SELECT seq, strftime('%Y-%m-%dT%H:%M:%fZ', millis / 1000.0, 'unixepoch'),
            strftime('%Y-%m-%dT%H:%M:%fZ', ?2 / 1000.0, 'unixepoch')
        FROM (SELECT seq, millis FROM watchkeeper_changes WHERE seq > ?1
            AND (?3 IS NULL OR tbl IN (SELECT value FROM json_each(?3))) ORDER BY seq LIMIT 1) WHERE millis < ?2";
    let tables = tables.map(crate::json::text).transpose()?;
    let millis = i64::try_from(time.0).unwrap_or(i64::MAX);
    let columns = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let first: Option<(i64, Option<String>, Option<String>)> =
        connection.query_row(sql, (number.cast_signed(), millis, tables), columns).optional()?;
    Ok(first.map(|(seq, at, time)| {
        let (at, time) = (at.unwrap_or_default(), time.unwrap_or_default());
        format!(
            "reading begins with change {seq} of {at}, so that no transaction is skipped that was open at {time}; changes from before that time may come again"
        )
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tools::install_on;

    #[test]
    fn marks_are_few_and_go_with_what_was_pruned() {
        let mut connection = Connection::open_in_memory().expect("memory can be had");
        connection.execute_batch("CREATE TABLE orders(id INTEGER PRIMARY KEY, a)").expect("it is new");
        install_on(&mut connection, &["orders".to_owned()]).expect("it has a key");
        let retention = Retention { rewind: Duration::from_secs(3_600), abandoned: Duration::from_secs(3_600) };
        let marks = |connection: &Connection| -> Vec<i64> {
            let sql = "SELECT value FROM watchkeeper_meta WHERE name GLOB 'log/mark/*' ORDER BY name";
            let mut statement = connection.prepare(sql).expect("it is SQL");
            let rows = statement.query_map([], |row| row.get(0)).expect("it is there");
            rows.map(|row| row.expect("a number")).collect()
        };
        mark(&connection, retention).expect("it is marked");
        mark(&connection, retention).expect("it is marked already");
        assert_eq!(marks(&connection), [0]);
        for millis in 1..=MARKS_MAX + 5 {
            let sql = "INSERT INTO watchkeeper_meta VALUES (?1, ?2)";
            connection.execute(sql, (mark_name(millis), millis)).expect("it is new");
        }
        let sql = "DELETE FROM watchkeeper_meta WHERE name > ?1 AND name GLOB 'log/mark/*'";
        connection.execute(sql, [mark_name(MARKS_MAX + 5)]).expect("it is SQL");
        let found = committed_before(&connection, SourceTime(4)).expect("it is found");
        assert_eq!(found, 3, "only what is before the time");
        assert_eq!(committed_before(&connection, SourceTime(1)).expect("it is found"), 0);
        connection
            .execute("UPDATE watchkeeper_meta SET value = 10 WHERE name = 'pruned_through'", [])
            .expect("it is SQL");
        mark(&connection, retention).expect("it is marked");
        let left = marks(&connection);
        assert!(left.len() <= usize::try_from(MARKS_MAX).expect("it is small"), "{} marks are left", left.len());
        assert_eq!(committed_before(&connection, SourceTime(4)).expect("it is found"), 10, "the rest is pruned");
    }
}
