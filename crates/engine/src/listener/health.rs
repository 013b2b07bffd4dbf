//! What of a stream does not work just now, and how far it is: what an instance tells the group of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use watchkeeper_core::{Clock, Error, Follower, Latest, Moment, Position, SourceTime, Stage};

use super::stream_slot::StreamStatus;
use crate::connect;
use crate::group::report::{StreamActivity, StreamReport, Trouble, millis};
use crate::log_limit::{Due, LogLimit, failing_for, span};
use crate::metrics;
use crate::pipeline::opening_state::OpeningState;

/// The health of a stream on one instance. It outlasts tenures and openings.
#[derive(Debug)]
pub struct Health {
    stream: Arc<str>,
    clock: Arc<dyn Clock>,
    /// Told when the report of the stream says something else.
    report_changed: Arc<Notify>,
    /// What people see of the stream on this instance.
    status: Latest<StreamStatus>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Parts of the work that fail, by name.
    failing: BTreeMap<String, Failing>,
    /// When what fails is tried again here.
    next_try: Option<Moment>,
    /// Until when it is left to other instances, if one of them can run it.
    left_to_others: Option<Moment>,
    limit: LogLimit,
    /// Where the stream stands, as this instance knows from its tenure.
    position: Option<Position>,
    /// The time of the newest change that is known of.
    newest: Option<SourceTime>,
    /// The opening under way.
    opening_state: Weak<OpeningState>,
    /// The time of the oldest change that was not delivered when an opening failed: it is read again.
    waiting: Option<SourceTime>,
    /// What the open source is busy with, which no position shows.
    stage: Option<Stage>,
    /// Since when the stream has not delivered. It outlasts whatever is tried meanwhile.
    outage: Option<Outage>,
    /// Since when other instances have reported that the stream does not deliver.
    heard: Option<Moment>,
    /// When the stream was last known to deliver, here or elsewhere, before something was heard of an outage.
    delivered: Option<Moment>,
    /// Another instance delivers it: what fails here is no outage of the stream.
    is_elsewhere: bool,
    /// Changes were read in this opening and no commit has followed yet.
    is_unconfirmed: bool,
    /// This opening has delivered, or had nothing to deliver.
    is_proven: bool,
}

/// A time in which the stream does not deliver.
#[derive(Debug)]
struct Outage {
    since: Moment,
    attempts: u64,
    /// The last error.
    error: String,
    /// Something of it was logged, so its end is logged too.
    is_logged: bool,
}

impl Inner {
    /// The outage under way, or one that begins now; it began earlier if other instances have reported so.
    fn outage(&mut self, now: Moment) -> &mut Outage {
        let since = self.heard.unwrap_or(now).min(now);
        self.outage.get_or_insert_with(|| Outage { since, attempts: 0, error: String::new(), is_logged: false })
    }

    /// An opening that has delivered nothing yet goes on with the outage that other instances have reported.
    fn inherit(&mut self, now: Moment) {
        if self.heard.is_some() && !self.is_proven {
            // The instance that reported it has logged it.
            self.outage(now).is_logged = true;
        }
    }

    /// The stream delivered at `moment`: whatever was wrong before is over. The answer is what was.
    fn recover(&mut self, moment: Moment) -> Option<Outage> {
        (self.heard, self.delivered) = (None, self.delivered.max(Some(moment)));
        self.outage.take()
    }

    fn log_failure(&mut self, stream: &str, part: &str, cause: &str, now: Moment) {
        // Whoever connects the stream logs that itself.
        if part == connect::PART {
            return;
        }
        let Some(due) = self.limit.due(cause, now) else { return };
        let failing = self.failing.values().map(|failing| failing.since);
        let since = failing.chain(self.outage.as_ref().map(|outage| outage.since)).min().unwrap_or(now);
        self.outage.iter_mut().for_each(|outage| outage.is_logged = true);
        let failing_for = failing_for(now.since(since));
        tracing::warn!(
            stream,
            part,
            failing_for,
            left_out = due.left_out,
            cause,
            "the stream does not deliver; trying again"
        );
    }
}

#[derive(Debug)]
struct Failing {
    error: String,
    since: Moment,
    /// When it failed last.
    last: Moment,
    attempts: u64,
}

