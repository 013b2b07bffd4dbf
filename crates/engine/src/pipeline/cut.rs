//! Cuts batches into pieces and pieces into lanes.

use std::ops::Range;

use watchkeeper_core::Batch;

/// A run of rows that becomes safe together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The rows.
    pub rows: Range<u32>,
    /// Whether it is a single change without a key, which all lanes have to wait for.
    pub barrier: bool,
}

/// Cuts a batch at barriers, and after every `every` changes where a commit is wanted that often. The
/// halves of a key update stay together.
pub fn cut(batch: &Batch, every: Option<u64>, barriers: bool) -> Vec<Cut> {
    let rows = batch.rows();
    let every = every.map_or(usize::MAX, |every| usize::try_from(every).unwrap_or(usize::MAX));
    let mut cuts = Vec::new();
    let mut start = 0;
    for (at, row) in rows.iter().enumerate() {
        let barrier = barriers && row.is_barrier();
        if barrier {
            push(&mut cuts, start..at, false);
            push(&mut cuts, at..at + 1, true);
            start = at + 1;
        } else if row.committable && at + 1 - start >= every {
            push(&mut cuts, start..at + 1, false);
            start = at + 1;
        }
    }
    push(&mut cuts, start..rows.len(), false);
    cuts
}

/// The rows of the pieces, with one that reaches over the first `rows` rows of the batch cut there, where that can be.
pub fn split_at(batch: &Batch, cuts: Vec<Cut>, rows: Option<usize>) -> Vec<Range<u32>> {
    let end = |rows: &usize| batch.rows().get(rows.wrapping_sub(1)).is_some_and(|row| row.committable);
    let place = rows.filter(end).and_then(|rows| u32::try_from(rows).ok());
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    for Cut { rows, .. } in cuts {
        match place.filter(|place| rows.start < *place && *place < rows.end) {
            Some(place) => pieces.extend([rows.start..place, place..rows.end]),
            None => pieces.push(rows),
        }
    }
    pieces
}

fn push(cuts: &mut Vec<Cut>, rows: Range<usize>, barrier: bool) {
    if !rows.is_empty() {
        // Rows of a batch are counted in 32 bits.
        cuts.push(Cut { rows: rows.start as u32..rows.end as u32, barrier });
    }
}

/// Spreads rows over lanes by key: changes of one key share a lane. Lanes without rows are left out.
pub fn spread(batch: &Batch, rows: Range<u32>, lanes: usize) -> Vec<(usize, Vec<u32>)> {
    if lanes == 1 {
        return vec![(0, rows.collect())];
    }
    // A quarter more than an even share, so that a lane seldom has to grow.
    let share = rows.len() / lanes;
    let mut by_lane: Vec<_> = (0..lanes).map(|_| Vec::with_capacity(share + share / 4)).collect();
    for row in rows {
        let hash = batch.rows()[row as usize].key_hash;
        // The high bits, since partitions will be chosen by the low ones.
        by_lane[((hash >> 32) as usize) % lanes].push(row);
    }
    by_lane.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use watchkeeper_core::payload::JsonPayload;
    use watchkeeper_core::{BatchBuilder, Operation, Position, RowParts, SourceTime, Version};

    use super::*;

    /// A batch with a row per word: `|` is a barrier, a word that ends with `-` the first half of the next.
    fn batch(words: &str) -> Batch {
        let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
        let namespace = builder.namespace("orders");
        for word in words.split_whitespace() {
            builder.push(RowParts {
                operation: Operation::Insert,
                namespace,
                half: 0,
                committable: !word.ends_with('-'),
                key: (word != "|").then_some(word.as_bytes()),
                position: b"p",
                body: b"{}",
                time: SourceTime(0),
                version: Version::default(),
            });
        }
        builder.finish(Position::new("end", None))
    }

    fn cuts(words: &str, every: Option<u64>) -> Vec<(Range<u32>, bool)> {
        cut(&batch(words), every, true).into_iter().map(|cut| (cut.rows, cut.barrier)).collect()
    }

    #[test]
    fn a_batch_without_barriers_stays_whole() {
        assert_eq!(cuts("a b c", None), [(0..3, false)]);
        assert_eq!(cuts("", None), []);
    }

    #[test]
    fn a_barrier_is_alone() {
        assert_eq!(cuts("a b | c", None), [(0..2, false), (2..3, true), (3..4, false)]);
        assert_eq!(cuts("| | a |", None), [(0..1, true), (1..2, true), (2..3, false), (3..4, true)]);
    }

    #[test]
    fn without_barriers_a_change_without_a_key_is_like_any_other() {
        let cuts = cut(&batch("a | b"), None, false);
        assert_eq!(cuts, [Cut { rows: 0..3, barrier: false }]);
    }

    #[test]
    fn no_piece_has_more_changes_than_a_commit_is_wanted_after() {
        assert_eq!(cuts("a b c d e", Some(2)), [(0..2, false), (2..4, false), (4..5, false)]);
        assert_eq!(cuts("a b", Some(1)), [(0..1, false), (1..2, false)]);
        assert_eq!(cuts("a b c | d e", Some(2)), [(0..2, false), (2..3, false), (3..4, true), (4..6, false)]);
    }

    #[test]
    fn the_halves_of_a_key_update_are_never_cut_apart() {
        assert_eq!(cuts("a old- new b", Some(1)), [(0..1, false), (1..3, false), (3..4, false)]);
        assert_eq!(cuts("a old- new b", Some(2)), [(0..3, false), (3..4, false)]);
    }

    #[test]
    fn a_piece_is_cut_at_one_more_place_where_it_can_be() {
        let batch = batch("a b old- new c");
        let split = |every, rows| -> Vec<(u32, u32)> {
            let pieces = split_at(&batch, cut(&batch, every, false), rows);
            pieces.into_iter().map(|rows| (rows.start, rows.end)).collect()
        };
        assert_eq!(split(None, None), [(0, 5)]);
        assert_eq!(split(None, Some(1)), [(0, 1), (1, 5)]);
        assert_eq!(split(Some(2), Some(1)), [(0, 1), (1, 2), (2, 4), (4, 5)]);
        assert_eq!(split(None, Some(3)), [(0, 5)], "not between the halves of a key update");
        for outside in [0, 5, 9] {
            assert_eq!(split(None, Some(outside)), [(0, 5)]);
        }
    }

    #[test]
    fn changes_of_one_key_share_a_lane_in_their_order_and_keys_are_spread() {
        let words: Vec<_> = (0..400).map(|row| format!("key{}", row % 40)).collect();
        let batch = batch(&words.join(" "));
        for lanes in [1, 2, 3, 8] {
            let spread = spread(&batch, 10..400, lanes);
            let mut all: Vec<u32> = spread.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
            all.sort_unstable();
            assert_eq!(all, (10..400).collect::<Vec<_>>(), "each row is in exactly one lane");
            let mut lane_of = BTreeMap::new();
            for (lane, rows) in &spread {
                assert!(rows.is_sorted() && *lane < lanes);
                for row in rows {
                    assert_eq!(lane_of.entry(batch.key(*row)).or_insert(lane), &lane);
                }
            }
            assert_eq!(spread.len(), lanes, "forty keys leave no lane of {lanes} idle");
        }
    }

    #[test]
    fn lanes_without_rows_are_left_out() {
        let spread = spread(&batch("a"), 0..1, 64);
        assert_eq!(spread.len(), 1);
        assert_eq!(spread[0].1, [0]);
    }
}
