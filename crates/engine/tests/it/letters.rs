//! Dead letters: parked keys, takeover, replay, purge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, Cx, ErrorKind, FaultKind, Finding, FlushRejection, LedgerKind, LedgerRecord, OpenedSink, Operation,
    Resolution, Result, Sink, SinkContext, SinkProfile, SinkWriter, Written,
};
use watchkeeper_engine::delivery::parking::{OnReject, Park};
use watchkeeper_engine::group::control::{PurgeRequest, ReplayRequest};
use watchkeeper_engine::listener::ListenerState::Running;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

fn plan(rig: &Rig, name: &str) -> Plan {
    rig.instance(name).sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key })
}

fn replay(rig: &Rig, request: u64) {
    rig.want(|control| control.replay = Some(ReplayRequest { id: request, sink: None, numbers: Vec::new() }));
    rig.until("the request is served", || rig.control().replay.is_none());
}

fn letters(rig: &Rig) -> u64 {
    rig.checkpoint().unwrap().facts.letters
}

/// Kind and change of each record.
fn told(ledger: &[LedgerRecord]) -> Vec<(LedgerKind, String)> {
    ledger.iter().map(|record| (record.entry.kind, record.entry.change_id.clone())).collect()
}

/// A stream whose change 1, of key `k`, is a dead letter with two of its key behind it.
fn parked(rig: &Rig) -> Actor {
    let a = plan(rig, "a").start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    rig.append(&["k"]);
    rig.until("it is passed", || rig.committed() == 1);
    rig.append(&["other", "k", "k", "another"]);
    rig.until("all is passed", || rig.committed() == 5);
    a
}

#[test]
fn a_dead_letter_parks_its_key_and_the_other_keys_go_on() {
    let rig = Rig::new();
    let a = parked(&rig);
    assert_eq!(rig.delivered(), [2, 5]);
    let expected = [(LedgerKind::DeadLetter, id(1)), (LedgerKind::Parked, id(3)), (LedgerKind::Parked, id(4))];
    assert_eq!(told(&rig.ledger()), expected);
    assert_eq!((letters(&rig), a.state()), (3, Running));
}

#[test]
fn a_dead_letter_stands_in_the_ledger_by_the_commit_that_passes_it() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    a.faults.sink.refuse_row(id(2), FaultKind::Reject, 1);
    let gate = Gate::default();
    a.faults.checkpoints.next("commit", Fault::Hold(gate.clone()));
    rig.append(&["a", "k", "k"]);
    rig.until("the commit hangs", || gate.arrived() == 1);
    assert_eq!((rig.ledger().len(), rig.committed()), (0, 0));
    gate.open();
    rig.until("all is passed", || rig.committed() == 3);
    assert_eq!(rig.ledger().len(), 2);
}

#[test]
fn what_the_sink_took_of_a_key_behind_its_dead_letter_is_replayed_behind_it_too() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    // In one call: the sink rejects the first of the key and takes the second.
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    rig.append(&["k", "k", "other"]);
    rig.until("all is passed", || rig.committed() == 3);
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    let of_key: Vec<_> = rig.delivered().into_iter().filter(|number| *number != 3).collect();
    assert_eq!(of_key.last(), Some(&2), "the newest change of the key has the last word: {of_key:?}");
}

#[test]
fn a_takeover_knows_what_is_parked() {
    let rig = Rig::new();
    let a = parked(&rig);
    a.node.kill();
    let b = plan(&rig, "b").start();
    rig.append(&["k", "other"]);
    rig.until("all is passed", || rig.committed() == 7);
    assert_eq!((rig.delivered(), letters(&rig)), (vec![2, 5, 7], 4));
    assert_eq!(rig.ledger().last().unwrap().entry.change_id, id(6));
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(rig.delivered(), [2, 5, 7, 1, 3, 4, 6]);
    assert!(b.is_running());
}

#[test]
fn a_reopening_knows_what_is_parked() {
    let rig = Rig::new();
    let a = parked(&rig);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    rig.run_for(5 * SECOND);
    rig.append(&["k", "other"]);
    rig.until("all is passed", || rig.committed() == 7);
    assert_eq!(rig.delivered(), [2, 5, 7], "the key is still parked");
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(rig.delivered(), [2, 5, 7, 1, 3, 4, 6]);
}

