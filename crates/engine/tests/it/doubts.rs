//! Doubts about what the engine promises where several faults meet, each as the story that would prove it
//! wrong.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::memory::{
    Checkpoints, Leases, Log, NewChange, RecordStore, Table, TableSink, TransactionalTable,
};
use watchkeeper_core::{
    Batch, BootClock, Cx, Entropy, ErrorKind, FaultKind, Finding, FlushRejection, Grade, LeaseKey, LeaseStore,
    LedgerKind, Moment, NoPeers, OpenedSink, Operation, Resolution, Result, Sink, SinkContext, SinkProfile, SinkWriter,
    SourceTime, StartAt, StoreIdentity, Verdict, Written,
};
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::delivery::{OnReject, Park};
use watchkeeper_engine::election::Campaign;
use watchkeeper_engine::group::control::{PurgeRequest, ReplayRequest};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{FastTakeover, InstanceSettings, LeaseSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

const DEAD_LETTERS: OnReject = OnReject::DeadLetter { park: Park::Key };

/// An instance that starts the stream at "now", running; nothing has been appended yet.
fn start_now(harness: &Harness, name: &str) -> TestInstance {
    let instance = harness.instance(name).stream(|settings| settings.start = StartAt::Now).start();
    harness.until("it runs", || instance.is_running());
    instance
}

/// An instance with dead letters, whose sink rejects change 1 once and change 2 always; both are letters.
fn with_two_letters(harness: &Harness) -> TestInstance {
    let a = harness.instance("a").sink(|sink| sink.on_reject = DEAD_LETTERS).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    a.faults.sink.refuse_row(id(2), FaultKind::Reject, 100);
    harness.append(&["x", "y"]);
    harness.until("both are letters", || harness.ledger().len() == 2);
    a
}

fn replay(harness: &Harness, requested: u64) {
    harness.want(|control| control.replay = Some(ReplayRequest { id: requested, sink: None, numbers: Vec::new() }));
}

/// What became of each letter.
fn resolutions(harness: &Harness) -> Vec<(u64, Option<Resolution>)> {
    harness.ledger().iter().map(|record| (record.number, record.resolution)).collect()
}

/// How many letters the checkpoint counts as open.
fn counted_letters(harness: &Harness) -> u64 {
    harness.checkpoint().expect("there are commits").facts.letters
}

#[test]
fn where_a_snapshot_begins_is_committed_before_anything_is_delivered() {
    let harness = Harness::new();
    harness.append(&["a"]);
    let a = harness.instance("a").stream(|settings| settings.start = StartAt::Snapshot).start();
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    harness.until("it runs", || a.is_running());
    harness.run_for(SECOND);
    assert_eq!(harness.delivered(), [0; 0]);
    assert_eq!(harness.checkpoint().and_then(|checkpoint| checkpoint.position), Some(Log::position(0, None)));
}

#[test]
fn a_takeover_before_the_first_commit_begins_at_the_now_of_the_first_holder() {
    let harness = Harness::new();
    let a = start_now(&harness, "a");
    a.faults.sink.always("write", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a", "b", "c"]);
    harness.run_for(60 * SECOND);
    assert_eq!(harness.delivered(), [0; 0]);
    a.node.kill();
    let b = start_now(&harness, "b");
    harness.append(&["d"]);
    harness.until("all is committed", || harness.committed() == 4);
    assert_eq!(harness.delivered(), [1, 2, 3, 4]);
    assert!(b.is_running());
}

#[test]
fn a_reopening_before_the_first_commit_begins_at_the_now_of_the_first_opening() {
    let harness = Harness::new();
    let a = start_now(&harness, "a");
    a.faults.sink.next("flush", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a", "b", "c"]);
    harness.run_for(20 * SECOND);
    harness.append(&["d"]);
    harness.until("all is committed", || harness.committed() == 4);
    let mut delivered = harness.delivered();
    delivered.dedup();
    assert_eq!(delivered, [1, 2, 3, 4]);
    assert_eq!(a.status().tenures, 1);
}

#[test]
fn a_stream_that_halted_at_its_first_change_loses_nothing_when_it_is_resumed() {
    let harness = Harness::new();
    let a = start_now(&harness, "a");
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["x"]);
    harness.until("it is halted", || harness.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
    harness.append(&["y", "z"]);
    harness.run_for(10 * SECOND);
    assert_eq!(harness.delivered(), [0; 0]);
    harness.perform(Move::Resume);
    harness.run_for(20 * SECOND);
    harness.append(&["w"]);
    harness.until("all is committed", || harness.committed() == 4);
    assert_eq!(harness.delivered(), [1, 2, 3, 4]);
    assert_eq!(harness.ledger().len(), 0);
}

#[test]
fn a_letter_that_was_replayed_is_not_replayed_again_before_its_commit() {
    let harness = Harness::new();
    let a = with_two_letters(&harness);
    a.faults.checkpoints.always("commit", Fault::Delay(3 * SECOND));
    replay(&harness, 1);
    harness.until("the first letter is replayed", || harness.delivered().contains(&1));
    harness.append(&["x"]);
    harness.until("a newer change of its key is there", || harness.delivered().contains(&3));
    replay(&harness, 2);
    harness.run_for(10 * SECOND);
    a.faults.checkpoints.heal("commit");
    harness.run_for(20 * SECOND);
    assert_eq!(harness.delivered(), [1, 3], "a second delivery of 1 would undo 3");
    assert_eq!(resolutions(&harness), [(1, Some(Resolution::Replayed)), (2, None)]);
    assert_eq!(counted_letters(&harness), 1);

    a.node.kill();
    let b = harness.instance("b").sink(|sink| sink.on_reject = DEAD_LETTERS).start();
    harness.until("b runs", || b.is_running());
    harness.append(&["y"]);
    harness.until("it is committed", || harness.committed() == 4);
    assert_eq!(harness.delivered(), [1, 3], "4 is behind the open letter of its key");
    replay(&harness, 3);
    harness.until("the letters are settled", || counted_letters(&harness) == 0);
    assert_eq!(harness.delivered(), [1, 3, 2, 4]);
}

#[test]
fn a_letter_that_is_replayed_and_purged_at_once_is_settled_once() {
    let harness = Harness::new();
    let a = with_two_letters(&harness);
    a.faults.checkpoints.always("commit", Fault::Delay(50 * MILLI));
    harness.want(|control| {
        control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() });
        control.purge = Some(PurgeRequest { id: 1, sink: None, numbers: vec![1] });
    });
    harness.run_for(20 * SECOND);
    assert_eq!(harness.delivered(), [1]);
    assert_eq!(resolutions(&harness), [(1, Some(Resolution::Replayed)), (2, None)]);
    assert_eq!(counted_letters(&harness), 1, "the other one is still open");

    a.node.kill();
    let b = harness.instance("b").sink(|sink| sink.on_reject = DEAD_LETTERS).start();
    harness.until("b runs", || b.is_running());
    harness.append(&["y"]);
    harness.until("it is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1], "3 is behind the open letter of its key");
}

#[test]
fn two_changes_of_one_key_that_a_transaction_rejects_are_one_letter_each_in_order() {
    let harness = Harness::new();
    harness.append(&["x", "x", "y"]);
    let table = Arc::new(TransactionalTable::new(harness.checkpoints.clone()));
    let plan = harness.instance("a").into_sink(table).sink(|sink| sink.on_reject = DEAD_LETTERS);
    plan.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    plan.faults.sink.refuse_row(id(2), FaultKind::Reject, 1);
    let a = plan.start();
    harness.until("all is committed", || harness.committed() == 3);
    let letters: Vec<_> =
        harness.ledger().into_iter().map(|it| (it.number, it.entry.kind, it.entry.change_id)).collect();
    assert_eq!(letters, [(1, LedgerKind::DeadLetter, id(1)), (2, LedgerKind::Parked, id(2))]);
    assert_eq!(counted_letters(&harness), 2);
    replay(&harness, 1);
    harness.until("the letters are settled", || counted_letters(&harness) == 0);
    assert_eq!(numbers(&harness.checkpoints.delivered()), [3, 1, 2]);
    assert!(a.is_running());
}

/// How long a call to [`Direct`] may take effect after it was abandoned.
const SETTLE: Duration = Duration::from_secs(20);

/// An exposed sink at which a write takes effect at once, without a flush.
#[derive(Debug, Clone, Default)]
struct Direct(Arc<Mutex<Vec<Taken>>>);

/// A change that it took: by which epoch, which change, and when.
type Taken = (u64, u64, Moment);

#[derive(Debug)]
struct DirectWriter(Direct, u64);

impl Direct {
    /// An instance that writes into it, and waits for a write no longer than a second.
    fn instance(&self, harness: &Harness, name: &str) -> Plan {
        let plan = harness.instance(name).into_sink(Arc::new(self.clone()));
        plan.stream(|settings| settings.timeouts.write = SECOND)
    }

    /// The epochs and the changes, in the order in which they took effect.
    fn taken(&self) -> Vec<(u64, u64)> {
        self.0.lock().unwrap().iter().map(|(epoch, change, _)| (*epoch, *change)).collect()
    }

    fn has(&self, change: u64) -> bool {
        self.taken().iter().any(|(_, taken)| *taken == change)
    }
}

#[async_trait]
impl Sink for Direct {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(Grade::Plain, SETTLE)
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        Ok(OpenedSink::Plain(Arc::new(DirectWriter(self.clone(), context.grant.epoch.0))))
    }
}

#[async_trait]
impl SinkWriter for DirectWriter {
    async fn write(&self, cx: &Cx, _lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let take = |row: &u32| (self.1, batch.rows()[*row as usize].version.time, cx.now());
        self.0.0.lock().unwrap().extend(rows.iter().map(take));
        Ok(Written::all(rows))
    }

    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

/// The write of change 1 by `a` is held up and abandoned after a second; then reading fails as `failure`.
/// The held write takes effect just before it has settled. The answer is what the sink took until it had
/// change 2.
fn interrupted_while_settling(
    harness: &Harness,
    sink: &Direct,
    a: &TestInstance,
    failure: ErrorKind,
) -> Vec<(u64, u64)> {
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    harness.append(&["x"]);
    harness.until("the write is held", || gate.arrived() == 1);
    let abandoned = harness.now() + SECOND;
    harness.run_for(1500 * MILLI);
    a.faults.source.next("next_batch", Fault::Reject(failure));
    harness.append(&["x"]);
    harness.run_for(18 * SECOND);
    assert_eq!(sink.taken(), [], "nothing is written while the abandoned call may take effect");
    gate.open();
    harness.until("the second change is there", || sink.has(2));
    let again = sink.0.lock().unwrap()[1].2;
    assert!(again >= abandoned + SETTLE, "written again {:?} after it was abandoned", again.since(abandoned));
    sink.taken()
}

#[test]
fn a_reopening_waits_until_an_abandoned_write_has_settled() {
    let (harness, sink) = (Harness::new(), Direct::default());
    let a = sink.instance(&harness, "a").start();
    harness.until("a runs", || a.is_running());
    let taken = interrupted_while_settling(&harness, &sink, &a, ErrorKind::Unavailable);
    assert_eq!(taken, [(1, 1), (1, 1), (1, 2)]);
}

#[test]
fn a_release_waits_until_an_abandoned_write_has_settled() {
    let (harness, sink) = (Harness::new(), Direct::default());
    let a = sink.instance(&harness, "a").start();
    harness.until("a runs", || a.is_running());
    let b = sink.instance(&harness, "b").start();
    let taken = interrupted_while_settling(&harness, &sink, &a, ErrorKind::Denied);
    assert_eq!(taken, [(1, 1), (2, 1), (2, 2)]);
    assert!(b.is_running());
}

#[test]
fn the_calls_of_a_dead_holder_settle_although_who_broke_its_lease_gave_up() {
    let (harness, sink) = (Harness::new(), Direct::default());
    let plan = |name| sink.instance(&harness, name).set(|settings| settings.takeover = FastTakeover::Always);
    let a = plan("a").start();
    harness.until("a runs", || a.is_running());
    harness.append(&["x"]);
    harness.until("the first change is committed", || harness.committed() == 1);
    let b = plan("b").start();
    b.faults.checkpoints.always("claim", Fault::Reject(ErrorKind::Denied));
    let c = plan("c").start();
    c.faults.leases.always("try_acquire", Fault::Reject(ErrorKind::Unavailable));
    harness.run_for(3 * SECOND);

    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    harness.append(&["x"]);
    harness.until("the second change is held", || gate.arrived() == 1);
    a.node.kill();
    harness.town.judge("a", Verdict::Dead);
    let died = harness.now();
    harness.until("b breaks the lease", || harness.holder().is_some_and(|(name, _)| name == "b"));
    c.faults.leases.heal("try_acquire");
    harness.append(&["x"]);
    harness.run_for(18 * SECOND);
    assert_eq!(sink.taken(), [(1, 1)], "nothing is written while the dead one's call may take effect");
    gate.open();
    harness.until("the third change is there", || sink.has(3));
    assert_eq!(sink.taken(), [(1, 1), (1, 2), (3, 2), (3, 3)]);
    let again = sink.0.lock().unwrap()[2].2;
    assert!(again >= died + SETTLE, "written again {:?} after the death", again.since(died));
    assert!(c.is_running());
}

#[test]
fn a_halt_is_stored_although_the_transaction_before_it_was_not_answered() {
    let harness = Harness::new();
    let plan = harness.instance("a").into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone())));
    plan.faults.sink.next("write_and_commit", Fault::Lose);
    plan.faults.sink.next("write_and_commit", Fault::Reject(ErrorKind::Corrupt));
    harness.append(&["x"]);
    let a = plan.start();
    harness.run_for(10 * SECOND);
    let checkpoint = harness.checkpoint().expect("the lost transaction was committed");
    assert_eq!(checkpoint.halted.map(|halted| halted.code), Some(ErrorKind::Corrupt.code().to_owned()));
    assert_eq!(harness.committed(), 1, "what the lost transaction committed stays");
    assert_eq!(numbers(&harness.checkpoints.delivered()), [1]);
    assert!(a.status().halted);
    assert!(harness.control().halted_hint);

    harness.perform(Move::Resume);
    harness.append(&["y"]);
    harness.until("it goes on", || harness.committed() == 2);
    assert_eq!(numbers(&harness.checkpoints.delivered()), [1, 2]);
}

