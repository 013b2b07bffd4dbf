//! From messages of the log to rows of a batch.

use std::sync::Arc;

use bytes::Bytes;
use watchkeeper_core::{Batch, BatchBuilder, Error, Limits, Operation, Result, RowParts, SourceTime, Version};

use super::body::{self, RowPayload};
use super::pgoutput::{Cell, Images, Message, Tuple, millis, odd};
use super::place::{Aside, Lsn, Place};
use super::pump::{HEAD, frame_length, number};
use super::relation::{Relation, Relations, keyless};

/// What became of a piece of the log.
#[derive(Debug)]
pub(super) enum Filled {
    /// There is no room for more; the piece goes on.
    Full,
    /// All of it was taken up.
    Drained,
    /// Here a table is described whose key has to be asked for before going on.
    AskKey { id: u32, relation: Box<Relation> },
}

/// A batch that is being made.
pub(super) struct Filling {
    builder: BatchBuilder,
    bodies: Vec<u8>,
}

impl Filling {
    pub(super) fn new(origin: &Arc<str>) -> Self {
        let builder = BatchBuilder::new(Arc::clone(origin), Arc::new(RowPayload));
        Self { builder, bodies: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    pub(super) fn is_full(&self, limits: Limits) -> bool {
        let size = self.builder.size() + self.bodies.len();
        self.builder.len() >= limits.rows || (size >= limits.bytes && !self.is_empty())
    }

    pub(super) fn finish(self, decoder: &Decoder) -> Batch {
        self.builder.finish_over(self.bodies.into(), decoder.end())
    }

    /// Appends a row whose body was written from `start` on.
    pub(super) fn push(&mut self, parts: RowParts<'_>, start: usize) {
        let end = self.bodies.len();
        self.builder.push_in_place(parts, start..end);
    }

    pub(super) fn namespace(&mut self, name: &str) -> u16 {
        self.builder.namespace(name)
    }

    pub(super) fn bodies(&mut self) -> &mut Vec<u8> {
        &mut self.bodies
    }
}

/// The transaction whose changes are being read.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    commit: Lsn,
    time: SourceTime,
    xid: u32,
    /// How many changes of it have been read.
    ordinal: u64,
    /// Of how many changes nothing more is told, since they were told before.
    passed: u64,
}

/// Reads messages one after the other.
pub(super) struct Decoder {
    relations: Relations,
    transaction: Option<Transaction>,
    /// After what was handed out last.
    at: Place,
    time: Option<SourceTime>,
    /// Whether the transaction in whose middle reading resumes has still to come.
    awaited: bool,
    /// The only tables that are told of; all without it.
    wanted: Option<Arc<[String]>>,
    keys: [Vec<u8>; 2],
    position: Vec<u8>,
}

impl Decoder {
    pub(super) fn new(at: Place, time: Option<SourceTime>, wanted: Vec<String>) -> Self {
        let awaited = at.ordinal > 0;
        let wanted = (!wanted.is_empty()).then(|| wanted.into());
        let (relations, keys, position) = (Relations::default(), Default::default(), Vec::new());
        Self { relations, transaction: None, at, time, awaited, wanted, keys, position }
    }

    pub(super) fn end(&self) -> watchkeeper_core::Position {
        self.at.position(self.time)
    }

    pub(super) fn time(&self) -> Option<SourceTime> {
        self.time
    }

    /// The place, for a snapshot that comes before the log.
    pub(super) fn place(&mut self) -> &mut Place {
        &mut self.at
    }

    /// Takes up a table whose key had to be asked for.
    pub(super) fn learn(&mut self, id: u32, relation: Relation, key: &[String]) {
        let relation = relation.with_key(key, &self.relations.types);
        self.relations.put(id, relation);
    }

    /// Reads `piece` from `from` on.
    pub(super) fn fill(
        &mut self,
        piece: &Bytes,
        from: &mut usize,
        filling: &mut Filling,
        limits: Limits,
    ) -> Result<Filled> {
        while let Some(length) = frame_length(&piece[*from..]) {
            let frame = piece.get(*from..*from + length).ok_or_else(|| odd("half a message"))?;
            match frame.get(5) {
                Some(b'w') if length > HEAD => {
                    let message = Message::read(&frame[HEAD..])?;
                    if filling.is_full(limits) && message.is_row() {
                        return Ok(Filled::Full);
                    }
                    if let Some(ask) = self.take(message, filling)? {
                        // After the answer reading goes on behind this message.
                        *from += length;
                        return Ok(ask);
                    }
                }
                Some(b'k') => self.rest_at(Lsn(number(frame, 6)), number(frame, 14))?,
                _ => {}
            }
            *from += length;
        }
        Ok(Filled::Drained)
    }

