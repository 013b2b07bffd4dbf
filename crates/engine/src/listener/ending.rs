//! How a tenure ends, or goes on: by the scope of what happened.
//!
//! The first reopening follows after at most 100 ms and each next one after up to three times as long, up to 30 s: the
//! connection that was cut is often available again at once, and ten attempts still take two and a half minutes
//! together. The count starts over when the committed position moves.
//!
//! An instance that leaves after a failure stays away only as long as another healthy instance can take the stream.
//! `Config`, `Denied` and `Internal` errors concern the instance; a `Corrupt` error of source, sink or checkpoint store
//! concerns the stream. A release that is not answered is sent three times, because the group would otherwise wait for
//! the lease to expire. A stalled tenure does not release: the blocked call may still write, so the lease has to
//! expire.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Component, Epoch, Error, Halted, LedgerEntry, Reason, Resolution, StartAt};

use super::scope::{Scope, scope};
use super::state::ListenerState;
use super::watch::{Outcome, TenureState, Watch};
use crate::checkpoint::unfinished;
use crate::group::journal::Cause;
use crate::metrics;
use crate::pipeline::opening::End;
use crate::pipeline::opening_state::{Draft, Failure};
use crate::settings::OnHistoryLost;
use crate::tenure::{Loss, Tenure, run_for};

/// How often a release is sent.
const RELEASES_MAX: u32 = 3;

/// What fails when a stream cannot be reopened: mended by opening it.
pub(super) const OPENING: &str = "reopening";

/// What fails when an open stream fails: mended by the next commit, since whatever failed is tried again first.
pub(super) const DELIVERY: &str = "delivery";

/// What fails when an open source cannot be read: mended by the next read.
pub(crate) const READING: &str = "reading";

/// What to do after an opening.
pub(super) enum Next {
    Reopen,
    End(Outcome),
}

/// Why a tenure ends in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    Shutdown,
    Asked,
    Paused,
    /// Its place in the group was given to another instance.
    Displaced,
}

impl Watch {
    /// Decides what an opening's end means.
    pub(super) async fn decide_next(
        &self,
        tenure_state: &mut TenureState,
        end: End,
        why: Option<Departure>,
        recoveries: &mut u32,
    ) -> Next {
        let tenure = Arc::clone(&tenure_state.tenure);
        if let Some(loss) = tenure.loss() {
            return Next::End(self.lose(tenure_state, loss).await);
        }
        self.note_unfinished(&end);
        let error = match end.failure {
            None => return Next::End(self.depart(tenure_state, why).await),
            Some(Failure::Lost | Failure::Interrupted) => {
                return Next::End(self.lose(tenure_state, Loss::Fenced).await);
            }
            Some(Failure::Instance(error)) => {
                self.close_history(tenure_state).await;
                return Next::End(self.leave_failed(&tenure, error).await);
            }
            Some(Failure::Stream(error)) => return Next::End(self.halt(tenure_state, error, None).await),
            Some(Failure::Rejected { change, error }) => {
                return Next::End(self.halt(tenure_state, error, Some(change.id)).await);
            }
            Some(Failure::Fatal { change_id, error }) => {
                return Next::End(self.leave_poisoned(tenure_state, &change_id, error).await);
            }
            Some(Failure::HistoryLost(error)) => match self.accept_gap(tenure_state, &error).await {
                Ok(true) => error,
                Ok(false) => return Next::End(self.halt(tenure_state, error, None).await),
                Err(Failure::Instance(error)) => {
                    return Next::End(self.leave_failed(&tenure, error).await);
                }
                Err(Failure::Stream(error)) => return Next::End(self.halt(tenure_state, error, None).await),
                Err(_) => return Next::End(self.lose(tenure_state, Loss::Fenced).await),
            },
            Some(Failure::Transient(error)) => error.name_stream(self.stream_slot.name()),
        };
        if why.is_some() {
            return Next::End(self.depart(tenure_state, why).await);
        }
        *recoveries += 1;
        let retry = self.spec.settings.retry;
        if *recoveries > retry.recoveries {
            self.close_history(tenure_state).await;
            return Next::End(self.leave_failed(&tenure, error).await);
        }
        let part = match error.component() {
            _ if !tenure_state.was_open => OPENING,
            Some(Component::Source) => READING,
            _ => DELIVERY,
        };
        self.stream_slot.fail(part, &error);
        self.stream_slot.go(ListenerState::Recovering, Some(tenure.grant().epoch), &error.to_string());
        let delay = retry.recovery_backoff.delay(*recoveries - 1, &self.instance.seams.entropy);
        self.wait_before_retry(&tenure, delay).await;
        Next::Reopen
    }

