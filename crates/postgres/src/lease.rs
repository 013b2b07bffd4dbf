//! Leases as rows, with time counted by the server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Cx, Ending, Epoch, Error, Grant, Holder, Lease, LeaseKey, LeaseProfile,
    LeaseStore, Previous, Released, Renewal, Result, Wakeups,
};

use crate::client::{ChangeHints, Client, Schema, Value};
use crate::json;

mod sql;

pub(crate) const SCHEMA: Schema = Schema { role: "lease", steps: &[sql::TABLES] };

/// Leases in a PostgreSQL database.
#[derive(Debug, Clone)]
pub struct Leases {
    client: Client,
    statements: Arc<Statements>,
}

/// The statements, with the schema in its place.
#[derive(Debug)]
struct Statements {
    begin: String,
    acquire: String,
    renew: String,
    release: String,
    holders: String,
    /// Whom a release tells.
    channel: String,
}

impl Leases {
    /// The leases in the client's database, whose tables are made where they are missing.
    ///
    /// # Errors
    /// `Denied` when they are missing and may not be made.
    pub async fn open(cx: &Cx, client: Client) -> Result<Self> {
        client.ensure(cx, SCHEMA).await?;
        let statements = Statements {
            begin: client.sql(sql::BEGIN),
            acquire: client.sql(sql::ACQUIRE),
            renew: client.sql(sql::RENEW),
            release: client.sql(sql::RELEASE),
            holders: client.sql(sql::HOLDERS),
            channel: format!("{}_leases", client.schema()),
        };
        Ok(Self { client, statements: Arc::new(statements) })
    }

