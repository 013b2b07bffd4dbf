//! Whether a stream without a position begins now, or has lost its checkpoint.

use std::sync::Arc;

use watchkeeper_core::{Component, Error, Reason};

use super::watch::{Outcome, Voyage, Watch};
use crate::checkpoint::history::History;
use crate::checkpoint::lost;
use crate::group::home::Homes;
use crate::pipeline::board::{Board, Draft, Failure};
use crate::tenure::Tenure;

impl Watch {
    pub(super) fn homes(&self) -> Homes {
        Homes::new(Arc::clone(&self.instance.records), &self.instance.settings.group)
    }

    /// Lets a stream without a position begin only if it never had one. Its first checkpoint has no position; only after it is
    /// noted that there is one, positions are committed. So whenever an instance crashes, a checkpoint that is noted and missing was
    /// removed. So was one that is missing while the history has positions: they were committed before.
    ///
    /// # Errors
    /// `Corrupt` when the checkpoint is missing or has lost its position; `Config` when the stream began in another store.
    pub(super) async fn begin(&self, board: &Board, voyage: &Voyage) -> Result<(), Failure> {
        let mut committer = voyage.committer.lock().await;
        if committer.position().is_some() {
            return Ok(());
        }
        if committer.has_lost_position() {
            return Err(self.lost_checkpoint("has no position", &committer.history, &board.tenure).await.into());
        }
        let (homes, pulse) = (self.homes(), board.tenure.progress().pulse("opening"));
        let call = board.tenure.call(&pulse, self.spec.settings.timeouts.open);
        let identity = call.run(&Component::Checkpoints, self.checkpoints.identity(call.cx())).await?;
        let noted = match self.post.settled.get() {
            Some(()) => true,
            None => call.cx().run(homes.settle(call.cx(), self.post.name(), identity)).await?,
        };
        // Earlier versions did not note commits, and the note can be deleted: then the history tells.
        let is_missing =
            !committer.is_stored() && (noted || call.cx().run(committer.history.has_entries(call.cx())).await?);
        // A commit is watched by its own pulse, and may be repeated for longer than this call may take.
        drop(call);
        if is_missing {
            let error = self.lost_checkpoint("is missing", &committer.history, &board.tenure).await;
            committer.note_lost();
            return Err(error.into());
        }
        // One that is stored is that of a stream that has not begun: it was halted before, or reset by an operator.
        if !committer.is_stored() {
            committer.commit(Draft::default(), Reason::Progress, None).await?;
        }
        if !noted {
            let call = board.tenure.call(&pulse, self.spec.settings.timeouts.open);
            call.cx().run(homes.note_committed(call.cx(), self.post.name(), identity)).await?;
        }
        self.post.settled.get_or_init(|| ());
        Ok(())
    }

    /// Notes that the stream has committed, for streams that began before this was noted. In parallel with the work: a takeover does not
    /// wait for it.
    pub(super) fn note_committed(&self, tenure: &Arc<Tenure>) -> impl Future<Output = ()> + Send + use<> {
        let (homes, post, tenure) = (self.homes(), Arc::clone(&self.post), Arc::clone(tenure));
        let checkpoints = Arc::clone(&self.checkpoints);
        async move {
            if post.settled.get().is_some() {
                return;
            }
            let cx = tenure.cx().within(post.settings.timeouts.commit);
            let noted = async {
                let identity = checkpoints.identity(&cx).await?;
                homes.note_committed(&cx, post.name(), identity).await
            };
            match cx.run(noted).await {
                Ok(()) => post.settled.get_or_init(|| ()),
                Err(error) => {
                    tracing::debug!(stream = post.name(), %error, "it was not noted that the stream has committed");
                    &()
                }
            };
        }
    }

    /// Halts a stream whose checkpoint cannot be read. The claim has taken effect, so the halt replaces what is damaged.
    pub(super) async fn halt_damaged(&self, tenure: Arc<Tenure>, error: Error) -> Outcome {
        let mut committer = self.committer(&tenure, None);
        committer.note_lost();
        let what = format!("cannot be read ({})", error.message());
        let error = self.lost_checkpoint(&what, &committer.history, &tenure).await;
        let committer = Arc::new(tokio::sync::Mutex::new(committer));
        let voyage = Voyage { tenure, committer, letters: Vec::new(), gap: None, was_open: false };
        self.halt(&voyage, error, None).await
    }

    async fn lost_checkpoint(&self, what: &str, history: &History, tenure: &Tenure) -> Error {
        let cx = tenure.cx().within(self.spec.settings.timeouts.commit);
        lost::lost(self.post.name(), what, lost::newest(&cx, history).await.as_ref())
    }
}
