//! How a person moves a checkpoint: as a holder of its own, never past the fence.
//!
//! The stream is paused, so that its holder leaves in order; the lease is acquired as a tenure named
//! "operator"; the key is claimed, after which a holder that did not notice can write nothing; one
//! commit says what is wanted; the lease is given back and the pause lifted. Only that one commit may
//! go back, and the tenure makes no other.
//!
//! The lease is not renewed. A move takes a few round trips; one that takes longer than the lease is
//! refused before its commit.
//!
//! A move is planned twice. Before the pause it is refused if no holder could make it possible by leaving, so the
//! stream is not interrupted for nothing. Only the second plan, made under the claim, is committed.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Entropy,
    Epoch, Error, ErrorKind, Facts, Grant, Halted, Holder, LeaseStore, Position, Reason, Records, Result, TenureId,
    Wakeups,
};

pub use super::moves::{Back, Move, Subject, outranked, require_gap, swallowing};

use super::history::{BLOCK_ENTRIES, CAPACITY, History};
use super::lost::{self, has_committed, lost, newest};
use super::moves::{Plan, Planner};
use crate::group::control::Controls;
use crate::group::journal::{Cause, Journal, utc};
use crate::group::poison::Poison;
use crate::group::store_binding::StoreBindings;
use crate::instance::Stores;
use crate::settings::InstanceSettings;
use crate::stream::StreamSpec;

/// The name that an operator's tenure goes by.
pub const NAME: &str = "operator";

/// A claim that is behind again and again means that someone else acquires above us each time.
const CLAIMS: usize = 8;

/// A commit of unknown outcome is repeated so often.
const COMMITS: usize = 4;

/// Lifting the pause is tried so often: a move must not leave a stream standing.
const CLEAN_UPS: usize = 5;

/// Where releases are not announced, or the announcement was missed, the lease is looked at so often.
const INSPECT_EVERY: Duration = Duration::from_secs(1);

/// Performs operators' moves.
#[derive(Debug, Clone)]
pub struct Operator {
    /// Where the stream's lease is.
    pub leases: Arc<dyn LeaseStore>,
    /// Where the stream's checkpoint is.
    pub checkpoints: Arc<dyn CheckpointStore>,
    /// Where the group's records are.
    pub records: Arc<dyn Records>,
    /// The group's name.
    pub group: String,
    /// For the identity of the tenure.
    pub entropy: Arc<Entropy>,
    /// For how long the lease is asked for.
    pub ttl: Duration,
}

/// What a move did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveReport {
    /// The epoch that it was committed under.
    pub epoch: Epoch,
    /// Where the stream stood.
    pub before: Option<Position>,
    /// Where it stands.
    pub after: Option<Position>,
    /// How many entries of the ledger tell what was passed over.
    pub ledgered: usize,
    /// The halt that was lifted.
    pub lifted: Option<Halted>,
    /// The sinks that will swallow what is replayed, a sentence each.
    pub swallowing: Vec<String>,
    /// Why the stream halts again as soon as an instance takes it, although the halt was lifted.
    pub halts_again: Option<String>,
    /// What did not work beside the commit, a sentence each.
    pub remarks: Vec<String>,
}

/// What a move leaves behind, for those who run the stream.
#[derive(Debug, Clone, Copy)]
struct MoveFollowUp {
    runs_again: bool,
    /// The epoch of the move, if it lifted a halt.
    lifted_under: Option<Epoch>,
}

impl Operator {
    /// The operator of one stream of a group: with the checkpoint store that the stream has, which need not be the group's.
    pub fn of(stream: &StreamSpec, stores: &Stores, settings: &InstanceSettings, entropy: Arc<Entropy>) -> Self {
        Self {
            leases: Arc::clone(&stores.leases),
            checkpoints: stores.checkpoints_of(stream),
            records: Arc::clone(&stores.records),
            group: settings.group.clone(),
            entropy,
            ttl: settings.lease.ttl,
        }
    }

