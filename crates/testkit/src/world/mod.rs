//! A small world with a time of its own.
//!
//! Everything in it runs on the caller's thread, in an order that depends on nothing but the seed and
//! the tasks. When nobody has anything to do, time jumps to the next timer; when there is no timer
//! either, the world is [`Stuck`], and says who was waiting. There is no tokio runtime: whatever runs
//! here has to go through the seams `Clock` and `Spawn`.
//!
//! The world itself is never paused: servers and networks are its tasks. A [`Node`] is a process in it
//! which can be paused (as by SIGSTOP) or killed (as by SIGKILL) with all its tasks.

mod clock;
mod executor;
mod node;
mod stuck;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use watchkeeper_core::{Clock, Cx, Entropy, Moment};

use clock::NodeClock;
use executor::{Executor, Step};
pub use node::Node;
pub use stuck::Stuck;

/// A handle to the world; clones are the same world.
#[derive(Debug, Clone)]
pub struct World {
    executor: Arc<Executor>,
    entropy: Arc<Entropy>,
    limits: Bounds,
}

/// How far one run may go before it counts as stuck.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    time: Duration,
    polls: u64,
}

impl World {
    /// A new world. The same seed and the same tasks give the same history.
    pub fn new(seed: u64) -> Self {
        let limits = Bounds { time: Duration::from_secs(3600), polls: 10_000_000 };
        Self { executor: Arc::default(), entropy: Arc::new(Entropy::seeded(seed)), limits }
    }

    /// The same world, in which one run through this handle may take at most so much virtual time
    /// (by default one hour).
    #[must_use]
    pub fn limited_to(mut self, time: Duration) -> Self {
        self.limits.time = time;
        self
    }

    /// The same world, in which one run through this handle may poll at most so often (by default ten
    /// million times).
    #[must_use]
    pub fn limited_to_polls(mut self, polls: u64) -> Self {
        self.limits.polls = polls;
        self
    }

    /// The randomness of this world, from its seed.
    pub fn entropy(&self) -> Arc<Entropy> {
        Arc::clone(&self.entropy)
    }

    /// The true time.
    pub fn now(&self) -> Moment {
        Moment::from_nanos(self.executor.now())
    }

    /// A clock that shows the true time.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(NodeClock::new(Arc::clone(&self.executor), Duration::ZERO, 0))
    }

    /// A context on the true time, without a deadline.
    pub fn cx(&self) -> Cx {
        Cx::new(self.clock())
    }

    /// A new simulated process. The name is for people: a restarted process is a new node.
    pub fn node(&self, name: &str) -> Node {
        Node::new(Arc::clone(&self.executor), name)
    }

    /// Runs `job` as a task of the world itself, which is never paused.
    pub fn spawn(&self, name: &str, job: impl Future<Output = ()> + Send + 'static) {
        self.executor.add(name, None, Box::pin(job));
    }

    /// Runs the world until `future` is done. The future itself is of the world, so never paused.
    ///
    /// # Errors
    /// [`Stuck`] when it cannot be done any more, or is not done within the limits.
    ///
    /// # Panics
    /// When called from inside a task of this world, and when a task panics.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Stuck> {
        let run = self.executor.begin();
        let mut run_limits = self.start();
        let mut future = pin!(future);
        let waker = run.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
                return Ok(answer);
            }
            while self.proceed(&mut run_limits)? != Step::Main {}
        }
    }

    /// Runs the world until `condition` is true; it is asked before every step.
    ///
    /// # Errors
    /// As [`block_on`](Self::block_on).
    pub fn run_until(&self, mut condition: impl FnMut() -> bool) -> Result<(), Stuck> {
        let _run = self.executor.begin();
        let mut limits = self.start();
        while !condition() {
            self.proceed(&mut limits)?;
        }
        Ok(())
    }

    /// Runs the world up to `moment` of the true time, and lets that moment come even when nobody has
    /// anything to do.
    ///
    /// # Errors
    /// [`Stuck`] when there are too many polls.
    pub fn run_to(&self, moment: Moment) -> Result<(), Stuck> {
        let _run = self.executor.begin();
        let mut polls = 0;
        while self.executor.step(moment.nanos()) != Step::Idle {
            polls += 1;
            if polls > self.limits.polls {
                return Err(Stuck::Polls(self.limits.polls));
            }
        }
        self.executor.pass_to(moment.nanos());
        Ok(())
    }

    /// Runs the world for `duration` of the true time.
    ///
    /// # Errors
    /// As [`run_to`](Self::run_to).
    pub fn run_for(&self, duration: Duration) -> Result<(), Stuck> {
        self.run_to(self.now() + duration)
    }

    /// Drops all tasks. Tasks hold the clocks of their world and the world holds its tasks, so a
    /// program that makes many worlds ends each of them.
    pub fn end(&self) {
        self.executor.end();
    }

    fn start(&self) -> Running {
        Running { horizon: self.now() + self.limits.time, polls: 0 }
    }

    fn proceed(&self, running: &mut Running) -> Result<Step, Stuck> {
        running.polls += 1;
        if running.polls > self.limits.polls {
            return Err(Stuck::Polls(self.limits.polls));
        }
        match self.executor.step(running.horizon.nanos()) {
            Step::Idle if self.executor.has_timers() => Err(Stuck::Time(self.limits.time)),
            Step::Idle => Err(Stuck::Deadlock(self.executor.waiting())),
            step => Ok(step),
        }
    }
}

struct Running {
    horizon: Moment,
    polls: u64,
}
