//! Hints that something was written, by a tailable cursor on a small capped collection.
//!
//! A change stream would scan the whole oplog for this; a capped collection is read from memory, and only when something is
//! written into it. One cursor per client serves all who wait. Where a server has no such collections, everyone looks now and then.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{RawDocument, doc};
use mongodb::options::CursorType;
use tokio::sync::watch;
use watchkeeper_core::{Cx, Error, Result};

use super::{Client, schema};
use crate::error::CallPurpose;

const COLLECTION: &str = "watchkeeper_pulses";

/// A collection of this many hints; the first batch takes them all in.
const HINTS_MAX: u32 = 256;

/// How long the server holds back an answer when there is nothing to tell.
const AWAIT: Duration = Duration::from_secs(5);

/// How often everyone looks for itself where nobody can be told.
const POLL: Duration = Duration::from_secs(1);

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    Lease,
    Record,
}

impl Topic {
    fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Record => "record",
        }
    }
}

/// How often each topic was written since the cursor was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    leases: u64,
    records: u64,
}

impl Counts {
    fn of(&self, topic: Topic) -> u64 {
        match topic {
            Topic::Lease => self.leases,
            Topic::Record => self.records,
        }
    }

    fn add(&mut self, hint: &RawDocument) {
        match hint.get_str("topic") {
            Ok("lease") => self.leases += 1,
            _ => self.records += 1,
        }
    }
}

/// Follows one topic.
#[derive(Debug, Clone)]
pub(crate) struct ChangeHints {
    topic: Topic,
    seen: u64,
    counts: Arc<watch::Receiver<Counts>>,
}

/// The tail that a client's pulses share; it ends with the last of them.
#[derive(Debug, Default)]
pub(crate) struct Tail(Mutex<Weak<watch::Receiver<Counts>>>);

impl ChangeHints {
    /// Begins to follow: what is written from now on is a hint.
    pub(crate) async fn start(cx: &Cx, client: &Client, topic: Topic) -> Result<Self> {
        let tail = &client.tail;
        let kept = tail.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let counts = match kept.filter(|counts| counts.has_changed().is_ok()) {
            Some(counts) => counts,
            None => {
                let counts = Arc::new(follow(cx, client).await?);
                *tail.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&counts);
                counts
            }
        };
        let seen = counts.borrow().of(topic);
        Ok(Self { topic, seen, counts })
    }

    /// Forgets all hints so far.
    pub(crate) fn mark_seen(&mut self) {
        self.seen = self.counts.borrow().of(self.topic);
    }

    /// Waits for the next hint.
    ///
    /// # Cancel safety
    /// Cancel safe: a hint is seen only by an answer.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        let mut counts = watch::Receiver::clone(&self.counts);
        let (topic, seen) = (self.topic, self.seen);
        let changed = counts.wait_for(|counts| counts.of(topic) != seen).await.map(|counts| counts.of(topic));
        self.seen = changed.map_err(|_| Error::unavailable("the cursor that waits for hints has ended"))?;
        Ok(())
    }

    /// Whether no hint will come any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.counts.has_changed().is_err()
    }
}

/// Makes the collection, if it is missing, and makes sure that it can be followed. A tailable cursor on an empty one would end at
/// once, so it is never empty.
pub(super) async fn prepare(cx: &Cx, client: &Client) -> Result<()> {
    let create = doc! { "create": COLLECTION, "capped": true, "size": 65_536, "max": i64::from(HINTS_MAX) };
    schema::create(cx, client, create).await?;
    let some = client.read(cx, doc! { "find": COLLECTION, "limit": 1, "singleBatch": true }).await?;
    let batch = some.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    if batch.is_ok_and(Vec::is_empty) {
        client.write(cx, doc! { "insert": COLLECTION, "documents": [{ "topic": "made" }] }).await?.whole(client)?;
    }
    // Some make a collection without a limit instead of refusing it, and hints would fill it for ever.
    let tail = client.read(cx, doc! { "find": COLLECTION, "tailable": true, "batchSize": 1 }).await?;
    let cursor = tail.get_document("cursor").ok().and_then(|cursor| cursor.get_i64("id").ok());
    if let Some(cursor) = cursor.filter(|cursor| *cursor != 0) {
        client.read(cx, doc! { "killCursors": COLLECTION, "cursors": [cursor] }).await?;
    }
    Ok(())
}

/// Tells those who follow. Only a hint: whoever misses it looks for itself before long, so nobody waits for a majority
/// here, and a failure is passed over.
pub(crate) async fn publish(cx: &Cx, client: &Client, topic: Topic) {
    let hint = doc! { "insert": COLLECTION, "documents": [{ "topic": topic.name() }], "writeConcern": { "w": 1 } };
    let cx = client.bounded(cx).within(Duration::from_secs(1));
    if !client.can_tail(&cx).await.unwrap_or(false) {
        return;
    }
    let Ok(database) = client.database(&cx).await else { return };
    let insert =
        async { database.run_command(hint).await.map_err(|native| client.error(native, CallPurpose::Writing)) };
    let _ = cx.run(insert).await;
}

async fn follow(cx: &Cx, client: &Client) -> Result<watch::Receiver<Counts>> {
    let bounded = client.bounded(cx);
    if !client.can_tail(&bounded).await? {
        return Ok(poll(cx));
    }
    let cx = bounded;
    let database = client.database(&cx).await?;
    let batch = i32::try_from(HINTS_MAX).unwrap_or(i32::MAX);
    let find = doc! { "find": COLLECTION, "tailable": true, "awaitData": true, "batchSize": batch };
    let open = async {
        let cursor = database.run_cursor_command(find).cursor_type(CursorType::TailableAwait).max_time(AWAIT);
        let mut cursor = cursor.batch().await.map_err(|native| client.error(native, CallPurpose::Reading))?;
        // The first batch is what was written before: no news.
        if let Some(batch) = cursor.next().await {
            batch.map_err(|native| client.error(native, CallPurpose::Reading))?;
        }
        Ok(cursor)
    };
    let mut cursor = cx.run(open).await?;
    let (sender, receiver) = watch::channel(Counts::default());
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                biased;
                () = sender.closed() => return,
                next = cursor.next() => next,
            };
            // Dropping the sender tells those who wait that they have to look, and to begin anew.
            let Some(Ok(batch)) = next else { return };
            let Ok(hints) = batch.doc_slices() else { return };
            sender.send_if_modified(|counts| {
                let before = *counts;
                for hint in hints.into_iter().flatten() {
                    hint.as_document().into_iter().for_each(|hint| counts.add(hint));
                }
                *counts != before
            });
        }
    });
    Ok(receiver)
}

/// A hint on everything, again and again.
fn poll(cx: &Cx) -> watch::Receiver<Counts> {
    let (sender, receiver) = watch::channel(Counts::default());
    let cx = Cx::new(Arc::clone(cx.clock()));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = sender.closed() => return,
                () = cx.sleep(POLL) => {}
            }
            sender.send_modify(|counts| *counts = Counts { leases: counts.leases + 1, records: counts.records + 1 });
        }
    });
    receiver
}
