//! A table of changes as a source: a log that triggers fill, or an outbox that an application fills itself.
//!
//! It is read by the difference of snapshots, see `place`: nothing is lost that a transaction with a lower number commits
//! late, the changes of a key stay in order, and a transaction that stays open delays nothing but itself.

mod changed;
mod check;
mod columns;
mod durable;
mod exact;
mod fast_path;
mod fewer_expressions;
mod guard;
mod hardening;
mod install;
mod named;
mod outbox;
mod pedigree;
mod position;
mod query;
mod read;
mod reader;
mod requirements;
mod retention;
mod schema;
mod shape;
mod since_installed;
mod snapshot;
mod start;
mod statement;
mod times;
mod tools;
mod triggers;

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    ChangeStream, Cx, Error, Finding, Options, Payload, Pedigree, Position, Result, Severity, Source, StartAt,
};

pub use columns::Columns;
pub use install::{Unread, Wake, grant, install, uninstall};
pub use retention::{Retention, prune};
pub use tools::{Install, Prune, Uninstall, tools};

pub(crate) use triggers::ROW as ROW_TRIGGER;

use crate::client::{ChangeHints, Client};
use crate::error::{CallPurpose, unchanged};
use crate::table_name::table_name;
use columns::blank;
use pedigree::{Identity, LogObservation};
use position::LogPosition;
use query::{Line, Script};
use reader::{Reader, Start};
use start::Beginning;

/// What it is, in words.
pub(crate) const LOG: &str = "a change log of PostgreSQL";

/// How often it is looked for changes where nobody is told of them.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Where changes are read from.
#[derive(Debug, Clone)]
enum Table {
    /// The log that [`install`] makes.
    Own,
    /// A table of the application.
    Outbox { name: Arc<str>, written: Arc<str>, columns: Arc<Columns> },
}

/// The changes of the tables that [`install`] has put under watch, or of an outbox.
#[derive(Debug, Clone)]
pub struct ChangeLog {
    client: Client,
    consumer: Arc<str>,
    table: Table,
    retention: Retention,
    poll: Duration,
    /// The only tables (of an outbox: entities) whose changes are given out, as they were named; all without it.
    tables: Option<Arc<[String]>>,
    /// The same as the log names them.
    wanted: Option<Arc<[String]>>,
    /// What was last told of the log's identity: an opening that meets another one has met another server.
    known: Arc<Mutex<Option<Identity>>>,
}

impl ChangeLog {
    /// The log in the client's database, read on behalf of `consumer`: what it has not acknowledged is kept.
    ///
    /// # Errors
    /// `Config` when no table is logged.
    pub async fn open(cx: &Cx, client: Client, consumer: &str) -> Result<Self> {
        let log = Self::new(client, consumer, Table::Own);
        log.require_log(cx).await?;
        Ok(log)
    }

    /// An outbox: a table that the application fills itself, with these columns. Removing what was read is up to the
    /// application.
    ///
    /// # Errors
    /// `Config` when the table or a column is missing, or of a type that does not do, with the remedy.
    pub async fn outbox(cx: &Cx, client: Client, consumer: &str, table: &str, columns: Columns) -> Result<Self> {
        let name = table_name(table)?;
        shape::require_columns(cx, &client, table, &name, &columns).await?;
        Self::outbox_of(client, consumer, table, columns)
    }

    fn outbox_of(client: Client, consumer: &str, table: &str, columns: Columns) -> Result<Self> {
        let (name, written) = (table_name(table)?.into(), table.into());
        Ok(Self::new(client, consumer, Table::Outbox { name, written, columns: Arc::new(columns) }))
    }

    /// What the settings of a stream describe: `tables`, or `outbox` with `columns`; `poll`, `rewind`, `abandoned`. Whether they are there and
    /// logged is looked at by [`Source::check`] and by whoever opens it.
    ///
    /// # Errors
    /// `Config` for settings that are wrong in themselves.
    pub async fn from_options(cx: &Cx, client: Client, consumer: &str, options: &mut Options) -> Result<Self> {
        let log = Self::described(client, consumer, options)?;
        if log.wanted.is_some() { log.guess_wanted(cx).await } else { Ok(log) }
    }

