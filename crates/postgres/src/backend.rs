//! PostgreSQL as a configuration file names it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Backend, Checkpoint, Cx, Finding, Grade, Inspection, LeaseKey, Offer, Options, Positions, Purpose, Result, Sink,
    SinkPlan, SinkProfile, Source, SourcePlan, StartAt, Target, Tool,
};

use crate::check::{self, ROLES, server, store, target};
use crate::feedback_loop::{self, Watched};
use crate::tools::Setup;
use crate::{
    ChangeLog, Checkpoints, Client, Config, Events, Leases, Mirror, Missing, RecordStore, Replication, Rows, Table,
    Transactional, Versioned, VersionedRows, changelog, checkpoint, lease, records, replication,
};

/// The backend `postgres`: servers named `postgres://HOSTS/DATABASE` or `postgresql://HOSTS/DATABASE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Postgres;

/// What a sink does with changes.
#[derive(Debug, Clone)]
enum Mode {
    Events(Events),
    Mirror(Mirror),
    Versioned(Mirror),
    Rows(Rows),
    VersionedRows(Rows),
}

impl Mode {
    /// The table, and what has to be allowed there.
    fn needs(&self) -> (&Table, &'static str) {
        match self {
            Self::Events(events) => (events.table(), "INSERT"),
            Self::Mirror(mirror) | Self::Versioned(mirror) => (mirror.table(), "SELECT, INSERT, UPDATE, DELETE"),
            Self::Rows(rows) | Self::VersionedRows(rows) => (rows.table(), "SELECT, INSERT, UPDATE, DELETE"),
        }
    }

    /// The columns that the table has to have. Those of rows are looked at by whoever writes them.
    fn columns(&self) -> &'static [check::Column] {
        match self {
            Self::Events(_) => &check::EVENTS,
            Self::Mirror(_) => &check::MIRROR,
            Self::Versioned(_) => &check::VERSIONED,
            Self::Rows(_) | Self::VersionedRows(_) => &[],
        }
    }

    /// What a sink of this mode will be, but for the identity of its store.
    fn profile(&self, client: &Client) -> Result<SinkProfile> {
        let mirrors = !matches!(self, Self::Events(_));
        let profile = SinkProfile::new(Grade::Transactional, Duration::ZERO);
        Ok(match self {
            Self::Versioned(mirror) => Versioned::new(client.clone(), mirror.clone()).profile(),
            Self::VersionedRows(rows) => VersionedRows::new(client.clone(), rows.clone())?.profile(),
            Self::Events(_) | Self::Mirror(_) | Self::Rows(_) => {
                SinkProfile { acts_on_barriers: mirrors, mirrors, ..profile }
            }
        })
    }

    /// Everything that is written to with every change, also what lies beside the table.
    fn writes(&self, client: &Client) -> Result<Vec<Table>> {
        let table = self.needs().0.clone();
        let beside = match self {
            Self::Versioned(_) => return Ok(vec![table]),
            Self::VersionedRows(rows) => VersionedRows::new(client.clone(), rows.clone())?.versions().clone(),
            Self::Events(_) | Self::Mirror(_) | Self::Rows(_) => Table::in_schema(client.schema(), "checkpoints"),
        };
        Ok(vec![table, beside])
    }
}

fn sink_settings(options: &mut Options) -> Result<(Config, Mode)> {
    let config = Config::from_options(options)?;
    let modes = ["events", "mirror", "versioned", "rows", "versioned_rows"].map(|mode| (mode, mode));
    let mode = options.choice("mode", &modes)?.unwrap_or("events");
    let table = options.required("table", "\"events\"")?;
    let columns = if mode.ends_with("rows") { columns(options)? } else { Vec::new() };
    let missing = if mode.ends_with("rows") { missing(options)? } else { Missing::default() };
    let to_error = |error: watchkeeper_core::Error| {
        options.wrong("table", error.message()).remedy(error.advice().unwrap_or_default().to_owned())
    };
    let mode = match mode {
        "mirror" => Mode::Mirror(Mirror::into(&table).map_err(to_error)?),
        "versioned" => Mode::Versioned(Mirror::into(&table).map_err(to_error)?),
        "rows" => Mode::Rows(rows(&table, &columns).map_err(to_error)?.missing(missing)),
        "versioned_rows" => Mode::VersionedRows(rows(&table, &columns).map_err(to_error)?.missing(missing)),
        _ => Mode::Events(Events::into(&table).map_err(to_error)?),
    };
    Ok((config, mode))
}

