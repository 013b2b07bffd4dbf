//! A group of instances over memory stores, in one world with a time of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use watchkeeper_core::memory::{Checkpoints, Delivered, Leases, Log, NewChange, RecordStore, Table, TableSink};
use watchkeeper_core::{
    Address, Batch, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Entropy, Epoch, Finding,
    FlushRejection, Grade, Grant, HeldTenures, Holder, Latest, LeaseKey, LeaseStore, LedgerQuery, LedgerRecord,
    Listening, Moment, OpenedSink, Operation, Peers, Records, Result, Sink, SinkContext, SinkProfile, SinkWriter,
    Source, SourceTime, StartAt, StoreIdentity, TenureId, Verdict, Written,
};
use watchkeeper_engine::checkpoint::operator::{Move, MoveReport, Operator, Subject};
use watchkeeper_engine::group::control::{Control, Controls};
use watchkeeper_engine::group::journal::{Journal, Takeover};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::listener::{ListenerState, StreamStatus};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_testkit::faults::{FaultyCheckpoints, FaultyLeases, FaultyRecords, FaultySink, FaultySource, Script};
use watchkeeper_testkit::{Node, World};

use crate::gate::Gate;

pub(crate) const MILLI: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of all groups here: the default one.
pub(crate) const TTL: Duration = Duration::from_secs(5);

/// The id of change `number` of the log.
pub(crate) fn id(number: u64) -> String {
    format!("log:{number:016x}")
}

/// A world with the servers of one group. Clones are the same.
#[derive(Clone)]
pub(crate) struct Harness {
    pub(crate) world: World,
    pub(crate) leases: Leases,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) notes: RecordStore,
    pub(crate) log: Log,
    pub(crate) table: Table,
    pub(crate) town: Arc<Town>,
    pub(crate) server: Node,
}

