//! Leases: one document per key, which is never deleted, since it keeps the epoch.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde::{Deserialize, Serialize};
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Cx, Ending, Epoch, Error, Grant, Holder, Lease, LeaseKey, LeaseProfile,
    LeaseStore, Previous, Released, Renewal, Result, Wakeups,
};

use crate::client::{ChangeHints, Client, DUPLICATE, Topic, ensure, is_code, publish};

mod observed;
mod pipeline;

use observed::Observed;

const COLLECTION: &str = "watchkeeper_leases";

/// Leases in MongoDB, judged by the server's own clock; or, where it has none to compare with, by observation.
#[derive(Debug, Clone)]
pub struct Leases {
    client: Client,
    observed: Option<Observed>,
    /// Whether releases are told, or have to be looked for.
    wakes: bool,
}

/// A document of the collection, with the server's time beside it.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "_id")]
    key: LeaseKey,
    /// The newest epoch ever granted. It outlives every holder. Zero when it was lost.
    #[serde(default = "lost_epoch")]
    epoch: Epoch,
    holder: Option<Candidate>,
    /// When the lease ends, or, without a holder, when it was released.
    until: Option<DateTime>,
    /// The tenure before this one, as it was when this one began; without a holder, the released one.
    previous: Option<StoredPrevious>,
    /// The server's clock when this was read.
    now: DateTime,
}

/// [`Previous`] as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredPrevious {
    candidate: Candidate,
    epoch: Epoch,
    ending: Ending,
    vacant_ms: i64,
}

impl From<StoredPrevious> for Previous {
    fn from(story: StoredPrevious) -> Self {
        let vacant = Duration::from_millis(u64::try_from(story.vacant_ms).unwrap_or(0));
        Self { candidate: story.candidate, epoch: story.epoch, ending: story.ending, vacant }
    }
}

/// The epoch of a lease that has lost it: it is granted above what the checkpoint was claimed with.
fn lost_epoch() -> Epoch {
    Epoch::ZERO
}

impl Entry {
    fn read(client: &Client, document: Document) -> Result<Self> {
        mongodb::bson::deserialize_from_document(document).map_err(|error| unreadable(client, error))
    }

    /// Who holds now.
    fn into_holder(self) -> Option<Holder> {
        let left_ms = self.until?.timestamp_millis() - self.now.timestamp_millis();
        let remaining = u64::try_from(left_ms).ok().filter(|left| *left > 0).map(Duration::from_millis)?;
        Some(Holder::new(self.holder?, self.epoch, remaining))
    }

    fn is_held_by(&self, grant: &Grant) -> bool {
        let tenure = self.holder.as_ref().map(|holder| holder.tenure);
        tenure == Some(grant.tenure) && self.epoch == grant.epoch
    }
}

fn unreadable(client: &Client, error: mongodb::bson::error::Error) -> Error {
    Error::corrupt(format!("{}: a lease is not what it should be", client.place()))
        .remedy("restore it from a backup; collections watchkeeper_* are not to be edited")
        .caused_by(error)
}

/// A lease among others, if it can be read: one that cannot is nobody's, and does not stop the streams of the others.
fn readable<T>(entry: Result<T>) -> Option<T> {
    entry.inspect_err(|error| tracing::warn!(%error, "a lease cannot be read; it counts as free")).ok()
}

