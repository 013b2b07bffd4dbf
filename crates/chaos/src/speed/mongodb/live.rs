//! How late changes arrive while few are written: the same writes for the bare driver and for us, in turn.

use std::path::Path;

use tokio::runtime::Handle;
use watchkeeper_core::{Error, Result};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{CallPurpose, Client, Config};

use super::Oplog;
use crate::cluster::{Trouble, cx};
use crate::speed::consumer::Consumer;
use crate::speed::live::{AT, CHANGES, LIVE, PACE, compare, now_us};
use crate::speed::task::BenchTask;
use crate::speed::turns;

/// How late they came to the bare driver and to us, in milliseconds, in each round.
pub(super) fn measure(
    site: &Oplog,
    rounds: usize,
    folder: &Path,
    runtime: &Handle,
) -> Result<Vec<(f64, f64)>, Trouble> {
    let url = site.set.url("speed");
    runtime.block_on(prepare(&url)).map_err(|error| error.to_string())?;
    compare([Consumer::RawBatches, Consumer::Watchkeeper], rounds, |by, round| {
        let (url, group, folder) = (url.clone(), format!("live-{round}"), folder.to_owned());
        let bench_task = BenchTask { by, url: url.clone(), group, mark: 0, changes: CHANGES, live: true, folder };
        let writing = runtime.spawn(async move { write(&url).await });
        let measured = turns::one(&bench_task, site, turns::late);
        writing.abort();
        measured
    })
}

async fn prepare(url: &str) -> Result<()> {
    let client = Client::open(&cx(), Config::new(url)?).await?;
    let created = client.database(&cx()).await?.create_collection(LIVE).await;
    created.map_err(|native| client.error(native, CallPurpose::Writing))
}

/// Writes at an even pace until it is ended.
async fn write(url: &str) -> Result<()> {
    let client = Client::open(&cx(), Config::new(url)?).await?;
    let live = client.database(&cx()).await?.collection::<Document>(LIVE);
    let mut pace = tokio::time::interval(PACE);
    loop {
        pace.tick().await;
        let document = doc! { AT: now_us(), "note": "x".repeat(200) };
        let written = live.insert_one(document).await;
        written.map_err(|native| Error::unavailable("a document was not written").caused_by(native))?;
    }
}
