//! Operators' moves over memory stores: a holder that leaves, one that does not, stores that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Entropy,
    Epoch, Error, ErrorKind, Facts, Grade, Grant, Halted, Holder, LeaseKey, LeaseStore, LedgerEntry, LedgerKind,
    LedgerQuery, LedgerRecord, Limits, Operation, Position, Reason, Released, Resolution, Result, SinkProfile, Source,
    SourceTime, StartAt, StoreIdentity, StoredChange,
};
use watchkeeper_engine::checkpoint::history::{CAPACITY, History, HistoryEntry};
use watchkeeper_engine::checkpoint::operator::{Back, Move, MoveReport, NAME, Operator, Subject};
use watchkeeper_engine::group::control::{Control, Controls};
use watchkeeper_engine::group::journal::{Cause, Journal};
use watchkeeper_engine::group::poison::Poison;

use crate::group::{Hand, block_on};

const TTL: Duration = Duration::from_secs(5);

struct World {
    clock: Arc<Hand>,
    cx: Cx,
    leases: Leases,
    checkpoints: Checkpoints,
    notes: RecordStore,
    log: Log,
    entropy: Arc<Entropy>,
    key: LeaseKey,
    sinks: Vec<(String, SinkProfile)>,
}

impl World {
    /// A log of ten changes of which the last two are the halves of one.
    fn new() -> Self {
        let clock = Arc::new(Hand::default());
        let log = Log::new("log");
        for number in 1..=10_u64 {
            let key = Some(Bytes::copy_from_slice(&number.to_be_bytes()));
            let (namespace, body) = ("shop.orders".into(), Bytes::from_static(b"{}"));
            let first_half = number == 9;
            log.append(
                NewChange { operation: Operation::Insert, namespace, key, body, first_half },
                SourceTime(number),
            );
        }
        let entropy = Arc::new(Entropy::seeded(21));
        let grades = [Grade::Plain, Grade::Idempotent, Grade::Versioned, Grade::Fenced, Grade::Transactional];
        let sink = |grade| (format!("{grade:?}").to_lowercase(), SinkProfile::new(grade, Duration::ZERO));
        Self {
            cx: Cx::new(Arc::<Hand>::clone(&clock)),
            leases: Leases::new(Arc::<Hand>::clone(&clock)),
            checkpoints: Checkpoints::new(StoreIdentity(entropy.uuid())),
            notes: RecordStore::new(Arc::<Hand>::clone(&clock)),
            clock,
            log,
            entropy,
            key: LeaseKey::new("orders"),
            sinks: grades.map(sink).to_vec(),
        }
    }

    fn operator(&self) -> Operator {
        self.operator_with(Arc::new(self.leases.clone()), Arc::new(self.checkpoints.clone()))
    }

    fn operator_with(&self, leases: Arc<dyn LeaseStore>, checkpoints: Arc<dyn CheckpointStore>) -> Operator {
        let (records, group, entropy) = (Arc::new(self.notes.clone()), "shop".to_owned(), Arc::clone(&self.entropy));
        Operator { leases, checkpoints, records, group, entropy, ttl: TTL }
    }

