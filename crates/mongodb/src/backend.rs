//! MongoDB as a configuration file names it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Backend, Checkpoint, Cx, Error, Finding, Grade, Inspection, LeaseKey, Offer, Options, Positions, Purpose, Result,
    Sink, SinkPlan, SinkProfile, Source, SourceDescription, SourcePlan, Target, Tool,
};

use crate::check::{Privileges, as_store, doing_without, election, lacking, servers};
use crate::client::{STORED_IN, is_there};
use crate::feedback_loop::{Watched, refuse, refuse_named};
use crate::sink::Name;
use crate::source::{require_all_changes, share};
use crate::tools::{Oplog, QueryAudit, Setup};
use crate::{
    Audit, Checkpoints, Client, Config, Events, FallbackEndpoints, Feed, Leases, Mirror, RecordStore, Scope, Shown,
    Transactional, Versioned, View, checkpoint, records,
};

/// The backend `mongodb`: servers named `mongodb://HOSTS/DATABASE` or `mongodb+srv://NAME/DATABASE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MongoDb;

/// What a source is made of.
struct SourceSettings {
    config: Config,
    fallbacks: Vec<Config>,
    come_back: Option<Duration>,
    view: View,
}

impl SourceSettings {
    fn take(options: &mut Options) -> Result<Self> {
        let config = Config::from_options(options)?;
        let mut fallbacks = Vec::new();
        for url in options.texts("fallback")?.unwrap_or_default() {
            let to_error = |error: Error| {
                options.wrong("fallback", error.message()).remedy(error.advice().unwrap_or("write a URL").to_owned())
            };
            let mut fallback = Config::new(url).map_err(to_error)?.in_database(config.database());
            fallback.timeout = config.timeout;
            fallbacks.push(fallback);
        }
        Ok(Self { config, fallbacks, come_back: options.duration("come_back")?, view: View::from_options(options)? })
    }

    fn endpoints(self) -> Result<FallbackEndpoints> {
        let places = [vec![self.config], self.fallbacks].concat();
        let endpoints = FallbackEndpoints::new(places, &self.view)?;
        Ok(match self.come_back {
            Some(time) => endpoints.come_back_after(time),
            None => endpoints,
        })
    }
}

/// What the stream of a sink watches, if that is MongoDB. Settings that make no source are told of the source.
fn watched(purpose: &Purpose) -> Option<Watched> {
    let reading = purpose.reading.as_ref().filter(|reading| reading.backend == MongoDb.name())?;
    let mut options = reading.options.clone();
    options.collect_into(None);
    let SourceSettings { config, fallbacks, view, .. } = SourceSettings::take(&mut options).ok()?;
    Some(Watched::new([vec![config], fallbacks].concat(), &view))
}

/// The names that changes of the watched collections have, where only some are watched.
fn collections(config: &Config, view: &View) -> Option<Vec<String>> {
    let Scope::Collections(names) = &view.scope else { return None };
    Some(names.iter().map(|name| format!("{}.{name}", config.database())).collect())
}

/// A name that no change of a stream has, and those that they have.
pub(crate) struct Unwatched {
    pub(crate) name: String,
    pub(crate) watched: Vec<String>,
}

/// Names with their database, where people left it out.
pub(crate) fn resolve_names(config: &Config, view: &View, names: Vec<String>) -> Result<Vec<String>, Unwatched> {
    if view.scope == Scope::Cluster {
        return Ok(names);
    }
    let database = config.database();
    // What happens to the database itself has its name alone.
    let is_full = |name: &String| name == database || name.starts_with(&format!("{database}."));
    let full = |name: String| if is_full(&name) { name } else { format!("{database}.{name}") };
    let names: Vec<_> = names.into_iter().map(full).collect();
    let Some(watched) = collections(config, view) else { return Ok(names) };
    match names.iter().find(|name| *name != database && !watched.contains(name)) {
        Some(name) => Err(Unwatched { name: name.clone(), watched }),
        None => Ok(names),
    }
}

/// What a sink does with changes.
#[derive(Debug, Clone)]
enum Mode {
    Events(Events),
    Mirror(Mirror),
    Versioned(Mirror),
    Audit(Audit),
}

