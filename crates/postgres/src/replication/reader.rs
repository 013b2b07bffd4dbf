//! An open stream.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc::error::TryRecvError;
use watchkeeper_core::{Batch, ChangeStream, Cx, Error, Limits, Moment, Pedigree, Position, Result, Window};

use super::Replication;
use super::batch::BatchInProgress;
use super::decode::{DecodeStep, Decoder};
use super::position::{Lsn, PositionContext, ReplicationPosition};
use super::publication_watcher::PublicationWatcher;
use super::relation::Described;
use super::snapshot::Snapshot;
use super::spool::Replay;
use super::standby_snapshot_logger::StandbySnapshotLogger;
use super::task::{LARGE_PIECE, ReplicationTaskHandle};
use super::version_origin::Origin;
use super::wire::Failure;

/// Reads through a slot.
pub(super) struct Reader {
    pub(super) source: Replication,
    pub(super) pumped: ReplicationTaskHandle,
    pub(super) decoder: Decoder,
    pub(super) origin: Origin,
    /// What exists, until all of it was given out. It comes as soon as the decoder has caught up with it.
    pub(super) snapshot: Option<Snapshot>,
    /// What was received, and how much of it was taken up.
    pub(super) piece: Option<(Bytes, usize)>,
    /// A transaction that comes out of the spool before the piece goes on.
    pub(super) replay: Option<SpoolReplay>,
    /// A table whose key or name has to be asked for before going on.
    pub(super) asked: Option<(u32, Box<Described>)>,
    /// Whether it has to be asked for by what the rows of tables are told apart, before going on.
    pub(super) is_rekeyed: bool,
    /// Why reading ended, told when all that came before was given out.
    pub(super) failed: Option<Error>,
    /// Whether the server keeps what was not acknowledged, whatever that costs.
    pub(super) holds_back: bool,
    /// What is stored beside the positions that are given out.
    pub(super) pedigree: Pedigree,
    /// Looks after the publication, if this is the stream's own reader.
    pub(super) watcher: Option<PublicationWatcher>,
    /// Keeps short what is decoded again after it, where the server can be asked to.
    pub(super) _anchor: Option<StandbySnapshotLogger>,
    /// While it is there, this process reads the slot itself.
    pub(super) _tenancy: Option<Arc<()>>,
}

/// A transaction that was told before its commit.
pub(super) struct SpoolReplay {
    replay: Replay,
    /// What was read back, and how much of it was taken up.
    piece: Option<(Bytes, usize)>,
    end: Lsn,
}

/// Keeps only what was not taken up of a large piece, so that a large row is not held once more while it is delivered.
fn release(piece: &mut Bytes, from: &mut usize) {
    if piece.len() > LARGE_PIECE && piece.len() - *from < LARGE_PIECE {
        *piece = Bytes::copy_from_slice(&piece[*from..]);
        *from = 0;
    }
}

impl Reader {
    /// Takes up what has been received, as far as there is room; whether there is no more room.
    fn take_up(&mut self, filling: &mut BatchInProgress, limits: Limits) -> Result<bool> {
        loop {
            if self.has_to_wait() {
                return Ok(true);
            }
            let piece = self.replay.as_mut().map_or(&mut self.piece, |unspooling| &mut unspooling.piece);
            if let Some((bytes, from)) = piece {
                let filled = self.decoder.fill(bytes, from, filling, limits)?;
                release(bytes, from);
                match filled {
                    DecodeStep::Full | DecodeStep::CaughtUp => return Ok(true),
                    DecodeStep::Drained => *piece = None,
                    DecodeStep::AskKey { id, described } => self.asked = Some((id, described)),
                    DecodeStep::Rekeyed => self.is_rekeyed = true,
                    DecodeStep::Committed { streamed, end } => {
                        self.replay = Some(SpoolReplay { replay: Replay::new(streamed), piece: None, end });
                    }
                }
                continue;
            }
            if self.failed.is_some() {
                return Ok(true);
            }
            match self.pumped.pieces.try_recv() {
                Ok(received) => self.receive(Some(received)),
                Err(TryRecvError::Empty) => return Ok(false),
                Err(TryRecvError::Disconnected) => self.receive(None),
            }
        }
    }

    /// Whether something has to be asked for, written or read before what was received can be taken up.
    fn has_to_wait(&self) -> bool {
        let unread = self.replay.as_ref().is_some_and(|unspooling| unspooling.piece.is_none());
        self.asked.is_some() || self.is_rekeyed || unread || self.decoder.spool.is_over()
    }

    /// Does what has to be waited for.
    async fn wait(&mut self, cx: &Cx) -> Result<()> {
        if self.asked.is_some() {
            return self.ask_for_table(cx).await;
        }
        if self.is_rekeyed {
            self.source.require_as_remembered(cx, &self.pedigree).await?;
            self.is_rekeyed = false;
            return Ok(());
        }
        if self.decoder.spool.is_over() {
            return self.decoder.spool.spill().await;
        }
        let Some(unspooling) = &mut self.replay else { return Ok(()) };
        unspooling.piece = unspooling.replay.next().await?.map(|block| (block.into(), 0));
        if unspooling.piece.is_none() {
            self.decoder.commit(unspooling.end);
            self.replay = None;
        }
        Ok(())
    }

    fn receive(&mut self, received: Option<Result<Bytes, Failure>>) {
        match received {
            Some(Ok(piece)) => self.piece = Some((piece, 0)),
            Some(Err(failure)) => self.failed = Some(self.source.to_error(failure)),
            None => self.failed = Some(Error::unavailable("the stream has ended").remedy("it is opened again")),
        }
    }

