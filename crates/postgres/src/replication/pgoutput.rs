//! The messages of the output plugin `pgoutput`, as slices of what was received.

use watchkeeper_core::{Error, Result};

use super::proof::PREFIX;

/// Microseconds between 1970 and 2000, from which PostgreSQL counts.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Milliseconds since 1970 of a time as PostgreSQL sends it.
pub(super) fn millis(micros_since_2000: i64) -> u64 {
    (micros_since_2000.saturating_add(EPOCH_MICROS) / 1_000).max(0).cast_unsigned()
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// A transaction begins, whose commit lies at `commit`.
    Begin {
        commit: u64,
        millis: u64,
        xid: u32,
    },
    /// It ends; the next one lies at `end` or later.
    Commit {
        end: u64,
    },
    /// What a table looks like from here on.
    Relation {
        id: u32,
        rest: &'a [u8],
    },
    /// The name of a type that is not built in; of a domain, that of the type below it. The server's own schema is not named.
    Type {
        id: u32,
        schema: &'a str,
        name: &'a str,
    },
    Insert {
        relation: u32,
        tuples: &'a [u8],
    },
    Update {
        relation: u32,
        tuples: &'a [u8],
    },
    Delete {
        relation: u32,
        tuples: &'a [u8],
    },
    /// The options, and four bytes per table.
    Truncate {
        options: u8,
        relations: &'a [u8],
    },
    /// Changes of a transaction follow that is not committed yet.
    StreamStart {
        xid: u32,
    },
    /// Such a transaction, or a part of it, was undone.
    StreamAbort {
        xid: u32,
        part: u32,
    },
    /// Such a transaction was committed.
    StreamCommit {
        xid: u32,
        commit: u64,
        end: u64,
        millis: u64,
    },
    /// A logical message of our own.
    Proof,
    /// Something that is not asked for, or says nothing about rows.
    Other,
}

impl<'a> Message<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut cut = Cut(bytes);
        Ok(match cut.byte()? {
            b'B' => {
                let (commit, micros, xid) = (cut.u64()?, cut.u64()?, cut.u32()?);
                Self::Begin { commit, millis: millis(micros.cast_signed()), xid }
            }
            b'C' => {
                let (_flags, _commit) = (cut.byte()?, cut.u64()?);
                Self::Commit { end: cut.u64()? }
            }
            b'I' => Self::Insert { relation: cut.u32()?, tuples: cut.0 },
            b'U' => Self::Update { relation: cut.u32()?, tuples: cut.0 },
            b'D' => Self::Delete { relation: cut.u32()?, tuples: cut.0 },
            b'R' => Self::Relation { id: cut.u32()?, rest: cut.0 },
            b'Y' => {
                let (id, schema) = (cut.u32()?, cut.text()?);
                Self::Type { id, schema, name: cut.text()? }
            }
            b'T' => {
                let (count, options) = (cut.u32()? as usize, cut.byte()?);
                Self::Truncate { options, relations: cut.take(count.saturating_mul(4))? }
            }
            b'S' => Self::StreamStart { xid: cut.u32()? },
            b'A' => Self::StreamAbort { xid: cut.u32()?, part: cut.u32()? },
            b'c' => {
                let (xid, _flags, commit, end) = (cut.u32()?, cut.byte()?, cut.u64()?, cut.u64()?);
                Self::StreamCommit { xid, commit, end, millis: millis(cut.u64()?.cast_signed()) }
            }
            b'M' if is_proof(cut)? => Self::Proof,
            _ => Self::Other,
        })
    }
}

/// Whether a logical message is a transactional one of our own.
pub(super) fn is_proof(mut cut: Cut<'_>) -> Result<bool> {
    let (flags, _lsn) = (cut.byte()?, cut.u64()?);
    let prefix = cut.0.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(flags & 1 == 1 && prefix == PREFIX.as_bytes())
}

/// One value of a tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell<'a> {
    Null,
    /// A large value that the change did not touch, and that was not sent.
    Unchanged,
    Text(&'a [u8]),
}