impl Health {
    /// Nothing is known yet.
    pub fn new(stream: &str, clock: Arc<dyn Clock>, report_changed: Arc<Notify>) -> Self {
        let status = Latest::new(StreamStatus::new(stream));
        Self { stream: stream.into(), clock, report_changed, status, inner: Mutex::default() }
    }

    /// Follows what people see.
    pub(super) fn status(&self) -> Follower<StreamStatus> {
        self.status.follow()
    }

    /// Changes what people see. What does not work is part of it.
    pub(super) fn publish(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.status.change_if(|status| {
            let before = status.clone();
            change(status);
            status.trouble = self.trouble(status.state.is_on_watch());
            status.doing = StreamActivity::of(status.state, status.trouble.is_some());
            status.not_delivering = self.not_delivering();
            *status != before
        });
    }

    /// Shows how far the stream is behind now: no commit does that while nothing is delivered.
    pub(super) fn refresh(&self) {
        let (lag, before) = (self.behind(), self.status.get());
        match lag {
            Some(lag) => metrics::lag_seen(&self.stream, lag),
            // What is not known here any more is shown by whoever has the watch.
            None if before.lag.is_some() && !before.state.is_on_watch() => {
                metrics::lag_seen(&self.stream, Duration::ZERO);
            }
            None => {}
        }
        self.publish(|status| status.lag = lag);
    }

    /// How far the stream is behind, as far as this instance knows: behind the newest change that it knows of, by the age of the oldest
    /// change that waits, or since it has not been delivered.
    fn behind(&self) -> Option<Duration> {
        let not_delivering = self.not_delivering();
        if !self.status.get().state.is_on_watch() {
            return not_delivering;
        }
        let waiting = self.undelivered().max(not_delivering);
        // An opening that has shown nothing yet does not know what the source has.
        let is_proven = self.lock().is_proven;
        if is_proven { Some(self.lag().max(waiting).unwrap_or_default()) } else { waiting }
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
        if !inner.is_elsewhere {
            let outage = inner.outage(now);
            outage.attempts += 1;
            outage.error.clone_from(&text);
        }
        inner.log_failure(&self.stream, part, &text, now);
        drop(inner);
        if is_news {
            self.notify_change();
        }
    }

    /// `part` of the work succeeds.
    pub fn mark_recovered(&self, part: &str) {
        let mut inner = self.lock();
        // Asked for every write, so not looked up in an empty map.
        let was_failing = !inner.failing.is_empty() && inner.failing.remove(part).is_some();
        drop(inner);
        if was_failing {
            self.notify_change();
        }
    }

    /// Logs the end of an outage that was logged.
    fn log_recovery(&self, outage: &Outage, now: Moment) {
        if outage.is_logged {
            let after = span(now.since(outage.since));
            tracing::info!(stream = &*self.stream, after, "the stream delivers again");
        }
    }

    /// What fails in `part` of the work here is left to another instance, which has the watch now.
    pub fn leave_to_others(&self, part: &str) {
        let mut inner = self.lock();
        let was_failing = inner.failing.remove(part).is_some();
        drop(inner);
        if was_failing {
            self.notify_change();
        }
    }

    /// The tenure has ended: nothing of it is tried any more. If the stream did not deliver, it still does not.
    pub fn end(&self) {
        if !self.close().is_empty() {
            self.notify_change();
        }
    }

    /// The tenure was lost while nobody else had the lease: from now on the stream does not deliver, if it still did.
    pub(super) fn lose(&self) {
        let now = self.clock.now();
        // That the lease was not renewed was logged.
        self.lock().outage(now).is_logged = true;
    }

    /// The tenure has ended with a halt: from now on the stream does not deliver, if it still did.
    pub fn halt(&self) {
        self.close();
        let now = self.clock.now();
        let mut inner = self.lock();
        // The halt itself was logged.
        inner.outage(now).is_logged = true;
        drop(inner);
        self.notify_change();
    }

    /// People want nobody to run the stream: from now on it does not deliver, if it still did.
    pub(crate) fn pause(&self) {
        let (now, mut inner) = (self.clock.now(), self.lock());
        if inner.outage.is_some() {
            return;
        }
        // Whoever paused it knows.
        inner.outage(now);
        drop(inner);
        self.notify_change();
    }

