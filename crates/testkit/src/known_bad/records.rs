use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::memory::RecordStore;
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{Cx, PutOutcome, Record, Records, Result, Revision};

use super::{KnownBad, give_way};
use crate::laws::RecordsBench;
use crate::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    PutIgnoresTheExpectation,
    LooksBeforeItLeaps,
    RevisionStartsAnewAfterDelete,
    OversizedIsCutOff,
    LargestIsRefused,
    DeleteIgnoresTheRevision,
    DeleteDoesNothing,
    AppendIsUnbounded,
    AppendKeepsTheOldest,
    LogsShareOneName,
    TailIsNewestFirst,
    TextOnly,
    ListIsAPattern,
    ListIgnoresCase,
    AgeStandsStill,
    AppendWritesBackWhatItRead,
    ListIsUnordered,
}

/// Records with one flaw each.
pub fn records() -> Vec<KnownBad<RecordsBench>> {
    use Flaw::*;
    let all = [
        (PutIgnoresTheExpectation, "r1_unexpected_state_is_a_conflict"),
        (LooksBeforeItLeaps, "r1_of_many_at_once_one_creates"),
        (RevisionStartsAnewAfterDelete, "r2_revisions_are_never_reused"),
        (OversizedIsCutOff, "r3_oversized_is_refused_and_changes_nothing"),
        (LargestIsRefused, "r3_largest_is_taken"),
        (DeleteIgnoresTheRevision, "r4_document_of_another_revision_stays"),
        (DeleteDoesNothing, "r4_expected_document_is_deleted"),
        (AppendIsUnbounded, "r5_newest_entries_are_kept_in_order"),
        (AppendKeepsTheOldest, "r5_newest_entries_are_kept_in_order"),
        (LogsShareOneName, "r5_logs_are_independent"),
        (TailIsNewestFirst, "tail_is_the_newest_with_the_oldest_first"),
        (TextOnly, "get_gives_what_was_put"),
        (ListIsAPattern, "list_takes_the_prefix_literally"),
        (ListIgnoresCase, "list_takes_the_prefix_literally"),
        (AgeStandsStill, "age_is_since_the_last_write"),
        (AppendWritesBackWhatItRead, "r5_appends_at_once_are_all_kept"),
        (ListIsUnordered, "list_is_by_prefix_in_the_order_of_names"),
    ];
    let bad = |(flaw, breaks)| {
        KnownBad::new(flaw, breaks, move |world| {
            let bad = Bad { flaw, inner: RecordStore::new(world.clock()), counts: Arc::default() };
            Box::new(RecordsBench::in_world(world, Arc::new(bad.clone()), Arc::new(bad)))
        })
    };
    all.into_iter().map(bad).collect()
}

#[derive(Debug, Clone)]
struct Bad {
    flaw: Flaw,
    inner: RecordStore,
    /// Of each name: how often it was written since it was created, and the real revision.
    counts: Arc<Mutex<BTreeMap<String, (u64, Revision)>>>,
}

impl Bad {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    async fn current(&self, cx: &Cx, name: &str) -> Result<Option<Revision>> {
        Ok(self.inner.get(cx, name).await?.map(|record| record.revision))
    }

    /// The real revision behind one that was shown.
    fn real(&self, name: &str, shown: Revision) -> Revision {
        if !self.is(Flaw::RevisionStartsAnewAfterDelete) {
            return shown;
        }
        let counts = lock(&self.counts);
        let known = counts.get(name).filter(|(count, _)| *count == shown.0);
        known.map_or(Revision(u64::MAX), |(_, real)| *real)
    }

    fn note_put(&self, name: &str, real: Revision) -> Revision {
        if !self.is(Flaw::RevisionStartsAnewAfterDelete) {
            return real;
        }
        let mut counts = lock(&self.counts);
        let entry = counts.entry(name.to_owned()).or_insert((0, real));
        *entry = (entry.0 + 1, real);
        Revision(entry.0)
    }

