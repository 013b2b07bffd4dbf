//! A block of checkpoints as it is stored: columns, then deflate.
//!
//! One resume token does not compress; a thousand of them, side by side with what they share taken
//! out, do. Each field is a column of its own: numbers as differences, texts by a dictionary,
//! positions without the prefix that they share with the one before. The header can be read without
//! unpacking, since rotation needs only the count.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use watchkeeper_core::{Epoch, Error, Operation, Pedigree, Position, Result, SourceTime};

use super::history::HistoryEntry;

/// What a block begins with: three letters and the version of the layout.
const MAGIC: [u8; 4] = *b"WKH\x01";

/// More than this is not unpacked: a block that claims it is damaged.
const UNPACKED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What can be told of a block without unpacking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) count: u64,
    /// Epoch and number of its oldest checkpoint: a block that was appended twice, because the first
    /// answer was lost, has an equal header.
    oldest: (u64, u64),
}

/// The block of `entries`, oldest first.
pub(super) fn pack(entries: &[HistoryEntry]) -> Result<Bytes> {
    let mut block = MAGIC.to_vec();
    let oldest = entries.first().map_or((0, 0), |entry| (entry.epoch.0, entry.seq));
    [entries.len() as u64, oldest.0, oldest.1].into_iter().for_each(|number| put_varint(&mut block, number));
    let mut deflate = ZlibEncoder::new(block, Compression::best());
    let packed = deflate.write_all(&columns(entries)).and_then(|()| deflate.finish());
    packed.map(Bytes::from).map_err(|error| Error::internal("a block cannot be packed").caused_by(error))
}

/// The header of a block.
pub(super) fn header(block: &[u8]) -> Result<Header> {
    Ok(split(block)?.0)
}

/// The entries of a block, oldest first.
pub(super) fn unpack(block: &[u8]) -> Result<Vec<HistoryEntry>> {
    let (header, packed) = split(block)?;
    let mut raw = Vec::new();
    let unpacked = ZlibDecoder::new(packed).take(UNPACKED_BYTES_MAX).read_to_end(&mut raw);
    unpacked.map_err(|error| Error::corrupt("it cannot be unpacked").caused_by(error))?;
    let entries = rows(&mut Cursor(&raw), header.count)?;
    if entries.len() as u64 != header.count {
        return Err(Error::corrupt("it has another number of entries than it says"));
    }
    Ok(entries)
}

fn split(block: &[u8]) -> Result<(Header, &[u8])> {
    let body = block.strip_prefix(&MAGIC).ok_or_else(|| Error::corrupt("it is no block of this version"))?;
    let mut cursor = Cursor(body);
    let count = cursor.varint()?;
    let oldest = (cursor.varint()?, cursor.varint()?);
    Ok((Header { count, oldest }, cursor.0))
}

fn columns(entries: &[HistoryEntry]) -> Vec<u8> {
    let mut raw = Vec::new();
    put_deltas(&mut raw, entries.iter().map(|entry| entry.epoch.0));
    put_deltas(&mut raw, entries.iter().map(|entry| entry.seq));
    put_options(&mut raw, entries.iter().map(|entry| entry.time.map(|time| time.0)));
    put_deltas(&mut raw, entries.iter().map(|entry| entry.updated_at_millis));
    put_deltas(&mut raw, entries.iter().map(|entry| entry.changes));
    put_options(&mut raw, entries.iter().map(|entry| entry.position.time.map(|time| time.0)));
    put_texts(&mut raw, entries.iter().map(|entry| entry.operation.map(|operation| operation.as_str().as_bytes())));
    put_texts(&mut raw, entries.iter().map(|entry| Some(entry.by.as_bytes())));
    put_texts(&mut raw, entries.iter().map(|entry| entry.pedigree.as_ref().map(|pedigree| &pedigree.0[..])));
    put_positions(&mut raw, entries);
    raw
}

fn rows(raw: &mut Cursor<'_>, count: u64) -> Result<Vec<HistoryEntry>> {
    let epochs = raw.deltas(count)?;
    let seqs = raw.deltas(count)?;
    let times = raw.options(count)?;
    let updated = raw.deltas(count)?;
    let changes = raw.deltas(count)?;
    let position_times = raw.options(count)?;
    let operations = raw.texts(count)?;
    let bys = raw.texts(count)?;
    let pedigrees = raw.texts(count)?;
    let positions = raw.positions(count)?;
    let row = |(at, bytes): (usize, Vec<u8>)| HistoryEntry {
        position: Position::new(bytes, position_times[at].map(SourceTime)),
        pedigree: pedigrees[at].map(|pedigree| Pedigree(Bytes::copy_from_slice(pedigree))),
        epoch: Epoch(epochs[at]),
        seq: seqs[at],
        time: times[at].map(SourceTime),
        operation: operations[at].map(operation),
        updated_at_millis: updated[at],
        changes: changes[at],
        by: bys[at].map(|by| String::from_utf8_lossy(by).into_owned()).unwrap_or_default(),
    };
    Ok(positions.into_iter().enumerate().map(row).collect())
}

