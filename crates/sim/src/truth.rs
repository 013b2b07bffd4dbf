//! What is really so, written down where effects happen, and the invariants that are checked there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use watchkeeper_core::memory::{Delivered, Log};
use watchkeeper_core::{CheckpointWrite, Commit, Epoch, Grant, LeaseKey, Moment, Position, TenureId};
use watchkeeper_testkit::history::Committed;

use crate::book::Book;

/// The truth of one run; clones are the same.
#[derive(Debug, Clone)]
pub struct Truth {
    book: Book,
    /// Whether holders end themselves at their deadline; if not, calls after it are to be expected.
    self_fencing: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<LeaseKey, Stream>,
    /// Until when a tenure may act, on its own clock: counted from before its requests.
    deadlines: BTreeMap<(TenureId, Epoch), Moment>,
    /// The newest claimed epoch that a tenure was told to be behind of.
    behind: BTreeMap<TenureId, Epoch>,
    /// Tenures that have sent their release.
    released: BTreeSet<TenureId>,
}

/// What is so for one stream.
#[derive(Debug, Default)]
pub struct Stream {
    /// The newest claim that was accepted.
    claimed: Option<(Epoch, TenureId)>,
    /// Numbers of changes that are durable at the target or stand in the ledger, beyond `durable_to`.
    durable: BTreeSet<u64>,
    /// Everything up to here is durable or in the ledger.
    durable_to: u64,
    /// The newest committed number.
    pub committed: u64,
    /// Accepted commits in order.
    pub commits: Vec<Committed>,
    /// Ids that stand or stood in the ledger.
    pub excused: BTreeSet<String>,
    /// Ids that a handler rejected.
    pub rejected: BTreeSet<String>,
    /// Positions that two halves of a key update share.
    halves: BTreeSet<u64>,
}

impl Stream {
    /// The number of the change with this id. Both halves of a key update are at a position `p`: the
    /// first is number `p - 1`, the second `p`.
    fn number_of(&self, id: &str) -> u64 {
        let hex = id.rsplit_once(':').map_or(id, |(_, hex)| hex);
        let second_half = hex.strip_suffix(".1");
        let position = u64::from_str_radix(second_half.unwrap_or(hex), 16).unwrap_or(0);
        let first_half = second_half.is_none() && self.halves.contains(&position);
        if first_half { position - 1 } else { position }
    }

    fn make_durable(&mut self, id: &str) {
        let number = self.number_of(id);
        if number > self.durable_to {
            self.durable.insert(number);
        }
        while self.durable.remove(&(self.durable_to + 1)) {
            self.durable_to += 1;
        }
    }
}

