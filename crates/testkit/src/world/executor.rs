use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};

use watchkeeper_core::spawn::Job;

use crate::lock;

/// Where true time begins: not at zero, so that moments before the beginning can be told.
pub(super) const ORIGIN_NANOS: u64 = 1_000_000_000_000;

/// Runs tasks in the order in which they were woken.
///
/// Wakers, jobs and answers are never dropped while the lock is held: their drops run code of others,
/// which may wake, launch or look at the clock.
#[derive(Debug)]
pub(super) struct Executor {
    state: Mutex<State>,
    running: AtomicBool,
}

#[derive(Debug)]
struct State {
    now: u64,
    /// Numbers for tasks and timers, never reused, so that a stale waker hits nothing.
    serial: u64,
    timers: BTreeMap<TimerKey, Waker>,
    tasks: BTreeMap<u64, Slot>,
    ready: VecDeque<u64>,
    nodes: Vec<Process>,
}

/// When a timer is due, and a number that keeps equal ones in the order of their making.
pub(super) type TimerKey = (u64, u64);

#[derive(Debug)]
struct Slot {
    name: String,
    node: Option<usize>,
    /// Whether it stands in `ready` or in the held list of its node.
    queued: bool,
    waker: Waker,
    work: Work,
}

enum Work {
    /// What `block_on` waits for; it is polled there.
    Main,
    /// `None` while it is being polled.
    Task(Option<Job>),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Main) { "Main" } else { "Task" })
    }
}

/// A simulated process.
#[derive(Debug)]
struct Process {
    name: String,
    alive: bool,
    paused: bool,
    /// Tasks that were woken during a pause.
    held: Vec<u64>,
}

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is the turn of what `block_on` waits for.
    Main,
    /// A task was polled.
    Polled,
    /// Time went on.
    Advanced,
    /// Nothing can be done before the horizon.
    Idle,
}

impl Default for Executor {
    fn default() -> Self {
        let state = State {
            now: ORIGIN_NANOS,
            serial: 0,
            timers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            ready: VecDeque::new(),
            nodes: Vec::new(),
        };
        Self { state: Mutex::new(state), running: AtomicBool::new(false) }
    }
}

impl Executor {
    pub(super) fn now(&self) -> u64 {
        lock(&self.state).now
    }

    /// Lets time pass to `moment` when nothing happens before.
    pub(super) fn pass_to(&self, moment: u64) {
        let mut state = lock(&self.state);
        state.now = state.now.max(moment);
    }

    /// Sets a timer, or replaces the waker of the one with this key.
    pub(super) fn set_timer(&self, at: u64, key: &mut Option<TimerKey>, waker: &Waker) {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        let key = *key.get_or_insert_with(|| (at, state.next_number()));
        let replaced = state.timers.insert(key, waker);
        drop(state);
        drop(replaced);
    }

    pub(super) fn clear_timer(&self, key: TimerKey) {
        let removed = lock(&self.state).timers.remove(&key);
        drop(removed);
    }

    pub(super) fn has_timers(&self) -> bool {
        !lock(&self.state).timers.is_empty()
    }

    /// Adds a task; dropped silently when its node is dead.
    pub(super) fn add(self: &Arc<Self>, name: &str, node: Option<usize>, job: Job) {
        let mut state = lock(&self.state);
        if node.is_some_and(|node| !state.nodes[node].alive) {
            drop(state);
            drop(job);
            return;
        }
        self.insert(&mut state, name, node, Work::Task(Some(job)));
    }

    fn insert(self: &Arc<Self>, state: &mut State, name: &str, node: Option<usize>, work: Work) -> u64 {
        let id = state.next_number();
        let waker = Waker::from(Arc::new(TaskWaker { executor: Arc::downgrade(self), id }));
        // A task has to be polled once to begin; `block_on` begins by itself.
        let queued = matches!(work, Work::Task(_));
        state.tasks.insert(id, Slot { name: name.to_owned(), node, queued, waker, work });
        if queued {
            state.ready.push_back(id);
        }
        id
    }

    /// Does the next thing there is to do, letting time go on at most to `horizon`.
    pub(super) fn step(&self, horizon: u64) -> Step {
        let turn = lock(&self.state).take_ready();
        match turn {
            Some(Turn::Main) => Step::Main,
            Some(Turn::Task(id, job, waker)) => {
                self.poll(id, job, &waker);
                Step::Polled
            }
            None if self.advance(horizon) => Step::Advanced,
            None => Step::Idle,
        }
    }

    fn poll(&self, id: u64, mut job: Job, waker: &Waker) {
        let done = job.as_mut().poll(&mut Context::from_waker(waker)).is_ready();
        let mut state = lock(&self.state);
        match state.tasks.get_mut(&id) {
            Some(slot) if !done => slot.work = Work::Task(Some(job)),
            // Done, or killed by what it did itself.
            _ => {
                let slot = state.tasks.remove(&id);
                drop(state);
                drop((job, slot));
            }
        }
    }