    /// Waits before a reopening: not longer than for what was abandoned when there is a reason to leave.
    pub(super) async fn wait_before_retry(&self, tenure: &Tenure, duration: Duration) {
        tokio::select! {
            biased;
            _ = self.reason_to_leave(tenure.grant().epoch) => {}
            () = tenure.sleep(duration) => {}
        }
        tenure.settle().await;
    }

    /// Writes a gap to the ledger, if the policy accepts it.
    pub(super) async fn accept_gap(&self, tenure_state: &mut TenureState, error: &Error) -> Result<bool, Failure> {
        let OnHistoryLost::GoOn(start) = self.spec.settings.on_history_lost.clone() else { return Ok(false) };
        if tenure_state.gap.is_some() {
            // Written down already; going on from the chosen place did not work either. Try again.
            return Ok(true);
        }
        let begins_snapshot = start == StartAt::Snapshot;
        let gaps_repaired = if begins_snapshot { self.unfinished_snapshots(tenure_state).await? } else { Vec::new() };
        let mut committer = tenure_state.committer.lock().await;
        let entry = LedgerEntry {
            kind: unfinished::gap_kind(&*self.spec.source, committer.position(), begins_snapshot),
            sink: String::new(),
            change_id: String::new(),
            cause: error.to_string(),
            before: committer.position().cloned(),
            change: None,
        };
        tracing::error!(stream = self.stream_slot.name(), %error, "history is lost; going on as configured, with a gap");
        let draft = Draft { ledger: vec![entry], gaps_repaired, ..Draft::default() };
        self.commit_within_grace(committer.commit(draft, Reason::Progress, None)).await?;
        drop(committer);
        tenure_state.gap = Some((start, error.to_string()));
        Ok(true)
    }

    /// Earlier gaps that left a snapshot unfinished: a new one repairs them.
    async fn unfinished_snapshots(&self, tenure_state: &TenureState) -> Result<Vec<(u64, Resolution)>, Failure> {
        let cx = tenure_state.tenure.cx().within(self.spec.settings.timeouts.commit);
        let settled = unfinished::settled_by_snapshot(&cx, &*self.checkpoints, &self.stream_slot.key);
        cx.run(settled).await.map_err(Failure::Instance)
    }

