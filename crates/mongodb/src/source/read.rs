//! Reading an open cursor, batch by batch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mongodb::raw_batch_cursor::RawBatch;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Cx, Error, Limits, Moment, Operation, Position, Result, RowParts, SourceTime,
    Stage, Version, Window,
};

use super::Feed;
use super::event::{Event, Scratch, without_aside};
use super::open::{Opened, post_batch_token};
use super::pedigree::{SourceLineage, mark};
use super::snapshot::{Snapshot, has_passed};
use super::stall::StallDetector;
use crate::payload::scan::{ARRAY, Fields};
use crate::payload::{BsonPayload, canonical_key};
use crate::position::{Token, source_time};

/// How often the oplog is asked for an entry that proves whose positions these are.
const MARK_EVERY: Duration = Duration::from_secs(1);

/// About so many bytes has the key of a change together with its position, most of which is the token.
const INDEX_BYTES: usize = 160;

/// What was received and is not yet handed out.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    /// Where each event lies in the bytes.
    pub(super) events: Vec<(usize, usize)>,
    /// The numbers of those that were joined from fragments.
    pub(super) joined: Vec<usize>,
    pub(super) next: usize,
    /// The token after all of them.
    pub(super) end: Token,
}

/// The bytes of an answer, shared with the batches made of them.
pub(super) struct Answer(pub(super) RawBatch);

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        self.0.as_raw_document().as_bytes()
    }
}

impl Received {
    pub(super) fn new(batch: RawBatch) -> Result<Self> {
        let end = post_batch_token(&batch)?;
        let bytes = Bytes::from_owner(Answer(batch));
        let events = events_in(&bytes)?;
        Ok(Self { bytes, events, joined: Vec::new(), next: 0, end })
    }
}

/// Where each document of an answer's batch lies in its bytes.
pub(super) fn events_in(bytes: &Bytes) -> Result<Vec<(usize, usize)>> {
    let cursor = Fields::of(bytes)?.find(b"cursor")?.and_then(|cursor| cursor.document());
    let mut events = Vec::new();
    for field in Fields::of(cursor.ok_or_else(|| Error::corrupt("an answer has no cursor"))?)? {
        let field = field?;
        if field.kind != ARRAY || !matches!(field.name, b"firstBatch" | b"nextBatch") {
            continue;
        }
        for event in Fields::of(field.value)? {
            let Some(event) = event?.document() else { continue };
            // Both lie in the same bytes, so the difference of their addresses is the place.
            let start = event.as_ptr() as usize - bytes.as_ptr() as usize;
            events.push((start, start + event.len()));
        }
    }
    Ok(events)
}

/// An open stream.
pub(super) struct Reader {
    pub(super) feed: Feed,
    pub(super) opened: Opened,
    origin: Arc<str>,
    pub(super) scope: String,
    pub(super) received: Option<Received>,
    /// The token after what was handed out last.
    pub(super) at: Token,
    time: Option<SourceTime>,
    /// Whether an event came since the cursor was opened by `startAfter`, or was not opened so.
    pub(super) moved: bool,
    pub(super) invalidated: bool,
    pub(super) scratch: Scratch,
    snapshot: Option<Snapshot>,
    pub(super) lineage: Arc<Mutex<SourceLineage>>,
    /// Whether the next batch has to carry a pedigree.
    pub(super) renewed: bool,
    marked: Moment,
    pub(super) stall: StallDetector,
    /// Whether the cursor was opened because the one before it was refused before its first answer.
    pub(super) is_second_attempt: bool,
    /// What the server refused, until there is a way round: kept here, so that a dropped call does not forget it.
    pub(super) refusal: Option<mongodb::error::Error>,
}

impl Reader {
    pub(super) fn new(
        feed: Feed,
        opened: Opened,
        origin: Arc<str>,
        at: Token,
        lineage: SourceLineage,
        now: Moment,
    ) -> Self {
        let (scope, moved) = (feed.scope_name(), !opened.start_after);
        let lineage = Arc::new(Mutex::new(lineage));
        let (received, scratch, time) = (None, Scratch::default(), at.time());
        Self {
            feed,
            opened,
            origin,
            scope,
            received,
            at,
            time,
            moved,
            invalidated: false,
            scratch,
            snapshot: None,
            lineage,
            renewed: false,
            marked: now,
            stall: StallDetector::new(now),
            is_second_attempt: false,
            refusal: None,
        }
    }

    /// The same reader, joined to a snapshot.
    pub(super) fn joined_to(mut self, snapshot: Option<Snapshot>) -> Self {
        self.snapshot = snapshot;
        self
    }

    fn builder(&self) -> BatchBuilder {
        let payload = BsonPayload::showing(&self.feed.view);
        BatchBuilder::new(Arc::clone(&self.origin), Arc::new(payload))
    }

    fn end(&self) -> Position {
        self.at.position(self.snapshot.as_ref().map(Snapshot::progress), self.time)
    }

