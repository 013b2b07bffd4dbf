//! Everything that exists, joined to the changes since.
//!
//! Collections are read range by range in the order of `_id`, each range at a cluster time of its own. Before its rows are
//! delivered the stream is delivered up to that time, for what was read before; changes of what is not yet read are dropped,
//! since reading it will show them. So changes of one key stay in order, nothing that was deleted comes back, and the token
//! moves on meanwhile: a snapshot may take longer than the oplog reaches back.
//!
//! Every row is a place to go on from: the rest of its range is then read anew, at a later time. A target may have rows of
//! that rest already, which were delivered but not committed before a crash. What was deleted since is not read
//! again, so deletes are delivered also of what is not yet read: of a row that nobody has they take nothing away.

use std::cmp::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use watchkeeper_core::{Cx, Error, ErrorKind, Result};

mod progress;

pub(super) use progress::{compare, is_unfinished, stage};

use super::Feed;
use super::id::Id;
use super::order;
use super::read::{Answer, events_in};
use super::view::Scope;
use crate::client::number;
use crate::payload::damaged;
use crate::payload::scan::Field;
use crate::position::Token;
use progress::{Fresh, Progress};

/// Rows of one range at most; an answer of 16 MiB ends it sooner.
const ROWS_MAX: i64 = 5_000;

/// How long the server holds back an answer while a snapshot waits for the stream to pass its time.
const AWAIT: Duration = Duration::from_millis(50);

/// Which part of a range is asked for.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// All of it, with the row that it begins behind, at a time that the server chooses, but not before this one.
    First(Timestamp),
    /// All but the first row, at this time.
    Second(Timestamp),
    /// The largest of all values, which servers leave out of ranges without an end, at this time.
    Largest(Timestamp),
}

/// Rows that were read at one time.
pub(super) struct Range {
    pub(super) at: Timestamp,
    bytes: Bytes,
    rows: Vec<(usize, usize)>,
    next: usize,
    from: Option<Id>,
    /// Whether the stream has been delivered up to its time.
    pub(super) caught_up: bool,
    /// Whether the collection did not exist.
    is_of_missing: bool,
}

/// A snapshot that runs.
pub(super) struct Snapshot {
    /// How the stream is shown when the snapshot is over.
    pub(super) feed: Feed,
    names: Vec<String>,
    progress: Progress,
    encoded: Vec<u8>,
    pub(super) range: Option<Range>,
}

impl Snapshot {
    /// A snapshot of what `feed` watches, from the beginning or from where it was.
    pub(super) async fn new(feed: &Feed, cx: &Cx, progress: Option<&[u8]>) -> Result<Self> {
        let names = feed.countable(cx).await?;
        let damaged = || {
            Error::corrupt("the stored progress of a snapshot is damaged")
                .remedy("go back to an earlier checkpoint from the history, or begin anew")
        };
        let progress = match progress {
            None => Progress { rows_expected: feed.rows_expected(cx, &names).await?, ..Progress::default() },
            Some(bytes) => Progress::decode(bytes).ok_or_else(damaged)?,
        };
        let encoded = progress.encode();
        Ok(Self { feed: feed.clone(), names, progress, encoded, range: None })
    }

    /// The bytes of how far it is.
    pub(super) fn progress(&self) -> &[u8] {
        &self.encoded
    }

    /// Whether everything was read.
    pub(super) fn is_complete(&self) -> bool {
        self.progress.collection >= self.names.len()
    }

    /// Whether everything was read, and the stream at `token` has passed what was read last.
    pub(super) fn is_over(&self, token: &Token) -> bool {
        self.is_complete() && self.progress.fresh.as_ref().is_none_or(|fresh| has_passed(token, fresh.at, false))
    }

    /// Whether something can be read, or delivered, without waiting for the stream.
    pub(super) fn has_more(&self) -> bool {
        self.range.as_ref().map_or(!self.is_complete(), |range| range.caught_up)
    }

    /// Whether a change has to be delivered.
    pub(super) fn wants(&self, collection: &str, id: &Field<'_>, at: Timestamp, deletes: bool) -> bool {
        let place = self.names.iter().position(|name| name == collection);
        place.is_none_or(|place| self.progress.wants(place, id, at, deletes))
    }

