//! How late changes arrive while few are written: the same writes for the bare driver and for us, in turn.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use watchkeeper_core::{Change, Error, Result, ValueRef};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Client, Config, Doing};

use super::consumer::Errand;
use super::who::By;
use super::{Begin, median};
use crate::fleet::{Trouble, cx};

/// The collection.
pub(super) const LIVE: &str = "live";

/// The field that tells when a document was written.
pub(super) const AT: &str = "at_us";

/// Between two writes: a hundred in a second.
const PACE: Duration = Duration::from_millis(10);

/// So many arrive before anything is measured, so that all connections are made and the standbys stand by.
const WARM_UP: usize = 100;

/// So many are then measured, in each round.
const SAMPLES: usize = 200;

/// Microseconds on a clock that all processes of this machine share.
fn now_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// When a change was written.
pub(super) fn written_at(change: &Change) -> Option<i64> {
    match change.get(&["fullDocument", AT]) {
        Ok(Some(ValueRef::Int64(at))) => Some(at),
        _ => None,
    }
}

/// How late changes came.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(Mutex<Vec<f64>>);

impl Stopwatch {
    /// A change has arrived that was written at this time.
    pub(super) fn note(&self, written_at: Option<i64>) {
        let late = written_at.map_or(f64::NAN, |at| (now_us() - at) as f64 / 1_000.0);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(late);
    }

    pub(super) fn median_ms(&self) -> f64 {
        let late = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        median(late.iter().skip(WARM_UP).copied())
    }
}

/// How late they came to the bare driver and to us, in milliseconds, in each round.
pub(super) fn measure(url: &str, rounds: usize, folder: &Path, runtime: &Handle) -> Result<Vec<(f64, f64)>, Trouble> {
    runtime.block_on(prepare(url)).map_err(|error| error.to_string())?;
    let mut late = Vec::new();
    for round in 0..rounds {
        let one = |by: By| {
            let (url, group) = (url.to_owned(), format!("live-{round}"));
            let changes = (WARM_UP + SAMPLES) as u64;
            let folder = folder.to_owned();
            let errand = Errand { by, url: url.clone(), group, begin: Begin(0), changes, live: true, folder };
            let writing = runtime.spawn(async move { write(&url).await });
            let told = super::one(&errand, super::late);
            writing.abort();
            told
        };
        // Whoever is first has the emptier caches.
        let (bare, ours) = if round % 2 == 0 {
            let bare = one(By::RawBatches)?;
            (bare, one(By::Watchkeeper)?)
        } else {
            let ours = one(By::Watchkeeper)?;
            (one(By::RawBatches)?, ours)
        };
        late.push((bare, ours));
    }
    Ok(late)
}

async fn prepare(url: &str) -> Result<()> {
    let client = Client::open(&cx(), Config::new(url)?).await?;
    let created = client.database(&cx()).await?.create_collection(LIVE).await;
    created.map_err(|native| client.error(native, Doing::Writing))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_all_is_warm_does_not_count() {
        let stopwatch = Stopwatch::default();
        for _ in 0..WARM_UP {
            stopwatch.note(Some(now_us() - 60_000_000));
        }
        for _ in 0..SAMPLES {
            stopwatch.note(Some(now_us() - 2_000));
        }
        // Sixty seconds before and two milliseconds after: whatever the machine does, they can not be confused.
        assert!((2.0..30_000.0).contains(&stopwatch.median_ms()), "{}", stopwatch.median_ms());
        let untold = Stopwatch::default();
        assert!(untold.median_ms().is_nan(), "nothing was measured");
    }
}