    /// The tenure has ended since it could not go on here. What failed in it is what fails from now on, for as long and as often.
    pub fn give_up(&self, part: &str, error: &Error) {
        let before = self.close().into_values().min_by_key(|failing| failing.since);
        let (now, mut inner) = (self.clock.now(), self.lock());
        inner.failing.extend(before.map(|before| (part.to_owned(), before)));
        // That this instance gives up was logged, with the cause.
        let _ = inner.limit.is_due(&error.to_string(), now);
        drop(inner);
        self.fail(part, error);
        self.lock().outage.iter_mut().for_each(|outage| outage.is_logged = true);
    }

    /// Forgets what belongs to a tenure only: what failed in it.
    fn close(&self) -> BTreeMap<String, Failing> {
        let mut inner = self.lock();
        (inner.newest, inner.opening_state, inner.stage) = (None, Weak::new(), None);
        (inner.next_try, inner.left_to_others) = (None, None);
        std::mem::take(&mut inner.failing)
    }

    /// Notes when this instance tries again what fails, and until when it leaves it to others that can run it.
    pub fn stay_away(&self, next_try: Moment, left_to_others: Moment) {
        self.set_waits(Some(next_try), Some(left_to_others));
    }

    /// Notes that this instance stays away no longer.
    pub fn come_back(&self) {
        self.set_waits(None, None);
    }

