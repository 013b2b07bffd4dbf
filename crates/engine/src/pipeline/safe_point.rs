//! The contiguous safe point: the newest position before which everything is durable (G2).
//!
//! Pieces of batches enter in source order, finish in any order, and leave in source order after a
//! flush. Accounting is by row, so the halves of a key update are never committed apart. Empty batches
//! enter as pieces without rows, behind what is in flight.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use watchkeeper_core::{Batch, LedgerEntry, Operation, Pedigree, Position, SourceTime};

/// The number of a piece within one opening of the source.
pub type PieceNumber = u64;

/// A boundary: everything of earlier pieces, and the rows before `row` of this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    piece: PieceNumber,
    row: u32,
}

/// What a flush made safe.
#[derive(Debug, Default)]
pub struct FlushedPrefix {
    /// The newest safe position; `None` when nothing was passed.
    pub position: Option<Position>,
    /// The pedigree to store beside it, if it changed.
    pub pedigree: Option<Pedigree>,
    /// The last change before it.
    pub last: Option<(Operation, SourceTime)>,
    /// How many changes were passed.
    pub changes: u64,
    /// What was passed over on purpose.
    pub ledger: Vec<LedgerEntry>,
}

#[derive(Debug)]
struct Piece {
    batch: Arc<Batch>,
    /// Rows that are not yet safe.
    rows: Range<u32>,
    /// For each part (the rows of one lane) the first row that is not done.
    parts: Vec<u32>,
}

impl Piece {
    /// The first row that is not done.
    fn undone(&self) -> u32 {
        self.parts.iter().copied().min().unwrap_or(DONE)
    }

    /// The greatest boundary before which all is done and that may be committed.
    fn committable_before(&self) -> u32 {
        last_committable(&self.batch, self.rows.start, self.undone().min(self.rows.end))
    }

    /// Whether the batch's memory goes when this piece does.
    fn is_last(&self) -> bool {
        self.rows.end as usize == self.batch.len()
    }

    /// The newest boundary at or before `end` that may be committed, and its position, if there is one.
    fn boundary_before(&self, end: u32) -> Option<(u32, Position)> {
        if end as usize == self.batch.len() {
            return Some((end, self.batch.end.clone()));
        }
        let boundary = last_committable(&self.batch, self.rows.start, end);
        (boundary > self.rows.start).then(|| (boundary, self.batch.position(boundary - 1)))
    }
}

const DONE: u32 = u32::MAX;

/// Where a ledger entry belongs: the piece, its row, the sink.
type LedgerSlot = (PieceNumber, u32, usize);

/// All pieces between the safe point and the newest one read.
#[derive(Debug)]
pub struct SafePoint {
    pieces: VecDeque<Piece>,
    /// The number of the front piece.
    first: PieceNumber,
    bytes: usize,
    bytes_max: usize,
    pieces_max: usize,
    ledger: BTreeMap<LedgerSlot, LedgerEntry>,
    /// A row that must not be passed: it stopped the stream.
    blocked: Option<Mark>,
    held: Held,
}

