//! What the tasks of one opening share.
//!
//! `OpeningState::fail` keeps the first failure, with two exceptions. A transient failure gives way to
//! any other: a transaction that was given up with an unknown outcome must not be followed by another one with the same
//! sequence number. Of two rejected changes the earlier one counts, because it is the one right after the
//! checkpoint. A task that panics fails the opening, so no other task waits for it.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::Task;
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{Batch, Error, Latest, LedgerEntry, Operation, Pedigree, Position, Resolution, SourceTime};

use super::safe_point::{FlushedPrefix, PieceNumber, SafePoint};
use crate::delivery::parking::OnReject;
use crate::group::view::GroupView;
use crate::hooks::Hooks;
use crate::listener::Health;
use crate::listener::scope::{Scope, scope};
use crate::seams::Seams;
use crate::stream::{SinkSpec, StreamSpec};
use crate::tenure::{Loss, Tenure};

/// A change that a sink will never take.
#[derive(Debug)]
pub struct RejectedChange {
    /// Its piece and row.
    pub at: (PieceNumber, u32),
    /// Its id.
    pub id: String,
}

/// Why an opening ended, when it was not asked to.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Reopen inside the tenure.
    Transient(Error),
    /// Release, and let another instance try.
    Instance(Error),
    /// Halt the stream.
    Stream(Error),
    /// A sink will never take this change, and nobody may pass it: halt the stream right before it.
    Rejected {
        /// The change.
        change: Box<RejectedChange>,
        /// What the sink said.
        error: Error,
    },
    /// History is gone: the stream's policy decides.
    HistoryLost(Error),
    /// A handler called this change fatal.
    Fatal {
        /// The change.
        change_id: Box<str>,
        /// What it said.
        error: Error,
    },
    /// The tenure is over.
    Lost,
    /// Something else has failed before.
    Interrupted,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error() {
            Some(error) => f.write_str(&error.attributed_message()),
            None => f.write_str("the tenure is over"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(error)
    }
}

impl Failure {
    /// The error that it came from, if it came from one.
    pub fn error(&self) -> Option<&Error> {
        match self {
            Self::Transient(error)
            | Self::Instance(error)
            | Self::Stream(error)
            | Self::Rejected { error, .. }
            | Self::HistoryLost(error)
            | Self::Fatal { error, .. } => Some(error),
            Self::Lost | Self::Interrupted => None,
        }
    }

    /// What an error of a source, sink or store comes to.
    pub fn of(error: Error) -> Self {
        match scope(&error) {
            Scope::Transient => Self::Transient(error),
            Scope::Instance => Self::Instance(error),
            Scope::Stream => Self::Stream(error),
            Scope::History => Self::HistoryLost(error),
            Scope::Tenure => {
                // The target's own words: what it calls newer may be a leftover that only a person can judge.
                tracing::warn!(%error, "this epoch was refused, and its tenure is over");
                Self::Lost
            }
        }
    }
}

/// The failure of a change that `sink` will never take, where the policy is to stop.
pub(super) fn rejected((stream, sink): (&str, &str), batch: &Batch, at: (PieceNumber, u32), error: &Error) -> Failure {
    let change = Box::new(RejectedChange { at, id: batch.id(at.1).to_string() });
    // Not every source reads the rows of a snapshot one by one.
    let otherwise = match batch.rows()[at.1 as usize].operation {
        Operation::Read => "to put aside what the sink cannot take: on_reject = \"dead_letter\", and resume".to_owned(),
        _ => format!("to skip the change: `watchkeeper skip {stream}`"),
    };
    let repair = error.advice().unwrap_or("repair the target");
    let error = Error::rejected(format!("sink {sink:?} rejected change {}: {}", change.id, error.message()))
        .remedy(format!("{repair}; to go on after the repair: `watchkeeper resume {stream}`; {otherwise}"));
    Failure::Rejected { change, error }
}

/// Logs that a rejected change goes into the ledger, with the command that shows it.
pub(super) fn warn_passed_over((stream, sink): (&str, &SinkSpec), change: &str, cause: &str) {
    let what = match sink.on_reject {
        OnReject::DeadLetter { .. } => {
            format!("a change is a dead letter: see `watchkeeper dead-letters list {stream}`")
        }
        _ => format!("a change is skipped: see `watchkeeper dead-letters list {stream} --all`"),
    };
    tracing::warn!(stream, sink = sink.name, change, cause, "{what}");
}

