//! Standing by, for all streams of an instance at once.
//!
//! One task reads who holds what in one round trip, is woken by releases, expiries and proofs of death,
//! and asks only for what is free. Standing by is data, not a task per stream.

mod acquire;
mod death;
mod observe;
mod preference;
mod standby_slot;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{Error, Halted, InstanceId, Moment, Result, Task, TenureId, Verdict, Wakeups};

use crate::delivery::backoff::Backoff;
use crate::instance::Instance;
use crate::listener::{GrantedLease, ListenerState, Outcome, StreamSlot, Watch};
use crate::log_limit::span;
use crate::tenure::Loss;
use observe::LeaseObservation;
use standby_slot::StandbySlot;
pub(crate) use standby_slot::TENURE;

/// How soon a store that has not answered is asked again. Nobody tells when it is back, and a takeover may wait for it.
const ASK_AGAIN: Duration = Duration::from_millis(50);

type PeerCleanup = Pin<Box<dyn Future<Output = ()> + Send>>;
/// What became of reading the halt of the stream of this slot: `None` if it is not halted.
type Reading = Pin<Box<dyn Future<Output = (usize, Result<Option<Halted>>)> + Send>>;
type Watching = Pin<Box<dyn Future<Output = (InstanceId, Verdict)> + Send>>;

/// The standby of one instance.
pub struct Standby {
    instance: Arc<Instance>,
    slots: Vec<StandbySlot>,
    news: Arc<Notify>,
    shutdown: CancellationToken,
    /// Where tenures say that they have ended, and where that is heard.
    say_ended: mpsc::Sender<(usize, Outcome)>,
    ended: mpsc::Receiver<(usize, Outcome)>,
    watching: FuturesUnordered<Watching>,
    watched: BTreeSet<InstanceId>,
    /// Processes whose death was proved, and when. An id is never used by another process.
    dead: BTreeMap<InstanceId, Moment>,
    /// Those of them that are being removed from the registry.
    deregistering: FuturesUnordered<PeerCleanup>,
    /// Halts that only the control record tells of, and whose cause is being read.
    reading: FuturesUnordered<Reading>,
    /// How often in a row the store has not answered.
    setbacks: u32,
}

/// What woke a standby.
enum Wake {
    Shutdown,
    Ended(usize, Outcome),
    Verdict(InstanceId, Verdict),
    Released(Result<()>),
    News,
    Time,
}

impl Standby {
    /// A standby for `posts`.
    pub fn new(
        instance: Arc<Instance>,
        posts: &[Arc<StreamSlot>],
        news: Arc<Notify>,
        shutdown: CancellationToken,
    ) -> Self {
        let (say_ended, ended) = mpsc::channel(posts.len().max(1));
        Self {
            instance,
            slots: posts.iter().map(StandbySlot::new).collect(),
            news,
            shutdown,
            say_ended,
            ended,
            watching: FuturesUnordered::new(),
            watched: BTreeSet::new(),
            dead: BTreeMap::new(),
            deregistering: FuturesUnordered::new(),
            reading: FuturesUnordered::new(),
            setbacks: 0,
        }
    }

    /// Stands by until the shutdown, then waits for the tenures to end in order.
    pub async fn run(mut self) {
        let mut wakeups = None;
        while !self.shutdown.is_cancelled() {
            if wakeups.is_none() {
                // Before looking, so that no release falls between the look and the wait.
                wakeups = self.listen().await;
            }
            let is_deaf = wakeups.is_none() && self.instance.leases.profile().wakes;
            let LeaseObservation { next, failed } = self.observe_leases().await;
            let next = self.soon_again(next, is_deaf || failed);
            match self.wait(&mut wakeups, next).await {
                Wake::Shutdown => break,
                Wake::Ended(slot, outcome) => self.take_back(slot, outcome),
                Wake::Verdict(instance, verdict) => self.judge(instance, verdict),
                Wake::Released(Err(_)) => wakeups = None,
                Wake::News => self.slots.iter_mut().for_each(|slot| {
                    slot.stand_by_again();
                    slot.apply_retry_request();
                }),
                Wake::Released(Ok(())) | Wake::Time => {}
            }
        }
        while self.slots.iter().any(|slot| slot.running.is_some()) {
            let Some((slot, outcome)) = self.ended.recv().await else { return };
            self.take_back(slot, outcome);
        }
    }

    fn listen(&self) -> impl Future<Output = Option<Box<dyn Wakeups>>> + Send + use<> {
        let instance = Arc::clone(&self.instance);
        async move {
            if !instance.leases.profile().wakes {
                return None;
            }
            let cx = instance.cx();
            cx.run(instance.leases.wakeups(&cx)).await.ok()
        }
    }

    /// When to look again, if not before `next`: soon after a store has `failed` to answer, and then less and less soon.
    fn soon_again(&mut self, next: Moment, failed: bool) -> Moment {
        if !failed {
            self.setbacks = 0;
            return next;
        }
        let (floor, seams) = (self.instance.settings.retry_floor, &self.instance.seams);
        let delay = Backoff { first: ASK_AGAIN, factor: 2, max: floor }.delay(self.setbacks, &seams.entropy);
        self.setbacks += 1;
        next.min(seams.clock.now() + delay)
    }

