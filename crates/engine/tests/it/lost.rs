//! A stream that ever committed never begins anew by itself, whatever becomes of its checkpoint.

use std::sync::Arc;

use futures_util::FutureExt;
use watchkeeper_core::memory::{Log, TransactionalTable};
use watchkeeper_core::{CheckpointStore, LedgerKind, Records, StartAt};
use watchkeeper_engine::checkpoint::history::{CAPACITY, History};
use watchkeeper_engine::checkpoint::lost;
use watchkeeper_engine::checkpoint::operator::Move;
use watchkeeper_engine::group::home::Homes;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

/// An instance whose stream would begin with what happens from now on.
fn plan(rig: &Rig, name: &str, transactional: bool) -> Plan {
    let plan = rig.instance(name).stream(|it| it.start = StartAt::Now);
    match transactional {
        true => plan.into_sink(Arc::new(TransactionalTable::new(rig.checkpoints.clone()))),
        false => plan,
    }
}

fn delivered(rig: &Rig, transactional: bool) -> Vec<u64> {
    if transactional { numbers(&rig.checkpoints.delivered()) } else { rig.delivered() }
}

/// A rig in which three changes were delivered and committed and nobody runs, with three more that were not.
fn interrupted() -> Rig {
    let rig = Rig::new();
    let a = plan(&rig, "a", false).start();
    rig.until("a has the watch", || a.is_running());
    rig.append_many(3);
    rig.until("all is committed", || rig.committed() == 3);
    a.stop(&rig);
    rig.append_many(3);
    rig
}

fn cause_of_halt(rig: &Rig) -> Option<String> {
    // One that cannot be read is not halted yet.
    let stored = rig.checkpoints.load(&rig.cx(), &rig.key()).now_or_never().expect("memory answers at once");
    Some(stored.ok()??.halted?.cause)
}

/// Damages the checkpoint, and expects the next instance to halt, to name what is wrong and the newest position, and to go on where a
/// person says.
fn assert_halts(what: &str, damage: impl Fn(&Rig)) {
    let rig = interrupted();
    damage(&rig);
    let b = plan(&rig, "b", false).start();
    rig.until("the stream is halted", || cause_of_halt(&rig).is_some());
    let cause = cause_of_halt(&rig).expect("it is halted");
    let newest = Log::position(3, None).to_string();
    let set = format!("watchkeeper checkpoint set orders {newest}`");
    for part in ["checkpoint store: ", what, &newest, &set, "checkpoint reset"] {
        assert!(cause.contains(part), "{part:?} is not in: {cause}");
    }
    rig.run_for(10 * SECOND);
    assert_eq!(rig.delivered(), [1, 2, 3], "{what}: nothing is delivered, and nothing passed over");

    // Lifting the halt does not let it begin anew either.
    let report = rig.perform(Move::Resume);
    assert!(report.remarks.iter().any(|remark| remark.contains("halts again")), "{:?}", report.remarks);
    rig.until("it is halted again", || cause_of_halt(&rig).is_some());
    assert_eq!(rig.delivered(), [1, 2, 3]);

    let report = rig.perform(Move::Set(Log::position(3, None)));
    assert_eq!(report.ledgered, 1, "what may be passed over is recorded");
    rig.until("it goes on from there", || rig.delivered() == [1, 2, 3, 4, 5, 6]);
    rig.until("and commits", || rig.committed() == 6);
    assert!(rig.ledger().iter().all(|record| record.entry.kind == LedgerKind::Gap));
    b.stop(&rig);
}

#[test]
fn a_checkpoint_that_was_removed_halts_the_stream() {
    assert_halts("is missing", |rig| rig.checkpoints.remove(&rig.key()));
}

#[test]
fn a_checkpoint_that_cannot_be_read_halts_the_stream() {
    assert_halts("cannot be read", |rig| rig.checkpoints.damage(&rig.key()));
}

#[test]
fn a_checkpoint_without_its_position_halts_the_stream() {
    assert_halts("has no position", |rig| rig.checkpoints.edit(&rig.key(), |stored| stored.position = None));
}

