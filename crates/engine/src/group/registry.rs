//! Who is there.
//!
//! Each instance keeps one record and writes it again at every heartbeat; how old the record is, by
//! the store's clock, is how long the instance has been silent. No wall clock is compared. Being
//! listed as unhealthy takes nothing away from an instance: takeover follows the lease.
//!
//! The streams of an instance that has too many for one record are continued in further ones, whose names begin with that of the
//! first. They are written before the first one, which tells how many there are.

mod parts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use watchkeeper_core::{Address, Cx, Error, InstanceId, PutOutcome, Record, Records, Result, Revision};

use super::report::StreamReport;
use super::{ATTEMPTS, decode, remove};

/// How long an instance may be silent before it counts as unhealthy, unless settings say otherwise.
pub const UNHEALTHY_AFTER: Duration = Duration::from_secs(60);

/// An instance as it presents itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Member {
    /// The process.
    pub instance: InstanceId,
    /// Its name for people.
    pub name: String,
    /// Where it answers its peers.
    #[serde(default)]
    pub address: Option<Address>,
    /// The version of the program.
    #[serde(default)]
    pub version: String,
    /// A hash of its settings, so that instances that disagree can be found.
    #[serde(default)]
    pub config_hash: String,
    /// The streams that it can run.
    #[serde(default)]
    pub streams: Vec<String>,
    /// What it does with each of its streams.
    #[serde(default)]
    pub reports: Vec<StreamReport>,
    /// How often it writes this record; older programs do not publish it.
    #[serde(default)]
    pub heartbeat_millis: Option<u64>,
    /// So many further records continue this one's streams and reports.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) further_records: usize,
}

// The signature is serde's.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Member {
    /// An instance of this version of the program that has told nothing else of itself yet.
    pub fn new(instance: InstanceId, name: impl Into<String>) -> Self {
        Self {
            instance,
            name: name.into(),
            address: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_hash: String::new(),
            streams: Vec::new(),
            reports: Vec::new(),
            heartbeat_millis: None,
            further_records: 0,
        }
    }
}

/// A member as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// What it said last.
    pub member: Member,
    /// How long ago it said so, by the store's clock.
    pub age: Duration,
    /// Whether that is recent enough.
    pub healthy: bool,
}

/// After so many missed heartbeats an instance is silent.
const MISSED_MAX: u32 = 2;

/// No instance is silent sooner: a heartbeat may wait for a busy store for as long.
const SILENCE_MIN: Duration = Duration::from_secs(2);

impl Listed {
    /// How often it should be heard of, as it published itself.
    pub fn heartbeat_every(&self) -> Option<Duration> {
        self.member.heartbeat_millis.map(Duration::from_millis)
    }

    /// Whether it has missed two heartbeats, or is unhealthy: it may be dead or hung, so nobody should count on it. Takeover follows
    /// the lease, not this.
    pub fn is_silent(&self) -> bool {
        // A heartbeat is due within its interval, and half an interval more is allowed for being late.
        let missed = |every: Duration| self.age > (every * MISSED_MAX + every / 2).max(SILENCE_MIN);
        !self.healthy || self.heartbeat_every().is_some_and(missed)
    }
}

/// What a heartbeat found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Beat {
    /// The own record was there.
    Kept,
    /// The own record had been removed and was written anew: others took this instance for dead, and
    /// may have taken its slot.
    Restored,
}

/// The members of a group.
#[derive(Debug)]
pub struct Registry {
    records: Arc<dyn Records>,
    prefix: String,
    unhealthy_after: Duration,
    /// The newest revision of each own record, so that a heartbeat costs one round trip. One process may hold several members (tests,
    /// and listeners of one coordinator).
    own: Mutex<BTreeMap<String, Revision>>,
}

impl Registry {
    /// The registry of `group`.
    pub fn new(records: Arc<dyn Records>, group: &str) -> Self {
        let prefix = format!("{group}/instances/");
        Self { records, prefix, unhealthy_after: UNHEALTHY_AFTER, own: Mutex::default() }
    }

    /// The same registry with another threshold for being unhealthy.
    #[must_use]
    pub fn unhealthy_after(mut self, silence: Duration) -> Self {
        self.unhealthy_after = silence;
        self
    }

    /// Enters a member, or enters it again.
    pub async fn register(&self, cx: &Cx, member: &Member) -> Result<()> {
        self.write(cx, member).await.map(|_| ())
    }