    /// The next rows of the snapshot, or no rows if they take too long; `None` when all tables were read.
    async fn next_rows(&mut self, cx: &Cx, limits: Limits, until: Moment) -> Result<Option<BatchInProgress>> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(None) };
        let rows = tokio::select! {
            biased;
            rows = snapshot.next(&self.origin, self.decoder.place(), limits) => rows,
            () = cx.clock().sleep_until(until) => Ok(Some(BatchInProgress::new(&self.origin))),
        };
        rows.map_err(|failure| self.source.to_error(failure))
    }

    /// All tables were read: the log goes on from here, and remembers for which tables it is older than their rows.
    fn finish_snapshot(&mut self) {
        self.snapshot = None;
        let place = self.decoder.place();
        if let PositionContext::Snapshot(progress) = &mut place.aside {
            (progress.complete, progress.reading) = (true, None);
            if progress.is_over_at(place.lsn) {
                place.aside = PositionContext::Nothing;
            }
        }
    }

    /// What is given out.
    fn finish(&self, filling: BatchInProgress) -> Batch {
        let mut batch = filling.finish(&self.decoder);
        batch.pedigree = Some(self.pedigree.clone());
        batch
    }

    /// Takes in what was found out about the publication, and gives an occasion to look at it if the log does.
    fn inspect_publication(&mut self) -> Result<()> {
        let Some(watcher) = &mut self.watcher else { return Ok(()) };
        if self.decoder.take_repeated() {
            watcher.alert();
        }
        if let Some(found) = watcher.heard() {
            self.pedigree = found?;
        }
        self.decoder.expect_proof(!watcher.proofs.is_impossible());
        // While rows of a snapshot are read, the log behind them is not.
        if self.snapshot.is_none() && self.decoder.needs_proof() && watcher.proofs.request(self.decoder.received()) {
            watcher.alert();
        }
        Ok(())
    }

    async fn ask_for_table(&mut self, cx: &Cx) -> Result<()> {
        let Some((id, _)) = &self.asked else { return Ok(()) };
        let now = self.source.catalogued(cx, *id).await?;
        if let Some((id, described)) = self.asked.take() {
            self.is_rekeyed |= self.decoder.learn(id, *described, &now);
        }
        Ok(())
    }
}

/// What is found next about the publication, if someone looks after it.
async fn next_of(watcher: &mut Option<PublicationWatcher>) -> Result<Pedigree> {
    match watcher {
        Some(watcher) => watcher.next().await,
        None => std::future::pending().await,
    }
}

#[async_trait]
impl ChangeStream for Reader {
    fn position(&self) -> Option<Position> {
        Some(self.decoder.end())
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let mut until = None;
        loop {
            self.inspect_publication()?;
            if self.decoder.has_caught_up() && self.snapshot.is_some() {
                let until = *until.get_or_insert_with(|| cx.now() + limits.wait);
                match self.next_rows(cx, limits, until).await? {
                    Some(filling) => return Ok(self.finish(filling)),
                    None => self.finish_snapshot(),
                }
            }
            let mut filling = BatchInProgress::new(&self.origin);
            let is_full = match self.take_up(&mut filling, limits) {
                Ok(is_full) => is_full,
                // What came before it is given out first.
                Err(error) if !filling.is_empty() => {
                    self.failed = Some(error);
                    self.piece = None;
                    true
                }
                Err(error) => return Err(error),
            };
            if !filling.is_empty() {
                return Ok(self.finish(filling));
            }
            if self.has_to_wait() {
                self.wait(cx).await?;
                continue;
            }
            if self.decoder.has_caught_up() && self.snapshot.is_some() {
                continue;
            }
            if is_full && let Some(error) = self.failed.take() {
                return Err(error);
            }
            let is_late = until.is_some_and(|until| cx.now() >= until);
            if is_late {
                // Much came of which nothing is told: how far it was read is worth knowing.
                return Ok(self.finish(filling));
            }
            // Kept as soon as it is received, so a dropped call loses nothing.
            let until = *until.get_or_insert_with(|| cx.now() + limits.wait);
            tokio::select! {
                biased;
                received = self.pumped.pieces.recv() => self.receive(received),
                found = next_of(&mut self.watcher) => self.pedigree = found?,
                () = cx.clock().sleep_until(until) => return Ok(self.finish(filling)),
            }
        }
    }

    async fn acknowledge(&mut self, _cx: &Cx, position: &Position) -> Result<()> {
        let committed = ReplicationPosition::read(position)?.lsn.0;
        self.pumped.committed.send_if_modified(|known| {
            let is_newer = committed > *known;
            *known = committed.max(*known);
            is_newer
        });
        Ok(())
    }

    fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// The server keeps the log by its size: to what time that reaches back nobody knows. How much room a slot has left is told
    /// by a look at it.
    async fn window(&mut self, _cx: &Cx) -> Result<Window> {
        Ok(Window { oldest: None, newest: self.decoder.time(), room: None })
    }

    async fn close(mut self: Box<Self>, cx: &Cx) -> Result<()> {
        self.pumped.pieces.close();
        while self.pumped.pieces.try_recv().is_ok() {}
        let task = self.pumped.task;
        // The server lets go of the slot a moment later if nobody waits for it.
        let _ = cx.run(async { Ok(task.await) }).await;
        Ok(())
    }
}
