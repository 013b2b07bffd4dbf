//! Commits what is safe, beside the delivery and never in its way.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::Reason;

use super::board::Board;
use super::committer::Committer;

/// Commits whenever it is wanted, until the opening fails or `finish` asks for the last commit.
pub async fn run(board: &Board, committer: &Arc<Mutex<Committer>>, finish: CancellationToken) {
    let mut wanted = board.wanted.follow();
    // One commit in flight per key; the lock is the committer's owner for this opening.
    let mut committer = committer.lock().await;
    loop {
        wanted.mark_seen();
        let finishing = finish.is_cancelled();
        let draft = std::mem::take(&mut *board.draft());
        if committer.is_moved_by(&draft) {
            let reason = if finishing { Reason::Final } else { Reason::Progress };
            board.set_committing(draft.changes);
            if let Err(failure) = committer.commit(draft, reason, None).await {
                return board.fail(failure);
            }
            board.set_committing(0);
            board.committed.tell(committer.position().cloned());
            board.turn();
            write_history(board, &mut committer).await;
        }
        if finishing {
            return;
        }
        tokio::select! {
            biased;
            _ = board.tenure.over() => return,
            () = finish.cancelled() => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

/// The history is written after the commit, in blocks; losing a block loses nothing but comfort.
pub async fn write_history(board: &Board, committer: &mut Committer) {
    if !committer.history.due() {
        return;
    }
    let cx = board.tenure.cx().within(board.stream.settings.timeouts.commit);
    if let Err(error) = cx.run(committer.history.flush(&cx)).await {
        tracing::debug!(%error, "the history of checkpoints was not written");
    }
}