#[test]
fn a_hint_that_is_written_after_the_stream_was_resumed_does_not_keep_it_halted() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("a runs", || a.is_running());
    let b = harness.start("b");
    harness.run_for(SECOND);
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    let gate = Gate::default();
    a.faults.records.always("get", Fault::Hold(gate.clone()));
    harness.append(&["x"]);
    harness.until("it is halted", || harness.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
    harness.until("a is about to write the hint", || gate.arrived() > 0);
    a.node.pause();
    a.faults.records.heal("get");
    harness.run_for(8 * SECOND);
    assert!(harness.perform(Move::Resume).lifted.is_some());
    gate.open();
    a.node.resume();
    harness.until("the change is committed", || harness.committed() == 1);
    harness.run_for(SECOND);
    assert!(!harness.control().halted_hint, "it was resumed since");
    b.node.kill();
    a.node.kill();
    let c = harness.start("c");
    harness.append(&["y"]);
    harness.until("c goes on", || harness.committed() == 2);
    assert_eq!(harness.delivered(), [1, 2]);
    assert!(c.is_running());
}

#[test]
fn the_terms_of_a_candidate_do_not_go_back_when_the_store_forgets() {
    let harness = Harness::new();
    let node = harness.world.node("a");
    let clock = node.clock(Duration::ZERO, 0);
    let seams = Seams { clock, spawn: node.spawner(), peers: Arc::new(NoPeers), entropy: harness.world.entropy() };
    let leases: Arc<dyn LeaseStore> = Arc::new(harness.leases.clone());
    let epochs: Result<Vec<_>> = harness.block_on(async {
        let campaign = Campaign::new(seams, leases, LeaseSettings::default(), LeaseKey::new("k"), "a").await?;
        let mut epochs = Vec::new();
        for term in 0..4 {
            if term == 3 {
                harness.leases.forget();
            }
            let term = campaign.win().await;
            epochs.push(term.epoch());
            term.resign().await?;
        }
        Ok(epochs)
    });
    let epochs = epochs.expect("the store answers");
    assert!(epochs.is_sorted_by(|older, newer| older < newer), "{epochs:?}");
}

