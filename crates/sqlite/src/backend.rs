//! SQLite as a configuration file names it.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Backend, Checkpoint, Cx, Error, Finding, Grade, Inspection, LeaseKey, Offer, Options, Pedigree, Position,
    Positions, Purpose, Records, Result, Severity, SinkPlan, SinkProfile, Source, SourcePlan, StartAt, Target, Tool,
};

use crate::feedback;
use crate::tools::{Alter, Install, Uninstall, alter_note, plain};
use crate::{
    ChangeLog, Checkpoints, Client, Config, Events, Leases, Mirror, RecordStore, Retention, Transactional, checkpoint,
    records,
};

/// The backend `sqlite`: files named `sqlite:PATH`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sqlite;

/// The file that a URL names: `sqlite:state.db`, or `sqlite:///var/lib/state.db`.
pub(crate) fn path(options: &mut Options) -> Result<PathBuf> {
    let url = options.required("url", "\"sqlite:state.db\"")?;
    if url.contains('?') {
        // What comes after it may be a secret, so it is not repeated.
        return Err(options
            .wrong("url", "a SQLite file is named without parameters, and this URL has a `?`")
            .remedy("write \"sqlite:state.db\"; what can be set stands beside the url, such as busy = \"5s\""));
    }
    let path = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
    match path {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(options.wrong("url", format!("{url:?} names no file")).remedy("write \"sqlite:state.db\"")),
    }
}

/// The file that the settings name, where errors are collected whatever is wrong with its name.
fn file(options: &mut Options) -> Result<PathBuf> {
    let named = path(options);
    Ok(options.reported(named)?.unwrap_or_else(|| PathBuf::from("state.db")))
}

fn config(mut config: Config, options: &mut Options) -> Result<Config> {
    config.busy = options.duration("busy")?.unwrap_or(config.busy);
    config.tick = options.duration("tick")?.unwrap_or(config.tick);
    config.evict = options.flag("evict")?.unwrap_or(config.evict);
    options.reported(config.validate().map_err(|error| error.at(options.origin())))?;
    Ok(config)
}

/// What a source is made of.
pub(crate) struct SourceSettings {
    pub(crate) config: Config,
    retention: Retention,
    pub(crate) tables: Option<Vec<String>>,
}

impl SourceSettings {
    pub(crate) fn take(options: &mut Options) -> Result<Self> {
        let config = config(Config::existing(file(options)?), options)?;
        let usual = Retention::default();
        let retention = Retention {
            rewind: options.duration("rewind")?.unwrap_or(usual.rewind),
            abandoned: options.duration("abandoned")?.unwrap_or(usual.abandoned),
        };
        let mut tables = options.texts("tables")?;
        if let Some(table) = options.text("table")? {
            tables.get_or_insert_default().push(table);
        }
        Ok(Self { config, retention, tables })
    }

    /// The same for whoever only looks.
    pub(crate) fn only_looking(self) -> Self {
        Self { config: self.config.for_reading(), ..self }
    }

    pub(crate) async fn open(self, cx: &Cx, purpose: &Purpose) -> Result<ChangeLog> {
        let client = Client::open(cx, self.config).await?;
        let consumer = format!("{}/{}", purpose.group, purpose.stream);
        let log = ChangeLog::new(client, &consumer).keep(self.retention);
        Ok(match self.tables {
            Some(tables) => log.named(tables),
            None => log,
        })
    }
}

/// Positions of a [`ChangeLog`]: the log itself has its file open.
#[derive(Debug)]
struct LogPositions;

impl Positions for LogPositions {
    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        ChangeLog::compare_numbers(a, b)
    }
}

/// What a target does with changes.
enum Mode {
    Mirror(Mirror),
    Events(Events),
}

/// What a target is made of.
struct SinkSettings {
    config: Config,
    table: String,
    mode: Mode,
}

impl SinkSettings {
    fn take(options: &mut Options) -> Result<Self> {
        let config = config(Config::new(file(options)?), options)?;
        let mirrors = options.choice("mode", &[("events", false), ("mirror", true)])?.unwrap_or(false);
        let table = options.required("table", "\"events\"")?;
        let mode = match mirrors {
            true => Mirror::into(&table).map(Mode::Mirror),
            false => Events::into(&table).map(Mode::Events),
        };
        let mode = mode.map_err(|error| error.at(options.origin_of("table")))?;
        Ok(Self { config, table, mode })
    }

