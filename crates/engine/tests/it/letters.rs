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

fn plan(harness: &Harness, name: &str) -> Plan {
    harness.instance(name).sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Key })
}

fn replay(harness: &Harness, request: u64) {
    harness.want(|control| control.replay = Some(ReplayRequest { id: request, sink: None, numbers: Vec::new() }));
    harness.until("the request is served", || harness.control().replay.is_none());
}

fn letters(harness: &Harness) -> u64 {
    harness.checkpoint().unwrap().facts.letters
}

/// Kind and change of each record.
fn reported(ledger: &[LedgerRecord]) -> Vec<(LedgerKind, String)> {
    ledger.iter().map(|record| (record.entry.kind, record.entry.change_id.clone())).collect()
}

/// A stream whose change 1, of key `k`, is a dead letter with two of its key behind it.
fn parked(harness: &Harness) -> TestInstance {
    let a = plan(harness, "a").start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k"]);
    harness.until("it is passed", || harness.committed() == 1);
    harness.append(&["other", "k", "k", "another"]);
    harness.until("all is passed", || harness.committed() == 5);
    a
}

#[test]
fn a_dead_letter_parks_its_key_and_the_other_keys_go_on() {
    let harness = Harness::new();
    let a = parked(&harness);
    assert_eq!(harness.delivered(), [2, 5]);
    let expected = [(LedgerKind::DeadLetter, id(1)), (LedgerKind::Parked, id(3)), (LedgerKind::Parked, id(4))];
    assert_eq!(reported(&harness.ledger()), expected);
    assert_eq!((letters(&harness), a.state()), (3, Running));
}

#[test]
fn a_dead_letter_stands_in_the_ledger_by_the_commit_that_passes_it() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    a.faults.sink.refuse_row(id(2), FaultKind::Reject, 1);
    let gate = Gate::default();
    a.faults.checkpoints.next("commit", Fault::Hold(gate.clone()));
    harness.append(&["a", "k", "k"]);
    harness.until("the commit hangs", || gate.arrived() == 1);
    assert_eq!((harness.ledger().len(), harness.committed()), (0, 0));
    gate.open();
    harness.until("all is passed", || harness.committed() == 3);
    assert_eq!(harness.ledger().len(), 2);
}

#[test]
fn what_the_sink_took_of_a_key_behind_its_dead_letter_is_replayed_behind_it_too() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    // In one call: the sink rejects the first of the key and takes the second.
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k", "k", "other"]);
    harness.until("all is passed", || harness.committed() == 3);
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    let of_key: Vec<_> = harness.delivered().into_iter().filter(|number| *number != 3).collect();
    assert_eq!(of_key.last(), Some(&2), "the newest change of the key has the last word: {of_key:?}");
}

#[test]
fn a_takeover_knows_what_is_parked() {
    let harness = Harness::new();
    let a = parked(&harness);
    a.node.kill();
    let b = plan(&harness, "b").start();
    harness.append(&["k", "other"]);
    harness.until("all is passed", || harness.committed() == 7);
    assert_eq!((harness.delivered(), letters(&harness)), (vec![2, 5, 7], 4));
    assert_eq!(harness.ledger().last().unwrap().entry.change_id, id(6));
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(harness.delivered(), [2, 5, 7, 1, 3, 4, 6]);
    assert!(b.is_running());
}

#[test]
fn a_reopening_knows_what_is_parked() {
    let harness = Harness::new();
    let a = parked(&harness);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.run_for(5 * SECOND);
    harness.append(&["k", "other"]);
    harness.until("all is passed", || harness.committed() == 7);
    assert_eq!(harness.delivered(), [2, 5, 7], "the key is still parked");
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(harness.delivered(), [2, 5, 7, 1, 3, 4, 6]);
}

#[test]
fn a_replay_delivers_in_order_and_frees_the_key() {
    let harness = Harness::new();
    let a = parked(&harness);
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(harness.delivered(), [2, 5, 1, 3, 4]);
    assert!(harness.ledger().iter().all(|record| record.resolution == Some(Resolution::Replayed)));
    harness.append(&["k"]);
    harness.until("all is passed", || harness.committed() == 6);
    assert_eq!((harness.delivered().last(), harness.ledger().len(), a.status().tenures), (Some(&6), 3, 1));
}

#[test]
fn a_replay_of_a_key_that_keeps_changing_keeps_its_order() {
    let harness = Harness::new();
    let a = parked(&harness);
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("the first letter is under way", || gate.arrived() == 1);
    harness.append(&["k", "k"]);
    harness.run_for(5 * SECOND);
    gate.open();
    harness.until("all is passed", || harness.committed() == 7 && letters(&harness) == 0);
    assert_eq!(harness.delivered(), [2, 5, 1, 3, 4, 6, 7]);
}

