//! What the run came to, counted from what the sink really received.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Serialize, Serializer};
use watchkeeper_drill::{Fault, Verdict};

use super::event::{Takeover, slug};

/// In the order in which they are told.
const KINDS: [Fault; 5] = [Fault::Kill, Fault::Pause, Fault::Stop, Fault::HandOver, Fault::Fail];

/// How fast the takeovers of one kind were.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Figures {
    /// How often it was done.
    faults: usize,
    /// How many takeovers were timed.
    count: usize,
    median_ms: Option<f64>,
    max_ms: Option<f64>,
}

/// The end of a run.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) takeovers: Vec<Takeover>,
    pub(super) faults: Vec<Fault>,
    /// What should have happened more often.
    pub(super) missing: Vec<String>,
    /// Somebody pressed Ctrl-C.
    pub(super) interrupted: bool,
}

impl Report {
    /// Whether the promises were kept. The sink is transactional, so a duplicate would break one too.
    pub(super) fn is_sound(&self) -> bool {
        self.verdict.is_sound() && self.verdict.duplicated.count == 0
    }

    /// Whether the promises were kept, and tried often enough.
    pub(super) fn is_good(&self) -> bool {
        self.is_sound() && self.missing.is_empty()
    }

    fn figures(&self, kind: Fault) -> Figures {
        let mut millis: Vec<f64> =
            self.takeovers.iter().filter(|takeover| takeover.kind == kind).map(|takeover| takeover.millis).collect();
        millis.sort_unstable_by(f64::total_cmp);
        let faults = self.faults.iter().filter(|fault| **fault == kind).count();
        let middle = millis.len() / 2;
        let upper = millis.get(middle).copied();
        let median_ms =
            upper.map(|upper| if millis.len() % 2 == 1 { upper } else { (millis[middle - 1] + upper) / 2.0 });
        let median_ms = median_ms.map(|median| (median * 10.0).round() / 10.0);
        let max_ms = millis.last().copied();
        Figures { faults, count: millis.len(), median_ms, max_ms }
    }

    fn examples(&self) -> impl Iterator<Item = &String> {
        let verdict = &self.verdict;
        let bad =
            [&verdict.lost, &verdict.duplicated, &verdict.out_of_order, &verdict.stale_accepted, &verdict.strange];
        bad.into_iter().flat_map(|tally| &tally.examples)
    }

    /// For people.
    pub(super) fn text(&self, colours: bool) -> String {
        let mut text = String::from("\n");
        self.write_takeovers(&mut text);
        self.write_counts(&mut text);
        self.write_judgement(&mut text, colours);
        text
    }

    fn write_takeovers(&self, text: &mut String) {
        let _ = writeln!(text, "  {:<18}{:>6}{:>14}{:>14}", "takeover after", "times", "median ms", "slowest ms");
        for kind in KINDS {
            let Figures { faults, median_ms, max_ms, .. } = self.figures(kind);
            let number = |millis: Option<f64>| millis.map_or_else(|| "-".to_owned(), |millis| format!("{millis:.0}"));
            let _ = writeln!(text, "  {kind:<18}{faults:>6}{:>14}{:>14}", number(median_ms), number(max_ms));
        }
    }

    fn write_counts(&self, text: &mut String) {
        let verdict = &self.verdict;
        let counts = [
            ("written", verdict.written),
            ("delivered", verdict.delivered),
            ("lost", verdict.lost.count),
            ("duplicated", verdict.duplicated.count),
            ("out of order", verdict.out_of_order.count),
            ("stale writes refused", verdict.stale_refused),
            ("stale writes accepted", verdict.stale_accepted.count),
        ];
        text.push('\n');
        for (name, count) in counts {
            let _ = writeln!(text, "  {name:<22}{count:>9}");
        }
    }

    fn write_judgement(&self, text: &mut String, colours: bool) {
        let (green, red, reset) = if colours { ("\x1b[1;32m", "\x1b[1;31m", "\x1b[0m") } else { ("", "", "") };
        text.push('\n');
        self.examples().for_each(|example| {
            let _ = writeln!(text, "  {example}");
        });
        let faults = self.faults.len();
        let _ = match (self.is_sound(), self.missing.is_empty()) {
            (true, true) => {
                let delivered = self.verdict.delivered;
                let sentence = format!("All {delivered} changes arrived, once and in order, through {faults} faults.");
                writeln!(text, "  {green}{sentence}{reset}")
            }
            (true, false) => {
                let missing = self.missing.join(", ");
                writeln!(
                    text,
                    "  {red}Nothing went wrong, but too little was tried: {missing}.{reset} Is the machine busy?"
                )
            }
            (false, _) => {
                writeln!(text, "  {red}A promise was broken. Please report this, with what --keep leaves.{reset}")
            }
        };
        if self.is_sound() {
            text.push_str(
                "  Now your own: `watchkeeper init` writes a first file, `watchkeeper run` keeps the watch.\n",
            );
        }
    }
}

impl Serialize for Report {
    /// The keys are for programs: they stay.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            event: &'static str,
            good: bool,
            interrupted: bool,
            written: u64,
            delivered: u64,
            lost: u64,
            duplicated: u64,
            out_of_order: u64,
            stale_refused: u64,
            stale_accepted: u64,
            takeovers: BTreeMap<&'static str, Figures>,
            missing: &'a [String],
            examples: Vec<&'a String>,
        }
        let verdict = &self.verdict;
        let flat = Flat {
            event: "verdict",
            good: self.is_good(),
            interrupted: self.interrupted,
            written: verdict.written,
            delivered: verdict.delivered,
            lost: verdict.lost.count,
            duplicated: verdict.duplicated.count,
            out_of_order: verdict.out_of_order.count,
            stale_refused: verdict.stale_refused,
            stale_accepted: verdict.stale_accepted.count,
            takeovers: KINDS.iter().map(|kind| (slug(*kind), self.figures(*kind))).collect(),
            missing: &self.missing,
            examples: self.examples().collect(),
        };
        flat.serialize(serializer)
    }
}

#[cfg(test)]
mod tests;