impl SafePoint {
    /// Nothing in flight, and room for so much.
    pub fn new(bytes_max: usize, pieces_max: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            first: 0,
            bytes: 0,
            bytes_max,
            pieces_max,
            ledger: BTreeMap::new(),
            blocked: None,
            held: Held::default(),
        }
    }

    /// The time of the oldest row that is in flight.
    pub fn oldest(&self) -> Option<SourceTime> {
        let has_rows = |piece: &&Piece| !piece.rows.is_empty();
        self.pieces.iter().find(has_rows).map(|piece| piece.batch.rows()[piece.rows.start as usize].time)
    }

    /// Takes in a piece whose rows are spread over `parts`, each given by its first row.
    pub fn admit(&mut self, batch: Arc<Batch>, rows: Range<u32>, parts: Vec<u32>) -> PieceNumber {
        let number = self.first + self.pieces.len() as u64;
        let piece = Piece { batch, rows, parts };
        if piece.is_last() {
            self.bytes += piece.batch.size();
        }
        self.pieces.push_back(piece);
        number
    }

    /// The rows of `part` before `row` are done.
    pub fn done_before(&mut self, piece: PieceNumber, part: usize, row: u32) {
        if let Some(piece) = self.piece_mut(piece) {
            piece.parts[part] = row;
        }
    }

    /// All rows of `part` are done.
    pub fn done(&mut self, piece: PieceNumber, part: usize) {
        self.done_before(piece, part, DONE);
    }

    /// Notes what is passed over with row `row`, by the commit that passes it; false when that was
    /// noted before.
    pub fn note(&mut self, piece: PieceNumber, row: u32, sink: usize, entry: LedgerEntry) -> bool {
        let place = self.ledger.entry((piece, row, sink));
        let new = matches!(place, std::collections::btree_map::Entry::Vacant(_));
        place.or_insert(entry);
        new
    }

    /// Never passes row `row` of the piece.
    pub fn block(&mut self, piece: PieceNumber, row: u32) {
        let mark = Mark { piece, row };
        self.blocked = Some(self.blocked.map_or(mark, |blocked| blocked.min(mark)));
    }

    /// Whether another piece may enter.
    pub fn has_room(&self) -> bool {
        self.pieces.is_empty() || (self.pieces.len() < self.pieces_max && self.bytes < self.bytes_max)
    }

    /// Whether a flush is due to make room.
    pub fn is_tight(&self) -> bool {
        self.pieces.len() * 2 >= self.pieces_max || self.bytes * 2 >= self.bytes_max
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The last boundary that may be committed and up to which everything is done, though not yet durable.
    pub fn mark(&self) -> Mark {
        let stuck = self.pieces.iter().position(|piece| piece.undone() < piece.rows.end);
        let at = stuck.unwrap_or(self.pieces.len());
        let row = stuck.map_or(0, |at| self.pieces[at].committable_before());
        let mark = Mark { piece: self.first + at as u64, row };
        self.committable(self.blocked.map_or(mark, |blocked| blocked.min(mark)))
    }

    /// The last boundary up to `mark` that may be committed: a flush for the first half of a key update
    /// alone would move nothing, and be asked for again and again.
    fn committable(&self, mark: Mark) -> Mark {
        let Some(piece) = self.piece(mark.piece) else { return mark };
        let end = mark.row.clamp(piece.rows.start, piece.rows.end);
        Mark { row: last_committable(&piece.batch, piece.rows.start, end), ..mark }
    }

    /// The boundary after everything that was read: what a mutant takes for safe.
    pub fn newest(&self) -> Mark {
        Mark { piece: self.first + self.pieces.len() as u64, row: 0 }
    }

    /// How many rows lie before `mark`.
    pub fn rows_before(&self, mark: Mark) -> u64 {
        self.pieces.iter().zip(self.first..).map(|(piece, number)| rows_passed(piece, number, mark)).sum()
    }

    /// Whether anything lies before `mark`, be it only a position.
    pub fn moves_to(&self, mark: Mark) -> bool {
        mark.piece > self.first || self.rows_before(mark) > 0
    }

    /// Moves the safe point to `mark`, after a flush that began after it was taken.
    pub fn advance(&mut self, mark: Mark) -> FlushedPrefix {
        let mut passed = FlushedPrefix::default();
        while self.first < mark.piece {
            let Some(piece) = self.pieces.pop_front() else { break };
            if piece.is_last() {
                self.bytes -= piece.batch.size();
            }
            self.held.take(&mut passed, self.first, &piece, piece.rows.end);
            self.first += 1;
        }
        if self.first == mark.piece
            && let Some(piece) = self.pieces.front_mut()
        {
            // A piece that entered after the mark was taken lies wholly behind it, wherever its rows start.
            let end = mark.row.clamp(piece.rows.start, piece.rows.end);
            let row = last_committable(&piece.batch, piece.rows.start, end);
            if row > piece.rows.start {
                self.held.take(&mut passed, self.first, piece, row);
                piece.rows.start = row;
            }
        }
        passed.ledger = self.take_ledger();
        passed
    }

    /// Entries of rows that are now before the safe point.
    fn take_ledger(&mut self) -> Vec<LedgerEntry> {
        let Mark { piece, row } = self.held.after;
        let kept = self.ledger.split_off(&(piece, row, 0));
        std::mem::replace(&mut self.ledger, kept).into_values().collect()
    }

    /// The piece that row `row` of batch `batch_seq` is in.
    pub fn find(&self, batch_seq: u64, row: u32) -> Option<PieceNumber> {
        let holds = |piece: &Piece| piece.batch.seq == batch_seq && piece.rows.contains(&row);
        self.pieces.iter().position(holds).map(|at| self.first + at as u64)
    }

    /// The batch of a piece.
    pub fn batch(&self, piece: PieceNumber) -> Option<Arc<Batch>> {
        self.piece(piece).map(|piece| Arc::clone(&piece.batch))
    }

    /// Rows in flight after row `row` of `piece` that have the same namespace and key.
    pub fn followers(&self, piece: PieceNumber, row: u32) -> Vec<(PieceNumber, Arc<Batch>, u32)> {
        let Some(origin) = self.batch(piece) else { return Vec::new() };
        let (namespace, key) = (origin.namespace(row), origin.key(row));
        let mut found = Vec::new();
        for (later, number) in self.pieces.iter().zip(self.first..) {
            let same = |at: &u32| {
                (number, *at) > (piece, row) && later.batch.key(*at) == key && later.batch.namespace(*at) == namespace
            };
            found.extend(later.rows.clone().filter(same).map(|at| (number, Arc::clone(&later.batch), at)));
        }
        found
    }

    fn piece(&self, number: PieceNumber) -> Option<&Piece> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.pieces.get(at)
    }

    fn piece_mut(&mut self, number: PieceNumber) -> Option<&mut Piece> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.pieces.get_mut(at)
    }
}

