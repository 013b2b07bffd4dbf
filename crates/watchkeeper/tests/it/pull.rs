use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper::core::{LedgerKind, LedgerQuery, LedgerRecord};
use watchkeeper::engine::delivery::BreakerSettings;
use watchkeeper::pull::{self, Changes, Delivery};
use watchkeeper::{
    CheckpointPolicy, CheckpointStore, HandlerError, InstanceSettings, LeaseKey, LeaseSettings, ListenerState,
    OnReject, Operation, Running, Seams, SinkSpec, SourceTime, StartAt, StoreIdentity, Stores, StreamSettings,
    StreamSpec,
};

/// A group in memory whose instances pull.
struct Group {
    seams: Seams,
    log: Log,
    stores: Stores,
    checkpoints: Checkpoints,
    on_reject: OnReject,
    lanes: usize,
    settings: pull::Settings,
    attempts: Option<u32>,
}

impl Group {
    fn new() -> Self {
        let seams = Seams::system();
        let checkpoints = Checkpoints::new(StoreIdentity(seams.entropy.uuid()));
        let stores = Stores {
            leases: Arc::new(Leases::new(Arc::clone(&seams.clock))),
            checkpoints: Arc::new(checkpoints.clone()),
            records: Arc::new(RecordStore::new(Arc::clone(&seams.clock))),
        };
        let settings = pull::Settings { settle: Duration::ZERO, ..pull::Settings::default() };
        let (log, on_reject) = (Log::new("log"), OnReject::default());
        Self { seams, log, stores, checkpoints, on_reject, lanes: 1, settings, attempts: Some(3) }
    }

    fn append(&self, bodies: std::ops::Range<u32>) {
        for body in bodies {
            let change = NewChange {
                operation: Operation::Insert,
                namespace: "orders".to_owned(),
                key: Some(format!("key {}", body % 3).into()),
                body: body.to_string().into(),
                first_half: false,
            };
            self.log.append(change, SourceTime(u64::from(body)));
        }
    }

    async fn start(&self, name: &str) -> (Running, Changes) {
        let (feed, changes) = pull::feed(self.settings).expect("the settings are good");
        let mut settings = StreamSettings { start: StartAt::Oldest, ..StreamSettings::new("orders") };
        settings.concurrency = self.lanes;
        settings.checkpoint = CheckpointPolicy { every: Duration::from_millis(20), ..settings.checkpoint };
        settings.retry.backoff.first = Duration::from_millis(5);
        settings.retry.attempts = self.attempts;
        settings.breaker =
            BreakerSettings { failures: 2, open_for: Duration::from_millis(20), ..BreakerSettings::default() };
        settings.give_up = Duration::from_millis(20);
        let sink = SinkSpec { on_reject: self.on_reject, ..SinkSpec::new("pulled", Arc::new(feed)) };
        let stream = StreamSpec { settings, source: Arc::new(self.log.clone()), sinks: vec![sink], checkpoints: None };
        let mut settings = InstanceSettings::new("shop", name);
        settings.lease = LeaseSettings::new(Duration::from_millis(500));
        settings.heartbeat_every = Duration::from_millis(20);
        settings.shutdown_grace = Duration::from_millis(200);
        let started = Running::start(self.seams.clone(), self.stores.clone(), settings, vec![stream]).await;
        (started.expect("the settings are right"), changes)
    }

    /// How many changes the committed checkpoint has passed.
    async fn passed(&self) -> u64 {
        let key = LeaseKey::new("shop/orders/0/0");
        let loaded = self.checkpoints.load(&self.seams.cx(), &key).await.expect("memory answers");
        loaded.map_or(0, |checkpoint| checkpoint.facts.changes)
    }

    async fn ledger(&self) -> Vec<LedgerRecord> {
        let (key, query) = (LeaseKey::new("shop/orders/0/0"), LedgerQuery { after: 0, limit: 10, open_only: false });
        self.checkpoints.ledger(&self.seams.cx(), &key, &query).await.expect("memory answers")
    }