    /// Performs a move and answers with what it did.
    ///
    /// A move that can be seen to be impossible is refused before the stream is paused. Otherwise it waits until the holder has left,
    /// for as long as `cx` allows. Whatever happens, the lease is given back and the pause lifted.
    ///
    /// # Errors
    /// `Config` when the move makes no sense, `Unavailable` when the holder did not leave in time,
    /// `PositionLost` when the source cannot resume from the target; nothing was committed then.
    /// `Unknown` when the commit may have happened: look at the checkpoint before asking again.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropped, it leaves the stream paused until `cx` would have ended, or until a person lifts that. End it
    /// through `cx` instead.
    pub async fn move_to(&self, cx: &Cx, subject: &Subject<'_>, requested: Move) -> Result<MoveReport> {
        self.refuse_impossible(cx, subject, &requested).await?;
        let tenure = self.entropy.tenure();
        let patience = cx.remaining();
        let begun = self.controls().update(cx, subject.stream, |control| control.begin_move(tenure, patience)).await;
        let outcome = match begun {
            Ok(_) => self.perform(cx, subject, tenure, requested).await,
            Err(error) => Err(error),
        };
        let runs_again = outcome.as_ref().is_ok_and(|(_, plan)| !plan.keeps_halt);
        let lifted = outcome.as_ref().ok().filter(|(report, _)| report.lifted.is_some());
        let after = MoveFollowUp { runs_again, lifted_under: lifted.map(|(report, _)| report.epoch) };
        let remarks = self.clean_up(cx, subject, tenure, after).await;
        match outcome {
            Ok((report, _)) => Ok(MoveReport { remarks: [report.remarks, remarks].concat(), ..report }),
            Err(error) if remarks.is_empty() => Err(error.name_stream(subject.stream)),
            Err(error) => {
                let both = format!("{} {}", error.message(), remarks.join(" "));
                Err(Error::new(error.kind(), both).caused_by(error))
            }
        }
    }

    /// Refuses what no holder can make possible by leaving: the stream is not paused for it. What cannot be found out is left to the
    /// move itself.
    async fn refuse_impossible(&self, cx: &Cx, subject: &Subject<'_>, requested: &Move) -> Result<()> {
        let history = History::new(Arc::clone(&self.records), &self.group, subject.key, CAPACITY);
        let bindings = StoreBindings::new(Arc::clone(&self.records), &self.group);
        let (stores, names) = ((&*self.checkpoints, &bindings), (subject.stream, subject.key));
        let Ok(holder) = self.holder(cx, subject).await else { return Ok(()) };
        let Ok(current) = lost::load(cx, stores, names, &history).await else { return Ok(()) };
        let checkpoints = &*self.checkpoints;
        let planner = Planner { subject: *subject, current: current.as_ref(), checkpoints, history: &history };
        let Err(error) = planner.plan(cx, requested.clone()).await else { return Ok(()) };
        let is_lost = error.kind() == ErrorKind::PositionLost;
        let is_definite = match requested {
            _ if holder.is_none() => is_lost || matches!(error.kind(), ErrorKind::Config | ErrorKind::Corrupt),
            Move::AcceptGap { .. } => is_lost || error.kind() == ErrorKind::Config,
            // A holder that leaves writes the end of the history, at most a block.
            Move::Rewind(Back::Steps(steps)) => {
                is_lost || history.read(cx, usize::MAX).await.is_ok_and(|known| *steps > known.len() + BLOCK_ENTRIES)
            }
            // A holder that leaves commits once more: what is not there yet may be then.
            _ => is_lost,
        };
        if is_definite { Err(error) } else { Ok(()) }
    }

