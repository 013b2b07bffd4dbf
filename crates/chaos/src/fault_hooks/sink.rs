use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, CheckpointWrite, Cx, Error, ErrorKind, Fault, FaultKind, Finding, FlushRejection, OpenedSink, Result, Sink,
    SinkContext, SinkProfile, SinkWriter, Transacted, TransactionalWriter, Written,
};
use watchkeeper_drill::Event;

use super::FaultHooks;

/// A sink whose writes go through hands: held or failed on request, and told when they are refused.
#[derive(Debug)]
pub(crate) struct Handled {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) hooks: Arc<FaultHooks>,
}

#[async_trait]
impl Sink for Handled {
    fn profile(&self) -> SinkProfile {
        self.sink.profile()
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.sink.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let (hooks, epoch) = (Arc::clone(&self.hooks), context.grant.epoch.0);
        Ok(match self.sink.open(cx, context).await? {
            OpenedSink::Plain(writer) => {
                OpenedSink::Plain(Arc::new(Plain { writer, hooks, epoch, unflushed: AtomicU64::new(0) }))
            }
            OpenedSink::Transactional(writer) => {
                OpenedSink::Transactional(Box::new(InTransaction { writer, hooks, epoch }))
            }
        })
    }
}

fn report_refused(epoch: u64, changes: usize) {
    // Without a listener the process is about to end.
    let _ = Event::Refused { epoch, changes: changes as u64 }.emit();
}

fn failure(rows: &[u32]) -> Option<Fault> {
    let error = Error::internal("a handler fails, as it was told to");
    rows.first().map(|row| Fault { row: *row, kind: FaultKind::Fatal, error })
}

#[derive(Debug)]
struct InTransaction {
    writer: Box<dyn TransactionalWriter>,
    hooks: Arc<FaultHooks>,
    epoch: u64,
}

#[async_trait]
impl TransactionalWriter for InTransaction {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        if !rows.is_empty() && self.hooks.fails() {
            return Ok(Transacted::Rejected(failure(rows).into_iter().collect()));
        }
        let in_hand = if rows.is_empty() { None } else { self.hooks.hold(false, self.epoch).await };
        let answer = self.writer.write_and_commit(cx, batch, rows, write).await;
        drop(in_hand);
        if matches!(answer, Ok(Transacted::Fenced)) {
            report_refused(self.epoch, rows.len());
        }
        answer
    }

    async fn close(&mut self, cx: &Cx) -> Result<()> {
        self.writer.close(cx).await
    }
}

#[derive(Debug)]
struct Plain {
    writer: Arc<dyn SinkWriter>,
    hooks: Arc<FaultHooks>,
    epoch: u64,
    /// Changes that were accepted since the last flush.
    unflushed: AtomicU64,
}

impl Plain {
    fn apply<T>(&self, answer: Result<T>, changes: u64) -> Result<T> {
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced) {
            report_refused(self.epoch, usize::try_from(changes).unwrap_or(usize::MAX));
        }
        answer
    }
}

#[async_trait]
impl SinkWriter for Plain {
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        if !rows.is_empty() && self.hooks.fails() {
            return Ok(Written { stopped: failure(rows), ..Written::default() });
        }
        let written = self.apply(self.writer.write(cx, lane, batch, rows).await, rows.len() as u64)?;
        self.unflushed.fetch_add(written.done as u64, Ordering::Relaxed);
        Ok(written)
    }

    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>> {
        let changes = self.unflushed.swap(0, Ordering::Relaxed);
        let in_hand = if changes == 0 { None } else { self.hooks.hold(false, self.epoch).await };
        let answer = self.writer.flush(cx).await;
        drop(in_hand);
        self.apply(answer, changes)
    }

    async fn close(&self, cx: &Cx) -> Result<()> {
        self.writer.close(cx).await
    }
}
