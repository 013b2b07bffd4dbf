//! One question to the server, and its answer as it arrives.

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Error as Native, Row, RowStream};
use watchkeeper_core::{Result, SourceTime};

use super::columns::{Columns, blank};
use super::position::LogPosition;
use super::snapshot::Snapshot;
use crate::client::{Dedicated, Link};

/// A connection that only one reader uses.
#[derive(Debug)]
pub(super) enum Line {
    /// Made for it.
    Own(Dedicated),
    /// Out of the pool, where there is no other.
    Pooled(Link),
}

impl Line {
    /// Nothing is under way on it any more.
    pub(super) fn give_back(self) {
        if let Self::Pooled(link) = self {
            link.give_back();
        }
    }
}

impl std::ops::Deref for Line {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Own(dedicated) => dedicated,
            Self::Pooled(link) => link,
        }
    }
}

/// Where the write-ahead log ends, if the disk does not have all of it. Whatever a snapshot knows to have ended lies before.
pub(super) const UNFLUSHED: &str =
    "CASE WHEN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() THEN pg_current_wal_insert_lsn()::text END";

/// What is read, and how it is said in SQL.
#[derive(Debug, Clone)]
pub(super) struct Script {
    /// The table, as SQL names it.
    pub(super) table: String,
    pub(super) columns: Columns,
    /// Whether all texts are of types whose bytes are their text, so that none needs a cast.
    pub(super) raw: bool,
    /// Identity and pruning of a log of our own, as two texts; both are null without one.
    pub(super) about: String,
    /// The first row that says no transaction, as a text; null where every row says one.
    pub(super) unreachable: String,
    /// The only entities that are given out.
    pub(super) wanted: Option<Arc<[String]>>,
    /// Whether a new window is expected to be small, since the one before was read to its end. A server that has not
    /// looked at the log for its statistics yet would else read all of it along the numbers, at every question.
    pub(super) expects_few: bool,
}

impl Script {
    /// The next changes after a place, at most so many. The first row tells of the log itself and of the moment of the
    /// answer; all rows are of one moment. It comes first because no worker may read it, so that nothing runs in parallel.
    /// It also tells how much of the write-ahead log has to be on the disk, if it is not yet, for all of this to have happened.
    pub(super) fn next(&self, after: &LogPosition, most: usize) -> String {
        let selected = self.columns.selected(self.wanted.as_deref(), self.raw);
        let (table, id) = (&self.table, crate::client::quoted(&self.columns.id));
        let unread = self.unread(after);
        // Rows that no window holds are looked for at the moment of a new window. The rest of one that was begun then has no rows after them.
        let unreachable = if after.target.is_none() { &self.unreachable } else { blank(self.raw) };
        // An expression is in no index, so that the transactions' is used and its rows are sorted.
        let order = if self.expects_few && after.target.is_none() { format!("{id} + 0") } else { id };
        format!(
            "WITH head AS MATERIALIZED (SELECT NULL::bigint, NULL::timestamptz, pg_current_snapshot()::text,
                {about}, {UNFLUSHED}, {unreachable}, {blank}, {blank})
            SELECT * FROM head UNION ALL (SELECT {selected} FROM {table} WHERE {unread} ORDER BY {order} LIMIT {most})",
            about = self.about,
            blank = blank(self.raw),
        )
    }

    /// Which rows are unread. In a new window that is said by transactions alone, which an index finds; the rest of a
    /// window is read along the numbers, so that its rows are not sorted again for each part of it.
    pub(super) fn unread(&self, after: &LogPosition) -> String {
        let (id, xid) = (crate::client::quoted(&self.columns.id), crate::client::quoted(&self.columns.xid));
        let read = &after.read;
        if let Some(target) = &after.target {
            return format!(
                "{id} > {} AND NOT pg_visible_in_snapshot({xid}, '{read}') AND pg_visible_in_snapshot({xid}, '{target}')",
                after.last
            );
        }
        let mut unread = format!("({xid} >= '{}'::xid8", read.xmax());
        if !read.in_progress().is_empty() {
            let list: Vec<String> = read.in_progress().iter().map(u64::to_string).collect();
            // Written to a string, which cannot fail.
            let _ = write!(unread, " OR {xid} = ANY ('{{{}}}'::xid8[])", list.join(","));
        }
        unread + ")"
    }
}

