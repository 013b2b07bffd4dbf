//! Leases on servers that cannot compare times: judged by who watches them.
//!
//! A record changes with every renewal (`beat`). Its lease counts as expired only when the record has not changed for the whole
//! time to live by the watcher's own clock, which is not less than the holder gives itself: that one counts from before
//! it asked. Whoever has just begun to watch waits for that long, whatever happened before. No clocks are compared.
//!
//! Every change is made only to the record as it was seen, so a renewal that comes in between is never passed over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc, serialize_to_bson};
use serde::{Deserialize, Serialize};
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Cx, Ending, Epoch, Error, Grant, Holder, LeaseKey, Moment, Previous, Released,
    Result, TenureId,
};

use super::{COLLECTION, StoredPrevious, lost_epoch, pipeline, readable, unreadable};
use crate::client::{Client, DUPLICATE, number, number_bson};

/// How often a record is looked at again that another one changed in between.
const TRIES: usize = 5;

/// The time to live of a record that does not tell it, since another build wrote it.
const ASSUMED_TTL: Duration = Duration::from_secs(60);

/// What this process has seen of every lease.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    client: Client,
    snapshots: Arc<Mutex<BTreeMap<LeaseKey, UnchangedSince>>>,
}

/// A record as it is stored.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    #[serde(rename = "_id")]
    key: LeaseKey,
    /// As it is stored, which is no number if someone edited it.
    #[serde(rename = "epoch", default)]
    stored_epoch: Bson,
    holder: Option<Candidate>,
    previous: Option<StoredPrevious>,
    #[serde(default)]
    beat: i64,
    ttl_ms: Option<i64>,
    /// Left by builds, or servers, that compare times.
    until: Option<DateTime>,
}

/// What differs between any two states of a record.
#[derive(Debug, Clone, PartialEq)]
struct Stamp {
    epoch: Epoch,
    tenure: Option<TenureId>,
    beat: i64,
    until: Option<DateTime>,
}

/// Since when a record has been seen unchanged.
#[derive(Debug, Clone, PartialEq)]
struct UnchangedSince {
    stamp: Stamp,
    since: Moment,
}

/// What an ask comes to.
#[derive(Debug, PartialEq)]
enum Decision {
    Grant { epoch: Epoch, previous: Option<StoredPrevious> },
    Same,
    Held,
}

impl Entry {
    fn epoch(&self) -> Epoch {
        number(Some(&self.stored_epoch)).map_or_else(lost_epoch, Epoch)
    }

    fn stamp(&self) -> Stamp {
        let tenure = self.holder.as_ref().map(|holder| holder.tenure);
        Stamp { epoch: self.epoch(), tenure, beat: self.beat, until: self.until }
    }

    fn ttl(&self) -> Duration {
        let published = self.ttl_ms.and_then(|ttl| u64::try_from(ttl).ok());
        published.map_or(ASSUMED_TTL, Duration::from_millis)
    }

    /// The holder, unless its record has been silent for too long.
    fn into_holder(self, silent: Duration) -> Option<Holder> {
        let remaining = self.ttl().checked_sub(silent).filter(|left| !left.is_zero())?;
        let epoch = self.epoch();
        Some(Holder::new(self.holder?, epoch, remaining))
    }

    fn is_held_by(&self, grant: &Grant) -> bool {
        self.epoch() == grant.epoch && self.holder.as_ref().is_some_and(|holder| holder.tenure == grant.tenure)
    }

    /// The record in exactly this state.
    fn exactly(&self) -> Document {
        let mut exactly = doc! { "_id": self.key.as_str(), "epoch": self.stored_epoch.clone() };
        match &self.holder {
            Some(holder) => exactly.insert("holder.tenure", holder.tenure.to_string()),
            None => exactly.insert("holder", Bson::Null),
        };
        // A field that is missing is found by null.
        exactly.insert("beat", if self.beat == 0 { Bson::Null } else { self.beat.into() });
        exactly.insert("until", self.until);
        exactly
    }

    fn ended(&self, ending: Ending, vacant: Duration) -> Option<StoredPrevious> {
        let vacant_ms = i64::try_from(vacant.as_millis()).unwrap_or(i64::MAX);
        self.holder.clone().map(|candidate| StoredPrevious { candidate, epoch: self.epoch(), ending, vacant_ms })
    }