impl Truth {
    /// Nothing has happened yet.
    pub fn new(book: Book, self_fencing: bool) -> Self {
        Self { book, self_fencing, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what is so for one stream.
    pub fn stream<T>(&self, key: &LeaseKey, look: impl FnOnce(&Stream) -> T) -> T {
        look(self.state().streams.entry(key.clone()).or_default())
    }

    /// An instance was granted a lease that it asked for at `sent` on its clock.
    pub fn lease_runs(&self, grant: &Grant, sent: Moment, reign: Duration) {
        self.state().deadlines.insert((grant.tenure, grant.epoch), sent + reign);
    }

    /// An instance heard at `now` that a lease was renewed, after a request that it sent at `sent`. A
    /// deadline that had passed by then stays passed.
    pub fn renewed(&self, grant: &Grant, sent: Moment, now: Moment, reign: Duration) {
        if let Some(deadline) = self.state().deadlines.get_mut(&(grant.tenure, grant.epoch))
            && now < *deadline
        {
            *deadline = (*deadline).max(sent + reign);
        }
    }

    /// An instance sends something to a target, at `now` on its clock (G5).
    pub fn target_called(&self, grant: &Grant, now: Moment, what: &str) {
        let state = self.state();
        let deadline = state.deadlines.get(&(grant.tenure, grant.epoch)).copied();
        let released = state.released.contains(&grant.tenure);
        drop(state);
        if self.self_fencing && deadline.is_none_or(|deadline| now >= deadline) {
            let late = deadline.map(|deadline| now.since(deadline));
            self.book.violation(format_args!(
                "{what} was sent to the target by epoch {} after its deadline ({late:?} late)",
                grant.epoch
            ));
        }
        if released {
            self.book.violation(format_args!("{what} was sent by epoch {} after its release", grant.epoch));
        }
    }

    /// An instance sends its release.
    pub fn release_sent(&self, grant: &Grant) {
        self.state().released.insert(grant.tenure);
    }

    /// An instance sends a commit.
    pub fn commit_sent(&self, grant: &Grant) {
        if self.state().released.contains(&grant.tenure) {
            self.book.violation(format_args!("epoch {} committed after its release", grant.epoch));
        }
    }

    /// An instance sends a claim: not under an epoch of which it knows that it is behind.
    pub fn claim_sent(&self, grant: &Grant) {
        let behind = self.state().behind.get(&grant.tenure).copied();
        if behind.is_some_and(|newest| grant.epoch <= newest) {
            self.book.violation(format_args!("epoch {} was claimed again, though it is behind", grant.epoch));
        }
    }

    /// An instance was told that its claim is behind.
    pub fn told_behind(&self, grant: &Grant, newest: Epoch) {
        self.state().behind.insert(grant.tenure, newest);
    }

    /// A claim was accepted.
    pub fn claimed(&self, grant: &Grant) {
        let mut state = self.state();
        let stream = state.streams.entry(grant.key.clone()).or_default();
        let before = stream.claimed.replace((grant.epoch, grant.tenure));
        drop(state);
        match before {
            Some((_, tenure)) if tenure == grant.tenure => {}
            Some((epoch, _)) if epoch > grant.epoch => {
                self.book.violation(format_args!("epoch {} claimed after epoch {epoch}", grant.epoch));
            }
            Some(_) => self.book.count("takeovers"),
            None => self.book.count("first claims"),
        }
    }

    /// A commit was answered at the store.
    pub fn committed(&self, write: &CheckpointWrite, answer: Commit) {
        let epoch = write.grant.epoch;
        match answer {
            Commit::Fenced => self.book.count("fenced commits"),
            Commit::AlreadyDone => self.book.count("repeated commits"),
            Commit::Committed => {
                self.book.count("commits");
                self.accepted(write, epoch);
            }
        }
    }

    fn accepted(&self, write: &CheckpointWrite, epoch: Epoch) {
        let mut state = self.state();
        let stream = state.streams.entry(write.grant.key.clone()).or_default();
        let newest = stream.claimed;
        for entry in &write.ledger {
            stream.excused.insert(entry.change_id.clone());
            if entry.change.is_some() {
                stream.make_durable(&entry.change_id);
            }
        }
        let number = write.position.as_ref().map_or(0, number_at);
        let (before, durable_to) = (stream.committed, stream.durable_to);
        stream.committed = stream.committed.max(number);
        stream.commits.push(Committed { epoch, through: number });
        drop(state);
        if newest != Some((epoch, write.grant.tenure)) {
            self.book.violation(format_args!("a stale commit of epoch {epoch} was accepted; newest is {newest:?}"));
        }
        if number < before {
            self.book.violation(format_args!("the checkpoint went back from {before} to {number} in epoch {epoch}"));
        }
        if number > durable_to {
            self.book.violation(format_args!(
                "epoch {epoch} committed {number}, but only everything up to {durable_to} is durable"
            ));
        }
        if let Some(halted) = &write.halted {
            self.book.violation(format_args!("the stream was halted: {}", halted.cause));
        }
    }

    /// A change took effect at a target.
    pub fn delivered(&self, key: &LeaseKey, delivered: &Delivered) {
        let mut state = self.state();
        let stream = state.streams.entry(key.clone()).or_default();
        stream.make_durable(&delivered.id);
    }

    /// A handler will not take a change now: whoever goes on without it does so rightly.
    pub fn rejected(&self, key: &LeaseKey, id: &str) {
        self.state().streams.entry(key.clone()).or_default().rejected.insert(id.to_owned());
    }

    /// A key update was written whose halves are at `position`.
    pub fn halved(&self, key: &LeaseKey, position: u64) {
        self.state().streams.entry(key.clone()).or_default().halves.insert(position);
    }

    /// A position was acknowledged at the source.
    pub fn acknowledged(&self, key: &LeaseKey, position: &Position) {
        let number = number_at(position);
        let committed = self.state().streams.entry(key.clone()).or_default().committed;
        if number > committed {
            self.book.violation(format_args!("{number} was acknowledged, but only {committed} is committed"));
        }
    }
}

fn number_at(position: &Position) -> u64 {
    Log::number(position).unwrap_or(0)
}