/// What is safe and not yet committed.
#[derive(Debug, Default)]
pub struct Draft {
    /// The newest safe position.
    pub position: Option<Position>,
    /// The pedigree beside it.
    pub pedigree: Option<Pedigree>,
    /// The last change before it.
    pub last: Option<(Operation, SourceTime)>,
    /// Changes since the last commit.
    pub changes: u64,
    /// What is passed over.
    pub ledger: Vec<LedgerEntry>,
    /// Dead letters and parked changes of earlier commits that are settled.
    pub resolve: Vec<(u64, Resolution)>,
    /// Gaps of earlier commits that are settled.
    pub gaps_repaired: Vec<(u64, Resolution)>,
}

impl Draft {
    /// Adds what became safe after it.
    pub fn extend(&mut self, passed: FlushedPrefix) {
        self.position = passed.position.or(self.position.take());
        self.pedigree = passed.pedigree.or(self.pedigree.take());
        self.last = passed.last.or(self.last.take());
        self.changes += passed.changes;
        self.ledger.extend(passed.ledger);
    }
}

/// The shared state of one opening. Its locks are held for a few instructions per piece, never over an
/// await and never per change.
#[derive(Debug)]
pub struct OpeningState {
    /// The stream.
    pub stream: Arc<StreamSpec>,
    /// On whose behalf everything is done.
    pub tenure: Arc<Tenure>,
    /// Time, tasks, randomness.
    pub seams: Seams,
    /// What is known of the other instances.
    pub group: Arc<GroupView>,
    /// What does not work just now, and how far the stream is.
    pub health: Arc<Health>,
    /// Test hooks.
    pub hooks: Hooks,
    /// Set when reading and dispatching end, in order or not.
    pub halt: CancellationToken,
    /// Set when the opening has failed.
    pub failed: CancellationToken,
    /// Tells that the safe point, the demand or a lane moved.
    pub turned: Latest<u64>,
    /// Tells the checkpointer that a commit is wanted.
    pub wanted: Latest<u64>,
    /// The newest committed position, for the source.
    pub committed: Latest<Option<Position>>,
    /// A flush is wanted now: a barrier waits for it.
    demanded: AtomicBool,
    /// A flush has failed or a task panicked: what was accepted since the last good flush may be gone, so
    /// nothing more may be passed in this opening.
    spoiled: AtomicBool,
    /// Changes of the commit under way.
    committing: AtomicU64,
    /// The time of the first change of a transaction under way.
    transacting: Mutex<Option<SourceTime>>,
    safe: Mutex<SafePoint>,
    draft: Mutex<Draft>,
    failure: Mutex<Option<Failure>>,
}

impl OpeningState {
    /// The state of a new opening.
    pub fn new(
        stream: Arc<StreamSpec>,
        tenure: Arc<Tenure>,
        seams: Seams,
        group: Arc<GroupView>,
        health: Arc<Health>,
        hooks: Hooks,
    ) -> Arc<Self> {
        let safe = SafePoint::new(stream.settings.window_bytes, stream.settings.window_pieces);
        Arc::new(Self {
            stream,
            tenure,
            seams,
            group,
            health,
            hooks,
            halt: CancellationToken::new(),
            failed: CancellationToken::new(),
            turned: Latest::new(0),
            wanted: Latest::new(0),
            committed: Latest::new(None),
            demanded: AtomicBool::new(false),
            spoiled: AtomicBool::new(false),
            committing: AtomicU64::new(0),
            transacting: Mutex::default(),
            safe: Mutex::new(safe),
            draft: Mutex::default(),
            failure: Mutex::default(),
        })
    }

    /// Whether another instance could run this stream.
    pub fn has_healthy_peer(&self) -> bool {
        self.group.has_healthy_peer(&self.stream.settings.name)
    }

    /// The safe point.
    pub fn safe(&self) -> MutexGuard<'_, SafePoint> {
        self.safe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many changes were read and are not committed.
    pub fn in_flight(&self) -> u64 {
        let waiting = self.draft().changes + self.committing.load(Ordering::Acquire);
        let safe = self.safe();
        waiting + safe.rows_before(safe.newest())
    }