/// A newer version may know operations that this one does not.
fn operation(name: &[u8]) -> Operation {
    let name = String::from_utf8_lossy(name).into_owned();
    serde_json::from_value(serde_json::Value::String(name)).unwrap_or(Operation::Other)
}

fn put_varint(raw: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        raw.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    raw.push(number.to_le_bytes()[0]);
}

/// Differences, small ones of either sign in one byte.
fn put_deltas(raw: &mut Vec<u8>, numbers: impl Iterator<Item = u64>) {
    let mut last = 0;
    for number in numbers {
        let delta = number.wrapping_sub(last).cast_signed();
        put_varint(raw, (delta.wrapping_shl(1) ^ (delta >> 63)).cast_unsigned());
        last = number;
    }
}

/// Which ones there are, then those.
fn put_options(raw: &mut Vec<u8>, numbers: impl Iterator<Item = Option<u64>> + Clone) {
    raw.extend(numbers.clone().map(|number| u8::from(number.is_some())));
    put_deltas(raw, numbers.flatten());
}

/// A dictionary, then for each entry its number in it, counted from 1; 0 is none.
fn put_texts<'a>(raw: &mut Vec<u8>, texts: impl Iterator<Item = Option<&'a [u8]>>) {
    let mut numbers = Vec::new();
    let mut dictionary = Vec::new();
    let mut known = BTreeMap::new();
    for text in texts {
        let number = text.map_or(0, |text| {
            *known.entry(text).or_insert_with(|| {
                dictionary.push(text);
                dictionary.len() as u64
            })
        });
        numbers.push(number);
    }
    put_varint(raw, dictionary.len() as u64);
    for text in dictionary {
        put_varint(raw, text.len() as u64);
        raw.extend_from_slice(text);
    }
    numbers.into_iter().for_each(|number| put_varint(raw, number));
}

/// Lengths of shared prefixes, lengths of the rests, the rests.
fn put_positions(raw: &mut Vec<u8>, entries: &[HistoryEntry]) {
    let mut last: &[u8] = &[];
    let (mut shared, mut lengths, mut rests) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        let bytes = &entry.position.bytes[..];
        let prefix = bytes.iter().zip(last).take_while(|(a, b)| a == b).count();
        put_varint(&mut shared, prefix as u64);
        put_varint(&mut lengths, (bytes.len() - prefix) as u64);
        rests.extend_from_slice(&bytes[prefix..]);
        last = bytes;
    }
    [shared, lengths, rests].iter().for_each(|column| raw.extend_from_slice(column));
}

/// What has not been read yet. Lengths are checked before anything is allocated for them.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, length: u64) -> Result<&'a [u8]> {
        let length = usize::try_from(length).ok().filter(|length| *length <= self.0.len());
        let (head, tail) = self.0.split_at(length.ok_or_else(|| Error::corrupt("it ends too early"))?);
        self.0 = tail;
        Ok(head)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::corrupt("a number in it is too long"))
    }

    fn varints(&mut self, count: u64) -> Result<Vec<u64>> {
        (0..count).map(|_| self.varint()).collect()
    }

    fn deltas(&mut self, count: u64) -> Result<Vec<u64>> {
        let mut last = 0_u64;
        let next = |folded: u64| {
            let delta = (folded >> 1) ^ (folded & 1).wrapping_neg();
            last = last.wrapping_add(delta);
            last
        };
        Ok(self.varints(count)?.into_iter().map(next).collect())
    }

    fn options(&mut self, count: u64) -> Result<Vec<Option<u64>>> {
        let present = self.bytes(count)?;
        let some = present.iter().filter(|flag| **flag != 0).count() as u64;
        let mut values = self.deltas(some)?.into_iter();
        Ok(present.iter().map(|flag| if *flag != 0 { values.next() } else { None }).collect())
    }

    fn texts(&mut self, count: u64) -> Result<Vec<Option<&'a [u8]>>> {
        let size = self.varint()?;
        let dictionary = (0..size).map(|_| self.varint().and_then(|length| self.bytes(length)));
        let dictionary: Vec<&[u8]> = dictionary.collect::<Result<_>>()?;
        let text = |number: u64| {
            let Some(index) = number.checked_sub(1) else { return Ok(None) };
            let known = usize::try_from(index).ok().and_then(|index| dictionary.get(index).copied());
            known.map(Some).ok_or_else(|| Error::corrupt("it names a text that it does not have"))
        };
        self.varints(count)?.into_iter().map(text).collect()
    }

    fn positions(&mut self, count: u64) -> Result<Vec<Vec<u8>>> {
        let shared = self.varints(count)?;
        let lengths = self.varints(count)?;
        let mut positions: Vec<Vec<u8>> = Vec::new();
        for (shared, length) in shared.into_iter().zip(lengths) {
            let last = positions.last().map_or(&[][..], Vec::as_slice);
            let prefix = usize::try_from(shared).ok().and_then(|shared| last.get(..shared));
            let prefix = prefix.ok_or_else(|| Error::corrupt("a position in it has no beginning"))?;
            let rest = self.bytes(length)?;
            positions.push([prefix, rest].concat());
        }
        Ok(positions)
    }
}