    fn subject(&self) -> Subject<'_> {
        Subject { stream: "orders", key: &self.key, source: &self.log, sinks: &self.sinks }
    }

    fn controls(&self) -> Controls {
        Controls::new(Arc::new(self.notes.clone()), "shop")
    }

    async fn control(&self) -> Control {
        self.controls().read(&self.cx, "orders").await.unwrap()
    }

    async fn acquire(&self, name: &str, ttl: Duration) -> Grant {
        let (instance, tenure) = (self.entropy.instance(), self.entropy.tenure());
        let candidate = Candidate { instance, name: name.into(), address: None, tenure };
        let ask = AcquireRequest { key: self.key.clone(), candidate, ttl, floor: Epoch::ZERO, break_holder: None };
        match self.leases.try_acquire(&self.cx, &ask).await.unwrap() {
            Acquired::Granted { grant, .. } => grant,
            Acquired::Held(holder) => panic!("held by {holder:?}"),
        }
    }

    async fn commit(&self, grant: &Grant, seq: u64, number: u64, halted: Option<Halted>) -> Commit {
        let write = CheckpointWrite {
            grant: grant.clone(),
            seq,
            position: Some(Log::position(number, Some(SourceTime(number)))),
            pedigree: Some(self.log.identity(&self.cx).await.unwrap()),
            reason: Reason::Progress,
            halted,
            facts: Facts { changes: number, processed_by: "a".into(), failovers: 3, ..Facts::default() },
            ledger: Vec::new(),
            resolve: Vec::new(),
        };
        self.checkpoints.commit(&self.cx, &[write]).await.unwrap()[0]
    }

    /// A holder that committed changes 1 to `number`, one by one, kept a history and holds on.
    async fn run_to(&self, number: u64, ttl: Duration) -> Grant {
        let grant = self.acquire("a", ttl).await;
        assert!(matches!(self.checkpoints.claim(&self.cx, &grant).await.unwrap(), Claim::Claimed(_)));
        let mut history = self.history();
        for seq in 1..=number {
            assert_eq!(self.commit(&grant, seq, seq, None).await, Commit::Committed);
            history.note(&self.checkpoint().await);
        }
        history.close(&self.cx).await.unwrap();
        grant
    }

    async fn stood_at(&self, number: u64) {
        let grant = self.run_to(number, TTL).await;
        self.leases.release(&self.cx, &grant).await.unwrap();
    }

    fn history(&self) -> History {
        History::new(Arc::new(self.notes.clone()), "shop", &self.key, CAPACITY)
    }

    async fn checkpoint(&self) -> Checkpoint {
        self.checkpoints.load(&self.cx, &self.key).await.unwrap().unwrap()
    }

    async fn stands_at(&self) -> u64 {
        Log::number(&self.checkpoint().await.position.unwrap()).unwrap()
    }

    async fn ledger(&self) -> Vec<LedgerRecord> {
        let query = LedgerQuery { after: 0, limit: 100, open_only: false };
        self.checkpoints.ledger(&self.cx, &self.key, &query).await.unwrap()
    }

    async fn perform(&self, requested: Move) -> Result<MoveReport> {
        let answer = self.operator().move_to(&self.cx, &self.subject(), requested).await;
        // Whatever came of it: nobody holds, nothing is paused.
        assert_eq!(self.leases.holders(&self.cx, std::slice::from_ref(&self.key)).await.unwrap(), [None]);
        let lifted = answer.as_ref().ok().filter(|report| report.lifted.is_some()).map(|report| report.epoch);
        let control = self.control().await;
        let resumed = control.resumed;
        let mut expected = Control::default();
        expected.resumed = resumed;
        assert_eq!(control, expected);
        assert!(resumed >= lifted, "{resumed:?} instead of {lifted:?}");
        answer
    }

    /// The ledger entry for change `number`, and the position after it.
    async fn rejected(&self, number: u64) -> (LedgerEntry, Position) {
        let mut stream = self.log.open(&self.cx, StartAt::After(Log::position(number - 1, None))).await.unwrap();
        let limits = Limits { rows: 1, bytes: 64 * 1024, wait: Duration::ZERO };
        let batch = Arc::new(stream.next_batch(&self.cx, limits).await.unwrap());
        let change = watchkeeper_core::Change::new(batch, 0);
        let entry = LedgerEntry {
            kind: LedgerKind::Skipped,
            sink: "plain".into(),
            change_id: change.id().to_string(),
            cause: "too long".into(),
            before: None,
            change: Some(StoredChange::keep(&change)),
        };
        (entry, change.batch().end.clone())
    }
}

fn at(number: u64) -> Position {
    Log::position(number, Some(SourceTime(number)))
}

fn halt() -> Option<Halted> {
    Some(Halted::new("WK-CONFIG", "rejected", None))
}

