//! From messages of the log to rows of a batch.

mod stand;

use std::collections::BTreeSet;

use bytes::Bytes;
use watchkeeper_core::{Limits, Operation, Result, RowParts, SourceTime, Version};

use super::batch::{BatchInProgress, ChangePart, RowWriter, old_image, write_filled};
use super::body;
use super::catalog::CatalogTable;
use super::keys::KnownKeys;
use super::pgoutput::{Images, Message, odd};
use super::position::{DeliveredPart, Lsn, PositionContext, ReplicationPosition};
use super::relation::{Described, NamedType, Relation, Relations};
use super::settings::{Choice, Keyless};
use super::spool::{self, Spool, Streamed};
use super::task::{HEAD, frame_length, number};

/// What became of a piece of the log.
pub(super) enum DecodeStep {
    /// There is no room for more; the piece goes on.
    Full,
    /// All of it was taken up.
    Drained,
    /// Here a table is described whose key or name has to be asked for before going on.
    AskKey { id: u32, described: Box<Described> },
    /// Here a table is described whose key may be another one than before: the server has to be asked before going on.
    Rekeyed,
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
    at: ReplicationPosition,
    time: Option<SourceTime>,
    /// Everything before this place was received.
    received: Lsn,
    /// So much of the log is held back for the last transaction that was told, while nothing follows it.
    held_max: u64,
    /// Whether the transaction in whose middle reading resumes has still to come.
    awaited: bool,
    /// Its commit time, if that is known.
    awaited_time: Option<SourceTime>,
    /// Where in the log the snapshot was taken whose rows come next, as long as the log is read up to there first.
    catching_up: Option<Lsn>,
    /// The only tables that are told of; all without it.
    wanted: Choice,
    keyless: Keyless,
    keys: [Vec<u8>; 2],
    position: Vec<u8>,
    /// Transactions that are told before they are committed.
    pub(super) spool: Spool,
    /// The parts that were undone of the transaction that comes out of the spool.
    undone: BTreeSet<u32>,
}

impl Decoder {
    pub(super) fn new(
        at: ReplicationPosition,
        time: Option<SourceTime>,
        (wanted, keyless): (Choice, Keyless),
        spool: Spool,
    ) -> Self {
        let (awaited, awaited_time) = (at.ordinal > 0, at.commit_time(time));
        let (relations, keys, position) = (Relations::default(), Default::default(), Vec::new());
        let undone = BTreeSet::new();
        let (transaction, catching_up) = (None, None);
        Self {
            relations,
            transaction,
            received: at.lsn,
            held_max: stand::HELD_MAX,
            at,
            time,
            awaited,
            awaited_time,
            catching_up,
            wanted,
            keyless,
            keys,
            position,
            spool,
            undone,
        }
    }

    pub(super) fn end(&self) -> watchkeeper_core::Position {
        self.at.position(self.time)
    }

    pub(super) fn time(&self) -> Option<SourceTime> {
        self.time
    }

    /// The place, for a snapshot that comes before the log.
    pub(super) fn place(&mut self) -> &mut ReplicationPosition {
        &mut self.at
    }

    /// Whether a table was described again since this was asked last.
    pub(super) fn take_repeated(&mut self) -> bool {
        self.relations.take_repeated()
    }

    /// Takes up a table that had to be asked for.
    /// Whether the server has to be asked if its key is another one than before.
    pub(super) fn learn(&mut self, id: u32, described: Described, now: &CatalogTable) -> bool {
        let Described { mut relation, is_full } = described;
        if self.is_renamed(id, &relation) {
            relation.go_by(now.name.as_deref(), &self.wanted);
        }
        if is_full {
            relation = relation.with_key_of(&now.columns, &self.relations.types);
        }
        self.put(id, relation)
    }

    fn put(&mut self, id: u32, relation: Relation) -> bool {
        if self.wanted.has(&relation.name) {
            self.relations.keys.choose(id);
        }
        self.relations.put(id, relation)
    }

    /// Whether a table is one of those that are told of, but comes under another name: it was renamed, be it for a while. Its number
    /// tells what it is.
    fn is_renamed(&self, id: u32, relation: &Relation) -> bool {
        !self.wanted.has(&relation.name) && self.relations.keys.has_chosen(id)
    }

    /// Compares the keys of tables with these.
    pub(super) fn expect_keys(&mut self, known: KnownKeys) {
        self.relations.keys = known;
    }

