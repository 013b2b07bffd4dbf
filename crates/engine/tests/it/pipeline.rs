//! From source to sink: reading ahead, lanes, barriers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::memory::Delivered;
use watchkeeper_core::{
    Batch, Cx, Epoch, Finding, FlushRejection, Grade, OpenedSink, Operation, Result, Sink, SinkContext, SinkProfile,
    SinkWriter, Written,
};
use watchkeeper_engine::delivery::filter::Filter;
use watchkeeper_engine::group::journal::Cause;
use watchkeeper_engine::settings::CheckpointPolicy;
use watchkeeper_engine::stream::SinkSpec;
use watchkeeper_testkit::faults::{Fault, FaultySink, Gate};
use watchkeeper_testkit::history::{Delivery, History, SourceChange};

use crate::support::*;

/// What a sink got, judged against the whole log.
fn assert_order(harness: &Harness, keys: &[Option<&str>], delivered: &[Delivered]) {
    let source = keys.iter().zip(1..).map(|(key, number)| SourceChange {
        number,
        key: key.map(|key| bytes::Bytes::copy_from_slice(key.as_bytes())),
        id: id(number),
    });
    assert_eq!(harness.log.newest(), keys.len() as u64);
    let deliveries = delivered.iter().map(Delivery::from).collect();
    let verdict = History::new(Grade::Plain, source.collect(), deliveries).judge();
    assert!(verdict.is_clean() && verdict.duplicated.is_empty(), "{verdict}");
}

#[test]
fn reading_goes_on_while_a_sink_writes_but_not_without_bound() {
    let harness = Harness::new();
    let a = harness.instance("a").stream(|it| it.limits.rows = 1).start();
    let gate = Gate::default();
    a.faults.sink.next("write", Fault::Hold(gate.clone()));
    harness.append_many(1_000);
    harness.until("the first write hangs", || gate.arrived() == 1);
    harness.run_for(10 * MILLI);
    let read = a.faults.source.calls("next_batch");
    assert!((3..=8).contains(&read), "{read} batches were read beside a write");
    harness.run_for(20 * SECOND);
    assert_eq!(a.faults.source.calls("next_batch"), read, "what is not asked for is not read");
    gate.open();
    harness.until("all is committed", || harness.committed() == 1_000);
    assert_eq!(harness.delivered(), (1..=1_000).collect::<Vec<_>>());
}

#[test]
fn what_is_written_but_not_durable_fills_the_window_and_stops_the_reading() {
    for (pieces, bytes) in [(8, 32 << 20), (1_000, 8 * 1_024)] {
        let harness = Harness::new();
        let a = harness
            .instance("a")
            .stream(|it| {
                it.limits.rows = 1;
                it.limits.bytes = 1_024;
                (it.window_pieces, it.window_bytes) = (pieces, bytes);
            })
            .start();
        let gate = Gate::default();
        a.faults.sink.always("flush", Fault::Hold(gate.clone()));
        for _ in 0..500 {
            harness.append_change(Operation::Insert, Some("k"), &[b' '; 900]);
        }
        harness.run_for(20 * SECOND);
        let read = a.faults.source.calls("next_batch");
        assert!((6..=20).contains(&read), "{read} batches in a window of {pieces} pieces and {bytes} bytes");
        a.faults.sink.heal("flush");
        gate.open();
        harness.until("all is committed", || harness.committed() == 500);
    }
}

#[test]
fn what_is_durable_when_it_is_written_is_not_held_until_a_commit_is_due() {
    // A batch is three changes, and no commit is due for long.
    let read_of = |durable_writes| {
        let harness = Harness::new();
        let profile = SinkProfile { durable_writes, ..SinkProfile::new(Grade::Plain, Duration::ZERO) };
        let a = harness.instance("a").profile(profile).stream(|it| {
            it.limits.rows = 3;
            it.checkpoint.every = 3_600 * SECOND;
        });
        let a = a.start();
        for batch in 1..=10 {
            harness.append_many(3);
            // The table shows what was flushed only.
            harness.until("it is written", || a.faults.sink.calls("write") == batch);
            harness.run_for(10 * MILLI);
        }
        let flushes = a.faults.sink.calls("flush");
        assert_eq!(harness.committed(), 0, "no commit was due");
        a.stop(&harness);
        assert_eq!((harness.delivered(), harness.committed()), ((1..=30).collect::<Vec<_>>(), 30), "it is in the end");
        flushes
    };
    assert_eq!(read_of(false), 0, "where a flush costs something, it waits");
    assert_eq!(read_of(true), 10, "one for each batch");
}

