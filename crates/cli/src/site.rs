//! What a file describes, opened: the group's stores and the streams on them. All commands work on this.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper::core::Purpose;
use watchkeeper::engine::delivery::filter::All;
use watchkeeper::{
    Error, ErrorKind, Filter, InstanceSettings, LeaseKey, Namespaces, Result, Seams, SinkSpec, StartAt, Stores,
    StreamSpec,
};

use crate::args::Common;
use crate::config::{self, Config, Group, Stream, System};

/// How long one part may take to be opened.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// What to write where a position is expected and something else stands.
pub(crate) const A_POSITION: &str =
    "write a position of this source as `watchkeeper checkpoint show` tells it, or start with \"now\"";

/// An opened configuration.
#[derive(Debug)]
pub(crate) struct Site {
    /// Time, tasks, peers, randomness.
    pub(crate) seams: Seams,
    /// Leases, checkpoints and records of the group.
    pub(crate) stores: Stores,
    /// How this instance behaves; also the group's name and the length of leases.
    pub(crate) settings: InstanceSettings,
    /// Its streams. Those whose own parts could not be opened are not here.
    pub(crate) streams: Vec<StreamSpec>,
    /// Streams of which a part could not be opened just now.
    pub(crate) absent: Vec<Absent>,
}

/// A stream of which a part could not be opened.
#[derive(Debug)]
pub(crate) struct Absent {
    /// The stream.
    pub(crate) name: String,
    /// Why.
    pub(crate) error: Error,
}

impl Site {
    /// Opens what the file that `common` names describes.
    ///
    /// # Errors
    /// `Config` when a person has to change something, or whatever keeps the group's stores from being opened. A
    /// stream's own parts that do not answer are no error: the stream is then among the absent ones.
    pub(crate) async fn open(common: &Common) -> Result<Self> {
        Self::of(&config::load(&common.config)?).await
    }

    /// Opens what `config` describes.
    pub(crate) async fn of(config: &Config) -> Result<Self> {
        let seams = Seams::system();
        let stores = stores(&seams, &config.group).await?;
        let (mut streams, mut absent) = (Vec::new(), Vec::new());
        for described in &config.streams {
            match stream(&seams, &config.group.settings.group, described).await {
                Ok(stream) => streams.push(stream),
                Err(error) if error.kind() == ErrorKind::Config => return Err(error),
                Err(error) => absent.push(Absent { name: described.settings.name.clone(), error }),
            }
        }
        Ok(Self { seams, stores, settings: config.group.settings.clone(), streams, absent })
    }

    /// The stream of this name.
    ///
    /// # Errors
    /// `Config` with the names that there are, or why this one could not be opened.
    pub(crate) fn stream(&self, name: &str) -> Result<&StreamSpec> {
        if let Some(absent) = self.absent.iter().find(|absent| absent.name == name) {
            let error = Error::new(absent.error.kind(), absent.error.message());
            return Err(error.remedy(absent.error.advice().unwrap_or("try again later")));
        }
        self.streams.iter().find(|stream| stream.settings.name == name).ok_or_else(|| {
            let known: Vec<_> = self.streams.iter().map(|stream| stream.settings.name.as_str()).collect();
            let error = Error::config(format!("there is no stream {name:?} in this file"));
            error.remedy(format!("known are: {}", known.join(", ")))
        })
    }

    /// What a stream's lease and checkpoint are kept under.
    pub(crate) fn key(&self, stream: &StreamSpec) -> LeaseKey {
        stream.key(&self.settings.group)
    }
}

/// Opens the group's stores.
async fn stores(seams: &Seams, group: &Group) -> Result<Stores> {
    let cx = seams.cx().within(OPEN_WITHIN);
    let open = async |system: &System| system.open(async |backend, options| backend.store(&cx, options).await).await;
    let offer = open(&group.store).await?;
    let lacks = |system: &System, what: &str| {
        let cause = format!("{} keeps no {what}", system.backend.name());
        Error::config(cause).remedy("name another store for them").at(system.options.origin())
    };
    let leases = match &group.leases {
        Some(system) => open(system).await?.leases.ok_or_else(|| lacks(system, "leases"))?,
        None => offer.leases.ok_or_else(|| lacks(&group.store, "leases"))?,
    };
    let records = match &group.records {
        Some(system) => open(system).await?.records.ok_or_else(|| lacks(system, "records"))?,
        None => offer.records.ok_or_else(|| lacks(&group.store, "records"))?,
    };
    let (lease, shortest) = (group.settings.lease.ttl, leases.profile().shortest);
    if lease < shortest {
        let cause = format!("the lease is {lease:?}, but this store takes none below {shortest:?}");
        return Err(Error::config(cause).remedy("lengthen the lease").at(&group.lease_origin));
    }
    let checkpoints = offer.checkpoints.ok_or_else(|| lacks(&group.store, "checkpoints"))?;
    Ok(Stores { leases, checkpoints, records })
}

/// Opens the parts of a stream.
async fn stream(seams: &Seams, group: &str, described: &Stream) -> Result<StreamSpec> {
    let cx = seams.cx().within(OPEN_WITHIN);
    let reading = &described.source;
    let purpose = Purpose::new(group, &described.settings.name)
        .with_lanes(described.settings.concurrency)
        .reading(&*reading.backend, &reading.options);
    let source = described.source.open(async |backend, options| backend.source(&cx, &purpose, options).await).await?;
    if let StartAt::After(position) = &described.settings.start
        && source.compare(position, position).is_none()
    {
        let cause = format!("start = \"{position}\" is no position of a source of {}", described.source.backend.name());
        return Err(Error::config(cause).remedy(A_POSITION).at(&described.origin));
    }
    let (mut sinks, mut checkpoints) = (Vec::new(), None);
    for target in &described.sinks {
        let named = described.namespaces(&cx, &purpose, target).await?;
        let purpose = purpose.clone().with_namespaces(named.clone());
        let opened = target.system.open(async |backend, options| backend.sink(&cx, &purpose, options).await).await?;
        // A transactional target keeps the checkpoint; that there is one at most is validated below.
        checkpoints = checkpoints.or(opened.checkpoints);
        let (name, on_reject) = (target.name.clone(), target.on_reject);
        let named = named.map(|names| Arc::new(names.into_iter().collect::<Namespaces>()) as Arc<dyn Filter>);
        let filters: Vec<_> = target.filter.iter().cloned().chain(named).collect();
        let filter = (!filters.is_empty()).then(|| Arc::new(All(filters)) as Arc<dyn Filter>);
        sinks.push(SinkSpec { name, sink: opened.sink, on_reject, filter });
    }
    let stream = StreamSpec { settings: described.settings.clone(), source, sinks, checkpoints };
    stream.validate().map_err(|error| error.at(&described.origin))?;
    Ok(stream)
}
