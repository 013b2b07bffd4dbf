//! Resume tokens as positions.
//!
//! A token is kept as the bytes of its `_data`, whose order is the order of events. Its beginning is read (the cluster
//! time, and the place within a transaction); the rest is opaque.

use mongodb::bson::{Binary, Document, RawDocument, Timestamp, doc, spec::BinarySubtype};
use watchkeeper_core::{Error, Position, Result, SourceTime, Version};

use crate::payload::scan::Fields;

/// The first byte of a position: resume after this event.
const RESUME_AFTER: u8 = 1;
/// The first byte of a position after an invalidate: only `startAfter` goes on from there.
const START_AFTER: u8 = 2;
/// Added to the first byte while a snapshot runs: how far it is stands behind the token.
const SNAPSHOT: u8 = 2;
/// Added to the first byte after an event that the server has split: only a stream that splits goes on from there.
const SPLIT: u8 = 4;
/// Added to the first byte when a part is longer than two bytes can say, as the token of a change whose `_id` is: lengths then
/// have four. All others keep the short form, in which positions were stored before there was this one.
const WIDE: u8 = 8;

/// The byte that a token's cluster time follows.
const TIMESTAMP: u8 = 0x82;

/// A resume token, and how to resume from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Token {
    /// `_data`, decoded. Ordered like the events.
    pub(crate) data: Vec<u8>,
    /// `_typeBits`: the types of the numbers in a key, which do not matter for the order.
    type_bits: Vec<u8>,
    /// Whether to go on with `startAfter`: after an invalidate, and until an event came after it.
    pub(crate) start_after: bool,
    /// Whether it is the token of an event's last fragment, which servers take only for streams that split events.
    pub(crate) split: bool,
}

impl Token {
    /// The token that a server gave: the bytes of its document.
    pub(crate) fn read(&mut self, raw: &[u8]) -> Result<()> {
        self.data.clear();
        self.type_bits.clear();
        (self.start_after, self.split) = (false, false);
        for field in Fields::of(raw).map_err(|error| unreadable().caused_by(error))? {
            let field = field.map_err(|error| unreadable().caused_by(error))?;
            match (field.name, field.text(), field.binary()) {
                (b"_data", Some(hex), _) => unhex(hex, &mut self.data)?,
                (b"_typeBits", _, Some(bits)) => self.type_bits.extend_from_slice(bits),
                _ => {}
            }
        }
        if self.data.is_empty() { Err(unreadable()) } else { Ok(()) }
    }

    pub(crate) fn of(raw: &RawDocument) -> Result<Self> {
        let mut token = Self::default();
        token.read(raw.as_bytes())?;
        Ok(token)
    }

    /// The token as a server takes it.
    pub(crate) fn to_document(&self) -> Document {
        let hex: String = self.data.iter().map(|byte| format!("{byte:02X}")).collect();
        let mut token = doc! { "_data": hex };
        if !self.type_bits.is_empty() {
            token.insert("_typeBits", Binary { subtype: BinarySubtype::Generic, bytes: self.type_bits.clone() });
        }
        token
    }

