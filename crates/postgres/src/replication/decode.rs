//! From messages of the log to rows of a batch.

use std::collections::BTreeSet;

use bytes::Bytes;
use watchkeeper_core::{Error, Limits, Operation, Result, RowParts, SourceTime, Version};

use super::body;
use super::filling::{Filling, Half, Pen, old_image, write_filled};
use super::pgoutput::{Images, Message, millis, odd};
use super::place::{Aside, Lsn, Place, Told};
use super::pump::{HEAD, frame_length, number};
use super::relation::{Relation, Relations, keyless};
use super::settings::Choice;
use super::spool::{self, Spool, Streamed};

/// A transaction that takes more than this is not told again just to recognise the log by it.
const WITNESS_BYTES_MAX: usize = 1 << 20;

/// So much of the log is held back for the last transaction that was told, while nothing follows it.
const WITNESS_HELD_MAX: u64 = 16 << 20;

/// What became of a piece of the log.
pub(super) enum Filled {
    /// There is no room for more; the piece goes on.
    Full,
    /// All of it was taken up.
    Drained,
    /// Here a table is described whose key has to be asked for before going on.
    AskKey { id: u32, relation: Box<Relation> },
    /// Here the log has arrived at the snapshot that was waiting for it; the piece goes on.
    CaughtUp,
    /// Here a transaction was committed whose changes were laid aside: they come next, then its end.
    Committed { streamed: Streamed, end: Lsn },
}

/// The transaction whose changes are being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transaction {
    pub(super) commit: Lsn,
    pub(super) time: SourceTime,
    pub(super) xid: u32,
    /// How many changes of it have been read.
    pub(super) ordinal: u64,
    /// Of how many changes nothing more is told, since they were told before.
    passed: u64,
    /// How much was read of it.
    bytes: usize,
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
    /// Where in the log the snapshot was taken whose rows come next, as long as the log is read up to there first.
    catching_up: Option<Lsn>,
    /// The only tables that are told of; all without it.
    wanted: Choice,
    keys: [Vec<u8>; 2],
    position: Vec<u8>,
    /// Transactions that are told before they are committed.
    pub(super) spool: Spool,
    /// The parts that were undone of the transaction that comes out of the spool.
    undone: BTreeSet<u32>,
}

impl Decoder {
    pub(super) fn new(at: Place, time: Option<SourceTime>, wanted: Choice, spool: Spool) -> Self {
        let awaited = at.ordinal > 0;
        let (relations, keys, position) = (Relations::default(), Default::default(), Vec::new());
        let undone = BTreeSet::new();
        let (transaction, catching_up) = (None, None);
        Self { relations, transaction, at, time, awaited, catching_up, wanted, keys, position, spool, undone }
    }

    /// Reads the log up to `lsn` before the rows of the snapshot that was taken there.
    pub(super) fn catch_up_with(&mut self, lsn: Lsn) {
        self.catching_up = Some(lsn).filter(|lsn| *lsn > self.at.lsn);
    }

