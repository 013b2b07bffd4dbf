//! Collections that take a name without a word, and events that prove a history.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{Timestamp, doc};
use watchkeeper_core::{Cx, Error, ErrorKind, Moment, Result};

use super::Feed;
use super::open::Start;
use super::pedigree::{Lineage, differ, replaced, restored};
use super::read::{Reader, events_in};
use super::view::{Before, Scope, Shown, View};
use crate::position::Token;

/// How often it is looked which collection has the watched name.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Another collection than the one that is read had the name at this time.
#[derive(Debug)]
struct Sighting {
    at: Timestamp,
}

/// Looks, beside the reading, whether another collection was renamed over the watched one: its stream is told nothing of it.
#[derive(Debug)]
pub(super) struct Lookout {
    looked: Moment,
    sighting: Arc<Mutex<Option<Sighting>>>,
}

impl Lookout {
    pub(super) fn new(now: Moment) -> Self {
        Self { looked: now, sighting: Arc::default() }
    }
}

impl Reader {
    /// Refuses to go on once the stream has passed a time at which another collection had the name, and has not told that the
    /// one it reads ended.
    ///
    /// # Errors
    /// `PositionLost`: what became of the documents is not known.
    pub(super) async fn look_out(&mut self, cx: &Cx) -> Result<()> {
        self.look(cx);
        let seen = self.lookout.sighting.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|seen| seen.at);
        let passed = seen.is_some_and(|seen| self.at.timestamp().is_some_and(|at| at > seen));
        if !passed || self.invalidated {
            return Ok(());
        }
        // Asked again: since then the stream may have told of an end, and have gone on with the next one.
        let now = self.feed.collection_uuid(cx).await?;
        *self.lookout.sighting.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let read = self.lineage.lock().unwrap_or_else(PoisonError::into_inner).collection.clone();
        if differ(&read, &now) { Err(replaced(&self.scope)) } else { Ok(()) }
    }

    fn look(&mut self, cx: &Cx) {
        let is_one = matches!(&self.feed.view.scope, Scope::Collections(names) if names.len() == 1);
        if !is_one || cx.now().since(self.lookout.looked) < LOOK_EVERY {
            return;
        }
        self.lookout.looked = cx.now();
        let (feed, lineage, sighting) =
            (self.feed.clone(), Arc::clone(&self.lineage), Arc::clone(&self.lookout.sighting));
        let cx = Cx::new(Arc::clone(cx.clock()));
        tokio::spawn(async move {
            // Without an answer it is looked again before long.
            let Ok(Some((uuid, at))) = feed.named_now(&cx).await else { return };
            let mut lineage = lineage.lock().unwrap_or_else(PoisonError::into_inner);
            match &lineage.collection {
                Some(read) if *read != uuid => {
                    // The first one stays, or a stream that lags would never pass it.
                    sighting.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Sighting { at });
                }
                Some(_) => {}
                // It was waited for.
                None => lineage.collection = Some(uuid),
            }
        });
    }
}

impl Feed {
    /// Looks for the event that was read last when the position was stored. After a restore it is gone.
    pub(super) async fn still_shown(&self, cx: &Cx, stored: &Lineage) -> Result<()> {
        let Some(witness) = &stored.witness else { return Ok(()) };
        let token = mongodb::bson::RawDocumentBuf::try_from(&doc! { "_data": witness });
        let token = token.map_err(crate::payload::damaged).and_then(|token| Token::of(&token))?;
        let Some(at) = token.timestamp() else { return Ok(()) };
        match self.shows(cx, witness, at).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(restored()),
            // What has left the oplog can not be looked up; that alone proves nothing.
            Err(error) if error.kind() == ErrorKind::PositionLost => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether there is an event with this token at this time, whatever a pipeline makes of it.
    async fn shows(&self, cx: &Cx, token: &str, at: Timestamp) -> Result<bool> {
        let cx = self.client.bounded(cx);
        let view = View {
            pipeline: Vec::new(),
            full_document: Shown::Default,
            full_document_before_change: Before::Off,
            ..(*self.view).clone()
        };
        let mut feed = Self::new(self.client.clone(), view);
        // The server stops at the one that is found.
        let only = doc! { "$match": { "_id._data": token } };
        feed.stages = feed.stages.iter().cloned().chain([only]).collect();
        let cursor = feed.cursor(&cx, &Start::At(at), 1).await;
        let mut cursor = cursor.map_err(|refusal| feed.refused(refusal))?;
        let first = cx.run(async { Ok(cursor.next().await) }).await?;
        let first = first.ok_or_else(|| Error::unavailable("the server ended the cursor"))?;
        let first = first.map_err(|native| feed.failure(native))?;
        let bytes = bytes::Bytes::from_owner(super::read::Answer(first));
        Ok(!events_in(&bytes)?.is_empty())
    }
}