fn sink_settings(options: &mut Options) -> Result<(Config, Name, Mode)> {
    let config = Config::from_options(options)?;
    let modes = ["events", "mirror", "versioned", "audit"].map(|mode| (mode, mode));
    let mode = options.choice("mode", &modes)?.unwrap_or("events");
    let collection = match mode {
        "audit" => options.text("collection")?.unwrap_or_else(|| Audit::USUAL.to_owned()),
        _ => options.required("collection", "\"events\"")?,
    };
    let mode = match mode {
        "audit" => Audit::into(&collection).map(Mode::Audit),
        "mirror" => Mirror::into(&collection).map(Mode::Mirror),
        "versioned" => Mirror::into(&collection).map(Mode::Versioned),
        _ => Events::into(&collection).map(Mode::Events),
    };
    let named = mode.and_then(|mode| Ok((Name::new(&collection)?, mode)));
    let (name, mode) = named.map_err(|error| error.at(options.origin_of("collection")))?;
    Ok((config, name, mode))
}

/// What a sink with these settings will be, but for the identity of its store.
fn profile(config: &Config, mode: &Mode) -> SinkProfile {
    let profile = SinkProfile::new(Grade::Transactional, Duration::ZERO);
    match mode {
        Mode::Versioned(mirror) => Versioned::new(Client::lazy(config.clone()), mirror.clone()).profile(),
        Mode::Mirror(_) => SinkProfile { acts_on_barriers: true, whole_rows: true, mirrors: true, ..profile },
        Mode::Events(_) | Mode::Audit(_) => profile,
    }
}

/// What everyone who writes there has to be able to do.
const WRITING: [&str; 4] = ["find", "insert", "update", "remove"];

/// Privileges that are missing for writing into these collections, and for making those that are not there, and an index on
/// `indexed`.
async fn writing(cx: &Cx, client: &Client, collections: &[&str], indexed: Option<&str>) -> Result<Vec<Finding>> {
    let Some(own) = Privileges::of(cx, client).await? else { return Ok(Vec::new()) };
    let database = client.config().database();
    let places: Vec<_> = collections.iter().map(|collection| (database, *collection)).collect();
    let actions = [&WRITING[..], &["createCollection"]].concat();
    let remedy = "grant it, for example by the role readWrite";
    let mut found = own.missing(&places, &actions, remedy);
    found.extend(indexed.into_iter().flat_map(|name| own.missing(&[(database, name)], &["createIndex"], remedy)));
    Ok(found)
}

