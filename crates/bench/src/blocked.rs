//! Memory of a stream whose sink or checkpoint store does not answer (G7).
//!
//! The source has 10 million changes and every batch is on the heap, so whatever is read and not let
//! go shows. The window is bounded by its bytes here: that of pieces is put out of the way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper_core::{Error, Result};
use watchkeeper_engine::instance::Running;
use watchkeeper_engine::stream::StreamSpec;

use crate::generator::{Bodies, Generator, ROWS};
use crate::group::{Group, runtime, stream};
use crate::meter::heap_in_use;
use crate::report::{Report, Table, bytes, millions};
use crate::sinks::{HangingCommits, Manner, NullSink};
use crate::tally::{PATIENCE, Tally};

const CHANGES: u64 = 10_000_000;

/// What a stream may have on the heap besides its window, whatever the window: the batch that passes
/// its limit, the one that waits for room, the one that is read ahead and the one that is made (4 × 0.2
/// MiB); what vectors of the batches in the window have in reserve, which the window does not count
/// (5 %, 1.6 MiB of 32 MiB); the row numbers of queued jobs; and the instance itself with its stores and
/// the generator's own buffer (below 0.5 MiB).
const ALLOWANCE: usize = 4 << 20;

/// Batches between the source and a write that never returns: one being written, two queued for the
/// lane, one waiting for the queue, one read ahead, one just read.
const BATCHES_AT_A_BLOCKED_WRITE_MAX: u64 = 6;

/// Batches beyond a full window: the one that passes its limit, one waiting for room, one read ahead,
/// one just read.
const BATCHES_BEYOND_WINDOW_MAX: u64 = 4;

/// So many windows have to be delivered while commits hang.
const WINDOWS_MIN: u64 = 10;

/// What was seen.
struct Seen {
    /// The most heap in use by the stream.
    peak: usize,
    /// Batches that the source was asked for.
    batches: u64,
    /// Bytes of one batch.
    batch_bytes: usize,
    window_bytes: usize,
}

impl Seen {
    fn windows(&self) -> u64 {
        self.batches * self.batch_bytes as u64 / self.window_bytes as u64
    }

    fn row(&self, name: &str) -> [String; 4] {
        [name.to_owned(), bytes(self.peak), self.batches.to_string(), format!("{} windows", self.windows())]
    }
}

/// Measures the three ways of not answering.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let writes = runtime()?.block_on(blocked_sink(Manner::NeverWrites))?;
    let flushes = runtime()?.block_on(blocked_sink(Manner::NeverFlushes))?;
    let commits = runtime()?.block_on(hanging_commits())?;

    let window = commits.window_bytes;
    let title =
        format!("Memory of a blocked stream: window of {}, source of {} changes", bytes(window), millions(CHANGES));
    let mut table = Table::new(&title, &["", "most heap", "batches read", "read in all"]);
    table.row(writes.row("write never returns"));
    table.row(flushes.row("flush never returns"));
    table.row(commits.row("commit never returns"));
    table.print();

    let limit = window + ALLOWANCE;
    for (what, seen) in [("write", &writes), ("flush", &flushes), ("commit", &commits)] {
        let what = format!("heap while a {what} never returns");
        let bar = format!("below {} + {}", bytes(window), bytes(ALLOWANCE));
        report.bar(&what, bytes(seen.peak), bar, seen.peak < limit);
    }
    let most = BATCHES_AT_A_BLOCKED_WRITE_MAX;
    let kept = writes.batches <= most;
    report.bar("batches read while a write never returns", writes.batches.to_string(), format!("at most {most}"), kept);
    let most = (window / flushes.batch_bytes) as u64 + BATCHES_BEYOND_WINDOW_MAX;
    let kept = flushes.batches <= most;
    report.bar(
        "batches read while a flush never returns",
        flushes.batches.to_string(),
        format!("at most {most}"),
        kept,
    );
    let windows = commits.windows();
    let bar = format!("at least {WINDOWS_MIN}");
    report.bar("windows delivered while a commit never returns", windows.to_string(), bar, windows >= WINDOWS_MIN);
    Ok(())
}

/// A stream whose window is bounded by its bytes.
fn bounded(source: &Generator, sink: NullSink) -> StreamSpec {
    let mut spec = stream("orders", source.clone(), sink);
    spec.settings.window_pieces = 4_096;
    spec
}

/// A sink that never returns, until the heap stands still.
async fn blocked_sink(manner: Manner) -> Result<Seen> {
    let before = heap_in_use();
    let source = Generator::new(CHANGES, Bodies::Owned);
    let delivered = Arc::new(Tally::up_to(CHANGES));
    let group = Group::new();
    let spec = bounded(&source, NullSink::new(manner, &delivered));
    let window_bytes = spec.settings.window_bytes;
    let running = group.start("one", vec![spec]).await?;
    let sampled = until_still(&source).await?;
    Ok(end(running, before, sampled, &source, window_bytes))
}

/// Samples the heap until it has not moved for a second after the first batch; the answer is the most
/// that was sampled.
async fn until_still(source: &Generator) -> Result<usize> {
    const SAMPLES: usize = 50;
    const STILL: usize = 64 << 10;
    let began = Instant::now();
    let mut samples = Vec::new();
    while began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        samples.push(heap_in_use());
        let last = &samples[samples.len().saturating_sub(SAMPLES)..];
        let spread = last.iter().max().zip(last.iter().min()).map_or(0, |(max, min)| max - min);
        if source.batches() > 0 && last.len() == SAMPLES && spread < STILL {
            return Ok(samples.into_iter().max().unwrap_or_default());
        }
    }
    Err(Error::unavailable(format!("the heap did not stand still within {PATIENCE:?}")))
}

/// Commits that never return, from the first of them on, until enough was delivered and it was tried
/// again at least once.
async fn hanging_commits() -> Result<Seen> {
    let before = heap_in_use();
    let source = Generator::new(CHANGES, Bodies::Owned);
    let delivered = Arc::new(Tally::up_to(CHANGES));
    let attempts = Arc::new(Tally::up_to(1));
    let group = Group::new();
    let mut spec = bounded(&source, NullSink::new(Manner::Takes, &delivered));
    spec.checkpoints = Some(Arc::new(HangingCommits::new(group.checkpoints.clone(), &attempts)));
    spec.settings.checkpoint.every = Duration::from_millis(20);
    spec.settings.timeouts.commit = Duration::from_millis(200);
    let window_bytes = spec.settings.window_bytes;
    let running = group.start("one", vec![spec]).await?;
    attempts.reached().await?;
    let first = delivered.count() / ROWS;
    let mut sampled = 0;
    let began = Instant::now();
    let enough = |batches: u64| batches * source.batch_bytes() as u64 >= WINDOWS_MIN * window_bytes as u64;
    while !(enough(delivered.count() / ROWS - first) && attempts.count() > 1) {
        if began.elapsed() > PATIENCE {
            return Err(Error::unavailable("delivery stopped while commits hung"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        sampled = sampled.max(heap_in_use());
    }
    let mut seen = end(running, before, sampled, &source, window_bytes);
    seen.batches = delivered.count() / ROWS - first;
    Ok(seen)
}

/// Ends the instance as a crash would: nothing that hangs can be waited for.
fn end(running: Running, before: usize, sampled: usize, source: &Generator, window_bytes: usize) -> Seen {
    let (batches, batch_bytes) = (source.batches(), source.batch_bytes());
    let peak = source.peaks().into_iter().fold(sampled, usize::max).saturating_sub(before);
    drop(running);
    Seen { peak, batches, batch_bytes, window_bytes }
}