    /// The rules of the contract, for a record that has been silent for so long.
    fn decide(&self, ask: &AcquireRequest, silent: Duration) -> Decision {
        let Some(holder) = &self.holder else {
            let vacant_ms = i64::try_from(silent.as_millis()).unwrap_or(i64::MAX);
            let previous = self.previous.clone().map(|story| StoredPrevious { vacant_ms, ..story });
            return self.grant(ask, previous);
        };
        let own = holder.tenure == ask.candidate.tenure;
        match silent < self.ttl() {
            true if own && self.epoch() > ask.floor => Decision::Same,
            true if ask.break_holder == Some((holder.tenure, self.epoch())) => {
                self.grant(ask, self.ended(Ending::Broken, Duration::ZERO))
            }
            // The same tenure above a higher floor: nobody came in between.
            true if own => self.grant(ask, self.previous.clone()),
            true => Decision::Held,
            false => self.grant(ask, self.ended(Ending::Expired, silent.saturating_sub(self.ttl()))),
        }
    }

    fn grant(&self, ask: &AcquireRequest, previous: Option<StoredPrevious>) -> Decision {
        Decision::Grant { epoch: self.epoch().max(ask.floor).next(), previous }
    }
}

/// A value as it is stored.
fn stored(value: &impl Serialize) -> Result<Bson> {
    serialize_to_bson(value).map_err(|error| Error::internal("a lease cannot be stored").caused_by(error))
}

fn millis(duration: Duration) -> Bson {
    Bson::Int64(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4))
}

/// What a renewal changes.
pub(super) fn beat(ttl: Duration) -> Document {
    doc! { "$set": { "ttl_ms": millis(ttl) }, "$inc": { "beat": 1_i64 } }
}

impl Observed {
    pub(super) fn new(client: Client) -> Self {
        Self { client, snapshots: Arc::default() }
    }

    /// The same on connections of its own; what one of them sees, both know.
    pub(super) fn separate(&self) -> Self {
        Self { client: self.client.separate(), snapshots: Arc::clone(&self.snapshots) }
    }

    async fn entries(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Entry>> {
        let keys: Vec<Bson> = keys.iter().map(|key| key.as_str().into()).collect();
        let found = self.client.rows(cx, doc! { "find": COLLECTION, "filter": { "_id": { "$in": keys } } }).await?;
        let read = |document| {
            mongodb::bson::deserialize_from_document(document).map_err(|error| unreadable(&self.client, error))
        };
        Ok(found.into_iter().filter_map(|document| readable(read(document))).collect())
    }

    /// Notes what was seen just now. For how long it has been like that.
    fn observe(&self, key: &LeaseKey, stamp: Stamp, now: Moment) -> Duration {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot =
            snapshots.entry(key.clone()).or_insert_with(|| UnchangedSince { stamp: stamp.clone(), since: now });
        if snapshot.stamp != stamp {
            *snapshot = UnchangedSince { stamp, since: now };
        }
        now.since(snapshot.since)
    }

    async fn update(&self, cx: &Cx, statement: Document) -> Result<bool> {
        let reply = self.client.write(cx, doc! { "update": COLLECTION, "updates": [statement] }).await?;
        Ok(reply.whole(&self.client)?.count() == 1)
    }

    pub(super) async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        for _ in 0..TRIES {
            let entry = self.entries(cx, std::slice::from_ref(&ask.key)).await?.pop();
            if let Some(answer) = self.ask(cx, ask, entry).await? {
                return Ok(answer);
            }
        }
        Err(Error::unavailable("another one was quicker, again and again").remedy("it is asked for again"))
    }

