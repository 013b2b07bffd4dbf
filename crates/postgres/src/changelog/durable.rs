//! What a crash of the server cannot undo.
//!
//! A snapshot knows transactions that have ended, and not whether the disk knows it too: those that were undone wait for nothing, and
//! those that were committed with `synchronous_commit = off` do not either. After a crash the server has forgotten them and gives
//! their numbers to others, whose changes would then count as read. So nothing is given out, and no place told, before the write-ahead
//! log is on the disk up to the moment of the snapshot.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Result};

use crate::client::Client;
use crate::error::unchanged;

/// Waits until the write-ahead log is on the disk up to `end`. Somebody's commit may have seen to that already; otherwise it is done
/// by one of our own, with a message to nobody in it.
///
/// # Errors
/// As the server says.
pub(super) async fn flush(cx: &Cx, client: &Client, end: &str) -> Result<()> {
    let rows = client.read(cx, "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn", &[(&end, Type::TEXT)]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    let sent = client.write(cx, "SELECT pg_logical_emit_message(true, 'watchkeeper', '')", &[]).await;
    sent.map(drop).map_err(unchanged)
}
