//! Where changes come from.
//!
//! `Source::verify` compares identities for equality by default. Some logs know more: a position may be valid although
//! the identity has grown. `Source::preflight` answers whether a stream could continue from its checkpoint before
//! anything runs. It must not disturb the instance that runs the stream, so a replication slot, for example, is looked
//! up in the catalog and not opened.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::change::Batch;
use crate::cx::Cx;
use crate::error::{Error, ErrorKind, Result, named};
use crate::payload::Payload;
use crate::position::{Pedigree, Position, StartAt, Window};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// It works, but will not always.
    Warning,
    /// It will not work.
    Error,
}

/// One result of a check: what is so, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What is so, in one line.
    pub what: String,
    /// What to change.
    pub remedy: Option<String>,
}

impl Finding {
    /// Names `stream` where a backend, which does not know it, wrote STREAM.
    pub fn name_stream(&mut self, stream: &str) {
        self.what = named(&self.what, stream);
        self.remedy = self.remedy.take().map(|remedy| named(&remedy, stream));
    }

    /// What [`Source::preflight`] tells when this came of a look at a place to start: an error is what was found, unless it only
    /// says that nothing could be found out.
    ///
    /// # Errors
    /// `Unavailable` and `Unknown`, as they are.
    pub fn of_start(inspected: Result<()>) -> Result<Vec<Self>> {
        match inspected {
            Ok(()) => Ok(Vec::new()),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => Err(error),
            Err(error) => {
                let what = format!("{} [{}]", error.message(), error.kind().code());
                let remedy = Some(error.advice().unwrap_or("look at the cause").to_owned());
                Ok(vec![Self { severity: Severity::Error, what, remedy }])
            }
        }
    }
}

/// The remedy for history that was lost; `STREAM` stands for the stream's name.
pub const ACCEPT_GAP: &str = "accept the gap: watchkeeper accept-gap STREAM; or, for targets that have to hold what the source holds, \
     take a new snapshot: watchkeeper accept-gap STREAM --to snapshot";

/// The remedy for history that was lost in the middle of a snapshot; `STREAM` stands for the stream's name.
pub const BEGIN_SNAPSHOT_ANEW: &str = "its snapshot is not finished: begin it anew with `watchkeeper accept-gap STREAM --to snapshot`, \
     or point the stream at the log it was reading";

/// How much to read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// At most so many rows, except that the halves of a key update stay together.
    pub rows: usize,
    /// Stop after so many bytes; one change may be larger.
    pub bytes: usize,
    /// Answer with an empty batch after waiting so long.
    pub wait: Duration,
}

/// What a source is busy with before its changes, such as reading what exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// What is done, in a few words: "snapshot of orders, 1 of 2".
    pub what: String,
    /// So many are done.
    pub done: u64,
    /// Of about so many, as they were when it began.
    pub of: Option<u64>,
    /// What is counted, in the plural: "rows".
    pub unit: &'static str,
}

/// A log of changes.
#[async_trait]
pub trait Source: Send + Sync + std::fmt::Debug {
    /// Looks at privileges, topology and retention.
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>>;

    /// The identity of the log now, to store beside positions.
    async fn identity(&self, cx: &Cx) -> Result<Pedigree>;

    /// Makes sure, before anything is read, that a stored position belongs to this log and can still
    /// be resumed from: servers often accept a foreign one and skip silently (G4).
    ///
    /// # Errors
    /// `PositionLost` when it does not.
    async fn verify(&self, cx: &Cx, _position: &Position, pedigree: &Pedigree) -> Result<()> {
        if self.identity(cx).await? == *pedigree {
            return Ok(());
        }
        Err(Error::position_lost("the checkpoint belongs to another log than the one that answers now")
            .remedy(format!("point the stream at the log it was reading, or {ACCEPT_GAP}")))
    }

