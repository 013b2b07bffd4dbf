//! The body of a change: the row as the server sent it, with what is needed to read it.
//!
//! Nothing is decoded until someone looks. A body carries the names and types of the columns, so that one that was laid aside
//! as a dead letter can be read on another instance, after the table has changed.

use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{Image, Operation, Payload, Result, ValueRef, Visit};

use super::pgoutput::{Cell, Cut, Images, Tuple, odd};
use super::value::{owned, value, visit_value};

/// A row: its transaction, its columns, its images.
const ROW: u8 = 1;

/// A truncate: its options.
const TRUNCATE: u8 = 2;

/// Begins the body of a row of the transaction `xid`; the images follow.
pub(super) fn begin_row(xid: u32, described: &[u8], out: &mut Vec<u8>) {
    out.push(ROW);
    out.extend_from_slice(&xid.to_be_bytes());
    out.extend_from_slice(described);
}

/// The body of a truncate.
pub(super) fn truncate(xid: u32, options: u8) -> Vec<u8> {
    let mut out = vec![TRUNCATE];
    out.extend_from_slice(&xid.to_be_bytes());
    out.push(options);
    out
}

/// Rows as `{before, after, xid}`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowPayload;

enum Body<'a> {
    Row { xid: u32, columns: Columns<'a>, images: Images<'a> },
    Truncate { xid: u32, options: u8 },
}

/// Names and types, one after the other.
#[derive(Clone, Copy)]
struct Columns<'a> {
    left: u16,
    cut: Cut<'a>,
}

impl<'a> Columns<'a> {
    fn next(&mut self) -> Result<Option<(&'a str, u32)>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let (kind, length) = (self.cut.u32()?, self.cut.u16()?);
        let name = self.cut.take(usize::from(length))?;
        let name = std::str::from_utf8(name).map_err(|_| odd("a name that is not UTF-8"))?;
        Ok(Some((name, kind)))
    }

    fn rest(mut self) -> Result<&'a [u8]> {
        while self.next()?.is_some() {}
        Ok(self.cut.0)
    }
}

impl<'a> Body<'a> {
    fn read(body: &'a [u8]) -> Result<Self> {
        let mut cut = Cut(body);
        match cut.byte()? {
            ROW => {
                let (xid, left) = (cut.u32()?, cut.u16()?);
                let columns = Columns { left, cut };
                Ok(Self::Row { xid, columns, images: Images::read(columns.rest()?)? })
            }
            TRUNCATE => Ok(Self::Truncate { xid: cut.u32()?, options: cut.byte()? }),
            _ => Err(odd("a body of an unknown kind")),
        }
    }
}

/// One image of a row, column by column.
struct Walk<'a> {
    columns: Columns<'a>,
    tuple: Tuple<'a>,
    /// Where a value that was not sent may stand instead.
    fallback: Option<Tuple<'a>>,
    /// Whether nulls are columns that were not sent, as in the old key of a change.
    key_only: bool,
}

impl<'a> Walk<'a> {
    fn before(columns: Columns<'a>, images: &Images<'a>) -> Option<Self> {
        let key_only = !images.is_whole;
        images.old.map(|tuple| Self { columns, tuple, fallback: None, key_only })
    }

    fn after(columns: Columns<'a>, images: &Images<'a>) -> Option<Self> {
        let fallback = images.old.filter(|_| images.is_whole);
        images.new.map(|tuple| Self { columns, tuple, fallback, key_only: false })
    }

    fn next(&mut self) -> Result<Option<(&'a str, u32, Cell<'a>)>> {
        while let Some((name, kind)) = self.columns.next()? {
            let cell = self.tuple.next()?.ok_or_else(|| odd("a row with fewer columns than its table"))?;
            let before = match &mut self.fallback {
                Some(fallback) => fallback.next()?,
                None => None,
            };
            match cell {
                Cell::Null if self.key_only => {}
                Cell::Unchanged => return Ok(Some((name, kind, before.unwrap_or(Cell::Unchanged)))),
                cell => return Ok(Some((name, kind, cell))),
            }
        }
        Ok(None)
    }

    fn visit(mut self, visit: &mut dyn Visit) -> Result<()> {
        visit.begin_document();
        while let Some((name, kind, cell)) = self.next()? {
            visit.key(name);
            match cell {
                Cell::Null => visit.value(ValueRef::Null),
                Cell::Unchanged => visit.value(ValueRef::Unchanged),
                Cell::Text(text) => visit_value(kind, text, visit)?,
            }
        }
        visit.end_document();
        Ok(())
    }

