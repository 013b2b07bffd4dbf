//! The change that a halted stream would deliver next, for people who decide to skip it.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    Change, Cx, Error, LedgerEntry, LedgerKind, Limits, Operation, Position, Result, Source, StartAt, StoredChange,
};

use super::moves::Move;
use crate::stream::StreamSpec;

/// A batch with one change.
const ONE: Limits = Limits { rows: 1, bytes: 64 * 1024, wait: Duration::from_millis(250) };

/// What to do about a row of a snapshot that no sink takes; `STREAM` stands for the stream's name.
const SNAPSHOT_ROW: &str = "correct the row or the target, and run `watchkeeper resume STREAM`; or let the sink put aside what it cannot take \
     (on_reject = \"dead_letter\"), and resume";

/// A source may answer with a position only, and does not split the halves of a key update, so that few batches suffice.
const BATCHES_MAX: usize = 8;

/// Reads the first change after a position, without opening the source for good: both halves of an update that changes a key, and nothing
/// where no change follows.
///
/// # Errors
/// What the source says.
pub async fn next_change(cx: &Cx, source: &dyn Source, after: Option<Position>) -> Result<Vec<Change>> {
    let start = after.map_or(StartAt::Oldest, StartAt::After);
    let mut log = cx.run(source.peek(cx, start)).await?;
    let mut unit = Vec::new();
    for _ in 0..BATCHES_MAX {
        let batch = Arc::new(cx.run(log.next_batch(cx, ONE)).await?);
        for row in (0_u32..).take(batch.len()) {
            unit.push(Change::new(Arc::clone(&batch), row));
            if batch.rows()[row as usize].committable {
                cx.run(log.close(cx)).await?;
                return Ok(unit);
            }
        }
    }
    cx.run(log.close(cx)).await?;
    Ok(unit)
}

/// The move that passes over `unit`, which [`next_change`] has read after the position `before`, on behalf of these `sinks`: all of
/// the stream, also those that cannot be opened just now.
///
/// # Errors
/// `Config` where no change follows, and in the middle of a snapshot whose rows are not read one by one: what the log has there is not
/// the row that comes next.
pub fn skip(
    stream: &StreamSpec,
    sinks: &[&str],
    unit: &[Change],
    before: Option<Position>,
    cause: &str,
) -> Result<Move> {
    let is_within_snapshot = before.as_ref().is_some_and(|before| stream.source.has_unfinished_snapshot(before));
    let is_row_of_it = unit.first().is_some_and(|change| change.operation() == Operation::Read);
    if is_within_snapshot && !is_row_of_it {
        let cause = "the rows of an unfinished snapshot cannot be skipped one by one";
        return Err(Error::config(cause).remedy(SNAPSHOT_ROW).name_stream(&stream.settings.name));
    }
    let stream = &stream.settings.name;
    let Some(last) = unit.last() else {
        return Err(Error::config(format!("stream {stream:?} has no change after its checkpoint"))
            .remedy("look where it stands with `watchkeeper status`"));
    };
    let entry = LedgerEntry {
        kind: LedgerKind::Skipped,
        sink: sinks.join(", "),
        change_id: last.id().to_string(),
        cause: cause.to_owned(),
        before,
        change: Some(StoredChange::keep(last)),
    };
    Ok(Move::Skip { entry: Box::new(entry), to: last.position() })
}
