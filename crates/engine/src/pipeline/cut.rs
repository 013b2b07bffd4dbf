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
    let mut by_lane = vec![Vec::new(); lanes];
    for row in rows {
        let hash = batch.rows()[row as usize].key_hash;
        // The high bits, since partitions will be chosen by the low ones.
        by_lane[((hash >> 32) as usize) % lanes].push(row);
    }
    by_lane.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()).collect()
}
