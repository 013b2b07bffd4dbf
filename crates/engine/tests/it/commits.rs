//! When checkpoints are committed, and what becomes of commits that fail.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::memory::Log;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, CheckpointStore, Claim, Cx, Epoch, ErrorKind, Finding, Grant, Limits, Payload,
    Pedigree, Position, Reason, Result, Source, StartAt, Window,
};
use watchkeeper_engine::listener::ListenerState::Connecting;
use watchkeeper_engine::settings::CheckpointPolicy;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

fn policy(every: Duration, events: Option<u64>) -> CheckpointPolicy {
    CheckpointPolicy { every, events }
}

#[test]
fn a_checkpoint_is_committed_every_so_often_and_not_more_often() {
    let harness = Harness::new();
    let mut plan = harness.instance("a").stream(|it| it.checkpoint = policy(2 * SECOND, None));
    let recorder = Recorder::of(&mut plan);
    let _a = plan.start();
    for _ in 0..200 {
        harness.append(&["a"]);
        harness.run_for(100 * MILLI);
    }
    let commits = recorder.sent().len();
    assert!((9..=11).contains(&commits), "{commits} commits in twenty seconds");
    harness.until("the last is committed in time", || harness.committed() == 200);
}

#[test]
fn an_idle_source_that_repeats_its_position_is_not_committed_again() {
    let harness = Harness::new();
    let mut plan = harness.instance("a");
    let recorder = Recorder::of(&mut plan);
    let _a = plan.start();
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    harness.run_for(120 * SECOND);
    assert_eq!(recorder.positions(), [0, 1], "the first checkpoint of a stream has no position");
}

#[test]
fn a_checkpoint_is_committed_as_soon_as_so_many_changes_are_safe() {
    let harness = Harness::new();
    let _a = harness.instance("a").stream(|it| it.checkpoint = policy(3600 * SECOND, Some(10))).start();
    harness.append_many(9);
    harness.run_for(SECOND);
    assert_eq!(harness.committed(), 0);
    harness.append_many(1);
    harness.until("ten are committed", || harness.committed() == 10);
    harness.append_many(5);
    harness.run_for(SECOND);
    assert_eq!(harness.committed(), 10, "the next five wait for five more");
    harness.append_many(5);
    harness.until("twenty are committed", || harness.committed() == 20);
}

#[test]
fn changes_that_were_flushed_for_want_of_room_count_towards_the_next_commit() {
    let harness = Harness::new();
    let _a = harness
        .instance("a")
        .stream(|it| {
            it.checkpoint = policy(3600 * SECOND, Some(100));
            it.limits.rows = 1;
            it.window_pieces = 16;
        })
        .start();
    harness.append_many(250);
    harness.until("it is committed in hundreds", || harness.committed() >= 200);
}

#[test]
fn with_a_commit_for_every_event_no_safe_change_waits() {
    let harness = Harness::new();
    let mut plan = harness.instance("a").stream(|it| it.checkpoint = CheckpointPolicy::every_event());
    let recorder = Recorder::of(&mut plan);
    let _a = plan.start();
    for number in 1..=10 {
        harness.append(&["a"]);
        let began = harness.now();
        harness.until("it is committed", || harness.committed() == number);
        assert!(harness.now().since(began) < MILLI);
    }
    assert_eq!(recorder.positions(), (0..=10).collect::<Vec<_>>());
}

