use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::memory::Log;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Cx, ErrorKind, Finding, Limits, Payload, Pedigree, Position, Result, RowParts,
    Source, StartAt, Version, Window,
};

use super::{KnownBad, give_way};
use crate::laws::SourceBench;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    NowBeginsBefore,
    AfterIsInclusive,
    IdsDependOnTheOpening,
    RowsAreUnlimited,
    BytesAreUnlimited,
    HalvesAreSplit,
    FirstHalfIsCommittable,
    RowsPointTooFar,
    EndIsTooFar,
    EndIsTooEarly,
    SilenceIsNotReported,
    SilenceIsReportedAtOnce,
    ReadingAcknowledges,
    AcknowledgingTakesAll,
    DroppedCallLosesItsBatch,
    BarriersHaveAKey,
    ComparesBackwards,
    VerifiesAnything,
    LostHistoryIsSkipped,
    VersionsStandStill,
}

/// Sources with one flaw each.
pub fn sources() -> Vec<KnownBad<dyn SourceBench>> {
    use Flaw::*;
    let all = [
        (NowBeginsBefore, "s1_now_begins_with_now"),
        (AfterIsInclusive, "s1_after_a_position_come_exactly_the_later_ones"),
        (IdsDependOnTheOpening, "s2_ids_are_unique_and_the_same_whatever_the_batches"),
        (RowsAreUnlimited, "s3_rows_are_limited"),
        (BytesAreUnlimited, "s3_bytes_are_limited"),
        (HalvesAreSplit, "s3_halves_of_a_key_update_stay_together"),
        (FirstHalfIsCommittable, "s3_halves_of_a_key_update_stay_together"),
        (RowsPointTooFar, "s4_every_committable_row_is_safe_to_restart_from"),
        (EndIsTooFar, "s4_end_of_every_batch_is_safe_to_restart_from"),
        (EndIsTooEarly, "s4_end_of_every_batch_is_safe_to_restart_from"),
        (SilenceIsNotReported, "s5_silence_is_an_empty_batch_after_the_wait"),
        (SilenceIsReportedAtOnce, "s5_silence_is_an_empty_batch_after_the_wait"),
        (ReadingAcknowledges, "s6_unacknowledged_changes_are_still_there"),
        (AcknowledgingTakesAll, "s6_acknowledging_spares_what_comes_after"),
        (DroppedCallLosesItsBatch, "s7_dropped_call_loses_nothing"),
        (BarriersHaveAKey, "change_without_a_key_keeps_its_place"),
        (ComparesBackwards, "positions_compare_in_the_order_of_reading"),
        (VerifiesAnything, "own_position_is_verified_and_a_foreign_one_is_lost"),
        (LostHistoryIsSkipped, "lost_history_is_reported"),
        (VersionsStandStill, "s1_changes_are_read_in_order"),
    ];
    let bad = |(flaw, breaks)| {
        KnownBad::new(flaw, breaks, move |world| {
            <dyn SourceBench>::around(world, |log| Arc::new(Bad { flaw, log, openings: Arc::default() }))
        })
    };
    all.into_iter().map(bad).collect()
}

#[derive(Debug)]
struct Bad {
    flaw: Flaw,
    log: Log,
    openings: Arc<std::sync::atomic::AtomicU64>,
}

fn moved(position: &Position, by: i64) -> Result<Position> {
    let number = Log::number(position)?.saturating_add_signed(by);
    Ok(Log::position(number, position.time))
}

#[async_trait]
impl Source for Bad {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.log.check(cx).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        self.log.identity(cx).await
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        if self.flaw == Flaw::VerifiesAnything {
            return Ok(());
        }
        self.log.verify(cx, position, pedigree).await
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        let order = self.log.compare(a, b);
        if self.flaw == Flaw::ComparesBackwards { order.map(Ordering::reverse) } else { order }
    }

    fn payload(&self) -> Arc<dyn Payload> {
        self.log.payload()
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        let start = match (self.flaw, start) {
            (Flaw::NowBeginsBefore, StartAt::Now) => StartAt::Oldest,
            (Flaw::AfterIsInclusive, StartAt::After(position)) => StartAt::After(moved(&position, -1)?),
            (_, start) => start,
        };
        let opened = self.log.open(cx, start).await;
        let lost = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::PositionLost);
        let inner = if lost && self.flaw == Flaw::LostHistoryIsSkipped {
            self.log.open(cx, StartAt::Oldest).await
        } else {
            opened
        }?;
        let opening = self.openings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Box::new(BadStream { flaw: self.flaw, inner, opening, split: VecDeque::new(), newest: None }))
    }
}

