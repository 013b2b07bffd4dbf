//! Decides when sinks are flushed, and moves the safe point when they were.
//!
//! The flusher takes a mark (the boundary before which everything is done), flushes all sinks, and moves the safe point
//! to that mark, not to what was written during the flush. It flushes when the interval is over, when enough changes
//! are done, when the window is nearly full, and when a barrier waits. If a sink rejects rows in a flush, the
//! rejections are noted before the safe point moves.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::FlushRejection;

use super::opening_state::{Failure, OpeningState};
use super::safe_point::Mark;
use super::sink_delivery::SinkDelivery;
use crate::hooks::Mutant;

/// Ledger entries that may wait for a commit. With more nothing is passed, so nothing more is read: a
/// checkpoint store that is down for long does not cost memory.
const LEDGER_MAX: usize = 10_000;

/// Flushes until the opening fails or `stop` is set.
pub async fn run(opening_state: &OpeningState, deliveries: &[Arc<SinkDelivery>], stop: CancellationToken) {
    let policy = opening_state.stream.settings.checkpoint;
    let mut turned = opening_state.turned.follow();
    let mut due = opening_state.seams.clock.now() + policy.every;
    // Then nothing is gained by waiting, and batches that pile up cost memory that was not touched for long.
    let at_once = deliveries.iter().all(|delivery| delivery.is_durable());
    loop {
        turned.mark_seen();
        let is_due = opening_state.seams.clock.now() >= due;
        let observation = decide_flush(opening_state, policy.events);
        let enough = observation.enough;
        if observation.moves
            && opening_state.draft().ledger.len() < LEDGER_MAX
            && (at_once || is_due || enough || observation.tight || opening_state.flushes_demanded())
            && let Err(failure) = pass(opening_state, deliveries, observation).await
        {
            return opening_state.fail(failure);
        }
        if is_due || enough {
            // Also what was passed under pressure is committed in time.
            opening_state.want_commit();
        }
        if is_due {
            due = opening_state.seams.clock.now() + policy.every;
        }
        tokio::select! {
            biased;
            () = opening_state.failed.cancelled() => return,
            () = stop.cancelled() => return,
            changed = turned.changed() => if changed.is_err() { return },
            () = opening_state.seams.clock.sleep_until(due) => {}
        }
    }
}

/// The last flush of an opening, after the lanes have ended.
pub async fn last(opening_state: &OpeningState, deliveries: &[Arc<SinkDelivery>]) {
    let observation = decide_flush(opening_state, None);
    if observation.moves
        && !opening_state.is_spoiled()
        && let Err(failure) = pass(opening_state, deliveries, observation).await
    {
        opening_state.fail(failure);
    }
}

/// What a look at the safe point says.
struct FlushDecision {
    mark: Mark,
    moves: bool,
    rows: bool,
    enough: bool,
    tight: bool,
}

fn decide_flush(opening_state: &OpeningState, events: Option<u64>) -> FlushDecision {
    // What was passed under pressure and is not committed yet counts too.
    let waiting = opening_state.draft().changes;
    let safe = opening_state.safe();
    let mark = if opening_state.hooks.breaks(Mutant::SafePointAtNewest) { safe.newest() } else { safe.mark() };
    let rows = safe.rows_before(mark);
    let enough = events.is_some_and(|events| rows + waiting >= events);
    FlushDecision { mark, moves: safe.moves_to(mark), rows: rows > 0, enough, tight: safe.is_tight() }
}

/// Flushes what was written before the look, then passes it.
async fn pass(
    opening_state: &OpeningState,
    deliveries: &[Arc<SinkDelivery>],
    observation: FlushDecision,
) -> Result<(), Failure> {
    if observation.rows {
        flush(opening_state, deliveries).await?;
    }
    let mut safe = opening_state.safe();
    // A rejection found by the flush may have blocked a row before the mark.
    let mark = match opening_state.hooks.breaks(Mutant::SafePointAtNewest) {
        true => observation.mark,
        false => observation.mark.min(safe.mark()),
    };
    let passed = safe.advance(mark);
    drop(safe);
    let mut draft = opening_state.draft();
    draft.extend(passed);
    if opening_state.hooks.breaks(Mutant::AcknowledgeBeforeCommit) {
        opening_state.committed.publish(draft.position.clone());
    }
    drop(draft);
    opening_state.turn();
    Ok(())
}

/// Flushes all sinks beside each other, and takes in what they rejected after all.
pub async fn flush(opening_state: &OpeningState, deliveries: &[Arc<SinkDelivery>]) -> Result<(), Failure> {
    let answers = join_all(deliveries.iter().map(|delivery| delivery.flush(opening_state))).await;
    let mut first = Ok(());
    for (delivery, answer) in deliveries.iter().zip(answers) {
        let taken = match answer {
            Ok(rejections) => take_rejections(opening_state, delivery, rejections),
            // What was accepted since the last good flush has to be written again: reopen.
            Err(error) => {
                opening_state.spoil();
                Err(Failure::of(error))
            }
        };
        first = first.and(taken);
    }
    first
}

/// Takes in all rejections, also after one that stops the stream: what is neither blocked nor noted
/// would be passed.
fn take_rejections(
    opening_state: &OpeningState,
    delivery: &SinkDelivery,
    rejections: Vec<FlushRejection>,
) -> Result<(), Failure> {
    let taken: Vec<_> =
        rejections.into_iter().map(|rejection| delivery.reject_flushed(opening_state, rejection)).collect();
    taken.into_iter().collect()
}
