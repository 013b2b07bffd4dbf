//! From rows of the server to changes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio_postgres::Row;
use watchkeeper_core::{
    Batch, BatchBuilder, Error, Limits, Operation, Payload, Position, Result, RowParts, SourceTime, Version,
};

use super::changed::append_changed;
use super::exact::{LoggedImage, append_notes, are_noted_alike};
use super::query::{LogInfo, Raw, time};

/// Rows of other entities that are passed over in one batch.
const PASSED_MAX: usize = 10_000;

/// What a row of our own log says when history was lost there.
pub(super) const LOST: &str = "lost";

/// The values of a row, in the order in which they are selected.
struct Parts<'a>(&'a Row);

impl<'a> Parts<'a> {
    fn raw(&self, n: usize) -> Result<Option<&'a [u8]>> {
        let raw: Option<Raw<'a>> =
            self.0.try_get(n).map_err(|error| Error::internal("a row lacks a column").caused_by(error))?;
        Ok(raw.map(|raw| raw.0))
    }

    fn text(&self, n: usize) -> Result<Option<&'a str>> {
        let wrong = |error| Error::corrupt("a text of the log is not UTF-8").caused_by(error);
        self.raw(n)?.map(|raw| std::str::from_utf8(raw).map_err(wrong)).transpose()
    }

    /// The number of a change; there is none in the row that tells of the log.
    fn number(&self) -> Result<Option<u64>> {
        let wrong = || {
            Error::corrupt("a number of the outbox is negative").remedy("number it from a sequence that begins with 1")
        };
        let Some(raw) = self.raw(0)? else { return Ok(None) };
        let number = raw.try_into().map(i64::from_be_bytes).map_err(|_| wrong())?;
        u64::try_from(number).map(Some).map_err(|_| wrong())
    }

    fn time(&self) -> Result<SourceTime> {
        Ok(self.raw(1)?.and_then(time).unwrap_or_default())
    }
}

/// What the first row tells of the log.
pub(super) fn about(row: &Row) -> Result<LogInfo> {
    let parts = Parts(row);
    if parts.number()?.is_some() {
        return Err(Error::internal("the server gave changes before it told of the log"));
    }
    let now = parts.text(2)?.unwrap_or_default().parse()?;
    let log = parts.text(3)?.map(str::to_owned);
    let pruned = parts.text(4)?.map(str::parse).transpose()?;
    let unflushed = parts.text(5)?.map(str::to_owned);
    let unreachable = parts.text(6)?.map(str::to_owned);
    Ok(LogInfo { now, log, pruned, unflushed, unreachable })
}

/// A batch that is being made, from rows of one window.
pub(super) struct Draft {
    builder: BatchBuilder,
    bodies: Vec<u8>,
    /// The last change that was taken, also of those that are not given out.
    pub(super) last: Option<(u64, SourceTime)>,
    passed: usize,
    /// Whether images are of rows of a table, as the triggers of a log of our own write them.
    is_own: bool,
}

impl Draft {
    pub(super) fn new(origin: &Arc<str>, payload: Arc<dyn Payload>, shared: Bytes, is_own: bool) -> Self {
        let builder = BatchBuilder::new(Arc::clone(origin), payload).share(shared);
        Self { builder, bodies: Vec::new(), last: None, passed: 0, is_own }
    }

    pub(super) fn is_full(&self, limits: Limits) -> bool {
        let bytes = self.builder.size() + self.bodies.len();
        let rows = self.builder.len();
        self.passed >= PASSED_MAX || rows >= limits.rows.max(1) || (rows > 0 && bytes >= limits.bytes)
    }

