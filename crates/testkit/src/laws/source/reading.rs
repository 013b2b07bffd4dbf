use std::time::Duration;

use futures_util::FutureExt;
use watchkeeper_core::{Limits, Operation, StartAt};

use super::bench::{ReadRow, SourceBench, ids, rows_of};
use crate::laws::lawful::{Broken, Law, TRIES, ensure};

/// S1: changes are read in the order in which they were made, with the keys they were made to.
pub async fn s1_changes_are_read_in_order(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    let rows = bench.read_after(&beginning, 9).await?;
    for (n, row) in rows.iter().enumerate() {
        let right = match n / 3 {
            0 => row.operation == Operation::Insert,
            1 => matches!(row.operation, Operation::Update | Operation::Replace),
            _ => row.operation == Operation::Delete,
        };
        ensure!(right, "change {n} is told as {}", row.operation);
        ensure!(row.key.is_some() && row.key == rows[n % 3].key, "change {n} is told with another key: {rows:?}");
        ensure!(row.committable, "change {n} is whole, yet not committable");
    }
    let keys = [&rows[0].key, &rows[1].key, &rows[2].key];
    ensure!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "three keys are told as {keys:?}");
    for pair in rows.windows(4) {
        let (earlier, later) = (pair[0].version, pair[3].version);
        ensure!(earlier < later, "the versions of one key do not grow: {earlier:?}, then {later:?}");
    }
    Ok(())
}

