//! Standing by, for all streams of an instance at once.
//!
//! One task reads who holds what in one round trip, is woken by releases, expiries and proofs of death,
//! and asks only for what is free. Standing by is data, not a task per stream.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{
    Acquired, Address, Ask, Epoch, Error, Holder, InstanceId, Moment, Result, Task, TenureId, Verdict, Wakeups,
};

use crate::group::election::rank;
use crate::group::registry::{Listed, Registry};
use crate::instance::Instance;
use crate::listener::{ListenerState, Outcome, Post, Relief, Watch};
use crate::settings::FastTakeover;
use crate::tenure::Loss;

/// Asks under way at once.
const ASKS: usize = 16;

/// Between the turns of two instances at a free lease: longer than an ask takes, too short to be felt.
const TURN: Duration = Duration::from_millis(10);

/// After so long everybody has had a turn.
const ALL_TURNS: Duration = Duration::from_millis(60);

/// A lease is looked at again so long after it may have expired.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// The last turn.
const TURNS_MAX: usize = 5;

/// One stream, as a standby sees it.
#[derive(Debug)]
struct Berth {
    post: Arc<Post>,
    running: Option<Task<()>>,
    /// An ask whose answer was lost: it is repeated for the same tenure.
    unanswered: Option<TenureId>,
    /// Not before this moment.
    barred: Option<Moment>,
    /// Not before this moment, unless another has had it meanwhile.
    yielding: Option<Moment>,
    halted: bool,
    /// Whether the control record says so, as last seen.
    hinted: bool,
    holder: Option<Holder>,
    /// Since when the lease has been left to a preferred instance.
    deferring: Option<Moment>,
    /// Since when it has been seen to be free.
    free_since: Option<Moment>,
    /// Who had it last.
    last: Option<InstanceId>,
}

/// A holder to break, and when its death was proved.
type Broken = (TenureId, Epoch, Moment);

type Watching = Pin<Box<dyn Future<Output = (InstanceId, Verdict)> + Send>>;

