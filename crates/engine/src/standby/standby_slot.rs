//! One stream, as a standby sees it.
//!
//! **Bar.** After a failure the instance leaves the stream to others for a while, but it still reads the leases and
//! watches the holder, so that it can take over from a holder that dies when the bar ends. If no other instance can
//! take the stream (instances that report that they stay away do not count), or none did for a TTL, it retries after a
//! shorter wait that doubles with each failure. So a single instance, or a group whose target was unreachable for all,
//! does not leave a stream idle. An operator's retry request ends the bar.
//!
//! **Yield.** An instance that was asked to leave lets others acquire first, for one TTL or until another one holds the
//! lease.
//!
//! **Hint.** `halted_hint` in the control record saves an acquire for the length of a bar. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Epoch, Halted, Holder, InstanceId, Moment, Result, Task, TenureId};

use super::preference::Preference;
use crate::connect::Connected;
use crate::instance::Instance;
use crate::listener::{ListenerState, StreamSlot};

/// What fails when a tenure could not go on here.
pub(crate) const TENURE: &str = "tenure";

/// One stream of a standby.
#[derive(Debug)]
pub(super) struct StandbySlot {
    pub(super) stream_slot: Arc<StreamSlot>,
    pub(super) running: Option<Task<()>>,
    /// An ask whose answer was lost: it is repeated for the same tenure.
    pub(super) unanswered: Option<TenureId>,
    /// Not before this moment, unless nobody else takes it.
    pub(super) barred: Option<Moment>,
    /// Not before this moment, whether anybody else takes it or not.
    retry_at: Option<Moment>,
    /// Nobody else could take it, or nobody did for a while.
    pub(super) is_left_alone: bool,
    /// For how long it left the stream alone after the last failure if nobody else went on, and since when it has had the watch again.
    pub(super) alone: Option<Duration>,
    pub(super) began: Option<Moment>,
    /// Not before this moment, unless another has had it meanwhile.
    pub(super) yielding: Option<Moment>,
    pub(super) halted: bool,
    /// The last resumption that was known when it was found halted.
    resumed: Option<Epoch>,
    /// How often people wanted it to be tried at once, as last seen.
    tries: u64,
    /// Whether the control record says so, as last seen.
    hinted: bool,
    /// The halt is known only from the control record, which does not tell its cause.
    needs_reading: bool,
    pub(super) holder: Option<Holder>,
    /// Since when the lease has been left to a preferred instance.
    pub(super) deferring: Option<Moment>,
    preference: Preference,
    /// Since when it has been seen to be free.
    pub(super) free_since: Option<Moment>,
    /// Who had it last.
    pub(super) last: Option<InstanceId>,
}

impl StandbySlot {
    pub(super) fn new(stream_slot: &Arc<StreamSlot>) -> Self {
        Self {
            stream_slot: Arc::clone(stream_slot),
            running: None,
            unanswered: None,
            barred: None,
            retry_at: None,
            is_left_alone: false,
            alone: None,
            began: None,
            yielding: None,
            halted: false,
            resumed: None,
            tries: stream_slot.control.get().tries,
            hinted: false,
            needs_reading: false,
            holder: None,
            deferring: None,
            preference: Preference::default(),
            free_since: None,
            last: None,
        }
    }

    /// Stays away from it until `barred`, but only until `retry_at` if nobody else takes it, and reports that it stays away.
    pub(super) fn stay_away_until(&mut self, barred: Moment, retry_at: Moment, now: Moment) {
        (self.barred, self.retry_at) = (Some(barred), Some(retry_at.min(barred)));
        self.show_waits(now);
    }

    /// Reports when the stream is tried again here, as far as it is known.
    fn show_waits(&self, now: Moment) {
        if let (Some(barred), Some(_)) = (self.barred, self.retry_at) {
            self.stream_slot.health.stay_away(self.bar(now).unwrap_or(now), barred);
        }
    }

    /// Stays away from it no longer.
    fn come_back(&mut self) {
        (self.barred, self.retry_at) = (None, None);
        self.stream_slot.health.come_back();
    }

