use futures_util::future::join;
use watchkeeper_core::{ErrorKind, Grade, SinkWriter};

use super::bench::{Change, SinkBench, View};
use crate::laws::lawful::{Law, ensure};

/// Writes and flushes as a holder that was replaced does. Whatever is answered, it must do no harm;
/// if it is an error, it must be `Fenced`, so that the caller stops.
async fn write_as_the_replaced(bench: &dyn SinkBench, writer: &dyn SinkWriter, changes: &[Change]) -> Law {
    let batch = bench.batch(changes);
    let rows: Vec<u32> = (0..).take(changes.len()).collect();
    let written = writer.write(bench.cx(), 0, &batch, &rows).await;
    let flushed = writer.flush(bench.cx()).await;
    for error in written.err().into_iter().chain(flushed.err()) {
        ensure!(error.kind() == ErrorKind::Fenced, "a stale write failed, but not as fenced: {error}");
    }
    Ok(())
}

/// K1: from the opening under a newer epoch on, a fenced target refuses the older ones.
pub async fn k1_newer_opening_refuses_older_epochs(bench: &dyn SinkBench) -> Law {
    if bench.sink().profile().grade != Grade::Fenced {
        return Ok(());
    }
    let Some(old) = bench.open(1).await? else { return Ok(()) };
    bench.write(&*old, 0, &[Change(1, 1)]).await?;
    bench.flush(&*old).await?;
    let Some(new) = bench.open(2).await? else { return Ok(()) };
    write_as_the_replaced(bench, &*old, &[Change(1, 2)]).await?;
    bench.ensure_versions(1, &[1]).await?;
    bench.write(&*new, 0, &[Change(1, 3)]).await?;
    bench.flush(&*new).await?;
    bench.ensure_versions(1, &[1, 3]).await
}

/// K2: rows of one lane take effect in the order of the calls and of the rows.
pub async fn k2_lane_keeps_the_order_of_its_calls(bench: &dyn SinkBench) -> Law {
    let Some(writer) = bench.open(1).await? else { return Ok(()) };
    for first in [1, 4, 7] {
        let changes = [Change(1, first), Change(2, first + 1), Change(1, first + 2)];
        bench.write(&*writer, 0, &changes).await?;
    }
    bench.flush(&*writer).await?;
    bench.ensure_versions(1, &[1, 3, 4, 6, 7, 9]).await?;
    bench.ensure_versions(2, &[2, 5, 8]).await
}

/// K2: lanes run beside each other, each in its own order.
pub async fn k2_lanes_run_beside_each_other(bench: &dyn SinkBench) -> Law {
    let Some(writer) = bench.open(1).await? else { return Ok(()) };
    let one = async {
        bench.write(&*writer, 0, &[Change(1, 1), Change(1, 3)]).await?;
        bench.write(&*writer, 0, &[Change(1, 5)]).await
    };
    let other = async {
        bench.write(&*writer, 1, &[Change(2, 2)]).await?;
        bench.write(&*writer, 1, &[Change(2, 4), Change(2, 6)]).await
    };
    let (one, other) = join(one, other).await;
    one?;
    other?;
    bench.flush(&*writer).await?;
    bench.ensure_versions(1, &[1, 3, 5]).await?;
    bench.ensure_versions(2, &[2, 4, 6]).await
}

/// K2: only the rows that a call names take effect.
pub async fn k2_only_the_named_rows_take_effect(bench: &dyn SinkBench) -> Law {
    let Some(writer) = bench.open(1).await? else { return Ok(()) };
    let batch = bench.batch(&[Change(1, 1), Change(2, 2), Change(1, 3), Change(3, 4), Change(1, 5)]);
    bench.write_rows(&*writer, 0, &batch, &[0, 2, 4]).await?;
    bench.write_rows(&*writer, 1, &batch, &[3]).await?;
    bench.flush(&*writer).await?;
    bench.ensure_versions(1, &[1, 3, 5]).await?;
    bench.ensure_versions(2, &[]).await?;
    bench.ensure_versions(3, &[4]).await
}

/// K2: a change without a key is taken, and keeps its place.
pub async fn k2_barrier_keeps_its_place(bench: &dyn SinkBench) -> Law {
    let Some(writer) = bench.open(1).await? else { return Ok(()) };
    for change in [Change(1, 1), Change(0, 2), Change(1, 3)] {
        bench.write(&*writer, 0, &[change]).await?;
        bench.flush(&*writer).await?;
    }
    let times: Vec<_> = bench.delivered().await?.iter().map(|effect| effect.version.time).collect();
    let is_repeated = bench.view() == View::History && times.contains(&2);
    ensure!(!is_repeated || times == [1, 2, 3], "a barrier between two changes took effect as {times:?}");
    ensure!(times.contains(&3), "what came after a barrier did not take effect: {times:?}");
    Ok(())
}

