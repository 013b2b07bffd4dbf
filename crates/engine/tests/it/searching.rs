//! A source that searches its log before it can tell the next change: the group is told for as long as it lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use watchkeeper_core::memory::Log;
use watchkeeper_core::{
    Batch, ChangeStream, Cx, ErrorKind, Finding, Limits, Payload, Pedigree, Position, Result, Source, Stage, StartAt,
    Window,
};
use watchkeeper_engine::group::report::StreamActivity;
use watchkeeper_testkit::faults::{Fault, FaultySource};

use crate::connect::report;
use crate::support::*;

/// A log that says how many entries it has searched, as long as there are any.
#[derive(Debug, Clone)]
struct Searched(Log, Arc<AtomicU64>);

struct Searching(Box<dyn ChangeStream>, Arc<AtomicU64>);

#[async_trait::async_trait]
impl Source for Searched {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.0.check(cx).await
    }
    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        self.0.identity(cx).await
    }
    fn compare(&self, a: &Position, b: &Position) -> Option<std::cmp::Ordering> {
        self.0.compare(a, b)
    }
    fn payload(&self) -> Arc<dyn Payload> {
        self.0.payload()
    }
    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        Ok(Box::new(Searching(self.0.open(cx, start).await?, Arc::clone(&self.1))))
    }
}

#[async_trait::async_trait]
impl ChangeStream for Searching {
    fn position(&self) -> Option<Position> {
        self.0.position()
    }
    fn stage(&self) -> Option<Stage> {
        let done = self.1.load(SeqCst);
        (done > 0).then(|| Stage { what: "searching".to_owned(), done, of: None, unit: "entries" })
    }
    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        self.0.next_batch(cx, limits).await
    }
    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        self.0.acknowledge(cx, position).await
    }
    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.0.window(cx).await
    }
    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        self.0.close(cx).await
    }
}

#[test]
fn a_search_of_an_open_source_is_reported_with_its_progress_until_it_ends() {
    let harness = Harness::new();
    let entries = Arc::new(AtomicU64::new(0));
    let mut plan = harness.instance("a");
    let source = plan.faults.source.clone();
    let searched = Arc::new(Searched(harness.log.clone(), Arc::clone(&entries)));
    plan.streams[0].source = Arc::new(FaultySource::new(searched, source.clone()));
    let _a = plan.start();
    let reported = || report(&harness, "a", "orders").stage.map(|stage| (stage.what, stage.done, stage.of, stage.unit));
    let searched = |done: u64| Some(("searching".to_owned(), done, None, "entries".to_owned()));
    harness.append(&["x"]);
    harness.until("it runs", || {
        harness.committed() == 1 && report(&harness, "a", "orders").doing == StreamActivity::Running
    });
    assert_eq!(reported(), None);
    entries.store(1_000, SeqCst);
    harness.until("it is told", || reported() == searched(1_000));
    entries.store(2_000, SeqCst);
    harness.until("so is how it gets on", || reported() == searched(2_000));
    entries.store(0, SeqCst);
    harness.until("it is over", || reported().is_none());
    // What was searched is forgotten with the opening, however long the next one takes.
    entries.store(3_000, SeqCst);
    harness.until("it is told again", || reported() == searched(3_000));
    source.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    source.always("open", Fault::Reject(ErrorKind::Unavailable));
    harness.until("nothing is searched any more", || reported().is_none());
}