    /// The server has sent all up to `lsn`. Between transactions that is a place to go on from, so that a slot whose tables
    /// are quiet moves on.
    fn rest_at(&mut self, lsn: Lsn, micros: u64) -> Result<()> {
        if self.transaction.is_some() || lsn <= self.at.lsn {
            return Ok(());
        }
        self.require_resumed()?;
        if let Aside::Snapshot(progress) = &self.at.aside {
            if progress.done.iter().any(|(_, read)| *read > lsn) {
                return Ok(());
            }
            self.at.aside = Aside::Nothing;
        }
        (self.at.lsn, self.at.ordinal) = (lsn, 0);
        self.time = Some(SourceTime(millis(micros.cast_signed())));
        Ok(())
    }

    /// Refuses a log that goes on behind a transaction in whose middle reading stopped, without telling it again.
    fn require_resumed(&self) -> Result<()> {
        if !self.awaited {
            return Ok(());
        }
        Err(Error::position_lost(format!(
            "the log has no transaction at {} any more, in which the stream stands",
            self.at.lsn
        ))
        .remedy("the server was restored, or the publication changed; accept the gap: watchkeeper accept-gap STREAM"))
    }

    fn take(&mut self, message: Message<'_>, filling: &mut Filling) -> Result<Option<Filled>> {
        match message {
            Message::Begin { commit, millis, xid } => self.begin(Lsn(commit), SourceTime(millis), xid)?,
            Message::Commit { end } => {
                self.transaction = None;
                self.at.lsn = Lsn(end).max(self.at.lsn);
                self.at.ordinal = 0;
            }
            Message::Relation { id, rest } => {
                let described = Relation::read(rest, &self.relations.types)?;
                if described.is_full {
                    return Ok(Some(Filled::AskKey { id, relation: Box::new(described.relation) }));
                }
                self.relations.put(id, described.relation);
            }
            Message::Type { id, name } => drop(self.relations.types.insert(id, name.to_owned())),
            Message::Insert { relation, tuples } => self.row(Operation::Insert, relation, tuples, filling)?,
            Message::Update { relation, tuples } => self.row(Operation::Update, relation, tuples, filling)?,
            Message::Delete { relation, tuples } => self.row(Operation::Delete, relation, tuples, filling)?,
            Message::Truncate { options, relations } => self.truncate(options, relations, filling)?,
            Message::Other => {}
        }
        Ok(None)
    }

    fn begin(&mut self, commit: Lsn, time: SourceTime, xid: u32) -> Result<()> {
        let mut passed = 0;
        if commit < self.at.lsn {
            // The server was asked for nothing so early; whatever made it send this, it was told before.
            passed = u64::MAX;
        } else if commit == self.at.lsn {
            (passed, self.awaited) = (self.at.ordinal, false);
        } else {
            self.require_resumed()?;
        }
        match &self.at.aside {
            Aside::NotBefore(earliest) if time.0 < *earliest => passed = u64::MAX,
            Aside::NotBefore(_) => self.at.aside = Aside::Nothing,
            // From here on no table has rows in the snapshot that are newer.
            Aside::Snapshot(progress) if progress.done.iter().all(|(_, read)| *read <= commit) => {
                self.at.aside = Aside::Nothing;
            }
            _ => {}
        }
        self.transaction = Some(Transaction { commit, time, xid, ordinal: 0, passed });
        Ok(())
    }

    /// Counts a change of this table, and tells whether it is to be given out.
    fn count(&mut self, table: u32) -> Result<Option<Transaction>> {
        let transaction = self.transaction.as_mut().ok_or_else(|| odd("a change outside of a transaction"))?;
        transaction.ordinal += 1;
        let transaction = *transaction;
        if transaction.ordinal <= transaction.passed {
            return Ok(None);
        }
        let relation = self.relations.get(table)?;
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| wanted.contains(&relation.name));
        let in_snapshot = match &self.at.aside {
            Aside::Snapshot(progress) => progress.read_at(&relation.name).is_some_and(|at| transaction.commit < at),
            _ => false,
        };
        Ok((is_wanted && !in_snapshot).then_some(transaction))
    }

    /// Goes to the place after the change that was counted last.
    fn step(&mut self, transaction: &Transaction) {
        (self.at.lsn, self.at.ordinal) = (transaction.commit, transaction.ordinal);
        self.time = Some(transaction.time);
        self.position.clear();
        self.at.write(&mut self.position);
    }

