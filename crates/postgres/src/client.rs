//! Connections, and statements whose outcome is told exactly.
//!
//! Every statement is sent in a transaction of its own making, with the time that is left as its limit at the server. Nothing
//! is kept in a session: no prepared statement outlives its transaction and no setting its end, so that a pooler in transaction
//! mode may be in between. `BEGIN`, statement and `COMMIT` leave together, so that it is one round trip all the same.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod};
use tokio::sync::OnceCell;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use watchkeeper_core::{Cx, Error, Result};

use crate::config::Config;
use crate::error::{CallPurpose, to_error, unchanged};

mod change_hints;
mod connect;
mod dedicated;
mod link;
mod schema;
mod work;

pub use change_hints::ChangeHints;
pub use dedicated::Dedicated;
pub use link::Link;
pub(crate) use schema::{Schema, is_race, quoted};
pub use work::Work;

use change_hints::Tail;
use connect::Connector;

/// A value of a statement, and its type: what is not asked of the server needs no round trip.
pub type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// Where connections come from.
#[derive(Clone)]
enum ConnectionOrigin {
    /// Made here, by the first who needs it, so that its connections live on that one's runtime: a keeper's on the keeper's.
    Own(Arc<OnceCell<Pool>>),
    /// Brought by the user of the library.
    Given(Pool),
}

/// A client of one database.
#[derive(Clone)]
pub struct Client {
    config: Option<Arc<Config>>,
    place: Arc<str>,
    schema: Arc<str>,
    timeout: Duration,
    connection_origin: ConnectionOrigin,
    tail: Arc<Tail>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The oldest server that is known to work: `pg_snapshot` and its kin, and time-outs by statement.
const OLDEST: i32 = 140_000;

impl Client {
    /// Connects, and looks whether the server is new enough.
    ///
    /// # Errors
    /// `Config` for an old server; else as the connection says.
    pub async fn open(cx: &Cx, config: Config) -> Result<Self> {
        let client = Self::lazy(config);
        client.greet(cx).await?;
        Ok(client)
    }

    /// A client that has not been asked to do anything yet.
    pub fn lazy(config: Config) -> Self {
        let (place, schema) = (config.place().into(), config.schema().into());
        let (timeout, connection_origin) = (config.timeout, ConnectionOrigin::Own(Arc::default()));
        Self { config: Some(Arc::new(config)), place, schema, timeout, connection_origin, tail: Arc::default() }
    }

    /// A client on connections that someone else makes, with the tables in this schema. It cannot wait for hints, since
    /// it has no connection for itself alone.
    pub fn of_pool(pool: Pool, schema: &str) -> Self {
        let (place, schema) = ("postgres".into(), schema.into());
        let (timeout, connection_origin) = (Duration::from_secs(10), ConnectionOrigin::Given(pool));
        Self { config: None, place, schema, timeout, connection_origin, tail: Arc::default() }
    }

    async fn greet(&self, cx: &Cx) -> Result<()> {
        let row = self.read(cx, "SELECT current_setting('server_version_num')::int4", &[]).await?;
        let version: i32 = row.first().map_or(0, |row| row.get(0));
        if version < OLDEST {
            let cause = format!("{}: this server has version {}", self.place, version / 10_000);
            return Err(Error::config(cause).remedy("use PostgreSQL 14 or newer"));
        }
        Ok(())
    }

    /// The same database on connections of its own, which are made by the first call, on the caller's runtime. A pool from
    /// outside stays what it is.
    #[must_use]
    pub fn separate(&self) -> Self {
        let connection_origin = match &self.connection_origin {
            ConnectionOrigin::Own(_) => ConnectionOrigin::Own(Arc::default()),
            ConnectionOrigin::Given(pool) => ConnectionOrigin::Given(pool.clone()),
        };
        Self { connection_origin, tail: Arc::default(), ..self.clone() }
    }

    /// The settings, unless its connections were brought from outside.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_deref()
    }

    /// Servers and database, as errors name them.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The server and the database as a command takes them. Whoever runs it does so as a user with other rights than this one.
    pub(crate) fn url_for_command(&self) -> String {
        match self.config.is_none() || self.place.starts_with('/') {
            // A pool of the application, or a socket, whose folder is no part of a URL.
            true => "URL".to_owned(),
            false => format!("postgres://USER@{}", self.place),
        }
    }

    /// The command that makes the tables, for the user of this client.
    pub(crate) fn setup_command(&self) -> String {
        self.granting_command("setup")
    }

    /// The command `tool` on this database and schema, which grants the user of this client what it needs.
    pub(crate) fn granting_command(&self, tool: &str) -> String {
        let role = self.config.as_ref().map(|config| config.user()).filter(|user| !user.is_empty()).unwrap_or("NAME");
        let schema = match &*self.schema {
            crate::config::SCHEMA => String::new(),
            other => format!(" --schema {other}"),
        };
        format!("watchkeeper postgres {tool} --url {}{schema} --role {role}", self.url_for_command())
    }