    /// Reads the next range. Nothing is changed by it.
    pub(super) async fn read(&self, cx: &Cx, token: &Token) -> Result<Range> {
        let (name, from) = (&self.names[self.progress.collection], self.progress.through.clone());
        let first = Part::First(self.earliest(cx, token).await?);
        let mut range = match self.find(cx, name, from.clone(), first).await? {
            Some(range) => range,
            None => self.read_missing(cx, name, from.clone(), first).await?,
        };
        if range.skip_bound(&from)? {
            // The one row before the range may have filled the whole answer.
            range = self.find_again(cx, name, from.clone(), Part::Second(range.at)).await?;
        }
        if range.rows.is_empty() && from.as_ref().is_some_and(|from| !from.is_largest()) && !range.is_of_missing {
            range = self.find_again(cx, name, from, Part::Largest(range.at)).await?;
        }
        range.caught_up = has_passed(token, range.at, false);
        Ok(range)
    }

    /// The time at or after which rows have to be read. Changes up to it are not delivered by the stream any more, or were dropped
    /// since reading the rows shows them. Servers by themselves read what a majority has, while a stream from now on begins behind all
    /// that one server has: what was written in between would be seen by neither.
    async fn earliest(&self, cx: &Cx, token: &Token) -> Result<Timestamp> {
        let now = self.feed.operation_time(cx).await?.ok_or_else(timeless)?;
        // A stream from now on begins one tick after what has happened, and servers refuse to wait for the future.
        Ok(token.timestamp().map_or(now, |at| at.min(now)))
    }

    /// The range of a collection that does not exist, for which servers give no time: it was dropped before its turn, or is
    /// waited for. It has no rows.
    async fn read_missing(&self, cx: &Cx, name: &str, from: Option<Id>, first: Part) -> Result<Range> {
        // A time from before the collection is looked for: what is written into one that is created afterwards is delivered
        // by the stream.
        let at = self.feed.operation_time(cx).await?.ok_or_else(timeless)?;
        if let Some(range) = self.find(cx, name, from.clone(), first).await? {
            return Ok(range);
        }
        if self.feed.kind_of(cx, name).await?.is_some() {
            return Err(Error::unavailable(format!("{name} was created, or is not read as it was at one time"))
                .remedy("it is read again; servers before MongoDB 5.0 are not supported"));
        }
        let (bytes, rows) = (Bytes::new(), Vec::new());
        Ok(Range { at, bytes, rows, next: 0, from, caught_up: false, is_of_missing: true })
    }

    /// More rows of a range that was read before at the same time.
    async fn find_again(&self, cx: &Cx, name: &str, from: Option<Id>, part: Part) -> Result<Range> {
        let found = self.find(cx, name, from, part).await?;
        found.ok_or_else(|| {
            Error::unavailable(format!("{name} was dropped while it was read")).remedy("the rest is read again")
        })
    }