/// What the server says of the log itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogInfo {
    /// The moment of the answer.
    pub(super) now: Snapshot,
    /// The identity of a log of our own.
    pub(super) log: Option<String>,
    /// What was pruned of it: all changes of transactions that had ended then may be gone.
    pub(super) pruned: Option<Snapshot>,
    /// How far the write-ahead log has to be on the disk for it to be certain.
    pub(super) unflushed: Option<String>,
    /// The first row of an outbox that says no transaction, where a new window begins.
    pub(super) unreachable: Option<String>,
}

type PendingQuery = Pin<Box<dyn Future<Output = Result<RowStream, Native>> + Send>>;

/// A question under way. It keeps its answer until someone takes it, row by row; what is not taken waits at the server.
pub(super) struct LogQuery {
    /// How many rows it wants at most.
    most: usize,
    /// How many came, beside the first.
    pub(super) got: usize,
    state: State,
}

enum State {
    Asked(PendingQuery),
    Answering(Pin<Box<RowStream>>),
}

impl LogQuery {
    /// Sends it. It is under way from now on, also while nobody waits for it.
    pub(super) fn send(line: &Arc<Line>, script: &Script, after: &LogPosition, most: usize) -> Self {
        let (line, sql) = (Arc::clone(line), script.next(after, most));
        let none: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 0] = [];
        let mut asking: PendingQuery = Box::pin(async move { line.query_typed_raw(&sql, none).await });
        // The first poll puts it on the wire. An answer to that can only be that the connection is gone, which the
        // next poll would not tell again.
        let state = match (&mut asking).now_or_never() {
            None => State::Asked(asking),
            Some(Ok(rows)) => State::Answering(Box::pin(rows)),
            Some(Err(native)) => State::Asked(Box::pin(std::future::ready(Err(native)))),
        };
        Self { most, got: 0, state }
    }

    /// The next row; `None` at the end.
    ///
    /// # Cancel safety
    /// Cancel safe: a row is taken only by an answer.
    pub(super) async fn row(&mut self) -> Result<Option<Row>, Native> {
        loop {
            match &mut self.state {
                State::Asked(asking) => self.state = State::Answering(Box::pin(asking.await?)),
                State::Answering(rows) => return rows.next().await.transpose(),
            }
        }
    }

    /// Whether it got all that it asked for, so that there may be more.
    pub(super) fn is_cut_short(&self) -> bool {
        self.got >= self.most
    }
}

/// The bytes of a value, as they came.
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Between the first moment of 1970 and that of 2000, from which the server counts.
const SINCE_1970_MS: i64 = 946_684_800_000;

/// A moment as the server sends it: microseconds since 2000.
pub(super) fn time(raw: &[u8]) -> Option<SourceTime> {
    let micros = i64::from_be_bytes(raw.try_into().ok()?);
    u64::try_from(micros.div_euclid(1_000).checked_add(SINCE_1970_MS)?).ok().map(SourceTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_followed_only_where_much_is_to_be_read() {
        let snapshot = |text: &str| -> Snapshot { text.parse().expect("it is one") };
        let columns = Columns::own();
        let mut script = Script {
            table: "log".to_owned(),
            columns,
            raw: true,
            about: "NULL::text, NULL::text".to_owned(),
            unreachable: "NULL::json".to_owned(),
            wanted: None,
            expects_few: false,
        };
        let fresh = LogPosition::at(snapshot("3:9:"));
        let within = LogPosition { target: Some(snapshot("9:12:")), last: 5, ..fresh.clone() };
        let along_numbers =
            |script: &Script, place: &LogPosition| script.next(place, 10).contains("ORDER BY \"id\" LIMIT");
        assert!(along_numbers(&script, &fresh), "all of it may be unread");
        script.expects_few = true;
        assert!(!along_numbers(&script, &fresh));
        assert!(along_numbers(&script, &within), "the rest of a window is not sorted again");
    }
}
