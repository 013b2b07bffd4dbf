//! Transactions that take longer than they may.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::memory::TransactionalTable;
use watchkeeper_core::{
    Batch, CheckpointWrite, Cx, Epoch, Error, Finding, OpenedSink, Result, Sink, SinkContext, SinkProfile, Transacted,
    TransactionalWriter,
};

use crate::support::*;

/// What a transaction was: its epoch, its number there, its rows.
type Tried = (Epoch, u64, Vec<u32>);

/// A target that needs its time for every row.
#[derive(Debug, Clone)]
struct Slow {
    inner: Arc<dyn Sink>,
    manner: Arc<Mutex<Manner>>,
    tried: Arc<Mutex<Vec<Tried>>>,
}

#[derive(Debug, Clone, Copy)]
struct Manner {
    per_row: Duration,
    /// Who takes longer is broken off.
    allowed: Duration,
    /// Whether that is said, or nothing is answered any more, though it was done.
    says: bool,
}

impl Slow {
    fn new(harness: &Harness, per_row: Duration, says: bool) -> Self {
        let manner = Manner { per_row, allowed: SECOND, says };
        let inner = Arc::new(TransactionalTable::new(harness.checkpoints.clone()));
        Self { inner, manner: Arc::new(Mutex::new(manner)), tried: Arc::default() }
    }

    fn sizes(&self) -> Vec<usize> {
        self.tried.lock().unwrap().iter().map(|(_, _, rows)| rows.len()).collect()
    }
}

#[async_trait]
impl Sink for Slow {
    fn profile(&self) -> SinkProfile {
        self.inner.profile()
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.inner.check(cx).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let OpenedSink::Transactional(inner) = self.inner.open(cx, context).await? else { panic!("a plain writer") };
        Ok(OpenedSink::Transactional(Box::new(SlowWriter { inner, slow: self.clone() })))
    }
}

#[derive(Debug)]
struct SlowWriter {
    inner: Box<dyn TransactionalWriter>,
    slow: Slow,
}

#[async_trait]
impl TransactionalWriter for SlowWriter {
    async fn write_and_commit(
        &mut self,
        cx: &Cx,
        batch: &Arc<Batch>,
        rows: &[u32],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        if rows.is_empty() {
            return self.inner.write_and_commit(cx, batch, rows, write).await;
        }
        self.slow.tried.lock().unwrap().push((write.grant.epoch, write.seq, rows.to_vec()));
        let Manner { per_row, allowed, says } = *self.slow.manner.lock().unwrap();
        let takes = per_row * rows.len() as u32;
        cx.sleep(takes.min(allowed)).await;
        if takes <= allowed {
            return self.inner.write_and_commit(cx, batch, rows, write).await;
        }
        if says {
            return Err(Error::unavailable("it took too long, and was undone").late());
        }
        std::future::pending().await
    }

    async fn close(&mut self, cx: &Cx) -> Result<()> {
        self.inner.close(cx).await
    }
}

fn written(harness: &Harness) -> Vec<u64> {
    numbers(&harness.checkpoints.delivered())
}

#[test]
fn what_takes_too_long_at_once_is_written_in_smaller_pieces_by_the_same_tenure() {
    let harness = Harness::new();
    let slow = Slow::new(&harness, Duration::from_millis(90), true);
    harness.append_many(100);
    let a = harness.instance("a").into_sink(Arc::new(slow.clone())).start();
    harness.until("all is written", || harness.committed() == 100);
    assert_eq!(written(&harness), (1..=100).collect::<Vec<_>>(), "once, in order");
    assert_eq!(slow.sizes()[..9], [100, 100, 50, 50, 25, 25, 12, 12, 6], "twice each, then half of it");
    assert_eq!((harness.checkpoint().unwrap().epoch, a.status().tenures), (Epoch(1), 1));
}

#[test]
fn what_may_have_been_written_is_repeated_unchanged_until_a_new_tenure_cuts_it_smaller() {
    let harness = Harness::new();
    let slow = Slow::new(&harness, Duration::from_millis(90), false);
    harness.append_many(40);
    let a = harness.instance("a").into_sink(Arc::new(slow.clone()));
    let a = a.stream(|it| it.timeouts.write = 2 * SECOND).start();
    harness.until("all is written", || harness.committed() == 40);
    assert_eq!(written(&harness), (1..=40).collect::<Vec<_>>(), "once, in order");
    assert!(a.status().tenures > 2, "each cut is a tenure of its own, though nobody else is there");
    assert_eq!(slow.sizes()[..7], [40, 40, 40, 20, 20, 20, 10]);
    let mut by_number: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
    for (epoch, seq, rows) in slow.tried.lock().unwrap().iter() {
        let first = by_number.entry((epoch.0, *seq)).or_insert_with(|| rows.clone());
        assert_eq!(first, rows, "number {seq} of epoch {} was another transaction before", epoch.0);
    }
}

#[test]
fn a_single_change_that_takes_too_long_is_tried_again_in_the_same_tenure() {
    let harness = Harness::new();
    let slow = Slow::new(&harness, 2 * SECOND, true);
    harness.append_many(3);
    let a = harness.instance("a").into_sink(Arc::new(slow.clone())).start();
    harness.until("it was tried often", || slow.sizes().len() > 20);
    assert_eq!((harness.committed(), a.status().tenures), (0, 1));
    assert!(slow.sizes()[4..].iter().all(|size| *size == 1), "{:?}", slow.sizes());
    slow.manner.lock().unwrap().per_row = Duration::ZERO;
    harness.until("all is written", || harness.committed() == 3);
    assert_eq!(written(&harness), [1, 2, 3]);
}

#[test]
fn pieces_grow_again_when_the_target_is_quick_again() {
    let harness = Harness::new();
    let slow = Slow::new(&harness, Duration::from_millis(90), true);
    harness.append_many(40);
    let _a = harness.instance("a").into_sink(Arc::new(slow.clone())).stream(|it| it.limits.rows = 40).start();
    harness.until("all is written", || harness.committed() == 40);
    slow.manner.lock().unwrap().per_row = Duration::ZERO;
    slow.tried.lock().unwrap().clear();
    harness.append_many(1_200);
    harness.until("all is written", || harness.committed() == 1_240);
    let sizes = slow.sizes();
    assert_eq!((sizes.iter().min(), sizes.last()), (Some(&10), Some(&40)), "{sizes:?}");
    assert_eq!(written(&harness), (1..=1_240).collect::<Vec<_>>());
}

#[test]
fn a_transaction_that_a_filter_leaves_one_change_of_is_not_given_up_to_be_cut_smaller() {
    let harness = Harness::new();
    let slow = Slow::new(&harness, 2 * SECOND, false);
    harness.append_many(10);
    let only = |batch: &Batch, row: u32| batch.rows()[row as usize].version.time == 4;
    let a = harness.instance("a").into_sink(Arc::new(slow.clone())).sink(|it| it.filter = Some(Arc::new(only)));
    let a = a.stream(|it| it.timeouts.write = 2 * SECOND).start();
    harness.until("it was tried often", || slow.sizes().len() > 8);
    assert_eq!((a.status().tenures, harness.committed()), (1, 0));
    slow.manner.lock().unwrap().per_row = Duration::ZERO;
    harness.until("all is passed", || harness.committed() == 10);
    assert_eq!((written(&harness), a.status().tenures), (vec![4], 1));
    // The first commit of the stream was its first checkpoint.
    assert!(slow.tried.lock().unwrap().iter().all(|(_, seq, rows)| (*seq, &rows[..]) == (2, &[3][..])));
}
