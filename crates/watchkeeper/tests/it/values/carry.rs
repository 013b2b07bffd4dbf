//! From a source to a target, without an engine in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper::core::{
    BootClock, CheckpointWrite, Cx, Entropy, Epoch, Facts, Grant, LeaseKey, Limits, OpenedSink, Options, Origin,
    Purpose, Reason, SinkContext, Source, StoreIdentity, Target, Transacted, WrittenSetting,
};
use watchkeeper::{Batch, Change, StartAt, registry};

pub(super) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock)).within(Duration::from_secs(120))
}

/// Settings as a file would have them.
pub(super) fn options(settings: &[(&str, &str)]) -> Options {
    let origin = Origin::new("test");
    let mut options = Options::new("", origin.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, origin.clone()));
    }
    options
}

/// The source that these settings name.
pub(super) async fn source(settings: &[(&str, &str)]) -> Arc<dyn Source> {
    let backend = registry::of_url(settings[0].1).expect("the build knows it");
    let purpose = Purpose::new("shop", "values");
    backend.source(&cx(), &purpose, &mut options(settings)).await.expect("the source opens")
}

/// Reads so many changes.
pub(super) async fn read(source: &dyn Source, start: StartAt, changes: usize) -> Vec<Arc<Batch>> {
    let mut stream = source.open(&cx(), start).await.expect("the stream opens");
    let batches = read_more(&mut *stream, changes).await;
    stream.close(&cx()).await.expect("it can be closed");
    batches
}

/// Reads so many further changes.
pub(super) async fn read_more(stream: &mut dyn watchkeeper::core::ChangeStream, changes: usize) -> Vec<Arc<Batch>> {
    // Rejected changes are looked for among all of a batch.
    let limits = Limits { rows: 100, bytes: 1 << 24, wait: Duration::from_millis(50) };
    let (begun, mut batches, mut count) = (Instant::now(), Vec::new(), 0);
    while count < changes {
        assert!(begun.elapsed() < Duration::from_secs(60), "{count} of {changes} changes came");
        let batch = stream.next_batch(&cx(), limits).await.expect("it can be read");
        count += batch.len();
        if !batch.is_empty() {
            batches.push(Arc::new(batch));
        }
    }
    assert_eq!(count, changes, "more changes came than were made");
    batches
}

/// A target and what it rejected.
pub(super) struct Delivery {
    target: Target,
    grant: Grant,
    seq: u64,
    /// Why changes were rejected, by their place among all that were delivered.
    pub(super) rejected: BTreeMap<usize, String>,
    delivered: usize,
}

impl Delivery {
    /// To the target that these settings name; the first is its URL or its type.
    pub(super) async fn to(settings: &[(&str, &str)]) -> Self {
        let (backend, settings) = match settings {
            [("type", name), rest @ ..] => (registry::named(name), rest),
            _ => (registry::of_url(settings[0].1), settings),
        };
        let backend = backend.expect("the build knows it");
        let mut options = options(settings);
        if backend.name() == "postgres" {
            // Rejected changes are looked for among all, on a machine that may be busy.
            options.insert("timeout", WrittenSetting::text("100s", Origin::new("test")));
        }
        let target = backend.sink(&cx(), &Purpose::new("shop", "values"), &mut options).await;
        let target = target.unwrap_or_else(|error| panic!("{settings:?}: {error}"));
        let entropy = Entropy::from_system();
        let key = LeaseKey::new(entropy.uuid().to_string());
        let grant = Grant { key, tenure: entropy.tenure(), epoch: Epoch(1) };
        if let Some(checkpoints) = &target.checkpoints {
            checkpoints.claim(&cx(), &grant).await.expect("it is free");
        }
        Self { target, grant, seq: 0, rejected: BTreeMap::new(), delivered: 0 }
    }

    async fn open(&self) -> OpenedSink {
        let store = match &self.target.checkpoints {
            Some(checkpoints) => checkpoints.identity(&cx()).await.expect("it has one"),
            None => StoreIdentity(self.grant.tenure.0),
        };
        let context = SinkContext {
            grant: self.grant.clone(),
            stream: "values".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes: 1,
            store,
        };
        self.target.sink.open(&cx(), &context).await.expect("the sink opens")
    }

    fn write(&self) -> CheckpointWrite {
        CheckpointWrite {
            grant: self.grant.clone(),
            seq: self.seq,
            position: None,
            pedigree: None,
            reason: Reason::Progress,
            halted: None,
            facts: Facts::default(),
            ledger: Vec::new(),
            resolve: Vec::new(),
        }
    }

    /// Delivers everything that is not rejected. Any other failure fails the test.
    pub(super) async fn deliver(&mut self, batches: &[Arc<Batch>]) {
        let mut opened = self.open().await;
        for batch in batches {
            let mut rows: Vec<u32> = (0..).take(batch.len()).collect();
            match &mut opened {
                OpenedSink::Transactional(writer) => {
                    self.seq += 1;
                    // Also without rows, if all of them were rejected: commits are counted.
                    loop {
                        let answer = writer.write_and_commit(&cx(), batch, &rows, &self.write()).await;
                        match answer.expect("what is refused is rejected, not an error") {
                            Transacted::Committed => break,
                            Transacted::Rejected(faults) => {
                                assert!(!faults.is_empty(), "a rejection names its changes");
                                for fault in faults {
                                    rows.retain(|row| *row != fault.row);
                                    self.reject(fault.row, &fault.error);
                                }
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
                OpenedSink::Plain(writer) => {
                    let written = writer.write(&cx(), 0, batch, &rows).await;
                    let written = written.expect("what is refused is rejected, not an error");
                    assert!(written.stopped.is_none() && written.done == rows.len(), "{written:?}");
                    for fault in written.rejected {
                        self.reject(fault.row, &fault.error);
                    }
                    let flushed = writer.flush(&cx()).await.expect("it can be flushed");
                    assert!(flushed.is_empty(), "{flushed:?}");
                }
            }
            self.delivered += batch.len();
        }
    }

    fn reject(&mut self, row: u32, error: &watchkeeper::Error) {
        let earlier = self.rejected.insert(self.delivered + row as usize, error.to_string());
        assert!(earlier.is_none(), "rejected twice: {error}");
    }
}

/// All changes of batches, in order.
pub(super) fn changes(batches: &[Arc<Batch>]) -> Vec<Change> {
    let of = |batch: &Arc<Batch>| {
        let batch = Arc::clone(batch);
        (0..).take(batch.len()).map(move |row| Change::new(Arc::clone(&batch), row))
    };
    batches.iter().flat_map(of).collect()
}