/// The values of a row, read one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tuple<'a> {
    left: u16,
    cut: Cut<'a>,
}

impl<'a> Tuple<'a> {
    /// The tuple that begins here: the number of its values, then the values.
    pub(super) fn begin(bytes: &'a [u8]) -> Result<Self> {
        let mut cut = Cut(bytes);
        Ok(Self { left: cut.u16()?, cut })
    }

    /// How many values have not been read.
    pub(super) fn left(&self) -> u16 {
        self.left
    }

    /// The next value; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Cell<'a>>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        Ok(Some(match self.cut.byte()? {
            b'n' => Cell::Null,
            b'u' => Cell::Unchanged,
            b't' => {
                let length = self.cut.u32()? as usize;
                Cell::Text(self.cut.take(length)?)
            }
            other => return Err(odd(&format!("a value of the kind {:?}", char::from(other)))),
        }))
    }

    /// What comes after the tuple.
    pub(super) fn rest(mut self) -> Result<&'a [u8]> {
        while self.next()?.is_some() {}
        Ok(self.cut.0)
    }
}

/// The images of a change: the old one, which may be a key only, and the new one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Images<'a> {
    pub(super) old: Option<Tuple<'a>>,
    /// Whether the old one is the whole row, and not its key alone.
    pub(super) is_whole: bool,
    pub(super) new: Option<Tuple<'a>>,
}

impl<'a> Images<'a> {
    pub(super) fn read(tuples: &'a [u8]) -> Result<Self> {
        let (mut images, mut rest) = (Self::default(), tuples);
        while let Some((tag, after)) = rest.split_first() {
            let tuple = Tuple::begin(after)?;
            match tag {
                b'N' => {
                    images.new = Some(tuple);
                    // Nothing comes after the new image, so that it need not be walked to its end.
                    break;
                }
                b'K' | b'O' => (images.old, images.is_whole) = (Some(tuple), *tag == b'O'),
                other => return Err(odd(&format!("an image of the kind {:?}", char::from(*other)))),
            }
            rest = tuple.rest()?;
        }
        Ok(images)
    }
}

/// Takes values off the front of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut<'a>(pub(super) &'a [u8]);

impl<'a> Cut<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Text that ends with a zero.
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or_else(short)?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| odd("a name that is not UTF-8"))?;
        self.take(1)?;
        Ok(text)
    }
}

fn short() -> Error {
    odd("a message that is too short")
}

/// The error of bytes that make no sense.
pub(super) fn odd(what: &str) -> Error {
    Error::corrupt(format!("the log has {what}")).remedy("report this with the version of the server")
}

#[cfg(test)]
mod tests {
    use super::{Cell, Images, Message, millis};

    #[test]
    fn times_count_from_1970() {
        assert_eq!(millis(0), 946_684_800_000);
        assert_eq!(millis(i64::MIN), 0);
    }

    #[test]
    fn every_cut_of_a_message_is_reported() {
        let update = b"U\0\0\0\x01K\0\x01t\0\0\0\x011N\0\x03t\0\0\0\x012un";
        let Message::Update { relation: 1, tuples } = Message::read(update).unwrap() else { panic!("not an update") };
        let images = Images::read(tuples).unwrap();
        let mut new = images.new.unwrap();
        let mut cells = Vec::new();
        while let Some(cell) = new.next().unwrap() {
            cells.push(cell);
        }
        assert_eq!(cells, [Cell::Text(b"2"), Cell::Unchanged, Cell::Null]);
        assert!(!images.is_whole);
        for length in 0..update.len() {
            let read = Message::read(&update[..length]).and_then(|message| match message {
                Message::Update { tuples, .. } => Images::read(tuples)?.new.map_or(Ok(&[][..]), |new| new.rest()),
                _ => Ok(&[][..]),
            });
            // Cut after the key, it is an update without a new image, which is told elsewhere.
            assert!(read.is_err() || length == 5 || length == 14, "{length} bytes were enough");
        }
    }
}
