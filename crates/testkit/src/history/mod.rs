//! Judges what a target received against what a source told.
//!
//! Order is meant as G3 defines it:
//!
//! * Within an epoch the changes of one key arrive in source order, none passed over. A retry may
//!   deliver again what the epoch had delivered before, as one contiguous run that ends where it had
//!   been; those count as duplicates.
//! * A change without a key is a barrier: it is judged as if it belonged to every key.
//! * A new epoch starts at or before the last commit + 1, and (G6) does not repeat what was committed.
//! * Epochs never interleave at a transactional or fenced target. A versioned one does not look at
//!   epochs; there the same is seen key by key: no key ever goes back to an older change.
//! * At a transactional target nothing is delivered twice.
//!
//! Targets that show no barriers are judged by a source list without them. What stands in the ledger
//! (dead letters, parked and skipped changes) is excused: it is not lost, and may come late.

mod order;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use watchkeeper_core::memory::Delivered;
use watchkeeper_core::{Epoch, Grade, TenureId};

use order::Lane;
pub use verdict::{Tally, Verdict};

/// A change as the source told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceChange {
    /// Its place in the source; grows.
    pub number: u64,
    /// Its key; `None` for a barrier.
    pub key: Option<Bytes>,
    /// Its deterministic id.
    pub id: String,
}

/// A change as it took effect at the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Under which epoch.
    pub epoch: Epoch,
    /// By which tenure.
    pub tenure: TenureId,
    /// The change's id.
    pub id: String,
    /// The change's key, as the target has it.
    pub key: Option<Bytes>,
}

impl From<&Delivered> for Delivery {
    fn from(delivered: &Delivered) -> Self {
        let Delivered { epoch, tenure, id, key, .. } = delivered;
        Self { epoch: *epoch, tenure: *tenure, id: id.clone(), key: key.clone() }
    }
}

/// A commit that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Under which epoch.
    pub epoch: Epoch,
    /// The number of the last change that it passes.
    pub through: u64,
}

/// All that is known of a run.
#[derive(Debug, Clone)]
pub struct History {
    /// What the source told, in order.
    pub source: Vec<SourceChange>,
    /// What took effect, in order.
    pub deliveries: Vec<Delivery>,
    /// The commits that were accepted, in order. An operator's move may go back.
    pub commits: Vec<Committed>,
    /// Ids of what was passed over on purpose.
    pub excused: BTreeSet<String>,
    /// What the target is.
    pub grade: Grade,
    /// Whether the run came to its end, so that everything must have arrived; else only what was
    /// committed must have.
    pub drained: bool,
}

impl History {
    /// A drained run without commits and without a ledger.
    pub fn new(grade: Grade, source: Vec<SourceChange>, deliveries: Vec<Delivery>) -> Self {
        Self { source, deliveries, commits: Vec::new(), excused: BTreeSet::new(), grade, drained: true }
    }

    /// Judges the run.
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict::new(self.grade);
        let judge = Judge::new(self);
        judge.strangers(&mut verdict);
        judge.losses(&mut verdict);
        judge.duplicates(&mut verdict);
        judge.tenures(&mut verdict);
        judge.epochs(&mut verdict);
        judge.orders(&mut verdict);
        judge.repeats_of_commits(&mut verdict);
        verdict
    }
}

/// A history with its changes found by id.
struct Judge<'a> {
    history: &'a History,
    by_id: BTreeMap<&'a str, &'a SourceChange>,
    /// Deliveries of known changes that are not excused, in order.
    known: Vec<(&'a Delivery, &'a SourceChange)>,
}

impl<'a> Judge<'a> {
    fn new(history: &'a History) -> Self {
        let by_id: BTreeMap<_, _> = history.source.iter().map(|change| (change.id.as_str(), change)).collect();
        let judged = history.deliveries.iter().filter(|delivery| !history.excused.contains(&delivery.id));
        let known = judged.filter_map(|delivery| Some((delivery, *by_id.get(delivery.id.as_str())?))).collect();
        Self { history, by_id, known }
    }

    /// Targets at which a repeated write leaves no trace.
    fn swallows_repeats(&self) -> bool {
        matches!(self.history.grade, Grade::Idempotent | Grade::Versioned)
    }

    fn strangers(&self, verdict: &mut Verdict) {
        for delivery in &self.history.deliveries {
            match self.by_id.get(delivery.id.as_str()) {
                None => verdict.strange.note(|| format!("{} was delivered, but the source never told it", delivery.id)),
                Some(change) if change.key != delivery.key => {
                    verdict.strange.note(|| format!("{} was delivered under another key than its own", change.id));
                }
                Some(_) => {}
            }
        }
    }

    fn losses(&self, verdict: &mut Verdict) {
        let arrived: BTreeSet<_> = self.history.deliveries.iter().map(|delivery| delivery.id.as_str()).collect();
        let committed = self.history.commits.last().map_or(0, |commit| commit.through);
        for change in &self.history.source {
            let due = self.history.drained || change.number <= committed;
            let passed = self.history.excused.contains(&change.id);
            if due && !passed && !arrived.contains(change.id.as_str()) {
                verdict.lost.note(|| format!("change {} ({}) never arrived", change.number, change.id));
            }
        }
    }