    /// Goes on to `token`, unless that lies before what the reader was opened after. It is not copied: what it gets back
    /// for it is worth nothing.
    fn go_to(&mut self, token: &mut Token, time: Option<SourceTime>) {
        if self.is_dropped(token) {
            return;
        }
        if token.data != self.at.data {
            std::mem::swap(&mut self.at, token);
            // Before the first event after an invalidate only `startAfter` is sure to go on.
            self.at.start_after |= !self.moved;
            self.time = time.or_else(|| self.at.time());
        }
    }

    fn is_dropped(&self, token: &Token) -> bool {
        self.opened.drop_through.as_ref().is_some_and(|through| token.data <= through.data)
    }

    /// Makes a batch of what was received; empty when all of it is dropped.
    fn hand_out(&mut self, limits: Limits) -> Result<Batch> {
        let Some(mut received) = self.received.take() else { return Ok(self.builder().finish(self.end())) };
        let made = self.fill(&mut received, limits);
        if received.next < received.events.len() {
            self.received = Some(received);
        }
        made
    }

    fn fill(&mut self, received: &mut Received, limits: Limits) -> Result<Batch> {
        let mut builder = self.builder();
        builder.reserve((received.events.len() - received.next).min(limits.rows), INDEX_BYTES);
        let aside = self.opened.aside;
        let (mut size, first) = (0, received.events.get(received.next).map_or(0, |event| event.0));
        let mut last = first;
        while let Some((start, end)) = received.events.get(received.next).copied() {
            if builder.len() >= limits.rows || (size >= limits.bytes && !builder.is_empty()) {
                break;
            }
            let raw = &received.bytes[start..end];
            let mut scratch = std::mem::take(&mut self.scratch);
            let event = Event::read(raw, aside)?;
            let head = scratch.take_up(&event, &self.scope)?;
            if self.reaches_the_range(&scratch.token) {
                break;
            }
            if self.feed.halts_at(&event) {
                if builder.is_empty() {
                    return Err(self.feed.too_large(&event, &scratch.description(head)));
                }
                // What comes before it is delivered first.
                break;
            }
            scratch.token.split = received.joined.contains(&received.next);
            received.next += 1;
            scratch.place(self.snapshot.as_ref().map(Snapshot::progress));
            if !self.is_wanted(&event, &scratch.token) {
                self.moved = true;
                self.go_to(&mut scratch.token, None);
            } else if !self.is_dropped(&scratch.token) {
                self.moved = true;
                self.invalidated = head.is_invalidate();
                self.opened.drop_through = None;
                if aside {
                    let body = without_aside(raw)?;
                    let parts = scratch.parts(head, &mut builder, &body);
                    builder.push(parts);
                } else {
                    let parts = scratch.parts(head, &mut builder, &[]);
                    builder.push_in_place(parts, start - first..end - first);
                }
                self.go_to(&mut scratch.token, Some(head.time()));
                size += end - start;
                last = end;
            }
            self.scratch = scratch;
        }
        if !builder.is_empty() {
            // Before going on to a token that is no event's.
            self.remember_history_proof();
        }
        if received.next == received.events.len() {
            if let Some(range) = self.snapshot.as_mut().and_then(|snapshot| snapshot.range.as_mut()) {
                range.caught_up |= has_passed(&received.end, range.at, received.events.is_empty());
            }
            self.go_to(&mut received.end, None);
        }
        let end = self.end();
        let batch =
            if aside { builder.finish(end) } else { builder.finish_over(received.bytes.slice(first..last), end) };
        Ok(self.stamped(batch))
    }

    /// Whether an event lies after the time of the range whose rows come next; those are then due.
    fn reaches_the_range(&mut self, token: &Token) -> bool {
        let Some(range) = self.snapshot.as_mut().and_then(|snapshot| snapshot.range.as_mut()) else { return false };
        let reaches = token.timestamp().is_some_and(|at| at > range.at);
        range.caught_up |= reaches;
        reaches
    }

    /// Whether an event is to be delivered while a snapshot runs.
    fn is_wanted(&self, event: &Event<'_>, token: &Token) -> bool {
        let Some(snapshot) = &self.snapshot else { return true };
        let Some((collection, id)) = event.subject() else { return true };
        token.timestamp().is_none_or(|at| snapshot.wants(collection, &id, at, event.is_delete()))
    }