    fn alter(&self, mut record: Record) -> Record {
        if self.is(Flaw::AgeStandsStill) {
            record.age = Duration::ZERO;
        }
        if self.is(Flaw::RevisionStartsAnewAfterDelete) {
            let counts = lock(&self.counts);
            record.revision = counts.get(&record.name).map_or(record.revision, |(count, _)| Revision(*count));
        }
        record
    }

    fn log_name(&self, log: &str) -> String {
        if self.is(Flaw::LogsShareOneName) { "log".to_owned() } else { log.to_owned() }
    }

    fn matches(&self, name: &str, prefix: &str) -> bool {
        let (mut name, same) = (name.chars(), |a: char, b: char| match self.flaw {
            Flaw::ListIsAPattern => a == b || a == '_',
            _ => a.eq_ignore_ascii_case(&b),
        });
        prefix.chars().all(|sign| name.next().is_some_and(|there| same(sign, there)))
    }
}

#[async_trait]
impl Records for Bad {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        Ok(self.inner.get(cx, name).await?.map(|record| self.alter(record)))
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let mut found = if matches!(self.flaw, Flaw::ListIsAPattern | Flaw::ListIgnoresCase) {
            let mut all = self.inner.list(cx, "").await?;
            all.retain(|record| self.matches(&record.name, prefix));
            all
        } else {
            self.inner.list(cx, prefix).await?
        };
        if self.is(Flaw::ListIsUnordered) {
            found.reverse();
        }
        Ok(found.into_iter().map(|record| self.alter(record)).collect())
    }

    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        let mut expected = expected.map(|expected| self.real(name, expected));
        let mut bytes = bytes;
        match self.flaw {
            Flaw::PutIgnoresTheExpectation => expected = self.current(cx, name).await?,
            Flaw::LooksBeforeItLeaps if self.current(cx, name).await? == expected => {
                give_way().await;
                expected = self.current(cx, name).await?;
            }
            Flaw::OversizedIsCutOff => bytes.truncate(RECORD_BYTES_MAX),
            Flaw::LargestIsRefused if bytes.len() == RECORD_BYTES_MAX => {
                return Err(watchkeeper_core::Error::config("too large"));
            }
            Flaw::TextOnly => bytes = String::from_utf8_lossy(&bytes).into_owned().into(),
            _ => {}
        }
        Ok(match self.inner.put_if(cx, name, expected, bytes).await? {
            PutOutcome::Done(real) => PutOutcome::Done(self.note_put(name, real)),
            PutOutcome::Conflict => PutOutcome::Conflict,
        })
    }

    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let mut real = self.real(name, expected);
        match self.flaw {
            Flaw::DeleteIgnoresTheRevision => real = self.current(cx, name).await?.unwrap_or(real),
            Flaw::DeleteDoesNothing if self.current(cx, name).await? == Some(real) => {
                return Ok(PutOutcome::Done(expected));
            }
            _ => {}
        }
        let answer = self.inner.delete_if(cx, name, real).await?;
        if answer != PutOutcome::Conflict {
            lock(&self.counts).remove(name);
        }
        Ok(answer)
    }

    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        let log = self.log_name(log);
        if self.is(Flaw::AppendKeepsTheOldest) && self.inner.tail(cx, &log, keep).await?.len() == keep {
            return Ok(());
        }
        if self.is(Flaw::AppendWritesBackWhatItRead) {
            let read = self.inner.tail(cx, &log, usize::MAX).await?.len();
            give_way().await;
            if self.inner.tail(cx, &log, usize::MAX).await?.len() > read {
                // What another one wrote meanwhile is there; what this one wrote is written over.
                return Ok(());
            }
        }
        let keep = if self.is(Flaw::AppendIsUnbounded) { usize::MAX } else { keep };
        self.inner.append(cx, &log, bytes, keep).await
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        let mut entries = self.inner.tail(cx, &self.log_name(log), limit).await?;
        if self.is(Flaw::TailIsNewestFirst) {
            entries.reverse();
        }
        Ok(entries)
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        self.inner.changed(cx).await
    }
}
