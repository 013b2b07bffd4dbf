//! Commits what is safe, beside the delivery and never in its way.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::Reason;

use super::committer::Committer;
use super::opening_state::OpeningState;

/// Commits whenever it is wanted, until the opening fails or `finish` asks for the last commit.
pub async fn run(opening_state: &OpeningState, committer: &Arc<Mutex<Committer>>, finish: CancellationToken) {
    let mut wanted = opening_state.wanted.follow();
    // One commit in flight per key; the lock is the committer's owner for this opening.
    let mut committer = committer.lock().await;
    loop {
        wanted.mark_seen();
        let finishing = finish.is_cancelled();
        let draft = std::mem::take(&mut *opening_state.draft());
        if committer.is_moved_by(&draft) {
            let reason = if finishing { Reason::Final } else { Reason::Progress };
            opening_state.set_committing(draft.changes);
            if let Err(failure) = committer.commit(draft, reason, None).await {
                return opening_state.fail(failure);
            }
            opening_state.set_committing(0);
            opening_state.committed.publish(committer.position().cloned());
            opening_state.turn();
        }
        write_history(opening_state, &mut committer).await;
        if finishing {
            return;
        }
        tokio::select! {
            biased;
            _ = opening_state.tenure.over() => return,
            () = finish.cancelled() => {}
            () = committer.history_overdue() => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

/// Stores the checkpoints that the history lacks, if it is time.
pub async fn write_history(opening_state: &OpeningState, committer: &mut Committer) {
    let cx = opening_state.tenure.cx().within(opening_state.stream.settings.timeouts.commit);
    committer.write_history_if_due(&cx).await;
}