struct BadStream {
    flaw: Flaw,
    inner: Box<dyn ChangeStream>,
    opening: u64,
    split: VecDeque<Batch>,
    newest: Option<Position>,
}

impl BadStream {
    fn alter_limits(&self, mut limits: Limits) -> Limits {
        match self.flaw {
            Flaw::RowsAreUnlimited => limits.rows = usize::MAX,
            Flaw::BytesAreUnlimited => limits.bytes = usize::MAX,
            Flaw::SilenceIsNotReported => limits.wait *= 100,
            Flaw::SilenceIsReportedAtOnce => limits.wait = Duration::ZERO,
            _ => {}
        }
        limits
    }

    fn alter_batch(&mut self, batch: Batch) -> Result<Batch> {
        let (end, rows) = (batch.end.clone(), 0..batch.len());
        Ok(match self.flaw {
            Flaw::EndIsTooFar if !batch.is_empty() => self.part(&batch, rows, moved(&end, 1)?),
            Flaw::EndIsTooEarly if !batch.is_empty() => self.part(&batch, rows, moved(&end, -1)?),
            Flaw::HalvesAreSplit => {
                let Some(first) = batch.rows().iter().position(|row| !row.committable) else { return Ok(batch) };
                self.split.push_back(self.part(&batch, first + 1..batch.len(), end));
                self.part(&batch, 0..first + 1, batch.position(narrow(first)))
            }
            Flaw::IdsDependOnTheOpening
            | Flaw::FirstHalfIsCommittable
            | Flaw::RowsPointTooFar
            | Flaw::VersionsStandStill
            | Flaw::BarriersHaveAKey => self.part(&batch, rows, end),
            _ => batch,
        })
    }

    /// Some rows of a batch as a batch of their own, with what is wrong about them.
    fn part(&self, batch: &Batch, rows: Range<usize>, end: Position) -> Batch {
        let origin = match self.flaw {
            Flaw::IdsDependOnTheOpening => format!("laws-{}", self.opening).into(),
            _ => Arc::clone(batch.origin()),
        };
        let mut builder = BatchBuilder::new(origin, Arc::clone(batch.payload()));
        for n in rows {
            let (row, n) = (&batch.rows()[n], narrow(n));
            let namespace = builder.namespace(batch.namespace(n));
            let mut position = batch.position(n);
            if self.flaw == Flaw::RowsPointTooFar {
                position = moved(&position, 1).unwrap_or(position);
            }
            let no_key = (self.flaw == Flaw::BarriersHaveAKey).then_some(&b"none"[..]);
            builder.push(RowParts {
                operation: row.operation,
                namespace,
                half: row.half,
                committable: row.committable || self.flaw == Flaw::FirstHalfIsCommittable,
                key: batch.key(n).or(no_key),
                position: &position.bytes,
                body: batch.body(n),
                time: row.time,
                version: if self.flaw == Flaw::VersionsStandStill { Version::default() } else { row.version },
            });
        }
        builder.finish(end)
    }
}

/// Rows of a batch are counted in 32 bits.
fn narrow(row: usize) -> u32 {
    u32::try_from(row).unwrap_or(u32::MAX)
}

#[async_trait]
impl ChangeStream for BadStream {
    fn position(&self) -> Option<Position> {
        self.inner.position()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        if let Some(rest) = self.split.pop_front() {
            return Ok(rest);
        }
        let batch = self.inner.next_batch(cx, self.alter_limits(limits)).await?;
        self.newest = Some(batch.end.clone());
        match self.flaw {
            Flaw::ReadingAcknowledges => self.inner.acknowledge(cx, &batch.end).await?,
            Flaw::DroppedCallLosesItsBatch => give_way().await,
            _ => {}
        }
        self.alter_batch(batch)
    }

    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        let all = self.newest.as_ref().filter(|_| self.flaw == Flaw::AcknowledgingTakesAll);
        self.inner.acknowledge(cx, all.unwrap_or(position)).await
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.inner.window(cx).await
    }

    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        self.inner.close(cx).await
    }
}