fn rows_passed(piece: &Piece, number: PieceNumber, mark: Mark) -> u64 {
    let end = match number.cmp(&mark.piece) {
        std::cmp::Ordering::Less => piece.rows.end,
        std::cmp::Ordering::Equal => mark.row.clamp(piece.rows.start, piece.rows.end),
        std::cmp::Ordering::Greater => piece.rows.start,
    };
    u64::from(end - piece.rows.start)
}

/// The greatest boundary in `start..=end` that may be committed.
fn last_committable(batch: &Batch, start: u32, end: u32) -> u32 {
    let rows = &batch.rows()[start as usize..end as usize];
    rows.iter().rposition(|row| row.committable).map_or(start, |at| start + at as u32 + 1)
}

/// Rows that were passed after the newest position: a piece may end in the middle of what is committed
/// together. They count, and so do their entries in the ledger, with the position at their end.
#[derive(Debug, Default)]
struct Held {
    /// The boundary of the newest position.
    after: Mark,
    /// Rows between it and the safe point.
    changes: u64,
}

impl Held {
    /// Takes in that the rows before `end` of a piece were passed.
    fn take(&mut self, passed: &mut FlushedPrefix, number: PieceNumber, piece: &Piece, end: u32) {
        let start = piece.rows.start;
        let Some((boundary, position)) = piece.boundary_before(end) else {
            self.changes += u64::from(end - start);
            return;
        };
        if boundary > start {
            let row = &piece.batch.rows()[boundary as usize - 1];
            passed.last = Some((row.operation, row.time));
        }
        passed.changes += self.changes + u64::from(boundary - start);
        passed.position = Some(position);
        if let Some(pedigree) = &piece.batch.pedigree {
            passed.pedigree = Some(pedigree.clone());
        }
        *self = Self { after: Mark { piece: number, row: boundary }, changes: u64::from(end - boundary) };
    }
}

#[cfg(test)]
mod tests;
