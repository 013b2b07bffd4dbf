//! One tenure of one stream: claim, open, run, and end by the scope of what happened.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{
    Checkpoint, CheckpointStore, Ending, Error, Grant, LedgerRecord, Moment, Position, Previous, StartAt, Task,
};

use super::claim::{Claimed, NotClaimed};
use super::ending::{Departure, Next};
use super::state::ListenerState;
use super::stream_slot::StreamSlot;
use crate::checkpoint::history::History;
use crate::checkpoint::operator;
use crate::connect::Connected;
use crate::group::control::Control;
use crate::group::journal::{Cause, Takeover};
use crate::hooks::Mutant;
use crate::instance::Instance;
use crate::metrics;
use crate::pipeline::committer::{Committer, CommitterStart};
use crate::pipeline::opening::End;
use crate::stream::StreamSpec;
use crate::tenure::{Loss, Tenure};

/// How a tenure ended, as far as standing by again depends on it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Given back in order.
    Released,
    /// Lost: something newer has it, or will.
    Lost(Loss),
    /// It failed here: stay away for a while.
    Barred(Error),
    /// Nobody may run it until a person resumes it.
    Halted(String),
}

/// A lease as it was granted.
#[derive(Debug)]
pub struct GrantedLease {
    /// The grant.
    pub grant: Grant,
    /// The moment before it was asked for.
    pub sent: Moment,
    /// Whose it was.
    pub previous: Option<Previous>,
    /// When the previous holder's death was proved, if it was broken.
    pub proved: Option<Moment>,
}

/// One tenure of one stream.
#[derive(Debug)]
pub struct Watch {
    pub(super) instance: Arc<Instance>,
    pub(super) stream_slot: Arc<StreamSlot>,
    pub(super) spec: Arc<StreamSpec>,
    /// Where its checkpoint is kept.
    pub(super) checkpoints: Arc<dyn CheckpointStore>,
    pub(super) shutdown: CancellationToken,
    /// Until when the last calls of a holder that was proved dead may still take effect.
    unsettled: OnceLock<Moment>,
    /// Whether the grant is a failover.
    failover: OnceLock<bool>,
}

/// What a tenure carries from one opening to the next.
pub(super) struct TenureState {
    pub(super) tenure: Arc<Tenure>,
    pub(super) committer: Arc<Mutex<Committer>>,
    /// What is parked, as the newest opening found it.
    pub(super) letters: Vec<LedgerRecord>,
    /// Where to go on after a gap that the policy accepts, and what the sinks are told of it.
    pub(super) gap: Option<(StartAt, String)>,
    /// Whether everything was open in the last opening.
    pub(super) was_open: bool,
}

impl TenureState {
    /// The committed position, by which progress is told.
    pub(super) async fn committed(&self) -> Option<Position> {
        self.committer.lock().await.position().cloned()
    }
}

impl Watch {
    /// A tenure of `stream_slot` on `instance`, ended in order by `shutdown`.
    pub fn new(
        instance: Arc<Instance>,
        stream_slot: Arc<StreamSlot>,
        connected: &Connected,
        shutdown: CancellationToken,
    ) -> Self {
        let (spec, checkpoints) = (Arc::clone(&connected.spec), Arc::clone(&connected.checkpoints));
        Self {
            instance,
            stream_slot,
            spec,
            checkpoints,
            shutdown,
            unsettled: OnceLock::new(),
            failover: OnceLock::new(),
        }
    }

    /// Runs the tenure from its grant to its end.
    pub async fn run(self, lease_grant: GrantedLease) -> Outcome {
        let began = self.instance.seams.clock.now();
        metrics::acquired(self.stream_slot.name());
        let outcome = self.run_tenure(lease_grant).await;
        metrics::gave_up(self.stream_slot.name(), self.instance.seams.clock.now().since(began));
        outcome
    }