#[test]
fn a_commit_that_hangs_does_not_hold_up_the_delivery() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until_begun();
    let gate = Gate::default();
    a.faults.checkpoints.next("commit", Fault::Hold(gate.clone()));
    harness.append(&["a"]);
    harness.until("the commit hangs", || gate.arrived() == 1);
    for number in 2..=6 {
        harness.append(&["b"]);
        harness.until("it is delivered", || harness.delivered().len() == number);
    }
    assert_eq!(
        (harness.committed(), a.faults.checkpoints.calls("commit")),
        (0, 2),
        "one commit is in flight at a time"
    );
    gate.open();
    harness.until("all is committed", || harness.committed() == 6);
    assert_eq!(harness.delivered(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_commit_whose_answer_was_lost_is_repeated_unchanged() {
    let harness = Harness::new();
    let mut plan = harness.instance("a");
    let recorder = Recorder::of(&mut plan);
    let a = plan.start();
    harness.until_begun();
    a.faults.checkpoints.next("commit", Fault::Lose);
    a.faults.checkpoints.next("commit", Fault::Reject(ErrorKind::Unavailable));
    a.faults.checkpoints.next("commit", Fault::Lose);
    harness.append(&["a"]);
    harness.until("the first is sent", || recorder.sent().len() == 2);
    harness.append(&["b", "c"]);
    harness.until("all is committed", || harness.committed() == 3);
    let sent = recorder.sent().split_off(1);
    assert_eq!(sent.iter().map(|write| write.seq).collect::<Vec<_>>(), [2, 2, 2, 2, 3]);
    assert!(sent[..4].iter().all(|write| *write == sent[0]), "it is not merged with what came after");
    assert_eq!((harness.delivered(), harness.checkpoint().unwrap().facts.changes), (vec![1, 2, 3], 3));
}

#[test]
fn a_commit_whose_answer_was_lost_is_settled_before_the_source_is_opened_again() {
    let harness = Harness::new();
    let mut plan = harness.instance("a");
    let recorder = Recorder::of(&mut plan);
    let a = plan.start();
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    // The commit takes effect, but is not answered; then the source fails.
    let gate = Gate::default();
    a.faults.checkpoints.next("commit", Fault::HoldAnswer(gate.clone()));
    harness.append(&["b"]);
    harness.until("the second commit hangs", || gate.arrived() == 1);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["c"]);
    harness.until("all is committed", || harness.committed() == 3);
    assert_eq!(harness.delivered(), [1, 2, 3], "what was committed is not read again");
    let seqs: Vec<_> = recorder.sent().iter().map(|write| write.seq).collect();
    assert!(seqs.is_sorted() && *seqs.last().unwrap() == 4, "{seqs:?}");
}

#[test]
fn a_checkpoint_store_that_refuses_this_instance_is_left_to_another_one() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    let b = harness.start("b");
    a.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Denied));
    harness.append(&["a"]);
    harness.until("the other one commits", || harness.committed() == 1);
    assert!(b.is_running() && a.state() == Connecting);
}

#[test]
fn a_checkpoint_store_that_is_down_for_a_while_costs_nothing() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    a.faults.checkpoints.always("commit", Fault::Reject(ErrorKind::Unavailable));
    harness.append_many(20);
    harness.run_for(60 * SECOND);
    assert_eq!((harness.delivered().len(), harness.committed(), a.status().tenures), (20, 0, 1));
    a.faults.checkpoints.heal("commit");
    harness.until("all is committed", || harness.committed() == 20);
    assert_eq!((harness.delivered().len(), a.status().epoch), (20, Some(Epoch(1))));
}

#[test]
fn a_fenced_commit_ends_the_tenure_and_no_sink_is_called_any_more() {
    let harness = Harness::new();
    let a = harness.instance("a").stream(|it| it.limits.rows = 1).start();
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    // Somebody else has claimed, as after a pause of this process that it did not notice.
    let grant = Grant { key: harness.key(), tenure: harness.world.entropy().tenure(), epoch: Epoch(7) };
    assert!(matches!(memory(harness.checkpoints.claim(&harness.cx(), &grant)), Claim::Claimed(_)));
    harness.append_many(20);
    harness.until("it is fenced", || a.state() == Connecting);
    let calls = |a: &TestInstance| ["write", "flush", "close"].map(|call| a.faults.sink.calls(call));
    let (before, commits) = (calls(&a), a.faults.checkpoints.calls("commit"));
    harness.run_for(TTL / 2);
    assert_eq!(calls(&a), before);
    assert_eq!(a.faults.checkpoints.calls("commit"), commits);
    assert!(a.status().last_error.unwrap().contains("newer epoch"));
    // When its lease has expired it is granted another, above what was claimed, and nothing is lost.
    harness.until("all is committed", || harness.committed() == 21);
    assert_eq!(harness.checkpoint().unwrap().epoch, Epoch(8));
}

#[test]
fn the_source_is_reported_what_is_committed_and_nothing_else() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until_begun();
    let gate = Gate::default();
    a.faults.checkpoints.next("commit", Fault::Hold(gate.clone()));
    harness.append(&["a", "b"]);
    harness.until("the commit hangs", || gate.arrived() == 1);
    harness.run_for(5 * SECOND);
    assert_eq!((harness.delivered().len(), harness.log.pruned()), (2, 0));
    gate.open();
    harness.until("it is acknowledged", || harness.log.pruned() == 2);
    assert_eq!(harness.committed(), 2);
}