    fn advance(&self, horizon: u64) -> bool {
        let due = lock(&self.state).fire(horizon);
        let advanced = !due.is_empty();
        due.into_iter().for_each(Waker::wake);
        advanced
    }

    /// The names of the tasks that are left.
    pub(super) fn waiting(&self) -> Vec<String> {
        let state = lock(&self.state);
        let tasks = state.tasks.values().filter(|slot| matches!(slot.work, Work::Task(_)));
        tasks.map(|slot| state.describe(slot)).collect()
    }

    /// Begins a run, which ends when the answer is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Run {
        assert!(!self.running.swap(true, Ordering::AcqRel), "a world is not run from inside itself");
        let main = self.insert(&mut lock(&self.state), "main", None, Work::Main);
        Run { executor: Arc::clone(self), main }
    }

    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.nodes.iter_mut().for_each(|node| node.alive = false);
        let is_task = |slot: &Slot| matches!(slot.work, Work::Task(_));
        let (tasks, main) = std::mem::take(&mut state.tasks).into_iter().partition(|(_, slot)| is_task(slot));
        state.tasks = main;
        let dropped: (BTreeMap<u64, Slot>, _) = (tasks, std::mem::take(&mut state.timers));
        drop(state);
        drop(dropped);
    }

    pub(super) fn add_node(&self, name: &str) -> usize {
        let mut state = lock(&self.state);
        state.nodes.push(Process { name: name.to_owned(), alive: true, paused: false, held: Vec::new() });
        state.nodes.len() - 1
    }

    pub(super) fn node_name(&self, node: usize) -> String {
        lock(&self.state).nodes[node].name.clone()
    }

    pub(super) fn is_alive(&self, node: usize) -> bool {
        lock(&self.state).nodes[node].alive
    }

    pub(super) fn is_paused(&self, node: usize) -> bool {
        lock(&self.state).nodes[node].paused
    }

    pub(super) fn pause(&self, node: usize) {
        lock(&self.state).nodes[node].paused = true;
    }

    pub(super) fn resume(&self, node: usize) {
        let mut state = lock(&self.state);
        state.nodes[node].paused = false;
        let held = std::mem::take(&mut state.nodes[node].held);
        state.ready.extend(held);
    }

    pub(super) fn kill(&self, node: usize) {
        let mut state = lock(&self.state);
        state.nodes[node].alive = false;
        state.nodes[node].held.clear();
        let ids: Vec<_> = state.tasks.iter().filter(|(_, slot)| slot.node == Some(node)).map(|(id, _)| *id).collect();
        let dropped: Vec<_> = ids.iter().filter_map(|id| state.tasks.remove(id)).collect();
        drop(state);
        drop(dropped);
    }
}

enum Turn {
    Main,
    Task(u64, Job, Waker),
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// The next task in line that may be polled; those of paused nodes are put aside.
    fn take_ready(&mut self) -> Option<Turn> {
        loop {
            let id = self.ready.pop_front()?;
            let Some(slot) = self.tasks.get_mut(&id) else { continue };
            if let Some(node) = slot.node.filter(|node| self.nodes[*node].paused) {
                self.nodes[node].held.push(id);
                continue;
            }
            slot.queued = false;
            let Work::Task(job) = &mut slot.work else { return Some(Turn::Main) };
            // Without a job it panicked in an earlier run.
            if let Some(job) = job.take() {
                return Some(Turn::Task(id, job, slot.waker.clone()));
            }
        }
    }

    /// Moves time to the next timer, if that is not after `horizon`, and takes all that are due then.
    fn fire(&mut self, horizon: u64) -> Vec<Waker> {
        let Some((&(at, _), _)) = self.timers.first_key_value().filter(|((at, _), _)| *at <= horizon) else {
            return Vec::new();
        };
        self.now = self.now.max(at);
        let later = self.timers.split_off(&(self.now.saturating_add(1), 0));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }

    fn describe(&self, slot: &Slot) -> String {
        let Some(node) = slot.node.map(|node| &self.nodes[node]) else { return slot.name.clone() };
        let paused = if node.paused { " (paused)" } else { "" };
        format!("{}/{}{paused}", node.name, slot.name)
    }
}

/// A run in progress.
pub(super) struct Run {
    executor: Arc<Executor>,
    main: u64,
}

impl Run {
    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::new(TaskWaker { executor: Arc::downgrade(&self.executor), id: self.main }))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let slot = lock(&self.executor.state).tasks.remove(&self.main);
        drop(slot);
        self.executor.running.store(false, Ordering::Release);
    }
}

struct TaskWaker {
    executor: Weak<Executor>,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(executor) = self.executor.upgrade() else { return };
        let mut state = lock(&executor.state);
        let Some(slot) = state.tasks.get_mut(&self.id).filter(|slot| !slot.queued) else { return };
        slot.queued = true;
        state.ready.push_back(self.id);
    }
}