    fn profile(&self) -> SinkProfile {
        let mirrors = matches!(self.mode, Mode::Mirror(_));
        let profile = SinkProfile::new(Grade::Transactional, Duration::ZERO);
        SinkProfile { acts_on_barriers: mirrors, mirrors, ..profile }
    }
}

/// Where a file is looked for.
const RELATIVE: &str = "relative paths begin in the folder in which the program is started";

/// Looks at a file of ours without changing it. A file that is not there yet will be made.
async fn inspect(cx: &Cx, config: Config) -> Result<Vec<Finding>> {
    let file = config.path.clone();
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let cause = format!("the folder {} of {} is not there", folder.display(), file.display());
        return Err(Error::config(cause).remedy("create it, or correct the path"));
    }
    crate::client::refuse_unwritable(&file)?;
    if !file.exists() {
        crate::client::refuse_network(&file)?;
        let named = std::path::absolute(&file).unwrap_or_else(|_| file.clone());
        let what = format!("{} is not there yet and will be made", named.display());
        let remedy = file.is_relative().then(|| RELATIVE.to_owned());
        return Ok(vec![Finding { severity: Severity::Note, what, remedy }]);
    }
    Client::open(cx, config.for_reading()).await?;
    Ok(Vec::new())
}

#[async_trait]
impl Backend for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["sqlite"]
    }

    fn validate_store(&self, options: &mut Options) -> Result<()> {
        config(Config::new(file(options)?), options).map(drop)
    }

    fn validate_source(&self, _purpose: &Purpose, options: &mut Options) -> Result<SourcePlan> {
        SourceSettings::take(options).map(|_| SourcePlan::default())
    }

    fn validate_start(&self, _options: &mut Options, start: &StartAt) -> Result<()> {
        start.require_in_log(crate::source::LOG)
    }

    fn validate_sink(&self, purpose: &Purpose, options: &mut Options) -> Result<SinkPlan> {
        let settings = SinkSettings::take(options)?;
        let fed = feedback::refuse_named(purpose, &settings.config.path, &settings.table);
        options.reported(fed.map_err(|error| error.at(options.origin_of("table"))))?;
        Ok(SinkPlan { profile: settings.profile(), exclusive: None })
    }

    async fn store(&self, cx: &Cx, options: &mut Options) -> Result<Offer> {
        let config = config(Config::new(file(options)?), options)?;
        let client = Client::open(cx, config).await?;
        Ok(Offer {
            leases: Some(Arc::new(Leases::open(cx, client.separate(cx).await?).await?)),
            checkpoints: Some(Arc::new(Checkpoints::open(cx, client.clone()).await?)),
            records: Some(Arc::new(RecordStore::open(cx, client).await?)),
        })
    }

    fn store_file(&self, options: &mut Options) -> Result<Option<PathBuf>> {
        Ok(Some(config(Config::new(file(options)?), options)?.path))
    }

    async fn check_store(&self, cx: &Cx, options: &mut Options) -> Result<Vec<Finding>> {
        inspect(cx, config(Config::new(file(options)?), options)?).await
    }

    async fn peek_store(&self, cx: &Cx, options: &mut Options) -> Result<Option<Offer>> {
        let config = config(Config::new(file(options)?), options)?;
        let mut offer = Offer::default();
        if !config.path.exists() {
            return Ok(Some(offer));
        }
        let client = Client::open(cx, config.for_reading()).await?;
        let observation = |transaction: &rusqlite::Transaction<'_>| {
            Ok((checkpoint::SCHEMA.is_there(transaction)?, records::SCHEMA.is_there(transaction)?))
        };
        let (checkpoints, records) = client.read(cx, observation).await?;
        if checkpoints {
            offer.checkpoints = Some(Arc::new(Checkpoints::open(cx, client.clone()).await?));
        }
        if records {
            offer.records = Some(Arc::new(RecordStore::open(cx, client).await?));
        }
        Ok(Some(offer))
    }

    async fn writable_records(&self, cx: &Cx, options: &mut Options) -> Result<Option<Arc<dyn Records>>> {
        let config = config(Config::new(file(options)?), options)?;
        if !config.path.exists() {
            return Ok(None);
        }
        let looking = Client::open(cx, config.clone().for_reading()).await?;
        if !looking.read(cx, |transaction| records::SCHEMA.is_there(transaction)).await? {
            return Ok(None);
        }
        let client = Client::open(cx, Config { create: false, ..config }).await?;
        Ok(Some(Arc::new(RecordStore::open(cx, client).await?)))
    }

    async fn peek_checkpoint(&self, cx: &Cx, options: &mut Options, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let config = config(Config::new(file(options)?), options)?;
        if !config.path.exists() {
            return Ok(None);
        }
        Checkpoints::peek(cx, &Client::open(cx, config.for_reading()).await?, key).await
    }

    async fn source(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Arc<dyn Source>> {
        Ok(Arc::new(SourceSettings::take(options)?.open(cx, purpose).await?))
    }

    fn positions(&self, _purpose: &Purpose, options: &mut Options) -> Result<Option<Arc<dyn Positions>>> {
        SourceSettings::take(options)?;
        Ok(Some(Arc::new(LogPositions)))
    }

    async fn check_source(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Vec<Finding>> {
        // A log that was never opened for writing cannot switch the application's file to write-ahead logging.
        let log = SourceSettings::take(options)?.only_looking().open(cx, purpose).await?;
        let mut found = log.check(cx).await?;
        found.push(alter_note(&log.client().config().path));
        Ok(found)
    }

    async fn preflight_start(
        &self,
        cx: &Cx,
        purpose: &Purpose,
        options: &mut Options,
        start: &StartAt,
        pedigree: Option<&Pedigree>,
    ) -> Result<Vec<Finding>> {
        SourceSettings::take(options)?.only_looking().open(cx, purpose).await?.preflight(cx, start, pedigree).await
    }

    async fn namespaces(
        &self,
        cx: &Cx,
        purpose: &Purpose,
        options: &mut Options,
        names: Vec<String>,
    ) -> Result<Vec<String>> {
        let is_narrowed = options.peek("tables").is_some() || options.peek("table").is_some();
        let watched = self.watched(cx, purpose, options).await?.unwrap_or_default();
        let spelled = |name: String| match watched.iter().find(|known| known.eq_ignore_ascii_case(&name)) {
            Some(known) => Ok(known.clone()),
            None if is_narrowed => {
                let cause =
                    format!("a filter names {name}, of which the stream never tells: everything would be passed over");
                Err(Error::config(cause)
                    .remedy(format!("correct `namespaces`; the stream watches: {}", watched.join(", "))))
            }
            None => Ok(name),
        };
        names.iter().map(|name| plain(name)).map(spelled).collect()
    }

    async fn watched(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Option<Vec<String>>> {
        let log = SourceSettings::take(options)?.only_looking().open(cx, purpose).await?;
        let client = log.client().clone();
        client.read(cx, move |transaction| log.watched(transaction)).await.map(Some)
    }

    async fn sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let settings = SinkSettings::take(options)?;
        feedback::refuse(cx, purpose, &settings.config.path, &settings.table).await?;
        let client = Client::open(cx, settings.config).await?;
        let sink = match settings.mode {
            Mode::Mirror(mirror) => Transactional::open(cx, client, mirror).await?,
            Mode::Events(events) => Transactional::open(cx, client, events).await?,
        };
        let checkpoints = Arc::new(sink.checkpoints().clone());
        Ok(Target { sink: Arc::new(sink), checkpoints: Some(checkpoints) })
    }

    async fn check_sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Inspection> {
        let settings = SinkSettings::take(options)?;
        feedback::refuse(cx, purpose, &settings.config.path, &settings.table).await?;
        Ok(Inspection { profile: settings.profile(), findings: inspect(cx, settings.config).await? })
    }

    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        vec![Arc::new(Install), Arc::new(Alter), Arc::new(Uninstall)]
    }
}
