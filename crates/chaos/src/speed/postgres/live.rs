//! How late changes arrive while few are written, from each source in turn.

use std::path::Path;

use watchkeeper_core::Result;

use super::{Logs, connect, drop_slot, is_streamed, slot, unavailable};
use crate::cluster::Trouble;
use crate::speed::consumer::Consumer;
use crate::speed::live::{AT, CHANGES, LIVE, PACE, compare, now_us};
use crate::speed::task::BenchTask;
use crate::speed::turns;

/// How late they came by replication and by the change log, in milliseconds, in each round.
pub(super) fn measure(site: &Logs, rounds: usize, folder: &Path) -> Result<Vec<(f64, f64)>, Trouble> {
    compare([Consumer::Replication, Consumer::ChangeLog], rounds, |by, round| {
        let (url, group, folder) = (site.url(by), format!("live-{round}"), folder.to_owned());
        let bench_task = BenchTask { by, url: url.clone(), group, mark: 0, changes: CHANGES, live: true, folder };
        let writing = site.runtime.spawn(async move { write(&url).await });
        let measured = turns::one(&bench_task, site, turns::late);
        writing.abort();
        if is_streamed(by) {
            site.wait(drop_slot(&bench_task.url, &slot(&bench_task.group)))?;
        }
        measured
    })
}

/// Writes at an even pace until it is ended.
async fn write(url: &str) -> Result<()> {
    let client = connect(url).await?;
    let insert = client.prepare(&format!("INSERT INTO {LIVE} ({AT}, note) VALUES ($1, repeat('x', 200))")).await;
    let insert = insert.map_err(unavailable)?;
    let mut pace = tokio::time::interval(PACE);
    loop {
        pace.tick().await;
        client.execute(&insert, &[&now_us()]).await.map_err(unavailable)?;
    }
}