    /// Rows from `from` on; `None` when the server gives no time for them, as for a collection that does not exist.
    async fn find(&self, cx: &Cx, name: &str, from: Option<Id>, part: Part) -> Result<Option<Range>> {
        let mut find = doc! {
            "find": name, "hint": { "_id": 1 }, "sort": { "_id": 1 }, "limit": ROWS_MAX, "batchSize": ROWS_MAX,
            "singleBatch": true,
        };
        find.insert(
            "readConcern",
            match part {
                Part::First(earliest) => doc! { "level": "snapshot", "afterClusterTime": earliest },
                Part::Second(at) | Part::Largest(at) => doc! { "level": "snapshot", "atClusterTime": at },
            },
        );
        let mut bound = None;
        match (&from, part) {
            (_, Part::Largest(_)) => drop(find.insert("filter", doc! { "_id": Bson::MaxKey })),
            // Nothing lies behind it, and servers refuse to look there. Only the time is asked for.
            (Some(from), _) if from.is_largest() => drop(find.insert("filter", doc! { "_id": { "$in": [] } })),
            (Some(from), part) => {
                // A condition would see only values of the same type.
                bound = Some(from.key()?);
                if let Part::Second(_) = part {
                    find.insert("skip", 1);
                }
            }
            (None, _) => {}
        }
        let mut find = RawDocumentBuf::try_from(&find).map_err(damaged)?;
        if let Some(bound) = bound {
            find.append(cstr!("min"), bound);
        }
        let cx = self.feed.client.bounded(cx);
        let database = self.feed.client.database(&cx).await?;
        let call = async {
            let mut cursor = database
                .run_raw_cursor_command(find)
                .batch()
                .await
                .map_err(|native| self.feed.command_failure(native))?;
            let first = cursor.next().await.ok_or_else(|| Error::unavailable("the server ended the cursor"))?;
            first.map_err(|native| self.feed.command_failure(native))
        };
        let bytes = Bytes::from_owner(Answer(cx.run(call).await?));
        let answer = RawDocument::from_bytes(&bytes).map_err(damaged)?;
        let at = answer.get_document("cursor").and_then(|cursor| cursor.get_timestamp("atClusterTime"));
        let rows = events_in(&bytes)?;
        match at {
            Ok(at) if matches!(part, Part::First(earliest) if at < earliest) => {
                Err(Error::unavailable(format!("{name} was read as it was before the stream began"))
                    .remedy("it is read again"))
            }
            Ok(at) => Ok(Some(Range { at, bytes, rows, next: 0, from, caught_up: false, is_of_missing: false })),
            Err(_) if rows.is_empty() => Ok(None),
            Err(error) => Err(timeless().caused_by(error)),
        }
    }

    /// Takes the next row of a range that has caught up: the row and its `_id`. `None` when the range is over.
    pub(super) fn take_row(&mut self) -> Result<Option<Row>> {
        let Some(range) = &mut self.range else { return Ok(None) };
        let Some((start, end)) = range.rows.get(range.next).copied() else {
            let range = self.range.take();
            if let Some(range) = range.filter(|range| range.rows.is_empty()) {
                self.finish_collection(range);
            }
            return Ok(None);
        };
        range.next += 1;
        let bytes = range.bytes.slice(start..end);
        let id = Id::of(&bytes)?;
        let collection = self.progress.collection;
        self.progress.fresh = Some(Fresh { collection, from: range.from.clone(), at: range.at });
        self.progress.through = Some(id.clone());
        self.progress.rows += 1;
        let at = range.at;
        self.encoded = self.progress.encode();
        Ok(Some(Row { name: self.names[collection].clone(), bytes, id, at }))
    }

    /// Nothing was found behind the last row: all of the collection was read.
    fn finish_collection(&mut self, range: Range) {
        let collection = self.progress.collection;
        let fresh = Some(Fresh { collection, from: range.from, at: range.at });
        self.progress = Progress { collection: collection + 1, through: None, fresh, ..self.progress };
        self.encoded = self.progress.encode();
    }
}

fn timeless() -> Error {
    Error::config("the server does not tell the time of a snapshot").remedy("use MongoDB 5.0 or newer")
}

/// A row of a snapshot.
pub(super) struct Row {
    name: String,
    bytes: Bytes,
    id: Id,
    pub(super) at: Timestamp,
}

impl Row {
    /// The key as events have it.
    pub(super) fn document_key(&self) -> Result<RawDocumentBuf> {
        self.id.key()
    }

    /// The collection.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The row as an event of the form that changes have.
    pub(super) fn event(&self, database: &str) -> Result<RawDocumentBuf> {
        let mut namespace = RawDocumentBuf::new();
        namespace.append(cstr!("db"), database);
        namespace.append(cstr!("coll"), self.name.as_str());
        let mut event = RawDocumentBuf::new();
        event.append(cstr!("operationType"), "read");
        event.append(cstr!("clusterTime"), self.at);
        event.append(cstr!("fullDocument"), RawDocument::from_bytes(&self.bytes).map_err(damaged)?.to_owned());
        event.append(cstr!("ns"), namespace);
        event.append(cstr!("documentKey"), self.document_key()?);
        Ok(event)
    }
}