    /// Asks about the record as it was just read; `None` when it was changed in between.
    async fn ask(&self, cx: &Cx, ask: &AcquireRequest, entry: Option<Entry>) -> Result<Option<Acquired>> {
        let silent = entry.as_ref().map(|entry| self.observe(&entry.key, entry.stamp(), cx.now())).unwrap_or_default();
        let decision = match &entry {
            Some(entry) => entry.decide(ask, silent),
            None => Decision::Grant { epoch: ask.floor.next(), previous: None },
        };
        let grant = |epoch| Grant { key: ask.key.clone(), tenure: ask.candidate.tenure, epoch };
        match (decision, entry) {
            (Decision::Grant { epoch, previous }, entry) => {
                let granted = self.grant(cx, ask, entry, epoch, previous.as_ref()).await?;
                let previous = previous.map(Previous::from);
                Ok(granted.then(|| Acquired::Granted { grant: grant(epoch), previous }))
            }
            (Decision::Same, Some(entry)) => {
                let same = grant(entry.epoch());
                let ours = self.update(cx, doc! { "q": pipeline::held_by(&same), "u": beat(ask.ttl) }).await?;
                let previous = entry.previous.map(Previous::from);
                Ok(ours.then_some(Acquired::Granted { grant: same, previous }))
            }
            (_, entry) => Ok(entry.and_then(|entry| entry.into_holder(silent)).map(Acquired::Held)),
        }
    }

    /// Writes a grant over the record as it was seen. Whether it was still so.
    async fn grant(
        &self,
        cx: &Cx,
        ask: &AcquireRequest,
        entry: Option<Entry>,
        epoch: Epoch,
        previous: Option<&StoredPrevious>,
    ) -> Result<bool> {
        let fields = doc! {
            "epoch": number_bson(epoch.0),
            "holder": stored(&ask.candidate)?,
            "previous": previous.map(stored).transpose()?,
            "ttl_ms": millis(ask.ttl),
        };
        let beat = entry.as_ref().map_or(0, |entry| entry.beat) + 1;
        let granted = match entry {
            Some(entry) => {
                let becomes = doc! { "$set": fields, "$inc": { "beat": 1_i64 }, "$unset": { "until": "" } };
                self.update(cx, doc! { "q": entry.exactly(), "u": becomes }).await?
            }
            None => {
                let mut first = doc! { "_id": ask.key.as_str(), "beat": beat };
                first.extend(fields);
                let reply = self.client.write(cx, doc! { "insert": COLLECTION, "documents": [first] }).await?;
                // Another one made it at the same moment: now there is one to look at.
                let other = reply.errors().any(|(_, code, _)| code == DUPLICATE);
                !other && reply.whole(&self.client)?.count() == 1
            }
        };
        if granted {
            let stamp = Stamp { epoch, tenure: Some(ask.candidate.tenure), beat, until: None };
            self.observe(&ask.key, stamp, cx.now());
        }
        Ok(granted)
    }

    pub(super) async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let entry = self.entries(cx, std::slice::from_ref(&grant.key)).await?.pop();
        let Some(entry) = entry.filter(|entry| entry.is_held_by(grant)) else { return Ok(Released::NotHeld) };
        let story = entry.ended(Ending::Released, Duration::ZERO).map(|story| stored(&story)).transpose()?;
        let becomes = doc! { "$set": { "holder": Bson::Null, "previous": story }, "$inc": { "beat": 1_i64 } };
        match self.update(cx, doc! { "q": pipeline::held_by(grant), "u": becomes }).await? {
            true => Ok(Released::Released),
            false => Ok(Released::NotHeld),
        }
    }

    /// Whether these are still held under exactly these grants.
    pub(super) async fn held(&self, cx: &Cx, grants: &[&Grant]) -> Result<Vec<bool>> {
        let keys: Vec<LeaseKey> = grants.iter().map(|grant| grant.key.clone()).collect();
        let entries = self.entries(cx, &keys).await?;
        let is_held = |grant: &&Grant| entries.iter().any(|entry| entry.key == grant.key && entry.is_held_by(grant));
        Ok(grants.iter().map(is_held).collect())
    }

    pub(super) async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let mut entries = self.entries(cx, keys).await?;
        let now = cx.now();
        let holder = |key: &LeaseKey| {
            let entry = entries.swap_remove(entries.iter().position(|entry| entry.key == *key)?);
            let silent = self.observe(key, entry.stamp(), now);
            entry.into_holder(silent)
        };
        Ok(keys.iter().map(holder).collect())
    }
}