#[test]
fn a_checkpoint_of_an_earlier_version_without_its_position_halts_the_stream() {
    assert_halts("has no position", |rig| {
        rig.checkpoints.edit(&rig.key(), |stored| (stored.position, stored.facts.begun) = (None, None));
    });
}

const HOME: &str = "shop/home/orders";

/// Leaves of the stream's home record what versions wrote that did not note commits yet.
fn age_home_record(rig: &Rig) {
    let home = memory(Records::get(&rig.notes, &rig.cx(), HOME)).expect("it was noted");
    let store = serde_json::from_slice::<serde_json::Value>(&home.bytes).expect("it is JSON")["store"].clone();
    let old = serde_json::json!({ "v": 1, "store": store }).to_string();
    memory(Records::put_if(&rig.notes, &rig.cx(), HOME, Some(home.revision), old.into()));
}

fn delete_home_record(rig: &Rig) {
    let home = memory(Records::get(&rig.notes, &rig.cx(), HOME)).expect("it was noted");
    memory(Records::delete_if(&rig.notes, &rig.cx(), HOME, home.revision));
}

#[test]
fn a_stream_that_began_before_that_was_noted_halts_too() {
    let rig = interrupted();
    age_home_record(&rig);
    // The next tenure that finds a position notes it.
    let b = plan(&rig, "b", false).start();
    rig.until("b goes on", || rig.committed() == 6);
    b.stop(&rig);
    rig.checkpoints.remove(&rig.key());
    let _c = plan(&rig, "c", false).start();
    rig.until("the stream is halted", || cause_of_halt(&rig).is_some());
}

#[test]
fn the_history_proves_a_commit_that_an_old_home_record_does_not() {
    assert_halts("is missing", |rig| {
        age_home_record(rig);
        rig.checkpoints.remove(&rig.key());
    });
}

#[test]
fn the_history_proves_a_commit_without_a_home_record() {
    assert_halts("is missing", |rig| {
        delete_home_record(rig);
        rig.checkpoints.remove(&rig.key());
    });
}

#[test]
fn a_damaged_history_proves_a_commit_too() {
    let rig = interrupted();
    delete_home_record(&rig);
    rig.checkpoints.remove(&rig.key());
    let log = format!("shop/history/{}", rig.key());
    // With room for this block only: the readable one is rotated away.
    memory(Records::append(&rig.notes, &rig.cx(), &log, "damaged".into(), 1));
    let _b = plan(&rig, "b", false).start();
    rig.until("the stream is halted", || cause_of_halt(&rig).is_some());
    let cause = cause_of_halt(&rig).expect("it is halted");
    assert!(cause.contains("is missing") && cause.contains("its history has no position"), "{cause}");
    assert_eq!(rig.delivered(), [1, 2, 3]);
}

#[test]
fn people_see_a_loss_that_only_the_history_proves() {
    for forget in [age_home_record, delete_home_record] {
        let rig = interrupted();
        forget(&rig);
        rig.checkpoints.remove(&rig.key());
        let records: Arc<dyn Records> = Arc::new(rig.notes.clone());
        let (homes, key) = (Homes::new(Arc::clone(&records), "shop"), rig.key());
        let history = History::new(records, "shop", &key, CAPACITY);
        let shown = memory(lost::load(&rig.cx(), (&rig.checkpoints, &homes), ("orders", &key), &history));
        let halted = shown.expect("it is shown").halted.expect("as halted");
        assert!(halted.cause.contains(&Log::position(3, None).to_string()), "{}", halted.cause);
    }
}

/// An operator's move writes a checkpoint, which later starts take as it is.
#[test]
fn what_an_operator_chose_is_not_taken_for_a_loss() {
    for wish in [Move::Reset, Move::Set(Log::position(6, None))] {
        for removed in [true, false] {
            let rig = interrupted();
            delete_home_record(&rig);
            if removed {
                rig.checkpoints.remove(&rig.key());
            }
            let report = rig.perform(wish.clone());
            assert_eq!(report.ledgered, 1, "what may be passed over is recorded: {wish:?}, removed: {removed}");
            for name in ["b", "c"] {
                let next = plan(&rig, name, false).start();
                rig.until("it has the watch", || next.is_running());
                let number = rig.append_many(1);
                rig.until("it delivers", || rig.committed() == number);
                next.stop(&rig);
            }
            assert_eq!(rig.delivered(), [1, 2, 3, 7, 8]);
            assert!(cause_of_halt(&rig).is_none(), "{:?}", cause_of_halt(&rig));
        }
    }
}

