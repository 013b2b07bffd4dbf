use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;

use super::lock;
use crate::clock::{Clock, Moment};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::latest::Latest;
use crate::records::{PutOutcome, RECORD_BYTES_MAX, Record, Records, Revision};

/// Records in memory. Age is judged by the clock it was made with.
#[derive(Debug, Clone)]
pub struct RecordStore {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
    changed: Arc<Latest<u64>>,
}

#[derive(Debug, Default)]
struct State {
    /// One counter for all names, so that no name ever sees a revision twice.
    newest: u64,
    documents: BTreeMap<String, Written>,
    logs: BTreeMap<String, VecDeque<Written>>,
}

#[derive(Debug, Clone)]
struct Written {
    bytes: Bytes,
    revision: Revision,
    at: Moment,
}

impl RecordStore {
    /// An empty store that believes `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Arc::default(), changed: Arc::new(Latest::new(0)) }
    }

    fn record(&self, name: &str, written: &Written) -> Record {
        let age = self.clock.now().since(written.at);
        Record { name: name.to_owned(), bytes: written.bytes.clone(), revision: written.revision, age }
    }

    fn written(&self, state: &mut State, bytes: Bytes) -> Written {
        state.newest += 1;
        Written { bytes, revision: Revision(state.newest), at: self.clock.now() }
    }

    fn publish(&self) {
        self.changed.change(|count| *count += 1);
    }
}

fn fits(name: &str, bytes: &Bytes) -> Result<()> {
    if bytes.len() <= RECORD_BYTES_MAX {
        return Ok(());
    }
    Err(Error::config(format!("record {name} has {} bytes, more than {RECORD_BYTES_MAX}", bytes.len())))
}

#[async_trait]
impl Records for RecordStore {
    async fn get(&self, _cx: &Cx, name: &str) -> Result<Option<Record>> {
        Ok(lock(&self.state).documents.get(name).map(|written| self.record(name, written)))
    }

    async fn list(&self, _cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let state = lock(&self.state);
        let from = state.documents.range(prefix.to_owned()..);
        let found = from.take_while(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, written)| self.record(name, written)).collect())
    }

    async fn put_if(&self, _cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        fits(name, &bytes)?;
        let mut state = lock(&self.state);
        if state.documents.get(name).map(|written| written.revision) != expected {
            return Ok(PutOutcome::Conflict);
        }
        let written = self.written(&mut state, bytes);
        let revision = written.revision;
        state.documents.insert(name.to_owned(), written);
        self.publish();
        Ok(PutOutcome::Done(revision))
    }

    async fn delete_if(&self, _cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let mut state = lock(&self.state);
        if state.documents.get(name).map(|written| written.revision) != Some(expected) {
            return Ok(PutOutcome::Conflict);
        }
        state.documents.remove(name);
        self.publish();
        Ok(PutOutcome::Done(expected))
    }

    async fn append(&self, _cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        fits(log, &bytes)?;
        let mut state = lock(&self.state);
        let written = self.written(&mut state, bytes);
        let entries = state.logs.entry(log.to_owned()).or_default();
        entries.push_back(written);
        while entries.len() > keep {
            entries.pop_front();
        }
        self.publish();
        Ok(())
    }

    async fn tail(&self, _cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        let state = lock(&self.state);
        let Some(entries) = state.logs.get(log) else { return Ok(Vec::new()) };
        let newest = entries.iter().skip(entries.len().saturating_sub(limit));
        Ok(newest.map(|written| self.record(log, written)).collect())
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        let mut changed = self.changed.follow();
        cx.run(async { changed.changed().await.map_err(|_| Error::unavailable("the records are gone")) }).await
    }
}
