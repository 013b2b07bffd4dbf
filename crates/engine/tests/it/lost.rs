//! A stream that ever committed never begins anew by itself, whatever becomes of its checkpoint.

use std::sync::Arc;

use futures_util::FutureExt;
use watchkeeper_core::memory::{Log, TransactionalTable};
use watchkeeper_core::{CheckpointStore, LedgerKind, Records, StartAt};
use watchkeeper_engine::checkpoint::history::{CAPACITY, History};
use watchkeeper_engine::checkpoint::lost;
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::group::store_binding::StoreBindings;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

/// An instance whose stream would begin with what happens from now on.
fn plan(harness: &Harness, name: &str, transactional: bool) -> Plan {
    let plan = harness.instance(name).stream(|it| it.start = StartAt::Now);
    match transactional {
        true => plan.into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone()))),
        false => plan,
    }
}

fn delivered(harness: &Harness, transactional: bool) -> Vec<u64> {
    if transactional { numbers(&harness.checkpoints.delivered()) } else { harness.delivered() }
}

/// A harness in which three changes were delivered and committed and nobody runs, with three more that were not.
fn interrupted() -> Harness {
    let harness = Harness::new();
    let a = plan(&harness, "a", false).start();
    harness.until("a has the watch", || a.is_running());
    harness.append_many(3);
    harness.until("all is committed", || harness.committed() == 3);
    a.stop(&harness);
    harness.append_many(3);
    harness
}

fn cause_of_halt(harness: &Harness) -> Option<String> {
    // One that cannot be read is not halted yet.
    let stored =
        harness.checkpoints.load(&harness.cx(), &harness.key()).now_or_never().expect("memory answers at once");
    Some(stored.ok()??.halted?.cause)
}

/// Damages the checkpoint, and expects the next instance to halt, to name what is wrong and the newest position, and to go on where a
/// person says.
fn assert_halts(what: &str, damage: impl Fn(&Harness)) {
    let harness = interrupted();
    damage(&harness);
    let b = plan(&harness, "b", false).start();
    harness.until("the stream is halted", || cause_of_halt(&harness).is_some());
    let cause = cause_of_halt(&harness).expect("it is halted");
    let newest = Log::position(3, None).to_string();
    let set = format!("watchkeeper checkpoint set orders {newest}`");
    for part in ["checkpoint store: ", what, &newest, &set, "checkpoint reset"] {
        assert!(cause.contains(part), "{part:?} is not in: {cause}");
    }
    harness.run_for(10 * SECOND);
    assert_eq!(harness.delivered(), [1, 2, 3], "{what}: nothing is delivered, and nothing passed over");

    // Lifting the halt does not let it begin anew either.
    let report = harness.perform(Move::Resume);
    assert!(report.remarks.iter().any(|remark| remark.contains("halts again")), "{:?}", report.remarks);
    harness.until("it is halted again", || cause_of_halt(&harness).is_some());
    assert_eq!(harness.delivered(), [1, 2, 3]);

    let report = harness.perform(Move::Set(Log::position(3, None)));
    assert_eq!(report.ledgered, 1, "what may be passed over is recorded");
    harness.until("it goes on from there", || harness.delivered() == [1, 2, 3, 4, 5, 6]);
    harness.until("and commits", || harness.committed() == 6);
    assert!(harness.ledger().iter().all(|record| record.entry.kind == LedgerKind::Gap));
    b.stop(&harness);
}

#[test]
fn a_checkpoint_that_was_removed_halts_the_stream() {
    assert_halts("is missing", |harness| harness.checkpoints.remove(&harness.key()));
}

#[test]
fn a_checkpoint_that_cannot_be_read_halts_the_stream() {
    assert_halts("cannot be read", |harness| harness.checkpoints.damage(&harness.key()));
}

#[test]
fn a_checkpoint_without_its_position_halts_the_stream() {
    assert_halts("has no position", |harness| {
        harness.checkpoints.edit(&harness.key(), |stored| stored.position = None)
    });
}

#[test]
fn a_checkpoint_of_an_earlier_version_without_its_position_halts_the_stream() {
    assert_halts("has no position", |harness| {
        harness.checkpoints.edit(&harness.key(), |stored| (stored.position, stored.facts.begun) = (None, None));
    });
}

