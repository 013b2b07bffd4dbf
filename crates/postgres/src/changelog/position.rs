//! A place in the log: what has been read of it.
//!
//! Numbers of a sequence are given before their transactions end, so "everything up to number n" would leave out what is
//! still to come below n. What has been read is therefore told by a snapshot: the changes of all transactions that had
//! ended at that moment. The next changes are those of a *window*: of the transactions that had not ended then and have ended
//! at a later moment, in the order of their numbers. Whoever changes a row that another transaction has changed waits
//! for its end, and only then gets a number; so the changes of a key are in order inside a window, and over windows.

use std::cmp::Ordering;

use bytes::Bytes;
use watchkeeper_core::{Error, Position, Result, SourceTime};

use super::snapshot::Snapshot;

/// The first byte of every position. Another one is another way to write them.
const VERSION: u8 = 1;

/// What has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// All changes of transactions that had ended here.
    pub(crate) read: Snapshot,
    /// Of those that have ended since and until here, the changes up to `last`.
    pub(crate) target: Option<Snapshot>,
    /// The number of the last change that was given out; 0 before the first.
    pub(crate) last: u64,
    /// The time of that change as far as it is known, by which a log is told from its own backup.
    pub(crate) time: Option<SourceTime>,
}

impl LogPosition {
    /// After everything that had ended here.
    pub(crate) fn at(read: Snapshot) -> Self {
        Self { read, target: None, last: 0, time: None }
    }

    /// What the positions of all changes of a window begin with.
    pub(crate) fn shared(&self) -> Bytes {
        let mut bytes = vec![VERSION, u8::from(self.target.is_some())];
        self.read.encode(&mut bytes);
        if let Some(target) = &self.target {
            target.encode(&mut bytes);
        }
        bytes.into()
    }

    /// As a position.
    pub(crate) fn position(&self) -> Position {
        Position::new([&self.shared()[..], &self.last.to_be_bytes()].concat(), self.time)
    }

    /// Where a position is.
    pub(crate) fn of(position: &Position) -> Result<Self> {
        let mut bytes = &position.bytes[..];
        // No time and the time 0 are the same: a told gap is given 0 where its source told no time.
        let time = position.time.filter(|time| time.0 != 0);
        Self::decode(&mut bytes, time).filter(|_| bytes.is_empty()).ok_or_else(|| {
            Error::position_lost("the position is not one of a PostgreSQL change log")
                .remedy("point the stream at the log it was reading, or move the checkpoint on purpose")
        })
    }

    fn decode(bytes: &mut &[u8], time: Option<SourceTime>) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(2)?;
        *bytes = rest;
        let read = Snapshot::decode(bytes)?;
        let target = match head {
            [VERSION, 0] => None,
            [VERSION, 1] => Some(Snapshot::decode(bytes)?),
            _ => return None,
        };
        let (last, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(Self { read, target, last: u64::from_be_bytes(*last), time })
    }

    /// A place before `current` after which everything comes that comes after this one: the same place of what `current` has read, since
    /// what ended later comes after it in any case, whatever its number; or what both have read.
    pub(crate) fn earlier_bound(&self, current: &Self) -> Option<Self> {
        if self.target.is_none() {
            return Some(Self::at(self.read.common(&current.read)));
        }
        let is_narrower = self.target.is_some() && self.read.is_in(&current.read) && self.read != current.read;
        is_narrower.then(|| Self { target: Some(current.read.clone()), ..self.clone() })
    }

    /// Which is earlier, as far as that can be known.
    pub(crate) fn compare(&self, other: &Self) -> Option<Ordering> {
        if self.read == other.read && self.target == other.target {
            let inside = self.target.is_some();
            return Some(if inside { self.last.cmp(&other.last) } else { Ordering::Equal });
        }
        // Of two windows that overlap, each may have read what the other has not.
        let (end, other_end) =
            (self.target.as_ref().unwrap_or(&self.read), other.target.as_ref().unwrap_or(&other.read));
        if end.is_in(&other.read) {
            return Some(Ordering::Less);
        }
        other_end.is_in(&self.read).then_some(Ordering::Greater)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(read: &str, target: Option<&str>, last: u64) -> LogPosition {
        let snapshot = |text: &str| text.parse().expect("it is one");
        LogPosition { read: snapshot(read), target: target.map(snapshot), last, time: Some(SourceTime(7)) }
    }

    #[test]
    fn positions_give_places_back() {
        for place in
            [place("3:9:4", None, 8), place("3:9:4", Some("9:12:"), u64::MAX), LogPosition::at(Snapshot::nothing())]
        {
            assert_eq!(LogPosition::of(&place.position()).expect("it is one"), place);
        }
    }

    #[test]
    fn other_bytes_are_no_position_of_a_log() {
        let good = place("3:9:4", Some("9:12:"), 5).position();
        let mut bytes = good.bytes.to_vec();
        bytes.push(0);
        let (long, short) = (bytes.clone(), bytes[..bytes.len() - 2].to_vec());
        bytes.pop();
        bytes[0] = 2;
        for wrong in [long, short, bytes, vec![], vec![1], vec![1, 2, 0, 0, 0]] {
            assert!(LogPosition::of(&Position::new(wrong.clone(), None)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn places_compare_by_what_they_include() {
        use Ordering::{Equal, Greater, Less};
        let (a, b) = (place("3:9:4", None, 8), place("9:12:", None, 11));
        assert_eq!((a.compare(&b), b.compare(&a), a.compare(&a)), (Some(Less), Some(Greater), Some(Equal)));
        let (first, second) = (place("3:9:4", Some("9:12:"), 5), place("3:9:4", Some("9:12:"), 9));
        assert_eq!((first.compare(&second), second.compare(&first)), (Some(Less), Some(Greater)));
        assert_eq!((a.compare(&first), first.compare(&a)), (Some(Less), Some(Greater)));
        assert_eq!((first.compare(&b), b.compare(&first)), (Some(Less), Some(Greater)));
        let wider = place("3:9:4", Some("9:20:"), 7);
        assert_eq!(first.compare(&wider), None);
    }

    #[test]
    fn a_place_of_which_the_order_is_not_known_is_drawn_back_to_what_both_have_read() {
        let (target, current) = (place("15:15:", None, 0), place("10:20:10,18", Some("20:22:"), 7));
        assert_eq!(target.compare(&current), None);
        let back = target.earlier_bound(&current).expect("there is one");
        assert_eq!(back, LogPosition::at("10:15:10".parse().expect("it is one")));
        assert_eq!((back.compare(&current), back.compare(&target)), (Some(Ordering::Less), Some(Ordering::Less)));
    }
}