    /// Says that a member is alive, and what it is now. It is entered again if it had been removed.
    pub async fn heartbeat(&self, cx: &Cx, member: &Member) -> Result<Beat> {
        self.write(cx, member).await
    }

    /// Removes a member that leaves in order. Its heartbeats must have ended before, or the next one
    /// enters it again.
    pub async fn deregister(&self, cx: &Cx, instance: InstanceId) -> Result<()> {
        let name = self.name(instance);
        self.lock().retain(|own, _| !own.starts_with(&name));
        let Some(record) = remove(&*self.records, cx, &name).await? else { return Ok(()) };
        let further = decode::<Member>(&record).map_or(0, |member| member.further_records);
        for number in 1..=further {
            remove(&*self.records, cx, &parts::name(&name, number)).await?;
        }
        Ok(())
    }

    /// All members, in the order of their identities. A record that cannot be read is left out and
    /// logged: one garbled neighbour must not blind the group.
    pub async fn list(&self, cx: &Cx) -> Result<Vec<Listed>> {
        let records = self.records.list(cx, &self.prefix).await?;
        let mut listed: Vec<Listed> = Vec::new();
        for record in &records {
            let Some(found) = self.listed(record) else { continue };
            match self.part(record) {
                None => listed.push(found),
                // What is left of a longer list, or of a member that has gone, is nobody's.
                Some(number) => {
                    let first = listed.iter_mut().rfind(|first| first.member.instance == found.member.instance);
                    if let Some(first) = first.filter(|first| number <= first.member.further_records) {
                        parts::join(&mut first.member, found.member);
                    }
                }
            }
        }
        Ok(listed)
    }

    /// Removes the records of instances that have been silent for `older_than` or longer; the answer
    /// is how many. One that speaks up in between stays.
    pub async fn sweep(&self, cx: &Cx, older_than: Duration) -> Result<usize> {
        let mut removed = 0;
        for record in self.records.list(cx, &self.prefix).await? {
            if record.age < older_than {
                continue;
            }
            cx.check()?;
            let deleted = self.records.delete_if(cx, &record.name, record.revision).await?;
            if matches!(deleted, PutOutcome::Done(_)) && self.part(&record).is_none() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Which further record of its member it is; `None` for the first one.
    fn part(&self, record: &Record) -> Option<usize> {
        parts::number(record.name.strip_prefix(&self.prefix)?)
    }

    fn listed(&self, record: &Record) -> Option<Listed> {
        match decode::<Member>(record) {
            Ok(member) => Some(Listed { member, age: record.age, healthy: record.age < self.unhealthy_after }),
            Err(error) => {
                tracing::warn!(%error, "a member of the group cannot be read");
                None
            }
        }
    }

    async fn write(&self, cx: &Cx, member: &Member) -> Result<Beat> {
        let name = self.name(member.instance);
        let (first, further) = parts::split(&name, member)?;
        let count = further.len();
        for (number, bytes) in (1..).zip(further) {
            self.put(cx, parts::name(&name, number), bytes).await?;
        }
        let beat = self.put(cx, name.clone(), first).await?;
        self.remove_surplus(cx, &name, count).await?;
        Ok(beat)
    }

    /// Writes one record, whatever it said before.
    async fn put(&self, cx: &Cx, name: String, bytes: Bytes) -> Result<Beat> {
        let mut expected = self.lock().get(&name).copied();
        for _ in 0..ATTEMPTS {
            cx.check()?;
            if let PutOutcome::Done(revision) = self.records.put_if(cx, &name, expected, bytes.clone()).await? {
                self.lock().insert(name, revision);
                return Ok(if expected.is_some() { Beat::Kept } else { Beat::Restored });
            }
            expected = self.records.get(cx, &name).await?.map(|record| record.revision);
        }
        Err(Error::unavailable(format!("{name} was changed by others {ATTEMPTS} times in a row")))
    }

    /// Removes the further records that a longer list had, beyond the first `count` of them.
    async fn remove_surplus(&self, cx: &Cx, name: &str, count: usize) -> Result<()> {
        let is_surplus = |own: &&String| own.starts_with(name);
        let from = parts::name(name, count + 1);
        let surplus: Vec<_> = self.lock().range(from..).map(|(own, _)| own).take_while(is_surplus).cloned().collect();
        for own in surplus {
            remove(&*self.records, cx, &own).await?;
            self.lock().remove(&own);
        }
        Ok(())
    }

    fn name(&self, instance: InstanceId) -> String {
        format!("{}{instance}", self.prefix)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Revision>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
