//! Leases in a file of their own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Cx, Ending, Epoch, Grant, Holder, Lease, LeaseKey, LeaseProfile, LeaseStore,
    Previous, Released, Renewal, Result, Wakeups,
};

use crate::client::{ChangeHints, Client, Process, Schema, write_or_evict};
use crate::clock::Stamp;
use crate::error::Failure;
use crate::json;

const SCHEMA: Schema = Schema {
    role: "lease",
    version: 1,
    sql: "CREATE TABLE watchkeeper_leases(
        key TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        holder TEXT,
        boot TEXT NOT NULL,
        millis INTEGER NOT NULL,
        previous TEXT,
        pid INTEGER NOT NULL,
        started INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    INSERT OR IGNORE INTO watchkeeper_meta VALUES ('releases', 0);",
};

const RELEASES: &str = "SELECT value FROM watchkeeper_meta WHERE name = 'releases'";

/// Leases in a SQLite file.
#[derive(Debug, Clone)]
pub struct Leases {
    client: Client,
}

/// A row of the table.
#[derive(Debug)]
struct Entry {
    /// The newest epoch ever granted. It outlives every holder.
    epoch: Epoch,
    holder: Option<Candidate>,
    /// When the lease ends, or, without a holder, when it was released.
    at: Stamp,
    /// The tenure before this one, as it was when this one began; without a holder, the released one.
    previous: Option<Previous>,
}

/// [`Previous`] as it is stored.
type StoredPrevious = (Candidate, Epoch, Ending, u64);

impl Leases {
    /// The leases in the client's file, whose tables are made where they are missing.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        client.maintain(cx, SCHEMA).await?;
        Ok(Self { client })
    }
}

impl Entry {
    fn load(connection: &Connection, key: &LeaseKey) -> Result<Option<Self>, Failure> {
        let sql = "SELECT epoch, holder, boot, millis, previous FROM watchkeeper_leases WHERE key = ?1";
        let mut statement = connection.prepare_cached(sql)?;
        let row = statement.query_row([key.as_str()], |row| {
            let (epoch, holder): (i64, Option<String>) = (row.get(0)?, row.get(1)?);
            let at = Stamp { boot: row.get(2)?, millis: row.get(3)? };
            Ok((epoch, holder, at, row.get::<_, Option<String>>(4)?))
        });
        let Some((epoch, holder, at, previous)) = row.optional()? else { return Ok(None) };
        let holder = holder.as_deref().map(json::read).transpose()?;
        let story: Option<StoredPrevious> = previous.as_deref().map(json::read).transpose()?;
        let previous = story.map(|(candidate, epoch, ending, vacant_ms)| {
            let vacant = Duration::from_millis(vacant_ms);
            Previous { candidate, epoch, ending, vacant }
        });
        Ok(Some(Self { epoch: Epoch(epoch.cast_unsigned()), holder, at, previous }))
    }

