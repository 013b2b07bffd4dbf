//! Fragments of events that a server has split, joined again.
//!
//! A fragment has a part of an event's fields, a `splitEvent` that says which one it is, and a token of its own. No position
//! between two fragments is ever given out: what is not whole is read again.

use mongodb::bson::raw::cstr;
use mongodb::bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use watchkeeper_core::{Error, Result};

use super::read::Received;
use crate::payload::damaged;
use crate::position::Token;

/// Collects the fragments of one event.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    fragments: Vec<RawDocumentBuf>,
}

/// What became of a document that the server sent.
#[derive(Debug)]
pub(super) enum Joined {
    /// It was an event already.
    Whole,
    /// It was a fragment, and not the last one.
    Pending,
    /// It was the last fragment of this event.
    Event(RawDocumentBuf),
}

impl Joiner {
    /// Whether an event is not yet whole.
    pub(super) fn is_pending(&self) -> bool {
        !self.fragments.is_empty()
    }

    /// Takes the next document.
    ///
    /// # Errors
    /// `Corrupt` when a fragment is missing.
    pub(super) fn take(&mut self, document: &RawDocument) -> Result<Joined> {
        let due = self.fragments.len() + 1;
        match fragment(document)? {
            None if due == 1 => return Ok(Joined::Whole),
            Some((number, of)) if number == due && number <= of => {
                self.fragments.push(document.to_owned());
                if number < of {
                    return Ok(Joined::Pending);
                }
            }
            found => return Err(torn(due, found)),
        }
        let fragments = std::mem::take(&mut self.fragments);
        joined(&fragments).map(Joined::Event)
    }
}