    async fn perform(
        &self,
        cx: &Cx,
        subject: &Subject<'_>,
        tenure: TenureId,
        requested: Move,
    ) -> Result<(MoveReport, Plan)> {
        let mut history = History::new(Arc::clone(&self.records), &self.group, subject.key, CAPACITY);
        let (cx, grant, current) = self.claim(cx, subject, tenure, &history).await?;
        let checkpoints = &*self.checkpoints;
        let planner = Planner { subject: *subject, current: current.as_ref(), checkpoints, history: &history };
        let kind = requested.clone();
        let plan = planner.plan(&cx, requested).await?;
        let write = write(&cx, grant, current.as_ref(), &plan);
        self.commit(&cx, &write).await?;
        current.iter().for_each(|current| history.inherit(current));
        history.note(&write.to_checkpoint());
        let halted = current.as_ref().and_then(|current| current.halted.clone());
        let is_lost = write.position.is_none() && write.facts.begun == Some(true) && !plan.keeps_halt;
        let halts_again = is_lost.then(|| halted.as_ref().map_or_else(String::new, |halted| halted.cause.clone()));
        let remark = halts_again.as_ref().map(|cause| format!("Its position is lost, so it halts again: {cause}."));
        let did = done(&kind, current.as_ref(), write.position.as_ref());
        let report = MoveReport {
            epoch: write.grant.epoch,
            before: current.and_then(|current| current.position),
            after: write.position,
            ledgered: write.ledger.len(),
            lifted: halted.filter(|_| !plan.keeps_halt),
            swallowing: if plan.replays { swallowing(subject.sinks) } else { Vec::new() },
            remarks: self
                .publish(&cx, subject, tenure, history, (&plan, &did))
                .await
                .into_iter()
                .chain(remark)
                .collect(),
            halts_again,
        };
        Ok((report, plan))
    }

