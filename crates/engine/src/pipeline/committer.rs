//! Commits checkpoints of one tenure, one at a time (G1).
//!
//! It lives as long as the tenure, over all reopenings: a commit whose answer was lost is repeated
//! unchanged before anything else is committed, never merged with what came after.
//!
//! One committer serves the lanes and the transactional path, so a halt or an accepted gap takes the sequence number
//! after the last transaction. The checkpointer or the transactional task holds its lock for the whole opening. The
//! position changes only in `Committer::record`.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Component, Cx, Error, ErrorKind, Facts, Halted,
    Moment, Pedigree, Position, Reason,
};

use super::opening_state::{Draft, Failure};
use crate::checkpoint::history::History;
use crate::group::view::GroupView;
use crate::listener::Health;
use crate::metrics;
use crate::progress::CallProgress;
use crate::seams::Seams;
use crate::settings::StreamSettings;
use crate::tenure::{Loss, Tenure};

/// Commits the checkpoints of one tenure.
#[derive(Debug)]
pub struct Committer {
    store: Arc<dyn CheckpointStore>,
    tenure: Arc<Tenure>,
    seams: Seams,
    settings: StreamSettings,
    call_progress: Arc<CallProgress>,
    seq: u64,
    position: Option<Position>,
    pedigree: Option<Pedigree>,
    facts: Facts,
    /// Whether a checkpoint is stored.
    stored: bool,
    /// A write whose answer is not known.
    pending: Option<CheckpointWrite>,
    /// Whether that write may have been sent before, so that "already done" is what it did itself.
    sent: bool,
    /// The last checkpoints, for going back on purpose.
    pub history: History,
    /// When to store the checkpoints that the stored history lacks, if some do.
    history_due: Option<Moment>,
    /// Few checkpoints have waited for the usual time, and wait longer.
    has_waited: bool,
    group: Arc<GroupView>,
    health: Arc<Health>,
}

/// For so long, at most, checkpoints may be missing in the stored history, unless a block is full sooner.
const HISTORY_EVERY: Duration = Duration::from_secs(60);

/// The same for few checkpoints: a history of many small blocks costs its store more.
const SMALL_HISTORY_EVERY: Duration = Duration::from_secs(600);

/// So many checkpoints are few.
const FEW: usize = 10;

/// What fails when a commit is not answered.
const PART: &str = "commit";

/// What a committer starts from.
#[derive(Debug)]
pub struct CommitterStart {
    /// Where checkpoints are kept.
    pub store: Arc<dyn CheckpointStore>,
    /// What the claim answered.
    pub checkpoint: Option<Checkpoint>,
    /// The name of this instance.
    pub by: String,
    /// Whether its tenure began with a failover.
    pub is_failover: bool,
    /// Where the history is kept.
    pub history: History,
    /// What is known of the other instances.
    pub group: Arc<GroupView>,
    /// What does not work just now.
    pub health: Arc<Health>,
}