impl Range {
    /// Leaves out the row that the range begins behind. Whether that is the only row there is.
    fn skip_bound(&mut self, from: &Option<Id>) -> Result<bool> {
        let (Some(from), Some((start, end))) = (from, self.rows.first().copied()) else { return Ok(false) };
        let first = Id::of(&self.bytes[start..end])?;
        // The same bytes are the same value, whatever they are.
        let is_bound = first == *from || order::compare(&first.as_field(), &from.as_field()) == Some(Ordering::Equal);
        if is_bound && self.rows.len() > 1 {
            self.rows.remove(0);
            return Ok(false);
        }
        Ok(is_bound)
    }
}

/// Whether a stream that stands at `token` has told everything up to `at`. `silent`: it was asked, and had nothing more.
pub(super) fn has_passed(token: &Token, at: Timestamp, silent: bool) -> bool {
    token.timestamp().is_some_and(|now| now > at || (now == at && (silent || token.is_of_a_time())))
}

impl Feed {
    /// The same feed with a server that answers soon, for while a snapshot runs.
    pub(super) fn impatient(&self) -> Self {
        let mut view = (*self.view).clone();
        view.max_await_time = view.max_await_time.min(AWAIT);
        Self { view: view.into(), ..self.clone() }
    }

    /// About how many rows these collections have: what the server keeps count of, without looking at them.
    async fn rows_expected(&self, cx: &Cx, names: &[String]) -> Result<u64> {
        let mut rows = 0;
        for name in names {
            let counted = match self.ask(cx, self.client.config().database(), doc! { "count": name }).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                // It is only shown to people.
                answer => answer.ok().and_then(|answer| number(answer.get("n"))),
            };
            rows += counted.unwrap_or(0);
        }
        Ok(rows)
    }

    /// The options of a collection. Whoever may only read it is shown those by which a query would be planned: servers refuse to
    /// read a capped collection as it was at one time by themselves.
    async fn options_of(&self, cx: &Cx, name: &str) -> Result<Option<Document>> {
        let database = self.client.config().database();
        let list = doc! { "listCollections": 1, "filter": { "name": name } };
        match self.first(cx, database, list).await {
            Ok(found) => return Ok(found.and_then(|found| found.get_document("options").ok().cloned())),
            Err(error) if error.kind() == ErrorKind::Denied => {}
            Err(error) => return Err(error),
        }
        let explain = doc! { "explain": { "find": name, "limit": 1 }, "verbosity": "queryPlanner" };
        let plan = self.ask(cx, database, explain).await?;
        Ok(plan.get_document("queryPlanner").ok().cloned())
    }

    /// The collections that a snapshot would read.
    pub(super) async fn countable(&self, cx: &Cx) -> Result<Vec<String>> {
        let refuse = |cause: &str, remedy: &str| Err(Error::config(cause).remedy(remedy));
        let Scope::Collections(names) = &self.view.scope else {
            return refuse(
                "a snapshot needs collections that are named",
                "name them: collection = [\"orders\", \"lines\"]",
            );
        };
        if !self.view.pipeline.is_empty() {
            return refuse(
                "a snapshot cannot be seen through a pipeline",
                "leave the pipeline out, and filter at the sink",
            );
        }
        let hello = self.ask(cx, "admin", doc! { "hello": 1 }).await?;
        if hello.get_str("msg").is_ok_and(|kind| kind == "isdbgrid") {
            return refuse("a snapshot cannot be read through mongos", "begin with now or the oldest change");
        }
        for name in names {
            let options = self.options_of(cx, name).await?;
            let options = options.as_ref();
            if options.is_some_and(|options| options.contains_key("collation")) {
                let cause = format!("{name} has a collation, by which a snapshot cannot be ordered");
                return refuse(&cause, "begin with now or the oldest change");
            }
            if options.is_some_and(|options| options.get_bool("capped").unwrap_or(false)) {
                let cause = format!("{name} is a capped collection, which servers do not read as it was at one time");
                return refuse(&cause, "begin with now or the oldest change");
            }
        }
        Ok(names.clone())
    }
}
