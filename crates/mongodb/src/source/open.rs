//! From a place to start to an open cursor.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use tokio::sync::mpsc;
use watchkeeper_core::{Cx, Error, Moment, Result};

use super::Feed;
use super::join::Joiner;
use super::pipeline::{but_for_own, change_stream};
use super::resume_strategy::{ResumeStrategy, Shape};
use super::view::Scope;
use crate::error::{CallPurpose, Class, translate_pipeline};
use crate::position::Token;

/// Where a cursor starts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Start {
    Now,
    At(Timestamp),
    After(Token),
}

/// Batches as they arrive. The next one is asked for while the last one is delivered, and no other before it is taken.
pub(super) type Batches = mpsc::Receiver<Result<RawBatch, mongodb::error::Error>>;

/// How long a stream is probed before it is begun at a time. Servers refuse a time that has left the oplog at once; one that
/// still searches after this has found the beginning.
const PROBE: Duration = Duration::from_secs(1);

/// What servers say of a token that they cannot read. That does not pass.
const NOT_A_TOKEN: &str = "KeyString format error";

/// An opening tries a token so often that is refused while a stream without it is opened each time.
const TRIES_PER_OPENING: u32 = 3;

/// An open cursor.
pub(super) struct Opened {
    pub(super) batches: Batches,
    /// The server's number of the cursor.
    pub(super) id: i64,
    /// Whether the cursor has answered a `getMore` yet. Until then the server may be searching the oplog for as long as that takes.
    pub(super) has_answered: bool,
    /// What the token's own server cannot find, but is known to lie before: everything up to here is dropped.
    pub(super) drop_through: Option<Token>,
    /// Whether it was opened by `startAfter`.
    pub(super) start_after: bool,
    /// The way by which it was opened.
    pub(super) way: ResumeStrategy,
    /// Whether something is kept aside in its events.
    pub(super) aside: bool,
    /// Joins fragments, where events are split.
    pub(super) joiner: Option<Joiner>,
    /// Whether the straight way is worth trying again: what was received last needed no way round.
    pub(super) is_past: bool,
}

impl Feed {
    /// Sends a command that changes nothing.
    pub(crate) async fn ask(&self, cx: &Cx, database: &str, command: Document) -> Result<Document> {
        let cx = self.client.bounded(cx);
        let database = self.client.driver(&cx).await?.database(database);
        cx.run(async { database.run_command(command).await.map_err(|native| self.command_failure(native)) }).await
    }

