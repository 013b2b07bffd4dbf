//! What is read: inserts, and updates of what was inserted, in both databases.

use watchkeeper_core::Result;
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::tokio_postgres::Client;
use watchkeeper_postgres::{Client as Pool, Config};
use watchkeeper_testkit::servers::postgres::Server;

use super::{LOGGED, STREAMED, connect, unavailable};
use crate::cluster::cx;
use crate::speed::live::{AT, LIVE};

/// The table.
pub(super) const EVENTS: &str = "events";

/// The publication of the table, and the slot from which all others are copied.
pub(super) const PUBLICATION: &str = "speed";
const BASE: &str = "base";

/// So many changes in one transaction.
pub(super) const TOGETHER: i64 = 100;

/// A table with rows of about 300 bytes.
pub(super) fn table(name: &str) -> String {
    format!(
        "CREATE TABLE {name} (id bigint PRIMARY KEY, category int, customer text, status text, amount float8, at bigint,
            version int DEFAULT 0, note text)"
    )
}

/// Writes rows with the numbers from one to another into such a table.
pub(super) fn insert(table: &str) -> String {
    format!(
        "INSERT INTO {table} SELECT i, i % 10, 'c' || lpad((i * 7919 % 1000003)::text, 7, '0'), 'new', i * 1.25, i * 1000, 0,
            left(repeat('Four weeks after the last order, the same again, please. ', 4), 190)
         FROM generate_series($1::bigint, $2::bigint) i"
    )
}

/// Updates rows with the numbers from one to another of such a table.
pub(super) fn update(table: &str) -> String {
    format!(
        "UPDATE {table} SET status = 's' || (id % 9), amount = id * 2.5, version = version + 1
         WHERE id BETWEEN $1::bigint AND $2::bigint"
    )
}

fn tables() -> String {
    let live =
        format!("CREATE TABLE {LIVE} (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, {AT} bigint, note text)");
    format!("{}; {live}", table(EVENTS))
}

/// Writes the same changes into both databases; where they end in the write-ahead log of the second.
///
/// The one with triggers is first: what it writes lies before the slots of the other.
pub(super) async fn write(server: &Server, changes: u64) -> Result<u64> {
    let outside = connect(&server.url("postgres")).await?;
    for database in [LOGGED, STREAMED] {
        outside.batch_execute(&format!("CREATE DATABASE {database}")).await.map_err(unavailable)?;
        connect(&server.url(database)).await?.batch_execute(&tables()).await.map_err(unavailable)?;
    }
    let cx = cx();
    let pool = Pool::open(&cx, Config::new(&server.url(LOGGED))?).await?;
    install(&cx, &pool, &[EVENTS, LIVE], Wake::Notify).await?;
    fill(&connect(&server.url(LOGGED)).await?, changes.cast_signed()).await?;
    let streamed = connect(&server.url(STREAMED)).await?;
    // In transactions of their own: a slot cannot be made after a write.
    let publish = format!("CREATE PUBLICATION {PUBLICATION} FOR TABLE {EVENTS}");
    streamed.batch_execute(&publish).await.map_err(unavailable)?;
    let hold = format!("SELECT pg_create_logical_replication_slot('{BASE}', 'pgoutput')");
    streamed.batch_execute(&hold).await.map_err(unavailable)?;
    fill(&streamed, changes.cast_signed()).await?;
    // As after a quiet hour: nothing is left to be cleaned up or written out while others are measured.
    for database in [LOGGED, STREAMED] {
        connect(&server.url(database)).await?.batch_execute("VACUUM ANALYZE").await.map_err(unavailable)?;
    }
    let end = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let end: i64 = streamed.query_one(end, &[]).await.map_err(unavailable)?.get(0);
    streamed.batch_execute("CHECKPOINT").await.map_err(unavailable)?;
    Ok(end.cast_unsigned())
}

async fn fill(client: &Client, changes: i64) -> Result<()> {
    client.batch_execute("SET synchronous_commit = off").await.map_err(unavailable)?;
    let updates = changes / 4;
    for (sql, count) in [(insert(EVENTS), changes - updates), (update(EVENTS), updates)] {
        let statement = client.prepare(&sql).await.map_err(unavailable)?;
        for first in (0..count).step_by(TOGETHER as usize) {
            let last = count.min(first + TOGETHER) - 1;
            client.execute(&statement, &[&first, &last]).await.map_err(unavailable)?;
        }
    }
    Ok(())
}

/// Makes a slot that begins where the history does.
pub(super) async fn copy_slot(url: &str, name: &str) -> Result<()> {
    let sql = "SELECT pg_copy_logical_replication_slot($1::text::name, $2::text::name)";
    connect(url).await?.execute(sql, &[&BASE, &name]).await.map(drop).map_err(unavailable)
}