    /// Whether it holds something to give out: changes, or that some were passed over.
    pub(super) fn is_something(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn finish(self, end: Position) -> Batch {
        self.builder.finish_over(self.bodies.into(), end)
    }

    /// Takes a row; `false` when it cannot be taken, as one that tells of a loss, and what was taken before has to be given out first. Whoever
    /// goes on after that meets it again, as the first.
    pub(super) fn take(&mut self, row: &Row, wanted: Option<&[String]>) -> Result<bool> {
        let parts = Parts(row);
        let number = parts.number()?.ok_or_else(|| Error::internal("a change has no number"))?;
        if self.last.is_some_and(|(last, _)| last >= number) {
            return Err(Error::internal(format!("change {number} came out of order")));
        }
        match self.take_numbered(&parts, number, wanted) {
            Err(_) if self.is_something() => Ok(false),
            taken => taken.map(|()| true),
        }
    }

    /// Takes a row, or nothing of it.
    fn take_numbered(&mut self, parts: &Parts<'_>, number: u64, wanted: Option<&[String]>) -> Result<()> {
        let (time, entity) = (parts.time()?, parts.text(2)?.unwrap_or_default());
        if wanted.is_none_or(|wanted| wanted.iter().any(|name| name == entity)) {
            self.push(parts, number, time, entity)?;
        } else {
            self.passed += 1;
        }
        self.last = Some((number, time));
        Ok(())
    }

    fn push(&mut self, parts: &Parts<'_>, number: u64, time: SourceTime, entity: &str) -> Result<()> {
        let (key, old_key) = (parts.raw(4)?, parts.raw(5)?);
        let images = [parts.raw(6)?, parts.raw(7)?, parts.raw(8)?];
        let [before, after, _] = images;
        let (namespace, position) = (self.builder.namespace(entity), number.to_be_bytes());
        let mut add = |operation, half: u8, committable, key: Option<&[u8]>, images: [Option<&[u8]>; 3]| {
            let is_update = operation == Operation::Update;
            let body = if self.is_own {
                row_body(&mut self.bodies, images, is_update)
            } else {
                body(&mut self.bodies, images)
            };
            let version = Version { time: number, ordinal: u64::from(half) };
            let row = RowParts {
                operation,
                namespace,
                half,
                committable,
                key,
                position: &position,
                body: &[],
                time,
                version,
            };
            self.builder.push_in_place(row, body);
        };
        match parts.text(3)?.unwrap_or("insert") {
            // An update of the key is two changes under one position.
            "rekey" => {
                add(Operation::Delete, 0, false, old_key, [before, None, None]);
                add(Operation::Insert, 1, true, key, [None, after, None]);
            }
            word => add(operation(word, number, entity)?, 0, true, key, images),
        }
        Ok(())
    }
}

fn operation(word: &str, number: u64, entity: &str) -> Result<Operation> {
    let is = |known: &str| word.eq_ignore_ascii_case(known);
    match word {
        _ if is("insert") => Ok(Operation::Insert),
        _ if is("update") => Ok(Operation::Update),
        _ if is("delete") => Ok(Operation::Delete),
        _ if is("truncate") => Ok(Operation::Truncate),
        LOST => Err(Error::position_lost(format!(
            "history is lost before change {number}: {entity} was not logged for a while, or is logged under another name since"
        ))
        .remedy("name the table as it is now, copy it again, and accept the gap: watchkeeper accept-gap STREAM")),
        _ => Err(Error::corrupt(format!("change {number} is a {word:?}, which is no operation")).remedy(
            "correct the word in that row and resume the stream, or map `operation` to a column of insert, update, delete and truncate; without it all are inserts",
        )),
    }
}

const CHANGED: &[u8] = br#","changed":"#;

/// Appends `before`, `after` and the names of the `changed` columns, which are JSON already. A change that has only an `after`, as in
/// an outbox, is that alone.
fn body(into: &mut Vec<u8>, [before, after, changed]: [Option<&[u8]>; 3]) -> Range<usize> {
    let start = into.len();
    into.extend_from_slice(br#"{"before":"#);
    into.extend_from_slice(before.unwrap_or(b"null"));
    into.extend_from_slice(br#","after":"#);
    into.extend_from_slice(after.unwrap_or(b"null"));
    if let Some(changed) = changed {
        into.extend_from_slice(CHANGED);
        into.extend_from_slice(changed);
    }
    into.push(b'}');
    start..into.len()
}

/// The same of rows of a table, with the notes of their images before it. The `changed` columns of an update are found where they were
/// not logged.
fn row_body(into: &mut Vec<u8>, [before, after, changed]: [Option<&[u8]>; 3], is_update: bool) -> Range<usize> {
    let start = into.len();
    let [before, after] = [before, after].map(|image| image.map(LoggedImage::read));
    append_notes(into, before, after);
    for (name, image) in [(&br#"{"before":"#[..], before), (br#","after":"#, after)] {
        into.extend_from_slice(name);
        match image {
            Some(image) => image.append_to(into),
            None => into.extend_from_slice(b"null"),
        }
    }
    match (changed, before, after) {
        (Some(changed), ..) => {
            into.extend_from_slice(CHANGED);
            into.extend_from_slice(changed);
        }
        (None, Some(before), Some(after)) if is_update && are_noted_alike(before, after) => {
            let end = into.len();
            into.extend_from_slice(CHANGED);
            if !append_changed(into, before.columns, after.columns) {
                into.truncate(end);
            }
        }
        _ => {}
    }
    into.push(b'}');
    start..into.len()
}
