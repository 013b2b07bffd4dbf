//! The network between an instance and the servers: delays, losses, cuts, late effects.
//!
//! A request is carried by the world, not by the instance: it takes effect although the instance was
//! paused, killed or has given up waiting. That is where stale writers come from.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use watchkeeper_core::{Entropy, Error, Result};
use watchkeeper_testkit::World;

use crate::book::Book;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// Leases.
    Leases,
    /// Checkpoints, and the transactional sink.
    Checkpoints,
    /// Records.
    Records,
    /// The log.
    Source,
    /// The target.
    Target,
}

impl Server {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Leases, Self::Checkpoints, Self::Records, Self::Source, Self::Target];
}

/// How a server behaves for a while. Chances are in thousandths.
#[derive(Debug, Clone, Copy)]
pub struct FaultSchedule {
    /// The longest way there or back.
    pub delay_max: Duration,
    /// A request or its answer is lost.
    pub lost: u64,
    /// A request is refused before it takes effect.
    pub refused: u64,
    /// A request takes effect and is answered with an error.
    pub failed_after: u64,
}

impl FaultSchedule {
    /// As on a good day.
    pub const FAIR: Self = Self { delay_max: Duration::from_millis(4), lost: 0, refused: 0, failed_after: 0 };
}

/// The network of the whole world.
#[derive(Debug, Clone)]
pub struct Net {
    world: World,
    book: Book,
    entropy: Arc<Entropy>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    faults: BTreeMap<Server, FaultSchedule>,
    /// Cut lines, by instance and server; a count, since cuts may overlap.
    cut: BTreeMap<(usize, Server), u32>,
}

/// The lines of one instance.
#[derive(Debug, Clone)]
pub struct Lines {
    net: Net,
    instance: usize,
}

impl Net {
    /// A network in fair weather.
    pub fn new(world: World, book: Book, seed: u64) -> Self {
        Self { world, book, entropy: Arc::new(Entropy::seeded(seed)), state: Arc::default() }
    }

    /// The lines of instance number `instance`.
    pub fn lines(&self, instance: usize) -> Lines {
        Lines { net: self.clone(), instance }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the weather at a server.
    pub fn set_faults(&self, server: Server, faults: FaultSchedule) {
        self.state().faults.insert(server, faults);
    }

    /// Cuts or mends the line between an instance and a server.
    pub fn cut(&self, instance: usize, server: Server, is_cut: bool) {
        let mut state = self.state();
        let cuts = state.cut.entry((instance, server)).or_default();
        *cuts = if is_cut { *cuts + 1 } else { cuts.saturating_sub(1) };
    }

    /// Mends everything, in fair weather.
    pub fn heal(&self) {
        *self.state() = State::default();
    }

    fn chance(&self, thousandths: u64) -> bool {
        thousandths > 0 && self.entropy.below(1_000) < thousandths
    }

    fn delay(&self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        // Mostly quick, sometimes slow: the square of an even distribution.
        let even = self.entropy.below(1_001);
        Duration::from_micros(100 + micros * even * even / 1_000_000)
    }

    async fn sleep(&self, duration: Duration) {
        self.world.clock().sleep_until(self.world.now() + duration).await;
    }
}

impl Lines {
    /// Which instance.
    pub fn instance(&self) -> usize {
        self.instance
    }

    /// Whether the line to `server` is cut.
    pub fn is_cut(&self, server: Server) -> bool {
        self.net.state().cut.get(&(self.instance, server)).is_some_and(|cuts| *cuts > 0)
    }

    fn faults(&self, server: Server) -> FaultSchedule {
        self.net.state().faults.get(&server).copied().unwrap_or(FaultSchedule::FAIR)
    }

    /// A request to `server` that takes effect there. Without an answer it waits for ever, until the
    /// caller gives up.
    pub async fn call<T: Send + 'static>(
        &self,
        server: Server,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let lines = self.clone();
        self.net.world.spawn("request", async move { lines.carry(server, effect, answer).await });
        match answered.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    async fn carry<T>(
        self,
        server: Server,
        effect: impl Future<Output = Result<T>> + Send,
        answer: oneshot::Sender<Result<T>>,
    ) {
        let faults = self.faults(server);
        let net = &self.net;
        let there = net.delay(faults.delay_max);
        net.sleep(there).await;
        if self.is_cut(server) || net.chance(faults.lost) {
            return;
        }
        if net.chance(faults.refused) {
            let _ = answer.send(Err(Error::unavailable("refused")));
            return;
        }
        let outcome = effect.await;
        if net.chance(faults.failed_after) {
            net.book.count("effects then errors");
            let _ = answer.send(Err(Error::unknown("failed after the effect")));
            return;
        }
        let back = net.delay(faults.delay_max);
        net.sleep(back).await;
        if !self.is_cut(server) && !net.chance(faults.lost) {
            let _ = answer.send(outcome);
        }
    }

    /// A wait on the way to `server`, without an effect there; an error now and then.
    pub async fn approach(&self, server: Server) -> Result<()> {
        let faults = self.faults(server);
        self.net.sleep(self.net.delay(faults.delay_max)).await;
        while self.is_cut(server) {
            self.net.sleep(Duration::from_millis(50)).await;
        }
        if self.net.chance(faults.refused + faults.lost) {
            return Err(Error::unavailable("the connection was lost"));
        }
        Ok(())
    }
}