#[test]
fn going_back_by_changes_counts_what_was_delivered_twice_once() {
    let world = World::new();
    block_on(async {
        world.stood_at(8).await;
        world.perform(Move::Rewind(Back::Changes(3))).await.unwrap();
        assert_eq!(world.stands_at().await, 5);
        world.perform(Move::Rewind(Back::Changes(2))).await.unwrap();
        assert_eq!(world.stands_at().await, 3, "8 were delivered, but 5 was passed as the fifth");
        let error = world.perform(Move::Rewind(Back::Changes(3))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.message().contains("the history reaches back 2"), "{error}");
        assert_eq!(world.stands_at().await, 3);
    });
}

#[test]
fn a_rewind_is_one_commit_of_a_tenure_of_its_own() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        let before = world.checkpoint().await;
        let report = world.perform(Move::Rewind(Back::Steps(3))).await.unwrap();
        let after = world.checkpoint().await;
        assert_eq!((report.before, report.after), (Some(at(8)), Some(at(5))));
        assert_eq!((after.position, after.seq, after.reason), (Some(at(5)), 1, Reason::Operator));
        assert_eq!(after.pedigree, before.pedigree);
        assert!(after.epoch > before.epoch && after.tenure != before.tenure);
        assert_eq!((after.facts.processed_by.as_str(), after.facts.failovers), (NAME, 3));
        assert_eq!((report.ledgered, report.epoch, report.remarks.len()), (0, after.epoch, 0));
        // Back again counts from where it stands now, although the history knows later ones.
        world.perform(Move::Rewind(Back::Steps(1))).await.unwrap();
        assert_eq!(world.stands_at().await, 4);
        // And the move itself is a place in the history.
        let newest = world.history().read(&world.cx, 1).await.unwrap().remove(0);
        assert_eq!((newest.position, newest.by.as_str()), (at(4), NAME));
    });
}

#[test]
fn the_report_names_the_sinks_that_swallow_a_replay() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        let report = world.perform(Move::Rewind(Back::Steps(1))).await.unwrap();
        let named = |sink: &str| report.swallowing.iter().any(|sentence| sentence.contains(&format!("Sink {sink} ")));
        let sinks = ["plain", "idempotent", "versioned", "fenced", "transactional"];
        assert_eq!(sinks.map(named), [false, true, true, false, false]);
        // Nothing is replayed by going on.
        let report = world.perform(Move::Set(at(10))).await.unwrap();
        assert_eq!(report.swallowing, [""; 0]);
    });
}