    /// The same, with its tables as they are written and without asking the server.
    pub(crate) fn described(client: Client, consumer: &str, options: &mut Options) -> Result<Self> {
        let (poll, rewind) = (options.duration("poll")?, options.duration("rewind")?);
        let (abandoned, wanted) = (options.duration("abandoned")?, options.texts("tables")?);
        let log = match options.text("outbox")? {
            Some(table) => {
                let columns = options.table("columns")?;
                let mut columns = columns.ok_or_else(|| options.missing("columns", "{ key = \"order_id\" }"))?;
                Self::outbox_of(client, consumer, &table, Columns::from_options(&mut columns)?)?
            }
            None => Self::new(client, consumer, Table::Own),
        };
        let normal = Retention::default();
        let retention =
            Retention { rewind: rewind.unwrap_or(normal.rewind), abandoned: abandoned.unwrap_or(normal.abandoned) };
        let log = Self { poll: poll.unwrap_or(POLL_EVERY), ..log.keep(retention) };
        Ok(wanted.into_iter().fold(log, Self::named))
    }

    fn new(client: Client, consumer: &str, table: Table) -> Self {
        let (retention, poll, consumer) = (Retention::default(), POLL_EVERY, consumer.into());
        Self { client, consumer, table, retention, poll, tables: None, wanted: None, known: Arc::default() }
    }

    /// The same log, of which only the changes of these tables (of an outbox: entities) are given out.
    ///
    /// # Errors
    /// `Config` for a table that is not logged.
    pub async fn only(self, cx: &Cx, tables: Vec<String>) -> Result<Self> {
        self.named(tables).require(cx).await
    }

    fn named(self, tables: Vec<String>) -> Self {
        let tables: Arc<[String]> = tables.into();
        Self { tables: Some(Arc::clone(&tables)), wanted: Some(tables), ..self }
    }