    fn set_waits(&self, next_try: Option<Moment>, left_to_others: Option<Moment>) {
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.next_try, next_try);
        inner.left_to_others = left_to_others;
        drop(inner);
        // That it begins or ends is news, and that it ends sooner; a later moment can wait for the next heartbeat.
        if before.is_some() != next_try.is_some() || next_try < before {
            self.notify_change();
        }
    }

    /// Whether to log that `what` fails because of `error`: at most once a minute per cause.
    pub fn log_due(&self, what: &str, error: &Error) -> Option<Due> {
        let (now, mut inner) = (self.clock.now(), self.lock());
        let due = inner.limit.due(&format!("{what}: {error}"), now);
        if due.is_some() {
            inner.outage.iter_mut().for_each(|outage| outage.is_logged = true);
        }
        due
    }

    /// Whether to log that the stream goes to another state for this cause: while it does not deliver every attempt repeats the same ones.
    pub(super) fn should_log_state(&self, change: &str) -> bool {
        let (now, mut inner) = (self.clock.now(), self.lock());
        let is_repeated = inner.outage.as_ref().is_some_and(|outage| outage.attempts > 0) && !inner.is_proven;
        let is_due = inner.limit.is_due(change, now);
        is_due || !is_repeated
    }

    /// Whether the stream delivers, as far as this opening has shown.
    pub(super) fn is_recovered(&self) -> bool {
        self.lock().outage.is_none()
    }

    /// The report says something else.
    pub fn notify_change(&self) {
        self.publish(|_| {});
        self.report_changed.notify_one();
    }

    /// What failed last, since when the stream has not delivered or a part has failed, and how often that was tried. One cause may
    /// fail several parts in turn: a full disk fails a write, and then the reopening. An instance that `holds` the stream is in
    /// trouble until it delivers again, although every attempt begins with parts that do not fail yet.
    pub(super) fn trouble(&self, holds: bool) -> Option<Trouble> {
        let (now, inner) = (self.clock.now(), self.lock());
        let parts = || inner.failing.values();
        let outage = inner.outage.as_ref().filter(|outage| outage.attempts > 0 && (holds || !inner.failing.is_empty()));
        let since = parts().map(|failing| failing.since).chain(outage.map(|outage| outage.since)).min()?;
        let attempts =
            parts().map(|failing| failing.attempts).sum::<u64>().max(outage.map_or(0, |outage| outage.attempts));
        let last = parts().max_by_key(|failing| failing.last).map(|failing| &failing.error);
        let error = last.or_else(|| outage.map(|outage| &outage.error))?.clone();
        let until = |moment: Option<Moment>| moment.filter(|at| *at > now).map(|at| millis(at.since(now)));
        let (next_try_millis, left_to_others_millis) = (until(inner.next_try), until(inner.left_to_others));
        Some(Trouble {
            error,
            lasting_millis: millis(now.since(since)),
            attempts,
            next_try_millis,
            left_to_others_millis,
        })
    }

    /// For how long the stream has not delivered, if it does not.
    pub(super) fn not_delivering(&self) -> Option<Duration> {
        let (now, inner) = (self.clock.now(), self.lock());
        inner.outage.as_ref().map(|outage| now.since(outage.since))
    }

    /// Takes in what the other instances report of the stream, each with the age of the report.
    pub(super) fn merge_reports(&self, holds: bool, others: &[(StreamReport, Duration)]) {
        let (now, mut inner) = (self.clock.now(), self.lock());
        let delivers =
            |report: &StreamReport| report.doing == StreamActivity::Running && report.not_delivering_millis.is_none();
        let elsewhere = others.iter().filter(|(report, _)| !holds && delivers(report)).map(|(_, age)| now - *age).max();
        inner.is_elsewhere = elsewhere.is_some();
        let here = (holds && inner.is_proven && inner.outage.is_none()).then_some(now);
        if let Some(moment) = elsewhere.or(here) {
            // The instance that delivers logs it.
            let _ = inner.recover(moment);
            return;
        }
        let reported = |(report, age): &(StreamReport, Duration)| {
            report.not_delivering_millis.map(|span| now - (Duration::from_millis(span) + *age))
        };
        // What somebody reported before the stream delivered is over, although the report is still there.
        let oldest = others.iter().filter_map(reported).filter(|since| Some(*since) > inner.delivered).min();
        inner.heard = inner.heard.into_iter().chain(oldest).min();
        // Another instance delivered it when this part began to fail, and does not any more.
        let failing = inner.failing.values().map(|failing| failing.since).min();
        if let Some(failing) = failing.map(|since| Some(since).max(inner.delivered).unwrap_or(since)) {
            inner.outage(failing);
        }
        if holds {
            inner.inherit(now);
        }
        if let (Some(heard), Some(outage)) = (inner.heard, &mut inner.outage) {
            outage.since = outage.since.min(heard);
        }
    }

    /// An opening begins, after `position`. If that is another one than this instance knew, somebody has moved the stream on meanwhile.
    pub(super) fn begin(&self, position: Option<Position>, opening_state: Weak<OpeningState>) {
        let (now, mut inner) = (self.clock.now(), self.lock());
        if inner.position.is_some() && inner.position != position {
            (inner.waiting, inner.outage) = (None, None);
        }
        (inner.position, inner.newest, inner.opening_state, inner.stage) = (position, None, opening_state, None);
        (inner.is_elsewhere, inner.is_unconfirmed, inner.is_proven) = (false, false, false);
        inner.inherit(now);
    }

    /// The stream has committed `position`.
    pub(super) fn stand_at(&self, position: Position) {
        let (now, mut inner) = (self.clock.now(), self.lock());
        (inner.position, inner.waiting, inner.is_unconfirmed, inner.is_proven) = (Some(position), None, false, true);
        let outage = inner.recover(now);
        let still_fails = !inner.failing.is_empty();
        if still_fails {
            // What was committed had been written before: the rest is not delivered.
            let was_logged = outage.as_ref().is_some_and(|outage| outage.is_logged);
            inner.outage(now).is_logged = was_logged;
        }
        drop(inner);
        if let Some(outage) = outage {
            if !still_fails {
                self.log_recovery(&outage, now);
            }
            self.notify_change();
        }
    }

    /// The source was read. When it has nothing and nothing waits, the stream works again: no commit would show that.
    pub fn read(&self, has_changes: bool) {
        let (now, mut inner) = (self.clock.now(), self.lock());
        inner.is_unconfirmed |= has_changes;
        let is_idle = !inner.is_unconfirmed && inner.waiting.is_none() && inner.failing.is_empty();
        inner.is_proven |= is_idle;
        let outage = if is_idle { inner.recover(now) } else { None };
        drop(inner);
        if let Some(outage) = outage {
            self.log_recovery(&outage, now);
            self.notify_change();
        }
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
            self.notify_change();
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
        let oldest = self.oldest_undelivered()?;
        Some(Duration::from_millis(self.clock.wall_millis().saturating_sub(oldest.0)))
    }

    /// The source's time of the oldest change that was read and is not delivered.
    pub(super) fn oldest_undelivered(&self) -> Option<SourceTime> {
        let (opening_state, waiting) = {
            let inner = self.lock();
            (inner.opening_state.upgrade(), inner.waiting)
        };
        waiting.or_else(|| opening_state?.oldest_undelivered())
    }

    /// The source's time of the newest change that is known of.
    pub(super) fn newest(&self) -> Option<SourceTime> {
        let inner = self.lock();
        inner.newest.max(inner.position.as_ref().and_then(|position| position.time))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