#[test]
fn a_rewind_that_is_not_back_is_refused_and_changes_nothing() {
    block_on(async {
        let world = World::new();
        world.stood_at(5).await;
        let before = world.checkpoint().await;
        let entry = HistoryEntry::of(&before).unwrap();
        let to = |position| Move::Rewind(Back::To(Box::new(HistoryEntry::at(position, entry.pedigree.clone()))));
        let garbage = Position::new(vec![1], None);
        let requests = [
            to(at(5)),
            to(at(6)),
            to(garbage),
            Move::Rewind(Back::Steps(0)),
            Move::Rewind(Back::Steps(5)),
            Move::Resolve { numbers: vec![], resolution: Resolution::Purged },
            Move::Resolve { numbers: vec![1], resolution: Resolution::Purged },
        ];
        for requested in requests {
            let error = world.perform(requested.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{requested:?}: {error}");
            assert_eq!(world.checkpoint().await, before, "{requested:?}");
        }
        world.perform(to(at(4))).await.unwrap();
        assert_eq!(world.stands_at().await, 4);
    });
}

#[test]
fn a_position_of_another_log_is_refused() {
    block_on(async {
        let world = World::new();
        world.stood_at(5).await;
        let mut entry = HistoryEntry::of(&world.checkpoint().await).unwrap();
        entry.position = at(2);
        entry.pedigree = Some(watchkeeper_core::Pedigree(Bytes::from_static(b"restored")));
        let error = world.perform(Move::Rewind(Back::To(Box::new(entry)))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PositionLost);
        assert_eq!(world.stands_at().await, 5);
    });
}

#[test]
fn setting_ahead_leaves_a_gap_in_the_ledger_and_setting_back_does_not() {
    block_on(async {
        let world = World::new();
        // The first position of all passes over nothing that anyone knows of.
        assert_eq!(world.perform(Move::Set(at(2))).await.unwrap().ledgered, 0);
        assert_eq!(world.perform(Move::Set(at(7))).await.unwrap().ledgered, 1);
        let gap = world.ledger().await.remove(0).entry;
        assert_eq!((gap.kind, gap.before), (LedgerKind::Gap, Some(at(2))));
        assert_eq!(world.perform(Move::Set(at(3))).await.unwrap().ledgered, 0);
        // Where the source cannot tell, something may be passed over.
        assert_eq!(world.perform(Move::Set(Position::new(vec![1], None))).await.unwrap().ledgered, 1);
        assert_eq!(world.ledger().await.len(), 2);
    });
}

#[test]
fn a_skip_stands_in_the_ledger_and_lifts_the_halt() {
    block_on(async {
        let world = World::new();
        let grant = world.run_to(5, TTL).await;
        assert_eq!(world.commit(&grant, 6, 5, halt()).await, Commit::Committed);
        world.leases.release(&world.cx, &grant).await.unwrap();
        let (entry, to) = world.rejected(6).await;
        let report = world.perform(Move::Skip { entry: Box::new(entry.clone()), to }).await.unwrap();
        assert_eq!((report.ledgered, report.lifted), (1, halt()));
        assert_eq!((world.stands_at().await, world.checkpoint().await.halted), (6, None));
        let expected = LedgerEntry { before: Some(at(5)), ..entry };
        assert_eq!(world.ledger().await.remove(0).entry, expected);
    });
}

#[test]
fn a_skip_that_would_pass_over_more_is_refused() {
    block_on(async {
        let world = World::new();
        world.stood_at(5).await;
        let (sixth, _) = world.rejected(6).await;
        let (seventh, to_seventh) = world.rejected(7).await;
        let gap = LedgerEntry { kind: LedgerKind::Gap, ..sixth.clone() };
        let (to_sixth, skip) =
            (at(6), |entry: &LedgerEntry, to: &Position| Move::Skip { entry: Box::new(entry.clone()), to: to.clone() });
        for requested in
            [skip(&seventh, &to_seventh), skip(&sixth, &to_seventh), skip(&seventh, &to_sixth), skip(&gap, &to_sixth)]
        {
            assert_eq!(world.perform(requested).await.unwrap_err().kind(), ErrorKind::Config);
        }
        assert_eq!((world.stands_at().await, world.ledger().await.len()), (5, 0));
        // There is nothing after the end.
        world.perform(Move::Set(at(10))).await.unwrap();
        assert_eq!(world.perform(skip(&sixth, &at(11))).await.unwrap_err().kind(), ErrorKind::Config);
    });
}

#[test]
fn a_skip_of_another_change_than_the_one_that_halted_the_stream_is_refused() {
    block_on(async {
        let world = World::new();
        let grant = world.run_to(5, TTL).await;
        let ((sixth, to_sixth), (seventh, _)) = (world.rejected(6).await, world.rejected(7).await);
        let halted = halt().map(|halt| Halted::new(halt.code, halt.cause, Some(seventh.change_id.clone())));
        assert_eq!(world.commit(&grant, 6, 5, halted.clone()).await, Commit::Committed);
        world.leases.release(&world.cx, &grant).await.unwrap();
        let skip = Move::Skip { entry: Box::new(sixth), to: to_sixth };
        let error = world.perform(skip.clone()).await.unwrap_err();
        assert!(error.message().contains(&seventh.change_id), "{error}");
        assert!(error.advice().unwrap().contains("resume the stream"), "{error}");
        assert_eq!((world.stands_at().await, world.checkpoint().await.halted), (5, halted));
        world.perform(Move::Resume).await.unwrap();
        world.perform(skip).await.unwrap();
        assert_eq!(world.stands_at().await, 6, "a stream that is not halted has no such change");
    });
}

#[test]
fn both_halves_of_a_key_update_are_skipped_together() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        let (first, to) = world.rejected(9).await;
        let first = LedgerEntry { kind: LedgerKind::DeadLetter, ..first };
        let report = world.perform(Move::Skip { entry: Box::new(first.clone()), to }).await.unwrap();
        assert_eq!(report.ledgered, 2);
        let ledger = world.ledger().await;
        assert_eq!(ledger[0].entry.change_id, first.change_id);
        let second = ledger[1].entry.change.as_ref().unwrap();
        assert_eq!((ledger[1].entry.kind, second.half, &second.position), (LedgerKind::DeadLetter, 1, &at(10)));
        assert_eq!((world.stands_at().await, world.checkpoint().await.facts.letters), (10, 2));
    });
}