    /// `commit`, but after a shutdown was asked for not longer than its grace.
    pub(super) async fn commit_within_grace(
        &self,
        commit: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let impatience = async {
            self.shutdown.cancelled().await;
            self.instance.seams.cx().sleep(self.instance.settings.shutdown_grace).await;
        };
        tokio::select! {
            biased;
            committed = commit => committed,
            () = impatience => Err(Failure::Instance(Error::unknown("no answer within the shutdown's grace"))),
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Takes in what a shutdown leaves unfinished: the program says it and ends with an error.
    fn note_unfinished(&self, end: &End) {
        let why = match &end.failure {
            _ if !self.is_shutting_down() => return,
            _ if end.cut_off => {
                format!("it was not drained within the shutdown_grace of {:?}", self.instance.settings.shutdown_grace)
            }
            Some(failure) if end.in_flight > 0 => failure.to_string(),
            _ => return,
        };
        let what = match end.in_flight {
            0 => why,
            changes => format!("{why}; {changes} changes that were read are not committed"),
        };
        tracing::error!(stream = self.stream_slot.name(), what, "the shutdown leaves something unfinished");
        self.stream_slot.publish(|status| status.unfinished = Some(what));
    }

    /// Ends a tenure that was lost: nothing is flushed and nothing committed.
    pub(super) async fn lose(&self, tenure_state: &TenureState, loss: Loss) -> Outcome {
        let tenure = &tenure_state.tenure;
        self.stream_slot.publish(|status| {
            status.last_error = Some(loss.to_string());
            status.deadlines_hit += u64::from(loss == Loss::Deadline);
        });
        if loss == Loss::Stalled {
            self.write_release_notice(tenure, Cause::Stalled, "a call did not end in time").await;
        }
        self.put_down(tenure);
        if matches!(loss, Loss::Deadline | Loss::Stalled) {
            self.stream_slot.health.lose();
        }
        self.stream_slot.go(ListenerState::Connecting, None, &loss.to_string());
        Outcome::Lost(loss)
    }

    /// Leaves in order, because it was asked to.
    pub(super) async fn depart(&self, tenure_state: &TenureState, why: Option<Departure>) -> Outcome {
        self.close_history(tenure_state).await;
        let (cause, text) = match why {
            Some(Departure::Asked) => (Cause::Operator, "asked to hand over"),
            Some(Departure::Paused) => (Cause::Operator, "paused"),
            Some(Departure::Displaced) => (Cause::Failed, "lost its place in the group"),
            Some(Departure::Shutdown) | None => (Cause::Released, "shut down"),
        };
        self.release(&tenure_state.tenure, cause, text).await;
        Outcome::Released
    }

    /// Leaves because it cannot go on here.
    pub(super) async fn leave_failed(&self, tenure: &Arc<Tenure>, error: Error) -> Outcome {
        let error = error.name_stream(self.stream_slot.name());
        metrics::listener_failed(self.stream_slot.name());
        if let Some(due) = self.stream_slot.health.log_due("giving up", &error) {
            let (stream, epoch, left_out) = (self.stream_slot.name(), tenure.grant().epoch.0, due.left_out);
            tracing::error!(stream, epoch, %error, left_out, "giving up the watch");
        }
        self.stream_slot.publish(|status| status.last_error = Some(error.to_string()));
        self.release(tenure, Cause::Failed, &error.attributed_message()).await;
        Outcome::Barred(error)
    }

    /// Leaves because a handler called a change fatal; the last of several instances halts the stream.
    pub(super) async fn leave_poisoned(&self, tenure_state: &TenureState, change_id: &str, error: Error) -> Outcome {
        let counted = self.count_fatal(&tenure_state.tenure, change_id).await;
        let limit = self.spec.settings.retry.fatal_instances;
        let cause = format!("change {change_id} was fatal: {}", error.message());
        match counted {
            Ok(count) if count >= limit => {
                let cause = format!("{cause}, on {count} instances");
                let error = Error::new(error.kind(), cause)
                    .remedy("mend the handler and resume the stream, or skip the change");
                self.halt(tenure_state, error, Some(change_id.to_owned())).await
            }
            _ => {
                self.close_history(tenure_state).await;
                self.leave_failed(&tenure_state.tenure, Error::new(error.kind(), cause)).await
            }
        }
    }

    /// Counts this instance among those that called a change fatal: written before the release, however
    /// long (within `give_up`) the records do not answer.
    async fn count_fatal(&self, tenure: &Tenure, change_id: &str) -> Result<usize, Error> {
        let (instance, settings) = (&self.instance, &self.spec.settings);
        let until = instance.seams.clock.now() + settings.give_up;
        let mut attempt = 0;
        loop {
            let cx = tenure.cx().within(settings.timeouts.commit);
            let counted = cx.run(instance.poison.record(&cx, self.stream_slot.name(), change_id, instance.id)).await;
            if counted.is_ok() || tenure.loss().is_some() || instance.seams.clock.now() >= until {
                return counted;
            }
            tenure.sleep(settings.retry.backoff.delay(attempt, &instance.seams.entropy)).await;
            attempt += 1;
        }
    }

    /// Halts the stream by a fenced commit, then releases. If it is for a change that nobody takes, the halt names it.
    pub(super) async fn halt(&self, tenure_state: &TenureState, error: Error, change: Option<String>) -> Outcome {
        let position = tenure_state.committer.lock().await.position().cloned();
        let error = unfinished::advised(error, &*self.spec.source, self.stream_slot.name(), position.as_ref());
        tracing::error!(stream = self.stream_slot.name(), %error, "the stream is halted until a person resumes it");
        self.stream_slot.publish(|status| status.last_error = Some(error.to_string()));
        let halted = Halted::new(error.kind().code(), error.to_string(), change);
        let mut committer = tenure_state.committer.lock().await;
        let commit = committer.commit(Draft::default(), Reason::Final, Some(halted.clone()));
        let mut committed = self.commit_within_grace(commit).await;
        if matches!(committed, Err(Failure::Stream(_))) {
            // The stored checkpoint itself is missing or damaged.
            let kept = committer.position().map(|position| {
                format!(
                    "; its last committed position {position} is written again, and a resumed stream goes on from there"
                )
            });
            let cause = halted.cause + &kept.unwrap_or_default();
            committed =
                self.commit_within_grace(committer.halt_anew(Halted::new(halted.code, cause, halted.change))).await;
        }
        drop(committer);
        match committed {
            Ok(()) => {}
            Err(Failure::Lost | Failure::Interrupted) => return self.lose(tenure_state, Loss::Fenced).await,
            // Not halted, so somebody else will find out the same.
            Err(_) => return self.leave_failed(&tenure_state.tenure, error).await,
        }
        self.close_history(tenure_state).await;
        self.hint_halted(tenure_state.tenure.grant().epoch).await;
        self.release(&tenure_state.tenure, Cause::Failed, &error.attributed_message()).await;
        Outcome::Halted(error.to_string())
    }

    pub(super) async fn hint_halted(&self, epoch: Epoch) {
        let cx = self.instance.cx();
        let hint = self.instance.controls.update(&cx, self.stream_slot.name(), |control| control.hint_halted(epoch));
        if let Err(error) = cx.run(hint).await {
            tracing::debug!(%error, "the hint that the stream is halted was not written");
        }
    }

    /// A hint that the stream is halted, though its checkpoint is not, was written late.
    pub(super) async fn clear_hint(&self) {
        if !self.stream_slot.control.get().halted_hint {
            return;
        }
        let cx = self.instance.cx();
        let cleared =
            self.instance.controls.update(&cx, self.stream_slot.name(), |control| control.halted_hint = false);
        if let Err(error) = cx.run(cleared).await {
            tracing::debug!(%error, "a stale hint was not cleared");
        }
    }

    pub(super) async fn close_history(&self, tenure_state: &TenureState) {
        let cx = tenure_state.tenure.cx().within(self.instance.settings.lease.call_timeout);
        let mut committer = tenure_state.committer.lock().await;
        committer.write_history(&cx).await;
    }

    pub(super) async fn write_release_notice(&self, tenure: &Tenure, cause: Cause, text: &str) {
        let cx = self.instance.cx();
        let said = self.instance.journal.leave(&cx, self.stream_slot.name(), tenure.grant().tenure, cause, text);
        if let Err(error) = cx.run(said).await {
            tracing::debug!(%error, "the release notice was not written");
        }
    }

    /// Gives the lease back; asked for again when it is not answered, since otherwise the whole group would wait for its expiry.
    async fn give_back(&self, tenure: &Tenure) -> Result<(), Error> {
        let (instance, retry) = (&self.instance, self.spec.settings.retry);
        let mut attempt = 0;
        loop {
            let cx = tenure.cx().within(instance.settings.lease.call_timeout);
            match run_for(&cx, &Component::Leases, instance.leases.release(&cx, tenure.grant())).await {
                // A release is of the own lease only, so a second one does no harm.
                Err(error) if attempt + 1 < RELEASES_MAX && scope(&error) == Scope::Transient => {
                    tracing::debug!(stream = self.stream_slot.name(), %error, "a release was not answered; it is repeated");
                }
                answer => return answer.map(drop),
            }
            tenure.sleep(retry.backoff.delay(attempt, &instance.seams.entropy)).await;
            attempt += 1;
        }
    }

    /// Gives the lease back: the last thing a tenure does. With calls to exposed sinks abandoned, it
    /// waits until they can do no more harm.
    pub(super) async fn release(&self, tenure: &Arc<Tenure>, cause: Cause, text: &str) {
        tenure.settle().await;
        if tenure.loss().is_none() {
            self.write_release_notice(tenure, cause, text).await;
            if let Err(error) = self.give_back(tenure).await {
                tracing::warn!(stream = self.stream_slot.name(), %error, "a release was not answered; the lease will expire");
            }
        }
        tenure.end(Loss::Released);
        self.instance.keeper.remove(tenure.grant().tenure);
        self.instance.held_tenures.remove(tenure.grant().tenure);
        if self.stream_slot.machine().state() != ListenerState::Stopped {
            // What failed was logged where that was decided.
            let text = if cause == Cause::Failed { "it failed here" } else { text };
            self.stream_slot.go(ListenerState::Connecting, None, text);
        }
    }
}