    /// Looks whether a stream could begin at `start`, or go on from it when it is the position of a checkpoint, which comes
    /// with the pedigree that was stored beside it. A source that cannot tell without opening finds nothing.
    ///
    /// This is for a person who asks before anything runs. It reads only, keeps nothing open, and takes nothing away from
    /// one who runs the same stream meanwhile: no slot, no lease, no place in a queue. That nothing is found promises nothing;
    /// [`verify`](Self::verify) and [`open`](Self::open) decide.
    ///
    /// # Errors
    /// What kept it from being looked at. What is wrong with `start` is a finding of [`Severity::Error`], with its remedy.
    async fn preflight(&self, _cx: &Cx, _start: &StartAt, _pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Which of two positions is earlier. Pure and offline; `None` means not known, and the caller
    /// takes the safe side.
    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering>;

    /// A place that is known to be before `current`, from which everything comes again that comes after `target`; for a target of which
    /// [`Source::compare`] cannot tell. Pure and offline; `None` means that there is none.
    fn earlier_bound(&self, _target: &Position, _current: &Position) -> Option<Position> {
        None
    }

    /// What a stream that stands at `position` is busy with, if it is not yet the changes. Pure and offline.
    fn stage(&self, _position: &Position) -> Option<Stage> {
        None
    }

    /// The names that handlers' routes use, as the changes of this source have them, one for one: people leave out the schema of a
    /// table, or the database of a collection. A source whose names are always written in full leaves them.
    ///
    /// # Errors
    /// `Config` for a name that no change of this source can have.
    async fn resolve_names(&self, _cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        Ok(names)
    }

    /// Refuses to feed a sink that [mirrors](crate::SinkProfile::mirrors) when the settings of this source hide changes of rows, or
    /// changes of what a name stands for. Pure and offline.
    ///
    /// # Errors
    /// `Config`, with what is hidden.
    fn require_all_changes(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a stream that resumes from `position` still has to read rows of a snapshot. If it goes on from a later position instead, those
    /// rows never reach the targets. Pure and offline.
    fn has_unfinished_snapshot(&self, _position: &Position) -> bool {
        false
    }

    /// How bodies are decoded.
    fn payload(&self) -> Arc<dyn Payload>;

    /// Begins to read.
    ///
    /// # Behavior
    /// * S1: after a position, exactly the changes after it are read, in order.
    /// * S2: reading again from any position that was given out gives the same changes with the same
    ///   ids, whatever the batches.
    ///
    /// # Errors
    /// `PositionLost` when the history is gone.
    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>>;

    /// Begins to read for a person who looks on: nothing is kept for such a reader, so history may go while it reads,
    /// and what it acknowledges counts for nothing.
    ///
    /// A source that holds its log back for those who open it overrides this.
    ///
    /// # Errors
    /// As [`open`](Self::open), also later from the open stream.
    async fn peek(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.open(cx, start).await
    }
}

/// What positions of a source say by themselves: for those who cannot reach the source. Each method is that of [`Source`].
pub trait Positions: Send + Sync + std::fmt::Debug {
    /// See [`Source::compare`].
    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering>;

    /// See [`Source::earlier_bound`].
    fn earlier_bound(&self, _target: &Position, _current: &Position) -> Option<Position> {
        None
    }

    /// See [`Source::has_unfinished_snapshot`].
    fn has_unfinished_snapshot(&self, _position: &Position) -> bool {
        false
    }
}

/// A source that was made without a connection.
impl<S: Source> Positions for S {
    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        Source::compare(self, a, b)
    }

    fn earlier_bound(&self, target: &Position, current: &Position) -> Option<Position> {
        Source::earlier_bound(self, target, current)
    }

    fn has_unfinished_snapshot(&self, position: &Position) -> bool {
        Source::has_unfinished_snapshot(self, position)
    }
}

/// An open log.
#[async_trait]
pub trait ChangeStream: Send {
    /// Where it was opened: a safe restart point before the first batch.
    ///
    /// # Behavior
    /// * S8: `None` only if opening again at the same start would give the same changes (the oldest one).
    ///   "Now", a time and a snapshot move on: the engine commits this position before anything is
    ///   delivered, so that a takeover before the first commit does not start at a later "now". The same holds
    ///   for a position whose opening takes a new snapshot.
    fn position(&self) -> Option<Position>;

    /// What a person should know of where it was opened, in one sentence: that reading begins before the time that was asked for.
    fn opening_note(&self) -> Option<String> {
        None
    }

    /// What the open stream is busy with before its next change and no position shows, such as a search of the log. Asked after each
    /// batch.
    fn stage(&self) -> Option<Stage> {
        None
    }

    /// The next changes.
    ///
    /// # Behavior
    /// * S3: not more than `limits`, and nothing is read ahead without bound.
    /// * S4: the batch's end and the position of every committable row are safe to restart from.
    /// * S5: without changes it answers after `limits.wait` with an empty batch, whose end may have
    ///   advanced.
    /// * S6: what has not been acknowledged is still there for another opening.
    ///
    /// # Cancel safety
    /// Cancel safe (S7): a dropped call loses nothing; the next one continues.
    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch>;

    /// Everything up to `position` is committed and will never be asked for again; the source may
    /// prune it.
    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()>;

    /// Whether what was not acknowledged stays for this reader, however long that takes. The length of the history then
    /// says nothing about how long a stream may stand still.
    fn holds_back(&self) -> bool {
        false
    }

    /// How far the history reaches.
    async fn window(&mut self, cx: &Cx) -> Result<Window>;

    /// Ends reading in order.
    async fn close(self: Box<Self>, cx: &Cx) -> Result<()>;
}
