//! Real threads and real time: a handler that blocks its thread does not stop the renewal, and does not
//! keep the watch for ever.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use watchkeeper_core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper_core::{
    BootClock, Change, CheckpointStore, Cx, Entropy, LeaseStore, Operation, SourceTime, StartAt, StoreIdentity,
};
use watchkeeper_engine::delivery::{HandlerSettings, ObserverExecutor, Operations, Routes, handler};
use watchkeeper_engine::group::journal::{Cause, Journal};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, LeaseSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_testkit::faults::{FaultyLeases, Script};

use crate::support::{MILLI, SECOND, key_of, memory};

/// Short enough to test, long enough for a busy machine.
const TTL: Duration = Duration::from_millis(1_500);

/// How long anything may take before a test has failed.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Servers {
    leases: Leases,
    checkpoints: Checkpoints,
    notes: RecordStore,
    log: Log,
}

impl Servers {
    fn new() -> Self {
        let clock = Arc::new(BootClock);
        let log = Log::new("log");
        let (namespace, key, body) = ("orders".to_owned(), Some("k".into()), "{}".into());
        let change = NewChange { operation: Operation::Insert, namespace, key, body, first_half: false };
        log.append(change, SourceTime(1));
        let identity = StoreIdentity(Entropy::from_system().uuid());
        Self {
            leases: Leases::new(Arc::<BootClock>::clone(&clock)),
            checkpoints: Checkpoints::new(identity),
            notes: RecordStore::new(clock),
            log,
        }
    }

    fn cx(&self) -> Cx {
        Cx::new(Arc::new(BootClock))
    }

    fn holder(&self) -> Option<(String, u64)> {
        let holder = memory(self.leases.holders(&self.cx(), &[key_of("orders")])).remove(0)?;
        Some((holder.candidate.name, holder.epoch.0))
    }

    fn is_committed(&self) -> bool {
        memory(self.checkpoints.load(&self.cx(), &key_of("orders"))).is_some_and(|it| it.position.is_some())
    }
}

/// An instance on a thread of its own.
struct Process {
    leases: Script,
    /// The handler of this instance has been called.
    called: Receiver<()>,
    shutdown: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    /// With so many worker threads, one of which the handler blocks until it hears from `blocked`.
    fn start(
        servers: &Servers,
        name: &str,
        workers: usize,
        write_timeout: Duration,
        blocked: Option<Receiver<()>>,
    ) -> Self {
        let (say_called, called) = channel();
        let (leases, shutdown) = (Script::new(), CancellationToken::new());
        let (own, script, stop, name) = (servers.clone(), leases.clone(), shutdown.clone(), name.to_owned());
        let run = move || {
            let runtime = match workers {
                1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                _ => tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
            };
            let runtime = runtime.expect("a runtime");
            runtime.block_on(live(own, script, &name, stop, say_called, (write_timeout, blocked)));
        };
        Self { leases, called, shutdown, thread: Some(std::thread::spawn(run)) }
    }

    fn stop(mut self) {
        self.shutdown.cancel();
        self.thread.take().expect("stopped once").join().expect("it did not panic");
    }
}

async fn live(
    servers: Servers,
    script: Script,
    name: &str,
    stop: CancellationToken,
    called: Sender<()>,
    (write_timeout, blocked): (Duration, Option<Receiver<()>>),
) {
    let blocked = Arc::new(Mutex::new(blocked));
    let handle = handler(move |_: Change| {
        let (called, blocked) = (called.clone(), Arc::clone(&blocked));
        async move {
            let _ = called.send(());
            // Not an await: the thread itself stands still.
            if let Some(blocked) = blocked.lock().unwrap().take() {
                let _ = blocked.recv_timeout(LIMIT);
            }
            Ok(())
        }
    });
    let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, handle));
    let settle = HandlerSettings { settle: Duration::ZERO, ..HandlerSettings::default() };
    let sink = Arc::new(executor.with_settings(settle).expect("good settings").sink());
    let mut settings = StreamSettings::new("orders");
    settings.start = StartAt::Oldest;
    settings.timeouts.write = write_timeout;
    settings.limits.wait = 100 * MILLI;
    settings.checkpoint.every = 100 * MILLI;
    let sinks = vec![SinkSpec::new("handlers", sink)];
    let stream = StreamSpec { settings, source: Arc::new(servers.log.clone()), sinks, checkpoints: None };
    let stores = Stores {
        leases: Arc::new(FaultyLeases::new(Arc::new(servers.leases.clone()), script)),
        checkpoints: Arc::new(servers.checkpoints.clone()),
        records: Arc::new(servers.notes.clone()),
    };
    let mut settings = InstanceSettings::new("shop", name);
    settings.lease = LeaseSettings::new(TTL);
    let mut running = Running::start(Seams::system(), stores, settings, vec![stream]).await.expect("it starts");
    stop.cancelled().await;
    running.shutdown();
    running.join().await.expect("it ends in order");
}

/// Waits for `condition`.
fn until(what: &str, condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::park_timeout(MILLI);
    }
}

#[test]
fn a_handler_that_blocks_the_only_worker_does_not_stop_the_renewal() {
    let servers = Servers::new();
    let (unblock, blocked) = channel();
    let a = Process::start(&servers, "a", 1, LIMIT, Some(blocked));
    a.called.recv_timeout(LIMIT).expect("the handler is called");
    let before = a.leases.calls("renew");
    // Longer than its lease, every third of which it is renewed: by a thread of its own.
    until("it is renewed several times", || a.leases.calls("renew") >= before + 5);
    assert_eq!(servers.holder(), Some(("a".to_owned(), 1)));
    assert!(!servers.is_committed());
    unblock.send(()).expect("it waits for this");
    until("it is committed", || servers.is_committed());
    a.stop();
    assert_eq!(servers.holder(), None);
}

/// A handler is stuck on one of so many workers; the answer is what the journal says of the takeover.
fn stuck_on_one_of(workers: usize) -> Cause {
    let servers = Servers::new();
    let (unblock, blocked) = channel();
    let a = Process::start(&servers, "a", workers, SECOND, Some(blocked));
    a.called.recv_timeout(LIMIT).expect("the handler is called");
    let b = Process::start(&servers, "b", 1, SECOND, None);
    b.called.recv_timeout(LIMIT).expect("the other instance takes over while the first is stuck");
    assert!(matches!(servers.holder(), Some((name, epoch)) if name == "b" && epoch > 1));
    until("it is committed", || servers.is_committed());
    unblock.send(()).expect("it is still stuck");
    a.stop();
    b.stop();
    let checkpoint = memory(servers.checkpoints.load(&servers.cx(), &key_of("orders"))).expect("it was committed");
    assert!(checkpoint.epoch.0 > 1, "what was stuck committed nothing");
    let journal = Journal::new(Arc::new(servers.notes.clone()), "shop");
    let takeovers = memory(journal.recent(&servers.cx(), "orders", 10));
    takeovers.iter().rev().find(|it| it.to == "b").expect("it is in the journal").cause
}

#[test]
fn a_process_that_is_stuck_as_a_whole_loses_the_watch_to_another_instance() {
    assert_eq!(stuck_on_one_of(1), Cause::Expired);
}

#[test]
fn a_handler_that_is_stuck_past_its_time_out_gives_up_the_watch_and_says_so() {
    assert_eq!(stuck_on_one_of(2), Cause::Stalled);
}