#[test]
fn a_replay_delivers_in_order_and_frees_the_key() {
    let rig = Rig::new();
    let a = parked(&rig);
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(rig.delivered(), [2, 5, 1, 3, 4]);
    assert!(rig.ledger().iter().all(|record| record.resolution == Some(Resolution::Replayed)));
    rig.append(&["k"]);
    rig.until("all is passed", || rig.committed() == 6);
    assert_eq!((rig.delivered().last(), rig.ledger().len(), a.status().tenures), (Some(&6), 3, 1));
}

#[test]
fn a_replay_of_a_key_that_keeps_changing_keeps_its_order() {
    let rig = Rig::new();
    let a = parked(&rig);
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    rig.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    rig.until("the first letter is under way", || gate.arrived() == 1);
    rig.append(&["k", "k"]);
    rig.run_for(5 * SECOND);
    gate.open();
    rig.until("all is passed", || rig.committed() == 7 && letters(&rig) == 0);
    assert_eq!(rig.delivered(), [2, 5, 1, 3, 4, 6, 7]);
}

#[test]
fn what_is_rejected_again_stays_and_so_does_what_is_behind_it() {
    let rig = Rig::new();
    let a = parked(&rig);
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    replay(&rig, 1);
    rig.run_for(5 * SECOND);
    assert_eq!((rig.delivered(), letters(&rig)), (vec![2, 5], 3));
    assert!(rig.ledger().iter().all(|record| record.resolution.is_none()));
    a.faults.sink.refuse_row(id(3), FaultKind::Reject, 1);
    replay(&rig, 2);
    rig.until("the first is settled", || letters(&rig) == 2);
    assert_eq!(rig.delivered(), [2, 5, 1]);
    replay(&rig, 3);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(rig.delivered(), [2, 5, 1, 3, 4]);
}

#[test]
fn a_replay_goes_on_at_once_when_a_sink_that_was_away_is_back() {
    let rig = Rig::new();
    let a = parked(&rig);
    a.faults.sink.times("write", 6, &Fault::Reject(ErrorKind::Unavailable));
    rig.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    rig.until("the sink is back", || a.faults.sink.pending("write") == 0);
    let began = rig.now();
    rig.until("all letters are settled", || letters(&rig) == 0);
    let took = rig.now().since(began);
    assert!(took < 10 * SECOND, "one good answer closes the breaker: {took:?}");
    assert_eq!(rig.delivered(), [2, 5, 1, 3, 4]);
}

#[test]
fn a_request_is_served_once() {
    let rig = Rig::new();
    let a = parked(&rig);
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, u64::MAX);
    replay(&rig, 1);
    let writes = a.faults.sink.calls("write");
    rig.run_for(30 * SECOND);
    assert_eq!(a.faults.sink.calls("write"), writes);
}

#[test]
fn a_replay_of_another_sink_touches_nothing() {
    let rig = Rig::new();
    let _a = parked(&rig);
    rig.want(|control| {
        control.replay = Some(ReplayRequest { id: 1, sink: Some("other".to_owned()), numbers: Vec::new() })
    });
    rig.until("the request is served", || rig.control().replay.is_none());
    assert_eq!((rig.delivered(), letters(&rig)), (vec![2, 5], 3));
}

#[test]
fn a_replay_by_number_leaves_the_others_and_passes_over_none_of_a_key() {
    let rig = Rig::new();
    let _a = parked(&rig);
    let numbers: Vec<u64> = rig.ledger().iter().map(|record| record.number).collect();
    let wish = |id, numbers: &[u64]| {
        let request = ReplayRequest { id, sink: None, numbers: numbers.to_vec() };
        rig.want(|control| control.replay = Some(request.clone()));
        rig.until("the request is served", || rig.control().replay.is_none());
    };
    wish(1, &numbers[1..2]);
    assert_eq!((rig.delivered(), letters(&rig)), (vec![2, 5], 3), "the first of the key is not among them");
    wish(2, &numbers[..2]);
    rig.until("two are settled", || letters(&rig) == 1);
    assert_eq!(rig.delivered(), [2, 5, 1, 3]);
}