#[test]
fn lanes_work_beside_each_other_and_keep_the_order_of_every_key() {
    let harness = Harness::seeded(11);
    let probe = Probe::new(&harness, 20 * MILLI);
    let _a = harness
        .instance("a")
        .into_sink(Arc::new(probe.clone()))
        .stream(|it| {
            it.concurrency = 4;
            it.limits.rows = 7;
        })
        .start();
    let keys: Vec<String> = (0..400).map(|_| format!("k{}", harness.world.entropy().below(23))).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    harness.append(&keys);
    harness.until("all is committed", || harness.committed() == 400);
    assert_order(&harness, &keys.iter().map(|key| Some(*key)).collect::<Vec<_>>(), &probe.delivered());
    let writes: Vec<_> = probe.calls().into_iter().filter(|call| call.what == "write").collect();
    let is_under_way = |call: &Call, at| call.began <= at && call.ended > Some(at);
    let beside = |at| writes.iter().filter(|call| is_under_way(call, at)).count();
    let most = writes.iter().map(|call| beside(call.began)).max();
    assert_eq!(most, Some(4), "all lanes were busy at once");
    for lane in 0..4 {
        let of_lane: Vec<_> = writes.iter().filter(|call| call.lane == lane).collect();
        assert!(of_lane.windows(2).all(|pair| pair[0].ended.unwrap() <= pair[1].began), "one call per lane at a time");
    }
}

#[test]
fn a_barrier_is_written_when_all_before_it_is_durable_and_before_all_after_it() {
    let harness = Harness::seeded(12);
    let probe = Probe::new(&harness, 20 * MILLI);
    let _a = harness.instance("a").into_sink(Arc::new(probe.clone())).stream(|it| it.concurrency = 3).start();
    let mut keys = Vec::new();
    for round in 0..6 {
        for key in ["a", "b", "c", "d", "e", "f", "g"].iter().take(2 + round) {
            harness.append(&[key]);
            keys.push(Some(*key));
        }
        harness.append_barrier();
        keys.push(None);
    }
    let last = keys.len() as u64;
    harness.until("all is committed", || harness.committed() == last);
    assert_order(&harness, &keys, &probe.delivered());
    let calls = probe.calls();
    let barriers: Vec<u64> = (1..=last).filter(|number| keys[*number as usize - 1].is_none()).collect();
    for barrier in barriers {
        let at = calls.iter().position(|call| call.numbers.contains(&barrier)).unwrap();
        assert_eq!(calls[at].numbers, [barrier], "it is alone");
        let (began, ended) = (calls[at].began, calls[at].ended.unwrap());
        for call in calls.iter().filter(|call| call.what == "write" && !call.numbers.contains(&barrier)) {
            let before = call.numbers.iter().all(|number| *number < barrier);
            assert_eq!(before, call.ended.unwrap() <= began, "{call:?} beside barrier {barrier}");
            assert_eq!(!before, call.began >= ended, "{call:?} beside barrier {barrier}");
        }
        let flushed = |from, to| calls.iter().any(|it| it.what == "flush" && it.began >= from && it.ended <= Some(to));
        let earlier = calls[..at].iter().rev().find(|call| call.what == "write").unwrap();
        assert!(flushed(earlier.ended.unwrap(), began), "what is before barrier {barrier} is durable first");
        if let Some(later) = calls[at..].iter().find(|call| call.what == "write" && call.began >= ended) {
            assert!(flushed(ended, later.began), "barrier {barrier} is durable before what follows");
        }
    }
}

#[test]
fn a_position_is_committed_when_every_sink_has_it() {
    let harness = Harness::new();
    let mut plan = harness.instance("a");
    let (slow, script) = (Probe::new(&harness, MILLI), harness.script());
    let sink = Arc::new(FaultySink::new(Arc::new(slow.clone()), script.clone()));
    plan.streams[0].sinks.push(SinkSpec::new("slow", sink));
    let gate = Gate::default();
    script.next("flush", Fault::Hold(gate.clone()));
    let _a = plan.start();
    harness.append(&["a", "b"]);
    harness.until("the slow sink is flushed", || gate.arrived() == 1);
    harness.run_for(10 * SECOND);
    assert_eq!((harness.delivered().len(), slow.delivered().len(), harness.committed()), (2, 2, 0));
    gate.open();
    harness.until("both are committed", || harness.committed() == 2);
}