    /// Appends the bytes of the position. `progress` is that of a running snapshot.
    pub(crate) fn encode(&self, progress: Option<&[u8]>, out: &mut Vec<u8>) {
        let mut tag = if self.start_after { START_AFTER } else { RESUME_AFTER };
        let short = |part: &[u8]| u16::try_from(part.len()).ok();
        let is_wide = [&self.data, &self.type_bits].into_iter().any(|part| short(part).is_none());
        for (applies, bit) in [(progress.is_some(), SNAPSHOT), (self.split, SPLIT), (is_wide, WIDE)] {
            tag += if applies { bit } else { 0 };
        }
        out.push(tag);
        for part in [&self.data, &self.type_bits] {
            match short(part).filter(|_| !is_wide) {
                Some(length) => out.extend_from_slice(&length.to_be_bytes()),
                // An answer of a server has at most 48 MB, so that no part of it is longer than this can say.
                None => out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes()),
            }
            out.extend_from_slice(part);
        }
        out.extend_from_slice(progress.unwrap_or_default());
    }

    /// The token of a position.
    ///
    /// # Errors
    /// `Corrupt` when it is not one of this source.
    pub(crate) fn decode(position: &Position) -> Result<Self> {
        Self::decode_with_progress(position).map(|(token, _)| token)
    }

    /// The token of a position, and the progress of the snapshot that ran there.
    pub(crate) fn decode_with_progress(position: &Position) -> Result<(Self, Option<&[u8]>)> {
        let (tag, rest) = position.bytes.split_first().ok_or_else(foreign)?;
        let is_known = (RESUME_AFTER..=START_AFTER + SNAPSHOT + SPLIT + WIDE).contains(tag);
        let bits = tag.wrapping_sub(RESUME_AFTER);
        let (data, rest) = part(rest, bits & WIDE != 0)?;
        let (type_bits, rest) = part(rest, bits & WIDE != 0)?;
        let is_snapshot = bits & SNAPSHOT != 0;
        if !is_known || data.is_empty() || (!is_snapshot && !rest.is_empty()) {
            return Err(foreign());
        }
        let (start_after, split) = (bits & (START_AFTER - RESUME_AFTER) != 0, bits & SPLIT != 0);
        let token = Self { data: data.to_vec(), type_bits: type_bits.to_vec(), start_after, split };
        Ok((token, is_snapshot.then_some(rest)))
    }

    /// The position after what this token stands for.
    pub(crate) fn position(&self, progress: Option<&[u8]>, time: Option<SourceTime>) -> Position {
        let mut bytes = Vec::with_capacity(5 + self.data.len() + self.type_bits.len());
        self.encode(progress, &mut bytes);
        Position::new(bytes, time.or_else(|| self.time()))
    }

    /// Whether it stands for a time, and not for an event: the second number after the cluster time is the type.
    pub(crate) fn is_of_a_time(&self) -> bool {
        let kind = self.data.get(9..).and_then(number).and_then(|(_, rest)| number(rest));
        kind.is_some_and(|(kind, _)| kind == 0)
    }

    /// The cluster time.
    pub(crate) fn timestamp(&self) -> Option<Timestamp> {
        let [TIMESTAMP, bytes @ ..] = self.data.get(..9)? else { return None };
        let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
        Some(Timestamp { time: word(0)?, increment: word(4)? })
    }

    /// The cluster time in milliseconds. Its seconds are a clock, the rest is a counter.
    pub(crate) fn time(&self) -> Option<SourceTime> {
        self.timestamp().map(source_time)
    }

    /// What targets compare: the cluster time, and the place within a transaction.
    pub(crate) fn version(&self) -> Version {
        let at = self.timestamp().unwrap_or(Timestamp { time: 0, increment: 0 });
        Version { time: u64::from(at.time) << 32 | u64::from(at.increment), ordinal: self.ordinal().unwrap_or(0) }
    }

    /// The place among the events of one transaction: the third number after the cluster time, behind the token's version
    /// and type.
    fn ordinal(&self) -> Option<u64> {
        let (_, rest) = number(self.data.get(9..)?)?;
        let (_, rest) = number(rest)?;
        number(rest).map(|(ordinal, _)| ordinal)
    }
}

/// A cluster time as a time of the source.
pub(crate) fn source_time(at: Timestamp) -> SourceTime {
    SourceTime(u64::from(at.time) * 1_000)
}

/// One number in the server's order-preserving form (its key strings): a byte for sign and length, then the number with a bit
/// to its right that says whether a fraction follows.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    const ZERO: u8 = 0x29;
    let (kind, rest) = bytes.split_first()?;
    let length = usize::from(kind.checked_sub(ZERO)?);
    match length {
        0 => Some((0, rest)),
        2..=9 => {
            let (digits, rest) = rest.split_at_checked(length - 1)?;
            let value = digits.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
            Some((value >> 1, rest))
        }
        _ => None,
    }
}

/// A part with its length before it, and the rest.
fn part(bytes: &[u8], is_wide: bool) -> Result<(&[u8], &[u8])> {
    let (length, rest) = if is_wide {
        let (length, rest) = bytes.split_first_chunk().ok_or_else(foreign)?;
        (u32::from_be_bytes(*length), rest)
    } else {
        let (length, rest) = bytes.split_first_chunk().ok_or_else(foreign)?;
        (u32::from(u16::from_be_bytes(*length)), rest)
    };
    rest.split_at_checked(usize::try_from(length).map_err(|_| foreign())?).ok_or_else(foreign)
}

