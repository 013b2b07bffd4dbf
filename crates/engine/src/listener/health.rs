//! What of a stream does not work just now, and how far it is: what an instance tells the group of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use watchkeeper_core::{Clock, Error, Moment, Position, SourceTime, Stage};

use crate::connect;
use crate::group::report::{Trouble, millis};
use crate::log_limit::{LogLimit, failing_for};
use crate::pipeline::board::Board;

/// The health of a stream on one instance. It outlasts tenures and openings.
#[derive(Debug)]
pub struct Health {
    stream: Arc<str>,
    clock: Arc<dyn Clock>,
    /// Told when the report of the stream says something else.
    stirred: Arc<Notify>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Parts of the work that fail, by name.
    failing: BTreeMap<String, Failing>,
    /// When what fails is tried again, where this instance stays away until then.
    next_try: Option<Moment>,
    /// Since when something has failed without a break, if that was logged: then its end is logged too.
    logged_since: Option<Moment>,
    limit: LogLimit,
    /// Where the stream stands, as this instance knows from its tenure.
    position: Option<Position>,
    /// The time of the newest change that is known of.
    newest: Option<SourceTime>,
    /// The opening under way.
    board: Weak<Board>,
    /// The time of the oldest change that was not delivered when an opening failed: it is read again.
    waiting: Option<SourceTime>,
    /// What the open source is busy with, which no position shows.
    stage: Option<Stage>,
}

#[derive(Debug)]
struct Failing {
    error: String,
    since: Moment,
    /// When it failed last.
    last: Moment,
    attempts: u64,
}

impl Inner {
    fn log_failure(&mut self, stream: &str, part: &str, cause: &str, now: Moment) {
        // Whoever connects the stream logs that itself.
        if part == connect::PART || !self.limit.is_due(cause, now) {
            return;
        }
        let since = self.failing.values().map(|failing| failing.since).min().unwrap_or(now);
        self.logged_since.get_or_insert(since);
        let failing_for = failing_for(now.since(since));
        tracing::warn!(stream, part, failing_for, cause, "the stream does not deliver; trying again");
    }

    fn log_recovery(&mut self, stream: &str, now: Moment) {
        let Some(since) = self.logged_since.take() else { return };
        let failed_for = format!("{:?}", now.since(since));
        tracing::info!(stream, failed_for, "the stream delivers again");
    }
}

impl Health {
    /// Nothing is known yet.
    pub fn new(stream: &str, clock: Arc<dyn Clock>, stirred: Arc<Notify>) -> Self {
        Self { stream: stream.into(), clock, stirred, inner: Mutex::default() }
    }

    /// Counts a failure of `part` of the work, which is tried again.
    pub fn fail(&self, part: &str, error: &Error) {
        let (now, text) = (self.clock.now(), error.to_string());
        let mut inner = self.lock();
        let first = || Failing { error: String::new(), since: now, last: now, attempts: 0 };
        let failing = inner.failing.entry(part.to_owned()).or_insert_with(first);
        failing.attempts += 1;
        failing.last = now;
        // Another cause is news; that it fails again is not.
        let is_news = failing.error != text;
        failing.error.clone_from(&text);
        inner.log_failure(&self.stream, part, &text, now);
        drop(inner);
        if is_news {
            self.stir();
        }
    }

    /// `part` of the work succeeds.
    pub fn mend(&self, part: &str) {
        let mut inner = self.lock();
        // Asked for every write, so not looked up in an empty map.
        let was_failing = !inner.failing.is_empty() && inner.failing.remove(part).is_some();
        if was_failing && inner.failing.is_empty() {
            inner.log_recovery(&self.stream, self.clock.now());
        }
        drop(inner);
        if was_failing {
            self.stir();
        }
    }

    /// What fails in `part` of the work here is left to another instance, which has the watch now.
    pub fn leave_to_others(&self, part: &str) {
        let mut inner = self.lock();
        let was_failing = inner.failing.remove(part).is_some();
        if inner.failing.is_empty() {
            inner.logged_since = None;
        }
        drop(inner);
        if was_failing {
            self.stir();
        }
    }

    /// The tenure has ended: nothing of it is tried any more.
    pub fn end(&self) {
        let mut inner = self.lock();
        // What was logged a moment ago need not be logged again by the next tenure.
        let limit = std::mem::take(&mut inner.limit);
        let was = std::mem::replace(&mut *inner, Inner { limit, ..Inner::default() });
        drop(inner);
        if !was.failing.is_empty() {
            self.stir();
        }
    }

