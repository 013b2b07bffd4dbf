use std::fmt;

use watchkeeper_core::Grade;

/// How many examples are kept of each kind.
const EXAMPLES_MAX: usize = 5;

/// How often something was seen, with a few examples as sentences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// The first few.
    pub examples: Vec<String>,
}

impl Tally {
    pub(super) fn note(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let example = example();
            // A barrier is judged with every key, and so may be found more than once.
            if self.examples.contains(&example) {
                self.count -= 1;
            } else {
                self.examples.push(example);
            }
        }
    }

    /// Whether it was never seen.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What is to be said of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What the target is.
    pub grade: Grade,
    /// Changes that should have arrived and did not.
    pub lost: Tally,
    /// Deliveries that came before an earlier change of their key, or on the wrong side of a barrier.
    pub out_of_order: Tally,
    /// Changes that an epoch passed over: also a start after the last commit + 1.
    pub passed_over: Tally,
    /// Deliveries of what had been delivered before. Broken at a transactional target only.
    pub duplicated: Tally,
    /// Of these, what an earlier epoch had committed.
    pub needless: Tally,
    /// Writes of an epoch after a newer one had begun, where the target should have refused them.
    pub interleaved: Tally,
    /// Deliveries of what the source never told.
    pub strange: Tally,
}

impl Verdict {
    pub(super) fn new(grade: Grade) -> Self {
        let none = Tally::default;
        Self {
            grade,
            lost: none(),
            out_of_order: none(),
            passed_over: none(),
            duplicated: none(),
            needless: none(),
            interleaved: none(),
            strange: none(),
        }
    }

    /// What breaks a guarantee, by name.
    pub fn faults(&self) -> Vec<(&'static str, &Tally)> {
        let twice = self.grade == Grade::Transactional;
        let all = [
            ("lost", &self.lost, true),
            ("out of order", &self.out_of_order, true),
            ("passed over", &self.passed_over, true),
            ("duplicated", &self.duplicated, twice),
            ("needless", &self.needless, true),
            ("interleaved", &self.interleaved, true),
            ("strange", &self.strange, true),
        ];
        all.into_iter().filter(|(_, tally, counts)| *counts && !tally.is_empty()).map(|(n, t, _)| (n, t)).collect()
    }

    /// Whether no guarantee was broken.
    pub fn is_clean(&self) -> bool {
        self.faults().is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(f, "clean, {} duplicates", self.duplicated.count);
        }
        for (name, tally) in self.faults() {
            writeln!(f, "{name}: {}", tally.count)?;
            for example in &tally.examples {
                writeln!(f, "  {example}")?;
            }
        }
        Ok(())
    }
}
