//! What the stream itself can tell about a position: whether its history is the same, and whether a collection's end is to come.
//!
//! Any user of a stream may ask this, also one who may not read the oplog.

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use watchkeeper_core::{Cx, Error, ErrorKind, Result};

use super::Feed;
use super::open::Start;
use super::pedigree::{Lineage, restored};
use super::read::{Answer, events_in};
use super::view::{Before, Shown, View};
use crate::payload::damaged;
use crate::position::Token;

/// How much of the time that is left an event is searched for, so that the cause is told before the caller gives up.
const SEARCH_SHARE: f64 = 0.9;

impl Feed {
    /// The proof that came with the position that was verified last.
    pub(super) fn remembered(&self) -> Option<String> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn remember(&self, witness: Option<String>) {
        *self.witness.lock().unwrap_or_else(PoisonError::into_inner) = witness;
    }

    /// Looks for the event that was read last when the position was stored. After a restore it is gone.
    pub(super) async fn still_shown(&self, cx: &Cx, stored: &Lineage) -> Result<()> {
        let Some(witness) = &stored.witness else { return Ok(()) };
        let token = RawDocumentBuf::try_from(&doc! { "_data": witness }).map_err(damaged)?;
        let Some(at) = Token::of(&token)?.timestamp() else { return Ok(()) };
        match self.shows(cx, Start::At(at), doc! { "_id._data": witness }).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(restored()),
            // What has left the oplog can not be looked up; that alone proves nothing.
            Err(error) if error.kind() == ErrorKind::PositionLost => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the stream will tell that the collection ended: it was dropped or renamed since, or another renamed over it.
    pub(super) async fn tells_of_the_end(&self, cx: &Cx, token: &Token) -> Result<bool> {
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
            "{}: the oplog from the checkpoint on could not be searched within {:.1}s",
            self.client.place(),
            allowed.as_secs_f64()
        );
        Error::unavailable(cause)
            .remedy("raise timeouts.open of the stream; the more has been written since its checkpoint, the longer it takes")
            .caused_by(error)
    }

    async fn search(&self, cx: &Cx, start: Start, which: Document) -> Result<bool> {
        let view = View {
            pipeline: Vec::new(),
            full_document: Shown::Default,
            full_document_before_change: Before::Off,
            ..(*self.view).clone()
        };
        let mut feed = Self::new(self.client.clone(), view);
        // The server stops at the first that it finds.
        feed.stages = feed.stages.iter().cloned().chain([doc! { "$match": which }]).collect();
        let mut cursor = feed.cursor(cx, &start, 1).await.map_err(|refusal| feed.refused(refusal))?;
        let first = cx.run(async { Ok(cursor.next().await) }).await?;
        let first = first.ok_or_else(|| Error::unavailable("the server ended the cursor"))?;
        let first = Bytes::from_owner(Answer(first.map_err(|native| feed.failure(native))?));
        Ok(!events_in(&first)?.is_empty())
    }
}