const HOME: &str = "shop/home/orders";

/// Leaves of the stream's home record what versions wrote that did not note commits yet.
fn age_home_record(harness: &Harness) {
    let binding = memory(Records::get(&harness.notes, &harness.cx(), HOME)).expect("it was noted");
    let store = serde_json::from_slice::<serde_json::Value>(&binding.bytes).expect("it is JSON")["store"].clone();
    let old = serde_json::json!({ "v": 1, "store": store }).to_string();
    memory(Records::put_if(&harness.notes, &harness.cx(), HOME, Some(binding.revision), old.into()));
}

fn delete_home_record(harness: &Harness) {
    let binding = memory(Records::get(&harness.notes, &harness.cx(), HOME)).expect("it was noted");
    memory(Records::delete_if(&harness.notes, &harness.cx(), HOME, binding.revision));
}

#[test]
fn a_stream_that_began_before_that_was_noted_halts_too() {
    let harness = interrupted();
    age_home_record(&harness);
    // The next tenure that finds a position notes it.
    let b = plan(&harness, "b", false).start();
    harness.until("b goes on", || harness.committed() == 6);
    b.stop(&harness);
    harness.checkpoints.remove(&harness.key());
    let _c = plan(&harness, "c", false).start();
    harness.until("the stream is halted", || cause_of_halt(&harness).is_some());
}

#[test]
fn the_history_proves_a_commit_that_an_old_home_record_does_not() {
    assert_halts("is missing", |harness| {
        age_home_record(harness);
        harness.checkpoints.remove(&harness.key());
    });
}

#[test]
fn the_history_proves_a_commit_without_a_home_record() {
    assert_halts("is missing", |harness| {
        delete_home_record(harness);
        harness.checkpoints.remove(&harness.key());
    });
}

#[test]
fn a_damaged_history_proves_a_commit_too() {
    let harness = interrupted();
    delete_home_record(&harness);
    harness.checkpoints.remove(&harness.key());
    let log = format!("shop/history/{}", harness.key());
    // With room for this block only: the readable one is rotated away.
    memory(Records::append(&harness.notes, &harness.cx(), &log, "damaged".into(), 1));
    let _b = plan(&harness, "b", false).start();
    harness.until("the stream is halted", || cause_of_halt(&harness).is_some());
    let cause = cause_of_halt(&harness).expect("it is halted");
    assert!(cause.contains("is missing") && cause.contains("its history has no position"), "{cause}");
    assert_eq!(harness.delivered(), [1, 2, 3]);
}

#[test]
fn people_see_a_loss_that_only_the_history_proves() {
    for forget in [age_home_record, delete_home_record] {
        let harness = interrupted();
        forget(&harness);
        harness.checkpoints.remove(&harness.key());
        let records: Arc<dyn Records> = Arc::new(harness.notes.clone());
        let (bindings, key) = (StoreBindings::new(Arc::clone(&records), "shop"), harness.key());
        let history = History::new(records, "shop", &key, CAPACITY);
        let shown = memory(lost::load(&harness.cx(), (&harness.checkpoints, &bindings), ("orders", &key), &history));
        let halted = shown.expect("it is shown").halted.expect("as halted");
        assert!(halted.cause.contains(&Log::position(3, None).to_string()), "{}", halted.cause);
    }
}

/// An operator's move writes a checkpoint, which later starts take as it is.
#[test]
fn what_an_operator_chose_is_not_taken_for_a_loss() {
    for requested in [Move::Reset, Move::Set(Log::position(6, None))] {
        for removed in [true, false] {
            let harness = interrupted();
            delete_home_record(&harness);
            if removed {
                harness.checkpoints.remove(&harness.key());
            }
            let report = harness.perform(requested.clone());
            assert_eq!(report.ledgered, 1, "what may be passed over is recorded: {requested:?}, removed: {removed}");
            for name in ["b", "c"] {
                let next = plan(&harness, name, false).start();
                harness.until("it has the watch", || next.is_running());
                let number = harness.append_many(1);
                harness.until("it delivers", || harness.committed() == number);
                next.stop(&harness);
            }
            assert_eq!(harness.delivered(), [1, 2, 3, 7, 8]);
            assert!(cause_of_halt(&harness).is_none(), "{:?}", cause_of_halt(&harness));
        }
    }
}