    /// The tenure has ended since it could not go on here. What failed in it is what fails from now on, for as long and as often.
    pub fn give_up(&self, part: &str, error: &Error) {
        let mut inner = self.lock();
        let (limit, logged_since) = (std::mem::take(&mut inner.limit), inner.logged_since);
        let kept = Inner { limit, logged_since, ..Inner::default() };
        let before = std::mem::replace(&mut *inner, kept).failing.into_values().min_by_key(|failing| failing.since);
        inner.failing.extend(before.map(|before| (part.to_owned(), before)));
        drop(inner);
        self.fail(part, error);
    }

    /// Notes until when this instance stays away from what fails.
    pub fn set_next_try(&self, next_try: Option<Moment>) {
        let mut inner = self.lock();
        // That it begins or ends is news; a later moment can wait for the next heartbeat.
        let is_news = std::mem::replace(&mut inner.next_try, next_try).is_some() != next_try.is_some();
        drop(inner);
        if is_news {
            self.stir();
        }
    }

    /// Whether to log that `what` fails because of `error`: at most once a minute per cause.
    pub fn should_log(&self, what: &str, error: &Error) -> bool {
        let now = self.clock.now();
        self.lock().limit.is_due(&format!("{what}: {error}"), now)
    }

    /// The report says something else.
    pub fn stir(&self) {
        self.stirred.notify_one();
    }

    /// What failed last, since when anything has failed, and how often. One cause may fail several parts in turn: a full disk fails a
    /// write, and then the reopening.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let (now, inner) = (self.clock.now(), self.lock());
        let parts = || inner.failing.values();
        let (last, since) = (parts().max_by_key(|failing| failing.last)?, parts().map(|failing| failing.since).min()?);
        let attempts = parts().map(|failing| failing.attempts).sum();
        let next_try = inner.next_try.filter(|next_try| *next_try > now).map(|next_try| millis(next_try.since(now)));
        let lasting_millis = millis(now.since(since));
        Some(Trouble { error: last.error.clone(), lasting_millis, attempts, next_try_millis: next_try })
    }

    /// An opening begins, after `position`.
    pub(super) fn begin(&self, position: Option<Position>, board: Weak<Board>) {
        let mut inner = self.lock();
        (inner.position, inner.newest, inner.board, inner.stage) = (position, None, board, None);
    }

    /// The stream has committed `position`.
    pub(super) fn stand_at(&self, position: Position) {
        let mut inner = self.lock();
        (inner.position, inner.waiting) = (Some(position), None);
    }

    /// Where the stream stands.
    pub(super) fn position(&self) -> Option<Position> {
        self.lock().position.clone()
    }

    /// The opening has failed, and so much of it was not delivered.
    pub fn leave(&self, oldest: Option<SourceTime>) {
        let mut inner = self.lock();
        inner.waiting = inner.waiting.or(oldest);
        inner.stage = None;
    }

    /// Notes what the open source is busy with, if it is not the changes.
    pub fn set_stage(&self, stage: Option<Stage>) {
        let mut inner = self.lock();
        // That it begins or ends is news; how far it is can wait for the next heartbeat.
        let is_news = inner.stage.is_some() != stage.is_some();
        inner.stage = stage;
        drop(inner);
        if is_news {
            self.stir();
        }
    }

    /// What the open source is busy with, if no position shows it.
    pub(super) fn stage(&self) -> Option<Stage> {
        self.lock().stage.clone()
    }

    /// There is a change of this time.
    pub fn see(&self, time: SourceTime) {
        let mut inner = self.lock();
        inner.newest = inner.newest.max(Some(time));
    }

    /// How far the stream is behind the newest change that is known of, by the source's clock.
    pub(super) fn lag(&self) -> Option<Duration> {
        let inner = self.lock();
        let at = inner.position.as_ref()?.time?;
        let newest = inner.newest.map_or(at.0, |newest| newest.0);
        Some(Duration::from_millis(newest.saturating_sub(at.0)))
    }

    /// How long ago the oldest change happened that was read and is not delivered, by both clocks.
    pub(super) fn undelivered(&self) -> Option<Duration> {
        let (board, waiting) = {
            let inner = self.lock();
            (inner.board.upgrade(), inner.waiting)
        };
        let oldest = waiting.or_else(|| board?.oldest_undelivered())?;
        Some(Duration::from_millis(self.clock.wall_millis().saturating_sub(oldest.0)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
