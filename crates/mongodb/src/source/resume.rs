//! Keeping an open stream on its course: round what the server refuses, and back.

use std::sync::PoisonError;

use mongodb::bson::RawDocument;
use mongodb::error::Error as Native;
use mongodb::raw_batch_cursor::RawBatch;
use watchkeeper_core::{Cx, Error, Moment, Result};

use super::open::Opened;
use super::read::{Reader, Received};
use super::resume_strategy::{ResumeStrategy, Shape};
use crate::error::Class;
use crate::payload::damaged;

impl Reader {
    /// Goes round what was refused, and back to the straight way when all that was received by another needed none.
    pub(super) async fn keep_course(&mut self, cx: &Cx) -> Result<()> {
        if let Some(native) = self.refusal.clone() {
            self.go_round(cx, native).await?;
        }
        if self.received.is_none() && self.opened.is_past {
            let opened = self.feed.open_after(cx, self.at.clone()).await?;
            self.follow(opened);
        }
        Ok(())
    }

    /// Reads this cursor from now on, which was opened after what was handed out last.
    pub(super) fn follow(&mut self, opened: Opened) {
        self.moved = !opened.start_after;
        self.opened = opened;
        self.stall.forget_search();
        self.refusal = None;
    }

    /// Takes in an answer.
    pub(super) fn take_in(&mut self, batch: RawBatch, now: Moment) -> Result<()> {
        let mut received = Received::new(batch)?;
        self.stall.note_token(&received.end, now);
        (self.opened.has_answered, self.is_second_attempt) = (true, false);
        if let Some(joiner) = &mut self.opened.joiner {
            received = received.rejoined(joiner, &self.at)?;
        }
        self.opened.is_past = self.opened.way.shape == Shape::Reduced && !received.is_degraded()?;
        self.received = Some(received);
        Ok(())
    }

    /// Goes on by another way when the server refuses this one.
    ///
    /// # Errors
    /// What the refusal means, when there is no way round.
    async fn go_round(&mut self, cx: &Cx, native: Native) -> Result<()> {
        if Class::of(&native) == Class::Overrun && self.opened.has_answered {
            // Only opening again tells whether our own position is still there: this was about the cursor's.
            let error = self.feed.failure(native);
            return Err(Error::unavailable(error.message()).remedy("it is opened again; enlarge the oplog"));
        }
        let by_time = self.opened.way.by_time && self.opened.drop_through.is_some();
        let way = ResumeStrategy { shape: self.opened.way.shape, by_time, ..ResumeStrategy::after(&self.at) };
        // Before its first answer a cursor is opened once more: the error may pass, and the position may have been there when the
        // cursor was opened. A second refusal in a row is believed.
        let may_pass = matches!(Class::of(&native), Class::Overrun | Class::Other);
        let tries_again = may_pass && !self.opened.has_answered && !self.is_second_attempt;
        let way = if tries_again { way } else { self.feed.next_strategy(cx, way, &self.at, native).await? };
        let opened = self.feed.open_by(cx, self.at.clone(), way).await?;
        self.follow(opened);
        self.is_second_attempt |= tries_again;
        Ok(())
    }

    /// Remembers the last event as a proof of the history, where the oplog may not be read.
    pub(super) fn remember_history_proof(&mut self) {
        let token = &self.at;
        let mut lineage = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
        // A fragment is shown only by streams that split events.
        if lineage.mark.is_none() && !token.data.is_empty() && !token.split {
            lineage.proof = token.to_document().get_str("_data").ok().map(str::to_owned);
            self.renewed = true;
        }
    }
}

impl Received {
    /// Whether one of its events says that something is missing in it.
    fn is_degraded(&self) -> Result<bool> {
        for (start, end) in &self.events {
            let event = RawDocument::from_bytes(&self.bytes[*start..*end]).map_err(damaged)?;
            if event.get("degraded").map_err(damaged)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