/// A stream that stands at 5, halted since it lost history.
async fn lost() -> World {
    let world = World::new();
    let grant = world.run_to(5, TTL).await;
    let code = watchkeeper_core::ErrorKind::PositionLost.code();
    world.commit(&grant, 6, 5, Some(Halted::new(code, "lost", None))).await;
    world.leases.release(&world.cx, &grant).await.unwrap();
    world
}

#[test]
fn an_accepted_gap_is_recorded_and_never_goes_back() {
    block_on(async {
        let world = lost().await;
        let requested = |to| Move::AcceptGap { to, cause: "the oplog was too small".into(), leaves_snapshot: false };
        let error = world.perform(requested(at(3))).await.unwrap_err();
        assert!(error.message().contains("is before the checkpoint") && error.advice().is_some(), "{error}");
        assert_eq!((world.stands_at().await, world.ledger().await.len()), (5, 0));
        assert_eq!(world.perform(requested(at(9))).await.unwrap().ledgered, 1);
        let ledger = world.ledger().await;
        assert_eq!((ledger.len(), ledger[0].entry.kind), (1, LedgerKind::Gap));
        assert_eq!(ledger[0].entry.cause, "the oplog was too small");
    });
}

#[test]
fn a_gap_that_nobody_has_is_not_accepted() {
    block_on(async {
        for (halted, remedy) in [(None, "checkpoint set"), (halt(), "watchkeeper resume")] {
            let world = World::new();
            let grant = world.run_to(5, TTL).await;
            world.commit(&grant, 6, 5, halted).await;
            world.leases.release(&world.cx, &grant).await.unwrap();
            let requested = Move::AcceptGap { to: at(7), cause: "by mistake".into(), leaves_snapshot: false };
            let error = world.perform(requested).await.unwrap_err();
            assert!(error.message().contains("has lost no history"), "{error}");
            assert!(error.advice().is_some_and(|advice| advice.contains(remedy)), "{error:?}");
            assert_eq!((world.stands_at().await, world.ledger().await.len()), (5, 0));
        }
    });
}

#[test]
fn resuming_clears_the_halt_and_what_was_counted_as_fatal() {
    block_on(async {
        let world = World::new();
        let grant = world.run_to(5, TTL).await;
        world.commit(&grant, 6, 5, halt()).await;
        world.leases.release(&world.cx, &grant).await.unwrap();
        let poison = Poison::new(Arc::new(world.notes.clone()), "shop");
        poison.record(&world.cx, "orders", "x", world.entropy.instance()).await.unwrap();
        world.controls().update(&world.cx, "orders", |control| control.halted_hint = true).await.unwrap();
        let report = world.perform(Move::Resume).await.unwrap();
        assert_eq!((report.lifted, report.before, report.after), (halt(), Some(at(5)), Some(at(5))));
        assert_eq!(world.checkpoint().await.halted, None);
        assert_eq!(poison.record(&world.cx, "orders", "x", world.entropy.instance()).await.unwrap(), 1);
        let journal = Journal::new(Arc::new(world.notes.clone()), "shop");
        assert_eq!(journal.release_notice(&world.cx, "orders").await.unwrap().unwrap().0.cause, Cause::Operator);
    });
}