    /// The first document that a command gives.
    pub(crate) async fn first(&self, cx: &Cx, database: &str, command: Document) -> Result<Option<Document>> {
        let answer = self.ask(cx, database, command).await?;
        let batch = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).ok();
        Ok(batch.and_then(|batch| batch.first()).and_then(Bson::as_document).cloned())
    }

    /// What an error of a command of our own means. It says nothing about the position of the stream.
    pub(super) fn command_failure(&self, native: mongodb::error::Error) -> Error {
        self.client.error(native, CallPurpose::Reading)
    }

    /// What an error means for reading a stream.
    pub(super) fn failure(&self, native: mongodb::error::Error) -> Error {
        let said = native.kind.to_string();
        if Class::of(&native) == Class::TokenUnseen && said.contains("modified by the pipeline") {
            let cause = format!(
                "{}: the pipeline changes or drops _id, which is the position of an event",
                self.client.place()
            );
            return Error::config(cause).remedy("keep _id as it is in every stage").caused_by(native);
        }
        if said.contains(NOT_A_TOKEN) {
            return self.damaged(&said, native);
        }
        self.client.error(native, CallPurpose::Watching)
    }

    /// The command that opens a stream.
    fn command(&self, start: &Start, batch_size: u32) -> Document {
        let mut spec = change_stream(&self.view);
        match start {
            Start::Now => {}
            Start::At(time) => drop(spec.insert("startAtOperationTime", *time)),
            Start::After(token) if token.start_after => drop(spec.insert("startAfter", token.to_document())),
            Start::After(token) => drop(spec.insert("resumeAfter", token.to_document())),
        }
        let mut pipeline = vec![doc! { "$changeStream": spec }];
        pipeline.extend(but_for_own(&self.view));
        pipeline.extend(self.stages.iter().cloned());
        let target = match &self.view.scope {
            Scope::Collections(names) if names.len() == 1 => Bson::from(names[0].as_str()),
            _ => Bson::Int32(1),
        };
        let batch_size = i64::from(batch_size);
        let mut command = doc! { "aggregate": target, "pipeline": pipeline, "cursor": { "batchSize": batch_size } };
        if let Some(collation) = &self.view.collation {
            command.insert("collation", collation.clone());
        }
        if let Some(comment) = &self.view.comment {
            command.insert("comment", comment.as_str());
        }
        command
    }

    /// Opens a cursor whose first answer has at most so many events. With none the server answers at once; otherwise it first
    /// searches the oplog for them, however long that takes.
    pub(super) async fn cursor(&self, cx: &Cx, start: &Start, batch_size: u32) -> Result<RawBatchCursor, Refusal> {
        self.run_cursor(cx, self.command(start, batch_size)).await
    }

    async fn run_cursor(&self, cx: &Cx, command: Document) -> Result<RawBatchCursor, Refusal> {
        let driver = self.client.driver(cx).await.map_err(Refusal::Described)?;
        let name = match self.view.scope {
            Scope::Cluster => "admin",
            _ => self.client.config().database(),
        };
        let database = driver.database(name);
        let mut call =
            database.run_cursor_command(command).batch_size(self.view.batch_size).max_time(self.view.max_await_time);
        if let Some(comment) = &self.view.comment {
            call = call.comment(Bson::from(comment.as_str()));
        }
        if let Some(preference) = &self.view.read_preference {
            call = call.selection_criteria(preference.clone());
        }
        let mut refused = None;
        let opened = cx.run(async {
            match call.batch().await {
                Ok(cursor) => Ok(Some(cursor)),
                Err(native) => {
                    refused = Some(native);
                    Ok(None)
                }
            }
        });
        match opened.await {
            Ok(Some(cursor)) => Ok(cursor),
            Ok(None) => {
                Err(refused.map_or_else(|| Refusal::Described(Error::internal("an error is gone")), Refusal::Native))
            }
            // Nothing is changed by opening a stream.
            Err(error) => {
                let described = Error::unavailable(format!("{}: {}", self.client.place(), error.message()));
                Err(Refusal::Described(match error.is_late() {
                    true => {
                        described.late().remedy("look at the load of the server, or raise timeouts.open of the stream")
                    }
                    false => described,
                }))
            }
        }
    }

    /// Opens after `token`, by whichever way this server can.
    pub(super) async fn open_after(&self, cx: &Cx, token: Token) -> Result<Opened> {
        let way = ResumeStrategy::after(&token);
        self.open_by(cx, token, way).await
    }

    /// Opens after `token` by this way, or by one that leads round what the server refuses.
    pub(super) async fn open_by(&self, cx: &Cx, token: Token, mut way: ResumeStrategy) -> Result<Opened> {
        let mut tries = 0;
        loop {
            let shaped = self.shaped(way.shape);
            // Without a first batch: millions of entries of other collections may lie before the first event, and no time-out
            // for opening would be long enough to search them.
            match shaped.cursor(cx, &way.start(&token), 0).await {
                Ok(cursor) => {
                    let (opened, _) = self.begin_reading(cx, cursor, &token, way, shaped.aside).await?;
                    self.refusals.forget();
                    return Ok(opened);
                }
                Err(Refusal::Described(error)) => return Err(error),
                // Damaged tokens fail in many ways. If all else about the stream is taken, it may have been the token: it is
                // asked for again, since an error may also have passed meanwhile.
                Err(Refusal::Native(native))
                    if matches!(Class::of(&native), Class::Other | Class::Pipeline)
                        && crate::error::code(&native).is_some()
                        && self.try_open(cx).await.is_ok() =>
                {
                    tries += 1;
                    if tries >= TRIES_PER_OPENING {
                        return Err(self.refused_position(cx, &token, native));
                    }
                }
                Err(Refusal::Native(native)) => way = self.next_strategy(cx, way, &token, native).await?,
            }
        }
    }

    /// What it means that an opening was refused at this position only. An error may pass, so that one opening proves nothing unless the
    /// server cannot read the token at all.
    fn refused_position(&self, cx: &Cx, token: &Token, native: mongodb::error::Error) -> Error {
        let said = native.kind.to_string();
        if said.contains(NOT_A_TOKEN) || self.refusals.note(token, cx.now()) {
            return self.damaged(&said, native);
        }
        let cause = format!("{}: the server refuses to go on from the stored position ({said})", self.client.place());
        Error::unavailable(cause)
            .remedy("it is tried again; if the server refuses it for some seconds more, the position counts as damaged")
            .caused_by(native)
    }

    fn damaged(&self, said: &str, native: mongodb::error::Error) -> Error {
        let cause = format!("{}: the stored position is damaged ({said})", self.client.place());
        Error::corrupt(cause).remedy("go back to an earlier checkpoint from the history").caused_by(native)
    }

    /// Opens at a place without a token, and tells the token of that place.
    pub(super) async fn open_at(&self, cx: &Cx, start: Start) -> Result<(Opened, Token)> {
        if let Start::At(_) = start {
            self.probe(cx, &start).await?;
        }
        self.open_at_once(cx, start).await
    }

    /// The same without a look whether the history reaches back to it, which the first answer tells.
    pub(super) async fn open_at_once(&self, cx: &Cx, start: Start) -> Result<(Opened, Token)> {
        let cursor = self.cursor(cx, &start, 0).await.map_err(|refusal| self.refused(refusal))?;
        self.begin_reading(cx, cursor, &Token::default(), ResumeStrategy::default(), self.aside).await
    }

    /// Makes sure that the history reaches back to `start`, which only a cursor that reads can tell.
    async fn probe(&self, cx: &Cx, start: &Start) -> Result<()> {
        let mut command = self.command(start, 1);
        command.insert("maxTimeMS", i64::try_from(PROBE.as_millis()).unwrap_or(i64::MAX));
        match self.run_cursor(cx, command).await {
            // It does. Either the first event needs a way round, which is found when it is read, or it has not been found yet.
            Err(Refusal::Native(native))
                if Class::of(&native).is_about_one_event() || Class::of(&native) == Class::Late =>
            {
                Ok(())
            }
            read => read.map(drop).map_err(|refusal| self.refused(refusal)),
        }
    }

    /// Takes the first answer of a cursor that was opened without a first batch, and reads on in a task of its own. Also returns
    /// the token before all events of the cursor.
    async fn begin_reading(
        &self,
        cx: &Cx,
        mut cursor: RawBatchCursor,
        after: &Token,
        way: ResumeStrategy,
        aside: bool,
    ) -> Result<(Opened, Token)> {
        let first = cx.run(async { Ok(cursor.next().await) }).await?;
        let first = first.ok_or_else(|| Error::unavailable("the server ended the cursor"))?;
        let first = first.map_err(|native| self.failure(native))?;
        let token = post_batch_token(&first)?;
        let id = first.as_raw_document().get_document("cursor").and_then(|cursor| cursor.get_i64("id")).unwrap_or(0);
        Ok((Opened::after(after, way, (id, prefetch(cursor)), aside), token))
    }

    /// Opens a stream from now on, and leaves it.
    pub(super) async fn try_open(&self, cx: &Cx) -> Result<()> {
        self.cursor(&self.client.bounded(cx), &Start::Now, 0).await.map(drop).map_err(|refusal| self.refused(refusal))
    }

    pub(super) fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Described(error) => error,
            Refusal::Native(native) if Class::of(&native) == Class::Denied && self.view.scope == Scope::Cluster => {
                self.failure(native).remedy("grant the role readAnyDatabase on the database admin")
            }
            // Nothing but the pipeline was new to the server.
            Refusal::Native(native)
                if Class::of(&native) == Class::Other
                    && crate::error::code(&native).is_some()
                    && !self.view.pipeline.is_empty() =>
            {
                translate_pipeline(native, self.client.place())
            }
            Refusal::Native(native) => self.failure(native),
        }
    }
}