    /// What a snapshot has to deliver before the stream goes on.
    async fn turn_of_the_snapshot(&mut self, cx: &Cx, limits: Limits) -> Result<Option<Batch>> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(None) };
        if self.received.is_none() && snapshot.is_over(&self.at) {
            let feed = snapshot.feed.clone();
            let opened = feed.open_after(cx, self.at.clone()).await?;
            self.follow(opened);
            (self.feed, self.snapshot) = (feed, None);
            return Ok(None);
        }
        if snapshot.range.is_none() && !snapshot.is_complete() {
            let mut range = snapshot.read(cx, &self.at).await?;
            // What was received is not yet delivered, so the stream has not passed it.
            range.caught_up &= self.received.is_none();
            snapshot.range = Some(range);
        }
        if snapshot.range.as_ref().is_some_and(|range| range.caught_up) {
            let batch = self.rows(limits)?;
            return Ok((!batch.is_empty()).then_some(batch));
        }
        Ok(None)
    }

    fn rows(&mut self, limits: Limits) -> Result<Batch> {
        let mut builder = self.builder();
        let database = self.feed.client.config().database().to_owned();
        while let Some(snapshot) = &mut self.snapshot {
            if builder.len() >= limits.rows || (builder.size() >= limits.bytes && !builder.is_empty()) {
                break;
            }
            let Some(row) = snapshot.take_row()? else { break };
            let (mut key, mut position) = (Vec::new(), Vec::new());
            canonical_key(&row.document_key()?, &mut key)?;
            self.at.encode(Some(snapshot.progress()), &mut position);
            let event = row.event(&database)?;
            let time = u64::from(row.at.time) << 32 | u64::from(row.at.increment);
            let namespace = builder.namespace(&format!("{database}.{}", row.name()));
            builder.push(RowParts {
                operation: Operation::Read,
                namespace,
                half: 0,
                committable: true,
                key: Some(&key),
                position: &position,
                body: event.as_bytes(),
                time: source_time(row.at),
                version: Version { time, ordinal: 0 },
            });
        }
        let end = self.end();
        Ok(self.stamped(builder.finish(end)))
    }

    /// Gives a batch the pedigree that was found since, if there is a fresher one.
    fn stamped(&mut self, mut batch: Batch) -> Batch {
        if self.renewed {
            batch.pedigree = Some(self.lineage.lock().unwrap_or_else(PoisonError::into_inner).to_pedigree());
        }
        batch
    }

    /// Looks for a proof of the position, beside the reading.
    fn mark(&mut self, cx: &Cx) {
        let Some(at) = self.at.timestamp() else { return };
        if cx.now().since(self.marked) < MARK_EVERY {
            return;
        }
        self.marked = cx.now();
        if self.lineage.lock().unwrap_or_else(PoisonError::into_inner).mark.is_none() {
            // This user may not read the oplog.
            return;
        }
        self.renewed = true;
        let (feed, lineage) = (self.feed.clone(), Arc::clone(&self.lineage));
        let cx = Cx::new(Arc::clone(cx.clock()));
        tokio::spawn(async move {
            // Without an answer the older proof stays; it is asked for again before long.
            let Ok(Some(entry)) = feed.entry_at(&cx, at).await else { return };
            if let Some(found) = mark(&entry) {
                lineage.lock().unwrap_or_else(PoisonError::into_inner).mark = Some(found);
            }
        });
    }

    /// Goes on after an invalidate, on whatever has this name next.
    async fn begin_anew(&mut self, cx: &Cx) -> Result<()> {
        let opened = self.feed.open_after(cx, self.at.clone()).await?;
        let mut lineage = self.feed.lineage(cx).await?;
        let mut current = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
        lineage.proof = current.proof.take().or(lineage.proof);
        *current = lineage;
        drop(current);
        self.follow(opened);
        (self.invalidated, self.renewed) = (false, true);
        Ok(())
    }
}

#[async_trait]
impl ChangeStream for Reader {
    fn position(&self) -> Option<Position> {
        Some(self.end())
    }

    fn stage(&self) -> Option<Stage> {
        self.stall.stage()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let until = cx.now() + limits.wait;
        loop {
            self.mark(cx);
            if self.invalidated && self.received.is_none() {
                // Before anything else is opened at this position: whatever is read from here on is of another collection.
                self.begin_anew(cx).await?;
            }
            self.keep_course(cx).await?;
            if let Some(rows) = self.turn_of_the_snapshot(cx, limits).await? {
                return Ok(rows);
            }
            if self.snapshot.as_ref().is_some_and(Snapshot::has_more) {
                continue;
            }
            if self.received.is_some() {
                let batch = self.hand_out(limits)?;
                if !batch.is_empty() {
                    return Ok(batch);
                }
                continue;
            }
            // Kept as soon as it is received, so a dropped call loses nothing.
            tokio::select! {
                biased;
                received = self.opened.batches.recv() => match received {
                    Some(Ok(batch)) => self.take_in(batch, cx.now())?,
                    Some(Err(native)) => self.refusal = Some(native),
                    None => return Err(Error::unavailable("the server ended the cursor").remedy("it is opened again")),
                },
                () = cx.clock().sleep_until(until) => {
                    self.stall.wait(cx.now(), limits.wait);
                    self.check_alive(cx).await?;
                    let (empty, end) = (self.builder(), self.end());
                    return Ok(self.stamped(empty.finish(end)));
                }
            }
        }
    }

    async fn acknowledge(&mut self, _cx: &Cx, _position: &Position) -> Result<()> {
        // The oplog prunes itself.
        Ok(())
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.feed.history(cx).await
    }

    async fn close(mut self: Box<Self>, _cx: &Cx) -> Result<()> {
        // The task that reads ends the cursor when nobody listens any more.
        self.opened.batches.close();
        Ok(())
    }
}