#[test]
fn purging_settles_letters_and_leaves_position_and_halt() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        let (entry, to) = world.rejected(9).await;
        let entry = Box::new(LedgerEntry { kind: LedgerKind::DeadLetter, ..entry });
        world.perform(Move::Skip { entry, to }).await.unwrap();
        let grant = world.acquire("a", TTL).await;
        world.checkpoints.claim(&world.cx, &grant).await.unwrap();
        let letters = world.checkpoint().await.facts.letters;
        assert_eq!(world.commit(&grant, 1, 10, halt()).await, Commit::Committed);
        world.leases.release(&world.cx, &grant).await.unwrap();
        assert_eq!(letters, 2);
        let operator = world.operator();
        let purge = |numbers| Move::Resolve { numbers, resolution: Resolution::Purged };
        world.controls().update(&world.cx, "orders", |control| control.halted_hint = true).await.unwrap();
        operator.move_to(&world.cx, &world.subject(), purge(vec![2])).await.unwrap();
        let resolutions: Vec<_> = world.ledger().await.iter().map(|record| record.resolution).collect();
        assert_eq!(resolutions, [None, Some(Resolution::Purged)]);
        assert_eq!((world.stands_at().await, world.checkpoint().await.halted), (10, halt()));
        assert!(world.control().await.halted_hint);
        // What is settled cannot be settled again.
        let error = operator.move_to(&world.cx, &world.subject(), purge(vec![1, 2])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(world.ledger().await[0].resolution, None);
    });
}

#[test]
fn a_holder_is_asked_to_leave_and_waited_for() {
    block_on(async {
        let world = World::new();
        let grant = world.run_to(8, Duration::from_secs(3_600)).await;
        let holder = async {
            // A holder that watches its control record, as listeners do.
            while !world.control().await.asks_to_leave(grant.epoch) {
                tokio::task::yield_now().await;
            }
            assert_eq!(world.commit(&grant, 9, 10, None).await, Commit::Committed);
            assert_eq!(world.leases.release(&world.cx, &grant).await.unwrap(), Released::Released);
        };
        let (moved, ()) = tokio::join!(world.perform(Move::Rewind(Back::Steps(8))), holder);
        // From where the holder stood when it had left, not when the move was asked for.
        assert_eq!(moved.unwrap().before, Some(at(10)));
        assert_eq!(world.stands_at().await, 1);
    });
}

#[test]
fn a_holder_that_did_not_notice_is_fenced() {
    block_on(async {
        let world = World::new();
        let grant = world.run_to(5, TTL).await;
        // It is paused by its machine: no release, no renewal. Its lease runs out while we wait.
        let report = world.perform(Move::Rewind(Back::Steps(2))).await.unwrap();
        assert!(report.epoch > grant.epoch);
        assert_eq!(world.commit(&grant, 6, 6, None).await, Commit::Fenced);
        assert_eq!(world.stands_at().await, 3);
    });
}

#[test]
fn a_holder_that_stays_is_named_and_the_pause_is_lifted() {
    block_on(async {
        let world = World::new();
        let grant = world.run_to(5, Duration::from_secs(3_600)).await;
        let cx = world.cx.within(Duration::from_secs(10));
        let error = world.operator().move_to(&cx, &world.subject(), Move::Set(at(1))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("held by a under epoch 1"), "{error}");
        assert_eq!(world.control().await, Control::default());
        // It was neither broken nor fenced.
        assert_eq!(world.commit(&grant, 6, 6, None).await, Commit::Committed);
    });
}

#[test]
fn a_stream_that_people_paused_stays_paused() {
    block_on(async {
        let world = World::new();
        world.stood_at(5).await;
        world.controls().update(&world.cx, "orders", Control::pause).await.unwrap();
        world.operator().move_to(&world.cx, &world.subject(), Move::Set(at(1))).await.unwrap();
        let control = world.control().await;
        assert!(control.paused && control.moves.is_none());
    });
}

#[test]
fn a_lease_store_that_lost_its_epochs_is_overtaken() {
    block_on(async {
        let world = World::new();
        for _ in 0..3 {
            world.stood_at(2).await;
        }
        let newest = world.checkpoint().await.epoch;
        world.leases.forget();
        let report = world.perform(Move::Set(at(1))).await.unwrap();
        assert!(report.epoch > newest, "{report:?}");
        assert_eq!(world.stands_at().await, 1);
    });
}

/// Checkpoints whose next answers are lost, after or before they took effect.
#[derive(Debug)]
struct Lossy {
    inner: Checkpoints,
    lost: AtomicUsize,
    refuse: bool,
}