    async fn run_tenure(&self, lease_grant: GrantedLease) -> Outcome {
        let _ = self.failover.set(self.passes_from_another(&lease_grant));
        if self.is_after_a_break(&lease_grant) {
            let proved = lease_grant.proved.unwrap_or_else(|| self.instance.seams.clock.now());
            let _ = self.unsettled.set(proved + self.spec.settle());
        }
        let stale = self.read_before_claim().await;
        let claimed = match self.claim(lease_grant.grant.clone(), lease_grant.sent).await {
            Ok(claimed) => claimed,
            Err(NotClaimed::Lost) => return Outcome::Lost(Loss::Taken),
            Err(NotClaimed::Damaged(tenure, error)) => return self.halt_damaged(tenure, error).await,
            Err(NotClaimed::Failed(tenure, error)) => return self.leave_failed(&tenure, error).await,
        };
        let Claimed { tenure, checkpoint } = claimed;
        let checkpoint = stale.unwrap_or(checkpoint);
        let epoch = tenure.grant().epoch;
        if let Some(halted) = checkpoint.as_ref().and_then(|checkpoint| checkpoint.halted.clone()) {
            self.hint_halted(epoch).await;
            self.release(&tenure, Cause::Released, "the stream is halted").await;
            return Outcome::Halted(halted.cause);
        }
        let cause = lease_grant.previous.as_ref().map_or("nobody had it", |previous| ending_text(previous.ending));
        self.clear_hint().await;
        // It may have been halted and resumed without this instance hearing of either.
        self.stream_slot.stand_by_again();
        self.stream_slot.go(ListenerState::Running, Some(epoch), cause);
        self.stream_slot.publish(|status| status.tenures += 1);
        // Beside the work: people can wait for the journal, changes cannot.
        let counted = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.facts.failovers);
        let note = self.note_takeover(&tenure, &lease_grant, counted);
        let _noting = Task::spawn(&*self.instance.seams.spawn, "journal", note);
        let has_position = checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.position.is_some());
        let note = has_position.then(|| self.note_committed(&tenure));
        let _noting_home = note.map(|note| Task::spawn(&*self.instance.seams.spawn, "home", note));
        tenure.settle().await;
        self.run_openings(tenure, checkpoint).await
    }

    /// Starts a tenure: it is renewed and answered for from here on.
    pub(super) fn take_up(&self, grant: Grant, sent: Moment) -> Arc<Tenure> {
        let instance = &self.instance;
        let acting_time = instance.settings.lease.acting_time(instance.settings.hooks);
        let tenure = Arc::new(Tenure::new(grant, Arc::clone(&instance.seams.clock), sent, acting_time));
        if let Some(moment) = self.unsettled.get() {
            tenure.unsettle(*moment);
        }
        instance.held_tenures.enter(tenure.grant().tenure);
        instance.keeper.add(Arc::clone(&tenure));
        tenure
    }

    /// Ends a tenure without giving the lease back.
    pub(super) fn put_down(&self, tenure: &Tenure) {
        tenure.end(Loss::Taken);
        self.instance.keeper.remove(tenure.grant().tenure);
        self.instance.held_tenures.remove(tenure.grant().tenure);
    }

    /// Whether the watch passes to this instance from another one, while this one was there to take it over: after a crash, a silence
    /// or a failure, and after a shutdown or a hand-over. The move of an operator is none, and neither is a restart, of which
    /// either the name stays or the lease was given back before this process began.
    fn passes_from_another(&self, lease_grant: &GrantedLease) -> bool {
        let Some(previous) = &lease_grant.previous else { return false };
        let (instance, before) = (&self.instance, &previous.candidate);
        let is_other = before.instance != instance.id && before.name != instance.settings.name;
        let is_operator = before.name == operator::NAME && before.address.is_none();
        let lived = instance.seams.clock.now().since(instance.began);
        let was_there = previous.ending != Ending::Released || previous.vacant <= lived;
        is_other && !is_operator && was_there
    }

    /// Whether this tenure began with a failover.
    fn is_failover(&self) -> bool {
        self.failover.get().copied().unwrap_or(false)
    }

    /// Whether the last calls of a dead holder may still take effect at an exposed sink.
    fn is_after_a_break(&self, lease_grant: &GrantedLease) -> bool {
        let broken = |previous: &Previous| previous.ending == Ending::Broken;
        let is_broken = lease_grant.proved.is_some() || lease_grant.previous.as_ref().is_some_and(broken);
        is_broken && !self.spec.settle().is_zero()
    }

    /// Opens, runs and reopens until the tenure ends.
    async fn run_openings(&self, tenure: Arc<Tenure>, checkpoint: Option<Checkpoint>) -> Outcome {
        let committer = Arc::new(Mutex::new(self.committer(&tenure, checkpoint)));
        let mut tenure_state = TenureState { tenure, committer, letters: Vec::new(), gap: None, was_open: false };
        let mut recoveries = 0;
        loop {
            let before = tenure_state.committed().await;
            let (end, why) = self.open_and_run(&mut tenure_state).await;
            if end.abandoned {
                tenure_state.tenure.unsettle(self.instance.seams.clock.now() + self.spec.settle_before_reopening());
            }
            if tenure_state.committed().await != before {
                recoveries = 0;
            }
            match self.decide_next(&mut tenure_state, end, why, &mut recoveries).await {
                Next::Reopen => {}
                Next::End(outcome) => return outcome,
            }
        }
    }

    pub(super) fn committer(&self, tenure: &Arc<Tenure>, checkpoint: Option<Checkpoint>) -> Committer {
        let (instance, settings) = (&self.instance, &self.spec.settings);
        let records = Arc::clone(&instance.records);
        let start = CommitterStart {
            store: Arc::clone(&self.checkpoints),
            checkpoint,
            by: instance.settings.name.clone(),
            is_failover: self.is_failover(),
            history: History::new(records, &instance.settings.group, &self.stream_slot.key, settings.history),
            group: Arc::clone(&instance.view),
            health: Arc::clone(&self.stream_slot.health),
        };
        Committer::new(start, Arc::clone(tenure), instance.seams.clone(), settings.clone())
    }

    /// One opening, until it ends or there is a reason to leave.
    async fn open_and_run(&self, tenure_state: &mut TenureState) -> (End, Option<Departure>) {
        let leave = CancellationToken::new();
        let epoch = tenure_state.tenure.grant().epoch;
        let mut running = pin!(self.open(tenure_state, &leave));
        let mut leaving = pin!(self.reason_to_leave(epoch));
        let mut why = None;
        loop {
            tokio::select! {
                biased;
                reason = &mut leaving, if why.is_none() => {
                    why = Some(reason);
                    leave.cancel();
                }
                end = &mut running => return (end, why),
            }
        }
    }

    /// Completes when this instance should hand the watch over.
    pub(super) async fn reason_to_leave(&self, epoch: watchkeeper_core::Epoch) -> Departure {
        let mut control = self.stream_slot.control.clone();
        let mut place = self.instance.view.place();
        loop {
            if let Some(reason) = self.departure(&control.see(), epoch) {
                return reason;
            }
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Departure::Shutdown,
                changed = control.changed() => if changed.is_err() { return Departure::Shutdown },
                changed = place.changed() => if changed.is_err() { return Departure::Shutdown },
            }
        }
    }

    fn departure(&self, control: &Control, epoch: watchkeeper_core::Epoch) -> Option<Departure> {
        if self.shutdown.is_cancelled() {
            return Some(Departure::Shutdown);
        }
        if !self.instance.view.has_place() {
            return Some(Departure::Displaced);
        }
        // A preference decides who acquires, not who leaves: a preferred instance that cannot run the
        // stream would otherwise be handed it again and again.
        if control.paused {
            return Some(Departure::Paused);
        }
        control.asks_to_leave(epoch).then_some(Departure::Asked)
    }

    /// Writes the takeover to the journal. The checkpoint has `counted` so many failovers.
    fn note_takeover(
        &self,
        tenure: &Arc<Tenure>,
        lease_grant: &GrantedLease,
        counted: u64,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (instance, stream_slot) = (Arc::clone(&self.instance), Arc::clone(&self.stream_slot));
        let (tenure, previous) = (Arc::clone(tenure), lease_grant.previous.clone());
        let now = instance.seams.clock.now();
        let since_proof = lease_grant.proved.map(|proved| now.since(proved));
        let is_failover = self.is_failover();
        async move {
            let cx = tenure.cx().within(stream_slot.settings.timeouts.commit);
            let release_notice = cx.run(instance.journal.release_notice(&cx, stream_slot.name())).await.ok().flatten();
            let left = previous.as_ref().map(|previous| previous.candidate.tenure);
            let release_notice = release_notice
                .map(|(release_notice, _)| release_notice)
                .filter(|release_notice| Some(release_notice.tenure) == left);
            let cause = Cause::deduce(previous.as_ref(), release_notice.as_ref());
            let vacant = previous.as_ref().map_or(Duration::ZERO, |previous| previous.vacant);
            let vacant = since_proof.unwrap_or(vacant);
            if is_failover {
                metrics::took_over(stream_slot.name(), cause.as_str(), vacant);
            }
            let last = cx.run(instance.journal.recent(&cx, stream_slot.name(), 1)).await.unwrap_or_default();
            let failovers = last.first().map_or(0, |takeover| takeover.failovers).max(counted) + u64::from(is_failover);
            let takeover = Takeover {
                at_millis: instance.seams.clock.wall_millis(),
                epoch: tenure.grant().epoch,
                tenure: Some(tenure.grant().tenure),
                from: previous.map(|previous| previous.candidate.name),
                to: instance.settings.name.clone(),
                cause,
                vacant_millis: u64::try_from(vacant.as_millis()).unwrap_or(u64::MAX),
                failovers,
                note: release_notice.map(|release_notice| release_notice.text).unwrap_or_default(),
            };
            if let Err(error) = cx.run(instance.journal.append(&cx, stream_slot.name(), &takeover)).await {
                tracing::debug!(%error, "the takeover was not written to the journal");
            }
        }
    }

    /// What a mutant does: it loads the checkpoint and reads before it claims.
    async fn read_before_claim(&self) -> Option<Option<Checkpoint>> {
        let instance = &self.instance;
        if !instance.settings.hooks.breaks(Mutant::ClaimAfterRead) {
            return None;
        }
        let cx = instance.cx();
        let checkpoint = cx.run(self.checkpoints.load(&cx, &self.stream_slot.key)).await.ok()?;
        let position = checkpoint.as_ref()?.position.clone()?;
        let mut stream = cx.run(self.spec.source.open(&cx, StartAt::After(position))).await.ok()?;
        let limits = self.spec.settings.limits;
        let _ = cx.run(stream.next_batch(&cx, limits)).await;
        Some(checkpoint)
    }
}

fn ending_text(ending: Ending) -> &'static str {
    match ending {
        Ending::Released => "it was released",
        Ending::Expired => "it had expired",
        Ending::Broken => "its holder was proved dead",
    }
}