/// S1: what happened before an opening from now on is not read.
pub async fn s1_now_begins_with_now(bench: &dyn SourceBench) -> Law {
    bench.insert(1).await?;
    let mut stream = bench.open(StartAt::Now).await?;
    bench.insert(2).await?;
    bench.update(1).await?;
    let rows = bench.read_rows(&mut *stream, 2).await?;
    let operations: Vec<_> = rows.iter().map(|row| row.operation).collect();
    ensure!(operations[0] == Operation::Insert && operations[1] != Operation::Insert, "read was {operations:?}");
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S3: no batch has more rows than asked for.
pub async fn s3_rows_are_limited(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    for limit in [1, 2, 4] {
        let mut stream = bench.open(StartAt::After(beginning.clone())).await?;
        for batch in bench.read(&mut *stream, bench.limits(limit), 9).await? {
            ensure!(batch.len() <= limit, "asked for {limit} rows, got {}", batch.len());
        }
        stream.close(bench.cx()).await?;
    }
    Ok(())
}

/// S3: a batch stops after the bytes asked for; one change may be larger.
pub async fn s3_bytes_are_limited(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    let mut stream = bench.open(StartAt::After(beginning)).await?;
    let limits = Limits { bytes: 1, ..bench.limits(100) };
    for batch in bench.read(&mut *stream, limits, 9).await? {
        ensure!(batch.len() <= 1, "asked to stop after one byte, got {} rows", batch.len());
    }
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S3: the halves of a key update come in one batch, and only the second is committable.
pub async fn s3_halves_of_a_key_update_stay_together(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.insert(1).await?;
    if !bench.update_key(1, 2).await? {
        return Ok(());
    }
    bench.delete(2).await?;
    let mut stream = bench.open(StartAt::After(beginning)).await?;
    let batches = bench.read(&mut *stream, bench.limits(1), 4).await?;
    let sizes: Vec<_> = batches.iter().map(watchkeeper_core::Batch::len).filter(|len| *len > 0).collect();
    ensure!(sizes == [1, 2, 1], "the batches have {sizes:?} rows instead of one change each");
    let rows: Vec<_> = batches.iter().flat_map(rows_of).collect();
    let found: Vec<_> = rows.iter().map(|row| (row.operation, row.half, row.committable)).collect();
    let (insert, delete) = (Operation::Insert, Operation::Delete);
    let expected = [(insert, 0, true), (delete, 0, false), (insert, 1, true), (delete, 0, true)];
    ensure!(found == expected, "a key update is told as {found:?}");
    ensure!(rows[0].key == rows[1].key && rows[2].key == rows[3].key, "the halves have the wrong keys: {rows:?}");
    ensure!(rows[1].id != rows[2].id, "both halves have the id {}", rows[1].id);
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S5: without changes the answer is an empty batch after the wait.
pub async fn s5_silence_is_an_empty_batch_after_the_wait(bench: &dyn SourceBench) -> Law {
    let mut stream = bench.open(StartAt::Now).await?;
    let limits = bench.limits(100);
    let before = bench.cx().now();
    let batch = stream.next_batch(bench.cx(), limits).await?;
    let waited = bench.cx().now().since(before);
    ensure!(batch.is_empty(), "nothing happened, yet {} changes were read", batch.len());
    let most = limits.wait * 4 + Duration::from_secs(5);
    ensure!(waited >= limits.wait / 2 && waited <= most, "asked to wait {:?}, waited {waited:?}", limits.wait);
    stream.close(bench.cx()).await?;
    Ok(())
}

/// S7: a dropped call loses nothing; the next one continues.
pub async fn s7_dropped_call_loses_nothing(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    let mut stream = bench.open(StartAt::After(beginning.clone())).await?;
    let mut rows: Vec<ReadRow> = Vec::new();
    let limits = bench.limits(100);
    for key in 1..=12 {
        bench.insert(key).await?;
        let cx = bench.cx();
        // Dropped at once, or after a while in which the server may have answered.
        let batch = if key % 2 == 0 {
            stream.next_batch(cx, limits).now_or_never()
        } else {
            let brief = cx.within(Duration::from_millis(key));
            let call = stream.next_batch(cx, limits);
            brief.run(async { Ok(call.await) }).await.ok()
        };
        if let Some(batch) = batch {
            rows.extend(rows_of(&batch?));
        }
    }
    for _ in 0..TRIES {
        if rows.len() >= 12 {
            break;
        }
        rows.extend(rows_of(&stream.next_batch(bench.cx(), limits).await?));
    }
    let all = bench.read_after(&beginning, 12).await?;
    ensure!(ids(&rows) == ids(&all), "with dropped calls {:?} was read, without {:?}", ids(&rows), ids(&all));
    stream.close(bench.cx()).await?;
    Ok(())
}

/// A change without a key is a barrier, and keeps its place among the others.
pub async fn change_without_a_key_keeps_its_place(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.insert(1).await?;
    if !bench.barrier().await? {
        return Ok(());
    }
    bench.insert(2).await?;
    let rows = bench.read_after(&beginning, 3).await?;
    let barriers: Vec<_> = rows.iter().map(|row| row.key.is_none()).collect();
    ensure!(barriers == [false, true, false], "a barrier between two inserts is told as {rows:?}");
    Ok(())
}

/// `compare` agrees with the order of reading wherever it knows.
pub async fn positions_compare_in_the_order_of_reading(bench: &dyn SourceBench) -> Law {
    let beginning = bench.beginning().await?;
    bench.make_nine().await?;
    let rows = bench.read_after(&beginning, 9).await?;
    let positions: Vec<_> = std::iter::once(&beginning).chain(rows.iter().map(|row| &row.position)).collect();
    let source = bench.source();
    for (n, a) in positions.iter().enumerate() {
        for (m, b) in positions.iter().enumerate() {
            let found = source.compare(a, b);
            ensure!(found.is_none_or(|found| found == n.cmp(&m)), "position {n} against {m} compares as {found:?}");
        }
    }
    Ok(())
}

/// `verify` lets an own position pass, and recognises one of another log before anything is read.
pub async fn own_position_is_verified_and_a_foreign_one_is_lost(bench: &dyn SourceBench) -> Law {
    let position = bench.beginning().await?;
    let source = bench.source();
    let pedigree = source.identity(bench.cx()).await?;
    source.verify(bench.cx(), &position, &pedigree).await?;
    let foreign = watchkeeper_core::Pedigree(bytes::Bytes::from_static(b"another log"));
    match source.verify(bench.cx(), &position, &foreign).await {
        Err(error) if error.kind() == watchkeeper_core::ErrorKind::PositionLost => Ok(()),
        answer => Err(Broken::new(format!("a foreign pedigree was answered with {answer:?}"))),
    }
}