/// So many openings in a row have to be refused before a position counts as damaged.
const OPENINGS_REFUSED: u32 = 3;

/// The first of them has to lie so far back.
const REFUSED_FOR: Duration = Duration::from_secs(3);

/// The openings in a row that were refused at one position, while the server opened a stream elsewhere. Shared by all openings of a
/// stream.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Option<RefusedPosition>>);

#[derive(Debug)]
struct RefusedPosition {
    token: Vec<u8>,
    openings: u32,
    since: Moment,
}

impl Refusals {
    /// Notes a refused opening. Whether the position counts as damaged now.
    fn note(&self, token: &Token, now: Moment) -> bool {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = noted.take().filter(|before| before.token == token.data);
        let first = || RefusedPosition { token: token.data.clone(), openings: 0, since: now };
        let refused = noted.insert(before.unwrap_or_else(first));
        refused.openings += 1;
        refused.openings >= OPENINGS_REFUSED && now.since(refused.since) >= REFUSED_FOR
    }

    /// A position was taken.
    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Why a cursor was not opened.
pub(super) enum Refusal {
    Native(mongodb::error::Error),
    Described(Error),
}

impl Opened {
    fn after(token: &Token, way: ResumeStrategy, (id, batches): (i64, Batches), aside: bool) -> Self {
        let drop_through = way.goes_by_time(token).then(|| token.clone());
        let start_after = way.start_after && drop_through.is_none();
        let joiner = (way.shape == Shape::Split).then(Joiner::default);
        Self { batches, id, has_answered: false, drop_through, start_after, way, aside, joiner, is_past: false }
    }
}

/// The token after everything that a batch has seen.
pub(super) fn post_batch_token(batch: &RawBatch) -> Result<Token> {
    let cursor = batch.as_raw_document().get_document("cursor");
    let token = cursor.and_then(|cursor| cursor.get_document("postBatchResumeToken"));
    let missing = |error| {
        Error::config("the server tells no post-batch resume token").caused_by(error).remedy("use MongoDB 5.0 or newer")
    };
    Token::of(token.map_err(missing)?)
}

/// Reads the cursor in a task of its own: one batch waits there at most.
fn prefetch(mut cursor: RawBatchCursor) -> Batches {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok(permit) = sender.reserve().await {
            let next = tokio::select! {
                biased;
                () = sender.closed() => return,
                next = cursor.next() => next,
            };
            let Some(batch) = next else { return };
            let failed = batch.is_err();
            permit.send(batch);
            if failed {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_as_damaged_only_after_several_openings_over_several_seconds() {
        let at = |data: u8| {
            let mut token = Token::default();
            token.data.push(data);
            token
        };
        let second = |second: u64| Moment::from_nanos(second * 1_000_000_000);
        let refusals = Refusals::default();
        let noted: Vec<bool> = [0, 1, 2, 3].map(|at_s| refusals.note(&at(1), second(at_s))).to_vec();
        assert_eq!(noted, [false, false, false, true]);
        assert!(!refusals.note(&at(2), second(9)), "another position begins anew");
        assert!(!refusals.note(&at(2), second(19)), "two openings are too few, however far apart");
        assert!(refusals.note(&at(2), second(20)));
        refusals.forget();
        assert!(!refusals.note(&at(2), second(30)), "it was taken meanwhile");
    }
}
