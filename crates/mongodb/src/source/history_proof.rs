//! What the stream itself can tell about a position: whether its history is the same, and whether a collection's end is to come.
//!
//! Any user of a stream may ask this, also one who may not read the oplog. The server searches the oplog for the answer, which may take
//! longer than an opening may. The search then goes on, and the next opening waits for the same one.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use mongodb::bson::{Document, RawDocumentBuf, Timestamp, doc};
use mongodb::raw_batch_cursor::RawBatch;
use watchkeeper_core::{Cx, Error, ErrorKind, Result};

use super::Feed;
use super::open::{Batches, Start, post_batch_token};
use super::pedigree::{SourceLineage, restored};
use super::read::{Answer, events_in};
use super::view::{Before, Shown, View};
use crate::payload::damaged;
use crate::position::Token;

/// How much of the time that is left an event is searched for, so that the cause is told before the caller gives up.
const SEARCH_SHARE: f64 = 0.9;

impl Feed {
    /// The proof that came with the position that was verified last.
    pub(super) fn remembered(&self) -> Option<String> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn remember(&self, proof: Option<String>) {
        *self.proof.lock().unwrap_or_else(PoisonError::into_inner) = proof;
    }

    /// Looks for the event that was read last when the position was stored. After a restore it is gone.
    pub(super) async fn still_shown(&self, cx: &Cx, stored: &SourceLineage) -> Result<()> {
        let Some(proof) = &stored.proof else { return Ok(()) };
        let token = RawDocumentBuf::try_from(&doc! { "_data": proof }).map_err(damaged)?;
        let Some(at) = Token::of(&token)?.timestamp() else { return Ok(()) };
        match self.shows(cx, Start::At(at), doc! { "_id._data": proof }).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(restored()),
            // What has left the oplog cannot be looked up; that alone proves nothing.
            Err(error) if error.kind() == ErrorKind::PositionLost => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the stream will tell that the collection ended: it was dropped or renamed since, or another renamed over it.
    pub(super) async fn shows_the_end(&self, cx: &Cx, token: &Token) -> Result<bool> {
        // By the time: a server that is asked for ends only would not see the token's own event, and refuse it.
        let Some(at) = token.timestamp() else { return Ok(false) };
        self.shows(cx, Start::At(at), doc! { "operationType": "invalidate" }).await
    }

    /// Whether there is such an event from here on, whatever a pipeline makes of it.
    async fn shows(&self, cx: &Cx, start: Start, which: Document) -> Result<bool> {
        let allowed = cx.remaining().map_or(self.client.config().timeout, |left| left.mul_f64(SEARCH_SHARE));
        let found = self.search(&cx.within(allowed), start, which).await;
        found.map_err(|error| if error.is_late() { self.too_long_a_search(allowed, error) } else { error })
    }

    fn too_long_a_search(&self, allowed: Duration, error: Error) -> Error {
        let cause = format!(
            "{}: the oplog from the checkpoint on could not be searched within {:.1}s; the search goes on",
            self.client.place(),
            allowed.as_secs_f64()
        );
        Error::unavailable(cause)
            .remedy(
                "the next attempt waits for the same search; another instance begins its own, so raise timeouts.open of the stream if \
                 several take turns: the more has been written since its checkpoint, the longer it takes",
            )
            .caused_by(error)
    }

    async fn search(&self, cx: &Cx, start: Start, which: Document) -> Result<bool> {
        let mut search = match self.searches.take(&start, &which) {
            Some(search) => search,
            None => self.begin_search(cx, start, which).await?,
        };
        let found = self.next_of(cx, &mut search).await;
        if found.as_ref().is_err_and(Error::is_late) {
            self.searches.keep(search);
        }
        found
    }

    async fn begin_search(&self, cx: &Cx, start: Start, which: Document) -> Result<Search> {
        let view = View {
            pipeline: Vec::new(),
            full_document: Shown::Default,
            full_document_before_change: Before::Off,
            ..(*self.view).clone()
        };
        let mut feed = Self::new(self.client.clone(), view);
        feed.stages = feed.stages.iter().cloned().chain([doc! { "$match": which.clone() }]).collect();
        // What happens from now on is not searched for.
        let until = self.operation_time(cx).await?;
        // Without a first batch, so that the server searches for an answer that can be waited for again.
        let (opened, _) = feed.open_at_once(cx, start.clone()).await?;
        Ok(Search { start, which, until, batches: opened.batches })
    }

    /// Whether the search finds something.
    async fn next_of(&self, cx: &Cx, search: &mut Search) -> Result<bool> {
        loop {
            let batch = cx.run(async { Ok(search.batches.recv().await) }).await?;
            let batch = batch.ok_or_else(|| Error::unavailable("the server ended the cursor"))?;
            let batch = batch.map_err(|native| self.failure(native))?;
            let (end, is_last) = (post_batch_token(&batch)?.timestamp(), is_last(&batch));
            if !events_in(&Bytes::from_owner(Answer(batch)))?.is_empty() {
                return Ok(true);
            }
            // A router answers before all shards are through.
            if is_last || search.until.is_none_or(|until| end.is_some_and(|end| end >= until)) {
                return Ok(false);
            }
        }
    }
}

/// Whether the server has ended the cursor with this answer, as it does behind the end of a collection.
fn is_last(batch: &RawBatch) -> bool {
    let cursor = batch.as_raw_document().get_document("cursor");
    cursor.and_then(|cursor| cursor.get_i64("id")).is_ok_and(|id| id == 0)
}

/// A search of the oplog that the server has not ended yet.
struct Search {
    start: Start,
    which: Document,
    /// The newest operation when it began: what happens later is not searched for.
    until: Option<Timestamp>,
    batches: Batches,
}

impl Search {
    /// Whether nothing will come of it any more: its connection was lost, or the task that waits is gone.
    fn is_over(&self) -> bool {
        self.batches.is_closed() && self.batches.is_empty()
    }
}

/// The search that was not waited for any longer, if there is one. Shared by all openings of a stream: each attempt would otherwise
/// begin at the same position again, and take as long.
#[derive(Default)]
pub(super) struct Searches(Mutex<Option<Search>>);

impl Searches {
    /// The search that was left, if it is this one. Another one is ended.
    fn take(&self, start: &Start, which: &Document) -> Option<Search> {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        left.filter(|search| search.start == *start && search.which == *which && !search.is_over())
    }

    fn keep(&self, search: Search) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(search);
    }
}

impl std::fmt::Debug for Searches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Searches").finish_non_exhaustive()
    }
}