#[test]
fn a_purge_gives_letters_up_and_frees_their_keys() {
    let rig = Rig::new();
    let _a = parked(&rig);
    rig.want(|control| control.purge = Some(PurgeRequest { id: 1, sink: None, numbers: Vec::new() }));
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert!(rig.ledger().iter().all(|record| record.resolution == Some(Resolution::Purged)));
    rig.append(&["k"]);
    rig.until("all is passed", || rig.committed() == 6);
    assert_eq!(rig.delivered(), [2, 5, 6]);
}

#[test]
fn a_purge_by_number_keeps_the_order_of_what_is_left() {
    let rig = Rig::new();
    let _a = parked(&rig);
    let first = rig.ledger()[0].number;
    rig.want(|control| control.purge = Some(PurgeRequest { id: 1, sink: None, numbers: vec![first] }));
    rig.until("one is settled", || letters(&rig) == 2);
    rig.append(&["k"]);
    rig.until("all is passed", || rig.committed() == 6);
    assert_eq!((rig.delivered(), letters(&rig)), (vec![2, 5], 3), "the key is still parked");
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(rig.delivered(), [2, 5, 3, 4, 6]);
}

#[test]
fn too_many_parked_keys_halt_the_stream() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    for number in 1..=1_001 {
        a.faults.sink.refuse_row(id(number), FaultKind::Reject, 1);
    }
    rig.append_many(1_000);
    rig.until("a thousand may be parked", || rig.committed() == 1_000);
    assert_eq!((letters(&rig), a.status().halted), (1_000, false));
    rig.append_many(1);
    rig.until("one more halts it", || a.status().halted);
    let halted = rig.checkpoint().unwrap().halted.unwrap();
    assert!(halted.cause.contains("1001 keys are parked"), "{}", halted.cause);
    assert_eq!(rig.committed(), 1_000);
}

#[test]
fn a_body_that_is_too_large_to_keep_is_read_again() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    // Not pruned, since a replay has to find it in the log.
    a.faults.source.always("acknowledge", Fault::Reject(ErrorKind::Unavailable));
    let large = vec![b' '; 1024 * 1024 + 1];
    rig.append(&["a"]);
    let number = rig.append_change(Operation::Insert, Some("k"), &large);
    a.faults.sink.refuse_row(id(number), FaultKind::Reject, 1);
    rig.append(&["b"]);
    rig.until("all is passed", || rig.committed() == 3);
    let kept = rig.ledger()[0].entry.change.clone().unwrap();
    assert_eq!((kept.body, rig.ledger()[0].entry.before.is_some()), (None, true));
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    let replayed = rig.table.delivered().pop().unwrap();
    assert_eq!((replayed.version.time, replayed.body.len()), (number, large.len()));
}

#[test]
fn a_large_body_that_is_gone_from_the_log_is_no_reason_to_stop_the_stream() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    rig.append(&["a"]);
    let number = rig.append_change(Operation::Insert, Some("k"), &vec![b' '; 1024 * 1024 + 1]);
    a.faults.sink.refuse_row(id(number), FaultKind::Reject, 1);
    rig.append(&["b"]);
    rig.until("all is passed and pruned", || rig.log.pruned() == 3);
    replay(&rig, 1);
    rig.append(&["c"]);
    rig.until("the rest goes on", || rig.committed() == 4);
    assert_eq!((letters(&rig), a.status().halted, rig.checkpoint().unwrap().halted), (1, false, None));
}