/// What goes wrong with the calls of one instance.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    pub(crate) leases: Script,
    pub(crate) checkpoints: Script,
    pub(crate) records: Script,
    pub(crate) source: Script,
    pub(crate) sink: Script,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::seeded(1)
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        let world = World::new(seed).limited_to(600 * SECOND).limited_to_polls(2_000_000);
        Self {
            leases: Leases::new(world.clock()),
            checkpoints: Checkpoints::new(StoreIdentity(world.entropy().uuid())),
            notes: RecordStore::new(world.clock()),
            log: Log::new("log"),
            table: Table::default(),
            town: Arc::default(),
            server: world.node("server"),
            world,
        }
    }

    /// A script without faults; what it holds or delays takes effect even when nobody waits for it.
    pub(crate) fn script(&self) -> Script {
        Script::new().served_by(self.server.spawner())
    }

    pub(crate) fn faults(&self) -> Faults {
        let [leases, checkpoints, records, source, sink] = std::array::from_fn(|_| self.script());
        Faults { leases, checkpoints, records, source, sink }
    }

    /// An instance to be started.
    pub(crate) fn instance(&self, name: &str) -> Plan {
        let mut settings = StreamSettings::new("orders");
        settings.start = StartAt::Oldest;
        let faults = self.faults();
        let sink = TableSink::new(self.table.clone(), Grade::Plain);
        let sink = SinkSpec::new("table", Arc::new(FaultySink::new(Arc::new(sink), faults.sink.clone())));
        let source = Arc::new(FaultySource::new(Arc::new(self.log.clone()), faults.source.clone()));
        let stream = StreamSpec { settings, source, sinks: vec![sink], checkpoints: None };
        let settings = InstanceSettings::new("shop", name);
        Plan { harness: self.clone(), settings, streams: vec![stream], faults, gates: BTreeMap::new() }
    }

    /// An instance with the usual settings, running.
    pub(crate) fn start(&self, name: &str) -> TestInstance {
        self.instance(name).start()
    }

    /// Appends an insert of each of `keys`; the answer is the number of the last.
    pub(crate) fn append(&self, keys: &[&str]) -> u64 {
        keys.iter().fold(0, |_, key| self.append_change(Operation::Insert, Some(key), b"{}"))
    }

    /// Appends inserts of `count` different keys.
    pub(crate) fn append_many(&self, count: u64) -> u64 {
        let from = self.log.newest();
        let keys: Vec<_> = (from..from + count).map(|key| format!("k{key}")).collect();
        self.append(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Appends a change without a key.
    pub(crate) fn append_barrier(&self) -> u64 {
        self.append_change(Operation::Truncate, None, b"{}")
    }

    pub(crate) fn append_change(&self, operation: Operation, key: Option<&str>, body: &[u8]) -> u64 {
        self.append_row(operation, key, body, false)
    }

    pub(crate) fn append_row(&self, operation: Operation, key: Option<&str>, body: &[u8], first_half: bool) -> u64 {
        let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        let (namespace, body) = ("shop.orders".to_owned(), Bytes::copy_from_slice(body));
        let time = SourceTime(self.log.newest() + 1);
        self.log.append(NewChange { operation, namespace, key, body, first_half }, time)
    }

    /// Runs until `condition` holds.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        if let Err(stuck) = self.world.run_until(condition) {
            panic!("waited in vain until {what}: {stuck}; the table has {:?}", self.delivered());
        }
    }

    #[track_caller]
    pub(crate) fn run_for(&self, duration: Duration) {
        self.world.run_for(duration).expect("time passes");
    }

    /// Runs the world until `future` is done.
    #[track_caller]
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.world.block_on(future).expect("it comes to an end")
    }

    pub(crate) fn now(&self) -> Moment {
        self.world.now()
    }

    pub(crate) fn cx(&self) -> Cx {
        self.world.cx()
    }

    pub(crate) fn key(&self) -> LeaseKey {
        key_of("orders")
    }

    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        memory(self.checkpoints.load(&self.cx(), &self.key()))
    }

    /// Runs until the stream has its first checkpoint, which has no position yet.
    #[track_caller]
    pub(crate) fn until_begun(&self) {
        self.until("the stream has its first checkpoint", || self.checkpoint().is_some());
    }

    /// The number up to which changes are committed.
    pub(crate) fn committed(&self) -> u64 {
        self.committed_of("orders")
    }

    pub(crate) fn committed_of(&self, stream: &str) -> u64 {
        let checkpoint = memory(self.checkpoints.load(&self.cx(), &key_of(stream)));
        let position = checkpoint.and_then(|checkpoint| checkpoint.position);
        position.map_or(0, |position| Log::number(&position).expect("a position of the log"))
    }

    pub(crate) fn ledger(&self) -> Vec<LedgerRecord> {
        let query = LedgerQuery { after: 0, limit: usize::MAX, open_only: false };
        memory(self.checkpoints.ledger(&self.cx(), &self.key(), &query))
    }

    pub(crate) fn journal(&self) -> Vec<Takeover> {
        let journal = Journal::new(Arc::new(self.notes.clone()), "shop");
        let mut takeovers = memory(journal.recent(&self.cx(), "orders", 100));
        takeovers.reverse();
        takeovers
    }

    /// The numbers of the changes that the table took, in order.
    pub(crate) fn delivered(&self) -> Vec<u64> {
        numbers(&self.table.delivered())
    }

    pub(crate) fn control(&self) -> Control {
        let controls = Controls::new(Arc::new(self.notes.clone()), "shop");
        memory(controls.read(&self.cx(), "orders"))
    }

    /// Says what people want of the stream.
    pub(crate) fn want(&self, change: impl Fn(&mut Control)) {
        let controls = Controls::new(Arc::new(self.notes.clone()), "shop");
        memory(controls.update(&self.cx(), "orders", change));
    }

    /// Performs an operator's move.
    #[track_caller]
    pub(crate) fn perform(&self, requested: Move) -> MoveReport {
        self.try_move(&self.log, requested).expect("the move is made")
    }

    /// Asks for an operator's move in the log `source`, which may be refused.
    pub(crate) fn try_move(&self, source: &Log, requested: Move) -> Result<MoveReport> {
        let operator = Operator {
            leases: Arc::new(self.leases.clone()),
            checkpoints: Arc::new(self.checkpoints.clone()),
            records: Arc::new(self.notes.clone()),
            group: "shop".to_owned(),
            entropy: self.world.entropy(),
            ttl: TTL,
        };
        let key = self.key();
        let subject = Subject { stream: "orders", key: &key, source, sinks: &[] };
        self.block_on(operator.move_to(&self.cx(), &subject, requested))
    }

    /// The name of the instance that holds the lease, and its epoch.
    pub(crate) fn holder(&self) -> Option<(String, Epoch)> {
        self.holder_of("orders").map(|holder| (holder.candidate.name, holder.epoch))
    }

    pub(crate) fn holder_of(&self, stream: &str) -> Option<Holder> {
        memory(self.leases.holders(&self.cx(), &[key_of(stream)])).remove(0)
    }
}