/// The standby of one instance.
pub struct Standby {
    instance: Arc<Instance>,
    berths: Vec<Berth>,
    news: Arc<Notify>,
    shutdown: CancellationToken,
    /// Where tenures say that they have ended, and where that is heard.
    say_ended: mpsc::Sender<(usize, Outcome)>,
    ended: mpsc::Receiver<(usize, Outcome)>,
    watching: FuturesUnordered<Watching>,
    watched: BTreeSet<InstanceId>,
    /// Processes whose death was proved, and when. An id is never used by another process.
    dead: BTreeMap<InstanceId, Moment>,
    /// The newest burial.
    burying: Option<Task<()>>,
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
    pub fn new(instance: Arc<Instance>, posts: &[Arc<Post>], news: Arc<Notify>, shutdown: CancellationToken) -> Self {
        let berth = |post: &Arc<Post>| Berth {
            post: Arc::clone(post),
            running: None,
            unanswered: None,
            barred: None,
            yielding: None,
            halted: false,
            hinted: false,
            holder: None,
            deferring: None,
            free_since: None,
            last: None,
        };
        let (say_ended, ended) = mpsc::channel(posts.len().max(1));
        Self {
            instance,
            berths: posts.iter().map(berth).collect(),
            news,
            shutdown,
            say_ended,
            ended,
            watching: FuturesUnordered::new(),
            watched: BTreeSet::new(),
            dead: BTreeMap::new(),
            burying: None,
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
            let next = self.look().await;
            match self.wait(&mut wakeups, next).await {
                Wake::Shutdown => break,
                Wake::Ended(berth, outcome) => self.take_back(berth, outcome),
                Wake::Verdict(instance, verdict) => self.judge(instance, verdict),
                Wake::Released(Err(_)) => wakeups = None,
                Wake::News => self.revive(),
                Wake::Released(Ok(())) | Wake::Time => {}
            }
        }
        while self.berths.iter().any(|berth| berth.running.is_some()) {
            let Some((berth, outcome)) = self.ended.recv().await else { return };
            self.take_back(berth, outcome);
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

    async fn wait(&mut self, wakeups: &mut Option<Box<dyn Wakeups>>, next: Moment) -> Wake {
        let cx = self.instance.seams.cx();
        let released = async {
            match wakeups {
                Some(wakeups) => wakeups.next(&cx).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Wake::Shutdown,
            Some((berth, outcome)) = self.ended.recv() => Wake::Ended(berth, outcome),
            Some((instance, verdict)) = self.watching.next() => Wake::Verdict(instance, verdict),
            hint = released => Wake::Released(hint),
            () = self.news.notified() => Wake::News,
            () = self.instance.seams.clock.sleep_until(next) => Wake::Time,
        }
    }

    /// Looks at all leases that could be had, asks for the free ones, and says when to look again.
    async fn look(&mut self) -> Moment {
        let now = self.instance.seams.clock.now();
        let floor = now + self.instance.seams.entropy.jitter(self.instance.settings.retry_floor);
        self.heed_hints(now);
        let wanted: Vec<usize> = (0..self.berths.len()).filter(|berth| self.is_wanted(*berth, now)).collect();
        if wanted.is_empty() {
            return floor;
        }
        let keys: Vec<_> = wanted.iter().map(|berth| self.berths[*berth].post.key.clone()).collect();
        let cx = self.instance.cx();
        let holders = match cx.run(self.instance.leases.holders(&cx, &keys)).await {
            Ok(holders) => holders,
            Err(error) => {
                tracing::debug!(%error, "the lease store did not answer a standby");
                return floor;
            }
        };
        let mut asks = Vec::new();
        let mut next = floor;
        for (berth, holder) in wanted.into_iter().zip(holders) {
            self.see(berth, holder.as_ref());
            match holder {
                // Nobody tells when another takes it; and whoever does not know the holder can not watch it.
                None if self.defers(berth, now) || self.yields(berth, now) => next = next.min(now + ALL_TURNS),
                None => match self.turn(berth, now) {
                    turn if turn <= now => asks.push((berth, None)),
                    turn => next = next.min(turn),
                },
                // Granted to us, though we were not told: asking again gives the same grant.
                Some(holder) if self.berths[berth].unanswered == Some(holder.candidate.tenure) => {
                    asks.push((berth, None));
                }
                Some(holder) => match self.may_break(berth, &holder) {
                    Some(broken) => asks.push((berth, Some(broken))),
                    None => {
                        next = next.min(now + holder.remaining + JUST_AFTER);
                        self.watch(&holder);
                    }
                },
            }
        }
        let asked: Vec<usize> = asks.iter().map(|(berth, _)| *berth).collect();
        self.ask_all(asks).await;
        // Somebody else was faster: its lease may expire, too.
        let faster = asked.iter().filter_map(|berth| self.berths[*berth].holder.as_ref());
        let soonest = faster.map(|holder| self.instance.seams.clock.now() + holder.remaining + JUST_AFTER).min();
        soonest.map_or(next, |soonest| next.min(soonest))
    }

    fn is_wanted(&self, berth: usize, now: Moment) -> bool {
        let berth = &self.berths[berth];
        let control = berth.post.control.get();
        let is_free = berth.barred.is_none_or(|barred| barred <= now);
        self.instance.view.has_place() && berth.running.is_none() && !control.paused && is_free
    }

    /// A hint that a stream is halted saves asking for it, for a while. It decides nothing: a hint may have
    /// been written late, after the stream was resumed.
    fn heed_hints(&mut self, now: Moment) {
        let bar = self.instance.settings.bar;
        for berth in &mut self.berths {
            let hinted = berth.post.control.get().halted_hint;
            if hinted && !std::mem::replace(&mut berth.hinted, hinted) && berth.running.is_none() {
                berth.halted = true;
                berth.barred = Some(now + bar);
            }
            berth.hinted = hinted;
        }
    }

    /// Whether the lease is left to a preferred instance, for a while.
    fn defers(&mut self, berth: usize, now: Moment) -> bool {
        let instance = &self.instance;
        let berth = &mut self.berths[berth];
        let preferred = berth.post.control.get().preferred.clone();
        let other = preferred.filter(|name| *name != instance.settings.name);
        if !other.is_some_and(|name| instance.view.has_healthy_named(&name)) {
            berth.deferring = None;
            return false;
        }
        let since = *berth.deferring.get_or_insert(now);
        now.since(since) < instance.settings.lease.ttl
    }

    /// Whether the lease is left to the others, since this instance was asked to leave.
    fn yields(&self, berth: usize, now: Moment) -> bool {
        self.berths[berth].yielding.is_some_and(|until| now < until)
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

    /// Notes who has the watch, and says so once.
    fn see(&mut self, berth: usize, holder: Option<&Holder>) {
        let berth = &mut self.berths[berth];
        let tenure = |holder: &Holder| holder.candidate.tenure;
        if berth.holder.as_ref().map(tenure) != holder.map(tenure) {
            if let Some(holder) = holder {
                let (stream, name) = (berth.post.name(), &holder.candidate.name);
                tracing::info!(stream, holder = name, epoch = holder.epoch.0, "standing by");
            }
            berth.post.tell(|status| status.holder = holder.map(|holder| holder.candidate.name.clone()));
        }
        if let Some(holder) = holder {
            berth.deferring = None;
            // Somebody has it, so nothing has to be left to anybody any more.
            berth.yielding = None;
            berth.free_since = None;
            berth.last = Some(holder.candidate.instance);
        }
        berth.holder = holder.cloned();
    }

    /// The holder to break, if it is proved dead and this stream allows it.
    fn may_break(&self, berth: usize, holder: &Holder) -> Option<Broken> {
        let proved = *self.dead.get(&holder.candidate.instance)?;
        let address = holder.candidate.address.as_ref()?;
        let allowed = match self.instance.settings.takeover {
            FastTakeover::Never => false,
            FastTakeover::Always => true,
            FastTakeover::WhereSafe => {
                let exposed = self.berths[berth].post.spec.grade().is_none_or(|grade| grade.is_exposed());
                !exposed || self.instance.seams.peers.is_local(address)
            }
        };
        allowed.then_some((holder.candidate.tenure, holder.epoch, proved))
    }

    /// Watches the process that holds, if it can be watched. One watch serves all its streams.
    fn watch(&mut self, holder: &Holder) {
        let candidate = &holder.candidate;
        let fast = self.instance.settings.takeover != FastTakeover::Never;
        let Some(address) = candidate.address.clone().filter(|_| fast) else { return };
        let is_me = candidate.instance == self.instance.id;
        if !is_me && !self.dead.contains_key(&candidate.instance) && self.watched.insert(candidate.instance) {
            let watch = watch(Arc::clone(&self.instance), candidate.instance, address, candidate.tenure);
            self.watching.push(Box::pin(watch));
        }
    }

    fn judge(&mut self, instance: InstanceId, verdict: Verdict) {
        self.watched.remove(&instance);
        if verdict == Verdict::Dead {
            tracing::info!(%instance, "a holder is proved dead");
            self.dead.insert(instance, self.instance.seams.clock.now());
            self.bury(instance);
        }
        // Those who hold nothing and are listed no more need not be remembered.
        let holding = self.berths.iter().filter_map(|berth| Some(berth.holder.as_ref()?.candidate.instance));
        let listed = self.instance.view.members().into_iter().map(|listed| listed.member.instance);
        let remembered: BTreeSet<_> = holding.chain(listed).collect();
        self.dead.retain(|dead, _| remembered.contains(dead) || *dead == instance);
    }

    /// Strikes a dead instance from the registry, so that nobody takes it for a standby until its silence is noticed.
    /// Beside the work, and without a second try: its record is swept some day.
    fn bury(&mut self, dead: InstanceId) {
        self.instance.view.forget(dead);
        let instance = Arc::clone(&self.instance);
        let strike = async move {
            let registry = Registry::new(Arc::clone(&instance.records), &instance.settings.group);
            let cx = instance.cx();
            if let Err(error) = cx.run(registry.deregister(&cx, dead)).await {
                tracing::debug!(%error, "a dead instance is still in the registry");
            }
        };
        self.burying = Some(Task::spawn(&*self.instance.seams.spawn, "burial", strike));
    }

    async fn ask_all(&mut self, asks: Vec<(usize, Option<Broken>)>) {
        let asks: Vec<_> = asks.into_iter().map(|(berth, broken)| self.prepare(berth, broken)).collect();
        let instance = Arc::clone(&self.instance);
        let mut answers = futures_util::stream::iter(asks)
            .map(|(berth, ask, proved)| {
                let instance = Arc::clone(&instance);
                async move {
                    let cx = instance.cx();
                    let sent = cx.now();
                    let answer = cx.run(instance.leases.try_acquire(&cx, &ask)).await;
                    (berth, ask.candidate.tenure, sent, proved, answer)
                }
            })
            .buffer_unordered(ASKS);
        while let Some((berth, tenure, sent, proved, answer)) = answers.next().await {
            self.answered(berth, tenure, sent, proved, answer);
        }
    }

    fn prepare(&mut self, berth: usize, broken: Option<Broken>) -> (usize, Ask, Option<Moment>) {
        let tenure = self.berths[berth].unanswered.take().unwrap_or_else(|| self.instance.seams.entropy.tenure());
        // Answered for from here on: a peer may see the grant in the store before this instance hears of it, and
        // one that was not answered would not ask again for a while.
        self.instance.roll.enter(tenure);
        let ask = Ask {
            key: self.berths[berth].post.key.clone(),
            candidate: self.instance.candidate(tenure),
            ttl: self.instance.settings.lease.ttl,
            floor: Epoch::ZERO,
            break_holder: broken.map(|(tenure, epoch, _)| (tenure, epoch)),
        };
        (berth, ask, broken.map(|(.., proved)| proved))
    }

    fn answered(
        &mut self,
        at: usize,
        tenure: TenureId,
        sent: Moment,
        proved: Option<Moment>,
        answer: Result<Acquired>,
    ) {
        match answer {
            Ok(Acquired::Granted { grant, previous }) => {
                let relief = Relief { grant, sent, previous, proved };
                self.begin(at, relief);
            }
            Ok(Acquired::Held(holder)) => {
                self.instance.roll.strike(tenure);
                self.see(at, Some(&holder));
                self.watch(&holder);
            }
            Err(error) => {
                tracing::debug!(stream = self.berths[at].post.name(), %error, "an ask was not answered");
                self.berths[at].unanswered = Some(tenure);
            }
        }
    }

    fn begin(&mut self, at: usize, relief: Relief) {
        let berth = &mut self.berths[at];
        berth.holder = None;
        berth.deferring = None;
        berth.free_since = None;
        berth.last = Some(self.instance.id);
        berth.post.tell(|status| status.holder = None);
        let watch = Watch::new(Arc::clone(&self.instance), Arc::clone(&berth.post), self.shutdown.clone());
        let ended = self.say_ended.clone();
        let (instance, post) = (Arc::clone(&self.instance), Arc::clone(&berth.post));
        let tenure = async move {
            let id = relief.grant.tenure;
            let outcome = AssertUnwindSafe(watch.run(relief)).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|panic| forsake(&instance, &post, id, &*panic));
            // Nobody listens only when the whole instance is gone.
            let _ = ended.send((at, outcome)).await;
        };
        berth.running = Some(Task::spawn(&*self.instance.seams.spawn, "tenure", tenure));
    }

    /// A tenure has ended.
    fn take_back(&mut self, at: usize, outcome: Outcome) {
        let now = self.instance.seams.clock.now();
        let settings = &self.instance.settings;
        let berth = &mut self.berths[at];
        let others = self.instance.view.has_healthy_peer(berth.post.name());
        berth.running = None;
        match outcome {
            // Whoever was asked to leave lets the others go first.
            Outcome::Released => berth.yielding = others.then(|| now + settings.lease.ttl),
            // Whoever was stuck lets the others go first, too.
            Outcome::Lost(Loss::Stalled) => berth.barred = Some(now + settings.bar),
            Outcome::Lost(_) => {}
            Outcome::Barred(error) => {
                let bar = if others { settings.bar } else { settings.retry_floor };
                tracing::warn!(stream = berth.post.name(), ?bar, %error, "staying away");
                berth.post.go(ListenerState::Connecting, None, error.message());
                berth.barred = Some(now + bar);
            }
            Outcome::Halted(cause) => {
                berth.halted = true;
                berth.barred = Some(now + settings.bar);
                berth.post.tell(|status| status.halted = true);
                berth.post.go(ListenerState::Stopped, None, &cause);
            }
        }
    }

    /// People want something else: what they resumed may be had again.
    fn revive(&mut self) {
        for berth in self.berths.iter_mut().filter(|berth| berth.halted) {
            if !berth.post.control.get().halted_hint {
                berth.halted = false;
                berth.barred = None;
                berth.post.revive();
            }
        }
    }
}

/// A tenure panicked: it is renewed no more, so that another instance takes over when its lease expires.
fn forsake(instance: &Instance, post: &Post, tenure: TenureId, panic: &(dyn Any + Send)) -> Outcome {
    instance.keeper.abandon(tenure);
    instance.roll.strike(tenure);
    let error = Error::internal(format!("a tenure panicked: {}", panic_text(panic)));
    post.tell(|status| status.last_error = Some(error.to_string()));
    post.go(ListenerState::Connecting, None, error.message());
    Outcome::Barred(error)
}

/// Watches a process until it is proved dead or nothing can be proved.
async fn watch(instance: Arc<Instance>, id: InstanceId, address: Address, tenure: TenureId) -> (InstanceId, Verdict) {
    let cx = instance.seams.cx();
    let verdict = instance.seams.peers.watch(&cx, &address, tenure).await.unwrap_or(Verdict::Unproven);
    if verdict == Verdict::Unproven {
        cx.sleep(instance.settings.retry_floor).await;
    }
    (id, verdict)
}
