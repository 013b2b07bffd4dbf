use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;

use super::lock;
use crate::change::{Batch, BatchBuilder, Operation, RowParts};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::latest::{Follower, Latest};
use crate::payload::{JsonPayload, Payload};
use crate::position::{Pedigree, Position, SourceTime, StartAt, Version, Window};
use crate::source::{ChangeStream, Finding, Limits, Source};

/// A change to append to a [`Log`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewChange {
    /// What happened.
    pub operation: Operation,
    /// Where.
    pub namespace: String,
    /// To what; `None` makes a barrier.
    pub key: Option<Bytes>,
    /// JSON text.
    pub body: Bytes,
    /// Whether the next change is the other half of this one.
    pub first_half: bool,
}

/// A log of changes in memory. What is acknowledged is pruned.
#[derive(Debug, Clone)]
pub struct Log {
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    newest: Arc<Latest<u64>>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<(u64, NewChange, SourceTime)>,
    pruned: u64,
    newest: u64,
}

impl Log {
    /// An empty log with this identity.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), state: Arc::default(), newest: Arc::new(Latest::new(0)) }
    }

    /// Appends a change; the answer is its number, counted from 1.
    pub fn append(&self, change: NewChange, time: SourceTime) -> u64 {
        let mut state = lock(&self.state);
        state.newest += 1;
        let number = state.newest;
        state.entries.push_back((number, change, time));
        self.newest.publish(number);
        number
    }

    /// Its identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the newest change.
    pub fn newest(&self) -> u64 {
        lock(&self.state).newest
    }

    /// The number up to which changes have been pruned.
    pub fn pruned(&self) -> u64 {
        lock(&self.state).pruned
    }

    /// Drops everything up to and including `number`, as a log that is full does.
    pub fn prune(&self, number: u64) {
        let mut state = lock(&self.state);
        state.pruned = state.pruned.max(number);
        let pruned = state.pruned;
        while state.entries.front().is_some_and(|(oldest, ..)| *oldest <= pruned) {
            state.entries.pop_front();
        }
    }

    /// The position after change `number`.
    pub fn position(number: u64, time: Option<SourceTime>) -> Position {
        Position::new(number.to_be_bytes().to_vec(), time)
    }

    /// The number that a position is after.
    pub fn number(position: &Position) -> Result<u64> {
        let bytes = position.bytes.as_ref().try_into();
        bytes.map(u64::from_be_bytes).map_err(|_| Error::corrupt("a position of this log has 8 bytes"))
    }

    fn start(&self, start: &StartAt) -> Result<u64> {
        let state = lock(&self.state);
        match start {
            StartAt::Now => Ok(state.newest),
            StartAt::Oldest | StartAt::Snapshot => Ok(state.pruned),
            StartAt::Time(time) => {
                let first = state.entries.iter().find(|(.., at)| at >= time);
                Ok(first.map_or(state.newest, |(number, ..)| number - 1))
            }
            StartAt::Operation(time) => Err(time.unknown_to("a log in memory")),
            StartAt::After(position) => {
                let number = Self::number(position)?;
                if number < state.pruned {
                    let pruned = state.pruned;
                    return Err(Error::position_lost(format!("change {number} is gone: pruned through {pruned}")));
                }
                if number > state.newest {
                    return Err(Error::position_lost(format!("change {number} is after the newest one")));
                }
                Ok(number)
            }
        }
    }

    fn read(&self, after: u64, limits: Limits) -> Result<Option<Batch>> {
        let state = lock(&self.state);
        if after < state.pruned {
            return Err(Error::position_lost(format!("change {after} was pruned while it was read")));
        }
        let mut builder = BatchBuilder::new(Arc::clone(&self.name), Arc::new(JsonPayload));
        let mut end = None;
        let skip = usize::try_from(after - state.pruned).unwrap_or(usize::MAX);
        let mut halves = false;
        for (number, change, time) in state.entries.iter().skip(skip) {
            let full = builder.len() >= limits.rows || builder.size() >= limits.bytes;
            // One change may be larger than the limit, so the first is always taken.
            if full && !halves && !builder.is_empty() {
                break;
            }
            let namespace = builder.namespace(&change.namespace);
            builder.push(RowParts {
                operation: change.operation,
                namespace,
                half: u8::from(halves),
                committable: !change.first_half,
                key: change.key.as_deref(),
                // Both halves of a key update are under one position: the one after it.
                position: &(number + u64::from(change.first_half)).to_be_bytes(),
                body: &change.body,
                time: *time,
                version: Version { time: *number, ordinal: 0 },
            });
            halves = change.first_half;
            end = Some(Self::position(*number, Some(*time)));
        }
        Ok(end.map(|end| builder.finish(end)))
    }
}

#[async_trait]
impl Source for Log {
    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn identity(&self, _cx: &Cx) -> Result<Pedigree> {
        Ok(Pedigree(Bytes::copy_from_slice(self.name.as_bytes())))
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        Some(Self::number(a).ok()?.cmp(&Self::number(b).ok()?))
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(JsonPayload)
    }

    async fn open(&self, _cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        let after = self.start(&start)?;
        Ok(Box::new(Reader { log: self.clone(), after, newest: self.newest.follow() }))
    }
}

struct Reader {
    log: Log,
    after: u64,
    newest: Follower<u64>,
}

#[async_trait]
impl ChangeStream for Reader {
    fn position(&self) -> Option<Position> {
        Some(Log::position(self.after, None))
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let until = cx.now() + limits.wait;
        loop {
            self.newest.mark_seen();
            if let Some(batch) = self.log.read(self.after, limits)? {
                // Moved only when the batch is handed out, so a dropped call loses nothing.
                self.after = Log::number(&batch.end)?;
                return Ok(batch);
            }
            tokio::select! {
                biased;
                changed = self.newest.changed() => {
                    changed.map_err(|_| Error::unavailable("the log is gone"))?;
                }
                () = cx.clock().sleep_until(until) => {
                    let empty = BatchBuilder::new(Arc::clone(&self.log.name), self.log.payload());
                    return Ok(empty.finish(Log::position(self.after, None)));
                }
            }
        }
    }

    async fn acknowledge(&mut self, _cx: &Cx, position: &Position) -> Result<()> {
        self.log.prune(Log::number(position)?);
        Ok(())
    }

    async fn window(&mut self, _cx: &Cx) -> Result<Window> {
        let state = lock(&self.log.state);
        let time = |entry: Option<&(u64, NewChange, SourceTime)>| entry.map(|(.., time)| *time);
        Ok(Window { oldest: time(state.entries.front()), newest: time(state.entries.back()), room: None })
    }

    async fn close(self: Box<Self>, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
