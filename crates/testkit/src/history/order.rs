use std::collections::BTreeSet;

use watchkeeper_core::Epoch;

use super::SourceChange;
use super::verdict::Verdict;

/// The changes of one key with all barriers, as one epoch has to deliver them.
pub(super) struct Lane<'a> {
    pub(super) epoch: Epoch,
    pub(super) changes: &'a [&'a SourceChange],
    /// The last number that was committed before this epoch, if commits are known.
    pub(super) start: Option<u64>,
    /// Numbers that this epoch may pass over: the target had them and swallows repeats.
    pub(super) excused: BTreeSet<u64>,
}

/// How far a lane has come, as places in what was told.
#[derive(Default)]
struct Progress {
    /// After the furthest change that was delivered.
    furthest: usize,
    /// After the last change that was delivered; below `furthest` during a replay.
    cursor: usize,
    seen: BTreeSet<usize>,
}

impl Lane<'_> {
    /// Judges the numbers that were delivered, in their order.
    pub(super) fn judge(&self, delivered: &[u64], verdict: &mut Verdict) {
        let mut progress: Option<Progress> = None;
        for number in delivered {
            let place = self.changes.partition_point(|change| change.number < *number);
            match &mut progress {
                None => {
                    self.begin(place, verdict);
                    let seen = BTreeSet::from([place]);
                    progress = Some(Progress { furthest: place + 1, cursor: place + 1, seen });
                }
                Some(progress) => self.step(place, progress, verdict),
            }
        }
    }

    /// The first change of the lane must be the first after the last commit, or an earlier one.
    fn begin(&self, place: usize, verdict: &mut Verdict) {
        let Some(start) = self.start else { return };
        let first = self.changes.partition_point(|change| change.number <= start);
        self.pass(first, place, verdict);
    }

    fn step(&self, place: usize, progress: &mut Progress, verdict: &mut Verdict) {
        if place >= progress.furthest {
            // A replay has to come to where the lane had been before the lane goes on.
            self.pass_in_replay(progress, verdict);
            self.pass(progress.furthest, place, verdict);
            progress.furthest = place + 1;
        } else if !progress.seen.contains(&place) {
            let (late, early) = (self.number(place), self.number(progress.furthest - 1));
            let epoch = self.epoch;
            verdict.out_of_order.note(|| format!("epoch {epoch} delivered change {late} after change {early}"));
        } else if place > progress.cursor {
            let (from, to, epoch) = (self.number(progress.cursor), self.number(place), self.epoch);
            verdict.out_of_order.note(|| format!("epoch {epoch} replayed change {to} without {from} before it"));
        }
        progress.seen.insert(place);
        progress.cursor = place + 1;
    }

    fn pass_in_replay(&self, progress: &Progress, verdict: &mut Verdict) {
        if progress.cursor < progress.furthest {
            let (open, epoch) = (self.number(progress.cursor), self.epoch);
            verdict.out_of_order.note(|| format!("epoch {epoch} broke off a replay before change {open} and went on"));
        }
    }

    /// Everything between two places was passed over.
    fn pass(&self, from: usize, to: usize, verdict: &mut Verdict) {
        for change in self.changes.iter().take(to).skip(from) {
            if !self.excused.contains(&change.number) {
                let (number, epoch) = (change.number, self.epoch);
                verdict.passed_over.note(|| format!("epoch {epoch} went on without change {number}"));
            }
        }
    }

    fn number(&self, place: usize) -> u64 {
        self.changes.get(place).map_or(0, |change| change.number)
    }
}