/// The answer of a memory store, which waits for nothing.
pub(crate) fn memory<T>(call: impl Future<Output = Result<T>>) -> T {
    call.now_or_never().expect("memory answers at once").expect("and without an error")
}

pub(crate) fn key_of(stream: &str) -> LeaseKey {
    LeaseKey::new(format!("shop/{stream}/0/0"))
}

pub(crate) fn numbers(delivered: &[Delivered]) -> Vec<u64> {
    delivered.iter().map(|change| change.version.time).collect()
}

/// An instance that is not started yet.
pub(crate) struct Plan {
    harness: Harness,
    pub(crate) settings: InstanceSettings,
    pub(crate) streams: Vec<StreamSpec>,
    pub(crate) faults: Faults,
    /// Streams that have to be connected first.
    gates: BTreeMap<String, Gate>,
}

impl Plan {
    /// Lets the stream `name` be connected only when `gate` is open.
    pub(crate) fn behind(mut self, name: &str, gate: &Gate) -> Self {
        self.gates.insert(name.to_owned(), gate.clone());
        self
    }

    pub(crate) fn set(mut self, change: impl FnOnce(&mut InstanceSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Changes the settings of the (first) stream.
    pub(crate) fn stream(mut self, change: impl FnOnce(&mut StreamSettings)) -> Self {
        change(&mut self.streams[0].settings);
        self
    }

    /// Changes the (first) sink of the stream.
    pub(crate) fn sink(mut self, change: impl FnOnce(&mut SinkSpec)) -> Self {
        change(&mut self.streams[0].sinks[0]);
        self
    }

    /// Writes into the table as a sink of this profile.
    pub(crate) fn profile(self, profile: SinkProfile) -> Self {
        let sink = TableSink::new(self.harness.table.clone(), profile.grade).with_profile(profile);
        self.into_sink(Arc::new(sink))
    }

    pub(crate) fn grade(self, grade: Grade) -> Self {
        self.profile(SinkProfile::new(grade, Duration::ZERO))
    }

    /// Writes into `sink`, with the faults of this instance.
    pub(crate) fn into_sink(self, sink: Arc<dyn Sink>) -> Self {
        let script = self.faults.sink.clone();
        self.sink(|spec| spec.sink = Arc::new(FaultySink::new(sink, script)))
    }

    /// Reads from `source`, with the faults of this instance.
    pub(crate) fn reading(mut self, source: Arc<dyn Source>) -> Self {
        self.streams[0].source = Arc::new(FaultySource::new(source, self.faults.source.clone()));
        self
    }

    /// Adds a stream that is like the first but for its name.
    pub(crate) fn and_stream(mut self, name: &str) -> Self {
        let mut stream = self.streams[0].clone();
        stream.settings.name = name.to_owned();
        self.streams.push(stream);
        self
    }

    /// Starts it.
    #[track_caller]
    pub(crate) fn start(self) -> TestInstance {
        let harness = self.harness.clone();
        harness.block_on(self.try_start()).expect("the settings are good")
    }

    pub(crate) async fn try_start(self) -> Result<TestInstance> {
        let Self { harness, settings, streams, faults, gates } = self;
        let node = harness.world.node(&settings.name);
        let clock = node.clock(Duration::ZERO, 0);
        let peers =
            Arc::new(Resident { town: Arc::clone(&harness.town), address: Address(settings.name.as_str().into()) });
        let seams = Seams { clock, spawn: node.spawner(), peers, entropy: harness.world.entropy() };
        let leases: Arc<dyn LeaseStore> =
            Arc::new(FaultyLeases::new(Arc::new(harness.leases.clone()), faults.leases.clone()));
        let checkpoints: Arc<dyn CheckpointStore> =
            Arc::new(FaultyCheckpoints::new(Arc::new(harness.checkpoints.clone()), faults.checkpoints.clone()));
        let records: Arc<dyn Records> =
            Arc::new(FaultyRecords::new(Arc::new(harness.notes.clone()), faults.records.clone()));
        let stores = Stores { leases, checkpoints, records };
        let entry = |spec: StreamSpec| match gates.get(&spec.settings.name) {
            Some(gate) => gate.before(spec),
            None => spec.into(),
        };
        let streams = streams.into_iter().map(entry).collect();
        let running = Running::start_with(seams, stores, settings, streams).await?;
        Ok(TestInstance { node, running, faults })
    }
}

/// A running instance.
pub(crate) struct TestInstance {
    pub(crate) node: Node,
    pub(crate) running: Running,
    pub(crate) faults: Faults,
}

impl TestInstance {
    pub(crate) fn status(&self) -> StreamStatus {
        self.status_of("orders")
    }

    pub(crate) fn status_of(&self, stream: &str) -> StreamStatus {
        self.running.status(stream).expect("it has this stream").get().clone()
    }

    pub(crate) fn state(&self) -> ListenerState {
        self.status().state
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state() == ListenerState::Running
    }

    /// Notes its states from now on, and when it came to each.
    pub(crate) fn note_states(&self, harness: &Harness) -> States {
        let mut status = self.running.status("orders").expect("it has this stream");
        let (states, clock) = (States::default(), harness.world.clock());
        let noted = states.clone();
        harness.world.spawn("states", async move {
            loop {
                let state = status.see().state;
                noted.note(state, clock.now());
                if status.changed().await.is_err() {
                    return;
                }
            }
        });
        states
    }

    /// Shuts it down in order, and waits for that.
    #[track_caller]
    pub(crate) fn stop(mut self, harness: &Harness) {
        self.running.shutdown();
        harness.block_on(self.running.join()).expect("it ends in order");
    }
}

/// The states that a listener went through.
#[derive(Clone, Default)]
pub(crate) struct States(Arc<Mutex<Vec<(ListenerState, Moment)>>>);

impl States {
    fn note(&self, state: ListenerState, at: Moment) {
        let mut noted = self.0.lock().unwrap();
        if noted.last().is_none_or(|(last, _)| *last != state) {
            noted.push((state, at));
        }
    }

    pub(crate) fn all(&self) -> Vec<ListenerState> {
        self.0.lock().unwrap().iter().map(|(state, _)| *state).collect()
    }

    /// How long it was in each state that it has left.
    pub(crate) fn durations(&self) -> Vec<(ListenerState, Duration)> {
        let noted = self.0.lock().unwrap();
        noted.windows(2).map(|pair| (pair[0].0, pair[1].1.since(pair[0].1))).collect()
    }
}

/// Who answers whom, and who is proved dead.
#[derive(Debug)]
pub(crate) struct Town {
    rolls: Mutex<BTreeMap<Address, HeldTenures>>,
    verdicts: Latest<BTreeMap<Address, Verdict>>,
    watches: Mutex<Vec<(Address, TenureId)>>,
    local: Mutex<BTreeSet<Address>>,
    doors: Mutex<BTreeSet<Address>>,
}

impl Default for Town {
    fn default() -> Self {
        let verdicts = Latest::new(BTreeMap::new());
        let (watches, local, doors) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { rolls: Mutex::default(), verdicts, watches, local, doors }
    }
}

impl Town {
    /// All who watch `name` come to this verdict, now and later.
    pub(crate) fn judge(&self, name: &str, verdict: Verdict) {
        self.verdicts.change(|verdicts| {
            verdicts.insert(Address(name.into()), verdict);
        });
    }

    /// `name` is on everybody's machine.
    pub(crate) fn move_in(&self, name: &str) {
        self.local.lock().unwrap().insert(Address(name.into()));
    }

    /// How often `name` was watched.
    pub(crate) fn watches(&self, name: &str) -> usize {
        self.watches.lock().unwrap().iter().filter(|(address, _)| &*address.0 == name).count()
    }

    /// Whether `name` listens.
    pub(crate) fn listens(&self, name: &str) -> bool {
        self.doors.lock().unwrap().contains(&Address(name.into()))
    }

    /// Whether `name` answers for `tenure`.
    pub(crate) fn answers(&self, name: &str, tenure: TenureId) -> bool {
        self.rolls.lock().unwrap().get(&Address(name.into())).is_some_and(|held_tenures| held_tenures.has(tenure))
    }
}

/// One instance in the town.
#[derive(Debug)]
struct Resident {
    town: Arc<Town>,
    address: Address,
}

#[derive(Debug)]
struct Door(Arc<Town>, Address);

impl Listening for Door {
    fn address(&self) -> Option<Address> {
        Some(self.1.clone())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.0.doors.lock().unwrap().remove(&self.1);
    }
}

#[async_trait]
impl Peers for Resident {
    fn is_local(&self, address: &Address) -> bool {
        self.town.local.lock().unwrap().contains(address)
    }

    async fn listen(&self, _cx: &Cx, held_tenures: HeldTenures) -> Result<Box<dyn Listening>> {
        self.town.rolls.lock().unwrap().insert(self.address.clone(), held_tenures);
        self.town.doors.lock().unwrap().insert(self.address.clone());
        Ok(Box::new(Door(Arc::clone(&self.town), self.address.clone())))
    }

    async fn watch(&self, _cx: &Cx, address: &Address, tenure: TenureId) -> Result<Verdict> {
        self.town.watches.lock().unwrap().push((address.clone(), tenure));
        let known = self.town.rolls.lock().unwrap().get(address).cloned();
        if !known.is_some_and(|held_tenures| held_tenures.has(tenure)) {
            return Ok(Verdict::Unproven);
        }
        let mut verdicts = self.town.verdicts.follow();
        loop {
            if let Some(verdict) = verdicts.see().get(address) {
                return Ok(*verdict);
            }
            if verdicts.changed().await.is_err() {
                return Ok(Verdict::Unproven);
            }
        }
    }
}

/// A call that a [`Probe`] took.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) what: &'static str,
    pub(crate) lane: usize,
    /// The changes that were written.
    pub(crate) numbers: Vec<u64>,
    pub(crate) began: Moment,
    /// `None` while it is under way.
    pub(crate) ended: Option<Moment>,
}

/// A sink that notes its calls, each of which takes a while.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    pub(crate) profile: SinkProfile,
    /// How long a call takes at most; half of it at least.
    pub(crate) takes: Duration,
    entropy: Arc<Entropy>,
    calls: Arc<Mutex<Vec<Call>>>,
    delivered: Arc<Mutex<Vec<Delivered>>>,
    grant: Option<Grant>,
}

