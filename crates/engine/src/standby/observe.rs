//! Looks at all leases that could be had, in one round trip.
//!
//! Instances that could take a free lease take turns, 10 ms apart, in an order that all of them compute alike, without
//! the last holder. The store decides. An instance is woken by releases, by the expiry of a lease, by a proof of death,
//! by requests of operators and by the end of a bar, and looks at the latest after `retry_floor`. A store that did not
//! answer, or whose releases cannot be heard, is asked again after at most 50 ms, then less and less often.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Holder, Moment};

use super::Standby;
use super::acquire::Broken;
use crate::group::election::rank;

/// Between the turns of two instances at a free lease: longer than an ask takes, too short to be felt.
const TURN: Duration = Duration::from_millis(10);

/// After so long everybody has had a turn.
const ALL_TURNS: Duration = Duration::from_millis(60);

/// A lease is looked at again so long after it may have expired.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// The last turn.
const TURNS_MAX: usize = 5;

/// What a look came to.
pub(super) struct LeaseObservation {
    /// When to look again.
    pub(super) next: Moment,
    /// Whether the store has not answered something.
    pub(super) failed: bool,
}

impl Standby {
    /// Looks at all leases that could be had, asks for the free ones, and says when to look again.
    pub(super) async fn observe_leases(&mut self) -> LeaseObservation {
        let now = self.instance.seams.clock.now();
        let bar = now + self.instance.settings.bar;
        self.slots.iter_mut().for_each(|slot| {
            slot.apply_hint(bar);
            slot.forget_waits_while_paused();
        });
        self.read_halts();
        let mut next = now + self.instance.seams.entropy.jitter(self.instance.settings.retry_floor);
        let bars = self.slots.iter().filter(|slot| slot.running.is_none()).filter_map(|slot| slot.bar(now));
        // Nobody tells when a bar ends.
        next = bars.fold(next, Moment::min);
        let watched: Vec<usize> = (0..self.slots.len()).filter(|slot| self.slots[*slot].is_watched(now)).collect();
        if watched.is_empty() || !self.instance.view.has_place() {
            return LeaseObservation { next, failed: false };
        }
        let keys: Vec<_> = watched.iter().map(|slot| self.slots[*slot].stream_slot.key.clone()).collect();
        let cx = self.instance.cx();
        let holders = match cx.run(self.instance.leases.holders(&cx, &keys)).await {
            Ok(holders) => holders,
            Err(error) => {
                tracing::debug!(%error, "the lease store did not answer a standby");
                return LeaseObservation { next, failed: true };
            }
        };
        let mut asks = Vec::new();
        for (slot, holder) in watched.into_iter().zip(holders) {
            self.slots[slot].see(self.instance.id, holder.as_ref(), now);
            self.slots[slot].note_others(&self.instance, now);
            match self.decide(slot, holder, now) {
                LeaseDecision::Acquire(broken) => asks.push((slot, broken)),
                LeaseDecision::Wait(until) => next = next.min(until),
            }
        }
        let asked: Vec<usize> = asks.iter().map(|(slot, _)| *slot).collect();
        self.ask_all(asks).await;
        // Somebody else was faster: its lease may expire, too.
        let now = self.instance.seams.clock.now();
        let faster = asked.iter().filter_map(|slot| self.slots[*slot].holder.as_ref());
        let next = faster.map(|holder| now + holder.remaining + JUST_AFTER).fold(next, Moment::min);
        LeaseObservation { next, failed: asked.iter().any(|slot| self.slots[*slot].unanswered.is_some()) }
    }

    /// Begins to read the halts that only the control record tells of, for people to see: their checkpoints know the cause.
    fn read_halts(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let Some(connected) = slot.begin_reading() else { continue };
            let (instance, key) = (Arc::clone(&self.instance), slot.stream_slot.key.clone());
            self.reading.push(Box::pin(async move {
                let cx = instance.cx();
                let loaded = cx.run(connected.checkpoints.load(&cx, &key)).await;
                (at, loaded.map(|checkpoint| checkpoint.and_then(|checkpoint| checkpoint.halted)))
            }));
        }
    }

    /// Whether to ask for a lease that is held by `holder`, or until when to wait.
    fn decide(&mut self, at: usize, holder: Option<Holder>, now: Moment) -> LeaseDecision {
        let (instance, slot) = (&self.instance, &mut self.slots[at]);
        let Some(holder) = holder else {
            if slot.is_left_to_others(instance, now) {
                // Nobody tells when another takes it; and whoever does not know the holder cannot watch it.
                let free = slot.free_since.map_or(Duration::ZERO, |since| now.since(since));
                let often = free < instance.settings.lease.ttl;
                return LeaseDecision::Wait(now + if often { ALL_TURNS } else { instance.settings.retry_floor });
            }
            let turn = self.turn(at, now);
            return if turn <= now { LeaseDecision::Acquire(None) } else { LeaseDecision::Wait(turn) };
        };
        let is_barred = slot.bar(now).is_some();
        // Granted to us, though we were not told: asking again gives the same grant.
        if !is_barred && slot.unanswered == Some(holder.candidate.tenure) {
            return LeaseDecision::Acquire(None);
        }
        match self.may_break(at, &holder).filter(|_| !is_barred) {
            Some(broken) => LeaseDecision::Acquire(Some(broken)),
            None => {
                self.watch(&holder);
                LeaseDecision::Wait(now + holder.remaining + JUST_AFTER)
            }
        }
    }

    /// When it is this instance's turn to ask for a free lease. All compute the same order among those who
    /// are there, without whoever had it last or was proved dead, so that they do not all ask at once; the store decides.
    fn turn(&mut self, slot: usize, now: Moment) -> Moment {
        let me = self.instance.id;
        let (slot, dead) = (&mut self.slots[slot], &self.dead);
        let mut there = self.instance.view.able_to_run(slot.stream_slot.name());
        there.retain(|id| !dead.contains_key(id) && Some(*id) != slot.last);
        there.push(me);
        there.sort_unstable();
        there.dedup();
        let order = rank(slot.stream_slot.name(), &there);
        let place = order.iter().position(|id| *id == me).unwrap_or(0).min(TURNS_MAX);
        // Places are few and small.
        *slot.free_since.get_or_insert(now) + TURN * place as u32
    }
}

/// What to do about a lease.
enum LeaseDecision {
    /// Ask for it, and break this holder.
    Acquire(Option<Broken>),
    /// Look again at this moment.
    Wait(Moment),
}