impl Leases {
    /// The leases in the client's database, whose collections are made where they are missing.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        ensure(cx, &client, &[COLLECTION]).await?;
        let wakes = client.can_tail(cx).await?;
        let observed = (!client.has_clock(cx).await?).then(|| Observed::new(client.clone()));
        Ok(Self { client, observed, wakes })
    }

    async fn entries(&self, cx: &Cx, keys: impl Iterator<Item = &LeaseKey>) -> Result<Vec<Entry>> {
        let keys: Vec<Bson> = keys.map(|key| key.as_str().into()).collect();
        let find = doc! { "find": COLLECTION, "filter": { "_id": { "$in": keys } }, "projection": pipeline::seen() };
        let found = self.client.rows(cx, find).await?;
        Ok(found.into_iter().filter_map(|document| readable(Entry::read(&self.client, document))).collect())
    }

    async fn give_back(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let statement = doc! { "q": pipeline::held_by(grant), "u": pipeline::release() };
        let reply = self.client.write(cx, doc! { "update": COLLECTION, "updates": [statement] }).await?;
        match reply.whole(&self.client)?.count() {
            0 => Ok(Released::NotHeld),
            _ => Ok(Released::Released),
        }
    }

    /// Whether these are still held under exactly their grants.
    async fn held(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<bool>> {
        let grants: Vec<&Grant> = leases.iter().map(|lease| &lease.grant).collect();
        if let Some(observed) = &self.observed {
            return observed.held(cx, &grants).await;
        }
        let entries = self.entries(cx, grants.iter().map(|grant| &grant.key)).await?;
        let is_held = |grant: &&Grant| entries.iter().any(|entry| entry.key == grant.key && entry.is_held_by(grant));
        Ok(grants.iter().map(is_held).collect())
    }

    /// Asks once. `None` when another one made the document at the same moment: then there is one to ask about.
    async fn ask(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Option<Entry>> {
        let command = doc! {
            "findAndModify": COLLECTION,
            "query": { "_id": ask.key.as_str() },
            "update": pipeline::acquire(ask)?,
            "upsert": true,
            "new": true,
            "fields": pipeline::seen(),
        };
        let reply = match self.client.write(cx, command).await {
            Err(error) if is_code(&error, DUPLICATE) => return Ok(None),
            answer => answer?,
        };
        let after = reply.value().cloned();
        let nothing = || Error::internal(format!("{}: a lease was asked for and not told", self.client.place()));
        Entry::read(&self.client, after.ok_or_else(nothing)?).map(Some)
    }
}

#[async_trait]
impl LeaseStore for Leases {
    fn profile(&self) -> LeaseProfile {
        LeaseProfile { shortest: Duration::from_millis(100), wakes: self.wakes }
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        if let Some(observed) = &self.observed {
            return observed.try_acquire(cx, ask).await;
        }
        let entry = match self.ask(cx, ask).await? {
            Some(entry) => entry,
            None => self.ask(cx, ask).await?.ok_or_else(|| Error::unavailable("another one was quicker, twice"))?,
        };
        let asked = Grant { key: ask.key.clone(), tenure: ask.candidate.tenure, epoch: entry.epoch };
        if entry.is_held_by(&asked) && entry.epoch > ask.floor {
            return Ok(Acquired::Granted { grant: asked, previous: entry.previous.map(Into::into) });
        }
        let place = self.client.place();
        let nobody = || Error::internal(format!("{place}: a lease was not granted, and nobody holds it"));
        entry.into_holder().map(Acquired::Held).ok_or_else(nobody)
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let prolonged = |lease: &Lease| match self.observed {
            Some(_) => observed::beat(lease.ttl).into(),
            None => Bson::from(pipeline::prolong(lease.ttl)),
        };
        let updates: Vec<Document> =
            leases.iter().map(|lease| doc! { "q": pipeline::held_by(&lease.grant), "u": prolonged(lease) }).collect();
        let reply = self.client.write(cx, doc! { "update": COLLECTION, "updates": updates, "ordered": false }).await?;
        if reply.count() == leases.len() as u64 {
            return Ok(vec![Renewal::Held; leases.len()]);
        }
        // The server counts and does not say which. What is still ours now was ours then, since nothing that was lost
        // ever comes back under its old epoch.
        let held = self.held(cx, leases).await?;
        let failed: Vec<usize> = reply.errors().map(|(index, ..)| index).collect();
        let answer = |(index, ours): (usize, bool)| match (ours, failed.contains(&index)) {
            (true, false) => Renewal::Held,
            (true, true) => Renewal::Unknown,
            (false, _) => Renewal::Lost,
        };
        Ok(held.into_iter().enumerate().map(answer).collect())
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let released = match &self.observed {
            Some(observed) => observed.release(cx, grant).await?,
            None => self.give_back(cx, grant).await?,
        };
        if released == Released::Released {
            publish(cx, &self.client, Topic::Lease).await;
        }
        Ok(released)
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(observed) = &self.observed {
            return observed.holders(cx, keys).await;
        }
        let mut entries = self.entries(cx, keys.iter()).await?;
        let holder = |key: &LeaseKey| {
            let at = entries.iter().position(|entry| entry.key == *key)?;
            entries.swap_remove(at).into_holder()
        };
        Ok(keys.iter().map(holder).collect())
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        Ok(Box::new(Releases(ChangeHints::start(cx, &self.client, Topic::Lease).await?)))
    }

    async fn separate(&self, _cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        // Connected by its first call: on the keeper's own thread, which nothing else can keep busy.
        let observed = self.observed.as_ref().map(Observed::separate);
        Ok(Arc::new(Self { client: self.client.separate(), observed, wakes: self.wakes }))
    }
}

struct Releases(ChangeHints);

#[async_trait]
impl Wakeups for Releases {
    async fn next(&mut self, _cx: &Cx) -> Result<()> {
        self.0.changed().await
    }
}