#[test]
fn what_is_rejected_again_stays_and_so_does_what_is_behind_it() {
    let harness = Harness::new();
    let a = parked(&harness);
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    replay(&harness, 1);
    harness.run_for(5 * SECOND);
    assert_eq!((harness.delivered(), letters(&harness)), (vec![2, 5], 3));
    assert!(harness.ledger().iter().all(|record| record.resolution.is_none()));
    a.faults.sink.refuse_row(id(3), FaultKind::Reject, 1);
    replay(&harness, 2);
    harness.until("the first is settled", || letters(&harness) == 2);
    assert_eq!(harness.delivered(), [2, 5, 1]);
    replay(&harness, 3);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(harness.delivered(), [2, 5, 1, 3, 4]);
}

#[test]
fn a_replay_goes_on_at_once_when_a_sink_that_was_away_is_back() {
    let harness = Harness::new();
    let a = parked(&harness);
    a.faults.sink.times("write", 6, &Fault::Reject(ErrorKind::Unavailable));
    harness.want(|control| control.replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("the sink is back", || a.faults.sink.pending("write") == 0);
    let began = harness.now();
    harness.until("all letters are settled", || letters(&harness) == 0);
    let took = harness.now().since(began);
    assert!(took < 10 * SECOND, "one good answer closes the breaker: {took:?}");
    assert_eq!(harness.delivered(), [2, 5, 1, 3, 4]);
}

#[test]
fn a_request_is_served_once() {
    let harness = Harness::new();
    let a = parked(&harness);
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, u64::MAX);
    replay(&harness, 1);
    let writes = a.faults.sink.calls("write");
    harness.run_for(30 * SECOND);
    assert_eq!(a.faults.sink.calls("write"), writes);
}

#[test]
fn a_replay_of_another_sink_touches_nothing() {
    let harness = Harness::new();
    let _a = parked(&harness);
    harness.want(|control| {
        control.replay = Some(ReplayRequest { id: 1, sink: Some("other".to_owned()), numbers: Vec::new() })
    });
    harness.until("the request is served", || harness.control().replay.is_none());
    assert_eq!((harness.delivered(), letters(&harness)), (vec![2, 5], 3));
}

#[test]
fn a_replay_by_number_leaves_the_others_and_passes_over_none_of_a_key() {
    let harness = Harness::new();
    let _a = parked(&harness);
    let numbers: Vec<u64> = harness.ledger().iter().map(|record| record.number).collect();
    let replay = |id, numbers: &[u64]| {
        let request = ReplayRequest { id, sink: None, numbers: numbers.to_vec() };
        harness.want(|control| control.replay = Some(request.clone()));
        harness.until("the request is served", || harness.control().replay.is_none());
    };
    replay(1, &numbers[1..2]);
    assert_eq!((harness.delivered(), letters(&harness)), (vec![2, 5], 3), "the first of the key is not among them");
    replay(2, &numbers[..2]);
    harness.until("two are settled", || letters(&harness) == 1);
    assert_eq!(harness.delivered(), [2, 5, 1, 3]);
}

#[test]
fn a_purge_gives_letters_up_and_frees_their_keys() {
    let harness = Harness::new();
    let _a = parked(&harness);
    harness.want(|control| control.purge = Some(PurgeRequest { id: 1, sink: None, numbers: Vec::new() }));
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert!(harness.ledger().iter().all(|record| record.resolution == Some(Resolution::Purged)));
    harness.append(&["k"]);
    harness.until("all is passed", || harness.committed() == 6);
    assert_eq!(harness.delivered(), [2, 5, 6]);
}

#[test]
fn a_purge_by_number_keeps_the_order_of_what_is_left() {
    let harness = Harness::new();
    let _a = parked(&harness);
    let first = harness.ledger()[0].number;
    harness.want(|control| control.purge = Some(PurgeRequest { id: 1, sink: None, numbers: vec![first] }));
    harness.until("one is settled", || letters(&harness) == 2);
    harness.append(&["k"]);
    harness.until("all is passed", || harness.committed() == 6);
    assert_eq!((harness.delivered(), letters(&harness)), (vec![2, 5], 3), "the key is still parked");
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(harness.delivered(), [2, 5, 3, 4, 6]);
}

#[test]
fn too_many_parked_keys_halt_the_stream() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    for number in 1..=1_001 {
        a.faults.sink.refuse_row(id(number), FaultKind::Reject, 1);
    }
    harness.append_many(1_000);
    harness.until("a thousand may be parked", || harness.committed() == 1_000);
    assert_eq!((letters(&harness), a.status().halted), (1_000, false));
    harness.append_many(1);
    harness.until("one more halts it", || a.status().halted);
    let halted = harness.checkpoint().unwrap().halted.unwrap();
    assert!(halted.cause.contains("1001 keys are parked"), "{}", halted.cause);
    assert_eq!(harness.committed(), 1_000);
}

