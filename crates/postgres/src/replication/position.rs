//! Where in the log a reader is.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Error, Position, Result, SourceTime, StartAt};

/// A byte of the write-ahead log, shown as PostgreSQL writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl Lsn {
    /// From `16/B374D848`.
    pub fn parse(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        let part = |digits| u32::from_str_radix(digits, 16).ok().map(u64::from);
        Some(Self(part(high)? << 32 | part(low)?))
    }
}

/// How far a snapshot has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The tables up to this one were read to their end, and where in the log their rows were taken: older changes are in them. One
    /// entry for each attempt, since every attempt takes its rows at another place.
    pub(super) done: Vec<(Last, Lsn)>,
    /// Where in the log the rows of the table that is being read were taken, and how many of them were given out. The
    /// rows of another attempt are other changes, since it begins at another place of the log.
    pub(super) reading: Option<(Lsn, u64)>,
    /// Whether no table is left.
    pub(super) complete: bool,
    /// The commit time in milliseconds of the transaction that the place lies in. The time of a position cannot tell it: rows of the
    /// snapshot have the time of the snapshot. Unknown in positions of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) commit_time: Option<u64>,
}

/// The last table that was read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Last {
    /// In the order of names, as older versions have read.
    Name(String),
    /// In the order of the numbers that tables keep when they are renamed. New ones have larger numbers.
    Id(u32),
}

impl Last {
    /// Whether a table was read up to here.
    fn is_behind(&self, (id, name): (u32, &str)) -> bool {
        match self {
            Self::Name(last) => name <= last.as_str(),
            Self::Id(last) => id <= *last,
        }
    }
}

impl Progress {
    /// What the log tells of this table in a transaction that was committed at `commit`.
    pub(super) fn to_error(&self, table: (u32, &str), commit: Lsn) -> DeliveredPart {
        match self.read_at(table) {
            Some(at) if commit < at => DeliveredPart::Nothing,
            None if !self.complete => DeliveredPart::Removals,
            _ => DeliveredPart::Everything,
        }
    }

    /// Whether the log has nothing more at `lsn` that is older than the rows of some table.
    pub(super) fn is_over_at(&self, lsn: Lsn) -> bool {
        self.complete && self.done.iter().all(|(_, read)| *read <= lsn)
    }

    /// Whether a table was read to its end.
    pub(super) fn has(&self, table: (u32, &str)) -> bool {
        self.read_at(table).is_some()
    }

    /// Where in the log the rows of a table were taken.
    fn read_at(&self, table: (u32, &str)) -> Option<Lsn> {
        self.done.iter().find(|(last, _)| last.is_behind(table)).map(|(_, at)| *at)
    }

    /// A table was read to its end, as it was at `at`.
    pub(super) fn finish(&mut self, table: u32, at: Lsn) {
        match self.done.last_mut() {
            Some((last, same)) if *same == at => *last = Last::Id(table),
            _ => self.done.push((Last::Id(table), at)),
        }
        self.reading = None;
    }
}

/// What the log tells of a table, beside its rows in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveredPart {
    /// Its rows were taken later.
    Nothing,
    /// Its rows are still to be read, but an attempt that was broken off may have delivered some: those that are gone by
    /// then are not among the rows that are read, so that only the log can tell of them.
    Removals,
    Everything,
}

/// What else has to be known to go on from a place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum PositionContext {
    #[default]
    Nothing,
    /// What was committed before this time (in milliseconds) is passed over.
    NotBefore(u64),
    /// A snapshot is not over yet.
    Snapshot(Box<Progress>),
    /// There was no slot: wherever the one begins that is made for it. What happens until then was given up.
    Anew,
    /// No snapshot was taken yet: opening makes a new slot with one. What happened before it was given up.
    SnapshotAnew,
}

/// After the first `ordinal` changes of the transaction whose commit lies at `lsn`; with none of them, before it.
///
/// Transactions are told in the order of their commits, so this order is the order of reading, which that of the changes'
/// own places in the log is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReplicationPosition {
    pub(super) lsn: Lsn,
    pub(super) ordinal: u64,
    pub(super) aside: PositionContext,
}

const FIXED: usize = 16;
const NOT_BEFORE: u8 = b'T';
const SNAPSHOT: u8 = b'S';
const ANEW: u8 = b'N';
const SNAPSHOT_ANEW: u8 = b'A';

impl ReplicationPosition {
    /// Before the first transaction that was committed at `lsn` or later.
    pub(super) fn before(lsn: Lsn) -> Self {
        Self { lsn, ..Self::default() }
    }