#[async_trait]
impl Backend for MongoDb {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["mongodb", "mongodb+srv"]
    }

    fn validate_store(&self, options: &mut Options) -> Result<()> {
        Config::from_options(options).map(drop)
    }

    fn validate_source(&self, _purpose: &Purpose, options: &mut Options) -> Result<SourcePlan> {
        let view = SourceSettings::take(options)?.view;
        Ok(SourcePlan { whole_rows: view.full_document != Shown::Default })
    }

    fn validate_sink(&self, purpose: &Purpose, options: &mut Options) -> Result<SinkPlan> {
        let (config, target, mode) = sink_settings(options)?;
        let named = refuse_named(purpose, watched(purpose).as_ref(), &config, &target);
        options.reported(named.map_err(|error| error.at(options.origin_of("collection"))))?;
        Ok(SinkPlan { profile: profile(&config, &mode), exclusive: None })
    }

    async fn store(&self, cx: &Cx, options: &mut Options) -> Result<Offer> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Ok(Offer {
            leases: Some(Arc::new(Leases::open(cx, client.clone()).await?)),
            checkpoints: Some(Arc::new(Checkpoints::open(cx, client.clone()).await?)),
            records: Some(Arc::new(RecordStore::open(cx, client).await?)),
        })
    }

    async fn source(&self, cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Arc<dyn Source>> {
        let settings = SourceSettings::take(options)?;
        match settings.fallbacks.as_slice() {
            [] => Ok(Arc::new(Feed::new(Client::open(cx, settings.config).await?, settings.view))),
            // Any of them may be away just now: which one is read is found out when it is opened.
            _ => Ok(Arc::new(settings.endpoints()?)),
        }
    }

    fn positions(&self, _purpose: &Purpose, options: &mut Options) -> Result<Option<Arc<dyn Positions>>> {
        let SourceSettings { config, view, .. } = SourceSettings::take(options)?;
        Ok(Some(Arc::new(Feed::new(Client::lazy(config), view))))
    }

    async fn namespaces(
        &self,
        _cx: &Cx,
        _purpose: &Purpose,
        options: &mut Options,
        names: Vec<String>,
    ) -> Result<Vec<String>> {
        let SourceSettings { config, view, .. } = SourceSettings::take(options)?;
        resolve_names(&config, &view, names).map_err(|unwatched| {
            let cause = format!(
                "a filter names {}, of which the stream never tells: everything would be passed over",
                unwatched.name
            );
            Error::config(cause)
                .remedy(format!("correct `namespaces`; the stream watches: {}", unwatched.watched.join(", ")))
        })
    }

    fn require_all_changes(&self, options: &mut Options) -> Result<()> {
        require_all_changes(&SourceSettings::take(options)?.view)
    }

    async fn describe(&self, cx: &Cx, options: &mut Options) -> Result<SourceDescription> {
        let SourceSettings { config, fallbacks, view, .. } = SourceSettings::take(options)?;
        let whole_rows = view.full_document != Shown::Default;
        let places = [vec![config], fallbacks].concat();
        for (at, config) in places.iter().enumerate() {
            let client = Client::lazy(config.clone());
            if client.greet(&share(cx, config.timeout, places.len() - at)).await.is_ok() {
                let window = Some(Feed::new(client, view).history(cx).await?);
                return Ok(SourceDescription { window, whole_rows });
            }
        }
        Ok(SourceDescription { window: None, whole_rows })
    }

    async fn check_store(&self, cx: &Cx, options: &mut Options) -> Result<Vec<Finding>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        let mut found = as_store(cx, &client).await?;
        found.extend(servers(cx, &client).await?);
        found.extend(writing(cx, &client, &STORED_IN, None).await?);
        found.extend(doing_without(cx, &client).await?);
        Ok(found)
    }

    async fn check_leases(&self, cx: &Cx, options: &mut Options, lease: Duration) -> Result<Vec<Finding>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Ok(Vec::from_iter(election(cx, &client, lease).await?))
    }

    async fn peek_store(&self, cx: &Cx, options: &mut Options) -> Result<Option<Offer>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        let mut offer = Offer::default();
        if is_there(cx, &client, checkpoint::COLLECTION).await? {
            offer.checkpoints = Some(Arc::new(Checkpoints::open(cx, client.clone()).await?));
        }
        if is_there(cx, &client, records::DOCUMENTS).await? {
            offer.records = Some(Arc::new(RecordStore::open(cx, client).await?));
        }
        Ok(Some(offer))
    }

    async fn peek_checkpoint(&self, cx: &Cx, options: &mut Options, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Checkpoints::peek(cx, &client, key).await
    }

    async fn sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let (config, target, mode) = sink_settings(options)?;
        let (client, watched) = (Client::open(cx, config).await?, watched(purpose));
        refuse(cx, purpose, watched.as_ref(), &client, &target).await?;
        let has_one =
            purpose.has_one_namespace().unwrap_or_else(|| !watched.is_some_and(|watched| watched.has_several()));
        let telling = |mirror: Mirror| if has_one { mirror } else { mirror.of_several() };
        let sink = match mode {
            Mode::Events(events) => Transactional::open(cx, client, events).await?,
            Mode::Mirror(mirror) => Transactional::open(cx, client, telling(mirror)).await?,
            Mode::Audit(audit) => Transactional::open(cx, client, audit).await?,
            Mode::Versioned(mirror) => {
                return Ok(Target { sink: Arc::new(Versioned::new(client, telling(mirror))), checkpoints: None });
            }
        };
        let checkpoints = Arc::new(sink.checkpoints().clone());
        Ok(Target { sink: Arc::new(sink), checkpoints: Some(checkpoints) })
    }

    async fn check_sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Inspection> {
        let (config, target, mode) = sink_settings(options)?;
        let client = Client::open(cx, config).await?;
        refuse(cx, purpose, watched(purpose).as_ref(), &client, &target).await?;
        let mut findings = servers(cx, &client).await?;
        let has_index = matches!(mode, Mode::Versioned(_) | Mode::Audit(_));
        let profile = profile(client.config(), &mode);
        let kept = if matches!(mode, Mode::Versioned(_)) { &[][..] } else { &STORED_IN[..] };
        findings.extend(lacking(cx, &client, profile.grade).await?);
        // A name with a placeholder stands for many collections.
        let target = if target.is_pattern() { "" } else { target.as_str() };
        findings.extend(writing(cx, &client, &[kept, &[target]].concat(), has_index.then_some(target)).await?);
        Ok(Inspection { profile, findings })
    }

    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        vec![Arc::new(Setup), Arc::new(Oplog), Arc::new(QueryAudit)]
    }
}
