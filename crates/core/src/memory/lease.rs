use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::lock;
use crate::clock::{Clock, Moment};
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::latest::{Follower, Latest};
use crate::lease::{
    AcquireRequest, Acquired, Candidate, Ending, Holder, Lease, LeaseProfile, LeaseStore, Previous, Released, Renewal,
    Wakeups,
};
use crate::names::{Epoch, Grant, LeaseKey};

/// Leases in memory. Expiry is judged by the clock it was made with.
#[derive(Debug, Clone)]
pub struct Leases {
    clock: Arc<dyn Clock>,
    entries: Arc<Mutex<BTreeMap<LeaseKey, Entry>>>,
    released: Arc<Latest<u64>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The newest epoch ever granted. It outlives every holder.
    epoch: Epoch,
    holding: Option<Holding>,
    released: Option<(Previous, Moment)>,
}

#[derive(Debug)]
struct Holding {
    candidate: Candidate,
    expires: Moment,
    previous: Option<Previous>,
}

impl Leases {
    /// An empty store that believes `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, entries: Arc::default(), released: Arc::new(Latest::new(0)) }
    }

    /// Loses all data, as a store without persistence does when it restarts.
    pub fn forget(&self) {
        lock(&self.entries).clear();
    }

    /// The newest epoch that was granted for `key`.
    pub fn newest_epoch(&self, key: &LeaseKey) -> Epoch {
        lock(&self.entries).get(key).map_or(Epoch::ZERO, |entry| entry.epoch)
    }
}

impl Entry {
    /// The tenure that a grant now would follow, or the holder that stands in its way.
    fn vacate(&self, ask: &AcquireRequest, now: Moment) -> std::result::Result<Option<Previous>, Holder> {
        let Some(holding) = &self.holding else {
            let previous = self.released.as_ref();
            return Ok(previous.map(|(previous, at)| Previous { vacant: now.since(*at), ..previous.clone() }));
        };
        let broken = ask.break_holder == Some((holding.candidate.tenure, self.epoch));
        let expired = holding.expires <= now;
        if !(broken || expired) {
            if holding.candidate.tenure == ask.candidate.tenure {
                // The same tenure above a higher floor: nobody came in between.
                return Ok(holding.previous.clone());
            }
            return Err(self.holder(holding, now));
        }
        let ending = if broken && !expired { Ending::Broken } else { Ending::Expired };
        let vacant = now.since(holding.expires);
        Ok(Some(Previous { candidate: holding.candidate.clone(), epoch: self.epoch, ending, vacant }))
    }

    fn holder(&self, holding: &Holding, now: Moment) -> Holder {
        let remaining = holding.expires.since(now);
        Holder { candidate: holding.candidate.clone(), epoch: self.epoch, remaining }
    }

    fn is_held_by(&self, grant: &Grant) -> bool {
        let tenure = self.holding.as_ref().map(|holding| holding.candidate.tenure);
        tenure == Some(grant.tenure) && self.epoch == grant.epoch
    }

    fn grant_again(&mut self, ask: &AcquireRequest, now: Moment) -> Option<Acquired> {
        let holding = self.holding.as_mut()?;
        let same = holding.candidate.tenure == ask.candidate.tenure && holding.expires > now;
        if !same || ask.floor >= self.epoch {
            return None;
        }
        holding.expires = now + ask.ttl;
        let grant = Grant { key: ask.key.clone(), tenure: ask.candidate.tenure, epoch: self.epoch };
        Some(Acquired::Granted { grant, previous: holding.previous.clone() })
    }
}

#[async_trait]
impl LeaseStore for Leases {
    fn profile(&self) -> LeaseProfile {
        LeaseProfile { shortest: Duration::from_millis(1), wakes: true }
    }

    async fn try_acquire(&self, _cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        let now = self.clock.now();
        let mut entries = lock(&self.entries);
        let entry = entries.entry(ask.key.clone()).or_default();
        if let Some(again) = entry.grant_again(ask, now) {
            return Ok(again);
        }
        let previous = match entry.vacate(ask, now) {
            Ok(previous) => previous,
            Err(holder) => return Ok(Acquired::Held(holder)),
        };
        entry.epoch = entry.epoch.max(ask.floor).next();
        entry.released = None;
        let candidate = ask.candidate.clone();
        entry.holding = Some(Holding { candidate, expires: now + ask.ttl, previous: previous.clone() });
        let grant = Grant { key: ask.key.clone(), tenure: ask.candidate.tenure, epoch: entry.epoch };
        Ok(Acquired::Granted { grant, previous })
    }

    async fn renew(&self, _cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        let now = self.clock.now();
        let mut entries = lock(&self.entries);
        let renew = |lease: &Lease| {
            let entry = entries.get_mut(&lease.grant.key).filter(|entry| entry.is_held_by(&lease.grant));
            match entry.and_then(|entry| entry.holding.as_mut()) {
                Some(holding) => {
                    holding.expires = now + lease.ttl;
                    Renewal::Held
                }
                None => Renewal::Lost,
            }
        };
        Ok(leases.iter().map(renew).collect())
    }

    async fn release(&self, _cx: &Cx, grant: &Grant) -> Result<Released> {
        let now = self.clock.now();
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.get_mut(&grant.key).filter(|entry| entry.is_held_by(grant)) else {
            return Ok(Released::NotHeld);
        };
        let Some(holding) = entry.holding.take() else { return Ok(Released::NotHeld) };
        let (candidate, epoch) = (holding.candidate, entry.epoch);
        let previous = Previous { candidate, epoch, ending: Ending::Released, vacant: Duration::ZERO };
        entry.released = Some((previous, now));
        self.released.change(|count| *count += 1);
        Ok(Released::Released)
    }

    async fn holders(&self, _cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let now = self.clock.now();
        let entries = lock(&self.entries);
        let holder = |key: &LeaseKey| {
            let entry = entries.get(key)?;
            let holding = entry.holding.as_ref().filter(|holding| holding.expires > now)?;
            Some(entry.holder(holding, now))
        };
        Ok(keys.iter().map(holder).collect())
    }

    async fn wakeups(&self, _cx: &Cx) -> Result<Box<dyn Wakeups>> {
        Ok(Box::new(Releases(self.released.follow())))
    }

    async fn separate(&self, _cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        Ok(Arc::new(self.clone()))
    }
}

struct Releases(Follower<u64>);

#[async_trait]
impl Wakeups for Releases {
    async fn next(&mut self, _cx: &Cx) -> Result<()> {
        self.0.changed().await.map_err(|_| Error::unavailable("the lease store is gone"))
    }
}