    /// The same log with another retention.
    #[must_use]
    pub fn keep(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// The tables whose changes are given out, as the log names them; none where an application fills an outbox itself, or where the log
    /// cannot be read.
    pub(crate) async fn watched(&self, cx: &Cx) -> Option<Option<Vec<String>>> {
        let log = self.require(cx).await.ok().filter(Self::is_own)?;
        Some(log.wanted.as_ref().map(|wanted| wanted.to_vec()))
    }

    /// The names in a sink's filter, as changes have them.
    pub(crate) async fn namespaces(&self, cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        let names = match &self.table {
            Table::Own => {
                let known = if self.is_there(cx).await? { named::known(cx, &self.client).await? } else { Vec::new() };
                named::spelled(cx, &self.client, &known, names).await?
            }
            Table::Outbox { name, columns, .. } if columns.entity.is_none() => {
                let cause = format!("a filter has `namespaces`, and changes of the outbox {name} have none");
                return Err(Error::config(cause).remedy("map `entity` in `columns`, or leave `namespaces` out"));
            }
            Table::Outbox { .. } => names,
        };
        let is_wanted = |name: &&String| self.wanted.as_ref().is_none_or(|wanted| wanted.contains(name));
        match names.iter().find(|name| !is_wanted(name)) {
            Some(name) => Err(crate::feedback_loop::unwatched(name)),
            None => Ok(names),
        }
    }

    /// The names in handlers' routes, as changes have them.
    ///
    /// # Errors
    /// `Config` for a name that no change of this stream can have.
    async fn route_names(&self, cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        if names.is_empty() {
            return Ok(names);
        }
        let names = match &self.table {
            Table::Own => {
                self.require_log(cx).await?;
                named::ever_logged(cx, &self.client, names).await?
            }
            Table::Outbox { name, columns, .. } if columns.entity.is_none() => {
                return Err(Error::config(format!(
                    "changes of the outbox {name} have no name that a route could match"
                ))
                .remedy("map `entity` in `columns`, or write `*` as the route"));
            }
            Table::Outbox { .. } => names,
        };
        match names.iter().find(|name| !self.wanted.as_ref().is_none_or(|wanted| wanted.contains(name))) {
            Some(name) => Err(Error::config(format!("the stream does not watch {name}"))
                .remedy("correct the name, or add the table to `tables` of the source")),
            None => Ok(names),
        }
    }

    /// The names that changes have now, where they are known.
    pub(crate) async fn logged_tables(&self, cx: &Cx) -> Result<Option<Vec<String>>> {
        match (&self.wanted, &self.table) {
            (Some(wanted), _) => Ok(Some(wanted.to_vec())),
            (None, Table::Own) => {
                self.require_log(cx).await?;
                named::entities(cx, &self.client).await.map(Some)
            }
            (None, Table::Outbox { .. }) => Ok(None),
        }
    }

    fn is_own(&self) -> bool {
        matches!(self.table, Table::Own)
    }

    /// The table that tells of a log of our own.
    fn meta(&self) -> String {
        self.client.sql("{schema}.log_meta")
    }

    fn script(&self) -> Script {
        let wanted = self.wanted.clone();
        match &self.table {
            Table::Own => Script {
                table: self.client.sql("{schema}.log"),
                columns: Columns::own(),
                raw: true,
                about: self.client.sql(
                    "(SELECT log_uuid::text FROM {schema}.log_meta), (SELECT pruned_through::text FROM {schema}.log_meta)",
                ),
                unreachable: blank(true).to_owned(),
                wanted,
                expects_few: false,
            },
            Table::Outbox { name, columns, .. } => Script {
                table: name.to_string(),
                columns: Columns::clone(columns),
                raw: false,
                about: "NULL::text, NULL::text".to_owned(),
                unreachable: outbox::first_unreachable(name, columns),
                wanted,
                expects_few: false,
            },
        }
    }

    /// What an error of the server means to a reader.
    fn to_error(&self, native: tokio_postgres::Error) -> Error {
        let code = native.code().map(|code| code.code().to_owned()).unwrap_or_default();
        match (code.as_str(), &self.table) {
            ("42P01" | "3F000", Table::Own) => self.uninstalled(),
            ("42P01" | "42703" | "42883", Table::Outbox { name, .. }) => {
                let translated = self.client.error(native, CallPurpose::Reading);
                Error::config(format!("the outbox {name} is no longer what `columns` says: {}", translated.message()))
                    .remedy("correct `columns`, or the table")
                    .caused_by(translated)
            }
            _ => unchanged(self.client.error(native, CallPurpose::Reading)),
        }
    }

    fn uninstalled(&self) -> Error {
        Error::position_lost(format!("{}: the log was uninstalled", self.client.place()))
            .remedy("run `watchkeeper postgres install`, then accept the gap: what changed meanwhile is not in the log")
    }

    fn another(&self) -> Error {
        Error::position_lost(format!("{}: the log is another one than the one that was opened", self.client.place()))
            .remedy("point the stream at the log it was reading, or move the checkpoint on purpose")
    }

    /// Looks at the log, and at one change of it.
    async fn inspect(&self, cx: &Cx, line: &Line, number: u64) -> Result<LogObservation> {
        let own = self.is_own().then(|| self.meta());
        let sql = LogObservation::sql(&self.script(), own.as_deref(), number);
        let call = async {
            let rows = line.query_typed(&sql, &[]).await.map_err(|native| self.to_error(native))?;
            LogObservation::of(rows.first().ok_or_else(|| Error::internal("a look at the log told nothing"))?)
        };
        self.client.bounded(cx).run(call).await.map_err(unchanged)
    }

    /// A connection for one reader.
    async fn line(&self, cx: &Cx) -> Result<Line> {
        if self.client.can_listen() {
            let own = self.client.dedicated(cx).await?;
            own.raise_timeouts();
            return Ok(Line::Own(own));
        }
        Ok(Line::Pooled(self.client.get(cx).await?))
    }

    /// Looks on a connection out of the pool.
    async fn inspect_once(&self, cx: &Cx, number: u64) -> Result<LogObservation> {
        let line = Line::Pooled(self.client.get(cx).await?);
        let observation = self.inspect(cx, &line, number).await?;
        line.give_back();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(observation.identity.clone());
        Ok(observation)
    }

    /// Hints of new changes, where they are to be had.
    async fn change_hints(&self, cx: &Cx) -> Result<Option<ChangeHints>> {
        if !self.is_own() || !self.client.can_listen() || !shape::all_wake(cx, &self.client).await? {
            return Ok(None);
        }
        ChangeHints::start(cx, &self.client, &install::channel(&self.client)).await.map(Some)
    }

    /// Where to begin.
    async fn start(&self, cx: &Cx, line: &Line, start: StartAt) -> Result<Beginning> {
        let after = match &start {
            StartAt::After(position) => Some(LogPosition::of(position)?),
            _ => None,
        };
        let observation = self.inspect(cx, line, after.as_ref().map_or(0, |place| place.last)).await?;
        if let (None, Some(end)) = (&after, &observation.unflushed) {
            durable::flush(cx, &self.client, end).await?;
        }
        start.require_in_log(LOG)?;
        let (place, note) = match (start, after) {
            (_, Some(place)) => {
                observation.require(&place)?;
                (place, None)
            }
            (StartAt::Now, _) => (LogPosition::at(observation.now.clone()), None),
            (StartAt::Oldest, _) => (self.oldest(cx, &observation).await?, None),
            (StartAt::Time(time), _) => self.at_time(cx, &observation, time).await?,
            (unknown, None) => return Err(unknown.unknown_to(LOG)),
        };
        Ok(Beginning { identity: observation.identity, place, note })
    }

    /// Whoever opens has asked for the identity before; it may have been that of another server.
    fn require_known(&self, identity: &Identity) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|known| known == identity) {
            return Ok(());
        }
        *known = None;
        Err(Error::unavailable("another server answered while the log was opened").remedy("it is tried again"))
    }

    /// Another connection for a reader that has come to a place, on the same server.
    async fn another_line(&self, cx: &Cx, place: &LogPosition) -> Result<Line> {
        let line = self.line(cx).await?;
        let beginning = self.start(cx, &line, StartAt::After(place.position())).await?;
        self.require_known(&beginning.identity)?;
        Ok(line)
    }

    async fn begin(&self, cx: &Cx, start: StartAt, consumes: bool) -> Result<Box<dyn ChangeStream>> {
        let log = self.settled(cx, &start).await?;
        // Hints first: what is written after the look is hinted at.
        let hints = self.change_hints(cx).await?;
        let line = self.line(cx).await?;
        let Beginning { identity, place, note } = log.start(cx, &line, start).await?;
        self.require_known(&identity)?;
        if consumes && self.is_own() {
            retention::hold_back(cx, self, &place).await?;
        }
        if let (Some(note), true) = (&note, consumes) {
            tracing::info!(consumer = &*self.consumer, "{note}");
        }
        let origin = identity.origin().into();
        Ok(Box::new(Reader::new(cx, &log, Start { line, hints, origin, place, consumes, note })))
    }
}