#[test]
fn a_fatal_change_is_counted_once_the_records_answer_again() {
    let harness = Harness::new();
    let plan = |name| {
        let plan = harness.instance(name).set(|settings| settings.bar = 5 * SECOND);
        plan.faults.sink.refuse_row(id(1), FaultKind::Fatal, 1000);
        plan
    };
    let (a, b) = (plan("a").start(), plan("b").start());
    harness.until("one runs", || a.is_running() || b.is_running());
    let calls = ["get", "put_if", "append"];
    for (instance, call) in [&a, &b].into_iter().flat_map(|instance| calls.map(|call| (instance, call))) {
        instance.faults.records.always(call, Fault::Reject(ErrorKind::Unavailable));
    }
    harness.append(&["x"]);
    harness.run_for(5 * SECOND);
    for (instance, call) in [&a, &b].into_iter().flat_map(|instance| calls.map(|call| (instance, call))) {
        instance.faults.records.heal(call);
    }
    harness.until("it is halted", || harness.checkpoint().is_some_and(|checkpoint| checkpoint.halted.is_some()));
    assert_eq!([a.status().tenures, b.status().tenures], [1, 1], "each of them tried it once");
    assert_eq!(harness.delivered(), [0; 0]);
}

/// How long anything may take in real time before a test has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// The servers of a group on real threads.
#[derive(Clone)]
struct Servers {
    leases: Leases,
    checkpoints: Checkpoints,
    notes: RecordStore,
    log: Log,
    table: Table,
}

