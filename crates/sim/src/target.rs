//! Targets of every grade, as an instance writes to them over the network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::Finding;
use watchkeeper_core::memory::{Checkpoints, Delivered, TransactionalTable};
use watchkeeper_core::{
    Batch, CheckpointWrite, Clock, Commit, Cx, Epoch, Error, FlushRejection, Grade, Grant, LeaseKey, OpenedSink,
    Result, Sink, SinkContext, SinkProfile, SinkWriter, Transacted, TransactionalWriter, Version, Written,
};
use watchkeeper_engine::delivery::{HandlerError, HandlerSettings, ObserverExecutor, Operations, Routes, handler};

use crate::book::Book;
use crate::ground_truth::GroundTruth;
use crate::injected_outcome::{InjectedOutcome, InjectedOutcomes};
use crate::net::{Lines, Server};
use crate::stores::note_commit;

/// How a stream's target is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In the checkpoint's own store.
    Transactional,
    /// Through a writer that sends at once.
    Direct(Grade),
    /// Through a writer that buffers until a flush.
    Buffered(Grade),
    /// Through handlers.
    Handlers,
}

impl Kind {
    /// What the target is.
    pub fn grade(self) -> Grade {
        match self {
            Self::Transactional => Grade::Transactional,
            Self::Direct(grade) | Self::Buffered(grade) => grade,
            Self::Handlers => Grade::Plain,
        }
    }
}

/// A target in the world.
#[derive(Debug, Clone)]
pub struct Target {
    key: LeaseKey,
    /// Which of the stream's sinks writes here.
    sink: usize,
    grade: Grade,
    truth: GroundTruth,
    book: Book,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    epoch: Epoch,
    newest: BTreeMap<Bytes, Version>,
    newest_of_all: Version,
    delivered: Vec<Delivered>,
}

impl Target {
    /// An empty target.
    pub fn new(key: LeaseKey, sink: usize, grade: Grade, truth: GroundTruth, book: Book) -> Self {
        Self { key, sink, grade, truth, book, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What took effect, in order.
    pub fn delivered(&self) -> Vec<Delivered> {
        self.state().delivered.clone()
    }

    fn opened(&self, epoch: Epoch) {
        let mut state = self.state();
        state.epoch = state.epoch.max(epoch);
    }

    /// Rows arrive.
    fn take(&self, rows: Vec<Delivered>) -> Result<()> {
        for row in rows {
            let mut state = self.state();
            if self.grade == Grade::Fenced && row.epoch < state.epoch {
                self.book.count("stale target writes refused");
                return Err(Error::fenced("a newer epoch has opened this target"));
            }
            let stale = self.grade == Grade::Versioned && state.is_stale(&row);
            if stale {
                self.book.count("stale target writes refused");
            } else {
                state.delivered.push(row.clone());
            }
            drop(state);
            self.book.event(format_args!("deliver {} to {} epoch {} stale {stale}", row.id, self.sink, row.epoch));
            // What is stale has been overtaken by something newer: nothing is lost.
            self.truth.delivered(&self.key, self.sink, &row);
        }
        Ok(())
    }
}

impl State {
    fn is_stale(&mut self, row: &Delivered) -> bool {
        // A change without a key is a write to every key: one that comes late must not undo any.
        let newest = match &row.key {
            Some(key) => self.newest.entry(key.clone()).or_default(),
            None => &mut self.newest_of_all,
        };
        let stale = row.version <= *newest;
        *newest = row.version.max(*newest);
        self.newest_of_all = self.newest_of_all.max(row.version);
        stale
    }
}

/// What all sinks of an instance need.
#[derive(Debug, Clone)]
pub struct SimSinkEnv {
    /// The way there.
    pub lines: Lines,
    /// The clock of the instance.
    pub clock: Arc<dyn Clock>,
    /// What is so.
    pub truth: GroundTruth,
    /// The history.
    pub book: Book,
    /// How handlers feel.
    pub outcomes: InjectedOutcomes,
}

/// The longest time a request to a target may still take effect: longer than any delay on the way.
pub const SETTLE: Duration = Duration::from_millis(400);

/// A sink into a [`Target`].
#[derive(Debug, Clone)]
pub struct FarSink {
    /// The server.
    pub server: Target,
    /// The instance's side.
    pub env: SimSinkEnv,
    /// How it is written to.
    pub kind: Kind,
}

#[async_trait]
impl Sink for FarSink {
    fn profile(&self) -> SinkProfile {
        let durable_writes = self.kind == Kind::Handlers;
        SinkProfile { durable_writes, ..SinkProfile::new(self.kind.grade(), SETTLE) }
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let (server, epoch) = (self.server.clone(), context.grant.epoch);
        self.env.truth.target_called(&context.grant, self.env.clock.now(), "an open");
        let effect = async move {
            server.opened(epoch);
            Ok(())
        };
        self.env.lines.call(Server::Target, effect).await?;
        if self.kind == Kind::Handlers {
            return self.handlers(context.grant.clone()).sink().open(cx, context).await;
        }
        let writer = FarWriter {
            sink: self.clone(),
            grant: context.grant.clone(),
            buffers: Mutex::new(vec![Vec::new(); context.lanes]),
            sent: Mutex::default(),
            arrived: Arc::default(),
        };
        Ok(OpenedSink::Plain(Arc::new(writer)))
    }
}

impl FarSink {
    fn handlers(&self, grant: Grant) -> ObserverExecutor {
        let sink = self.clone();
        let handle = handler(move |change| {
            let (sink, grant) = (sink.clone(), grant.clone());
            async move {
                let row = Delivered::of(change.batch(), change.row(), &grant);
                sink.env.truth.target_called(&grant, sink.env.clock.now(), "a handler's call");
                match sink.env.outcomes.of(&row.id, &grant) {
                    InjectedOutcome::Well => {}
                    InjectedOutcome::Retry => return Err(HandlerError::retry("not now")),
                    InjectedOutcome::Reject => {
                        sink.env.truth.rejected(&grant.key, sink.server.sink, &row.id);
                        return Err(HandlerError::reject("never"));
                    }
                    InjectedOutcome::Fatal => return Err(HandlerError::fatal("not here")),
                    InjectedOutcome::Panic => panic!("a handler panicked on purpose"),
                }
                let server = sink.server.clone();
                let sent = sink.env.lines.call(Server::Target, async move { server.take(vec![row]) });
                sent.await.map_err(HandlerError::retry)
            }
        });
        let settings = HandlerSettings { settle: SETTLE, ..HandlerSettings::default() };
        let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, handle));
        // Only the grade `Transactional` is refused.
        executor.clone().with_settings(settings).unwrap_or(executor)
    }
}

