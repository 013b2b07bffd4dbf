//! For whom the server waits while it makes a slot: all transactions that were open when it began.

use std::future::Future;
use std::time::Duration;

use watchkeeper_core::{Cx, Error, ErrorKind, Result};

use super::Replication;
use super::settings::literal;
use super::wire::{Failure, Wire};

/// So long a slot may take before it is asked what for.
const REPORT_AFTER: Duration = Duration::from_secs(3);

impl Replication {
    /// Waits for a slot that is being made. When that takes long, whoever keeps it waiting is named, in the log and, if there is
    /// no slot in the end, by the error.
    pub(super) async fn making<T>(&self, cx: &Cx, slot: &str, made: impl Future<Output = Result<T>>) -> Result<T> {
        let mut made = std::pin::pin!(cx.run(made));
        let late = async {
            cx.sleep(REPORT_AFTER).await;
            self.held_up(cx, slot).await
        };
        let held_up = tokio::select! {
            biased;
            made = &mut made => return made,
            held_up = late => held_up,
        };
        if let Some(error) = &held_up {
            tracing::warn!(%error, "the slot takes long");
        }
        match made.await {
            Err(error) if error.kind() == ErrorKind::Unknown => Err(held_up.unwrap_or(error)),
            made => made,
        }
    }

    async fn held_up(&self, cx: &Cx, slot: &str) -> Option<Error> {
        let mut wire = self.connect(cx).await.ok()?;
        let asked = cx.run(async { blocker(&mut wire, slot).await.map_err(|failure| self.to_error(failure)) });
        let (pid, user) = asked.await.ok()??;
        let (whose, remedy) = match pid.as_str() {
            "0" => (
                "a prepared transaction".to_owned(),
                "commit it or roll it back: SELECT gid FROM pg_prepared_xacts".to_owned(),
            ),
            pid => (
                format!("the open transaction of process {pid} ({user})"),
                format!("let it end, or end it: SELECT pg_terminate_backend({pid})"),
            ),
        };
        Some(Error::unavailable(format!("slot {slot} is not made yet: the server waits for {whose}")).remedy(remedy))
    }
}

/// The process that keeps a slot from being made, and its user.
async fn blocker(wire: &mut Wire, slot: &str) -> Result<Option<(String, String)>, Failure> {
    let sql = format!(
        "SELECT b.pid, coalesce(a.usename, 'unknown') FROM pg_catalog.pg_stat_activity w
        CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) b (pid)
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
        WHERE pg_catalog.starts_with(w.query, 'CREATE_REPLICATION_SLOT') AND pg_catalog.strpos(w.query, {}) > 0 LIMIT 1",
        literal(slot)
    );
    let rows = wire.query(&sql).await?;
    let row = rows.into_iter().next();
    Ok(row.and_then(|row| Some((row.first()?.clone()?, row.get(1)?.clone()?))))
}