/// K3: what is answered as done is durable after the next flush, even if the writer then dies.
pub async fn k3_done_is_durable_after_a_flush(bench: &dyn SinkBench) -> Law {
    let Some(writer) = bench.open(1).await? else { return Ok(()) };
    bench.write(&*writer, 0, &[Change(1, 1), Change(1, 2)]).await?;
    bench.write(&*writer, 1, &[Change(2, 3)]).await?;
    bench.flush(&*writer).await?;
    drop(writer);
    bench.ensure_versions(1, &[1, 2]).await?;
    bench.ensure_versions(2, &[3]).await
}

/// K3: a flush runs beside later writes, and loses none of them.
pub async fn k3_flush_runs_beside_later_writes(bench: &dyn SinkBench) -> Law {
    let Some(writer) = bench.open(1).await? else { return Ok(()) };
    for n in [1, 4, 7] {
        bench.write(&*writer, 0, &[Change(1, n)]).await?;
        let writes = async {
            bench.write(&*writer, 0, &[Change(1, n + 1)]).await?;
            bench.write(&*writer, 1, &[Change(2, n + 2)]).await
        };
        let (flushed, written) = join(bench.flush(&*writer), writes).await;
        flushed?;
        written?;
    }
    bench.flush(&*writer).await?;
    bench.ensure_versions(1, &[1, 2, 4, 5, 7, 8]).await?;
    bench.ensure_versions(2, &[3, 6, 9]).await
}

/// K3: closing after a flush loses nothing, and another opening goes on.
pub async fn k3_nothing_is_lost_by_closing(bench: &dyn SinkBench) -> Law {
    for epoch in [1, 2] {
        let Some(writer) = bench.open(epoch).await? else { return Ok(()) };
        bench.write(&*writer, 0, &[Change(1, epoch)]).await?;
        bench.flush(&*writer).await?;
        writer.close(bench.cx()).await?;
    }
    bench.ensure_versions(1, &[1, 2]).await
}

/// K4: with epochs, what was accepted from an older one but not yet flushed is without effect, too.
pub async fn k4_stale_epoch_is_without_effect(bench: &dyn SinkBench) -> Law {
    if bench.sink().profile().grade != Grade::Fenced {
        return Ok(());
    }
    let Some(old) = bench.open(1).await? else { return Ok(()) };
    let Some(new) = bench.open(2).await? else { return Ok(()) };
    bench.write(&*new, 0, &[Change(1, 5)]).await?;
    bench.flush(&*new).await?;
    // A higher version, so that only the epoch can refuse it; and a key that nobody wrote.
    write_as_the_replaced(bench, &*old, &[Change(1, 6), Change(2, 7)]).await?;
    bench.ensure_versions(1, &[5]).await?;
    bench.ensure_versions(2, &[]).await
}

/// K4: with versions, an older one never overwrites a newer one, whoever writes it.
pub async fn k4_stale_version_is_without_effect(bench: &dyn SinkBench) -> Law {
    if bench.sink().profile().grade != Grade::Versioned {
        return Ok(());
    }
    let Some(old) = bench.open(1).await? else { return Ok(()) };
    let Some(new) = bench.open(2).await? else { return Ok(()) };
    bench.write(&*new, 0, &[Change(1, 5), Change(2, 6)]).await?;
    bench.flush(&*new).await?;
    write_as_the_replaced(bench, &*old, &[Change(1, 3), Change(2, 4)]).await?;
    bench.write(&*new, 0, &[Change(1, 2)]).await?;
    bench.flush(&*new).await?;
    bench.ensure_versions(1, &[5]).await?;
    bench.ensure_versions(2, &[6]).await?;
    bench.write(&*new, 0, &[Change(1, 7)]).await?;
    bench.flush(&*new).await?;
    bench.ensure_versions(1, &[5, 7]).await
}

/// K4: at an idempotent or versioned target a repeated write has no further effect.
pub async fn k4_repeated_write_has_no_further_effect(bench: &dyn SinkBench) -> Law {
    if !matches!(bench.sink().profile().grade, Grade::Idempotent | Grade::Versioned) {
        return Ok(());
    }
    for epoch in [1, 2] {
        let Some(writer) = bench.open(epoch).await? else { return Ok(()) };
        for _ in 0..2 {
            bench.write(&*writer, 0, &[Change(1, 1), Change(1, 2)]).await?;
            bench.flush(&*writer).await?;
        }
    }
    bench.ensure_versions(1, &[1, 2]).await
}

/// The profile says what the writer is: a transactional one names its store, another has none.
pub async fn profile_fits_the_writer(bench: &dyn SinkBench) -> Law {
    let profile = bench.sink().profile();
    let transactional = bench.open(1).await?.is_none();
    ensure!(!transactional || profile.store.is_some(), "a transactional sink names no store");
    ensure!(!transactional || profile.grade == Grade::Transactional, "its grade is {:?}", profile.grade);
    ensure!(profile.rows_max > 0, "at most {} rows can be written", profile.rows_max);
    Ok(())
}