    /// People want it to be tried at once: what kept this instance away may be repaired.
    pub(super) fn apply_retry_request(&mut self) {
        let tries = self.stream_slot.control.get().tries;
        if std::mem::replace(&mut self.tries, tries) < tries && !self.halted {
            self.come_back();
        }
    }

    /// Until when this instance stays away from it. After a failure others go first; where nobody else takes it, it is tried again as
    /// soon as if nobody else were there.
    pub(super) fn bar(&self, now: Moment) -> Option<Moment> {
        let others_go_first = self.halted || !self.is_left_alone;
        let until = if others_go_first { self.barred } else { self.retry_at };
        until.filter(|until| *until > now)
    }

    /// Notes whether anybody else could take the stream: nobody does who has not done so for the time of a lease.
    pub(super) fn note_others(&mut self, instance: &Instance, now: Moment) {
        let free = self.free_since.map_or(Duration::ZERO, |since| now.since(since));
        self.is_left_alone =
            free >= instance.settings.lease.ttl || !instance.view.has_healthy_peer(self.stream_slot.name());
        if self.running.is_none() && !self.halted {
            self.show_waits(now);
        }
    }

    /// While people want nobody to have it, nobody is waited for, and it does not deliver.
    pub(super) fn forget_waits_while_paused(&mut self) {
        if self.running.is_none() && self.stream_slot.control.get().paused {
            (self.yielding, self.deferring, self.free_since) = (None, None, None);
            self.stream_slot.health.pause();
        }
    }

    /// How long to stay away after a failure when nobody else can go on: from `floor`, and twice as long after each failure that came
    /// soon, up to `most`. What is wrong may soon be right again; but every attempt is another epoch. An attempt may take a while
    /// to fail, so soon is ten times the last wait.
    pub(super) fn stay_away_alone(&mut self, now: Moment, floor: Duration, most: Duration) -> Duration {
        let lasted = self.began.map_or(Duration::ZERO, |began| now.since(began));
        let wait = match self.alone.filter(|last| lasted <= (*last * 10).min(most)) {
            Some(last) => (last * 2).min(most),
            None => floor,
        };
        self.alone = Some(wait);
        wait
    }

    /// Whether it matters who holds it. Also to those who are barred, but for a while: they relieve a holder that dies
    /// meanwhile only if they have watched it. A halted stream has no holder worth watching, and one whose parts are not there
    /// cannot be run.
    pub(super) fn is_watched(&self, now: Moment) -> bool {
        let is_halted = self.halted && self.bar(now).is_some();
        self.stream_slot.connected().is_some()
            && self.running.is_none()
            && !self.stream_slot.control.get().paused
            && !is_halted
    }

    /// A hint that a stream is halted saves asking for it, for a while. It decides nothing: a hint may have
    /// been written late, after the stream was resumed.
    pub(super) fn apply_hint(&mut self, until: Moment) {
        let hinted = self.stream_slot.control.get().halted_hint;
        if hinted && !std::mem::replace(&mut self.hinted, hinted) && self.running.is_none() {
            self.halt(until);
            self.needs_reading = true;
        }
        self.hinted = hinted;
    }

    /// The parts of a stream whose halt is to be read now, if it is.
    pub(super) fn begin_reading(&mut self) -> Option<Arc<Connected>> {
        let connected = self.stream_slot.connected().filter(|_| self.needs_reading && self.halted)?;
        self.needs_reading = false;
        Some(Arc::clone(connected))
    }

    /// Takes in the halt that was read, or why it could not be: it is read again with the next look then.
    pub(super) fn take_halt(&mut self, read: Result<Option<Halted>>) {
        if !self.halted || self.running.is_some() {
            return;
        }
        match read {
            Ok(Some(halted)) => {
                let (stream, cause) = (self.stream_slot.name(), &*halted.cause);
                tracing::error!(stream, cause, "the stream is halted; no instance runs it until a person resumes it");
                self.show_halt(&halted.cause);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(stream = self.stream_slot.name(), %error, "the cause of a halt was not read");
                self.needs_reading = true;
            }
        }
    }