#[async_trait]
impl Source for ChangeLog {
    async fn resolve_names(&self, cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        self.route_names(cx, names).await
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let log = self.require(cx).await?;
        log.inspect_once(cx, 0).await?;
        check::findings(cx, &log).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        if self.is_own() {
            self.require_log(cx).await?;
        }
        Ok(self.inspect_once(cx, 0).await?.identity.pedigree())
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        let place = LogPosition::of(position)?;
        let observation = self.inspect_once(cx, place.last).await?;
        observation.identity.require(pedigree)?;
        observation.require(&place)
    }

    async fn preflight(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        let vetted = self.vetted(cx, start, pedigree).await;
        let note = vetted.as_ref().ok().cloned().flatten();
        let mut found = Finding::of_start(vetted.map(drop))?;
        found.extend(note.map(|what| Finding { severity: Severity::Note, what, remedy: None }));
        if let (StartAt::After(position), true) = (start, found.is_empty()) {
            found.extend(outbox::restarted(cx, self, LogPosition::of(position)?.last).await?);
        }
        Ok(found)
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        LogPosition::of(a).ok()?.compare(&LogPosition::of(b).ok()?)
    }

    fn earlier_bound(&self, target: &Position, current: &Position) -> Option<Position> {
        Some(LogPosition::of(target).ok()?.earlier_bound(&LogPosition::of(current).ok()?)?.position())
    }

    fn payload(&self) -> Arc<dyn Payload> {
        if self.is_own() { Arc::new(exact::LogRows) } else { Arc::new(JsonPayload) }
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.begin(cx, start, true).await
    }

    async fn peek(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.begin(cx, start, false).await
    }
}
