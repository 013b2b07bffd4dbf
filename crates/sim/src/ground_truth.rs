//! What is really so, written down where effects happen, and the invariants that are checked there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use watchkeeper_core::memory::{Delivered, Log};
use watchkeeper_core::{CheckpointWrite, Commit, Epoch, Grant, LeaseKey, Moment, Position, TenureId};
use watchkeeper_testkit::history::Committed;

use crate::book::Book;

/// The truth of one run; clones are the same.
#[derive(Debug, Clone)]
pub struct GroundTruth {
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
    /// What is so at each of its sinks.
    pub sinks: Vec<AtSink>,
    /// The newest committed number.
    pub committed: u64,
    /// Accepted commits in order.
    pub commits: Vec<Committed>,
    /// Positions that two halves of a key update share.
    halves: BTreeSet<u64>,
}

/// What is so at one sink.
#[derive(Debug, Default)]
pub struct AtSink {
    /// Numbers of changes that are durable at the target or stand in the ledger, beyond `durable_to`.
    durable: BTreeSet<u64>,
    /// Everything up to here is durable or in the ledger.
    durable_to: u64,
    /// Ids that stand or stood in the ledger.
    pub excused: BTreeSet<String>,
    /// Ids that a handler rejected.
    pub rejected: BTreeSet<String>,
    /// Numbers in the ledger that have not been delivered, by key: they park it.
    letters: BTreeMap<Bytes, BTreeSet<u64>>,
}

impl AtSink {
    /// A change of `key` takes effect: the answer is a letter of that key that it has overtaken.
    fn overtakes(&mut self, key: &Bytes, number: u64) -> Option<u64> {
        let letters = self.letters.get_mut(key)?;
        letters.remove(&number);
        letters.first().copied().filter(|first| *first < number)
    }
}

impl Stream {
    /// The sink of this number.
    fn sink(&mut self, sink: usize) -> &mut AtSink {
        if self.sinks.len() <= sink {
            self.sinks.resize_with(sink + 1, AtSink::default);
        }
        &mut self.sinks[sink]
    }

    /// The number of the change with this id. Both halves of a key update are at a position `p`: the
    /// first is number `p - 1`, the second `p`.
    fn number_of(&self, id: &str) -> u64 {
        let hex = id.rsplit_once(':').map_or(id, |(_, hex)| hex);
        let second_half = hex.strip_suffix(".1");
        let position = u64::from_str_radix(second_half.unwrap_or(hex), 16).unwrap_or(0);
        let first_half = second_half.is_none() && self.halves.contains(&position);
        if first_half { position - 1 } else { position }
    }

    fn make_durable(&mut self, sink: usize, id: &str) {
        let number = self.number_of(id);
        let at = self.sink(sink);
        if number > at.durable_to {
            at.durable.insert(number);
        }
        while at.durable.remove(&(at.durable_to + 1)) {
            at.durable_to += 1;
        }
    }
}

impl GroundTruth {
    /// Nothing has happened yet.
    pub fn new(book: Book, self_fencing: bool) -> Self {
        Self { book, self_fencing, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what is so for one stream.
    pub fn stream<T>(&self, key: &LeaseKey, observation: impl FnOnce(&Stream) -> T) -> T {
        observation(self.state().streams.entry(key.clone()).or_default())
    }

    /// An instance was granted a lease that it asked for at `sent` on its clock.
    pub fn lease_runs(&self, grant: &Grant, sent: Moment, acting_time: Duration) {
        self.state().deadlines.insert((grant.tenure, grant.epoch), sent + acting_time);
    }

    /// An instance heard at `now` that a lease was renewed, after a request that it sent at `sent`. A
    /// deadline that had passed by then stays passed.
    pub fn renewed(&self, grant: &Grant, sent: Moment, now: Moment, acting_time: Duration) {
        if let Some(deadline) = self.state().deadlines.get_mut(&(grant.tenure, grant.epoch))
            && now < *deadline
        {
            *deadline = (*deadline).max(sent + acting_time);
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
    pub fn found_behind(&self, grant: &Grant, newest: Epoch) {
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
            let sink = sink_number(&entry.sink);
            stream.sink(sink).excused.insert(entry.change_id.clone());
            if let Some(change) = &entry.change {
                stream.make_durable(sink, &entry.change_id);
                let number = stream.number_of(&entry.change_id);
                if let Some(key) = change.key.clone().filter(|_| entry.kind.is_letter()) {
                    stream.sink(sink).letters.entry(key).or_default().insert(number);
                }
            }
        }
        let number = write.position.as_ref().map_or(0, number_at);
        let durable_to = stream.sinks.iter().map(|sink| sink.durable_to).min().unwrap_or(0);
        let before = stream.committed;
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

    /// A stream has so many sinks.
    pub fn has_sinks(&self, key: &LeaseKey, count: usize) {
        self.state().streams.entry(key.clone()).or_default().sink(count - 1);
    }

    /// A change took effect at a target.
    pub fn delivered(&self, key: &LeaseKey, sink: usize, delivered: &Delivered) {
        let mut state = self.state();
        let stream = state.streams.entry(key.clone()).or_default();
        stream.make_durable(sink, &delivered.id);
        let number = stream.number_of(&delivered.id);
        let is_newest = stream.claimed.is_some_and(|(epoch, _)| epoch == delivered.epoch);
        let overtaken = delivered.key.as_ref().and_then(|key| stream.sink(sink).overtakes(key, number));
        drop(state);
        // What an older epoch sent may arrive late; the newest one knows what is parked.
        if let Some(letter) = overtaken.filter(|_| is_newest) {
            self.book
                .violation(format_args!("change {number} overtook dead letter {letter} of its key at sink {sink}"));
        }
    }

    /// A handler will not take a change now: whoever goes on without it does so rightly.
    pub fn rejected(&self, key: &LeaseKey, sink: usize, id: &str) {
        self.state().streams.entry(key.clone()).or_default().sink(sink).rejected.insert(id.to_owned());
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

/// The name of a stream's sink of this number.
pub fn sink_name(number: usize) -> String {
    format!("target-{number}")
}

fn sink_number(name: &str) -> usize {
    name.strip_prefix("target-").and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn number_at(position: &Position) -> u64 {
    Log::number(position).unwrap_or(0)
}
