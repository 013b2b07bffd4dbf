//! How far back the server begins when the log is read on.
//!
//! It does not begin where reading stopped, but where it last noted which transactions were open, and decodes everything since then
//! once more before it tells anything: whoever takes over waits for that. By itself it makes such a note every 15 seconds. From version
//! 16 on it makes one when it is asked to by somebody who may, which is done here while there is much to decode again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use watchkeeper_core::{BootClock, Clock, Cx, Result};

use super::Replication;
use super::settings::literal;
use super::wire::Wire;

/// The first version that can be asked.
const SINCE: u32 = 160_000;

/// Between two notes: each is a record in the log, and a small file for every slot that is read.
const DROP_EVERY: Duration = Duration::from_secs(2);

/// Less than so many bytes of the log are decoded again before anybody notices.
const NEAR: u64 = 1 << 20;

/// Keeps what has to be decoded again short until it is dropped.
pub(super) struct StandbySnapshotLogger {
    _task: JoinSet<()>,
}

impl StandbySnapshotLogger {
    /// Begins to look after the slot of `source`, of which `committed` tells how far it was read. None where the server cannot be asked.
    pub(super) fn begin(source: Replication, version: u32, committed: watch::Receiver<u64>) -> Option<Self> {
        let mut task = JoinSet::new();
        (version >= SINCE).then(|| {
            task.spawn(Chain { source, committed }.hold());
            Self { _task: task }
        })
    }
}

struct Chain {
    source: Replication,
    committed: watch::Receiver<u64>,
}

impl Chain {
    async fn hold(mut self) {
        let mut dropped = 0;
        loop {
            BootClock.sleep_until(BootClock.now() + DROP_EVERY).await;
            match self.committed.wait_for(|committed| committed.saturating_sub(dropped) > NEAR).await {
                Ok(committed) => dropped = *committed,
                Err(_) => return,
            }
            match self.drop_one().await {
                Ok(true) => {}
                Ok(false) => return tracing::debug!("the server may not be asked to note which transactions are open"),
                // Whether the server is there is found out by those who read.
                Err(error) => tracing::debug!(%error, "what a takeover has to decode again was not made shorter"),
            }
        }
    }

    /// Whether the server may be asked at all.
    async fn drop_one(&self) -> Result<bool> {
        let cx = Cx::new(std::sync::Arc::new(BootClock)).within(DROP_EVERY);
        let mut wire = self.source.0.endpoint.connect_to_ask(&cx).await?;
        cx.run(self.ask(&mut wire)).await
    }

    async fn ask(&self, wire: &mut Wire) -> Result<bool> {
        let may = "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')";
        let may = wire.query(may).await.map_err(|failure| self.source.to_error(failure))?;
        if may.first().and_then(|row| row.first()) != Some(&Some("t".to_owned())) {
            return Ok(false);
        }
        // Where another stream of the same server has just asked, nothing is far any more.
        let slot = literal(&self.source.settings().slot);
        let note = format!(
            "SELECT pg_catalog.pg_log_standby_snapshot() FROM pg_catalog.pg_get_replication_slots() s
            WHERE s.slot_name = {slot} AND s.confirmed_flush_lsn - s.restart_lsn > {NEAR} AND NOT pg_catalog.pg_is_in_recovery()"
        );
        wire.query(&note).await.map_err(|failure| self.source.to_error(failure))?;
        Ok(true)
    }
}