    /// Reads `piece` from `from` on.
    pub(super) fn fill(
        &mut self,
        piece: &Bytes,
        from: &mut usize,
        filling: &mut BatchInProgress,
        limits: Limits,
    ) -> Result<DecodeStep> {
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
                Some(stopped @ (DecodeStep::Full | DecodeStep::CaughtUp)) => return Ok(stopped),
                _ => *from += length,
            }
            if let Some(stopped) = stopped {
                return Ok(stopped);
            }
        }
        Ok(DecodeStep::Drained)
    }

    fn offer(
        &mut self,
        message: Message<'_>,
        filling: &mut BatchInProgress,
        limits: Limits,
    ) -> Result<Option<DecodeStep>> {
        if message.is_row() && filling.is_full(limits) {
            return Ok(Some(DecodeStep::Full));
        }
        self.take(message, filling)
    }

    fn take(&mut self, message: Message<'_>, filling: &mut BatchInProgress) -> Result<Option<DecodeStep>> {
        if let Message::Begin { commit, .. } | Message::StreamCommit { commit, .. } = &message
            && self.catches_up_at(Lsn(*commit))?
        {
            return Ok(Some(DecodeStep::CaughtUp));
        }
        match message {
            Message::Begin { commit, millis, xid } => self.begin(Lsn(commit), SourceTime(millis), xid)?,
            Message::Commit { end } => self.commit(Lsn(end)),
            Message::Relation { id, rest } => {
                let described = Relation::read(rest, &self.relations.types)?;
                if described.is_full || self.is_renamed(id, &described.relation) {
                    return Ok(Some(DecodeStep::AskKey { id, described: Box::new(described) }));
                }
                if self.put(id, described.relation) {
                    return Ok(Some(DecodeStep::Rekeyed));
                }
            }
            Message::Type { id, schema, name } => {
                self.relations.types.insert(id, NamedType::new(schema, name));
            }
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
            Message::Proof => self.take_proof()?,
            Message::Other => {}
        }
        Ok(None)
    }

    /// The changes of a transaction that was told before its commit come next.
    fn unspool(&mut self, xid: u32, end: Lsn) -> DecodeStep {
        let mut streamed = self.spool.take(xid);
        self.undone = std::mem::take(&mut streamed.undone);
        DecodeStep::Committed { streamed, end }
    }

    /// Counts a change of this table, and tells whether it is to be given out, or what it removes.
    fn count(&mut self, table: u32, bytes: usize) -> Result<(Transaction, DeliveredPart)> {
        let transaction = self.transaction.as_mut().ok_or_else(|| odd("a change outside of a transaction"))?;
        transaction.ordinal += 1;
        transaction.bytes = transaction.bytes.saturating_add(bytes);
        let transaction = *transaction;
        if transaction.ordinal <= transaction.passed {
            return Ok((transaction, DeliveredPart::Nothing));
        }
        let relation = self.relations.get(table)?;
        let is_wanted = self.wanted.has(&relation.name);
        let part = match &self.at.aside {
            _ if !is_wanted => DeliveredPart::Nothing,
            PositionContext::Snapshot(progress) => progress.to_error((table, &relation.name), transaction.commit),
            _ => DeliveredPart::Everything,
        };
        Ok((transaction, part))
    }

    /// Goes to the place after the change that was counted last.
    fn step(&mut self, transaction: &Transaction) {
        (self.at.lsn, self.at.ordinal) = (transaction.commit, transaction.ordinal);
        self.take_commit_time(transaction.time);
        self.position.clear();
        self.at.write(&mut self.position);
    }

    /// Whether something is given out of a change of which this is `to_error`.
    fn is_given_out(&self, part: DeliveredPart, operation: Operation, table: u32, tuples: &[u8]) -> Result<bool> {
        match (part, operation) {
            (DeliveredPart::Nothing, _) | (DeliveredPart::Removals, Operation::Insert) => Ok(false),
            (DeliveredPart::Removals, Operation::Update) => self.relations.get(table)?.moves(&Images::read(tuples)?),
            _ => Ok(true),
        }
    }

    /// Whether rows of a table are passed over because nothing tells them apart.
    fn passes_over(&mut self, table: u32) -> Result<bool> {
        let is_passed = self.keyless == Keyless::Pass && self.relations.get(table)?.is_keyless();
        if is_passed {
            self.relations.warn_of(table);
        }
        Ok(is_passed)
    }

    fn row(&mut self, operation: Operation, table: u32, tuples: &[u8], filling: &mut BatchInProgress) -> Result<()> {
        let (transaction, part) = self.count(table, tuples.len())?;
        if !self.is_given_out(part, operation, table, tuples)? || self.passes_over(table)? {
            return Ok(());
        }
        self.step(&transaction);
        let relation = self.relations.get(table)?;
        if !relation.can_be_reported() {
            return Err(relation.refusal());
        }
        let images = Images::read(tuples)?;
        if let Some(old) = images.old.filter(|_| !images.is_whole) {
            relation.require_key(old)?;
        }
        let [new_key, old_key] = &mut self.keys;
        new_key.clear();
        old_key.clear();
        if let Some(old) = images.old {
            relation.write_key(old, None, old_key)?;
        }
        if let Some(new) = images.new {
            relation.write_key(new, images.old, new_key)?;
        }
        let mut row_writer = RowWriter { filling, transaction: &transaction, position: &self.position, relation };
        match (operation, images.new) {
            (Operation::Delete, _) => {
                row_writer.write(Operation::Delete, ChangePart::Whole, old_key, |out| out.extend(tuples))
            }
            (_, None) => return Err(odd("a row without a new image")),
            (_, Some(_)) if part == DeliveredPart::Removals => {
                let old = old_image(tuples)?;
                row_writer.write(Operation::Delete, ChangePart::Whole, old_key, |out| out.extend(old));
            }
            (Operation::Update, Some(new)) if images.old.is_some() && old_key != new_key => {
                let old = old_image(tuples)?;
                row_writer.write(Operation::Delete, ChangePart::First, old_key, |out| out.extend(old));
                let mut image = Vec::new();
                write_filled(new, images.old.filter(|_| images.is_whole), &mut image)?;
                row_writer.write(Operation::Insert, ChangePart::Second, new_key, |out| out.append(&mut image));
            }
            (operation, Some(_)) => row_writer.write(operation, ChangePart::Whole, new_key, |out| out.extend(tuples)),
        }
        Ok(())
    }

    fn truncate(&mut self, options: u8, tables: &[u8], filling: &mut BatchInProgress) -> Result<()> {
        for table in tables.as_chunks().0 {
            let table = u32::from_be_bytes(*table);
            let (transaction, part) = self.count(table, size_of_val(&table))?;
            if part == DeliveredPart::Nothing {
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