#[test]
fn an_acknowledgement_that_fails_costs_only_space() {
    let harness = Harness::new();
    let a = harness.start("a");
    a.faults.source.next("acknowledge", Fault::Reject(ErrorKind::Unavailable));
    harness.append(&["a"]);
    harness.until("it is committed", || harness.committed() == 1);
    harness.run_for(SECOND);
    assert_eq!((harness.log.pruned(), a.is_running()), (0, true));
    harness.append(&["b"]);
    harness.until("the next one says it again", || harness.log.pruned() == 2);
}

/// A log whose position moves on although nothing happens in it, as that of a busy server whose other
/// tables change. Its numbers above 1,000 are such positions.
#[derive(Debug)]
struct Drifting(Log);

struct Drift(Box<dyn ChangeStream>, u64);

#[async_trait]
impl Source for Drifting {
    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        self.0.identity(cx).await
    }
    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        self.0.compare(a, b)
    }
    fn payload(&self) -> Arc<dyn Payload> {
        self.0.payload()
    }
    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        Ok(Box::new(Drift(self.0.open(cx, start).await?, 1_000)))
    }
}

#[async_trait]
impl ChangeStream for Drift {
    fn position(&self) -> Option<Position> {
        self.0.position()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let batch = self.0.next_batch(cx, limits).await?;
        if !batch.is_empty() {
            return Ok(batch);
        }
        self.1 += 1;
        let empty = BatchBuilder::new(Arc::clone(batch.origin()), Arc::clone(batch.payload()));
        Ok(empty.finish(Log::position(self.1, None)))
    }
    async fn acknowledge(&mut self, _cx: &Cx, _position: &Position) -> Result<()> {
        Ok(())
    }
    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.0.window(cx).await
    }
    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        self.0.close(cx).await
    }
}

#[test]
fn the_checkpoint_of_an_idle_stream_moves_on_without_a_flush() {
    let harness = Harness::new();
    let a = harness.instance("a").reading(Arc::new(Drifting(harness.log.clone()))).start();
    harness.run_for(30 * SECOND);
    assert!(harness.committed() >= 1_025, "{}", harness.committed());
    assert_eq!((a.faults.sink.calls("flush"), harness.checkpoint().unwrap().facts.changes), (0, 0));
}

#[test]
fn an_idle_position_is_not_committed_before_what_was_read_earlier() {
    let harness = Harness::new();
    let a = harness.instance("a").reading(Arc::new(Drifting(harness.log.clone()))).start();
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    harness.append(&["a"]);
    harness.until("the write hangs", || gate.arrived() == 1);
    harness.run_for(20 * SECOND);
    assert!(a.faults.source.calls("next_batch") >= 3, "empty batches were read behind it");
    assert_eq!(harness.committed(), 0);
    gate.open();
    harness.until("both are committed", || harness.committed() > 1_000);
    assert_eq!(harness.delivered(), [1]);
}

#[test]
fn the_last_commit_of_a_tenure_says_so_and_only_if_there_is_something_to_say() {
    let harness = Harness::new();
    let mut plan = harness.instance("a").stream(|it| it.checkpoint = policy(3600 * SECOND, None));
    let recorder = Recorder::of(&mut plan);
    let a = plan.start();
    harness.append(&["a"]);
    harness.until("it is written", || a.faults.sink.calls("write") == 1);
    a.stop(&harness);
    let reasons: Vec<_> = recorder.sent().iter().map(|write| write.reason).collect();
    assert_eq!(reasons, [Reason::Progress, Reason::Final], "the first one, without a position, and the last one");
    let mut plan = harness.instance("a");
    let recorder = Recorder::of(&mut plan);
    let a = plan.start();
    harness.until("it runs", || a.is_running());
    harness.run_for(10 * SECOND);
    a.stop(&harness);
    assert_eq!((recorder.sent().len(), harness.committed()), (0, 1));
}

#[test]
fn checkpoints_never_go_back_within_a_tenure() {
    let harness = Harness::seeded(7);
    let probe = Probe::new(&harness, 30 * MILLI);
    let mut plan = harness.instance("a").into_sink(Arc::new(probe)).stream(|it| {
        it.concurrency = 8;
        it.limits.rows = 5;
        it.checkpoint = policy(50 * MILLI, Some(3));
    });
    let recorder = Recorder::of(&mut plan);
    let a = plan.start();
    a.faults.checkpoints.times("commit", 3, &Fault::Lose);
    a.faults.source.times("next_batch", 3, &Fault::Good);
    a.faults.source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    harness.append_many(300);
    harness.until("all is committed", || harness.committed() == 300);
    let positions = recorder.positions();
    assert!(positions.is_sorted() && positions.len() > 20, "{positions:?}");
}