/// Keeps changes of one key.
#[derive(Debug)]
struct Only(&'static [u8]);

impl Filter for Only {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        batch.key(row) == Some(self.0)
    }
}

#[test]
fn what_a_filter_drops_is_passed_without_being_written() {
    let harness = Harness::new();
    let a = harness.instance("a").sink(|it| it.filter = Some(Arc::new(Only(b"b")))).start();
    harness.append(&["a", "b", "c", "b", "a"]);
    harness.until("all is committed", || harness.committed() == 5);
    assert_eq!((harness.delivered(), harness.ledger().len()), (vec![2, 4], 0));
    let writes = a.faults.sink.calls("write");
    harness.append(&["a", "a"]);
    harness.until("all is committed", || harness.committed() == 7);
    assert_eq!(a.faults.sink.calls("write"), writes, "a write without rows is none");
}

#[test]
fn the_limit_of_rows_of_a_sink_is_kept() {
    let harness = Harness::new();
    let mut probe = Probe::new(&harness, MILLI);
    probe.profile.rows_max = 3;
    let _a = harness.instance("a").into_sink(Arc::new(probe.clone())).start();
    harness.append_many(10);
    harness.until("all is committed", || harness.committed() == 10);
    let sizes: Vec<_> = probe.calls().iter().filter(|it| it.what == "write").map(|it| it.numbers.len()).collect();
    assert_eq!(sizes, [3, 3, 3, 1]);
}

#[test]
fn the_halves_of_a_key_update_are_committed_together() {
    let harness = Harness::new();
    // Lanes take different times, so that one half is often done before the other.
    let probe = Probe::new(&harness, 20 * MILLI);
    let mut plan = harness.instance("a").into_sink(Arc::new(probe.clone())).stream(|it| {
        it.checkpoint = CheckpointPolicy::every_event();
        it.concurrency = 4;
    });
    let recorder = Recorder::of(&mut plan);
    let _a = plan.start();
    for round in 0..20 {
        harness.append_row(Operation::Delete, Some(&format!("old{round}")), b"{}", true);
        harness.append_row(Operation::Insert, Some(&format!("new{round}")), b"{}", false);
        harness.append(&["other"]);
    }
    harness.until("all is committed", || harness.committed() == 60);
    let counts: Vec<_> = recorder.sent().iter().map(|write| write.facts.changes).collect();
    assert!(counts.iter().all(|changes| changes % 3 != 1), "no commit is between the halves: {counts:?}");
    assert!(counts.len() > 20, "{counts:?}");
    let flushes = probe.calls().iter().filter(|call| call.what == "flush").count();
    assert!(flushes <= 60, "{flushes} flushes: none is made that would move nothing");
}

/// Panics where it is told to.
#[derive(Debug, Clone)]
struct Panicky {
    at: &'static str,
}

#[async_trait]
impl Sink for Panicky {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(Grade::Plain, Duration::ZERO)
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, _context: &SinkContext) -> Result<OpenedSink> {
        assert_ne!(self.at, "open", "a bug of this sink");
        Ok(OpenedSink::Plain(Arc::new(self.clone())))
    }
}

#[async_trait]
impl SinkWriter for Panicky {
    async fn write(&self, _cx: &Cx, _lane: usize, _batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        assert_ne!(self.at, "write", "a bug of this sink");
        Ok(Written::all(rows))
    }

    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        assert_ne!(self.at, "flush", "a bug of this sink");
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_sink_that_panics_costs_its_instance_the_watch_and_the_group_nothing() {
    for at in ["open", "write", "flush"] {
        let harness = Harness::new();
        let a = harness.instance("a").into_sink(Arc::new(Panicky { at })).start();
        harness.append(&["a"]);
        harness.until("it has the lease", || harness.holder().is_some());
        let b = harness.start("b");
        harness.until("the other one delivers", || harness.committed() == 1);
        assert!(b.is_running() && !a.is_running(), "a panic in {at}");
        assert_eq!((harness.delivered(), harness.checkpoint().unwrap().epoch >= Epoch(2)), (vec![1], true));
        harness.run_for(SECOND);
        let cause = harness.journal().pop().unwrap().cause;
        assert!(matches!(cause, Cause::Failed | Cause::Expired), "a panic in {at}: {cause}");
        a.stop(&harness);
    }
}