impl Committer {
    /// The committer of `tenure`.
    pub fn new(start: CommitterStart, tenure: Arc<Tenure>, seams: Seams, settings: StreamSettings) -> Self {
        let checkpoint = start.checkpoint;
        let mut facts = checkpoint.as_ref().map(|checkpoint| checkpoint.facts.clone()).unwrap_or_default();
        facts.failovers += u64::from(start.is_failover);
        facts.processed_by = start.by;
        if checkpoint.as_ref().is_some_and(Checkpoint::has_lost_position) {
            facts.begun = Some(true);
        }
        let mut history = start.history;
        // A holder that died has not written its last checkpoints.
        checkpoint.iter().for_each(|checkpoint| history.inherit(checkpoint));
        // Many tenures may begin at the same time.
        let history_due = checkpoint.is_some().then(|| seams.clock.now() + seams.entropy.jitter(HISTORY_EVERY));
        Self {
            store: start.store,
            seams,
            settings,
            call_progress: tenure.progress().call_progress("checkpointer"),
            tenure,
            seq: 0,
            position: checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.clone()),
            stored: checkpoint.is_some(),
            pedigree: checkpoint.and_then(|checkpoint| checkpoint.pedigree),
            facts,
            pending: None,
            sent: false,
            history,
            history_due,
            has_waited: false,
            group: start.group,
            health: start.health,
        }
    }

    /// The newest committed position.
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Whether a checkpoint is stored, with or without a position.
    pub fn is_stored(&self) -> bool {
        self.stored
    }

    /// Whether a position was committed before, and is gone.
    pub fn has_lost_position(&self) -> bool {
        self.position.is_none() && self.facts.begun == Some(true)
    }

    /// Takes in that a position was committed before, and is gone: what is committed from now on says so.
    pub fn note_lost(&mut self) {
        self.facts.begun = Some(true);
    }

    /// The pedigree beside it.
    pub fn pedigree(&self) -> Option<&Pedigree> {
        self.pedigree.as_ref()
    }

    /// Whether a commit of `draft` would change anything. An idle source repeats its position, and that
    /// is no reason to commit, unless it is the position of another log: after a gap that has to be
    /// known, or the gap would be found again.
    pub fn is_moved_by(&self, draft: &Draft) -> bool {
        let position = draft.position.as_ref().map(|position| &position.bytes);
        let elsewhere = position.is_some() && position != self.position.as_ref().map(|position| &position.bytes);
        let other_log = draft.pedigree.is_some() && draft.pedigree != self.pedigree;
        elsewhere || other_log || draft.changes > 0 || !draft.ledger.is_empty() || !draft.resolve.is_empty()
    }

    /// The next write: what a transactional sink commits with its changes.
    pub fn draft_write(&self, draft: Draft, reason: Reason, halted: Option<Halted>) -> CheckpointWrite {
        let mut facts = self.facts.clone();
        facts.changes += draft.changes;
        facts.updated_at_millis = self.seams.clock.wall_millis();
        if let Some((operation, time)) = draft.last {
            facts.last_operation = Some(operation);
            facts.last_event_time = Some(time);
        }
        let letters = draft.ledger.iter().filter(|entry| entry.kind.is_letter()).count() as u64;
        facts.letters = (facts.letters + letters).saturating_sub(draft.resolve.len() as u64);
        let resolve = draft.resolve.into_iter().chain(draft.gaps_repaired).collect();
        let position = draft.position.or_else(|| self.position.clone());
        facts.begun = Some(position.is_some() || facts.begun == Some(true));
        CheckpointWrite {
            grant: self.tenure.grant().clone(),
            seq: self.seq + 1,
            position,
            pedigree: draft.pedigree.or_else(|| self.pedigree.clone()),
            reason,
            halted,
            facts,
            ledger: draft.ledger,
            resolve,
        }
    }

    /// Takes in that `write` is committed.
    pub fn record(&mut self, write: &CheckpointWrite) {
        let changes = write.facts.changes.saturating_sub(self.facts.changes);
        let now = self.seams.clock.wall_millis();
        // A commit of no change says nothing of how old changes are.
        let newest = write.facts.last_event_time.filter(|_| changes > 0);
        let lag = newest.map(|time| Duration::from_millis(now.saturating_sub(time.0)));
        metrics::delivered(&self.settings.name, changes, lag);
        for entry in &write.ledger {
            metrics::ledgered(&self.settings.name, entry.kind);
        }
        self.health.mark_recovered(PART);
        self.stored = true;
        self.seq = write.seq;
        self.position = write.position.clone();
        self.pedigree = write.pedigree.clone();
        self.facts = write.facts.clone();
        self.history.note(&write.to_checkpoint());
        self.history_due.get_or_insert_with(|| self.seams.clock.now() + HISTORY_EVERY);
        metrics::committed(&self.settings.name);
    }

    /// Waits until it may be time to store the history.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn history_overdue(&self) {
        match self.history_due {
            Some(due) => self.seams.clock.sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Stores the checkpoints that the history lacks, if it is time. Few of them wait longer.
    pub async fn write_history_if_due(&mut self, cx: &Cx) {
        let now = self.seams.clock.now();
        let is_overdue = self.history_due.is_some_and(|due| now >= due);
        if self.history.due() || is_overdue && (self.history.unwritten() >= FEW || self.has_waited) {
            self.write_history(cx).await;
        } else if is_overdue {
            self.has_waited = true;
            self.history_due = Some(now + (SMALL_HISTORY_EVERY - HISTORY_EVERY));
        }
    }

    /// Stores the checkpoints that the history lacks. The history is written after the commit, in blocks; losing a block loses nothing but comfort.
    pub async fn write_history(&mut self, cx: &Cx) {
        let written = cx.run(self.history.flush(cx)).await;
        self.has_waited = false;
        // What was not written is tried again as late as what is new.
        self.history_due = written.is_err().then(|| self.seams.clock.now() + HISTORY_EVERY);
        if let Err(error) = written {
            tracing::debug!(%error, "the history of checkpoints was not written");
        }
    }

    /// Commits `draft`; returns when it is durable, or never will be.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped commit is repeated unchanged by the next one.
    pub async fn commit(&mut self, draft: Draft, reason: Reason, halted: Option<Halted>) -> Result<(), Failure> {
        self.settle().await?;
        self.sent = false;
        self.pending = Some(self.draft_write(draft, reason, halted));
        self.settle().await
    }

    /// Commits a halt where the stored checkpoint was removed or damaged: claims again, and gives up the write that found it out. The
    /// last committed position is written again.
    pub async fn halt_anew(&mut self, halted: Halted) -> Result<(), Failure> {
        (self.pending, self.sent) = (None, false);
        let call = self.tenure.call(&self.call_progress, self.settings.timeouts.commit);
        let claim = self.store.claim(call.cx(), self.tenure.grant());
        let claim = call.run(&Component::Checkpoints, claim).await;
        drop(call);
        match claim {
            Ok(Claim::Claimed(stored)) => {
                let own = stored.filter(|stored| stored.tenure == self.tenure.grant().tenure);
                self.seq = own.map_or(0, |stored| stored.seq);
            }
            Ok(Claim::Behind { .. }) => return Err(self.fenced()),
            // Claimed, but not readable: its number is the one that is known here.
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(Failure::Instance(error)),
        }
        self.commit(Draft::default(), Reason::Final, Some(halted)).await
    }

    /// Repeats the commit whose answer is not known, until it is.
    pub async fn settle(&mut self) -> Result<(), Failure> {
        let (mut attempt, began) = (0, self.seams.clock.now());
        while let Some(write) = self.pending.take() {
            // Put back at once, so that it survives if this call is dropped.
            self.pending = Some(write.clone());
            let was_sent = self.sent;
            // Also a call that is dropped midway may have been sent.
            self.sent = true;
            let call = self.tenure.call(&self.call_progress, self.settings.timeouts.commit);
            let answer =
                call.run(&Component::Checkpoints, self.store.commit(call.cx(), std::slice::from_ref(&write))).await;
            drop(call);
            match answer.map(|answers| answers.first().copied()) {
                // Done already, though it was never sent: a transaction whose answer was lost took its number.
                Ok(Some(Commit::AlreadyDone)) if !was_sent => {
                    self.adopt(write).await?;
                }
                Ok(Some(Commit::Committed | Commit::AlreadyDone)) => {
                    self.record(&write);
                    self.pending = None;
                }
                Ok(Some(Commit::Fenced)) => return Err(self.fenced()),
                Ok(None) => return Err(Failure::Instance(Error::internal("a commit was not answered"))),
                Err(error) => self.retry_or_fail(error, &mut attempt, began).await?,
            }
        }
        Ok(())
    }

    /// Takes in what the store says was committed last, and puts `write` behind it.
    async fn adopt(&mut self, write: CheckpointWrite) -> Result<(), Failure> {
        let call = self.tenure.call(&self.call_progress, self.settings.timeouts.commit);
        let claim = call.run(&Component::Checkpoints, self.store.claim(call.cx(), self.tenure.grant())).await;
        drop(call);
        let stored = match claim {
            Ok(Claim::Claimed(Some(stored))) => stored,
            Ok(Claim::Claimed(None)) => return Err(Failure::Instance(Error::internal("a commit is done and gone"))),
            Ok(Claim::Behind { .. }) => return Err(self.fenced()),
            Err(_) if self.tenure.loss().is_some() => return Err(Failure::Lost),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Err(Failure::of(error)),
            // Asked again with the next attempt.
            Err(_) => {
                self.sent = false;
                return Ok(());
            }
        };
        let moved = write.position != self.position;
        self.seq = stored.seq;
        self.position = stored.position;
        self.pedigree = stored.pedigree;
        self.facts = stored.facts;
        let position = if moved { write.position.clone() } else { self.position.clone() };
        self.sent = false;
        self.pending = Some(CheckpointWrite { seq: self.seq + 1, position, ..write });
        Ok(())
    }

    /// Ends the tenure: a newer grant has claimed.
    pub fn fenced(&self) -> Failure {
        metrics::fenced(&self.settings.name);
        let grant = self.tenure.grant();
        tracing::warn!(stream = self.settings.name, key = %grant.key, epoch = grant.epoch.0, "fenced: a newer epoch has claimed the checkpoint");
        self.tenure.end(Loss::Fenced);
        Failure::Lost
    }

    /// Logs that a commit is repeated: each cause once a minute.
    fn log_repeated(&self, error: &Error) {
        let Some(due) = self.health.log_due(PART, error) else { return };
        let (stream, left_out) = (&self.settings.name, due.left_out);
        match error.kind() {
            ErrorKind::Unknown => {
                tracing::warn!(stream, %error, left_out, "a commit was not answered; it is repeated unchanged");
            }
            _ => tracing::warn!(stream, %error, left_out, "a commit failed; it is repeated unchanged"),
        }
    }

    async fn retry_or_fail(&self, error: Error, attempt: &mut u32, began: Moment) -> Result<(), Failure> {
        if self.tenure.loss().is_some() {
            return Err(Failure::Lost);
        }
        if error.kind() == ErrorKind::Corrupt {
            return Err(Failure::of(error));
        }
        let waited = self.seams.clock.now().since(began);
        if waited > self.settings.give_up && self.group.has_healthy_peer(&self.settings.name) {
            // Whether it was written or not: whoever claims next reads what is so, and fences this one.
            return Err(Failure::Instance(error));
        }
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Unknown => {
                self.log_repeated(&error);
                self.health.fail(PART, &error);
                let delay = self.settings.retry.backoff.delay(*attempt, &self.seams.entropy);
                *attempt += 1;
                self.tenure.sleep(delay).await;
                Ok(())
            }
            ErrorKind::Fenced => Err(self.fenced()),
            _ => Err(Failure::Instance(error)),
        }
    }
}
