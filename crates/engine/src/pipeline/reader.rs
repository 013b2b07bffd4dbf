//! Reads ahead of the lanes: a bounded channel of batches, and acknowledgements to the source.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Batch, ChangeStream, Error, Follower, Position, Result, Task};

use super::board::{Board, Failure};
use crate::checkpoint::interval;
use crate::progress::Pulse;

/// The history window is looked at after so many batches, not before: a takeover must not wait for it.
const LOOK_AFTER: u64 = 3;

/// Batches between reader and dispatcher. One, so that one is read while one is delivered.
pub const AHEAD: usize = 1;

/// The task that owns the open source.
pub struct Reader {
    board: Arc<Board>,
    stream: Box<dyn ChangeStream>,
    /// Shared pointers, since the channel keeps room for many of what it carries.
    batches: mpsc::Sender<Arc<Batch>>,
    committed: Follower<Option<Position>>,
    pulse: Arc<Pulse>,
    next_seq: u64,
    last_end: Option<Position>,
}

enum Turn {
    Read(Result<Arc<Batch>>),
    Acknowledge,
    Stop,
}

impl Reader {
    /// Reads `stream`, which was opened after `from`, into `batches`.
    pub fn new(
        board: Arc<Board>,
        stream: Box<dyn ChangeStream>,
        batches: mpsc::Sender<Arc<Batch>>,
        from: Option<Position>,
    ) -> Self {
        let (committed, pulse) = (board.committed.follow(), board.tenure.progress().pulse("reader"));
        Self { board, stream, batches, committed, pulse, next_seq: 0, last_end: from }
    }

    /// Reads in a task of its own until the opening is halted; acknowledges until `finish`; then closes.
    pub fn start(self, finish: CancellationToken) -> Task<()> {
        Arc::clone(&self.board).crew("reader", self.run(finish))
    }

    async fn run(mut self, finish: CancellationToken) {
        let halt = self.board.halt.clone();
        while let Ok(Some(())) = self.turn(&halt).await {}
        // What is committed while the lanes drain is acknowledged too.
        loop {
            tokio::select! {
                biased;
                () = finish.cancelled() => break,
                changed = self.committed.changed() => if changed.is_err() { break },
            }
            self.acknowledge().await;
        }
        if self.committed.has_news() {
            self.acknowledge().await;
        }
        let call = self.board.tenure.call(&self.pulse, self.board.stream.settings.timeouts.open);
        if let Err(error) = call.run(self.stream.close(call.cx())).await {
            tracing::debug!(%error, "closing the source failed");
        }
    }

    /// One read or acknowledgement; `None` when it is time to stop.
    async fn turn(&mut self, halt: &CancellationToken) -> Result<Option<()>, ()> {
        let batches = self.batches.clone();
        let permit = tokio::select! {
            biased;
            () = halt.cancelled() => return Ok(None),
            changed = self.committed.changed() => {
                changed.map_err(drop)?;
                self.acknowledge().await;
                return Ok(Some(()));
            }
            permit = batches.reserve() => permit.map_err(drop)?,
        };
        match self.read(halt).await {
            Turn::Read(Ok(batch)) => {
                self.next_seq += 1;
                self.last_end = Some(batch.end.clone());
                permit.send(batch);
                if self.next_seq == LOOK_AFTER {
                    self.look_at_window().await;
                }
            }
            Turn::Read(Err(error)) => {
                self.board.fail(Failure::of(error));
                return Ok(None);
            }
            Turn::Acknowledge => self.acknowledge().await,
            Turn::Stop => return Ok(None),
        }
        Ok(Some(()))
    }

    /// The next batch. Reading is cancel safe, so an acknowledgement may interrupt it.
    async fn read(&mut self, halt: &CancellationToken) -> Turn {
        let (settings, seq, before) = (&self.board.stream.settings, self.next_seq, self.last_end.clone());
        let call = self.board.tenure.call(&self.pulse, settings.limits.wait + settings.timeouts.read);
        tokio::select! {
            biased;
            () = halt.cancelled() => Turn::Stop,
            changed = self.committed.changed() => match changed {
                Ok(()) => Turn::Acknowledge,
                Err(_) => Turn::Read(Err(Error::internal("the board is gone"))),
            },
            read = call.run(self.stream.next_batch(call.cx(), settings.limits)) => Turn::Read(read.map(|batch| numbered(batch, seq, before))),
        }
    }

    /// Warns when checkpoints are committed too seldom for the source's history, or when that is short.
    async fn look_at_window(&mut self) {
        if self.stream.holds_back() {
            return;
        }
        let settings = &self.board.stream.settings;
        let call = self.board.tenure.call(&self.pulse, settings.timeouts.read);
        let Ok(window) = call.run(self.stream.window(call.cx())).await else { return };
        let Some(length) = window.length() else { return };
        for finding in [interval::check(settings.checkpoint.every, length), interval::check_window(length)] {
            let Some(finding) = finding else { continue };
            let remedy = finding.remedy.unwrap_or_default();
            tracing::warn!(stream = settings.name, remedy, "{}", finding.what);
        }
    }

    /// Tells the source what it may prune. An error costs only space: the next one says it again.
    async fn acknowledge(&mut self) {
        let Some(position) = self.committed.see().clone() else { return };
        let call = self.board.tenure.call(&self.pulse, self.board.stream.settings.timeouts.read);
        if let Err(error) = call.run(self.stream.acknowledge(call.cx(), &position)).await {
            tracing::debug!(%error, "an acknowledgement failed");
        }
    }
}

fn numbered(mut batch: Batch, seq: u64, before: Option<Position>) -> Arc<Batch> {
    batch.seq = seq;
    batch.before = before;
    Arc::new(batch)
}
