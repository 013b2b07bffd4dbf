//! Looks at all leases that could be had, in one round trip.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Holder, Moment};

use super::Standby;
use super::ask::Broken;
use crate::group::election::rank;
use crate::group::registry::Listed;

/// Between the turns of two instances at a free lease: longer than an ask takes, too short to be felt.
const TURN: Duration = Duration::from_millis(10);

/// After so long everybody has had a turn.
const ALL_TURNS: Duration = Duration::from_millis(60);

/// A lease is looked at again so long after it may have expired.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// The last turn.
const TURNS_MAX: usize = 5;

/// What a look came to.
pub(super) struct Looked {
    /// When to look again.
    pub(super) next: Moment,
    /// Whether the store has not answered something.
    pub(super) failed: bool,
}

impl Standby {
    /// Looks at all leases that could be had, asks for the free ones, and says when to look again.
    pub(super) async fn look(&mut self) -> Looked {
        let now = self.instance.seams.clock.now();
        let bar = now + self.instance.settings.bar;
        self.berths.iter_mut().for_each(|berth| {
            berth.heed_hint(bar);
            berth.forget_waits_while_paused();
        });
        self.read_halts();
        let mut next = now + self.instance.seams.entropy.jitter(self.instance.settings.retry_floor);
        let bars = self.berths.iter().filter(|berth| berth.running.is_none()).filter_map(|berth| berth.bar(now));
        // Nobody tells when a bar ends.
        next = bars.fold(next, Moment::min);
        let watched: Vec<usize> = (0..self.berths.len()).filter(|berth| self.berths[*berth].is_watched(now)).collect();
        if watched.is_empty() || !self.instance.view.has_place() {
            return Looked { next, failed: false };
        }
        let keys: Vec<_> = watched.iter().map(|berth| self.berths[*berth].post.key.clone()).collect();
        let cx = self.instance.cx();
        let holders = match cx.run(self.instance.leases.holders(&cx, &keys)).await {
            Ok(holders) => holders,
            Err(error) => {
                tracing::debug!(%error, "the lease store did not answer a standby");
                return Looked { next, failed: true };
            }
        };
        let mut asks = Vec::new();
        for (berth, holder) in watched.into_iter().zip(holders) {
            self.berths[berth].see(self.instance.id, holder.as_ref(), now);
            self.berths[berth].note_others(&self.instance, now);
            match self.weigh(berth, holder, now) {
                Weighed::Ask(broken) => asks.push((berth, broken)),
                Weighed::Wait(until) => next = next.min(until),
            }
        }
        let asked: Vec<usize> = asks.iter().map(|(berth, _)| *berth).collect();
        self.ask_all(asks).await;
        // Somebody else was faster: its lease may expire, too.
        let now = self.instance.seams.clock.now();
        let faster = asked.iter().filter_map(|berth| self.berths[*berth].holder.as_ref());
        let next = faster.map(|holder| now + holder.remaining + JUST_AFTER).fold(next, Moment::min);
        Looked { next, failed: asked.iter().any(|berth| self.berths[*berth].unanswered.is_some()) }
    }

    /// Begins to read the halts that only the control record tells of, for people to see: their checkpoints know the cause.
    fn read_halts(&mut self) {
        for (at, berth) in self.berths.iter_mut().enumerate() {
            let Some(connected) = berth.begin_reading() else { continue };
            let (instance, key) = (Arc::clone(&self.instance), berth.post.key.clone());
            self.reading.push(Box::pin(async move {
                let cx = instance.cx();
                let loaded = cx.run(connected.checkpoints.load(&cx, &key)).await;
                (at, loaded.map(|checkpoint| checkpoint.and_then(|checkpoint| checkpoint.halted)))
            }));
        }
    }

    /// Whether to ask for a lease that is held by `holder`, or until when to wait.
    fn weigh(&mut self, at: usize, holder: Option<Holder>, now: Moment) -> Weighed {
        let (instance, berth) = (&self.instance, &mut self.berths[at]);
        let Some(holder) = holder else {
            if berth.is_left_to_others(instance, now) {
                // Nobody tells when another takes it; and whoever does not know the holder can not watch it.
                let free = berth.free_since.map_or(Duration::ZERO, |since| now.since(since));
                let often = free < instance.settings.lease.ttl;
                return Weighed::Wait(now + if often { ALL_TURNS } else { instance.settings.retry_floor });
            }
            let turn = self.turn(at, now);
            return if turn <= now { Weighed::Ask(None) } else { Weighed::Wait(turn) };
        };
        let is_barred = berth.bar(now).is_some();
        // Granted to us, though we were not told: asking again gives the same grant.
        if !is_barred && berth.unanswered == Some(holder.candidate.tenure) {
            return Weighed::Ask(None);
        }
        match self.may_break(at, &holder).filter(|_| !is_barred) {
            Some(broken) => Weighed::Ask(Some(broken)),
            None => {
                self.watch(&holder);
                Weighed::Wait(now + holder.remaining + JUST_AFTER)
            }
        }
    }

    /// When it is this instance's turn to ask for a free lease. All compute the same order among those who
    /// are there, without whoever had it last or was proved dead, so that they do not all ask at once; the store decides.
    fn turn(&mut self, berth: usize, now: Moment) -> Moment {
        let me = self.instance.id;
        let members = self.instance.view.members();
        let (berth, dead) = (&mut self.berths[berth], &self.dead);
        let could = |listed: &&Listed| {
            let id = listed.member.instance;
            let is_there = listed.healthy && !dead.contains_key(&id);
            is_there && Some(id) != berth.last && listed.member.streams.iter().any(|it| it == berth.post.name())
        };
        let mut there: Vec<_> = members.iter().filter(could).map(|listed| listed.member.instance).collect();
        there.push(me);
        there.sort_unstable();
        there.dedup();
        let order = rank(berth.post.name(), &there);
        let place = order.iter().position(|id| *id == me).unwrap_or(0).min(TURNS_MAX);
        // Places are few and small.
        *berth.free_since.get_or_insert(now) + TURN * place as u32
    }
}

/// What to do about a lease.
enum Weighed {
    /// Ask for it, and break this holder.
    Ask(Option<Broken>),
    /// Look again at this moment.
    Wait(Moment),
}
