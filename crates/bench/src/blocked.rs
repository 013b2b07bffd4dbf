//! Memory of a stream whose sink or checkpoint store does not answer (G7).
//!
//! The source has 10 million changes and every batch is on the heap, so whatever is read and not let
//! go shows. The window is bounded by its bytes here: that of pieces is put out of the way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper_core::{Error, Result};
use watchkeeper_engine::stream::StreamSpec;

use crate::generator::{Bodies, Generator, ROWS};
use crate::group::{Group, runtime, stream};
use crate::meter::heap_in_use;
use crate::report::{Report, Table, bytes, millions};
use crate::sinks::{HangingCommits, NullSink, SinkBehaviour};
use crate::tally::Tally;

const CHANGES: u64 = 10_000_000;

/// What a stream may have on the heap besides its window of 32 MiB: the batch that passes its limit, the
/// one that waits for room, the one that is read ahead and the one being made (4 × 0.2 MiB); what vectors
/// of the batches in the window have in reserve, which the window does not count (5 %: 1.6 MiB); and the
/// row numbers of queued jobs, the instance with its stores, and the generator's own buffer (below 1 MiB
/// together).
const ALLOWANCE: usize = 4 << 20;

/// Batches that were read when a write never returns: one being written, two queued for the lane, one
/// waiting for the queue, one read ahead.
const BATCHES_AT_A_WRITE_MAX: u64 = 5;

/// Batches beyond those that fit the window: the one that passes its limit, one waiting for room, one
/// read ahead.
const BATCHES_BEYOND_WINDOW_MAX: u64 = 3;

/// So many windows have to be delivered while commits hang.
const WINDOWS_MIN: u64 = 10;

/// How long a measurement goes on when what it waits for does not happen. The bars then tell.
const GIVE_UP: Duration = Duration::from_secs(20);

/// Measures the three ways of not answering.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let write = runtime()?.block_on(blocked_sink(SinkBehaviour::NeverWrites))?;
    let flush = runtime()?.block_on(blocked_sink(SinkBehaviour::NeverFlushes))?;
    let commit = runtime()?.block_on(hanging_commits())?;

    let window = commit.window_bytes;
    let changes = millions(CHANGES);
    let title = format!("Memory of a blocked stream: window of {}, source of {changes} changes", bytes(window));
    let mut table = Table::new(&title, &["", "most heap", "batches read", "delivered meanwhile"]);
    table.row(write.row("write never returns"));
    table.row(flush.row("flush never returns"));
    table.row(commit.row("commit never returns"));
    table.print();

    for (what, seen) in [("write", &write), ("flush", &flush), ("commit", &commit)] {
        let limit = format!("below {} + {}", bytes(window), bytes(ALLOWANCE));
        let what = format!("heap while a {what} never returns");
        report.bar(&what, bytes(seen.peak), limit, seen.peak < window + ALLOWANCE);
    }
    let fit = (window / flush.batch_bytes.max(1)) as u64;
    let most = [("write", &write, BATCHES_AT_A_WRITE_MAX), ("flush", &flush, fit + BATCHES_BEYOND_WINDOW_MAX)];
    for (what, seen, most) in most {
        let what = format!("batches read while a {what} never returns");
        report.bar(&what, seen.batches.to_string(), format!("at most {most}"), seen.batches <= most);
    }
    let (windows, least) = (commit.windows_since(), format!("at least {WINDOWS_MIN}"));
    report.bar("windows delivered while a commit never returns", windows.to_string(), least, windows >= WINDOWS_MIN);
    Ok(())
}

/// What was seen.
struct Observation {
    /// The most heap in use by the stream.
    peak: usize,
    /// Batches that the source was asked for.
    batches: u64,
    /// Batches that were delivered after it hung.
    since: u64,
    /// Bytes of one batch.
    batch_bytes: usize,
    window_bytes: usize,
}

impl Observation {
    fn windows_since(&self) -> u64 {
        self.since * self.batch_bytes as u64 / self.window_bytes as u64
    }

