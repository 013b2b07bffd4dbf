//! What has arrived, in the order in which the server committed it.
//!
//! Rows are numbered when they are written, which would hide a stale write that is committed late. So the server is told to
//! remember the time of every commit, and what has become visible since the last look is read in that order.

use async_trait::async_trait;
use watchkeeper_core::{Error, Result};
use watchkeeper_drill::Arrival;
use watchkeeper_postgres::tokio_postgres::Row;

use super::super::Target;
use super::ARRIVED;
use super::link::{Link, unavailable};

pub(super) struct Arrivals {
    link: Link,
    /// What was visible to the last look.
    seen: String,
}

/// Before everything.
const NOTHING: &str = "3:3:";

impl Arrivals {
    pub(super) fn new(link: Link) -> Self {
        Self { link, seen: NOTHING.to_owned() }
    }
}

/// The snapshot of the statement comes first, and alone when there is no news.
fn question() -> String {
    format!(
        "WITH news AS (
             SELECT epoch, event, number, xid FROM {ARRIVED}
             WHERE xid >= pg_snapshot_xmin($1::text::pg_snapshot)
               AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
         )
         SELECT pg_current_snapshot()::text, epoch, event->'after'->>'id', (event->'after'->>'number')::bigint
         FROM (SELECT 1) one LEFT JOIN news ON true
         ORDER BY pg_xact_commit_timestamp(xid::text::xid), number"
    )
}

#[async_trait]
impl Target for Arrivals {
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>> {
        let client = self.link.client().await?;
        let rows = client.query(&question(), &[&self.seen]).await.map_err(unavailable)?;
        let seen = rows.first().map(|row| row.get(0)).ok_or_else(|| Error::internal("a snapshot is always there"))?;
        let arrivals = rows.iter().filter_map(|row| arrival(row).transpose()).collect::<Result<_>>()?;
        self.seen = seen;
        Ok(arrivals)
    }
}

fn arrival(row: &Row) -> Result<Option<Arrival>> {
    let Some(epoch) = row.get::<_, Option<i64>>(1) else { return Ok(None) };
    let (key, number): (Option<String>, Option<i64>) = (row.get(2), row.get(3));
    let (Some(key), Some(number)) = (key, number) else {
        return Err(Error::corrupt("an order that arrived cannot be read"));
    };
    Ok(Some(Arrival { key, number: number.cast_unsigned(), epoch: epoch.cast_unsigned() }))
}