    fn row(&mut self, operation: Operation, table: u32, tuples: &[u8], filling: &mut Filling) -> Result<()> {
        let Some(transaction) = self.count(table)? else { return Ok(()) };
        self.step(&transaction);
        let relation = self.relations.get(table)?;
        if !relation.has_key() {
            return Err(keyless(&relation.name));
        }
        let images = Images::read(tuples)?;
        let [new_key, old_key] = &mut self.keys;
        new_key.clear();
        old_key.clear();
        if let Some(old) = images.old {
            relation.write_key(old, None, old_key)?;
        }
        if let Some(new) = images.new {
            relation.write_key(new, images.old, new_key)?;
        }
        let mut pen = Pen { filling, transaction: &transaction, position: &self.position, relation };
        match (operation, images.new) {
            (Operation::Delete, _) => pen.write(Operation::Delete, Half::Whole, old_key, |out| out.extend(tuples)),
            (_, None) => return Err(odd("a row without a new image")),
            (Operation::Update, Some(new)) if images.old.is_some() && old_key != new_key => {
                let old = old_image(tuples)?;
                pen.write(Operation::Delete, Half::First, old_key, |out| out.extend(old));
                let mut image = Vec::new();
                write_filled(new, images.old.filter(|_| images.is_whole), &mut image)?;
                pen.write(Operation::Insert, Half::Second, new_key, |out| out.append(&mut image));
            }
            (operation, Some(_)) => pen.write(operation, Half::Whole, new_key, |out| out.extend(tuples)),
        }
        Ok(())
    }

    fn truncate(&mut self, options: u8, tables: &[u8], filling: &mut Filling) -> Result<()> {
        for table in tables.as_chunks().0 {
            let table = u32::from_be_bytes(*table);
            let Some(transaction) = self.count(table)? else { continue };
            self.step(&transaction);
            let namespace = filling.namespace(&self.relations.get(table)?.name);
            let start = filling.bodies().len();
            filling.bodies().extend(body::truncate(transaction.xid, options));
            let parts = RowParts {
                operation: Operation::Truncate,
                namespace,
                half: 0,
                committable: true,
                key: None,
                position: &self.position,
                body: &[],
                time: transaction.time,
                version: Version { time: transaction.commit.0, ordinal: transaction.ordinal * 2 },
            };
            filling.push(parts, start);
        }
        Ok(())
    }
}

impl Message<'_> {
    /// Whether it makes rows.
    fn is_row(&self) -> bool {
        matches!(self, Self::Insert { .. } | Self::Update { .. } | Self::Delete { .. } | Self::Truncate { .. })
    }
}

/// Which part of a change a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Whole,
    First,
    Second,
}

/// Writes the rows of one change.
struct Pen<'a> {
    filling: &'a mut Filling,
    transaction: &'a Transaction,
    position: &'a [u8],
    relation: &'a Relation,
}

impl Pen<'_> {
    fn write(&mut self, operation: Operation, half: Half, key: &[u8], images: impl FnOnce(&mut Vec<u8>)) {
        let namespace = self.filling.namespace(&self.relation.name);
        let bodies = self.filling.bodies();
        let start = bodies.len();
        body::begin_row(self.transaction.xid, &self.relation.described, bodies);
        images(bodies);
        let second = u64::from(half == Half::Second);
        let parts = RowParts {
            operation,
            namespace,
            half: u8::from(half == Half::Second),
            committable: half != Half::First,
            key: Some(key),
            position: self.position,
            body: &[],
            time: self.transaction.time,
            version: Version { time: self.transaction.commit.0, ordinal: self.transaction.ordinal * 2 + second },
        };
        self.filling.push(parts, start);
    }
}

/// The part of a change's images that is the old one.
fn old_image(tuples: &[u8]) -> Result<&[u8]> {
    let rest = Tuple::begin(tuples.get(1..).unwrap_or_default())?.rest()?;
    Ok(&tuples[..tuples.len() - rest.len()])
}

/// Writes a new image, in which what was not sent is taken from the old one.
fn write_filled(mut new: Tuple<'_>, mut old: Option<Tuple<'_>>, out: &mut Vec<u8>) -> Result<()> {
    out.push(b'N');
    out.extend_from_slice(&new.left().to_be_bytes());
    while let Some(cell) = new.next()? {
        let before = match &mut old {
            Some(old) => old.next()?,
            None => None,
        };
        match (cell, before) {
            (Cell::Unchanged, Some(Cell::Text(text))) | (Cell::Text(text), _) => write_text(text, out),
            (Cell::Unchanged, _) => out.push(b'u'),
            (Cell::Null, _) => out.push(b'n'),
        }
    }
    Ok(())
}

/// Writes a value as images hold it.
pub(super) fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b't');
    // A value is limited to 1 GiB by the server.
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text);
}