#[test]
fn a_sink_that_takes_whole_documents_may_park_only_the_change() {
    let rig = Rig::new();
    let a = rig.instance("a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Change }).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    rig.append(&["k"]);
    rig.until("it is passed", || rig.committed() == 1);
    rig.append(&["k", "k"]);
    rig.until("all is passed", || rig.committed() == 3);
    assert_eq!((rig.delivered(), letters(&rig)), (vec![2, 3], 1));
}

#[test]
fn letters_are_found_over_many_pages_of_the_ledger() {
    let rig = Rig::new();
    let a = plan(&rig, "a").start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    rig.append(&["k"]);
    rig.until("it is passed", || rig.committed() == 1);
    rig.append(&["k"; 1_200]);
    rig.until("all is passed", || rig.committed() == 1_201);
    a.stop(&rig);
    let _b = plan(&rig, "b").start();
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(rig.delivered(), (1..=1_201).collect::<Vec<_>>());
}

/// A sink that takes everything and finds out at the flush that it can not: change 2 is rejected once.
#[derive(Debug, Clone)]
struct Late {
    inner: Probe,
    accepted: Arc<Mutex<Vec<(u64, u32)>>>,
    refuses: Arc<AtomicBool>,
    writer: Option<Arc<dyn SinkWriter>>,
}

#[async_trait]
impl Sink for Late {
    fn profile(&self) -> SinkProfile {
        self.inner.profile()
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let OpenedSink::Plain(writer) = self.inner.open(cx, context).await? else { panic!("a probe is plain") };
        Ok(OpenedSink::Plain(Arc::new(Self { writer: Some(writer), ..self.clone() })))
    }
}

#[async_trait]
impl SinkWriter for Late {
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let second = rows.iter().find(|row| batch.rows()[**row as usize].version.time == 2);
        if let Some(row) = second.filter(|_| self.refuses.swap(false, Ordering::SeqCst)) {
            self.accepted.lock().unwrap().push((batch.seq, *row));
        }
        self.writer.as_ref().expect("it was opened").write(cx, lane, batch, rows).await
    }

    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        let rejected = std::mem::take(&mut *self.accepted.lock().unwrap());
        let rejection =
            |(batch_seq, row)| FlushRejection { batch_seq, row, error: watchkeeper_core::Error::corrupt("too late") };
        Ok(rejected.into_iter().map(rejection).collect())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

fn late(rig: &Rig, on_reject: OnReject) -> (Actor, Late) {
    let inner = Probe::new(rig, MILLI);
    let late = Late { inner, accepted: Arc::default(), refuses: Arc::new(AtomicBool::new(true)), writer: None };
    let plan = rig.instance("a").into_sink(Arc::new(late.clone())).sink(|it| it.on_reject = on_reject);
    (plan.stream(|it| it.limits.rows = 2).start(), late)
}

#[test]
fn what_a_flush_rejects_parks_its_key_with_all_that_was_taken_after_it() {
    let rig = Rig::new();
    let (_a, late) = late(&rig, OnReject::DeadLetter { park: Park::Key });
    rig.append(&["a", "k", "k", "b", "k"]);
    rig.until("all is passed", || rig.committed() == 5);
    assert_eq!(numbers(&late.inner.delivered()), [1, 2, 3, 4, 5], "the sink was given all of them");
    let expected = [(LedgerKind::DeadLetter, id(2)), (LedgerKind::Parked, id(3)), (LedgerKind::Parked, id(5))];
    assert_eq!(told(&rig.ledger()), expected);
    replay(&rig, 1);
    rig.until("all letters are settled", || letters(&rig) == 0);
    assert_eq!(numbers(&late.inner.delivered()[5..]), [2, 3, 5]);
}

#[test]
fn what_a_flush_rejects_stops_the_stream_before_it() {
    let rig = Rig::new();
    let (a, _late) = late(&rig, OnReject::Stop);
    rig.append(&["a", "k", "k", "b"]);
    rig.until("it is halted", || a.status().halted);
    assert_eq!((rig.committed(), rig.ledger().len()), (1, 0));
    assert!(rig.checkpoint().unwrap().halted.unwrap().cause.contains(&id(2)));
}

#[test]
fn what_a_flush_rejects_and_is_skipped_is_in_the_ledger_alone() {
    let rig = Rig::new();
    let (_a, _late) = late(&rig, OnReject::Skip);
    rig.append(&["a", "k", "k", "b"]);
    rig.until("all is passed", || rig.committed() == 4);
    assert_eq!(told(&rig.ledger()), [(LedgerKind::Skipped, id(2))]);
}