    fn get(mut self, path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        let Some((wanted, deeper)) = path.split_first() else { return Ok(Some(ValueRef::Document)) };
        while let Some((name, kind, cell)) = self.next()? {
            if name == *wanted {
                return match cell {
                    Cell::Text(text) => inside(kind, text, deeper),
                    Cell::Null => Ok(deeper.is_empty().then_some(ValueRef::Null)),
                    Cell::Unchanged => Ok(deeper.is_empty().then_some(ValueRef::Unchanged)),
                };
            }
        }
        Ok(None)
    }
}

/// What stands at `path` of a value: JSON and arrays can be looked into.
fn inside<'a>(kind: u32, text: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
    let found = value(kind, text)?;
    match (&found, path) {
        (_, []) => Ok(Some(found)),
        (ValueRef::Json(text), _) => Ok(JsonPayload.get(text.as_bytes(), path)?.map(owned)),
        (ValueRef::Array, [index]) => {
            let mut pick = Pick { wanted: index.parse().ok(), at: 0, depth: 0, found: None };
            visit_value(kind, text, &mut pick)?;
            Ok(pick.found)
        }
        _ => Ok(None),
    }
}

/// Keeps one element of an array.
struct Pick {
    wanted: Option<usize>,
    at: usize,
    depth: usize,
    found: Option<ValueRef<'static>>,
}

impl Pick {
    fn offer(&mut self, value: ValueRef<'_>) {
        if self.depth == 1 {
            if Some(self.at) == self.wanted {
                self.found = Some(owned(value));
            }
            self.at += 1;
        }
    }
}

impl Visit for Pick {
    fn value(&mut self, value: ValueRef<'_>) {
        self.offer(value);
    }

    fn begin_array(&mut self) {
        self.offer(ValueRef::Array);
        self.depth += 1;
    }

    fn end_array(&mut self) {
        self.depth -= 1;
    }

    fn begin_document(&mut self) {}

    fn key(&mut self, _key: &str) {}

    fn end_document(&mut self) {}
}

fn xid_value(xid: u32) -> ValueRef<'static> {
    ValueRef::Int64(i64::from(xid))
}

impl Payload for RowPayload {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        let Some((first, deeper)) = path.split_first() else { return Ok(Some(ValueRef::Document)) };
        let (xid, walk) = match (Body::read(body)?, *first) {
            (Body::Truncate { options, .. }, "cascade") => return Ok(Some(ValueRef::Bool(options & 1 != 0))),
            (Body::Truncate { options, .. }, "restartIdentity") => return Ok(Some(ValueRef::Bool(options & 2 != 0))),
            (Body::Row { columns, images, .. }, "before") => (None, Walk::before(columns, &images)),
            (Body::Row { columns, images, .. }, "after") => (None, Walk::after(columns, &images)),
            (Body::Row { xid, .. } | Body::Truncate { xid, .. }, "xid") => (Some(xid), None),
            _ => return Ok(None),
        };
        match (walk, xid) {
            (Some(walk), _) => walk.get(deeper),
            (None, Some(xid)) => Ok(deeper.is_empty().then(|| xid_value(xid))),
            (None, None) => Ok(deeper.is_empty().then_some(ValueRef::Null)),
        }
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        let body = Body::read(body)?;
        visit.begin_document();
        let xid = match body {
            Body::Row { xid, columns, images } => {
                for (key, walk) in
                    [("before", Walk::before(columns, &images)), ("after", Walk::after(columns, &images))]
                {
                    visit.key(key);
                    match walk {
                        Some(walk) => walk.visit(visit)?,
                        None => visit.value(ValueRef::Null),
                    }
                }
                xid
            }
            Body::Truncate { xid, options } => {
                visit.key("cascade");
                visit.value(ValueRef::Bool(options & 1 != 0));
                visit.key("restartIdentity");
                visit.value(ValueRef::Bool(options & 2 != 0));
                xid
            }
        };
        visit.key("xid");
        visit.value(xid_value(xid));
        visit.end_document();
        Ok(())
    }

    fn sends_whole_rows(&self) -> bool {
        true
    }

    /// JSON is told as such.
    fn has_json_strings(&self) -> bool {
        false
    }

    fn has_binary_bytes(&self) -> bool {
        true
    }

    fn image(&self, body: &[u8], operation: Operation, image: Image, visit: &mut dyn Visit) -> Result<bool> {
        if body.is_empty() || !operation.has_row() {
            return Ok(false);
        }
        let Body::Row { columns, images, .. } = Body::read(body)? else { return Ok(false) };
        let walk = match image {
            Image::Before => Walk::before(columns, &images),
            Image::After => Walk::after(columns, &images),
            // The log has no other image.
            _ => None,
        };
        let has_image = walk.is_some();
        if let Some(walk) = walk {
            walk.visit(visit)?;
        }
        Ok(has_image)
    }
}