impl Servers {
    fn new() -> Self {
        let clock = Arc::new(BootClock);
        Self {
            leases: Leases::new(Arc::<BootClock>::clone(&clock)),
            checkpoints: Checkpoints::new(StoreIdentity(Entropy::from_system().uuid())),
            notes: RecordStore::new(clock),
            log: Log::new("log"),
            table: Table::default(),
        }
    }

    fn holder(&self) -> Option<String> {
        let cx = Cx::new(Arc::new(BootClock));
        memory(self.leases.holders(&cx, &[key_of("orders")])).remove(0).map(|holder| holder.candidate.name)
    }

    /// Runs an instance until it is stopped; its filter blocks its thread until it hears from `blocked`.
    async fn live(self, name: &str, stop: CancellationToken, blocked: Option<Receiver<()>>) {
        let blocked = Mutex::new(blocked);
        let mut sink = SinkSpec::new("table", Arc::new(TableSink::new(self.table, Grade::Plain)));
        sink.filter = Some(Arc::new(move |_: &Batch, _| {
            if let Some(blocked) = blocked.lock().unwrap().take() {
                let _ = blocked.recv_timeout(LIMIT);
            }
            true
        }));
        let mut settings = StreamSettings::new("orders");
        settings.start = StartAt::Oldest;
        settings.timeouts.write = SECOND;
        settings.limits.wait = 100 * MILLI;
        let stream = StreamSpec { settings, source: Arc::new(self.log), sinks: vec![sink], checkpoints: None };
        let (leases, checkpoints) = (Arc::new(self.leases), Arc::new(self.checkpoints));
        let stores = Stores { leases, checkpoints, records: Arc::new(self.notes) };
        let mut settings = InstanceSettings::new("shop", name);
        settings.lease = LeaseSettings::new(1500 * MILLI);
        let mut running = Running::start(Seams::system(), stores, settings, vec![stream]).await.expect("it starts");
        stop.cancelled().await;
        running.shutdown();
        running.join().await.expect("it ends in order");
    }

