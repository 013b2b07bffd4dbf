//! The checkpoints before the newest one, for people who want to go back on purpose.
//!
//! The holder notes each commit in memory and appends them by the block, so that a commit does not
//! cost a record of its own. What a crash loses is the last, open block: places to go back to, never
//! the checkpoint itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{
    Checkpoint, Cx, Epoch, Error, LeaseKey, Operation, Pedigree, Position, Record, Records, Result, SourceTime,
};

use super::block;

/// So many checkpoints are kept per key, unless settings say otherwise.
pub const CAPACITY: usize = 1_000;

/// So many make a block.
pub const BLOCK_ENTRIES: usize = 100;

/// One committed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Where to resume.
    pub position: Position,
    /// The log that the position belongs to.
    pub pedigree: Option<Pedigree>,
    /// The epoch that committed it.
    pub epoch: Epoch,
    /// Its number within its tenure.
    pub seq: u64,
    /// The source's time of the last change before it.
    pub time: Option<SourceTime>,
    /// The last operation before it.
    pub operation: Option<Operation>,
    /// When it was committed, milliseconds since 1970 by the committing instance's wall clock.
    pub updated_at_millis: u64,
    /// How many changes of the stream had been passed.
    pub changes: u64,
    /// The instance that committed it.
    pub by: String,
}

impl HistoryEntry {
    /// A position to go back to that no checkpoint stands for.
    pub fn at(position: Position, pedigree: Option<Pedigree>) -> Self {
        let (epoch, by) = (Epoch::ZERO, String::new());
        Self { position, pedigree, epoch, seq: 0, time: None, operation: None, updated_at_millis: 0, changes: 0, by }
    }

    /// The entry of a checkpoint; `None` for one without a position, since there is nowhere to go
    /// back to.
    pub fn of(checkpoint: &Checkpoint) -> Option<Self> {
        Some(Self {
            position: checkpoint.position.clone()?,
            pedigree: checkpoint.pedigree.clone(),
            epoch: checkpoint.epoch,
            seq: checkpoint.seq,
            time: checkpoint.facts.last_event_time,
            operation: checkpoint.facts.last_operation,
            updated_at_millis: checkpoint.facts.updated_at_millis,
            changes: checkpoint.facts.changes,
            by: checkpoint.facts.processed_by.clone(),
        })
    }

    /// Its bytes one after the other: texts as they are, and eight for every number.
    fn plain_bytes(&self) -> usize {
        let texts = [
            self.position.bytes.len(),
            self.pedigree.as_ref().map_or(0, |pedigree| pedigree.0.len()),
            self.operation.map_or(0, |operation| operation.as_str().len()),
            self.by.len(),
        ];
        let numbers = 4 + usize::from(self.time.is_some()) + usize::from(self.position.time.is_some());
        texts.iter().sum::<usize>() + numbers * size_of::<u64>()
    }
}

/// What was read of a history.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Reading {
    /// The checkpoints, newest first.
    pub entries: Vec<HistoryEntry>,
    /// A `Corrupt` error for each block that cannot be read, naming it.
    pub damaged: Vec<Error>,
    /// What the store keeps of it, whatever was asked for.
    pub size: Size,
}

/// How large a history is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Size {
    /// Blocks that can be read.
    pub blocks: usize,
    /// Checkpoints in them.
    pub checkpoints: usize,
    /// Their bytes as they are stored.
    pub stored_bytes: usize,
    /// The bytes of the same checkpoints without compression.
    pub plain_bytes: usize,
}

/// The checkpoints of one key.
#[derive(Debug)]
pub struct History {
    records: Arc<dyn Records>,
    log: String,
    capacity: usize,
    /// Noted but not appended yet, oldest first. Never more than `capacity`: older ones would be
    /// rotated away anyway, so a store that is down for long does not cost memory.
    open: VecDeque<HistoryEntry>,
    /// Whether the first of them is of another holder, which may have appended it.
    has_inherited: bool,
}

impl History {
    /// The history of `key`: at least the last `capacity` checkpoints, at most one block more.
    pub fn new(records: Arc<dyn Records>, group: &str, key: &LeaseKey, capacity: usize) -> Self {
        Self {
            records,
            log: format!("{group}/history/{key}"),
            capacity: capacity.max(1),
            open: VecDeque::new(),
            has_inherited: false,
        }
    }

    /// Notes a committed checkpoint. Cheap, without I/O.
    pub fn note(&mut self, checkpoint: &Checkpoint) {
        let Some(entry) = HistoryEntry::of(checkpoint) else { return };
        if self.open.len() >= self.capacity {
            self.open.pop_front();
        }
        self.open.push_back(entry);
    }

    /// Notes the checkpoint that the holder before has committed last: one that died has not appended it.
    pub fn inherit(&mut self, checkpoint: &Checkpoint) {
        self.note(checkpoint);
        self.has_inherited = self.open.len() == 1;
    }

    /// How many checkpoints were noted and not appended yet.
    pub fn unwritten(&self) -> usize {
        self.open.len()
    }

    /// Whether there is a block's worth to flush.
    pub fn due(&self) -> bool {
        self.open.len() >= self.block_entries()
    }