impl Probe {
    pub(crate) fn new(harness: &Harness, takes: Duration) -> Self {
        let profile = SinkProfile::new(Grade::Plain, Duration::ZERO);
        let (calls, delivered) = (Arc::default(), Arc::default());
        Self { profile, takes, entropy: harness.world.entropy(), calls, delivered, grant: None }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn delivered(&self) -> Vec<Delivered> {
        self.delivered.lock().unwrap().clone()
    }

    async fn work(&self, cx: &Cx, what: &'static str, lane: usize, numbers: Vec<u64>) {
        let began = cx.now();
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(Call { what, lane, numbers, began, ended: None });
            calls.len() - 1
        };
        cx.clock().sleep_until(began + self.entropy.jitter(self.takes)).await;
        self.calls.lock().unwrap()[number].ended = Some(cx.now());
    }
}

#[async_trait]
impl Sink for Probe {
    fn profile(&self) -> SinkProfile {
        self.profile.clone()
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        Ok(OpenedSink::Plain(Arc::new(Self { grant: Some(context.grant.clone()), ..self.clone() })))
    }
}

#[async_trait]
impl SinkWriter for Probe {
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let numbers = rows.iter().map(|row| batch.rows()[*row as usize].version.time).collect();
        self.work(cx, "write", lane, numbers).await;
        let grant = self.grant.as_ref().expect("it was opened");
        self.delivered.lock().unwrap().extend(rows.iter().map(|row| Delivered::of(batch, *row, grant)));
        Ok(Written::all(rows))
    }

    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>> {
        self.work(cx, "flush", usize::MAX, Vec::new()).await;
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

/// A checkpoint store that notes every commit that is sent to it.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    inner: Arc<dyn CheckpointStore>,
    sent: Arc<Mutex<Vec<CheckpointWrite>>>,
}