impl Received {
    /// The same with fragments joined, as far as their events are whole. It ends before the first that is not; at `at` when
    /// there is no other.
    pub(super) fn rejoined(self, joiner: &mut Joiner, at: &Token) -> Result<Self> {
        let (mut bytes, mut events, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = at.clone();
        for (from, to) in self.events {
            let document = RawDocument::from_bytes(&self.bytes[from..to]).map_err(damaged)?;
            let start = bytes.len();
            match joiner.take(document)? {
                Joined::Pending => continue,
                Joined::Whole => bytes.extend_from_slice(document.as_bytes()),
                Joined::Event(event) => {
                    joined.push(events.len());
                    bytes.extend_from_slice(event.as_bytes());
                }
            }
            events.push((start, bytes.len()));
            if let Ok(token) = document.get_document("_id") {
                end.read(token.as_bytes())?;
                end.split = joined.last() == Some(&(events.len() - 1));
            }
        }
        if !joiner.is_pending() {
            end = self.end;
        }
        Ok(Self { bytes: bytes.into(), events, joined, end, ..self })
    }
}

/// Which fragment of how many a document is; `None` for a whole event.
fn fragment(document: &RawDocument) -> Result<Option<(usize, usize)>> {
    let Some(RawBsonRef::Document(split)) = document.get("splitEvent").map_err(damaged)? else { return Ok(None) };
    let number = |name: &str| match split.get(name) {
        Ok(Some(RawBsonRef::Int32(number))) => usize::try_from(number).unwrap_or(0),
        Ok(Some(RawBsonRef::Int64(number))) => usize::try_from(number).unwrap_or(0),
        _ => 0,
    };
    Ok(Some((number("fragment"), number("of"))))
}

/// One event with the fields of all fragments, and the token of the last.
fn joined(fragments: &[RawDocumentBuf]) -> Result<RawDocumentBuf> {
    let mut event = RawDocumentBuf::new();
    if let Some(last) = fragments.last()
        && let Some(token) = last.get("_id").map_err(damaged)?
    {
        event.append(cstr!("_id"), token);
    }
    for fragment in fragments {
        for field in fragment.iter() {
            let (name, value) = field.map_err(damaged)?;
            if !matches!(name.as_str(), "_id" | "splitEvent") {
                event.append(name, value);
            }
        }
    }
    Ok(event)
}

fn torn(due: usize, found: Option<(usize, usize)>) -> Error {
    let found = found.map_or_else(|| "a whole event".to_owned(), |(number, of)| format!("fragment {number} of {of}"));
    Error::corrupt(format!("{found} came where fragment {due} of an event was due"))
        .remedy("report it, with the version of the server")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mongodb::bson::{Document, doc};
    use watchkeeper_core::ErrorKind;

    use super::*;

    fn raw(document: Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(&document).expect("it has a raw form")
    }

    fn fragment(token: &str, number: i32, of: i32, fields: Document) -> RawDocumentBuf {
        let mut document = doc! { "_id": { "_data": token }, "splitEvent": { "fragment": number, "of": of } };
        document.extend(fields);
        raw(document)
    }

    fn token(hex: &str) -> Token {
        Token::of(&raw(doc! { "_data": hex })).expect("a token")
    }

    /// An answer of the server with these documents, after which it stands at `end`.
    fn received(documents: &[&RawDocument], end: &str) -> Received {
        let (mut bytes, mut events) = (Vec::new(), Vec::new());
        for document in documents {
            let start = bytes.len();
            bytes.extend_from_slice(document.as_bytes());
            events.push((start, bytes.len()));
        }
        Received { bytes: Bytes::from(bytes), events, joined: Vec::new(), next: 0, end: token(end) }
    }

    fn events(received: &Received) -> Vec<Document> {
        let event = |(start, end): &(usize, usize)| {
            let raw = RawDocument::from_bytes(&received.bytes[*start..*end]).expect("it is one");
            Document::try_from(raw).expect("it is one")
        };
        received.events.iter().map(event).collect()
    }

    #[test]
    fn fragments_are_joined_over_answers_and_no_place_between_them_is_given_out() {
        let mut joiner = Joiner::default();
        let at = token("8201");
        let whole = raw(doc! { "_id": { "_data": "8202" }, "operationType": "insert" });
        let first = fragment("820301", 1, 3, doc! { "operationType": "update", "ns": { "db": "shop" } });
        let second = fragment("820302", 2, 3, doc! { "fullDocument": { "_id": 1 } });
        let third = fragment("820303", 3, 3, doc! { "fullDocumentBeforeChange": { "_id": 1 } });
        let last = raw(doc! { "_id": { "_data": "8204" }, "operationType": "delete" });

        let one = received(&[&whole, &first], "820301").rejoined(&mut joiner, &at).expect("it is in order");
        assert_eq!((events(&one).len(), &one.end), (1, &token("8202")), "the fragment waits");
        let two = received(&[&second], "820302").rejoined(&mut joiner, &one.end).expect("it is in order");
        assert_eq!((events(&two).len(), &two.end), (0, &token("8202")), "nothing moves between fragments");
        let three = received(&[&third, &last], "8205").rejoined(&mut joiner, &two.end).expect("it is in order");
        let joined = doc! {
            "_id": { "_data": "820303" }, "operationType": "update", "ns": { "db": "shop" },
            "fullDocument": { "_id": 1 }, "fullDocumentBeforeChange": { "_id": 1 },
        };
        assert_eq!(events(&three)[0], joined);
        assert_eq!((events(&three).len(), three.joined, three.end), (2, vec![0], token("8205")));
    }

    #[test]
    fn an_answer_that_ends_with_the_last_fragment_ends_there() {
        let mut joiner = Joiner::default();
        let (first, second) = (fragment("8202", 1, 2, doc! {}), fragment("8203", 2, 2, doc! {}));
        let small = fragment("8205", 1, 2, doc! {});
        let made =
            received(&[&first, &second, &small], "8205").rejoined(&mut joiner, &token("8201")).expect("in order");
        let mut end = token("8203");
        end.split = true;
        assert_eq!(made.end, end, "it can be resumed from only by a stream that splits");
    }

    #[test]
    fn a_fragment_that_is_missing_is_reported() {
        for wrong in [fragment("82", 2, 2, doc! {}), fragment("82", 3, 2, doc! {}), fragment("82", 0, 0, doc! {})] {
            let error = Joiner::default().take(&wrong).expect_err("the first is missing");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        let mut joiner = Joiner::default();
        joiner.take(&fragment("82", 1, 2, doc! {})).expect("the first");
        let error = joiner.take(&raw(doc! { "_id": { "_data": "83" } })).expect_err("the second is missing");
        assert!(error.to_string().contains("a whole event came where fragment 2"), "{error}");
    }
}