    /// Appends what has been noted.
    ///
    /// # Cancel safety
    /// What is not known to be appended stays noted. It may then be appended twice, which readers
    /// leave out.
    pub async fn flush(&mut self, cx: &Cx) -> Result<()> {
        self.drop_inherited(cx).await?;
        while !self.open.is_empty() {
            cx.check()?;
            let Some((count, packed)) = self.fit()? else {
                tracing::warn!(log = self.log, "a checkpoint is too large for the history and is left out");
                self.open.pop_front();
                continue;
            };
            let keep = self.keep(cx, block::header(&packed)?).await?;
            self.records.append(cx, &self.log, packed, keep).await?;
            self.open.drain(..count);
        }
        Ok(())
    }

    /// Drops what was inherited where the holder before has appended it.
    async fn drop_inherited(&mut self, cx: &Cx) -> Result<()> {
        let Some(inherited) = self.open.front().filter(|_| self.has_inherited) else { return Ok(()) };
        let stored = self.records.tail(cx, &self.log, 1).await?;
        let newest = stored.last().and_then(|record| block::unpack(&record.bytes).ok()).unwrap_or_default();
        let is_stored = newest.iter().any(|entry| (entry.epoch, entry.seq) == (inherited.epoch, inherited.seq));
        if is_stored {
            self.open.pop_front();
        }
        self.has_inherited = false;
        Ok(())
    }

    /// Appends the rest at the end of a tenure.
    pub async fn close(mut self, cx: &Cx) -> Result<()> {
        self.flush(cx).await
    }

    /// Whether a position was ever committed under this key. A block that cannot be read proves it as well: only commits with a position
    /// make blocks.
    ///
    /// # Errors
    /// What the records say when they do not answer.
    pub async fn has_entries(&self, cx: &Cx) -> Result<bool> {
        Ok(!self.open.is_empty() || !self.records.tail(cx, &self.log, 1).await?.is_empty())
    }

    /// The newest `limit` checkpoints, newest first, those of this holder's open block included. A
    /// damaged block is left out and logged.
    pub async fn read(&self, cx: &Cx, limit: usize) -> Result<Vec<HistoryEntry>> {
        let reading = self.inspect(cx, limit).await?;
        reading.damaged.iter().for_each(|error| tracing::warn!(%error, "a part of the history cannot be read"));
        Ok(reading.entries)
    }

    /// As [`read`](Self::read), with what is wrong.
    pub async fn inspect(&self, cx: &Cx, limit: usize) -> Result<Reading> {
        let mut damaged = Vec::new();
        // Ordered by what fences: a holder that closes late appends its block behind its successor's.
        let mut known: BTreeMap<(Epoch, u64), HistoryEntry> = BTreeMap::new();
        let mut size = Size::default();
        for record in self.records.tail(cx, &self.log, self.blocks_max()).await? {
            match block::unpack(&record.bytes) {
                Ok(entries) => {
                    size.blocks += 1;
                    size.checkpoints += entries.len();
                    size.stored_bytes += record.bytes.len();
                    size.plain_bytes += entries.iter().map(HistoryEntry::plain_bytes).sum::<usize>();
                    known.extend(entries.into_iter().map(keyed));
                }
                Err(error) => damaged.push(self.damaged(&record, error)),
            }
        }
        known.extend(self.open.iter().cloned().map(keyed));
        let entries = known.into_values().rev().take(limit).collect();
        Ok(Reading { entries, damaged, size })
    }

    /// The largest block of the oldest open entries that a record can take, at most a usual one, with
    /// its number of entries. `None` when already the first entry does not fit.
    fn fit(&mut self) -> Result<Option<(usize, Bytes)>> {
        let mut count = self.open.len().min(self.block_entries());
        let entries = self.open.make_contiguous();
        while count > 0 {
            let packed = block::pack(&entries[..count])?;
            if packed.len() <= RECORD_BYTES_MAX {
                return Ok(Some((count, packed)));
            }
            count /= 2;
        }
        Ok(None)
    }

    /// How many blocks to keep with the one of header `newest`: as few as hold the capacity. Blocks
    /// differ in size (a tenure may end early), so they are counted by what they hold.
    async fn keep(&self, cx: &Cx, newest: block::Header) -> Result<usize> {
        let stored = self.records.tail(cx, &self.log, self.blocks_max()).await?;
        let (mut held, mut blocks, mut last) = (newest.count, 1, newest);
        for record in stored.iter().rev() {
            if held >= self.capacity as u64 {
                break;
            }
            blocks += 1;
            // One that cannot be read, or that was appended twice, holds nothing.
            let Some(header) = block::header(&record.bytes).ok().filter(|header| *header != last) else { continue };
            held = held.saturating_add(header.count);
            last = header;
        }
        Ok(blocks)
    }

    fn damaged(&self, record: &Record, error: Error) -> Error {
        let (revision, why) = (record.revision.0, error.message().to_owned());
        Error::corrupt(format!("block {revision} of {} is damaged: {why}", self.log))
            .remedy("its checkpoints cannot be gone back to; it is dropped by rotation")
            .caused_by(error)
    }

    fn block_entries(&self) -> usize {
        BLOCK_ENTRIES.min(self.capacity)
    }

    /// Each block holds at least one entry; as many again are allowed to be damaged or doubled.
    fn blocks_max(&self) -> usize {
        self.capacity * 2
    }
}

fn keyed(entry: HistoryEntry) -> ((Epoch, u64), HistoryEntry) {
    ((entry.epoch, entry.seq), entry)
}