impl Recorder {
    /// Notes what is sent to the group's store, with the faults of `plan`.
    pub(crate) fn of(plan: &mut Plan) -> Self {
        let store = Arc::new(plan.harness.checkpoints.clone());
        let inner = Arc::new(FaultyCheckpoints::new(store, plan.faults.checkpoints.clone()));
        let recorder = Self { inner, sent: Arc::default() };
        plan.streams[0].checkpoints = Some(Arc::new(recorder.clone()));
        recorder
    }

    pub(crate) fn sent(&self) -> Vec<CheckpointWrite> {
        self.sent.lock().unwrap().clone()
    }

    /// The numbers up to which was committed, as they were sent.
    pub(crate) fn positions(&self) -> Vec<u64> {
        let position = |write: &CheckpointWrite| write.position.as_ref().map_or(0, |it| Log::number(it).unwrap());
        self.sent().iter().map(position).collect()
    }
}

#[async_trait]
impl CheckpointStore for Recorder {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        self.inner.identity(cx).await
    }
    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        self.inner.claim(cx, grant).await
    }
    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        self.sent.lock().unwrap().extend_from_slice(writes);
        self.inner.commit(cx, writes).await
    }
    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        self.inner.load(cx, key).await
    }
    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        self.inner.ledger(cx, key, query).await
    }
}