/// Columns and the fields that they are taken from, in the order of their names.
fn columns(options: &mut Options) -> Result<Vec<(String, String)>> {
    let Some(mut table) = options.table("columns")? else { return Ok(Vec::new()) };
    let names: Vec<String> = table.iter_mut().map(|(name, _)| name.to_owned()).collect();
    let mut columns = Vec::new();
    for name in names {
        let field = table.required(&name, "\"address.city\"")?;
        columns.push((name, field));
    }
    Ok(columns)
}

/// What becomes of columns whose fields the source does not have.
fn missing(options: &mut Options) -> Result<Missing> {
    Ok(options.choice("missing", &[("refuse", Missing::Refuse), ("keep", Missing::Keep)])?.unwrap_or_default())
}

fn rows(table: &str, columns: &[(String, String)]) -> Result<Rows> {
    Ok(columns.iter().fold(Rows::into(table)?, |rows, (column, field)| rows.column(column, field)))
}

/// Whether a source is the write-ahead log, and not a change log.
pub(crate) fn reads_replication(options: &mut Options) -> Result<bool> {
    Ok(options.choice("mode", &[("log", false), ("replication", true)])?.unwrap_or(false))
}

#[async_trait]
impl Backend for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["postgres", "postgresql"]
    }

    fn validate_store(&self, options: &mut Options) -> Result<()> {
        Config::from_options(options).map(drop)
    }

    fn validate_source(&self, purpose: &Purpose, options: &mut Options) -> Result<SourcePlan> {
        let config = Config::from_options(options)?;
        if reads_replication(options)? {
            replication::Settings::from_options(purpose, options)?;
        } else {
            ChangeLog::described(Client::lazy(config), &purpose.stream, options)?;
        }
        Ok(SourcePlan::default())
    }

    fn validate_start(&self, options: &mut Options, start: &StartAt) -> Result<()> {
        match reads_replication(options)? {
            true => replication::refuse_operation(start),
            false => start.require_in_log(changelog::LOG),
        }
    }

    fn validate_sink(&self, _purpose: &Purpose, options: &mut Options) -> Result<SinkPlan> {
        let (config, mode) = sink_settings(options)?;
        Ok(SinkPlan { profile: mode.profile(&Client::lazy(config))?, exclusive: None })
    }

    async fn store(&self, cx: &Cx, options: &mut Options) -> Result<Offer> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Ok(Offer {
            leases: Some(Arc::new(Leases::open(cx, client.clone()).await?)),
            checkpoints: Some(Arc::new(Checkpoints::open(cx, client.clone()).await?)),
            records: Some(Arc::new(RecordStore::open(cx, client).await?)),
        })
    }

    async fn check_store(&self, cx: &Cx, options: &mut Options) -> Result<Vec<Finding>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        let mut found = server(cx, &client).await?;
        found.extend(store(cx, &client, &ROLES).await?);
        Ok(found)
    }

    async fn peek_store(&self, cx: &Cx, options: &mut Options) -> Result<Option<Offer>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        let mut offer = Offer::default();
        if client.inspect(cx, lease::SCHEMA).await?.is_some() {
            offer.leases = Some(Arc::new(Leases::open(cx, client.clone()).await?));
        }
        if client.inspect(cx, checkpoint::SCHEMA).await?.is_some() {
            offer.checkpoints = Some(Arc::new(Checkpoints::open(cx, client.clone()).await?));
        }
        if client.inspect(cx, records::SCHEMA).await?.is_some() {
            offer.records = Some(Arc::new(RecordStore::open(cx, client).await?));
        }
        Ok(Some(offer))
    }

    async fn peek_checkpoint(&self, cx: &Cx, options: &mut Options, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Checkpoints::peek(cx, &client, key).await
    }

    async fn sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let (config, mode) = sink_settings(options)?;
        let client = Client::open(cx, config).await?;
        let watched = Watched::of(cx, purpose).await;
        feedback_loop::refuse(cx, purpose, watched.as_ref(), &client, &mode.writes(&client)?).await?;
        if let Mode::Rows(rows) | Mode::VersionedRows(rows) = &mode
            && rows.inspect(cx, &client).await.is_ok()
        {
            // A table that is not there yet, or not good, is told of when it is opened.
            feedback_loop::require_key(watched.as_ref(), rows)?;
        }
        let sink = match mode {
            Mode::Events(events) => Transactional::open(cx, client, events).await?,
            Mode::Mirror(mirror) => Transactional::open(cx, client, mirror).await?,
            Mode::Rows(rows) => {
                let has_one = purpose
                    .has_one_namespace()
                    .unwrap_or_else(|| !watched.is_some_and(|watched| watched.has_several()));
                Transactional::open(cx, client, if has_one { rows } else { rows.of_several() }).await?
            }
            Mode::Versioned(mirror) => {
                return Ok(Target { sink: Arc::new(Versioned::new(client, mirror)), checkpoints: None });
            }
            Mode::VersionedRows(rows) => {
                return Ok(Target { sink: Arc::new(VersionedRows::new(client, rows)?), checkpoints: None });
            }
        };
        let checkpoints = Arc::new(sink.checkpoints().clone());
        Ok(Target { sink: Arc::new(sink), checkpoints: Some(checkpoints) })
    }

    async fn check_sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Inspection> {
        let (config, mode) = sink_settings(options)?;
        let client = Client::open(cx, config).await?;
        let watched = Watched::of(cx, purpose).await;
        feedback_loop::refuse(cx, purpose, watched.as_ref(), &client, &mode.writes(&client)?).await?;
        let mut findings = server(cx, &client).await?;
        if let Mode::Rows(rows) | Mode::VersionedRows(rows) = &mode {
            rows.inspect(cx, &client).await?;
            feedback_loop::require_key(watched.as_ref(), rows)?;
        }
        let (table, words) = mode.needs();
        findings.extend(target(cx, &client, table, words, mode.columns()).await?);
        match &mode {
            Mode::Versioned(_) => {}
            Mode::VersionedRows(rows) => {
                let sink = VersionedRows::new(client.clone(), rows.clone())?;
                findings.extend(target(cx, &client, sink.versions(), words, &[]).await?);
                sink.require_independence(cx, purpose.lanes).await?;
            }
            Mode::Events(_) | Mode::Mirror(_) | Mode::Rows(_) => {
                findings.extend(store(cx, &client, &[checkpoint::SCHEMA]).await?);
            }
        }
        Ok(Inspection { profile: mode.profile(&client)?, findings })
    }

    async fn source(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Arc<dyn Source>> {
        let config = Config::from_options(options)?;
        if reads_replication(options)? {
            let settings = replication::Settings::from_options(purpose, options)?;
            return Ok(Arc::new(Replication::new(config, settings)));
        }
        let client = Client::open(cx, config).await?;
        let consumer = format!("{}/{}", purpose.group, purpose.stream);
        Ok(Arc::new(ChangeLog::from_options(cx, client, &consumer, options).await?))
    }

    fn positions(&self, purpose: &Purpose, options: &mut Options) -> Result<Option<Arc<dyn Positions>>> {
        let config = Config::from_options(options)?;
        if reads_replication(options)? {
            let settings = replication::Settings::from_options(purpose, options)?;
            return Ok(Some(Arc::new(Replication::new(config, settings))));
        }
        Ok(Some(Arc::new(ChangeLog::described(Client::lazy(config), &purpose.stream, options)?)))
    }

    async fn namespaces(
        &self,
        cx: &Cx,
        purpose: &Purpose,
        options: &mut Options,
        names: Vec<String>,
    ) -> Result<Vec<String>> {
        feedback_loop::resolved(cx, purpose, options, names).await
    }

    async fn watched(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Option<Vec<String>>> {
        feedback_loop::watched(cx, purpose, options).await
    }

    async fn leftovers(
        &self,
        cx: &Cx,
        purpose: &Purpose,
        options: &mut Options,
        departed: &[String],
    ) -> Result<Vec<Finding>> {
        let config = Config::from_options(options)?;
        if !reads_replication(options)? {
            return Ok(Vec::new());
        }
        let settings = replication::Settings::from_options(purpose, options)?;
        Replication::new(config, settings).orphaned_slots(cx, &purpose.group, departed).await
    }

    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut tools: Vec<Arc<dyn Tool>> = vec![Arc::new(Setup), Arc::new(replication::Slots)];
        tools.extend(changelog::tools());
        tools
    }
}