    fn store(&self, connection: &Connection, key: &LeaseKey) -> Result<(), Failure> {
        let story = self.previous.as_ref().map(|previous| -> StoredPrevious {
            let vacant_ms = u64::try_from(previous.vacant.as_millis()).unwrap_or(u64::MAX);
            (previous.candidate.clone(), previous.epoch, previous.ending, vacant_ms)
        });
        let holder = self.holder.as_ref().map(json::text).transpose()?;
        let previous = story.as_ref().map(json::text).transpose()?;
        let sql = "INSERT INTO watchkeeper_leases VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
            ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder,
                boot = excluded.boot, millis = excluded.millis, previous = excluded.previous,
                pid = excluded.pid, started = excluded.started";
        let (epoch, at) = (self.epoch.0.cast_signed(), &self.at);
        // Whoever stores is the holder, or was.
        let (pid, started) = Process::own();
        let values = (key.as_str(), epoch, holder, &at.boot, at.millis, previous, pid, started);
        connection.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// Who holds now.
    fn holder(&self, now: &Stamp) -> Option<Holder> {
        let (candidate, remaining) = (self.holder.clone()?, self.at.left(now)?);
        Some(Holder::new(candidate, self.epoch, remaining))
    }

    fn is_held_by(&self, grant: &Grant) -> bool {
        let tenure = self.holder.as_ref().map(|holder| holder.tenure);
        tenure == Some(grant.tenure) && self.epoch == grant.epoch
    }

    /// The tenure that a grant now would follow, or the holder that stands in its way.
    fn vacate(&self, ask: &AcquireRequest, now: &Stamp) -> Result<Option<Previous>, Holder> {
        let Some(candidate) = self.holder.clone() else {
            let vacant = self.at.age(now);
            return Ok(self.previous.clone().map(|previous| Previous { vacant, ..previous }));
        };
        let (tenure, epoch) = (candidate.tenure, self.epoch);
        let Some(holder) = self.holder(now) else {
            let vacant = self.at.age(now);
            return Ok(Some(Previous { candidate, epoch, ending: Ending::Expired, vacant }));
        };
        if ask.break_holder == Some((tenure, epoch)) {
            return Ok(Some(Previous { candidate, epoch, ending: Ending::Broken, vacant: Duration::ZERO }));
        }
        // The same tenure above a higher floor: nobody came in between.
        if tenure == ask.candidate.tenure { Ok(self.previous.clone()) } else { Err(holder) }
    }

    /// Whether the candidate holds already, under an epoch that is high enough.
    fn is_the_same(&self, ask: &AcquireRequest, now: &Stamp) -> bool {
        let tenure = self.holder(now).map(|holder| holder.candidate.tenure);
        tenure == Some(ask.candidate.tenure) && ask.floor < self.epoch
    }
}

fn acquire(connection: &Connection, ask: &AcquireRequest, now: &Stamp) -> Result<Acquired, Failure> {
    let expires = now.after(ask.ttl);
    let granted = |epoch, previous| {
        let grant = Grant { key: ask.key.clone(), tenure: ask.candidate.tenure, epoch };
        Acquired::Granted { grant, previous }
    };
    let entry = Entry::load(connection, &ask.key)?;
    if let Some(entry) = entry.as_ref().filter(|entry| entry.is_the_same(ask, now)) {
        prolong(connection, &ask.key, &expires)?;
        return Ok(granted(entry.epoch, entry.previous.clone()));
    }
    let newest = entry.as_ref().map_or(Epoch::ZERO, |entry| entry.epoch);
    let previous = match entry.map_or(Ok(None), |entry| entry.vacate(ask, now)) {
        Ok(previous) => previous,
        Err(holder) => return Ok(Acquired::Held(holder)),
    };
    let epoch = newest.max(ask.floor).next();
    let holder = Some(ask.candidate.clone());
    Entry { epoch, holder, at: expires, previous: previous.clone() }.store(connection, &ask.key)?;
    Ok(granted(epoch, previous))
}

/// The process that `ask` would replace, as it wrote itself down with its grant: the holder of a lease that has expired or
/// is to be broken.
fn replaced(connection: &Connection, ask: &AcquireRequest, now: &Stamp) -> Result<Option<(i32, i64)>, Failure> {
    let entry = Entry::load(connection, &ask.key)?.filter(|entry| entry.holder.is_some());
    let Some(entry) = entry.filter(|entry| !entry.is_the_same(ask, now) && entry.vacate(ask, now).is_ok()) else {
        return Ok(None);
    };
    let sql = "SELECT pid, started FROM watchkeeper_leases WHERE key = ?1 AND epoch = ?2";
    let values = (ask.key.as_str(), entry.epoch.0.cast_signed());
    Ok(connection.query_row(sql, values, |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

fn prolong(connection: &Connection, key: &LeaseKey, expires: &Stamp) -> Result<(), Failure> {
    let sql = "UPDATE watchkeeper_leases SET boot = ?2, millis = ?3 WHERE key = ?1";
    connection.prepare_cached(sql)?.execute((key.as_str(), &expires.boot, expires.millis))?;
    Ok(())
}

fn renew(connection: &Connection, lease: &Lease, now: &Stamp) -> Result<Renewal, Failure> {
    let entry = Entry::load(connection, &lease.grant.key)?;
    if !entry.is_some_and(|entry| entry.is_held_by(&lease.grant)) {
        return Ok(Renewal::Lost);
    }
    prolong(connection, &lease.grant.key, &now.after(lease.ttl))?;
    Ok(Renewal::Held)
}

fn release(connection: &Connection, grant: &Grant, now: Stamp) -> Result<Released, Failure> {
    let entry = Entry::load(connection, &grant.key)?.filter(|entry| entry.is_held_by(grant));
    let Some(mut entry) = entry else { return Ok(Released::NotHeld) };
    let (epoch, ending, vacant) = (entry.epoch, Ending::Released, Duration::ZERO);
    entry.previous = entry.holder.take().map(|candidate| Previous { candidate, epoch, ending, vacant });
    entry.at = now;
    entry.store(connection, &grant.key)?;
    connection.execute("UPDATE watchkeeper_meta SET value = value + 1 WHERE name = 'releases'", [])?;
    Ok(Released::Released)
}

#[async_trait]
impl LeaseStore for Leases {
    fn profile(&self) -> LeaseProfile {
        LeaseProfile { shortest: Duration::from_millis(100), wakes: true }
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        let (ask, client) = (ask.clone(), self.client.clone());
        if !client.config().evict {
            // The time is read under the write lock, so that waiting for it does not age it.
            return self.client.write(cx, move |transaction| acquire(transaction, &ask, &client.now())).await;
        }
        let or_evict = move |connection: &mut Connection| {
            let replaced = |connection: &Connection| replaced(connection, &ask, &client.now());
            let acquire = |transaction: &rusqlite::Transaction<'_>| acquire(transaction, &ask, &client.now());
            write_or_evict(connection, &client.config().path, acquire, replaced)
        };
        self.client.run(cx, or_evict).await
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let (leases, client) = (leases.to_vec(), self.client.clone());
        let all = move |transaction: &rusqlite::Transaction<'_>| {
            let now = client.now();
            leases.iter().map(|lease| renew(transaction, lease, &now)).collect()
        };
        self.client.write(cx, all).await
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let (grant, client) = (grant.clone(), self.client.clone());
        self.client.write(cx, move |transaction| release(transaction, &grant, client.now())).await
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let (keys, client) = (keys.to_vec(), self.client.clone());
        let all = move |transaction: &rusqlite::Transaction<'_>| {
            let now = client.now();
            let holder = |key| Ok(Entry::load(transaction, key)?.and_then(|entry| entry.holder(&now)));
            keys.iter().map(holder).collect()
        };
        self.client.read(cx, all).await
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        Ok(Box::new(Releases(ChangeHints::start(cx, &self.client, RELEASES).await?)))
    }

    async fn separate(&self, cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        Ok(Arc::new(Self { client: self.client.separate(cx).await? }))
    }
}

struct Releases(ChangeHints);

#[async_trait]
impl Wakeups for Releases {
    async fn next(&mut self, _cx: &Cx) -> Result<()> {
        self.0.changed().await
    }
}