    /// Acquires and claims. The answer's context ends with the lease. A checkpoint that is missing or damaged is answered as lost: a move
    /// is how people mend it.
    async fn claim(
        &self,
        cx: &Cx,
        subject: &Subject<'_>,
        tenure: TenureId,
        history: &History,
    ) -> Result<(Cx, Grant, Option<Checkpoint>)> {
        let mut floor = Epoch::ZERO;
        for _ in 0..CLAIMS {
            let (bounded, grant) = self.acquire(cx, subject, tenure, floor).await?;
            let what = match self.checkpoints.claim(&bounded, &grant).await {
                Ok(Claim::Claimed(Some(current))) => return Ok((bounded, grant, Some(*current))),
                Ok(Claim::Claimed(None)) if self.has_committed(&bounded, subject, history).await? => {
                    "is missing".to_owned()
                }
                Ok(Claim::Claimed(None)) => return Ok((bounded, grant, None)),
                Ok(Claim::Behind { newest }) => {
                    floor = newest;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => format!("cannot be read ({})", error.message()),
                Err(error) => return Err(error),
            };
            let error = lost(subject.stream, &what, newest(&bounded, history).await.as_ref());
            let current = Checkpoint::lost(Some(&grant), &error);
            return Ok((bounded, grant, Some(current)));
        }
        Err(Error::unavailable(format!("{} was claimed by others {CLAIMS} times in a row", subject.key)))
    }

    async fn has_committed(&self, cx: &Cx, subject: &Subject<'_>, history: &History) -> Result<bool> {
        let identity = self.checkpoints.identity(cx).await?;
        let bindings = StoreBindings::new(Arc::clone(&self.records), &self.group);
        has_committed(cx, &bindings, (subject.stream, identity), history).await
    }

    /// Waits until the lease is free and takes it.
    async fn acquire(&self, cx: &Cx, subject: &Subject<'_>, tenure: TenureId, floor: Epoch) -> Result<(Cx, Grant)> {
        // Before the first look, so that no release is missed in between.
        let mut wakeups = self.leases.wakeups(cx).await?;
        loop {
            // Counted from before the request, as every holder does (G5).
            let bounded = cx.within(self.ttl);
            let holder = match self.holder(cx, subject).await? {
                Some(holder) if holder.candidate.tenure != tenure => holder,
                _ => match self.leases.try_acquire(&bounded, &self.ask(subject, tenure, floor)).await? {
                    Acquired::Granted { grant, .. } => return Ok((bounded, grant)),
                    Acquired::Held(holder) => holder,
                },
            };
            if self.wait(cx, &mut *wakeups, &holder).await.is_err() {
                wakeups = self.leases.wakeups(cx).await?;
            }
            cx.check().map_err(|error| still_held(subject, &holder).caused_by(error))?;
        }
    }

    /// Waits for a release of any key, or until it is time to look anyway. An error means that
    /// releases are not heard of any more.
    async fn wait(&self, cx: &Cx, wakeups: &mut dyn Wakeups, holder: &Holder) -> Result<()> {
        let pause = holder.remaining.min(INSPECT_EVERY).max(INSPECT_EVERY / 50);
        let pause = cx.remaining().map_or(pause, |remaining| remaining.min(pause));
        let outcome = tokio::select! {
            biased;
            () = cx.cancelled() => Ok(()),
            woken = wakeups.next(cx) => woken,
            () = cx.sleep(pause) => return Ok(()),
        };
        if outcome.is_err() {
            cx.sleep(pause).await;
        }
        outcome
    }

    fn ask(&self, subject: &Subject<'_>, tenure: TenureId, floor: Epoch) -> AcquireRequest {
        // The tenure's own bits serve as the process: an operator has no other identity.
        let instance = watchkeeper_core::InstanceId(tenure.0);
        let candidate = Candidate { instance, name: NAME.to_owned(), address: None, tenure };
        AcquireRequest { key: subject.key.clone(), candidate, ttl: self.ttl, floor, break_holder: None }
    }

    async fn holder(&self, cx: &Cx, subject: &Subject<'_>) -> Result<Option<Holder>> {
        let mut holders = self.leases.holders(cx, std::slice::from_ref(subject.key)).await?;
        Ok(holders.pop().flatten())
    }

    async fn commit(&self, cx: &Cx, write: &CheckpointWrite) -> Result<()> {
        let mut attempt = 1;
        loop {
            cx.check()?;
            match self.checkpoints.commit(cx, std::slice::from_ref(write)).await {
                // Repeated unchanged: going back by steps twice would be another move.
                Err(error) if error.kind() == ErrorKind::Unknown && attempt < COMMITS => attempt += 1,
                Err(error) => return Err(error),
                Ok(answers) => return accepted(&answers, write),
            }
        }
    }

    /// What is worth telling others after the commit. None of it can undo the move.
    async fn publish(
        &self,
        cx: &Cx,
        subject: &Subject<'_>,
        tenure: TenureId,
        history: History,
        (plan, did): (&Plan, &str),
    ) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Err(error) = history.close(cx).await {
            remarks.push(format!("The move is not in the history: {error}."));
        }
        let journal = Journal::new(Arc::clone(&self.records), &self.group);
        if let Err(error) = journal.leave(cx, subject.stream, tenure, Cause::Operator, did).await {
            remarks.push(format!("The journal will not name the operator: {error}."));
        }
        if plan.keeps_halt {
            return remarks;
        }
        if plan.delivers_anew
            && let Err(error) =
                StoreBindings::new(Arc::clone(&self.records), &self.group).forget_targets(cx, subject.stream).await
        {
            remarks.push(format!("A table of a sink that is missing will not be made anew: {error}."));
        }
        let poison = Poison::new(Arc::clone(&self.records), &self.group);
        if let Err(error) = poison.clear(cx, subject.stream).await {
            remarks.push(format!("Changes that were fatal before are still counted: {error}."));
        }
        remarks
    }

    /// Gives the lease back and lifts the pause, also when the caller's time is over. The answer is
    /// what did not work.
    async fn clean_up(&self, cx: &Cx, subject: &Subject<'_>, tenure: TenureId, after: MoveFollowUp) -> Vec<String> {
        let cx = &Cx::new(Arc::clone(cx.clock()));
        let mut remarks = Vec::new();
        if let Err(error) = self.release(&cx.within(self.ttl), subject, tenure).await {
            remarks.push(format!("The lease was not given back and has to run out: {error}."));
        }
        if let Err(error) = self.lift(&cx.within(self.ttl), subject, tenure, after).await {
            let stream = subject.stream;
            remarks.push(format!("Stream {stream} is still paused, resume it by hand: {error}."));
        }
        remarks
    }

    /// Releases what this tenure holds. It is looked up, since an acquire of unknown outcome may have
    /// been granted.
    async fn release(&self, cx: &Cx, subject: &Subject<'_>, tenure: TenureId) -> Result<()> {
        let Some(holder) = self.holder(cx, subject).await?.filter(|holder| holder.candidate.tenure == tenure) else {
            return Ok(());
        };
        let grant = Grant { key: subject.key.clone(), tenure, epoch: holder.epoch };
        self.leases.release(cx, &grant).await.map(|_| ())
    }