    /// The schema that holds the tables.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// What a driver's error means, when the call was about `doing`.
    pub fn error(&self, native: tokio_postgres::Error, doing: CallPurpose) -> Error {
        to_error(native, doing, &self.place)
    }

    /// The context of one call: never without an end.
    pub fn bounded(&self, cx: &Cx) -> Cx {
        cx.within(self.timeout)
    }

    /// Whether hints of others can be waited for.
    pub fn can_listen(&self) -> bool {
        self.config().is_some_and(|config| !config.pooled)
    }

    async fn pool(&self) -> Result<&Pool> {
        match &self.connection_origin {
            ConnectionOrigin::Given(pool) => Ok(pool),
            ConnectionOrigin::Own(cell) => cell.get_or_try_init(async || self.make_pool()).await,
        }
    }

    fn make_pool(&self) -> Result<Pool> {
        let config = self.config.as_ref().ok_or_else(|| Error::internal("a pool without settings"))?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let connector = Connector::new(Arc::clone(config));
        let manager = Manager::from_connect(config.postgres().clone(), connector, recycling);
        // A connection that broke while it lay in the pool is not tried.
        let alive = Hook::sync_fn(|connection: &mut deadpool_postgres::ClientWrapper, _| {
            if connection.is_closed() {
                return Err(deadpool_postgres::HookError::message("the connection is closed"));
            }
            Ok(())
        });
        let builder = Pool::builder(manager).max_size(config.connections).pre_recycle(alive);
        builder.build().map_err(|error| Error::internal("no pool can be made").caused_by(error))
    }

    /// A connection of the pool. It goes back only by [`Link::give_back`]; one that is dropped is closed, since nobody
    /// knows what is still under way on it.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn get(&self, cx: &Cx) -> Result<Link> {
        let get = async {
            let object = self.pool().await?.get().await;
            object.map(Link::new).map_err(|error| match error {
                PoolError::Backend(native) => self.error(native, CallPurpose::Reading),
                other => Error::unavailable(format!("{}: no connection is to be had", self.place))
                    .remedy("raise `connections`, or look what the others wait for")
                    .caused_by(other),
            })
        };
        self.bounded(cx).run(get).await.map_err(unchanged)
    }

    /// A connection of its own, with what it is notified of.
    ///
    /// # Errors
    /// `Config` when there is none to be had: through a pooler, or on a pool from outside.
    pub async fn dedicated(&self, cx: &Cx) -> Result<Dedicated> {
        let config = self.config().filter(|config| !config.pooled).ok_or_else(|| {
            Error::config(format!("{}: a connection of its own is not to be had through a pooler", self.place))
                .remedy("name the server itself")
        })?;
        let connect = async {
            let connected = connect::connect(config).await;
            connected.map_err(|native| self.error(native, CallPurpose::Reading))
        };
        let (client, connection) = self.bounded(cx).run(connect).await.map_err(unchanged)?;
        Ok(Dedicated::start(client, connection))
    }

    /// Rows of a statement that changes nothing.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn read(&self, cx: &Cx, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        self.alone(cx, "READ ONLY", sql, values, CallPurpose::Reading).await.map_err(unchanged)
    }

    /// Rows of a statement that is a transaction by itself.
    ///
    /// # Errors
    /// `Unknown` when it may have been done.
    ///
    /// # Cancel safety
    /// Not cancel safe: it may have been done all the same.
    pub async fn write(&self, cx: &Cx, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        self.alone(cx, "", sql, values, CallPurpose::Writing).await
    }

    async fn alone(
        &self,
        cx: &Cx,
        mode: &str,
        sql: &str,
        values: &[Value<'_>],
        doing: CallPurpose,
    ) -> Result<Vec<Row>> {
        let cx = self.bounded(cx);
        let link = self.get(&cx).await?;
        let durable = if doing == CallPurpose::Reading { "" } else { work::DURABLE };
        let begin = format!("{} {mode}; {}; {durable}", work::BEGIN, work::limits(&cx));
        let call = async {
            // All three are sent before the first answer. A refused statement turns the commit into a rollback.
            let all = futures_util::future::join3(
                link.batch_execute(&begin),
                link.query_typed(sql, values),
                link.batch_execute("COMMIT"),
            );
            let (begun, answer, committed) = all.await;
            begun.map_err(|native| self.error(native, CallPurpose::Reading))?;
            let rows = answer.map_err(|native| self.error(native, doing));
            let committing = if doing == CallPurpose::Writing { CallPurpose::Committing } else { doing };
            // The statement's own error is the cause; a commit after it has nothing to add.
            let rows = rows?;
            committed.map_err(|native| self.error(native, committing))?;
            Ok(rows)
        };
        let answer = cx.run(call).await;
        link.give_back_if(&answer);
        answer
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn begin(&self, cx: &Cx) -> Result<Work> {
        Work::begin(self, cx).await
    }
}