    /// Shows people that nobody may run it, and why.
    pub(super) fn show_halt(&mut self, cause: &str) {
        self.needs_reading = false;
        self.stream_slot.publish(|status| {
            status.halted = true;
            status.last_error = Some(cause.to_owned());
        });
        self.stream_slot.go(ListenerState::Stopped, None, cause);
        self.stream_slot.health.halt();
    }

    /// Leaves a halted stream alone until it is resumed, and for a while in any case.
    pub(super) fn halt(&mut self, until: Moment) {
        self.halted = true;
        // No `stay_away_until`: what people wait for is their own decision.
        self.barred = Some(until);
        self.resumed = self.stream_slot.control.get().resumed;
    }

    /// Notes who has the watch, and says so once.
    pub(super) fn see(&mut self, me: InstanceId, holder: Option<&Holder>, now: Moment) {
        let tenure = |holder: &Holder| holder.candidate.tenure;
        if self.holder.as_ref().map(tenure) != holder.map(tenure) {
            if let Some(holder) = holder {
                let (stream, name, epoch) = (self.stream_slot.name(), &holder.candidate.name, holder.epoch.0);
                match holder.candidate.instance == me {
                    // Its own release or claim was not answered: nobody has the watch.
                    true => tracing::info!(stream, epoch, "an own lease is still there; waiting for it to expire"),
                    false => tracing::info!(stream, holder = name, epoch, "standing by"),
                }
            }
            self.stream_slot.publish(|status| status.holder = holder.map(|holder| holder.candidate.name.clone()));
        }
        self.preference.apply(&self.stream_slot.control.get());
        match holder {
            None => drop(self.free_since.get_or_insert(now)),
            Some(holder) => {
                self.preference.note_holder(&holder.candidate.name, holder.epoch);
                if self.bar(now).is_none() {
                    // What failed here before is left to whoever has it now.
                    self.stream_slot.health.leave_to_others(TENURE);
                }
                self.deferring = None;
                // Somebody has it, so nothing has to be left to anybody any more.
                self.yielding = None;
                self.free_since = None;
                self.last = Some(holder.candidate.instance);
            }
        }
        self.holder = holder.cloned();
    }

    /// Whether the lease is left to others, at least for a while: this instance stays away from it, or was asked to leave,
    /// or another one is preferred.
    pub(super) fn is_left_to_others(&mut self, instance: &Instance, now: Moment) -> bool {
        let yields = self.yielding.is_some_and(|until| now < until);
        self.bar(now).is_some() || self.defers(instance, now) || yields
    }

    /// Whether the lease is left to a preferred instance, for a while.
    fn defers(&mut self, instance: &Instance, now: Moment) -> bool {
        let other = self.preference.name().filter(|name| *name != instance.settings.name);
        if !other.is_some_and(|name| instance.view.has_healthy_named(name)) {
            self.deferring = None;
            return false;
        }
        let since = *self.deferring.get_or_insert(now);
        now.since(since) < instance.settings.lease.ttl
    }

    /// This instance has it now, under `epoch`.
    pub(super) fn begin(&mut self, instance: &Instance, epoch: Epoch) {
        (self.holder, self.deferring, self.free_since) = (None, None, None);
        self.preference.apply(&self.stream_slot.control.get());
        self.preference.note_holder(&instance.settings.name, epoch);
        self.last = Some(instance.id);
        self.began = Some(instance.seams.clock.now());
    }

    /// People have resumed what was halted: it may be had again.
    pub(super) fn stand_by_again(&mut self) {
        let control = self.stream_slot.control.get();
        // A hint that came and went between two looks was never seen here.
        let is_resumed = !control.halted_hint || control.resumed > self.resumed;
        drop(control);
        if self.halted && is_resumed {
            self.halted = false;
            self.barred = None;
            self.stream_slot.stand_by_again();
        }
    }
}