    /// Whether the log was read as far as it has to be before a snapshot.
    pub(super) fn has_caught_up(&self) -> bool {
        self.catching_up.is_none()
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
            let stopped = match frame.get(5) {
                Some(b'w') if length > HEAD && self.spool.is_receiving() => {
                    self.spool.receive(&frame[HEAD..])?;
                    None
                }
                Some(b'w') if length > HEAD => self.offer(Message::read(&frame[HEAD..])?, filling, limits)?,
                Some(&spool::LAID_ASIDE) if length > spool::HEAD => {
                    let message = Message::read(&frame[spool::HEAD..])?;
                    // Tables that an undone part described hold for what follows, too: the server describes them once.
                    let is_undone = message.is_row() && self.undone.contains(&spool::part(frame));
                    if is_undone { None } else { self.offer(message, filling, limits)? }
                }
                Some(b'k') => self.rest_at(Lsn(number(frame, 6)), number(frame, 14))?,
                _ => None,
            };
            match stopped {
                Some(stopped @ (Filled::Full | Filled::CaughtUp)) => return Ok(stopped),
                _ => *from += length,
            }
            if let Some(stopped) = stopped {
                return Ok(stopped);
            }
        }
        Ok(Filled::Drained)
    }

    fn offer(&mut self, message: Message<'_>, filling: &mut Filling, limits: Limits) -> Result<Option<Filled>> {
        if message.is_row() && filling.is_full(limits) {
            return Ok(Some(Filled::Full));
        }
        self.take(message, filling)
    }

    /// The server has sent all up to `lsn`. Between transactions that is a place to go on from, so that a slot whose tables
    /// are quiet moves on.
    fn rest_at(&mut self, lsn: Lsn, micros: u64) -> Result<Option<Filled>> {
        if self.transaction.is_none() && self.catches_up_at(lsn)? {
            return Ok(Some(Filled::CaughtUp));
        }
        if self.transaction.is_some() || self.spool.is_receiving() || lsn <= self.at.lsn {
            return Ok(None);
        }
        self.require_resumed()?;
        match &self.at.aside {
            Aside::Snapshot(progress) if progress.is_over_at(lsn) => self.at.aside = Aside::Nothing,
            Aside::Snapshot(progress) if progress.complete => return Ok(None),
            _ => {}
        }
        if self.pass(lsn) {
            self.time = Some(SourceTime(millis(micros.cast_signed())));
        }
        Ok(None)
    }

    /// Whether the snapshot is reached with this place, before which all was read.
    fn catches_up_at(&mut self, lsn: Lsn) -> Result<bool> {
        let is_reached = self.catching_up.is_some_and(|taken| lsn >= taken);
        if is_reached {
            self.require_resumed()?;
            self.catching_up = None;
        }
        Ok(is_reached)
    }

    /// Goes on to `lsn`, up to which nothing was told; whether it did.
    ///
    /// The place after the last change of a transaction is kept for a while: whoever goes on from there is told that
    /// transaction again, and so recognises a log that is another one, be it that of a restored server.
    fn pass(&mut self, lsn: Lsn) -> bool {
        let is_kept = self.at.ordinal > 0 && lsn.0 < self.at.lsn.0.saturating_add(WITNESS_HELD_MAX);
        let passes = lsn > self.at.lsn && !is_kept;
        if passes {
            (self.at.lsn, self.at.ordinal) = (lsn, 0);
        }
        passes
    }

    /// The transaction is over; the next one lies at `end` or later.
    pub(super) fn commit(&mut self, end: Lsn) {
        let Some(transaction) = self.transaction.take() else { return };
        self.undone.clear();
        let is_told = self.at.ordinal > 0 && self.at.lsn == transaction.commit;
        if is_told && transaction.bytes > WITNESS_BYTES_MAX {
            (self.at.lsn, self.at.ordinal) = (end, 0);
        } else if !is_told {
            self.pass(end);
        }
    }

    /// Refuses a log that goes on behind a transaction in whose middle reading stopped, without telling it again.
    fn require_resumed(&self) -> Result<()> {
        if !self.awaited {
            return Ok(());
        }
        Err(Error::position_lost(format!(
            "the log has no transaction at {} any more, where the stream stands",
            self.at.lsn
        ))
        .remedy("the server was restored, or the publication changed; accept the gap: watchkeeper accept-gap STREAM"))
    }

    /// Refuses another transaction at the very place of the one in which reading stopped.
    fn require_same(&self, time: SourceTime) -> Result<()> {
        if !self.awaited || self.time.is_none_or(|told| told == time) {
            return Ok(());
        }
        let cause = format!("the log has another transaction at {}, where the stream stands", self.at.lsn);
        Err(Error::position_lost(cause)
            .remedy("the server was restored; accept the gap: watchkeeper accept-gap STREAM"))
    }

    fn take(&mut self, message: Message<'_>, filling: &mut Filling) -> Result<Option<Filled>> {
        if let Message::Begin { commit, .. } | Message::StreamCommit { commit, .. } = &message
            && self.catches_up_at(Lsn(*commit))?
        {
            return Ok(Some(Filled::CaughtUp));
        }
        match message {
            Message::Begin { commit, millis, xid } => self.begin(Lsn(commit), SourceTime(millis), xid)?,
            Message::Commit { end } => self.commit(Lsn(end)),
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
            Message::StreamStart { xid } => self.spool.start(xid),
            Message::StreamAbort { xid, part } => self.spool.undo(xid, part),
            Message::StreamCommit { xid, commit, end, millis } => {
                self.begin(Lsn(commit), SourceTime(millis), xid)?;
                return Ok(Some(self.unspool(xid, Lsn(end))));
            }
            Message::Other => {}
        }
        Ok(None)
    }

    /// The changes of a transaction that was told before its commit come next.
    fn unspool(&mut self, xid: u32, end: Lsn) -> Filled {
        let mut streamed = self.spool.take(xid);
        self.undone = std::mem::take(&mut streamed.undone);
        Filled::Committed { streamed, end }
    }

    fn begin(&mut self, commit: Lsn, time: SourceTime, xid: u32) -> Result<()> {
        let mut passed = 0;
        if commit < self.at.lsn {
            // The server was asked for nothing so early; whatever made it send this, it was told before.
            passed = u64::MAX;
        } else if commit == self.at.lsn {
            self.require_same(time)?;
            (passed, self.awaited) = (self.at.ordinal, false);
        } else {
            self.require_resumed()?;
        }
        match &self.at.aside {
            Aside::NotBefore(earliest) if time.0 < *earliest => passed = u64::MAX,
            Aside::NotBefore(_) | Aside::Anew => self.at.aside = Aside::Nothing,
            // From here on no table has rows in the snapshot that are newer.
            Aside::Snapshot(progress) if progress.is_over_at(commit) => self.at.aside = Aside::Nothing,
            _ => {}
        }
        self.transaction = Some(Transaction { commit, time, xid, ordinal: 0, passed, bytes: 0 });
        Ok(())
    }

    /// Counts a change of this table, and tells whether it is to be given out, or what it removes.
    fn count(&mut self, table: u32, bytes: usize) -> Result<(Transaction, Told)> {
        let transaction = self.transaction.as_mut().ok_or_else(|| odd("a change outside of a transaction"))?;
        transaction.ordinal += 1;
        transaction.bytes = transaction.bytes.saturating_add(bytes);
        let transaction = *transaction;
        if transaction.ordinal <= transaction.passed {
            return Ok((transaction, Told::Nothing));
        }
        let relation = self.relations.get(table)?;
        let is_wanted = self.wanted.has(&relation.name);
        let told = match &self.at.aside {
            _ if !is_wanted => Told::Nothing,
            Aside::Snapshot(progress) => progress.told(&relation.name, transaction.commit),
            _ => Told::Everything,
        };
        Ok((transaction, told))
    }

    /// Goes to the place after the change that was counted last.
    fn step(&mut self, transaction: &Transaction) {
        (self.at.lsn, self.at.ordinal) = (transaction.commit, transaction.ordinal);
        self.time = Some(transaction.time);
        self.position.clear();
        self.at.write(&mut self.position);
    }

    /// Whether something is given out of a change of which this is `told`.
    fn is_given_out(&self, told: Told, operation: Operation, table: u32, tuples: &[u8]) -> Result<bool> {
        match (told, operation) {
            (Told::Nothing, _) | (Told::Removals, Operation::Insert) => Ok(false),
            (Told::Removals, Operation::Update) => self.relations.get(table)?.moves(&Images::read(tuples)?),
            _ => Ok(true),
        }
    }

    fn row(&mut self, operation: Operation, table: u32, tuples: &[u8], filling: &mut Filling) -> Result<()> {
        let (transaction, told) = self.count(table, tuples.len())?;
        if !self.is_given_out(told, operation, table, tuples)? {
            return Ok(());
        }
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
            (_, Some(_)) if told == Told::Removals => {
                let old = old_image(tuples)?;
                pen.write(Operation::Delete, Half::Whole, old_key, |out| out.extend(old));
            }
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
            let (transaction, told) = self.count(table, size_of_val(&table))?;
            if told == Told::Nothing {
                continue;
            }
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