    async fn ask(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Option<Acquired>> {
        let (key, tenure) = (ask.key.as_str(), ask.candidate.tenure.0);
        let (candidate, ttl_us, floor) = (json::text(&ask.candidate)?, micros(ask.ttl), ask.floor.0.cast_signed());
        let broken = ask.break_holder.map(|(tenure, _)| tenure.0);
        let broken_epoch = ask.break_holder.map(|(_, epoch)| epoch.0.cast_signed());
        let values: [Value<'_>; 7] = [
            (&key, Type::TEXT),
            (&tenure, Type::UUID),
            (&candidate, Type::TEXT),
            (&ttl_us, Type::INT8),
            (&floor, Type::INT8),
            (&broken, Type::UUID),
            (&broken_epoch, Type::INT8),
        ];
        let rows = self.client.write(cx, &self.statements.acquire, &values).await?;
        rows.first().map(|row| self.acquired(ask, row)).transpose()
    }

    fn acquired(&self, ask: &AcquireRequest, row: &Row) -> Result<Acquired> {
        let Some(epoch) = row.get::<_, Option<i64>>(0) else {
            let holder: Option<String> = row.get(5);
            let holder = self.holder(holder.as_deref(), row.get(6), row.get(7))?;
            return holder.map(Acquired::Held).ok_or_else(|| json::damaged(&self.client));
        };
        let grant = Grant { key: ask.key.clone(), tenure: ask.candidate.tenure, epoch: Epoch(epoch.cast_unsigned()) };
        Ok(Acquired::Granted { grant, previous: self.previous(row)? })
    }

    fn previous(&self, row: &Row) -> Result<Option<Previous>> {
        let Some(candidate) = row.get::<_, Option<String>>(1) else { return Ok(None) };
        let (epoch, ending, vacant): (Option<i64>, Option<String>, Option<i64>) = (row.get(2), row.get(3), row.get(4));
        let ending = match ending.as_deref() {
            Some("released") => Ending::Released,
            Some("expired") => Ending::Expired,
            Some("broken") => Ending::Broken,
            _ => return Err(json::damaged(&self.client)),
        };
        let candidate: Candidate = json::read(&self.client, &candidate)?;
        let epoch = Epoch(epoch.unwrap_or(0).cast_unsigned());
        Ok(Some(Previous { candidate, epoch, ending, vacant: duration(vacant.unwrap_or(0)) }))
    }

    /// A holder, as long as time is left to it.
    fn holder(&self, holder: Option<&str>, epoch: Option<i64>, left_us: Option<i64>) -> Result<Option<Holder>> {
        let Some(candidate) = holder else { return Ok(None) };
        let candidate = json::read(&self.client, candidate)?;
        let epoch = Epoch(epoch.unwrap_or(0).cast_unsigned());
        Ok(Some(Holder::new(candidate, epoch, duration(left_us.unwrap_or(0)))))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[async_trait]
impl LeaseStore for Leases {
    fn profile(&self) -> LeaseProfile {
        LeaseProfile { shortest: Duration::from_millis(100), wakes: self.client.can_listen() }
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        if let Some(answer) = self.ask(cx, ask).await? {
            return Ok(answer);
        }
        self.client.write(cx, &self.statements.begin, &[(&ask.key.as_str(), Type::TEXT)]).await?;
        let vanished = || {
            Error::corrupt(format!("{}: the row of lease {} vanished", self.client.place(), ask.key))
                .remedy("never delete rows of leases: their epochs keep stale writers out")
        };
        self.ask(cx, ask).await?.ok_or_else(vanished)
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = leases.iter().map(|lease| lease.grant.key.as_str()).collect();
        let tenures: Vec<Uuid> = leases.iter().map(|lease| lease.grant.tenure.0).collect();
        let epochs: Vec<i64> = leases.iter().map(|lease| lease.grant.epoch.0.cast_signed()).collect();
        let lengths: Vec<i64> = leases.iter().map(|lease| micros(lease.ttl)).collect();
        let rows = self
            .client
            .write(
                cx,
                &self.statements.renew,
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&tenures, Type::UUID_ARRAY),
                    (&epochs, Type::INT8_ARRAY),
                    (&lengths, Type::INT8_ARRAY),
                ],
            )
            .await?;
        let answer = |row: &Row| match (row.get(0), row.get(1)) {
            (true, _) => Renewal::Held,
            // Someone has locked the row and has not changed it yet.
            (false, true) => Renewal::Unknown,
            (false, false) => Renewal::Lost,
        };
        Ok(rows.iter().map(answer).collect())
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let (key, epoch) = (grant.key.as_str(), grant.epoch.0.cast_signed());
        let values: [Value<'_>; 4] = [
            (&key, Type::TEXT),
            (&grant.tenure.0, Type::UUID),
            (&epoch, Type::INT8),
            (&self.statements.channel, Type::TEXT),
        ];
        let rows = self.client.write(cx, &self.statements.release, &values).await?;
        Ok(if rows.is_empty() { Released::NotHeld } else { Released::Released })
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let keys: Vec<&str> = keys.iter().map(LeaseKey::as_str).collect();
        let rows = self.client.read(cx, &self.statements.holders, &[(&keys, Type::TEXT_ARRAY)]).await?;
        let holder = |row: &Row| {
            let left_us: Option<i64> = row.get(2);
            if left_us.unwrap_or(0) <= 0 {
                return Ok(None);
            }
            self.holder(row.get::<_, Option<String>>(0).as_deref(), row.get(1), left_us)
        };
        rows.iter().map(holder).collect()
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        if !self.client.can_listen() {
            return Ok(Box::new(Never));
        }
        Ok(Box::new(Releases(ChangeHints::start(cx, &self.client, &self.statements.channel).await?)))
    }

    async fn separate(&self, _cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        Ok(Arc::new(Self { client: self.client.separate(), statements: Arc::clone(&self.statements) }))
    }
}

struct Releases(ChangeHints);

#[async_trait]
impl Wakeups for Releases {
    async fn next(&mut self, _cx: &Cx) -> Result<()> {
        self.0.changed().await
    }
}

/// For those who cannot LISTEN: they look by themselves.
struct Never;

#[async_trait]
impl Wakeups for Never {
    async fn next(&mut self, _cx: &Cx) -> Result<()> {
        std::future::pending().await
    }
}
