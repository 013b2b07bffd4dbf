use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use watchkeeper_core::sink::Fault;
use watchkeeper_core::{
    Batch, Cx, Epoch, Error, FaultKind, Finding, FlushRejection, Grade, OpenedSink, Result, Sink, SinkContext,
    SinkProfile, SinkWriter, Written,
};

use super::{KnownBad, give_way};
use crate::laws::SinkBench;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    FencedInNameOnly,
    LateWriteOfAnOldEpochIsAccepted,
    VersionedInNameOnly,
    IdempotentInNameOnly,
    LaneIsReversed,
    SecondLaneIsForgotten,
    WritesTheWholeBatch,
    BarriersAreRejected,
    FlushIsNotDurable,
    LastRowIsForgotten,
    WritesDuringAFlushAreForgotten,
    ClosingStaysClosed,
    TakesNoRows,
}

/// Sinks with one flaw each.
pub fn sinks() -> Vec<KnownBad<dyn SinkBench>> {
    use Flaw::*;
    let all = [
        (FencedInNameOnly, Grade::Fenced, "k1_newer_opening_refuses_older_epochs"),
        (LateWriteOfAnOldEpochIsAccepted, Grade::Fenced, "k4_stale_epoch_is_without_effect"),
        (VersionedInNameOnly, Grade::Versioned, "k4_stale_version_is_without_effect"),
        (IdempotentInNameOnly, Grade::Idempotent, "k4_repeated_write_has_no_further_effect"),
        (LaneIsReversed, Grade::Plain, "k2_lane_keeps_the_order_of_its_calls"),
        (SecondLaneIsForgotten, Grade::Plain, "k2_lanes_run_beside_each_other"),
        (WritesTheWholeBatch, Grade::Plain, "k2_only_the_named_rows_take_effect"),
        (BarriersAreRejected, Grade::Plain, "k2_barrier_keeps_its_place"),
        (FlushIsNotDurable, Grade::Plain, "k3_done_is_durable_after_a_flush"),
        (LastRowIsForgotten, Grade::Plain, "k3_done_is_durable_after_a_flush"),
        (WritesDuringAFlushAreForgotten, Grade::Plain, "k3_flush_runs_beside_later_writes"),
        (ClosingStaysClosed, Grade::Plain, "k3_nothing_is_lost_by_closing"),
        (TakesNoRows, Grade::Plain, "profile_fits_the_writer"),
    ];
    let bad = |(flaw, grade, breaks)| {
        KnownBad::new(flaw, breaks, move |world| {
            // In name only: below is a target that takes what comes.
            let named = matches!(flaw, FencedInNameOnly | VersionedInNameOnly | IdempotentInNameOnly);
            let real = if named { Grade::Plain } else { grade };
            let wrap = |inner| -> Arc<dyn Sink> { Arc::new(Bad { flaw, grade, inner, closed: Arc::default() }) };
            <dyn SinkBench>::around(world, real, wrap)
        })
    };
    all.into_iter().map(bad).collect()
}

#[derive(Debug)]
struct Bad {
    flaw: Flaw,
    grade: Grade,
    inner: Arc<dyn Sink>,
    closed: Arc<AtomicBool>,
}

#[async_trait]
impl Sink for Bad {
    fn profile(&self) -> SinkProfile {
        let profile = SinkProfile { grade: self.grade, ..self.inner.profile() };
        if self.flaw == Flaw::TakesNoRows { SinkProfile { rows_max: 0, ..profile } } else { profile }
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.inner.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let opened = self.inner.open(cx, context).await?;
        let OpenedSink::Plain(inner) = opened else { return Ok(opened) };
        let late = SinkContext {
            grant: watchkeeper_core::Grant { epoch: Epoch(1000), ..context.grant.clone() },
            ..context.clone()
        };
        let writer = BadWriter {
            flaw: self.flaw,
            inner,
            sink: Arc::clone(&self.inner),
            late,
            flushing: AtomicBool::new(false),
            closed: Arc::clone(&self.closed),
        };
        Ok(OpenedSink::Plain(Arc::new(writer)))
    }
}

#[derive(Debug)]
struct BadWriter {
    flaw: Flaw,
    inner: Arc<dyn SinkWriter>,
    sink: Arc<dyn Sink>,
    /// A context whose epoch nobody refuses.
    late: SinkContext,
    flushing: AtomicBool,
    closed: Arc<AtomicBool>,
}

impl BadWriter {
    /// The rows that are written, instead of those that should be.
    fn alter(&self, lane: usize, batch: &Batch, rows: &[u32]) -> Vec<u32> {
        let mut altered = rows.to_vec();
        let forgets = match self.flaw {
            Flaw::SecondLaneIsForgotten => lane > 0,
            Flaw::WritesDuringAFlushAreForgotten => self.flushing.load(Ordering::Relaxed),
            Flaw::ClosingStaysClosed => self.closed.load(Ordering::Relaxed),
            _ => false,
        };
        if forgets {
            altered.clear();
        }
        match self.flaw {
            Flaw::LaneIsReversed => altered.reverse(),
            Flaw::WritesTheWholeBatch => altered = (0..).take(batch.len()).collect(),
            Flaw::LastRowIsForgotten if altered.len() > 1 => drop(altered.pop()),
            _ => {}
        }
        altered
    }

    /// Writes to the target under an epoch that is not the writer's own.
    async fn write_late(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<()> {
        let OpenedSink::Plain(writer) = self.sink.open(cx, &self.late).await? else { return Ok(()) };
        writer.write(cx, lane, batch, rows).await?;
        writer.flush(cx).await?;
        Ok(())
    }
}

#[async_trait]
impl SinkWriter for BadWriter {
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        if self.flaw == Flaw::BarriersAreRejected {
            let barrier = rows.iter().copied().find(|row| batch.key(*row).is_none());
            if let Some(row) = barrier {
                let fault = Fault { row, kind: FaultKind::Reject, error: Error::config("no key") };
                return Ok(Written { done: rows.len(), rejected: vec![fault], stopped: None });
            }
        }
        if self.flaw == Flaw::LateWriteOfAnOldEpochIsAccepted {
            self.write_late(cx, lane, batch, rows).await?;
            return Ok(Written::all(rows));
        }
        self.inner.write(cx, lane, batch, &self.alter(lane, batch, rows)).await?;
        Ok(Written::all(rows))
    }

    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>> {
        if self.flaw == Flaw::FlushIsNotDurable {
            return Ok(Vec::new());
        }
        self.flushing.store(true, Ordering::Relaxed);
        give_way().await;
        let answer = self.inner.flush(cx).await;
        self.flushing.store(false, Ordering::Relaxed);
        answer
    }

    async fn close(&self, cx: &Cx) -> Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        self.inner.close(cx).await
    }
}
