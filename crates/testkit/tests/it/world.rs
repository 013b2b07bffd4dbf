use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use watchkeeper_core::{Clock, Moment, Task};
use watchkeeper_testkit::{Stuck, World};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
struct RecordStore(Arc<Mutex<Vec<String>>>);

impl RecordStore {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Three tasks that sleep for random times, and what they did in order.
fn history(seed: u64) -> Vec<String> {
    let (world, notes) = (World::new(seed), RecordStore::default());
    for name in ["a", "b", "c"] {
        let (clock, entropy, notes) = (world.clock(), world.entropy(), notes.clone());
        world.spawn(name, async move {
            for round in 0..20 {
                clock.sleep_until(clock.now() + entropy.jitter(SECOND)).await;
                notes.add(format!("{name}{round} at {}", clock.now().nanos()));
            }
        });
    }
    world.run_for(60 * SECOND).unwrap();
    notes.all()
}

#[test]
fn the_same_seed_gives_the_same_history() {
    assert_eq!(history(7).len(), 60);
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}

#[test]
fn ready_tasks_run_in_the_order_of_their_waking() {
    let (world, notes) = (World::new(1), RecordStore::default());
    let start = Arc::new(Notify::new());
    for name in ["first", "second", "third"] {
        let (start, notes) = (Arc::clone(&start), notes.clone());
        world.spawn(name, async move {
            start.notified().await;
            notes.add(name);
        });
    }
    world.run_for(SECOND).unwrap();
    start.notify_waiters();
    world.run_until(|| notes.all().len() == 3).unwrap();
    assert_eq!(notes.all(), ["first", "second", "third"]);
}

#[test]
fn time_jumps_to_the_next_timer() {
    let world = World::new(1);
    let (clock, begin) = (world.clock(), world.now());
    world.block_on(clock.sleep_until(begin + 5 * SECOND)).unwrap();
    assert_eq!(world.now(), begin + 5 * SECOND);
}

#[test]
fn a_timer_that_nobody_waits_for_does_not_move_time() {
    let world = World::new(1);
    let (clock, begin) = (world.clock(), world.now());
    let stuck = world.block_on(async {
        let mut dropped = clock.sleep_until(begin + SECOND);
        assert!(futures_util::poll!(&mut dropped).is_pending());
        drop(dropped);
        std::future::pending::<()>().await;
    });
    assert_eq!(stuck, Err(Stuck::Deadlock(Vec::new())));
    assert_eq!(world.now(), begin);
}

#[test]
fn a_paused_node_is_not_polled_and_its_timers_fire_late() {
    let (world, notes) = (World::new(1), RecordStore::default());
    let node = world.node("n");
    let (clock, noted) = (node.clock(Duration::ZERO, 0), notes.clone());
    let begin = world.now();
    let job = async move {
        for _ in 0..3 {
            clock.sleep_until(clock.now() + SECOND).await;
            noted.add(format!("{:?}", clock.now().since(begin)));
        }
    };
    node.spawner().launch("ticks", Box::pin(job));
    world.run_for(SECOND).unwrap();
    node.pause();
    world.run_for(10 * SECOND).unwrap();
    assert!(node.is_paused());
    assert_eq!(notes.all(), ["1s"]);
    node.resume();
    world.run_for(10 * SECOND).unwrap();
    assert_eq!(notes.all(), ["1s", "11s", "12s"]);
}

/// Launches something and looks at the clock when it is dropped, as real guards do.
struct Meddler {
    world: World,
    node: watchkeeper_testkit::Node,
    notes: RecordStore,
    reported: Option<oneshot::Sender<()>>,
}

impl Drop for Meddler {
    fn drop(&mut self) {
        let notes = self.notes.clone();
        self.node.spawner().launch("late", Box::pin(async move { notes.add("ran after death") }));
        self.notes.add(format!("dropped at {}", self.world.now().nanos()));
        drop(self.reported.take());
    }
}

#[test]
fn a_killed_node_drops_its_tasks_at_once_and_launches_nothing_more() {
    let (world, notes) = (World::new(1), RecordStore::default());
    let node = world.node("n");
    let (sender, receiver) = oneshot::channel::<()>();
    let meddler = Meddler { world: world.clone(), node: node.clone(), notes: notes.clone(), reported: Some(sender) };
    node.spawner().launch(
        "holds",
        Box::pin(async move {
            let _held = meddler;
            std::future::pending::<()>().await;
        }),
    );
    world.run_for(SECOND).unwrap();
    node.kill();
    let dropped = format!("dropped at {}", world.now().nanos());
    assert_eq!(notes.all(), std::slice::from_ref(&dropped));
    assert!(world.block_on(receiver).unwrap().is_err(), "the sender was dropped with the task");
    world.run_for(SECOND).unwrap();
    assert_eq!(notes.all(), [dropped]);
    assert!(!node.is_alive());
}

#[test]
fn a_task_may_kill_its_own_node() {
    let world = World::new(1);
    let node = world.node("n");
    let own = node.clone();
    let mut task = Task::spawn(&*node.spawner(), "suicide", async move {
        own.kill();
        std::future::pending::<()>().await;
    });
    assert!(world.block_on(task.join()).unwrap().is_err());
}

#[test]
fn a_deadlock_is_reported_with_those_who_wait() {
    let world = World::new(1);
    let node = world.node("n");
    node.spawner().launch("never", Box::pin(std::future::pending()));
    assert_eq!(world.block_on(std::future::pending::<()>()), Err(Stuck::Deadlock(vec!["n/never".to_owned()])));
}

#[test]
fn limits_of_time_and_of_polls_end_a_run() {
    let world = World::new(1).limited_to(10 * SECOND).limited_to_polls(1000);
    let clock = world.clock();
    let too_long = world.block_on(clock.sleep_until(clock.now() + 11 * SECOND));
    assert_eq!(too_long, Err(Stuck::Time(10 * SECOND)));
    let spins = std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    });
    assert_eq!(world.block_on(spins), Err(Stuck::Polls(1000)));
}

fn shows(clock: &Arc<dyn Clock>, begin: Moment) -> Duration {
    clock.now().since(begin)
}

#[test]
fn clocks_have_an_offset_and_a_drift() {
    let world = World::new(1);
    let node = world.node("n");
    let begin = world.now();
    let (fast, slow) = (node.clock(5 * SECOND, 100_000), node.clock(Duration::ZERO, -100_000));
    world.run_for(100 * SECOND).unwrap();
    assert_eq!(shows(&fast, begin), 115 * SECOND);
    assert_eq!(shows(&slow, begin), 90 * SECOND);
    assert_eq!(fast.wall_millis() - slow.wall_millis(), 25_000);
}

#[test]
fn a_sleep_on_a_drifting_clock_ends_in_its_own_time_and_never_early() {
    let world = World::new(1);
    for rate_ppm in [-333_333, -7, 0, 7, 333_333] {
        let clock = world.node("n").clock(SECOND, rate_ppm);
        let until = clock.now() + Duration::from_nanos(1_234_567_891);
        world.block_on(clock.sleep_until(until)).unwrap();
        let late = clock.now().nanos().checked_sub(until.nanos()).expect("not early");
        assert!(late < 3, "{late} ns late at {rate_ppm} ppm");
    }
}

#[test]
fn ending_a_world_drops_its_tasks() {
    let world = World::new(1);
    let (sender, receiver) = oneshot::channel::<()>();
    world.spawn("holds", async move {
        let _held = sender;
        std::future::pending::<()>().await;
    });
    world.run_for(SECOND).unwrap();
    world.end();
    assert!(world.block_on(receiver).unwrap().is_err());
}