    fn row(&self, name: &str) -> [String; 4] {
        let since = match self.since {
            0 => "–".to_owned(),
            batches => format!("{batches} ({} windows)", self.windows_since()),
        };
        [name.to_owned(), bytes(self.peak), self.batches.to_string(), since]
    }
}

/// A stream under observation.
struct Trial {
    /// Heap in use before it.
    before: usize,
    /// The most that was sampled.
    sampled: usize,
    source: Generator,
    delivered: Arc<Tally>,
    group: Group,
    began: Instant,
}

impl Trial {
    fn new() -> Self {
        let before = heap_in_use();
        let delivered = Arc::new(Tally::up_to(CHANGES));
        let source = Generator::new(CHANGES, Bodies::Owned);
        Self { before, sampled: 0, source, delivered, group: Group::new(), began: Instant::now() }
    }

    /// A stream whose window is bounded by its bytes.
    fn stream(&self, manner: SinkBehaviour) -> StreamSpec {
        let mut spec = stream("orders", self.source.clone(), NullSink::new(manner, &self.delivered));
        spec.settings.window_pieces = 4_096;
        spec
    }

    /// Waits for a moment and takes a sample; false when it is time to give up.
    async fn sample(&mut self, moment: Duration, window_bytes: usize) -> bool {
        tokio::time::sleep(moment).await;
        let heap = heap_in_use().saturating_sub(self.before);
        self.sampled = self.sampled.max(heap);
        // Far beyond the bar there is nothing more to learn, and memory to lose.
        self.began.elapsed() < GIVE_UP && heap < 2 * (window_bytes + ALLOWANCE)
    }

    fn seen(&self, since: u64, window_bytes: usize) -> Observation {
        let given = self.source.peaks().into_iter().max().unwrap_or_default().saturating_sub(self.before);
        let (batches, batch_bytes) = (self.source.batches(), self.source.batch_bytes());
        Observation { peak: self.sampled.max(given), batches, since, batch_bytes, window_bytes }
    }
}

/// A sink that never returns, until the heap stands still for a second.
async fn blocked_sink(manner: SinkBehaviour) -> Result<Observation> {
    const SAMPLES: usize = 50;
    const STILL: usize = 64 << 10;
    let mut trial = Trial::new();
    let spec = trial.stream(manner);
    let window_bytes = spec.settings.window_bytes;
    let running = trial.group.start("one", vec![spec]).await?;
    let mut samples = Vec::with_capacity(SAMPLES);
    while trial.sample(Duration::from_millis(20), window_bytes).await {
        samples.push(heap_in_use());
        let still = samples.iter().max().zip(samples.iter().min()).is_some_and(|(max, min)| max - min < STILL);
        if trial.source.batches() == 0 || !still {
            samples.clear();
        } else if samples.len() == SAMPLES {
            break;
        }
    }
    let seen = trial.seen(0, window_bytes);
    if seen.batches == 0 {
        return Err(Error::unavailable("nothing was read"));
    }
    // As a crash would end it: what hangs cannot be waited for.
    drop(running);
    Ok(seen)
}

/// Commits that never return, until enough was delivered since the first of them and it was tried again.
async fn hanging_commits() -> Result<Observation> {
    let mut trial = Trial::new();
    let attempts = Arc::new(Tally::up_to(1));
    let mut spec = trial.stream(SinkBehaviour::Takes);
    spec.checkpoints = Some(Arc::new(HangingCommits::new(trial.group.checkpoints.clone(), &attempts)));
    spec.settings.checkpoint.every = Duration::from_millis(20);
    spec.settings.timeouts.commit = Duration::from_millis(200);
    let window_bytes = spec.settings.window_bytes;
    let running = trial.group.start("one", vec![spec]).await?;
    attempts.reached().await?;
    let first = trial.delivered.count();
    let mut seen = trial.seen(0, window_bytes);
    while (seen.windows_since() < WINDOWS_MIN || attempts.count() < 2)
        && trial.sample(Duration::from_millis(5), window_bytes).await
    {
        seen = trial.seen((trial.delivered.count() - first) / ROWS, window_bytes);
    }
    drop(running);
    Ok(seen)
}
