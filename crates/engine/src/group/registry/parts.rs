//! The records of a member whose streams do not fit into one.

use bytes::Bytes;
use serde::Serialize;
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{Error, Result};

use super::Member;
use crate::group::encode;

/// The name of the record that continues the one called `first` in place `number`, from 1. Names sort as their numbers do.
pub(super) fn name(first: &str, number: usize) -> String {
    format!("{first}/{number:06}")
}

/// The number of a record that continues another one; `None` for the first of a member. `name` is without the prefix of all members.
pub(super) fn number(name: &str) -> Option<usize> {
    name.split_once('/')?.1.parse().ok()
}

/// The record of a member, and those that continue it.
pub(super) fn split(name: &str, member: &Member) -> Result<(Bytes, Vec<Bytes>)> {
    let whole = encode(name, member)?;
    if whole.len() <= RECORD_BYTES_MAX {
        return Ok((whole, Vec::new()));
    }
    let mut parts = Parts::new(name, member)?;
    for stream in &member.streams {
        parts.with_room_for(stream)?.streams.push(stream.clone());
    }
    for report in &member.reports {
        parts.with_room_for(report)?.reports.push(report.clone());
    }
    let Parts { mut first, further, .. } = parts;
    first.further_records = further.len();
    let further = further.iter().map(|part| encode(name, part)).collect::<Result<_>>()?;
    Ok((encode(name, &first)?, further))
}

/// A member in parts, each of which fits into a record.
struct Parts {
    first: Member,
    further: Vec<Member>,
    /// A part without streams.
    empty: Member,
    /// Bytes that streams and reports may take in each part.
    room: usize,
    /// Bytes that are left of it in the last part.
    left: usize,
}

impl Parts {
    fn new(name: &str, member: &Member) -> Result<Self> {
        let empty = Member { streams: Vec::new(), reports: Vec::new(), ..member.clone() };
        let longest = encode(name, &Member { further_records: usize::MAX, ..empty.clone() })?;
        let room = RECORD_BYTES_MAX.saturating_sub(longest.len());
        Ok(Self { first: empty.clone(), further: Vec::new(), empty, room, left: room })
    }

    /// The last part, which has room for `item`.
    fn with_room_for(&mut self, item: &impl Serialize) -> Result<&mut Member> {
        let text = serde_json::to_vec(item);
        // And a comma.
        let length = text.map_err(|error| Error::internal("a stream cannot be written").caused_by(error))?.len() + 1;
        if length > self.left {
            self.further.push(self.empty.clone());
            self.left = self.room;
        }
        self.left = self.left.saturating_sub(length);
        Ok(self.further.last_mut().unwrap_or(&mut self.first))
    }
}

/// Adds what a further record tells of a member.
pub(super) fn join(member: &mut Member, further: Member) {
    member.streams.extend(further.streams);
    member.reports.extend(further.reports);
}
