use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::clock::Clock;
use watchkeeper_core::error::Result;
use watchkeeper_core::spawn::{Job, MakeJob, Spawn};

use super::clock::NodeClock;
use super::executor::Executor;

/// A simulated process; clones are the same process.
#[derive(Debug, Clone)]
pub struct Node {
    executor: Arc<Executor>,
    index: usize,
}

impl Node {
    pub(super) fn new(executor: Arc<Executor>, name: &str) -> Self {
        let index = executor.add_node(name);
        Self { executor, index }
    }

    /// The name it was made with.
    pub fn name(&self) -> String {
        self.executor.node_name(self.index)
    }

    /// A clock that is ahead of the true time by `offset` and gains `rate_ppm` microseconds each
    /// second. It goes on during a pause, as a clock that includes suspend does.
    ///
    /// # Panics
    /// When it would stand still or go back.
    pub fn clock(&self, offset: Duration, rate_ppm: i64) -> Arc<dyn Clock> {
        Arc::new(NodeClock::new(Arc::clone(&self.executor), offset, rate_ppm))
    }

    /// Launches tasks that live and die with this process.
    pub fn spawner(&self) -> Arc<dyn Spawn> {
        Arc::new(self.clone())
    }

    /// Stops polling its tasks. Wake-ups are remembered, so timers seem to fire late.
    pub fn pause(&self) {
        self.executor.pause(self.index);
    }

    /// Goes on after a pause, in the order in which the tasks were woken.
    pub fn resume(&self) {
        self.executor.resume(self.index);
    }

    /// Drops all its tasks at once. What is launched later is dropped silently.
    pub fn kill(&self) {
        self.executor.kill(self.index);
    }

    /// Whether it was not killed.
    pub fn is_alive(&self) -> bool {
        self.executor.is_alive(self.index)
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.executor.is_paused(self.index)
    }
}

impl Spawn for Node {
    fn launch(&self, name: &str, job: Job) {
        self.executor.add(name, Some(self.index), job);
    }

    fn launch_apart(&self, name: &str, make: MakeJob) -> Result<()> {
        self.launch(name, make());
        Ok(())
    }
}