#[derive(Debug)]
struct FarWriter {
    sink: FarSink,
    grant: Grant,
    buffers: Mutex<Vec<Vec<Delivered>>>,
    /// Requests sent so far, by lane.
    sent: Mutex<BTreeMap<usize, u64>>,
    /// The newest request of each lane that arrived. At a fenced target an older one that comes late is
    /// dropped: its connection was discarded.
    arrived: Arc<Mutex<BTreeMap<usize, u64>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lane of flushes.
const FLUSH: usize = usize::MAX;

impl FarWriter {
    async fn send(&self, lane: usize, rows: Vec<Delivered>) -> Result<()> {
        let number = {
            let mut sent = lock(&self.sent);
            let number = sent.entry(lane).or_default();
            *number += 1;
            *number
        };
        let (server, arrived) = (self.sink.server.clone(), Arc::clone(&self.arrived));
        let in_order = self.sink.kind.grade() == Grade::Fenced;
        let effect = async move {
            let newest = std::mem::replace(lock(&arrived).entry(lane).or_default(), number);
            if newest > number {
                lock(&arrived).insert(lane, newest);
                if in_order {
                    return Err(Error::unknown("the connection was discarded"));
                }
            }
            server.take(rows)
        };
        self.sink.env.lines.call(Server::Target, effect).await
    }

    fn called(&self, what: &str) {
        self.sink.env.truth.target_called(&self.grant, self.sink.env.clock.now(), what);
    }
}

#[async_trait]
impl SinkWriter for FarWriter {
    async fn write(&self, _cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        self.called("a write");
        let delivered: Vec<_> = rows.iter().map(|row| Delivered::of(batch, *row, &self.grant)).collect();
        match self.sink.kind {
            Kind::Buffered(_) => lock(&self.buffers)[lane].extend(delivered),
            _ => self.send(lane, delivered).await?,
        }
        Ok(Written::all(rows))
    }

    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        self.called("a flush");
        let buffered: Vec<_> = lock(&self.buffers).iter_mut().flat_map(std::mem::take).collect();
        if !buffered.is_empty() {
            self.send(FLUSH, buffered).await?;
        }
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

/// The transactional sink.
#[derive(Debug, Clone)]
pub struct FarTransactional {
    /// The checkpoint store it is in.
    pub server: Checkpoints,
    /// Which of the stream's sinks it is.
    pub sink: usize,
    /// The instance's side.
    pub env: SimSinkEnv,
}

#[async_trait]
impl Sink for FarTransactional {
    fn profile(&self) -> SinkProfile {
        TransactionalTable::new(self.server.clone()).profile()
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        self.env.lines.approach(Server::Checkpoints).await?;
        let OpenedSink::Transactional(inner) = TransactionalTable::new(self.server.clone()).open(cx, context).await?
        else {
            return Err(Error::internal("the table opened without transactions"));
        };
        let inner = Arc::new(tokio::sync::Mutex::new(inner));
        Ok(OpenedSink::Transactional(Box::new(FarTransaction { inner, sink: self.sink, env: self.env.clone() })))
    }
}

#[derive(Debug)]
struct FarTransaction {
    inner: Arc<tokio::sync::Mutex<Box<dyn TransactionalWriter>>>,
    sink: usize,
    env: SimSinkEnv,
}

#[async_trait]
impl TransactionalWriter for FarTransaction {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        self.env.truth.target_called(&write.grant, self.env.clock.now(), "a transaction");
        self.env.truth.commit_sent(&write.grant);
        let (inner, own, batch, rows, write) =
            (Arc::clone(&self.inner), cx.clone(), Arc::clone(batch), rows.to_vec(), write.clone());
        let (truth, book, sink) = (self.env.truth.clone(), self.env.book.clone(), self.sink);
        let effect = async move {
            let answer = inner.lock().await.write_and_commit(&own, &batch, &rows, &write).await?;
            let commit = match &answer {
                Transacted::Committed => Commit::Committed,
                Transacted::AlreadyDone => Commit::AlreadyDone,
                Transacted::Fenced => Commit::Fenced,
                Transacted::Rejected(_) => return Ok(answer),
            };
            note_commit(&book, &write, commit);
            if commit == Commit::Committed {
                for row in rows {
                    truth.delivered(&write.grant.key, sink, &Delivered::of(&batch, row, &write.grant));
                }
            }
            truth.committed(&write, commit);
            Ok(answer)
        };
        self.env.lines.call(Server::Checkpoints, effect).await
    }

    async fn close(&mut self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