    fn duplicates(&self, verdict: &mut Verdict) {
        let mut seen: BTreeMap<&str, Epoch> = BTreeMap::new();
        for (delivery, change) in &self.known {
            if let Some(first) = seen.get(delivery.id.as_str()) {
                let (number, now) = (change.number, delivery.epoch);
                verdict.duplicated.note(|| format!("change {number} came in epoch {first} and again in epoch {now}"));
            } else {
                seen.insert(&delivery.id, delivery.epoch);
            }
        }
    }

    /// One epoch is one tenure's.
    fn tenures(&self, verdict: &mut Verdict) {
        let mut tenures: BTreeMap<Epoch, TenureId> = BTreeMap::new();
        for delivery in &self.history.deliveries {
            let tenure = *tenures.entry(delivery.epoch).or_insert(delivery.tenure);
            if tenure != delivery.tenure {
                let (epoch, other) = (delivery.epoch, delivery.tenure);
                verdict.interleaved.note(|| format!("epoch {epoch} was written by {tenure} and by {other}"));
            }
        }
    }

    fn epochs(&self, verdict: &mut Verdict) {
        match self.history.grade {
            Grade::Versioned => self.keys_never_go_back(verdict),
            Grade::Plain | Grade::Idempotent => {}
            // Those that check the epoch. Of a grade that is not known here yet the most is demanded.
            _ => self.epochs_never_go_back(verdict),
        }
    }

    fn epochs_never_go_back(&self, verdict: &mut Verdict) {
        let mut newest = Epoch::ZERO;
        for delivery in &self.history.deliveries {
            if delivery.epoch < newest {
                let (epoch, id) = (delivery.epoch, &delivery.id);
                verdict
                    .interleaved
                    .note(|| format!("{id} was written by epoch {epoch} after epoch {newest} had begun"));
            }
            newest = newest.max(delivery.epoch);
        }
    }

    fn keys_never_go_back(&self, verdict: &mut Verdict) {
        let mut newest: BTreeMap<&Bytes, u64> = BTreeMap::new();
        for (delivery, change) in &self.known {
            let Some(key) = &change.key else { continue };
            let at = newest.entry(key).or_insert(0);
            if change.number <= *at {
                let (number, epoch, at) = (change.number, delivery.epoch, *at);
                verdict.interleaved.note(|| format!("epoch {epoch} set a key from change {at} back to {number}"));
            }
            *at = (*at).max(change.number);
        }
    }

    /// The number after which `epoch` has to begin: what the epochs before it had committed last.
    /// `None` when commits are not known.
    fn start_of(&self, epoch: Epoch) -> Option<u64> {
        if self.history.commits.is_empty() {
            return None;
        }
        let mut earlier = self.history.commits.iter().filter(|commit| commit.epoch < epoch);
        Some(earlier.next_back().map_or(0, |commit| commit.through))
    }

    fn orders(&self, verdict: &mut Verdict) {
        let epochs: BTreeSet<_> = self.known.iter().map(|(delivery, _)| delivery.epoch).collect();
        let keys: BTreeSet<_> = self.known.iter().filter_map(|(_, change)| change.key.as_ref()).collect();
        for key in keys {
            self.order_of(&epochs, Some(key), verdict);
        }
        if self.known.iter().all(|(_, change)| change.key.is_none()) {
            self.order_of(&epochs, None, verdict);
        }
    }

    /// Judges the changes of one key, and all barriers.
    fn order_of(&self, epochs: &BTreeSet<Epoch>, key: Option<&Bytes>, verdict: &mut Verdict) {
        let concerns = |change: &SourceChange| change.key.is_none() || change.key.as_ref() == key;
        let changes = self.history.source.iter().filter(|change| concerns(change));
        let changes: Vec<_> = changes.filter(|change| !self.history.excused.contains(&change.id)).collect();
        let mut before: BTreeSet<u64> = BTreeSet::new();
        for epoch in epochs {
            let of_epoch = self.known.iter().filter(|(delivery, _)| delivery.epoch == *epoch);
            let delivered: Vec<_> = of_epoch.filter(|(_, change)| concerns(change)).map(|(_, c)| c.number).collect();
            let excused = if self.swallows_repeats() { before.clone() } else { BTreeSet::new() };
            Lane { epoch: *epoch, changes: &changes, start: self.start_of(*epoch), excused }.judge(&delivered, verdict);
            before.extend(delivered);
        }
    }

    fn repeats_of_commits(&self, verdict: &mut Verdict) {
        for (delivery, change) in &self.known {
            let start = self.start_of(delivery.epoch).unwrap_or(0);
            if change.number <= start {
                let (number, epoch) = (change.number, delivery.epoch);
                verdict
                    .needless
                    .note(|| format!("epoch {epoch} delivered change {number}, though {start} was committed"));
            }
        }
    }
}