#[test]
fn what_is_removed_or_damaged_while_the_stream_runs_is_reported_as_what_it_is() {
    for transactional in [false, true] {
        let harness = Harness::new();
        let a = plan(&harness, "a", transactional).start();
        harness.until("a has the watch", || a.is_running());
        harness.append_many(3);
        harness.until("all is committed", || harness.committed() == 3);
        harness.checkpoints.remove(&harness.key());
        harness.append_many(3);
        harness.until("the stream is halted", || cause_of_halt(&harness).is_some());
        let cause = cause_of_halt(&harness).expect("it is halted");
        assert!(cause.contains("was removed") && !cause.contains("newer epoch"), "{cause}");
        assert_eq!(harness.committed(), 3, "the position that the holder knew is there again");
        assert!(a.status().last_error.is_some_and(|error| error.contains("was removed")));

        harness.perform(Move::Resume);
        harness.until("it goes on", || harness.committed() == 6);
        let all = delivered(&harness, transactional);
        assert!((1..=6).all(|number| all.contains(&number)), "{all:?}");
        assert!(harness.ledger().is_empty(), "nothing was passed over");
    }
}

#[test]
fn a_commit_replaces_what_was_damaged_while_the_stream_runs() {
    let harness = Harness::new();
    let a = plan(&harness, "a", false).start();
    harness.until("a has the watch", || a.is_running());
    harness.append_many(3);
    harness.until("all is committed", || harness.committed() == 3);
    harness.checkpoints.damage(&harness.key());
    harness.append_many(3);
    harness.until("all is delivered", || harness.delivered().len() == 6);
    harness.run_for(5 * SECOND);
    assert_eq!(harness.committed(), 6);
}

#[test]
fn a_stream_that_crashed_before_its_first_position_begins_without_an_alarm() {
    // Each call of the first start, one after the other, is the last that its instance makes.
    for (script, call, nth) in [
        ("checkpoints", "claim", 0),
        ("checkpoints", "commit", 0),
        ("checkpoints", "commit", 1),
        ("records", "put_if", 1),
        ("records", "put_if", 2),
        ("records", "put_if", 3),
    ] {
        for answered in [false, true] {
            let harness = Harness::new();
            harness.append_many(2);
            let plan = harness.instance("a");
            let (gate, faults) = (Gate::default(), plan.faults.clone());
            let script = if script == "records" { &faults.records } else { &faults.checkpoints };
            script.times(call, nth, &Fault::Good);
            script.next(call, if answered { Fault::HoldAnswer(gate.clone()) } else { Fault::Hold(gate.clone()) });
            let a = plan.start();
            harness.run_for(3 * SECOND);
            let reached = gate.arrived() > 0;
            a.node.kill();
            let b = harness.start("b");
            harness.until("b delivers everything", || harness.committed() == 2);
            harness.run_for(5 * SECOND);
            assert!(
                cause_of_halt(&harness).is_none(),
                "{call} {nth} (reached: {reached}): {:?}",
                cause_of_halt(&harness)
            );
            b.stop(&harness);
        }
    }
}

#[test]
fn a_stream_that_was_reset_begins_where_its_settings_say() {
    let harness = interrupted();
    harness.checkpoints.remove(&harness.key());
    let b = plan(&harness, "b", false).start();
    harness.until("the stream is halted", || cause_of_halt(&harness).is_some());
    let report = harness.perform(Move::Reset);
    assert_eq!((report.after, report.ledgered), (None, 1));
    harness.until("it begins anew", || {
        b.is_running() && harness.checkpoint().is_some_and(|stored| stored.position.is_some())
    });
    harness.append_many(1);
    harness.until("it delivers what happens from then on", || harness.delivered() == [1, 2, 3, 7]);
}

#[test]
fn other_streams_run_beside_one_that_has_lost_its_checkpoint() {
    let harness = interrupted();
    harness.checkpoints.damage(&harness.key());
    let b = harness.instance("b").and_stream("others").start();
    harness.until("the stream is halted", || cause_of_halt(&harness).is_some());
    harness.until("the other one delivers everything", || harness.committed_of("others") == 6);
    b.stop(&harness);
}
