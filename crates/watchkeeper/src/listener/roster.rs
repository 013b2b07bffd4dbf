//! Who is registered and what they say of themselves, in the group's records.
//!
//! It is kept beside the engine's own registry and not in it: that one has the processes that run streams, this one the
//! listeners that people have named, whether they run anything or not.
//!
//! A listener is a name that people register, perhaps in several processes and without a stream. Its identity is
//! derived from its name, so that all processes compute the same order of succession.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use watchkeeper_core::{Cx, Error, ErrorKind, PutOutcome, Record, Records, Result};
use watchkeeper_engine::group::registry::{Beat, Listed, Member, Registry};
use watchkeeper_engine::group::slots::Slots;

use super::config::MultiListenerConfig;
use super::handle::{ListenerHandle, StateReport, identity};

/// How often a record is read again because someone else wrote in between.
const ATTEMPTS: usize = 16;

/// Listeners that were silent for so many thresholds are removed.
const SWEEP_AFTER: u32 = 20;

/// The listeners of a group.
#[derive(Debug)]
pub(super) struct Roster {
    records: Arc<dyn Records>,
    registry: Registry,
    slots: Slots,
    prefix: String,
    threshold: Duration,
}

/// A listener as the others see it.
#[derive(Debug, Clone)]
pub(super) struct ObservedStream {
    pub(super) listener_id: String,
    pub(super) age: Duration,
    pub(super) is_healthy: bool,
    pub(super) saying: StateReport,
}

impl Roster {
    pub(super) fn new(records: Arc<dyn Records>, group: &str, config: &MultiListenerConfig) -> Self {
        let scope = format!("{group}/listening");
        let threshold = config.failover_threshold();
        Self {
            registry: Registry::new(Arc::clone(&records), &scope).unhealthy_after(threshold),
            slots: Slots::new(Arc::clone(&records), &scope, config.max_listeners),
            prefix: format!("{scope}/sayings/"),
            threshold,
            records,
        }
    }

    /// Enters a listener. One that is there already, also by another process, stays as it is.
    pub(super) async fn enter(&self, cx: &Cx, handle: &ListenerHandle) -> Result<()> {
        let member = member(handle);
        self.registry.register(cx, &member).await?;
        if let Err(error) = self.slots.enter(cx, &self.registry, &member).await {
            if error.kind() == ErrorKind::Config {
                self.registry.deregister(cx, member.instance).await?;
            }
            return Err(error);
        }
        handle.note_heartbeat();
        let name = self.name(handle.listener_id());
        // What another process says under this name counts until this one has something to say.
        self.records.put_if(cx, &name, None, encode(&handle.saying())?).await?;
        Ok(())
    }

    /// Removes a listener; whether it was there.
    pub(super) async fn leave(&self, cx: &Cx, listener_id: &str) -> Result<bool> {
        let instance = identity(listener_id);
        let was_there = self.registry.list(cx).await?.iter().any(|listed| listed.member.instance == instance);
        self.slots.leave(cx, instance).await?;
        self.registry.deregister(cx, instance).await?;
        let name = self.name(listener_id);
        if let Some(record) = self.records.get(cx, &name).await? {
            self.records.delete_if(cx, &name, record.revision).await?;
        }
        Ok(was_there)
    }

    /// Says that a listener is alive.
    pub(super) async fn beat(&self, cx: &Cx, handle: &ListenerHandle) -> Result<()> {
        let member = member(handle);
        if self.registry.heartbeat(cx, &member).await? == Beat::Restored {
            // Others took it for dead, and may have taken its slot.
            self.slots.enter(cx, &self.registry, &member).await?;
            handle.keep_news();
        }
        handle.note_heartbeat();
        Ok(())
    }

    /// Writes down what a listener says of itself, if it has something to say. After an error it has to be told
    /// to [keep its news](ListenerHandle::keep_news).
    pub(super) async fn record_report(&self, cx: &Cx, handle: &ListenerHandle) -> Result<()> {
        let Some(saying) = handle.take_news() else { return Ok(()) };
        self.write(cx, &self.name(handle.listener_id()), encode(&saying)?).await
    }

    /// All listeners, in the order of their names.
    pub(super) async fn list(&self, cx: &Cx) -> Result<Vec<ObservedStream>> {
        let members = self.registry.list(cx).await?;
        let sayings: BTreeMap<_, _> = self.records.list(cx, &self.prefix).await?.iter().filter_map(decode).collect();
        let mut seen: Vec<_> = members.into_iter().map(|listed| self.seen(listed, &sayings)).collect();
        seen.sort_unstable_by(|a, b| a.listener_id.cmp(&b.listener_id));
        Ok(seen)
    }

    fn seen(&self, listed: Listed, sayings: &BTreeMap<String, StateReport>) -> ObservedStream {
        let listener_id = listed.member.name;
        let silent = StateReport { state: super::ListenerState::Initializing, checkpoint: 0, stream: None };
        let saying = sayings.get(&self.name(&listener_id)).cloned().unwrap_or(silent);
        ObservedStream { listener_id, age: listed.age, is_healthy: listed.age <= self.threshold, saying }
    }

    /// Forgets those that have been silent for very long.
    pub(super) async fn sweep(&self, cx: &Cx) -> Result<()> {
        if self.registry.sweep(cx, self.threshold * SWEEP_AFTER).await? == 0 {
            return Ok(());
        }
        let names: Vec<_> = self.registry.list(cx).await?.iter().map(|listed| self.name(&listed.member.name)).collect();
        for record in self.records.list(cx, &self.prefix).await? {
            if !names.contains(&record.name) {
                self.records.delete_if(cx, &record.name, record.revision).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, cx: &Cx, name: &str, bytes: Bytes) -> Result<()> {
        for _ in 0..ATTEMPTS {
            cx.check()?;
            let expected = self.records.get(cx, name).await?.map(|record| record.revision);
            if let PutOutcome::Done(_) = self.records.put_if(cx, name, expected, bytes.clone()).await? {
                return Ok(());
            }
        }
        Err(Error::unavailable(format!("{name} was changed by others {ATTEMPTS} times in a row")))
    }

    fn name(&self, listener_id: &str) -> String {
        format!("{}{listener_id}", self.prefix)
    }
}

fn member(handle: &ListenerHandle) -> Member {
    let mut member = Member::new(identity(handle.listener_id()), handle.listener_id());
    member.streams = handle.saying().stream.into_iter().collect();
    member
}

fn encode(saying: &StateReport) -> Result<Bytes> {
    let bytes = serde_json::to_vec(saying);
    bytes.map(Bytes::from).map_err(|error| Error::internal("a state cannot be written").caused_by(error))
}

/// What cannot be read is left out: one garbled neighbour must not blind the group.
fn decode(record: &Record) -> Option<(String, StateReport)> {
    Some((record.name.clone(), serde_json::from_slice(&record.bytes).ok()?))
}
