//! Decides when sinks are flushed, and moves the safe point when they were.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::FlushRejection;

use super::board::{Board, Failure};
use super::courier::Courier;
use super::safe_point::Mark;
use crate::hooks::Mutant;

/// Ledger entries that may wait for a commit. With more nothing is passed, so nothing more is read: a
/// checkpoint store that is down for long does not cost memory.
const LEDGER_MAX: usize = 10_000;

/// Flushes until the opening fails or `stop` is set.
pub async fn run(board: &Board, couriers: &[Arc<Courier>], stop: CancellationToken) {
    let policy = board.stream.settings.checkpoint;
    let mut turned = board.turned.follow();
    let mut due = board.seams.clock.now() + policy.every;
    // Then nothing is gained by waiting, and batches that pile up cost memory that was not touched for long.
    let at_once = couriers.iter().all(|courier| courier.is_durable());
    loop {
        turned.mark_seen();
        let is_due = board.seams.clock.now() >= due;
        let look = look(board, policy.events);
        let enough = look.enough;
        if look.moves
            && board.draft().ledger.len() < LEDGER_MAX
            && (at_once || is_due || enough || look.tight || board.flushes_demanded())
            && let Err(failure) = pass(board, couriers, look).await
        {
            return board.fail(failure);
        }
        if is_due || enough {
            // Also what was passed under pressure is committed in time.
            board.want_commit();
        }
        if is_due {
            due = board.seams.clock.now() + policy.every;
        }
        tokio::select! {
            biased;
            () = board.failed.cancelled() => return,
            () = stop.cancelled() => return,
            changed = turned.changed() => if changed.is_err() { return },
            () = board.seams.clock.sleep_until(due) => {}
        }
    }
}

/// The last flush of an opening, after the lanes have ended.
pub async fn last(board: &Board, couriers: &[Arc<Courier>]) {
    let look = look(board, None);
    if look.moves
        && !board.is_spoiled()
        && let Err(failure) = pass(board, couriers, look).await
    {
        board.fail(failure);
    }
}

/// What a look at the safe point says.
struct Look {
    mark: Mark,
    moves: bool,
    rows: bool,
    enough: bool,
    tight: bool,
}

fn look(board: &Board, events: Option<u64>) -> Look {
    // What was passed under pressure and is not committed yet counts too.
    let waiting = board.draft().changes;
    let safe = board.safe();
    let mark = if board.hooks.breaks(Mutant::SafePointAtNewest) { safe.newest() } else { safe.mark() };
    let rows = safe.rows_before(mark);
    let enough = events.is_some_and(|events| rows + waiting >= events);
    Look { mark, moves: safe.moves_to(mark), rows: rows > 0, enough, tight: safe.is_tight() }
}

/// Flushes what was written before the look, then passes it.
async fn pass(board: &Board, couriers: &[Arc<Courier>], look: Look) -> Result<(), Failure> {
    if look.rows {
        flush(board, couriers).await?;
    }
    let mut safe = board.safe();
    // A rejection found by the flush may have blocked a row before the mark.
    let mark = match board.hooks.breaks(Mutant::SafePointAtNewest) {
        true => look.mark,
        false => look.mark.min(safe.mark()),
    };
    let passed = safe.advance(mark);
    drop(safe);
    let mut draft = board.draft();
    draft.extend(passed);
    if board.hooks.breaks(Mutant::AcknowledgeBeforeCommit) {
        board.committed.tell(draft.position.clone());
    }
    drop(draft);
    board.turn();
    Ok(())
}

/// Flushes all sinks beside each other, and takes in what they rejected after all.
pub async fn flush(board: &Board, couriers: &[Arc<Courier>]) -> Result<(), Failure> {
    let answers = join_all(couriers.iter().map(|courier| courier.flush(board))).await;
    let mut first = Ok(());
    for (courier, answer) in couriers.iter().zip(answers) {
        let taken = match answer {
            Ok(rejections) => take_rejections(board, courier, rejections),
            // What was accepted since the last good flush has to be written again: reopen.
            Err(error) => {
                board.spoil();
                Err(Failure::of(error))
            }
        };
        first = first.and(taken);
    }
    first
}

/// Takes in all rejections, also after one that stops the stream: what is neither blocked nor noted
/// would be passed.
fn take_rejections(board: &Board, courier: &Courier, rejections: Vec<FlushRejection>) -> Result<(), Failure> {
    let taken: Vec<_> = rejections.into_iter().map(|rejection| courier.reject_flushed(board, rejection)).collect();
    taken.into_iter().collect()
}