    async fn lift(&self, cx: &Cx, subject: &Subject<'_>, tenure: TenureId, after: MoveFollowUp) -> Result<()> {
        let controls = self.controls();
        let mut attempt = 1;
        loop {
            let lifted = controls.update(cx, subject.stream, |control| {
                control.end_move(tenure);
                control.halted_hint &= !after.runs_again;
                if let Some(epoch) = after.lifted_under {
                    control.note_resumed(epoch);
                }
            });
            match lifted.await {
                Ok(_) => return Ok(()),
                Err(error) if attempt == CLEAN_UPS => return Err(error),
                Err(_) => cx.sleep(self.entropy.jitter(self.ttl / 20)).await,
            }
            attempt += 1;
        }
    }

    fn controls(&self) -> Controls {
        Controls::new(Arc::clone(&self.records), &self.group)
    }
}

/// What a move did, for the journal.
fn done(requested: &Move, before: Option<&Checkpoint>, after: Option<&Position>) -> String {
    let to = after.map_or_else(|| "its beginning".to_owned(), ToString::to_string);
    let did = match requested {
        Move::Resume => "resumed the stream".to_owned(),
        Move::Set(_) | Move::Rewind(_) => format!("moved the checkpoint to {to}"),
        Move::Skip { entry, .. } => format!("skipped change {}", entry.change_id),
        Move::AcceptGap { .. } => format!("accepted a gap and moved the checkpoint to {to}"),
        Move::Reset => "reset the checkpoint".to_owned(),
        Move::Resolve { .. } => "settled dead letters".to_owned(),
    };
    let halt = before.filter(|_| !matches!(requested, Move::Resolve { .. })).and_then(|before| {
        let halted = before.halted.as_ref()?;
        if before.reason == Reason::Operator {
            // Written anew by an operator who settled dead letters: who halted it is not known any more.
            return Some(format!("; it was halted: {}", halted.cause));
        }
        let (by, at) = (&before.facts.processed_by, utc(before.facts.updated_at_millis));
        Some(format!("; {by} had halted the stream at {at}: {}", halted.cause))
    });
    did + &halt.unwrap_or_default()
}

fn still_held(subject: &Subject<'_>, holder: &Holder) -> Error {
    let (key, name, epoch) = (subject.key, &holder.candidate.name, holder.epoch);
    Error::unavailable(format!("{key} is still held by {name} under epoch {epoch}"))
        .remedy("give it more time to leave, or stop that instance")
}

fn write(cx: &Cx, grant: Grant, current: Option<&Checkpoint>, plan: &Plan) -> CheckpointWrite {
    let facts = current.map(|current| current.facts.clone()).unwrap_or_default();
    let is_lost = current.is_some_and(Checkpoint::has_lost_position);
    let begun = !plan.resets && (plan.position.is_some() || is_lost);
    let added = plan.ledger.iter().filter(|entry| entry.kind.is_letter()).count() as u64;
    CheckpointWrite {
        grant,
        seq: 1,
        position: plan.position.clone(),
        pedigree: plan.pedigree.clone(),
        reason: Reason::Operator,
        halted: current.and_then(|current| current.halted.clone()).filter(|_| plan.keeps_halt),
        facts: Facts {
            updated_at_millis: cx.clock().wall_millis(),
            processed_by: NAME.to_owned(),
            letters: (facts.letters + added).saturating_sub(plan.letters_settled),
            begun: Some(begun),
            ..facts
        },
        ledger: plan.ledger.clone(),
        resolve: plan.resolve.clone(),
    }
}

fn accepted(answers: &[Commit], write: &CheckpointWrite) -> Result<()> {
    match answers {
        [Commit::Committed | Commit::AlreadyDone] => Ok(()),
        [Commit::Fenced] => Err(Error::fenced(format!("{} was claimed by a newer tenure meanwhile", write.grant.key))),
        _ => Err(Error::internal("one commit was not answered by one answer")),
    }
}
