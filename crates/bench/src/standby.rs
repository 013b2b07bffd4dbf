//! Memory of a standby, per stream that it stands by for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper_core::{Error, Result};
use watchkeeper_engine::instance::Running;
use watchkeeper_engine::listener::{ListenerState, StreamStatus};
use watchkeeper_engine::stream::StreamSpec;

use crate::args::Options;
use crate::generator::{Bodies, Generator};
use crate::group::{Group, runtime, stream};
use crate::meter::heap_in_use;
use crate::report::{Report, Table, bytes};
use crate::sinks::{NullSink, SinkBehaviour};
use crate::tally::{PATIENCE, Tally};

/// Bytes of heap per stream of a standby.
const PER_STREAM_MAX: usize = 64 << 10;

/// Measures a holder and a standby of the same streams.
pub(crate) fn measure(options: Options, report: &mut Report) -> Result<()> {
    let streams = options.streams;
    let runtime = runtime()?;
    let (holder, standby) = runtime.block_on(holder_and_standby(streams))?;
    let mut table = Table::new(&format!("Memory of {streams} idle streams"), &["", "heap", "per stream"]);
    table.row(["the holder".to_owned(), bytes(holder), bytes(holder / streams)]);
    table.row(["a standby".to_owned(), bytes(standby), bytes(standby / streams)]);
    table.print();
    let per_stream = standby / streams;
    let limit = format!("below {}", bytes(PER_STREAM_MAX));
    report.bar("heap of a standby, per stream", bytes(per_stream), limit, per_stream < PER_STREAM_MAX);
    Ok(())
}

/// Heap in use by a holder, and by a standby beside it.
async fn holder_and_standby(streams: usize) -> Result<(usize, usize)> {
    let group = Group::new();
    let before = usual_heap().await;
    let holder = group.start("holder", idle_streams(streams)).await?;
    until_all(&holder, |status| status.state == ListenerState::Running).await?;
    let with_holder = usual_heap().await;
    let standby = group.start("standby", idle_streams(streams)).await?;
    until_all(&standby, |status| status.holder.is_some()).await?;
    let with_both = usual_heap().await;
    drop((holder, standby));
    Ok((with_holder.saturating_sub(before), with_both.saturating_sub(with_holder)))
}

fn idle_streams(streams: usize) -> Vec<StreamSpec> {
    let source = Generator::new(0, Bodies::Shared);
    let sink = NullSink::new(SinkBehaviour::Takes, &Arc::new(Tally::up_to(u64::MAX)));
    (0..streams).map(|number| stream(&format!("s{number:04}"), source.clone(), sink.clone())).collect()
}

async fn until_all(running: &Running, wanted: impl Fn(&StreamStatus) -> bool) -> Result<()> {
    let began = Instant::now();
    loop {
        let mut missing =
            running.posts().iter().map(|post| post.status().get().clone()).filter(|status| !wanted(status));
        let Some(first) = missing.next() else { return Ok(()) };
        if began.elapsed() > PATIENCE {
            let (number, of) = (missing.count() + 1, running.posts().len());
            return Err(Error::unavailable(format!("{number} of {of} streams did not come up; the first: {first:?}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The median of samples over more than one interval of renewals and of reads that wait for changes:
/// both allocate for a moment.
async fn usual_heap() -> usize {
    let mut samples = Vec::new();
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        samples.push(heap_in_use());
    }
    samples.sort_unstable();
    samples[samples.len() / 2]
}
