use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use watchkeeper_core::sink::Fault as RowFault;
use watchkeeper_core::{
    Batch, CheckpointWrite, Cx, Error, FaultKind, Finding, FlushRejection, OpenedSink, Result, Sink, SinkContext,
    SinkProfile, SinkTarget, SinkWriter, Transacted, TransactionalWriter, Written,
};

use super::script::Script;

/// A sink with faults, of any grade. Single rows fail by [`Script::refuse_row`].
#[derive(Debug, Clone)]
pub struct FaultySink {
    inner: Arc<dyn Sink>,
    script: Script,
}

impl FaultySink {
    /// `inner`, failing as `script` says.
    pub fn new(inner: Arc<dyn Sink>, script: Script) -> Self {
        Self { inner, script }
    }
}

#[async_trait]
impl Sink for FaultySink {
    fn profile(&self) -> SinkProfile {
        self.inner.profile()
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "check", async move { inner.check(&own).await }).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let (inner, own, context) = (Arc::clone(&self.inner), cx.clone(), context.clone());
        let opened = self.script.play(cx, "open", async move { inner.open(&own, &context).await }).await?;
        Ok(self.faulty(opened))
    }

    fn target(&self) -> Option<SinkTarget> {
        self.inner.target()
    }

    async fn open_existing(&self, cx: &Cx, context: &SinkContext) -> Result<Option<OpenedSink>> {
        let (inner, own, context) = (Arc::clone(&self.inner), cx.clone(), context.clone());
        let opened = self.script.play(cx, "open", async move { inner.open_existing(&own, &context).await }).await?;
        Ok(opened.map(|opened| self.faulty(opened)))
    }

    fn instance_ended(&self) {
        self.inner.instance_ended();
    }
}

impl FaultySink {
    fn faulty(&self, opened: OpenedSink) -> OpenedSink {
        let script = self.script.clone();
        match opened {
            OpenedSink::Plain(inner) => OpenedSink::Plain(Arc::new(FaultyWriter { inner, script })),
            OpenedSink::Transactional(inner) => {
                let inner = Arc::new(Mutex::new(inner));
                OpenedSink::Transactional(Box::new(FaultyTransactions { inner, script }))
            }
        }
    }
}

fn row_error(kind: FaultKind) -> Error {
    match kind {
        FaultKind::Retry | FaultKind::Panic => Error::unavailable("scripted: not this row, not now"),
        FaultKind::Reject | FaultKind::Fatal => Error::config("scripted: not this row"),
    }
}

#[derive(Debug)]
struct FaultyWriter {
    inner: Arc<dyn SinkWriter>,
    script: Script,
}

/// How a call's rows are dealt with.
struct Sorted {
    accepted: Vec<u32>,
    rejected: Vec<RowFault>,
    stopped: Option<RowFault>,
}

impl FaultyWriter {
    /// The rows up to the first one that stops the writer.
    fn sort(&self, batch: &Batch, rows: &[u32]) -> Sorted {
        let mut sorted = Sorted { accepted: Vec::new(), rejected: Vec::new(), stopped: None };
        for row in rows {
            let fault = self.script.row_fault(&batch.id(*row).to_string());
            let fault = fault.map(|kind| RowFault { row: *row, kind, error: row_error(kind) });
            match fault {
                None => sorted.accepted.push(*row),
                Some(fault) if fault.kind == FaultKind::Reject => sorted.rejected.push(fault),
                stopped => {
                    sorted.stopped = stopped;
                    break;
                }
            }
        }
        sorted
    }
}

#[async_trait]
impl SinkWriter for FaultyWriter {
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let Sorted { accepted, mut rejected, stopped } = self.sort(batch, rows);
        let (inner, own, batch, passed) = (Arc::clone(&self.inner), cx.clone(), Arc::clone(batch), accepted.clone());
        let effect = async move { inner.write(&own, lane, &batch, &passed).await };
        let written = self.script.play(cx, "write", effect).await?;
        // Rows are counted among those of this call, of which the rejected ones did not reach the inner.
        let halted = stopped.as_ref().map(|fault| fault.row);
        let first_open = accepted.get(written.done).copied().or(halted);
        let done = first_open.and_then(|open| rows.iter().position(|row| *row == open)).unwrap_or(rows.len());
        rejected.retain(|fault| rows[..done].contains(&fault.row));
        rejected.extend(written.rejected);
        let stopped = if written.done < accepted.len() { written.stopped } else { stopped };
        Ok(Written { done, rejected, stopped })
    }

    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "flush", async move { inner.flush(&own).await }).await
    }

    async fn close(&self, cx: &Cx) -> Result<()> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "close", async move { inner.close(&own).await }).await
    }
}

#[derive(Debug)]
struct FaultyTransactions {
    /// Behind a lock, so that a transaction which was held can go on without its caller.
    inner: Arc<Mutex<Box<dyn TransactionalWriter>>>,
    script: Script,
}

#[async_trait]
impl TransactionalWriter for FaultyTransactions {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        let fault = |row: &u32| {
            let kind = self.script.row_fault(&batch.id(*row).to_string())?;
            Some(RowFault { row: *row, kind, error: row_error(kind) })
        };
        let faults: Vec<_> = rows.iter().filter_map(fault).collect();
        if !faults.is_empty() {
            return Ok(Transacted::Rejected(faults));
        }
        let (inner, own, batch, rows, write) =
            (Arc::clone(&self.inner), cx.clone(), Arc::clone(batch), rows.to_vec(), write.clone());
        let effect = async move { inner.lock_owned().await.write_and_commit(&own, &batch, &rows, &write).await };
        self.script.play(cx, "write_and_commit", effect).await
    }

    async fn close(&mut self, cx: &Cx) -> Result<()> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "close", async move { inner.lock_owned().await.close(&own).await }).await
    }
}
