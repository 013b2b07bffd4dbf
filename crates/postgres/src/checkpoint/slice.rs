//! Many writes as the values of one statement.

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use watchkeeper_core::checkpoint::missing_record;
use watchkeeper_core::{CheckpointWrite, Commit, Error, Resolution, Result};

use crate::client::{Client, Value};
use crate::json;

/// Columns of many writes. A write is named by its place, beginning with 1.
#[derive(Debug, Default)]
pub(super) struct Slice<'a> {
    keys: Vec<&'a str>,
    epochs: Vec<i64>,
    tenures: Vec<Uuid>,
    seqs: Vec<i64>,
    checkpoints: Vec<String>,
    counts: Vec<i64>,
    entry_of: Vec<i64>,
    entry_places: Vec<i64>,
    entries: Vec<String>,
    bodies: Vec<Option<&'a [u8]>>,
    resolution_of: Vec<i64>,
    numbers: Vec<i64>,
    words: Vec<&'static str>,
}

/// What became of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitResult {
    Known(Commit),
    /// Someone has locked the row: it was passed over.
    Locked,
}

impl<'a> Slice<'a> {
    pub(super) fn of(writes: &[&'a CheckpointWrite]) -> Result<Self> {
        let mut slice = Self::default();
        for (n, write) in (1..).zip(writes) {
            slice.push(n, write)?;
        }
        Ok(slice)
    }

    fn push(&mut self, n: i64, write: &'a CheckpointWrite) -> Result<()> {
        self.keys.push(write.grant.key.as_str());
        self.epochs.push(write.grant.epoch.0.cast_signed());
        self.tenures.push(write.grant.tenure.0);
        self.seqs.push(write.seq.cast_signed());
        self.checkpoints.push(json::text(&write.to_checkpoint())?);
        self.counts.push(i64::try_from(write.ledger.len()).unwrap_or(i64::MAX));
        for (place, entry) in (1..).zip(&write.ledger) {
            self.entry_of.push(n);
            self.entry_places.push(place);
            // Bodies are bytes, which JSON would blow up to four times their size.
            let body = entry.change.as_ref().and_then(|change| change.body.as_deref());
            self.bodies.push(body);
            let mut bare = entry.clone();
            bare.change.iter_mut().for_each(|change| change.body = None);
            self.entries.push(json::text(&bare)?);
        }
        for (number, resolution) in &write.resolve {
            self.resolution_of.push(n);
            self.numbers.push(number.cast_signed());
            self.words.push(word(*resolution));
        }
        Ok(())
    }

    pub(super) fn values(&self) -> [Value<'_>; 13] {
        [
            (&self.keys, Type::TEXT_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.tenures, Type::UUID_ARRAY),
            (&self.seqs, Type::INT8_ARRAY),
            (&self.checkpoints, Type::TEXT_ARRAY),
            (&self.counts, Type::INT8_ARRAY),
            (&self.entry_of, Type::INT8_ARRAY),
            (&self.entry_places, Type::INT8_ARRAY),
            (&self.entries, Type::TEXT_ARRAY),
            (&self.bodies, Type::BYTEA_ARRAY),
            (&self.resolution_of, Type::INT8_ARRAY),
            (&self.numbers, Type::INT8_ARRAY),
            (&self.words, Type::TEXT_ARRAY),
        ]
    }
}

/// What a row of the answer says about the write of `seq`.
pub(super) fn commit_result(client: &Client, row: &Row, write: &CheckpointWrite) -> Result<CommitResult> {
    if row.get(4) {
        return Err(missing_record(client.place(), &write.grant.key));
    }
    let (written, ours, stored, locked): (bool, bool, Option<i64>, bool) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    let stored = stored.unwrap_or(0).cast_unsigned();
    match (written, ours, locked) {
        (true, ..) => Ok(CommitResult::Known(Commit::Committed)),
        (false, _, true) => Ok(CommitResult::Locked),
        (false, false, false) => Ok(CommitResult::Known(Commit::Fenced)),
        (false, true, false) if stored == write.seq => Ok(CommitResult::Known(Commit::AlreadyDone)),
        (false, true, false) => {
            let (got, key) = (write.seq, &write.grant.key);
            Err(Error::internal(format!("commit {got} after {stored} of one tenure of {key}"))
                .remedy("report it: commits of a tenure are numbered without a gap"))
        }
    }
}

pub(super) fn word(resolution: Resolution) -> &'static str {
    match resolution {
        Resolution::Replayed => "replayed",
        Resolution::Purged => "purged",
    }
}

pub(super) fn resolution(word: &str) -> Option<Resolution> {
    [Resolution::Replayed, Resolution::Purged].into_iter().find(|known| self::word(*known) == word)
}
