//! What a file describes: the group's stores, opened, and the streams on them. All commands work on this.
//!
//! The parts of a stream are opened only by those who need them, and of that stream only: what is wrong with one is
//! no matter of the others, nor of commands that only ask the group's stores.

mod keeper;
mod movable;
mod parts;

use std::path::PathBuf;
use std::time::Duration;

use watchkeeper::engine::stream::key_of;
use watchkeeper::{Error, InstanceSettings, LeaseKey, Result, Seams, Stores};

use crate::args::Common;
use crate::config::{self, Config, Group, Stream, System};

pub(crate) use movable::Movable;
pub(crate) use parts::open as open_stream;

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
    /// Its streams, as the file describes them.
    pub(crate) streams: Vec<Stream>,
    /// The file that the group's store is, if it is one.
    pub(crate) store_file: Option<PathBuf>,
}

impl Site {
    /// Opens the group's stores that the file names which `common` names.
    ///
    /// # Errors
    /// `Config` when a person has to change something, or whatever keeps the stores from being opened.
    pub(crate) async fn open(common: &Common) -> Result<Self> {
        Self::of(&config::load(&common.config)?).await
    }

    /// As [`open`](Self::open), for commands that make no store: one that is a file has to exist.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `Config` when such a file does not exist.
    pub(crate) async fn open_existing(common: &Common) -> Result<Self> {
        let config = config::load(&common.config)?;
        config.group.stores().try_for_each(System::require_store_file)?;
        Self::of(&config).await
    }

    /// Opens what `config` describes.
    pub(crate) async fn of(config: &Config) -> Result<Self> {
        let seams = Seams::system();
        let stores = stores(&seams, &config.group).await?;
        Ok(Self {
            seams,
            stores,
            settings: config.group.settings.clone(),
            streams: config.streams.clone(),
            store_file: config.group.store.store_file(),
        })
    }

    /// The stream of this name.
    ///
    /// # Errors
    /// `Config` with the names that there are.
    pub(crate) fn stream(&self, name: &str) -> Result<&Stream> {
        self.streams.iter().find(|stream| stream.settings.name == name).ok_or_else(|| {
            let known: Vec<_> = self.streams.iter().map(|stream| stream.settings.name.as_str()).collect();
            let error = Error::config(format!("there is no stream {name:?} in this file"));
            error.remedy(format!("known are: {}", known.join(", ")))
        })
    }

    /// What a stream's lease and checkpoint are kept under.
    pub(crate) fn key(&self, stream: &Stream) -> LeaseKey {
        key_of(&self.settings.group, &stream.settings.name)
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