    /// The same on a thread of its own, with two workers.
    fn start(&self, name: &'static str, stop: &CancellationToken, blocked: Option<Receiver<()>>) -> JoinHandle<()> {
        let (own, stop) = (self.clone(), stop.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(own.live(name, stop, blocked));
        })
    }
}

/// Waits for `condition` in real time.
fn until(what: &str, condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::park_timeout(MILLI);
    }
}

#[test]
fn a_filter_that_blocks_past_the_time_out_gives_up_the_watch() {
    let (servers, stop) = (Servers::new(), CancellationToken::new());
    let (unblock, blocked) = channel();
    let a = servers.start("a", &stop, Some(blocked));
    until("a has the watch", || servers.holder().as_deref() == Some("a"));
    let b = servers.start("b", &stop, None);
    let change = NewChange {
        operation: Operation::Insert,
        namespace: "shop.orders".to_owned(),
        key: Some("k".into()),
        body: "{}".into(),
        first_half: false,
    };
    servers.log.append(change, SourceTime(1));
    until("b delivers what the first is stuck at", || !servers.table.delivered().is_empty());
    assert_eq!(servers.holder().as_deref(), Some("b"));
    unblock.send(()).expect("it is still stuck");
    stop.cancel();
    a.join().expect("the first ends in order");
    b.join().expect("the second ends in order");
    assert_eq!(servers.table.delivered().len(), 1, "what was stuck delivers nothing");
}
