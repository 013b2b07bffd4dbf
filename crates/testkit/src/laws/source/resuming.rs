use watchkeeper_core::{ErrorKind, StartAt};

use super::bench::{ReadRow, SourceBench, ids, rows_of};
use crate::laws::lawful::{Broken, Law, ensure};

/// S1: after a position exactly the later changes are read.
pub async fn s1_after_a_position_come_exactly_the_later_ones(bench: &dyn SourceBench) -> Law {
    let mut stream = bench.open(StartAt::Now).await?;
    bench.make_nine().await?;
    let first = bench.read(&mut *stream, bench.limits(100), 9).await?;
    let Some(end) = first.last().map(|batch| batch.end.clone()) else { return Err(Broken::new("nothing was read")) };
    bench.insert(4).await?;
    bench.delete(4).await?;
    let later = bench.read_after(&end, 2).await?;
    let earlier: Vec<_> = first.iter().flat_map(rows_of).map(|row| row.id).collect();
    let again = later.iter().find(|row| earlier.contains(&row.id));
    ensure!(again.is_none(), "a change from before the position was read: {again:?}");
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S2: ids are unique, and the same whatever the batches.
pub async fn s2_ids_are_unique_and_the_same_whatever_the_batches(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    let all = bench.read_after(&beginning, 9).await?;
    let mut unique = ids(&all);
    unique.sort_unstable();
    unique.dedup();
    ensure!(unique.len() == 9, "nine changes have the ids {:?}", ids(&all));
    for limit in [1, 2, 4] {
        let mut stream = bench.open(StartAt::After(beginning.clone())).await?;
        let batches = bench.read(&mut *stream, bench.limits(limit), 9).await?;
        let rows: Vec<_> = batches.iter().flat_map(rows_of).collect();
        ensure_same(&rows, &all)?;
        stream.close(bench.cx()).await?;
    }
    Ok(())
}

fn ensure_same(again: &[ReadRow], once: &[ReadRow]) -> Law {
    ensure!(ids(again) == ids(once), "once {:?} was read, then {:?}", ids(once), ids(again));
    let same = again.iter().zip(once).all(|(again, once)| {
        (again.operation, &again.key, again.half, again.version) == (once.operation, &once.key, once.half, once.version)
    });
    ensure!(same, "the same changes read differently: once {once:?}, then {again:?}");
    Ok(())
}

/// S4: the position of every committable row is safe to restart from.
pub async fn s4_every_committable_row_is_safe_to_restart_from(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    bench.insert(5).await?;
    let halves = if bench.update_key(5, 6).await? { 2 } else { 0 };
    let count = 10 + halves;
    let rows = bench.read_after(&beginning, count).await?;
    for (n, row) in rows.iter().enumerate().filter(|(_, row)| row.committable) {
        let rest = bench.read_after(&row.position, count - n - 1).await?;
        ensure_same(&rest, &rows[n + 1..])?;
    }
    ensure!(rows.iter().filter(|row| row.committable).count() >= 10, "too few rows are committable: {rows:?}");
    Ok(())
}

/// S4: the end of every batch is safe to restart from.
pub async fn s4_end_of_every_batch_is_safe_to_restart_from(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.insert(7).await?;
    let halves = if bench.update_key(7, 8).await? { 2 } else { 0 };
    bench.make_nine().await?;
    let count = 10 + halves;
    let all = bench.read_after(&beginning, count).await?;
    let mut stream = bench.open(StartAt::After(beginning)).await?;
    let mut passed = 0;
    for batch in bench.read(&mut *stream, bench.limits(2), count).await? {
        passed += batch.len();
        let rest = bench.read_after(&batch.end, count - passed).await?;
        ensure_same(&rest, &all[passed..])?;
    }
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S5: the end of an empty batch is safe to restart from.
pub async fn s5_end_of_an_empty_batch_is_safe_to_restart_from(bench: &dyn SourceBench) -> Law {
    let mut stream = bench.open(StartAt::Now).await?;
    bench.insert(1).await?;
    bench.read_rows(&mut *stream, 1).await?;
    let silence = stream.next_batch(bench.cx(), bench.limits(100)).await?;
    ensure!(silence.is_empty(), "nothing happened, yet {} changes were read", silence.len());
    bench.update(1).await?;
    bench.delete(1).await?;
    let here = bench.read_rows(&mut *stream, 2).await?;
    let there = bench.read_after(&silence.end, 2).await?;
    ensure_same(&there, &here)?;
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S6: what has not been acknowledged is still there for another opening.
pub async fn s6_unacknowledged_changes_are_still_there(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    let mut stream = bench.open(StartAt::After(beginning.clone())).await?;
    let once = bench.read_rows(&mut *stream, 9).await?;
    // Reading on is no acknowledgement, and neither is closing.
    stream.next_batch(bench.cx(), bench.limits(100)).await?;
    let again = bench.read_after(&beginning, 9).await?;
    ensure_same(&again, &once)?;
    stream.close(bench.cx()).await?;
    let again = bench.read_after(&beginning, 9).await?;
    ensure_same(&again, &once)
}

/// S6: acknowledging a position spares everything after it.
pub async fn s6_acknowledging_spares_what_comes_after(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    let mut stream = bench.open(StartAt::After(beginning)).await?;
    let rows = bench.read_rows(&mut *stream, 9).await?;
    for n in [0, 4, 5] {
        stream.acknowledge(bench.cx(), &rows[n].position).await?;
        let rest = bench.read_after(&rows[n].position, 8 - n).await?;
        ensure_same(&rest, &rows[n + 1..])?;
    }
    stream.window(bench.cx()).await?;
    stream.close(bench.cx()).await?;
    Ok(())
}

/// When the history after a position is gone, that is told before anything is read.
pub async fn lost_history_is_reported(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    let pedigree = bench.source().identity(bench.cx()).await?;
    bench.make_nine().await?;
    if !bench.lose_history().await? {
        return Ok(());
    }
    bench.insert(4).await?;
    let verified = bench.source().verify(bench.cx(), &beginning, &pedigree).await;
    let opened = bench.open(StartAt::After(beginning)).await.map(drop);
    let kind = [verified, opened].into_iter().filter_map(Result::err).map(|error| error.kind()).next();
    ensure!(kind == Some(ErrorKind::PositionLost), "lost history was answered with {kind:?}");
    Ok(())
}
