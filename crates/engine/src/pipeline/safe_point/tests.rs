use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{BatchBuilder, Entropy, LedgerKind, RowParts, Version};

use super::*;

/// One row of a batch: its key and whether it may be committed after.
type Line<'a> = (&'a str, bool);

/// A batch of changes with these keys; row `n` has position `seq.n`, the end `seq.end`.
fn batch(seq: u64, lines: &[Line<'_>]) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
    let namespace = builder.namespace("orders");
    for (row, (key, committable)) in lines.iter().enumerate() {
        let position = format!("{seq}.{row}");
        builder.push(RowParts {
            operation: Operation::Insert,
            namespace,
            half: u8::from(row > 0 && !lines[row - 1].1),
            committable: *committable,
            key: (!key.is_empty()).then_some(key.as_bytes()),
            position: position.as_bytes(),
            body: b"{}",
            time: SourceTime(row as u64),
            version: Version::default(),
        });
    }
    let mut batch = builder.finish(Position::new(format!("{seq}.end"), None));
    batch.seq = seq;
    batch.pedigree = Some(Pedigree(format!("pedigree {seq}").into()));
    Arc::new(batch)
}

fn whole(keys: &[&str], seq: u64) -> Arc<Batch> {
    batch(seq, &keys.iter().map(|key| (*key, true)).collect::<Vec<_>>())
}

fn safe() -> SafePoint {
    SafePoint::new(1 << 20, 64)
}

fn entry(id: &str) -> LedgerEntry {
    LedgerEntry {
        kind: LedgerKind::Skipped,
        sink: "s".into(),
        change_id: id.into(),
        cause: String::new(),
        before: None,
        change: None,
    }
}

/// Moves the safe point as far as it goes; what was passed as (position, changes).
fn pass(safe: &mut SafePoint) -> (Option<String>, u64) {
    let mark = safe.mark();
    summary(&safe.advance(mark))
}

fn summary(passed: &FlushedPrefix) -> (Option<String>, u64) {
    let text = |position: &Position| String::from_utf8(position.bytes.to_vec()).expect("positions here are text");
    (passed.position.as_ref().map(text), passed.changes)
}

fn at(position: &str, changes: u64) -> (Option<String>, u64) {
    (Some(position.to_owned()), changes)
}

#[test]
fn what_finishes_first_waits_for_what_was_read_before_it() {
    let mut safe = safe();
    let pieces: Vec<_> = (0..3).map(|seq| safe.admit(whole(&["a", "b"], seq), 0..2, vec![0, 1])).collect();
    safe.done(pieces[2], 0);
    safe.done(pieces[2], 1);
    safe.done(pieces[0], 1);
    assert_eq!(pass(&mut safe), (None, 0));
    safe.done(pieces[0], 0);
    assert_eq!(pass(&mut safe), at("0.end", 2));
    safe.done(pieces[1], 0);
    assert_eq!(pass(&mut safe), at("1.0", 1));
    safe.done(pieces[1], 1);
    assert_eq!(pass(&mut safe), at("2.end", 3));
    assert!(safe.is_empty());
}

#[test]
fn an_empty_batch_is_passed_behind_what_is_in_flight_and_not_before() {
    let mut safe = safe();
    let piece = safe.admit(whole(&["a"], 0), 0..1, vec![0]);
    safe.admit(whole(&[], 1), 0..0, Vec::new());
    assert!(!safe.moves_to(safe.mark()));
    assert_eq!(pass(&mut safe), (None, 0));
    safe.done(piece, 0);
    assert_eq!(pass(&mut safe), at("1.end", 1));
    safe.admit(whole(&[], 2), 0..0, Vec::new());
    let mark = safe.mark();
    assert!(safe.moves_to(mark) && safe.rows_before(mark) == 0, "a position alone needs no flush, but moves");
    assert_eq!(pass(&mut safe), at("2.end", 0));
}

#[test]
fn the_halves_of_a_key_update_are_passed_together() {
    let mut safe = safe();
    let lines = [("a", true), ("old", false), ("new", true), ("b", true)];
    let piece = safe.admit(batch(0, &lines), 0..4, vec![0]);
    safe.done_before(piece, 0, 2);
    assert_eq!(pass(&mut safe), at("0.0", 1));
    assert!(!safe.moves_to(safe.mark()), "the first half is done, but no place to resume from");
    assert_eq!(pass(&mut safe), (None, 0));
    safe.done_before(piece, 0, 3);
    assert_eq!(pass(&mut safe), at("0.2", 2));
}

#[test]
fn an_entry_of_the_ledger_leaves_with_the_commit_that_passes_its_row() {
    let mut safe = safe();
    let lines = [("a", true), ("old", false), ("new", true), ("b", true)];
    let first = safe.admit(batch(0, &lines), 0..4, vec![0]);
    let second = safe.admit(whole(&["c"], 1), 0..1, vec![0]);
    for (piece, row) in [(second, 0), (first, 3), (first, 1), (first, 0)] {
        assert!(safe.note(piece, row, 0, entry(&format!("{piece}.{row}"))));
    }
    assert!(!safe.note(first, 1, 0, entry("again")), "what was noted is not noted twice");
    assert!(safe.note(first, 1, 1, entry("0.1 of another sink")));
    let mut leave = |until: Option<u32>| {
        match until {
            Some(row) => safe.done_before(first, 0, row),
            None => safe.done(first, 0),
        }
        let mark = safe.mark();
        let passed = safe.advance(mark).ledger;
        passed.into_iter().map(|entry| entry.change_id).collect::<Vec<_>>()
    };
    assert_eq!(leave(Some(2)), ["0.0"], "the half that is done stays with its other half");
    assert_eq!(leave(Some(3)), ["0.1", "0.1 of another sink"]);
    assert_eq!(leave(None), ["0.3"]);
    safe.done(second, 0);
    let mark = safe.mark();
    assert_eq!(safe.advance(mark).ledger[0].change_id, "1.0");
}

#[test]
fn a_blocked_row_is_never_passed() {
    let mut safe = safe();
    let first = safe.admit(whole(&["a", "b", "c"], 0), 0..3, vec![0]);
    let second = safe.admit(whole(&["d"], 1), 0..1, vec![0]);
    safe.block(second, 0);
    safe.block(first, 1);
    safe.block(second, 0);
    safe.done(first, 0);
    safe.done(second, 0);
    assert_eq!(pass(&mut safe), at("0.0", 1));
    assert_eq!(pass(&mut safe), (None, 0));
}

#[test]
fn a_mark_passes_only_what_was_done_when_it_was_taken() {
    let mut safe = safe();
    let first = safe.admit(whole(&["a", "b"], 0), 0..2, vec![0]);
    safe.done_before(first, 0, 1);
    let mark = safe.mark();
    // Done while the flush is under way: it may not be part of it.
    safe.done(first, 0);
    assert_eq!(summary(&safe.advance(mark)), at("0.0", 1));
    assert_eq!(pass(&mut safe), at("0.end", 1));
}

#[test]
fn a_piece_that_enters_during_a_flush_is_left_alone() {
    let mut safe = safe();
    let cut_in_two = whole(&["a", "b", "c", "d"], 0);
    let first = safe.admit(Arc::clone(&cut_in_two), 0..3, vec![0]);
    safe.done(first, 0);
    let mark = safe.mark();
    let second = safe.admit(cut_in_two, 3..4, vec![3]);
    safe.done(second, 0);
    let passed = safe.advance(mark);
    assert_eq!(summary(&passed), at("0.2", 3));
    assert_eq!(pass(&mut safe), at("0.end", 1));
}

#[test]
fn a_pedigree_leaves_with_the_first_position_of_its_batch() {
    let mut safe = safe();
    let first = safe.admit(whole(&["a"], 0), 0..1, vec![0]);
    let second = safe.admit(whole(&["b", "c"], 1), 0..2, vec![0]);
    safe.done(first, 0);
    let mark = safe.mark();
    assert_eq!(safe.advance(mark).pedigree, Some(Pedigree("pedigree 0".into())));
    let mark = safe.mark();
    assert_eq!(safe.advance(mark).pedigree, None, "nothing of its batch is passed");
    safe.done_before(second, 0, 1);
    let mark = safe.mark();
    assert_eq!(safe.advance(mark).pedigree, Some(Pedigree("pedigree 1".into())));
}

#[test]
fn there_is_room_for_so_many_pieces_and_so_many_bytes_but_always_for_one() {
    let mut few = SafePoint::new(1 << 20, 4);
    let rooms: Vec<_> = (0..4)
        .map(|seq| {
            few.admit(whole(&["a"], seq), 0..1, vec![0]);
            (few.has_room(), few.is_tight())
        })
        .collect();
    assert_eq!(rooms, [(true, false), (true, true), (true, true), (false, true)]);
    let big = whole(&["a", "b"], 0);
    let mut small = SafePoint::new(big.size(), 64);
    assert!(small.has_room());
    small.admit(Arc::clone(&big), 0..1, vec![0]);
    assert!(small.has_room(), "the bytes of a batch count once, with its last piece");
    small.admit(Arc::clone(&big), 1..2, vec![1]);
    assert!(!small.has_room() && small.is_tight());
    for piece in 0..2 {
        small.done(piece, 0);
    }
    pass(&mut small);
    assert!(small.has_room() && !small.is_tight());
}

#[test]
fn followers_are_the_later_rows_of_the_same_key_that_are_in_flight() {
    let mut safe = safe();
    let first = safe.admit(whole(&["a", "b", "a"], 0), 0..3, vec![0]);
    let second = safe.admit(whole(&["b", "a"], 1), 0..2, vec![0]);
    let rows = |followers: Vec<(PieceNumber, Arc<Batch>, u32)>| {
        followers.into_iter().map(|(piece, batch, row)| (piece, batch.seq, row)).collect::<Vec<_>>()
    };
    assert_eq!(rows(safe.followers(first, 0)), [(first, 0, 2), (second, 1, 1)]);
    assert_eq!(rows(safe.followers(first, 2)), [(second, 1, 1)]);
    assert_eq!(rows(safe.followers(second, 1)), []);
    assert_eq!((safe.find(1, 1), safe.find(1, 2), safe.find(2, 0)), (Some(second), None, None));
}

/// What the safe point is meant to do, as slowly and plainly as it can be said: a list of all rows ever
/// admitted, of which a prefix is passed.
#[derive(Default)]
struct Naive {
    cells: Vec<Cell>,
    passed: usize,
}

struct Cell {
    /// `None` for a piece without rows.
    row: Option<(PieceNumber, u32)>,
    position: String,
    committable: bool,
    done: bool,
    blocked: bool,
    entry: Option<String>,
}

impl Naive {
    fn cell(&mut self, piece: PieceNumber, row: u32) -> &mut Cell {
        self.cells.iter_mut().find(|cell| cell.row == Some((piece, row))).expect("it was admitted")
    }

    /// How many cells are done without a gap.
    fn mark(&self) -> usize {
        let ready = |cell: &&Cell| (cell.done || cell.row.is_none()) && !cell.blocked;
        self.cells.iter().take_while(ready).count()
    }

    /// Position, changes and entries that a flush of what was done at `mark` passes.
    fn advance(&mut self, mark: usize) -> (Option<String>, u64, Vec<String>) {
        let mark = mark.min(self.mark());
        let end = (self.passed..mark).rev().find(|at| self.cells[*at].committable).map_or(self.passed, |at| at + 1);
        let passed = &self.cells[self.passed..end];
        let changes = passed.iter().filter(|cell| cell.row.is_some()).count() as u64;
        let entries = passed.iter().filter_map(|cell| cell.entry.clone()).collect();
        let position = passed.last().map(|cell| cell.position.clone());
        self.passed = end;
        (position, changes, entries)
    }
}

/// One piece under way: its number and, for each part, the rows that are not done.
struct UnderWay {
    piece: PieceNumber,
    parts: Vec<VecDeque<u32>>,
}

#[test]
fn it_does_what_the_plain_list_does_whatever_the_order() {
    let (mut moved, mut halved, mut partial) = (0, 0, 0);
    for seed in 0..400 {
        let random = Entropy::seeded(seed);
        let below = |bound: usize| usize::try_from(random.below(bound as u64)).expect("small");
        let (mut safe, mut naive) = (safe(), Naive::default());
        let mut under_way: Vec<UnderWay> = Vec::new();
        let mut marks = VecDeque::new();
        for step in 0..120 {
            match below(10) {
                0 | 1 => under_way.extend(admit(step, &random, &mut safe, &mut naive)),
                2..=5 => finish(&random, &mut under_way, &mut safe, &mut naive),
                6 if below(3) == 0 && !under_way.is_empty() => {
                    let at = below(under_way.len());
                    if let Some(row) = under_way[at].parts.iter().flatten().copied().next() {
                        let id = format!("{}.{row}", under_way[at].piece);
                        assert!(safe.note(under_way[at].piece, row, 0, entry(&id)) || naive_has(&mut naive, &id));
                        naive.cell(under_way[at].piece, row).entry = Some(id);
                    }
                }
                7 if below(60) == 0 && !under_way.is_empty() => {
                    let at = below(under_way.len());
                    if let Some(row) = under_way[at].parts.iter().flatten().copied().min() {
                        safe.block(under_way[at].piece, row);
                        naive.cell(under_way[at].piece, row).blocked = true;
                    }
                }
                8 => marks.push_back((safe.mark(), naive.mark())),
                _ => {
                    // The flusher passes a mark that it took before, but never past a row that was blocked since.
                    let Some((mark, plain)) = marks.pop_front() else { continue };
                    let passed = safe.advance(mark.min(safe.mark()));
                    let (position, changes) = summary(&passed);
                    let entries: Vec<_> = passed.ledger.into_iter().map(|entry| entry.change_id).collect();
                    let expected = naive.advance(plain);
                    assert_eq!((position, changes, entries), expected, "seed {seed}, step {step}");
                    moved += u32::from(changes > 0);
                    halved += u32::from(naive.cells.get(naive.passed).is_some_and(|cell| cell.done));
                    partial += u32::from(expected.0.is_some_and(|position| !position.ends_with("end")));
                    let left = naive.cells[naive.passed..].iter().filter(|cell| cell.row.is_some()).count() as u64;
                    assert_eq!(safe.rows_before(safe.newest()) + safe.held.changes, left);
                }
            }
        }
    }
    // Or nothing of it was tried.
    assert!(moved > 500 && halved > 500 && partial > 100, "{moved} moved, {halved} halved, {partial} partial");
}

fn naive_has(naive: &mut Naive, id: &str) -> bool {
    naive.cells.iter().any(|cell| cell.entry.as_deref() == Some(id))
}

/// A batch of up to six rows, in one or two pieces, or an empty one.
fn admit(step: u64, random: &Entropy, safe: &mut SafePoint, naive: &mut Naive) -> Vec<UnderWay> {
    let count = usize::try_from(random.below(7)).expect("small");
    let mut lines = vec![("k", true); count];
    for line in lines.iter_mut().rev().skip(1) {
        line.1 = random.below(4) > 0;
    }
    let batch = batch(step, &lines);
    // Anywhere, also between the halves of a key update: so it is at a barrier.
    let cuts = (1..count).collect::<Vec<_>>();
    let middle = cuts.get(usize::try_from(random.below(cuts.len() as u64 + 2)).expect("small")).copied();
    // An empty batch is one piece without rows.
    let ranges = middle.map_or([Some(0..count), None], |middle| [Some(0..middle), Some(middle..count)]);
    ranges.into_iter().flatten().map(|rows| admit_piece(&batch, rows, random, safe, naive)).collect()
}

fn admit_piece(
    batch: &Arc<Batch>,
    rows: Range<usize>,
    random: &Entropy,
    safe: &mut SafePoint,
    naive: &mut Naive,
) -> UnderWay {
    let range = rows.start as u32..rows.end as u32;
    let mut parts: Vec<VecDeque<u32>> = vec![VecDeque::new(); 3];
    for row in range.clone() {
        parts[usize::try_from(random.below(3)).expect("small")].push_back(row);
    }
    parts.retain(|rows| !rows.is_empty());
    let firsts = parts.iter().map(|rows| rows[0]).collect();
    let piece = safe.admit(Arc::clone(batch), range.clone(), firsts);
    for row in range {
        let last = row as usize + 1 == batch.len();
        let position = if last { format!("{}.end", batch.seq) } else { format!("{}.{row}", batch.seq) };
        let committable = batch.rows()[row as usize].committable;
        naive.cells.push(Cell {
            row: Some((piece, row)),
            position,
            committable,
            done: false,
            blocked: false,
            entry: None,
        });
    }
    if batch.is_empty() {
        let position = format!("{}.end", batch.seq);
        naive.cells.push(Cell { row: None, position, committable: true, done: true, blocked: false, entry: None });
    }
    UnderWay { piece, parts }
}

/// Some rows of some part are done.
fn finish(random: &Entropy, under_way: &mut [UnderWay], safe: &mut SafePoint, naive: &mut Naive) {
    if under_way.is_empty() {
        return;
    }
    let at = usize::try_from(random.below(under_way.len() as u64)).expect("small");
    let UnderWay { piece, parts } = &mut under_way[at];
    if parts.is_empty() {
        return;
    }
    let part = usize::try_from(random.below(parts.len() as u64)).expect("small");
    for _ in 0..=random.below(3) {
        if let Some(row) = parts[part].pop_front() {
            naive.cell(*piece, row).done = true;
        }
    }
    match parts[part].front() {
        Some(row) => safe.done_before(*piece, part, *row),
        None => safe.done(*piece, part),
    }
}
