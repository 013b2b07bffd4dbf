//! Replays and purges of the transactional sink's own dead letters.

use std::sync::Arc;

use watchkeeper_core::{Batch, CheckpointWrite, LedgerRecord, Reason, Resolution};

use super::Transactional;
use crate::delivery::parking::{OnReject, replay_order};
use crate::pipeline::committer::Committer;
use crate::pipeline::opening_state::{Draft, Failure};
use crate::pipeline::replay::{DeadLetterRequest, warn_if_stale};

impl Transactional {
    pub(super) async fn serve_request(&mut self, committer: &mut Committer) -> Result<(), Failure> {
        let letter_request = self.letters.newest(&self.requests.see());
        let Some(letter_request) = letter_request else { return Ok(()) };
        let opening_state = Arc::clone(&self.opening_state);
        self.letters.serve(&opening_state, &self.deliveries, &letter_request).await?;
        // What the other sinks settled must not depend on whether this one takes its own letters.
        self.commit_idle(committer, Reason::Progress).await?;
        if letter_request.sink.as_deref().is_none_or(|sink| sink == self.spec.name) {
            let letters = self.letters.open(&opening_state).await.map_err(Failure::of)?;
            let own: Vec<_> = letters.into_iter().filter(|record| record.entry.sink == self.spec.name).collect();
            for of_key in replay_order(own) {
                self.serve_key(committer, &letter_request, of_key).await?;
            }
        }
        self.commit_idle(committer, Reason::Progress).await?;
        self.letters.mark_served(&opening_state, &letter_request).await;
        Ok(())
    }

    /// Settles the letters of one key, each in a transaction with its resolution.
    async fn serve_key(
        &mut self,
        committer: &mut Committer,
        letter_request: &DeadLetterRequest,
        of_key: Vec<LedgerRecord>,
    ) -> Result<(), Failure> {
        for record in &of_key {
            let wanted = letter_request.numbers.is_empty() || letter_request.numbers.contains(&record.number);
            if !wanted || !self.settle_letter(committer, letter_request.what, record).await? {
                break;
            }
            self.letters.mark_settled(record.number);
            self.parked.unpark(&record.entry);
        }
        Ok(())
    }

    async fn settle_letter(
        &mut self,
        committer: &mut Committer,
        what: Resolution,
        record: &LedgerRecord,
    ) -> Result<bool, Failure> {
        if what == Resolution::Purged {
            self.opening_state.draft().resolve.push((record.number, what));
            return Ok(true);
        }
        // What others have settled is committed apart: this letter may be rejected again.
        self.commit_idle(committer, Reason::Progress).await?;
        let Some((batch, row)) = self.letters.find(&self.opening_state, record).await? else { return Ok(false) };
        let draft = Draft { resolve: vec![(record.number, what)], ..Draft::default() };
        let write = committer.draft_write(draft, Reason::Progress, None);
        self.deliver_letter(committer, &batch, row, write).await
    }

    /// One letter and its resolution in one transaction; false when it is rejected again.
    async fn deliver_letter(
        &mut self,
        committer: &mut Committer,
        batch: &Arc<Batch>,
        row: u32,
        write: CheckpointWrite,
    ) -> Result<bool, Failure> {
        warn_if_stale(&self.spec, batch, row);
        let on_reject = std::mem::replace(&mut self.spec.on_reject, OnReject::Stop);
        let settled = self.commit(committer, batch, vec![row], write, None).await;
        self.spec.on_reject = on_reject;
        match settled {
            Ok(()) => Ok(true),
            Err(Failure::Stream(error) | Failure::Rejected { error, .. }) => {
                tracing::warn!(stream = self.opening_state.stream.settings.name, sink = self.spec.name, %error, "a dead letter was rejected again");
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }
}