    pub(super) fn position(&self, time: Option<SourceTime>) -> Position {
        let mut bytes = Vec::with_capacity(FIXED);
        self.write(&mut bytes);
        Position::new(bytes, time)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lsn.0.to_be_bytes());
        out.extend_from_slice(&self.ordinal.to_be_bytes());
        match &self.aside {
            PositionContext::Nothing => {}
            PositionContext::NotBefore(millis) => {
                out.push(NOT_BEFORE);
                out.extend_from_slice(&millis.to_be_bytes());
            }
            PositionContext::Snapshot(progress) => {
                out.push(SNAPSHOT);
                // Writing plain values to a vector cannot fail.
                let _ = serde_json::to_writer(out, progress);
            }
            PositionContext::Anew => out.push(ANEW),
            PositionContext::SnapshotAnew => out.push(SNAPSHOT_ANEW),
        }
    }

    pub(super) fn read(position: &Position) -> Result<Self> {
        Self::parse(&position.bytes).ok_or_else(|| {
            Error::position_lost("the position is not one of a PostgreSQL replication slot")
                .remedy("point the stream at the log it was reading, or move the checkpoint on purpose")
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (lsn, rest) = bytes.split_first_chunk()?;
        let (ordinal, rest) = rest.split_first_chunk()?;
        let aside = match rest.split_first() {
            None => PositionContext::Nothing,
            Some((&NOT_BEFORE, millis)) => PositionContext::NotBefore(u64::from_be_bytes(millis.try_into().ok()?)),
            Some((&ANEW, [])) => PositionContext::Anew,
            Some((&SNAPSHOT_ANEW, [])) => PositionContext::SnapshotAnew,
            Some((&SNAPSHOT, progress)) => PositionContext::Snapshot(serde_json::from_slice(progress).ok()?),
            Some(_) => return None,
        };
        Some(Self { lsn: Lsn(u64::from_be_bytes(*lsn)), ordinal: u64::from_be_bytes(*ordinal), aside })
    }
}

impl ReplicationPosition {
    /// The commit time of the transaction that the place lies in, as far as `position` tells it.
    pub(super) fn commit_time(&self, position_time: Option<SourceTime>) -> Option<SourceTime> {
        match &self.aside {
            _ if self.ordinal == 0 => None,
            PositionContext::Snapshot(progress) => progress.commit_time.map(SourceTime),
            _ => position_time,
        }
    }

    /// Whether rows of a snapshot are still to be read.
    fn has_unfinished_snapshot(&self) -> bool {
        match &self.aside {
            PositionContext::Snapshot(progress) => !progress.complete,
            PositionContext::SnapshotAnew => true,
            PositionContext::Nothing | PositionContext::NotBefore(_) | PositionContext::Anew => false,
        }
    }
}

/// Whether a stream that resumes from `position` still has to read rows of a snapshot.
pub(super) fn has_unfinished_snapshot(position: &Position) -> bool {
    ReplicationPosition::parse(&position.bytes).is_some_and(|place| place.has_unfinished_snapshot())
}

/// `start`, or a new snapshot if it is the position of one that is still to be taken.
pub(super) fn resolve_start(start: StartAt) -> StartAt {
    match start {
        StartAt::After(position)
            if ReplicationPosition::parse(&position.bytes)
                .is_some_and(|place| place.aside == PositionContext::SnapshotAnew) =>
        {
            StartAt::Snapshot
        }
        start => start,
    }
}

/// Which of two positions is earlier, if both are of a slot.
pub(super) fn compare(a: &Position, b: &Position) -> Option<Ordering> {
    let (a, b) = (ReplicationPosition::parse(&a.bytes)?, ReplicationPosition::parse(&b.bytes)?);
    let of_log = (a.lsn, a.ordinal).cmp(&(b.lsn, b.ordinal));
    Some(of_log.then_with(|| steps(&a.aside).cmp(&steps(&b.aside))))
}

/// Orders the places of a snapshot, all of which lie at one place of the log; without one it is over.
fn steps(aside: &PositionContext) -> (bool, Option<&Last>, Option<(Lsn, u64)>) {
    match aside {
        PositionContext::Snapshot(progress) => {
            (progress.complete, progress.done.last().map(|(last, _)| last), progress.reading)
        }
        // Without a name above all names: only a snapshot that is complete is compared with it, and counts as the same.
        _ => (true, None, None),
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use watchkeeper_core::{Position, SourceTime};

    use super::{Last, Lsn, PositionContext, Progress, ReplicationPosition, compare};

    #[test]
    fn places_survive_being_stored() {
        let done = vec![(Last::Name("public.a".to_owned()), Lsn(7)), (Last::Id(16_384), Lsn(9))];
        let progress = Progress { done, reading: Some((Lsn(9), 3)), complete: false, commit_time: Some(11) };
        let snapshot = PositionContext::Snapshot(Box::new(progress));
        for aside in [
            PositionContext::Nothing,
            PositionContext::NotBefore(5),
            snapshot,
            PositionContext::Anew,
            PositionContext::SnapshotAnew,
        ] {
            let place = ReplicationPosition { lsn: Lsn(0x16_b374_d848), ordinal: 3, aside };
            assert_eq!(ReplicationPosition::read(&place.position(None)).unwrap(), place);
        }
        for bytes in [&b""[..], b"0123456789abcde", b"0123456789abcdefX", b"0123456789abcdefT1"] {
            assert!(ReplicationPosition::read(&Position::new(bytes, None)).is_err());
        }
    }

    #[test]
    fn a_place_is_shown_as_postgresql_writes_it() {
        assert_eq!(Lsn(0x16_b374_d848).to_string(), "16/B374D848");
        assert_eq!(Lsn::parse("16/B374D848"), Some(Lsn(0x16_b374_d848)));
        assert_eq!(Lsn::parse("16"), None);
    }

    #[test]
    fn every_table_remembers_the_attempt_that_read_it() {
        let mut progress = Progress::default();
        for (table, at) in [(1, 1), (3, 1), (5, 2), (6, 2)] {
            progress.finish(table, Lsn(at));
        }
        assert_eq!(progress.done, [(Last::Id(3), Lsn(1)), (Last::Id(6), Lsn(2))]);
        let read_at = [1, 2, 3, 4, 6, 7].map(|table| progress.read_at((table, "of any name")).map(|at| at.0));
        assert_eq!(read_at, [Some(1), Some(1), Some(1), Some(2), Some(2), None]);
    }

    #[test]
    fn what_older_versions_have_read_by_names_goes_on_by_numbers() {
        let mut progress = Progress { done: vec![(Last::Name("public.c".to_owned()), Lsn(1))], ..Progress::default() };
        progress.finish(7, Lsn(2));
        let read_at = [(9, "public.b"), (9, "public.d"), (7, "public.d"), (5, "public.c")];
        assert_eq!(read_at.map(|table| progress.read_at(table).map(|at| at.0)), [Some(1), None, Some(2), Some(1)]);
    }

    #[test]
    fn the_time_of_a_row_of_a_snapshot_is_no_commit_time() {
        let at = |ordinal, commit_time| {
            let progress = Progress { commit_time, ..Progress::default() };
            let place =
                ReplicationPosition { lsn: Lsn(4), ordinal, aside: PositionContext::Snapshot(Box::new(progress)) };
            place.commit_time(Some(SourceTime(9)))
        };
        assert_eq!(at(1, Some(7)), Some(SourceTime(7)));
        assert_eq!(
            (at(1, None), at(0, Some(7))),
            (None, None),
            "older versions did not store it; before a transaction"
        );
        let of_log = ReplicationPosition { lsn: Lsn(4), ordinal: 1, aside: PositionContext::Nothing };
        assert_eq!(of_log.commit_time(Some(SourceTime(9))), Some(SourceTime(9)));
    }

    #[test]
    fn a_snapshot_lies_before_the_log_that_follows_it() {
        let at = |done: usize, row, complete| {
            let done = [7, 8][..done].iter().map(|table| (Last::Id(*table), Lsn(4))).collect();
            let progress = Progress { done, reading: Some((Lsn(4), row)), complete, commit_time: None };
            ReplicationPosition { lsn: Lsn(4), ordinal: 0, aside: PositionContext::Snapshot(Box::new(progress)) }
                .position(None)
        };
        let later = ReplicationPosition { lsn: Lsn(4), ordinal: 1, aside: PositionContext::Nothing }.position(None);
        let all = [at(0, 1, false), at(0, 2, false), at(1, 1, false), at(2, 0, true), later];
        for (n, a) in all.iter().enumerate() {
            for (m, b) in all.iter().enumerate() {
                assert_eq!(compare(a, b), Some(n.cmp(&m)), "{n} against {m}");
            }
        }
        assert_eq!(compare(&all[0], &Position::new(&b"x"[..], None)), None::<Ordering>);
    }
}