/// The value of each hexadecimal digit; of all else [`NO_DIGIT`]. Every change has some eighty of them.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789ABCDEF"[value] as usize] = value as u8;
        digits[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

/// More than any digit, and still so after another was put beside it.
const NO_DIGIT: u8 = 0xff;

fn unhex(hex: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (pairs, rest) = hex.as_chunks::<2>();
    let mut all = 0;
    out.extend(pairs.iter().map(|[high, low]| {
        let (high, low) = (DIGITS[usize::from(*high)], DIGITS[usize::from(*low)]);
        all |= high | low;
        high << 4 | low
    }));
    if rest.is_empty() && all != NO_DIGIT { Ok(()) } else { Err(unreadable()) }
}

fn unreadable() -> Error {
    Error::config("the server gave a resume token of an unknown form")
        .remedy("use MongoDB 5.0 or newer; other servers that speak its protocol are not supported as sources")
}

fn foreign() -> Error {
    Error::corrupt("the stored position is not one of a MongoDB change stream")
        .remedy("point the stream at the source it was reading, or go back to an earlier checkpoint from the history")
}

#[cfg(test)]
mod tests {
    use mongodb::bson::RawDocumentBuf;

    use super::*;

    /// As servers of version 6 give them: an insert, the third of a transaction, and an idle one.
    const INSERT: &str = "8263F0B2A1000000022B022C0100296E5A1004B4D2F5A6B7C84D5E9F0A1B2C3D4E5F6046645F69640064070707070707070707070707 0004";
    const THIRD: &str = "8263F0B2A1000000022B022C01002B046E5A1004";
    const IDLE: &str = "8263F0B2A1000000032B0229296E04";

    fn token(hex: &str) -> Token {
        let raw = RawDocumentBuf::try_from(&doc! { "_data": hex.replace(' ', "") }).expect("a document");
        Token::of(&raw).expect("a token")
    }

    #[test]
    fn a_position_gives_its_token_back() {
        let mut token = token(INSERT);
        token.start_after = true;
        token.type_bits = vec![1, 2];
        assert_eq!(Token::decode(&token.position(None, None)).expect("it is one"), token);
        let snapshot = token.position(Some(b"half"), None);
        assert_eq!(Token::decode_with_progress(&snapshot).expect("it is one"), (token.clone(), Some(&b"half"[..])));
        assert_eq!(token.to_document().get_str("_data").ok(), Some(INSERT.replace(' ', "").as_str()));
        for tag in 1..=8 {
            token.start_after = (tag - 1) & 1 != 0;
            token.split = (tag - 1) & 4 != 0;
            let progress = ((tag - 1) & 2 != 0).then_some(&b"half"[..]);
            let position = token.position(progress, None);
            assert_eq!(position.bytes[0], tag);
            assert_eq!(Token::decode_with_progress(&position).expect("it is one"), (token.clone(), progress));
        }
        assert!(Token::decode(&Position::new(&b"\x11\x00\x01x\x00\x00"[..], None)).is_err());
        assert!(Token::decode(&Position::new(&b"\x09\x00\x01x\x00\x00"[..], None)).is_err());
        assert!(Token::decode(&Position::new(&b"\x01\x00\x09short"[..], None)).is_err());
        assert!(Token::decode(&Position::new(&b"another log"[..], None)).is_err());
    }

    #[test]
    fn a_position_of_a_long_id_is_whole_and_those_stored_before_are_still_read() {
        let mut token = token(INSERT);
        for length in [usize::from(u16::MAX), usize::from(u16::MAX) + 1, 300_000] {
            token.data.resize(length, 7);
            for progress in [None, Some(&b"half"[..])] {
                let position = token.position(progress, None);
                assert_eq!(Token::decode_with_progress(&position).expect("it is one"), (token.clone(), progress));
            }
        }
        // As all were stored before: two bytes for each length.
        let stored = Position::new(&b"\x03\x00\x03abc\x00\x01dhalf"[..], None);
        let (read, progress) = Token::decode_with_progress(&stored).expect("it is one");
        assert_eq!((read.data.as_slice(), read.type_bits.as_slice()), (&b"abc"[..], &b"d"[..]));
        assert_eq!(progress, Some(&b"half"[..]));
        assert_eq!(read.position(progress, None).bytes, stored.bytes, "what is short is written as before");
    }

    #[test]
    fn a_token_that_is_not_hexadecimal_is_refused() {
        let read = |token: Document| {
            let raw = RawDocumentBuf::try_from(&token).expect("a document");
            Token::of(&raw)
        };
        assert_eq!(read(doc! { "_data": "82fFA0" }).expect("either case is taken").data, [0x82, 0xff, 0xa0]);
        for wrong in ["", "8", "82F", "82G0", "8\u{e9}", "82 0", "0x82", "82@0", "82`0", "82/0", "82:0"] {
            assert!(read(doc! { "_data": wrong }).is_err(), "{wrong:?} was taken");
        }
        assert!(read(doc! { "_data": 82 }).is_err());
        assert!(read(doc! { "other": "82" }).is_err());
    }

    #[test]
    fn a_token_tells_time_and_place() {
        let at = Timestamp { time: 0x63F0_B2A1, increment: 2 };
        assert_eq!(token(INSERT).timestamp(), Some(at));
        assert_eq!(token(INSERT).version().ordinal, 0);
        assert_eq!(token(THIRD).version().ordinal, 2);
        assert!(token(INSERT).version() < token(THIRD).version());
        assert!(token(THIRD).version() < token(IDLE).version());
        assert!(token(THIRD).data < token(IDLE).data);
        assert!(token(IDLE).is_of_a_time() && !token(THIRD).is_of_a_time());
    }
}
