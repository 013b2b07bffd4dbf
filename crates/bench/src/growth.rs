//! A long run: the heap in use at its end is not above that of its beginning.

use std::sync::Arc;

use watchkeeper_core::Result;

use crate::args::Options;
use crate::generator::{Bodies, Generator};
use crate::group::{Group, runtime, stream};
use crate::meter::{Meter, heap_in_use};
use crate::report::{Report, Table, bytes, millions};
use crate::sinks::{NullSink, SinkBehaviour};
use crate::tally::Tally;

/// The most heap in the last third of a run, as a multiple of the most in its first.
const GROWTH_MAX: f64 = 1.2;

/// Runs. What grows does so in each of them; a flusher that had to wait for a core does so in one.
const RUNS: usize = 3;

/// Measures long runs through a sink that lets the others go first at every batch.
pub(crate) fn measure(options: Options, report: &mut Report) -> Result<()> {
    let changes = options.changes_long;
    let title = format!("Heap over {} changes: most in use in each third", millions(changes));
    let mut table = Table::new(&title, &["", "first", "second", "last", "last over first", "million changes/s"]);
    let mut least = f64::INFINITY;
    for number in 1..=RUNS {
        let (peaks, seconds) = runtime()?.block_on(run(changes))?;
        let growth = peaks[2] as f64 / peaks[0].max(1) as f64;
        least = least.min(growth);
        let [first, second, last] = peaks.map(bytes);
        let rate = format!("{:.1}", changes as f64 / seconds / 1e6);
        table.row([format!("run {number}"), first, second, last, format!("{growth:.2}"), rate]);
    }
    table.print();
    let what = format!("heap, last third over first, least of {RUNS} runs");
    report.bar(&what, format!("{least:.2}"), format!("at most {GROWTH_MAX}"), least <= GROWTH_MAX);
    Ok(())
}

async fn run(changes: u64) -> Result<([usize; 3], f64)> {
    let before = heap_in_use();
    let source = Generator::new(changes, Bodies::Owned);
    let delivered = Arc::new(Tally::up_to(changes));
    let group = Group::new();
    let spec = stream("orders", source.clone(), NullSink::new(SinkBehaviour::Yields, &delivered));
    let meter = Meter::start();
    let mut running = group.start("one", vec![spec]).await?;
    delivered.reached().await?;
    let seconds = meter.wall().as_secs_f64();
    running.shutdown();
    running.join().await?;
    Ok((source.peaks().map(|peak| peak.saturating_sub(before)), seconds))
}