    async fn until_passed(&self, changes: u64) {
        for _ in 0..1_000 {
            if self.passed().await == changes {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{changes} changes were never passed, only {}", self.passed().await);
    }
}

fn number(delivery: &Delivery) -> u32 {
    String::from_utf8_lossy(delivery.body()).parse().expect("bodies are numbers")
}

async fn take(changes: &mut Changes) -> Delivery {
    let next = tokio::time::timeout(Duration::from_secs(20), changes.next()).await.expect("a change comes in time");
    next.expect("the feed is there").expect("nothing was interrupted")
}

async fn expect(changes: &mut Changes, numbers: std::ops::Range<u32>) -> Vec<Delivery> {
    let mut taken = Vec::new();
    for expected in numbers {
        let delivery = take(changes).await;
        assert_eq!(number(&delivery), expected);
        taken.push(delivery);
    }
    taken
}

async fn until(running: &Running, state: ListenerState) {
    let mut status = running.status("orders").expect("the stream is there");
    while status.see().state != state {
        status.changed().await.expect("the instance is running");
    }
}

#[tokio::test]
async fn a_change_is_passed_when_it_and_all_before_it_are_acknowledged() {
    let group = Group::new();
    group.append(0..4);
    let (mut running, mut changes) = group.start("first").await;
    let mut taken = expect(&mut changes, 0..4).await;
    taken.remove(2).ack();
    taken.remove(0).ack();
    group.until_passed(1).await;
    taken.remove(0).ack();
    group.until_passed(3).await;
    running.shutdown();
    taken.remove(0).ack();
    running.join().await.expect("it had joined");
    assert_eq!(group.passed().await, 4);
    drop(running);
    assert!(changes.next().await.is_none(), "all was acknowledged, and the instance is gone");
}

#[tokio::test]
async fn what_was_not_acknowledged_comes_to_the_next_instance_and_the_first_is_reported() {
    let group = Group::new();
    group.append(0..5);
    let (first, mut changes) = group.start("first").await;
    until(&first, ListenerState::Running).await;
    let (_second, mut others) = group.start("second").await;
    let mut taken = expect(&mut changes, 0..4).await;
    taken.drain(..2).for_each(Delivery::ack);
    group.until_passed(2).await;

    drop(first);
    // Its tasks end at their next turn; until then the lease lasts, and the last change may be taken.
    let interrupted = loop {
        match changes.next().await.expect("it is told") {
            Ok(last) => taken.push(last),
            Err(interrupted) => break interrupted,
        }
    };
    assert_eq!(interrupted.epoch, taken[0].epoch());
    taken.into_iter().for_each(Delivery::ack);
    assert!(StreamExt::next(&mut changes).await.is_none(), "what was not taken is withdrawn");

    let taken = expect(&mut others, 2..5).await;
    assert!(taken[0].epoch() > interrupted.epoch);
    taken.into_iter().for_each(Delivery::ack);
    group.until_passed(5).await;
}

#[tokio::test]
async fn a_dropped_delivery_comes_again_before_what_follows_it() {
    let group = Group::new();
    group.append(0..5);
    let (_running, mut changes) = group.start("first").await;
    let mut taken = expect(&mut changes, 0..3).await;
    let last = taken.pop().expect("three were taken");
    drop(taken.pop());
    last.ack();
    taken.remove(0).ack();
    let taken = expect(&mut changes, 1..5).await;
    taken.into_iter().for_each(Delivery::ack);
    group.until_passed(5).await;
}

#[tokio::test]
async fn by_default_a_delivery_that_is_dropped_again_and_again_comes_again_and_nothing_halts() {
    let by_default = StreamSettings::new("orders").retry.attempts;
    assert_eq!(by_default, None, "the case of everyone who sets nothing");
    let group = Group { attempts: by_default, ..Group::new() };
    group.append(0..2);
    let (running, mut changes) = group.start("first").await;
    for _ in 0..10 {
        let delivery = take(&mut changes).await;
        assert_eq!(number(&delivery), 0, "what comes after it waits");
        drop(delivery);
    }
    let taken = expect(&mut changes, 0..2).await;
    let status = running.status("orders").expect("the stream is there").see().clone();
    assert_eq!((status.state, status.halted, status.tenures), (ListenerState::Running, false, 1));
    taken.into_iter().for_each(Delivery::ack);
    group.until_passed(2).await;
    assert_eq!(group.ledger().await, []);
}

#[tokio::test]
async fn a_failed_delivery_is_rejected_after_its_attempts_and_stands_in_the_ledger() {
    let group = Group { on_reject: OnReject::Skip, ..Group::new() };
    group.append(0..3);
    let (_running, mut changes) = group.start("first").await;
    take(&mut changes).await.fail(HandlerError::reject("never"));
    for _ in 0..3 {
        let delivery = take(&mut changes).await;
        assert_eq!(number(&delivery), 1);
        delivery.fail(std::io::Error::other("not now"));
    }
    let delivery = take(&mut changes).await;
    assert_eq!(number(&delivery), 2);
    delivery.ack();
    group.until_passed(3).await;
    let ledger = group.ledger().await;
    let causes: Vec<_> = ledger.iter().map(|record| (record.entry.kind, record.entry.cause.as_str())).collect();
    assert_eq!(causes.len(), 2, "{causes:?}");
    assert!(causes.iter().all(|(kind, _)| *kind == LedgerKind::Skipped), "{causes:?}");
    assert!(causes[1].1.contains("3 attempts: not now"), "{causes:?}");
}

#[tokio::test]
async fn at_most_so_many_are_in_hand_and_lanes_share_them() {
    let mut group = Group { lanes: 3, ..Group::new() };
    group.settings.in_hand = 4;
    group.append(0..200);
    let (_running, mut changes) = group.start("first").await;
    let mut seen = BTreeSet::new();
    while seen.len() < 200 {
        let mut taken = vec![take(&mut changes).await];
        while let Ok(Some(next)) = tokio::time::timeout(Duration::from_millis(2), changes.next()).await {
            taken.push(next.expect("nothing was interrupted"));
            assert!(taken.len() <= 4, "more than four are in hand");
        }
        for delivery in taken.into_iter().rev() {
            assert!(seen.insert(number(&delivery)), "{} came twice", number(&delivery));
            delivery.ack();
        }
    }
    group.until_passed(200).await;
}

#[tokio::test]
async fn whoever_acknowledges_nothing_gives_up_the_watch_to_another() {
    let mut group = Group::new();
    group.settings.patience = Duration::from_millis(30);
    group.append(0..3);
    let (first, mut changes) = group.start("first").await;
    let kept = expect(&mut changes, 0..1).await;
    let (_second, mut others) = group.start("second").await;
    let taken = expect(&mut others, 0..3).await;
    taken.into_iter().for_each(Delivery::ack);
    group.until_passed(3).await;
    let interrupted = changes.next().await.expect("it is told").expect_err("the watch is gone");
    assert_eq!(interrupted.epoch, kept[0].epoch());
    drop(first);
}

#[tokio::test]
async fn a_slow_caller_keeps_the_watch_without_another_and_is_not_handed_the_change_twice() {
    let mut group = Group::new();
    group.settings.patience = Duration::from_millis(10);
    group.append(0..2);
    let (running, mut changes) = group.start("first").await;
    let taken = expect(&mut changes, 0..2).await;
    // Many times its patience, and longer than a lease.
    let more = tokio::time::timeout(Duration::from_millis(600), changes.next()).await;
    assert!(more.is_err(), "neither handed out twice nor interrupted");
    assert_eq!(running.status("orders").expect("the stream is there").see().tenures, 1);
    taken.into_iter().for_each(Delivery::ack);
    group.until_passed(2).await;
}

#[tokio::test]
async fn without_a_caller_another_instance_has_the_watch() {
    let group = Group::new();
    group.append(0..2);
    let (first, mut changes) = group.start("first").await;
    expect(&mut changes, 0..1).await.into_iter().for_each(Delivery::ack);
    let (_second, mut others) = group.start("second").await;
    drop(changes);
    expect(&mut others, 1..2).await.into_iter().for_each(Delivery::ack);
    group.until_passed(2).await;
    let reported = first.status("orders").expect("the stream is there").see().last_error.clone();
    assert!(reported.is_some_and(|error| error.contains("nobody takes the changes")));
}

#[tokio::test]
async fn a_shutdown_leaves_what_is_not_acknowledged_to_the_next() {
    let group = Group::new();
    group.append(0..3);
    let (mut first, mut changes) = group.start("first").await;
    let mut taken = expect(&mut changes, 0..3).await;
    taken.remove(0).ack();
    first.shutdown();
    first.join().await.expect("it had joined");
    assert!(changes.next().await.expect("it is told").is_err());
    assert_eq!(group.passed().await, 1);
    let (_second, mut others) = group.start("second").await;
    expect(&mut others, 1..3).await.into_iter().for_each(Delivery::ack);
    group.until_passed(3).await;
}

#[tokio::test]
async fn the_sequence_ends_with_the_instance_also_while_its_handle_is_kept() {
    let group = Group::new();
    group.append(0..3);
    let (mut running, mut changes) = group.start("first").await;
    expect(&mut changes, 0..2).await.into_iter().for_each(Delivery::ack);
    running.shutdown();
    let drained = async {
        while let Some(next) = changes.next().await {
            next.expect("nothing was interrupted").ack();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), drained).await.expect("the sequence ends");
    running.join().await.expect("it had joined");
    assert_eq!(group.passed().await, 3);
}

#[tokio::test]
async fn a_caller_may_take_longer_than_a_lease() {
    let mut group = Group::new();
    // Three times the lease, which is renewed meanwhile.
    group.settings.patience = Duration::from_millis(1_500);
    group.append(0..1);
    let (_first, mut changes) = group.start("first").await;
    let taken = expect(&mut changes, 0..1).await;
    // Whoever is taken for unanswering gives up the watch to this one.
    let (_second, mut others) = group.start("second").await;
    let early = tokio::time::timeout(Duration::from_millis(1_200), others.next()).await;
    assert!(early.is_err(), "the caller was given up before its patience was over");
    taken.into_iter().for_each(Delivery::ack);
    group.until_passed(1).await;
}

#[test]
fn what_cannot_work_is_refused() {
    let base = pull::Settings::default();
    for settings in [
        pull::Settings { in_hand: 0, ..base },
        pull::Settings { patience: Duration::ZERO, ..base },
        pull::Settings { grade: watchkeeper::Grade::Transactional, ..base },
    ] {
        let error = pull::feed(settings).expect_err("it cannot work");
        assert_eq!(error.kind(), watchkeeper::ErrorKind::Config);
    }
}