#[test]
fn a_body_that_is_too_large_to_keep_is_read_again() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    // Not pruned, since a replay has to find it in the log.
    a.faults.source.always("acknowledge", Fault::Reject(ErrorKind::Unavailable));
    let large = vec![b' '; 1024 * 1024 + 1];
    harness.append(&["a"]);
    let number = harness.append_change(Operation::Insert, Some("k"), &large);
    a.faults.sink.refuse_row(id(number), FaultKind::Reject, 1);
    harness.append(&["b"]);
    harness.until("all is passed", || harness.committed() == 3);
    let kept = harness.ledger()[0].entry.change.clone().unwrap();
    assert_eq!((kept.body, harness.ledger()[0].entry.before.is_some()), (None, true));
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    let replayed = harness.table.delivered().pop().unwrap();
    assert_eq!((replayed.version.time, replayed.body.len()), (number, large.len()));
}

#[test]
fn a_large_body_that_is_gone_from_the_log_is_no_reason_to_stop_the_stream() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    harness.append(&["a"]);
    let number = harness.append_change(Operation::Insert, Some("k"), &vec![b' '; 1024 * 1024 + 1]);
    a.faults.sink.refuse_row(id(number), FaultKind::Reject, 1);
    harness.append(&["b"]);
    harness.until("all is passed and pruned", || harness.log.pruned() == 3);
    replay(&harness, 1);
    harness.append(&["c"]);
    harness.until("the rest goes on", || harness.committed() == 4);
    assert_eq!((letters(&harness), a.status().halted, harness.checkpoint().unwrap().halted), (1, false, None));
}

#[test]
fn a_sink_that_takes_whole_documents_may_park_only_the_change() {
    let harness = Harness::new();
    let a = harness.instance("a").sink(|it| it.on_reject = OnReject::DeadLetter { park: Park::Change }).start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k"]);
    harness.until("it is passed", || harness.committed() == 1);
    harness.append(&["k", "k"]);
    harness.until("all is passed", || harness.committed() == 3);
    assert_eq!((harness.delivered(), letters(&harness)), (vec![2, 3], 1));
}

#[test]
fn letters_are_found_over_many_pages_of_the_ledger() {
    let harness = Harness::new();
    let a = plan(&harness, "a").start();
    a.faults.sink.refuse_row(id(1), FaultKind::Reject, 1);
    harness.append(&["k"]);
    harness.until("it is passed", || harness.committed() == 1);
    harness.append(&["k"; 1_200]);
    harness.until("all is passed", || harness.committed() == 1_201);
    a.stop(&harness);
    let _b = plan(&harness, "b").start();
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(harness.delivered(), (1..=1_201).collect::<Vec<_>>());
}

/// A sink that takes everything and finds out at the flush that it cannot: change 2 is rejected once.
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

fn late(harness: &Harness, on_reject: OnReject) -> (TestInstance, Late) {
    let inner = Probe::new(harness, MILLI);
    let late = Late { inner, accepted: Arc::default(), refuses: Arc::new(AtomicBool::new(true)), writer: None };
    let plan = harness.instance("a").into_sink(Arc::new(late.clone())).sink(|it| it.on_reject = on_reject);
    (plan.stream(|it| it.limits.rows = 2).start(), late)
}

#[test]
fn what_a_flush_rejects_parks_its_key_with_all_that_was_taken_after_it() {
    let harness = Harness::new();
    let (_a, late) = late(&harness, OnReject::DeadLetter { park: Park::Key });
    harness.append(&["a", "k", "k", "b", "k"]);
    harness.until("all is passed", || harness.committed() == 5);
    assert_eq!(numbers(&late.inner.delivered()), [1, 2, 3, 4, 5], "the sink was given all of them");
    let expected = [(LedgerKind::DeadLetter, id(2)), (LedgerKind::Parked, id(3)), (LedgerKind::Parked, id(5))];
    assert_eq!(reported(&harness.ledger()), expected);
    replay(&harness, 1);
    harness.until("all letters are settled", || letters(&harness) == 0);
    assert_eq!(numbers(&late.inner.delivered()[5..]), [2, 3, 5]);
}

#[test]
fn what_a_flush_rejects_stops_the_stream_before_it() {
    let harness = Harness::new();
    let (a, _late) = late(&harness, OnReject::Stop);
    harness.append(&["a", "k", "k", "b"]);
    harness.until("it is halted", || a.status().halted);
    assert_eq!((harness.committed(), harness.ledger().len()), (1, 0));
    assert!(harness.checkpoint().unwrap().halted.unwrap().cause.contains(&id(2)));
}

#[test]
fn what_a_flush_rejects_and_is_skipped_is_in_the_ledger_alone() {
    let harness = Harness::new();
    let (_a, _late) = late(&harness, OnReject::Skip);
    harness.append(&["a", "k", "k", "b"]);
    harness.until("all is passed", || harness.committed() == 4);
    assert_eq!(reported(&harness.ledger()), [(LedgerKind::Skipped, id(2))]);
}