    async fn wait(&mut self, wakeups: &mut Option<Box<dyn Wakeups>>, next: Moment) -> Wake {
        let cx = self.instance.seams.cx();
        let mut released = pin!(async {
            match wakeups {
                Some(wakeups) => wakeups.next(&cx).await,
                None => std::future::pending().await,
            }
        });
        loop {
            return tokio::select! {
                biased;
                () = self.shutdown.cancelled() => Wake::Shutdown,
                Some((slot, outcome)) = self.ended.recv() => Wake::Ended(slot, outcome),
                Some((instance, verdict)) = self.watching.next() => Wake::Verdict(instance, verdict),
                // Nothing to look for.
                Some(()) = self.deregistering.next() => continue,
                Some((slot, halted)) = self.reading.next() => {
                    self.slots[slot].take_halt(halted);
                    continue;
                }
                hint = &mut released => Wake::Released(hint),
                () = self.news.notified() => Wake::News,
                () = self.instance.seams.clock.sleep_until(next) => Wake::Time,
            };
        }
    }

    fn begin(&mut self, at: usize, lease_grant: GrantedLease) {
        let slot = &mut self.slots[at];
        // Never so: what is not connected is not asked for. The lease would expire.
        let Some(connected) = slot.stream_slot.connected().cloned() else { return };
        slot.begin(&self.instance, lease_grant.grant.epoch);
        slot.stream_slot.health.come_back();
        slot.stream_slot.publish(|status| status.holder = None);
        let watch =
            Watch::new(Arc::clone(&self.instance), Arc::clone(&slot.stream_slot), &connected, self.shutdown.clone());
        let ended = self.say_ended.clone();
        let (instance, stream_slot) = (Arc::clone(&self.instance), Arc::clone(&slot.stream_slot));
        let tenure = async move {
            let id = lease_grant.grant.tenure;
            let outcome = AssertUnwindSafe(watch.run(lease_grant)).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|panic| abandon_tenure(&instance, &stream_slot, id, &*panic));
            // Nobody listens only when the whole instance is gone.
            let _ = ended.send((at, outcome)).await;
        };
        slot.running = Some(Task::spawn(&*self.instance.seams.spawn, "tenure", tenure));
    }

    /// A tenure has ended.
    fn take_back(&mut self, at: usize, outcome: Outcome) {
        let now = self.instance.seams.clock.now();
        let settings = &self.instance.settings;
        let slot = &mut self.slots[at];
        let others = self.instance.view.has_healthy_peer(slot.stream_slot.name());
        slot.running = None;
        slot.is_left_alone = !others;
        if !matches!(outcome, Outcome::Barred(_) | Outcome::Halted(_)) {
            slot.stream_slot.health.end();
        }
        match outcome {
            // Whoever was asked to leave lets the others go first.
            Outcome::Released => slot.yielding = others.then(|| now + settings.lease.ttl),
            // Whoever was stuck lets the others go first, too.
            Outcome::Lost(Loss::Stalled) => {
                let alone = slot.stay_away_alone(now, settings.retry_floor, settings.bar);
                slot.stay_away_until(now + settings.bar, now + alone, now);
            }
            Outcome::Lost(_) => {}
            Outcome::Barred(error) => {
                let alone = slot.stay_away_alone(now, settings.retry_floor, settings.bar);
                let bar = if others { settings.bar } else { alone };
                if let Some(due) = slot.stream_slot.health.log_due("staying away", &error) {
                    let (stream, next_try_in, left_out) = (slot.stream_slot.name(), span(bar), due.left_out);
                    // The cause was logged when the watch was given up.
                    tracing::warn!(stream, next_try_in, left_out, "staying away from the stream for a while");
                }
                slot.stream_slot.go(ListenerState::Connecting, None, error.message());
                slot.stream_slot.publish(|status| status.last_error = Some(error.to_string()));
                slot.stream_slot.health.give_up(TENURE, &error);
                slot.stay_away_until(now + bar, now + alone, now);
            }
            Outcome::Halted(cause) => {
                slot.halt(now + settings.bar);
                slot.show_halt(&cause);
            }
        }
    }
}

/// A tenure panicked: it is renewed no more, so that another instance takes over when its lease expires.
fn abandon_tenure(
    instance: &Instance,
    stream_slot: &StreamSlot,
    tenure: TenureId,
    panic: &(dyn Any + Send),
) -> Outcome {
    instance.keeper.abandon(tenure);
    instance.held_tenures.remove(tenure);
    let error = Error::internal(format!("a tenure panicked: {}", panic_text(panic)));
    let report = || {
        tracing::error!(stream = stream_slot.name(), %error, "giving up the watch");
        stream_slot.go(ListenerState::Connecting, None, error.message());
    };
    // A subscriber of the application that panics, as where nobody reads its output any more, may be what the tenure panicked of. The
    // instance has to learn of the end all the same.
    let _ = catch_unwind(AssertUnwindSafe(report));
    Outcome::Barred(error)
}
