//! Whether a stream without a position begins now, or has lost its checkpoint.

use std::sync::Arc;

use watchkeeper_core::{Component, Error, Reason};

use super::watch::{Outcome, TenureState, Watch};
use crate::checkpoint::history::History;
use crate::checkpoint::lost;
use crate::group::store_binding::StoreBindings;
use crate::pipeline::opening_state::{Draft, Failure, OpeningState};
use crate::tenure::Tenure;

impl Watch {
    pub(super) fn bindings(&self) -> StoreBindings {
        StoreBindings::new(Arc::clone(&self.instance.records), &self.instance.settings.group)
    }

    /// Lets a stream without a position begin only if it never had one. Its first checkpoint has no position; only after it is
    /// noted that there is one, positions are committed. So whenever an instance crashes, a checkpoint that is noted and missing was
    /// removed. So was one that is missing while the history has positions: they were committed before.
    ///
    /// # Errors
    /// `Corrupt` when the checkpoint is missing or has lost its position; `Config` when the stream began in another store.
    pub(super) async fn begin(&self, opening_state: &OpeningState, tenure_state: &TenureState) -> Result<(), Failure> {
        let mut committer = tenure_state.committer.lock().await;
        if committer.position().is_some() {
            return Ok(());
        }
        if committer.has_lost_position() {
            return Err(self
                .lost_checkpoint("has no position", &committer.history, &opening_state.tenure)
                .await
                .into());
        }
        let (bindings, call_progress) = (self.bindings(), opening_state.tenure.progress().call_progress("opening"));
        let call = opening_state.tenure.call(&call_progress, self.spec.settings.timeouts.open);
        let identity = call.run(&Component::Checkpoints, self.checkpoints.identity(call.cx())).await?;
        let noted = match self.stream_slot.settled.get() {
            Some(()) => true,
            None => call.cx().run(bindings.settle(call.cx(), self.stream_slot.name(), identity)).await?,
        };
        // Earlier versions did not note commits, and the note can be deleted: then the history tells.
        let is_missing =
            !committer.is_stored() && (noted || call.cx().run(committer.history.has_entries(call.cx())).await?);
        // A commit is watched by its own pulse, and may be repeated for longer than this call may take.
        drop(call);
        if is_missing {
            let error = self.lost_checkpoint("is missing", &committer.history, &opening_state.tenure).await;
            committer.note_lost();
            return Err(error.into());
        }
        // One that is stored is that of a stream that has not begun: it was halted before, or reset by an operator.
        if !committer.is_stored() {
            committer.commit(Draft::default(), Reason::Progress, None).await?;
        }
        if !noted {
            let call = opening_state.tenure.call(&call_progress, self.spec.settings.timeouts.open);
            call.cx().run(bindings.note_committed(call.cx(), self.stream_slot.name(), identity)).await?;
        }
        self.stream_slot.settled.get_or_init(|| ());
        Ok(())
    }

    /// Notes that the stream has committed, for streams that began before this was noted. In parallel with the work: a takeover does not
    /// wait for it.
    pub(super) fn note_committed(&self, tenure: &Arc<Tenure>) -> impl Future<Output = ()> + Send + use<> {
        let (bindings, stream_slot, tenure) = (self.bindings(), Arc::clone(&self.stream_slot), Arc::clone(tenure));
        let checkpoints = Arc::clone(&self.checkpoints);
        async move {
            if stream_slot.settled.get().is_some() {
                return;
            }
            let cx = tenure.cx().within(stream_slot.settings.timeouts.commit);
            let noted = async {
                let identity = checkpoints.identity(&cx).await?;
                bindings.note_committed(&cx, stream_slot.name(), identity).await
            };
            match cx.run(noted).await {
                Ok(()) => stream_slot.settled.get_or_init(|| ()),
                Err(error) => {
                    tracing::debug!(stream = stream_slot.name(), %error, "it was not noted that the stream has committed");
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
        let tenure_state = TenureState { tenure, committer, letters: Vec::new(), gap: None, was_open: false };
        self.halt(&tenure_state, error, None).await
    }

    async fn lost_checkpoint(&self, what: &str, history: &History, tenure: &Tenure) -> Error {
        let cx = tenure.cx().within(self.spec.settings.timeouts.commit);
        lost::lost(self.stream_slot.name(), what, lost::newest(&cx, history).await.as_ref())
    }
}
