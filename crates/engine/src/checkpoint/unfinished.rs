//! Gaps in the middle of a snapshot: which rows are missing is known only to a new snapshot.

use watchkeeper_core::source::BEGIN_SNAPSHOT_ANEW;
use watchkeeper_core::{
    Checkpoint, CheckpointStore, Cx, Error, ErrorKind, LeaseKey, LedgerKind, LedgerQuery, LedgerRecord, Position,
    Resolution, Result, Source,
};

/// Entries of the ledger that are read at once.
const PAGE: usize = 500;

/// Whether a stream at `position` has still to read rows of a snapshot.
pub fn is_unfinished(source: &dyn Source, position: Option<&Position>) -> bool {
    position.is_some_and(|position| source.has_unfinished_snapshot(position))
}

/// How a gap after `before` stands in the ledger, if the stream begins a new snapshot or goes on without one.
pub fn gap_kind(source: &dyn Source, before: Option<&Position>, begins_snapshot: bool) -> LedgerKind {
    if !begins_snapshot && is_unfinished(source, before) { LedgerKind::UnfinishedSnapshot } else { LedgerKind::Gap }
}

/// How to go on with a stream that lost its history in the middle of a snapshot.
pub fn remedy(stream: &str) -> String {
    BEGIN_SNAPSHOT_ANEW.replace("STREAM", stream)
}

/// `error`, with the remedy for a stream that stands at `position`. Going on behind lost history would leave its snapshot unfinished.
#[must_use]
pub fn advised(error: Error, source: &dyn Source, stream: &str, position: Option<&Position>) -> Error {
    let is_lost = error.kind() == ErrorKind::PositionLost;
    if is_lost && is_unfinished(source, position) { error.remedy(remedy(stream)) } else { error.name_stream(stream) }
}

/// Refuses to go on at `to` without the rest of a snapshot: rows that the targets do not have yet would be missing for good.
///
/// # Errors
/// `Config` where `current` is in the middle of a snapshot, and `to` does not begin a new one.
pub fn require_snapshot_anew(
    source: &dyn Source,
    stream: &str,
    current: Option<&Checkpoint>,
    to: &Position,
) -> Result<()> {
    let position = current.and_then(|current| current.position.as_ref());
    if source.has_unfinished_snapshot(to) || !is_unfinished(source, position) {
        return Ok(());
    }
    let cause =
        format!("stream {stream} is in the middle of a snapshot: going on there would leave out the rest of it");
    Err(Error::config(cause).remedy(format!(
        "begin the snapshot anew with `watchkeeper accept-gap {stream} --to snapshot`; \
         to go on without those rows all the same, add --leave-snapshot-unfinished"
    )))
}

/// The open entries of gaps that left a snapshot unfinished.
///
/// # Errors
/// What the store says when it does not answer.
pub async fn open_entries(cx: &Cx, checkpoints: &dyn CheckpointStore, key: &LeaseKey) -> Result<Vec<LedgerRecord>> {
    let (mut found, mut query) = (Vec::new(), LedgerQuery { after: 0, limit: PAGE, open_only: true });
    loop {
        cx.check()?;
        let page = checkpoints.ledger(cx, key, &query).await?;
        let Some(newest) = page.last().map(|record| record.number) else { return Ok(found) };
        found.extend(page.into_iter().filter(|record| record.entry.kind == LedgerKind::UnfinishedSnapshot));
        query.after = newest;
    }
}

/// What a commit settles that begins a new snapshot: it reads again whatever earlier gaps left out.
///
/// # Errors
/// As [`open_entries`].
pub async fn settled_by_snapshot(
    cx: &Cx,
    checkpoints: &dyn CheckpointStore,
    key: &LeaseKey,
) -> Result<Vec<(u64, Resolution)>> {
    let open = open_entries(cx, checkpoints, key).await?;
    Ok(open.into_iter().map(|record| (record.number, Resolution::Replayed)).collect())
}