    /// Takes in how many changes the commit under way passes; none when it is done.
    pub fn set_committing(&self, changes: u64) {
        self.committing.store(changes, Ordering::Release);
    }

    /// Takes in the time of the first change of a transaction; none when it is done.
    pub fn set_transacting(&self, first: Option<SourceTime>) {
        *self.transacting.lock().unwrap_or_else(PoisonError::into_inner) = first;
    }

    /// The time of the oldest change that was read and is not delivered.
    pub fn oldest_undelivered(&self) -> Option<SourceTime> {
        let transacting = *self.transacting.lock().unwrap_or_else(PoisonError::into_inner);
        transacting.or_else(|| self.safe().oldest())
    }

    /// What waits for a commit.
    pub fn draft(&self) -> MutexGuard<'_, Draft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everyone who waits for this state.
    pub fn turn(&self) {
        self.turned.change(|count| *count += 1);
    }

    /// Asks for flushes as soon as anything is written, until it is asked no more.
    pub fn demand_flushes(&self, demanded: bool) {
        self.demanded.store(demanded, Ordering::Release);
        self.turn();
    }

    /// Whether flushes are asked for.
    pub fn flushes_demanded(&self) -> bool {
        self.demanded.load(Ordering::Acquire)
    }

    /// Passes nothing more in this opening: what was accepted may be gone.
    pub fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    /// Whether a flush has failed or a task panicked.
    pub fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }

    /// Asks for a commit of what is safe.
    pub fn want_commit(&self) {
        self.wanted.change(|count| *count += 1);
    }

    /// Ends the opening. The first failure stays, but one that would only reopen gives way to one that ends the tenure: whoever
    /// gave up a transaction without knowing what became of it must not go on, since the next one would be taken for it. Of two
    /// rejected changes the earlier one counts: it is the one right after the checkpoint.
    pub fn fail(&self, failure: Failure) {
        match failure {
            Failure::Interrupted => return,
            Failure::Lost if self.tenure.loss().is_none() => self.tenure.end(Loss::Fenced),
            _ => {}
        }
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // A call that was abandoned because the tenure ended fails like any other; the end counts.
        let failure = if self.tenure.loss().is_some() { Failure::Lost } else { failure };
        match (&*first, &failure) {
            (Some(Failure::Transient(_)), Failure::Transient(_)) => {}
            (None | Some(Failure::Transient(_)), _) => *first = Some(failure),
            (Some(Failure::Rejected { change: other, .. }), Failure::Rejected { change, .. })
                if change.at < other.at =>
            {
                *first = Some(failure);
            }
            (Some(_), _) => {}
        }
        drop(first);
        self.health.leave(self.oldest_undelivered());
        self.failed.cancel();
        self.halt.cancel();
        self.turn();
    }

    /// Whether nothing of this piece is wanted any more, since the opening has failed. What comes before a rejected change still is:
    /// the stream halts right before it.
    pub fn is_past(&self, piece: PieceNumber) -> bool {
        if !self.failed.is_cancelled() {
            return false;
        }
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Failure::Rejected { change, .. }) => piece > change.at.0,
            _ => true,
        }
    }

    /// Runs one of the opening's tasks. One that panics fails the opening: the others would wait for it
    /// for ever. What a sink had in hand when it panicked may be gone, so nothing more is passed.
    pub fn spawn_task(
        self: &Arc<Self>,
        name: &'static str,
        job: impl Future<Output = ()> + Send + 'static,
    ) -> Task<()> {
        let opening_state = Arc::clone(self);
        Task::spawn(&*self.seams.spawn, name, async move {
            if let Err(panic) = AssertUnwindSafe(job).catch_unwind().await {
                // What it left half done is not passed.
                opening_state.spoil();
                let cause = format!("the {name} panicked: {}", panic_text(&*panic));
                opening_state.fail(Failure::Instance(Error::internal(cause)));
            }
        })
    }

    /// Why the opening ended.
    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until `ready` holds of the safe point; false when the opening is halted before.
    pub async fn wait_until(&self, mut ready: impl FnMut(&SafePoint) -> bool) -> bool {
        let mut turned = self.turned.follow();
        loop {
            turned.mark_seen();
            if ready(&self.safe()) {
                return true;
            }
            tokio::select! {
                biased;
                () = self.halt.cancelled() => return false,
                changed = turned.changed() => if changed.is_err() { return false },
            }
        }
    }
}