#[async_trait]
impl CheckpointStore for Lossy {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        self.inner.identity(cx).await
    }
    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        self.inner.claim(cx, grant).await
    }
    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        if self.refuse {
            return Err(Error::unavailable("the store is down"));
        }
        let answers = self.inner.commit(cx, writes).await?;
        let lost = self.lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        lost.map_or(Ok(answers), |_| Err(Error::unknown("the answer was lost")))
    }
    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        self.inner.load(cx, key).await
    }
    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        self.inner.ledger(cx, key, query).await
    }
}

async fn with_lossy(world: &World, lost: usize, refuse: bool) -> Result<MoveReport> {
    let checkpoints = Lossy { inner: world.checkpoints.clone(), lost: AtomicUsize::new(lost), refuse };
    let operator = world.operator_with(Arc::new(world.leases.clone()), Arc::new(checkpoints));
    let answer = operator.move_to(&world.cx, &world.subject(), Move::Rewind(Back::Steps(2))).await;
    assert_eq!(world.leases.holders(&world.cx, std::slice::from_ref(&world.key)).await.unwrap(), [None]);
    assert_eq!(world.control().await, Control::default());
    answer
}

#[test]
fn a_lost_answer_does_not_go_back_twice() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        let report = with_lossy(&world, 2, false).await.unwrap();
        assert_eq!((report.after, world.stands_at().await), (Some(at(6)), 6));
        assert_eq!(with_lossy(&world, usize::MAX, false).await.unwrap_err().kind(), ErrorKind::Unknown);
    });
}

#[test]
fn after_a_failed_commit_the_pause_is_lifted_and_the_lease_free() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        assert_eq!(with_lossy(&world, 0, true).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(world.stands_at().await, 8);
    });
}

/// Leases whose grants take effect, but whose answers never arrive.
#[derive(Debug)]
struct Mute(Leases);

#[async_trait]
impl LeaseStore for Mute {
    fn profile(&self) -> watchkeeper_core::LeaseProfile {
        self.0.profile()
    }
    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        self.0.try_acquire(cx, ask).await?;
        Err(Error::unknown("the answer was lost"))
    }
    async fn renew(&self, cx: &Cx, leases: &[watchkeeper_core::Lease]) -> Result<Vec<watchkeeper_core::Renewal>> {
        self.0.renew(cx, leases).await
    }
    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        self.0.release(cx, grant).await
    }
    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        self.0.holders(cx, keys).await
    }
    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn watchkeeper_core::Wakeups>> {
        self.0.wakeups(cx).await
    }
    async fn separate(&self, cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        self.0.separate(cx).await
    }
}

#[test]
fn a_grant_whose_answer_was_lost_is_given_back() {
    block_on(async {
        let world = World::new();
        world.stood_at(5).await;
        let mute = Arc::new(Mute(world.leases.clone()));
        let operator = world.operator_with(mute, Arc::new(world.checkpoints.clone()));
        let error = operator.move_to(&world.cx, &world.subject(), Move::Set(at(1))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert_eq!(world.leases.holders(&world.cx, std::slice::from_ref(&world.key)).await.unwrap(), [None]);
        assert_eq!((world.stands_at().await, world.control().await), (5, Control::default()));
    });
}

#[test]
fn two_moves_at_once_follow_each_other() {
    block_on(async {
        let world = World::new();
        world.stood_at(8).await;
        let operator = world.operator();
        let (cx, subject) = (&world.cx, world.subject());
        let back = || operator.move_to(cx, &subject, Move::Rewind(Back::Steps(2)));
        let (a, b) = tokio::join!(back(), back());
        assert!(a.unwrap().epoch != b.unwrap().epoch);
        assert_eq!((world.stands_at().await, world.control().await), (4, Control::default()));
    });
}

#[test]
fn a_move_can_be_spawned() {
    fn is_send<T: Send>(_: &T) {}
    let world = World::new();
    let (operator, subject) = (world.operator(), world.subject());
    is_send(&operator.move_to(&world.cx, &subject, Move::Resume));
    world.clock.advance(TTL);
}