#[test]
fn what_is_removed_or_damaged_while_the_stream_runs_is_told_as_what_it_is() {
    for transactional in [false, true] {
        let rig = Rig::new();
        let a = plan(&rig, "a", transactional).start();
        rig.until("a has the watch", || a.is_running());
        rig.append_many(3);
        rig.until("all is committed", || rig.committed() == 3);
        rig.checkpoints.remove(&rig.key());
        rig.append_many(3);
        rig.until("the stream is halted", || cause_of_halt(&rig).is_some());
        let cause = cause_of_halt(&rig).expect("it is halted");
        assert!(cause.contains("was removed") && !cause.contains("newer epoch"), "{cause}");
        assert_eq!(rig.committed(), 3, "the position that the holder knew is there again");
        assert!(a.status().last_error.is_some_and(|error| error.contains("was removed")));

        rig.perform(Move::Resume);
        rig.until("it goes on", || rig.committed() == 6);
        let all = delivered(&rig, transactional);
        assert!((1..=6).all(|number| all.contains(&number)), "{all:?}");
        assert!(rig.ledger().is_empty(), "nothing was passed over");
    }
}

#[test]
fn a_commit_replaces_what_was_damaged_while_the_stream_runs() {
    let rig = Rig::new();
    let a = plan(&rig, "a", false).start();
    rig.until("a has the watch", || a.is_running());
    rig.append_many(3);
    rig.until("all is committed", || rig.committed() == 3);
    rig.checkpoints.damage(&rig.key());
    rig.append_many(3);
    rig.until("all is delivered", || rig.delivered().len() == 6);
    rig.run_for(5 * SECOND);
    assert_eq!(rig.committed(), 6);
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
            let rig = Rig::new();
            rig.append_many(2);
            let plan = rig.instance("a");
            let (gate, faults) = (Gate::default(), plan.faults.clone());
            let script = if script == "records" { &faults.records } else { &faults.checkpoints };
            script.times(call, nth, &Fault::Good);
            script.next(call, if answered { Fault::HoldAnswer(gate.clone()) } else { Fault::Hold(gate.clone()) });
            let a = plan.start();
            rig.run_for(3 * SECOND);
            let reached = gate.arrived() > 0;
            a.node.kill();
            let b = rig.start("b");
            rig.until("b delivers everything", || rig.committed() == 2);
            rig.run_for(5 * SECOND);
            assert!(cause_of_halt(&rig).is_none(), "{call} {nth} (reached: {reached}): {:?}", cause_of_halt(&rig));
            b.stop(&rig);
        }
    }
}

#[test]
fn a_stream_that_was_reset_begins_where_its_settings_say() {
    let rig = interrupted();
    rig.checkpoints.remove(&rig.key());
    let b = plan(&rig, "b", false).start();
    rig.until("the stream is halted", || cause_of_halt(&rig).is_some());
    let report = rig.perform(Move::Reset);
    assert_eq!((report.after, report.ledgered), (None, 1));
    rig.until("it begins anew", || b.is_running() && rig.checkpoint().is_some_and(|stored| stored.position.is_some()));
    rig.append_many(1);
    rig.until("it delivers what happens from then on", || rig.delivered() == [1, 2, 3, 7]);
}

#[test]
fn other_streams_run_beside_one_that_has_lost_its_checkpoint() {
    let rig = interrupted();
    rig.checkpoints.damage(&rig.key());
    let b = rig.instance("b").and_stream("others").start();
    rig.until("the stream is halted", || cause_of_halt(&rig).is_some());
    rig.until("the other one delivers everything", || rig.committed_of("others") == 6);
    b.stop(&rig);
}
