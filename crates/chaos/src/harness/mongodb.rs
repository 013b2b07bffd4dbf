//! MongoDB: an application's collection, the group's state and a target, in one database of a replica set.

mod arrivals;
mod bare;
mod copy;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::format::{Format, Native};
use watchkeeper_core::{Change, Cx, Error, Result};
use watchkeeper_engine::instance::Stores;
use watchkeeper_mongodb::mongodb::bson::{Timestamp, doc};
use watchkeeper_mongodb::{
    Apply, CallPurpose, Checkpoints, Client, Config, Events, Failure, Feed, Leases, Open, RecordStore, Transactional,
    View,
};

use super::lines::{Lines, LinesRead};
use super::servers::ADDRESS;
use super::{Bare, BareWriteSize, Harness, InstanceParts, Kind, Target, Writer};
use crate::fault_hooks::FaultHooks;
use crate::harness;

/// The file that says from when on the target is read.
const BEGIN: &str = "begin";

/// The collection that is written to, and the one that changes arrive in.
const ORDERS: &str = "orders";
const ARRIVED: &str = "arrived";

/// What writes and reads from outside of the group does not wait long for a primary: there is a next time.
const IMPATIENT: &str = "&serverSelectionTimeoutMS=3000&appName=outside";

pub(super) struct Databases {
    folder: PathBuf,
    url: String,
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal("a file of the rig cannot be used").caused_by(error)
}

impl Databases {
    pub(super) fn at(folder: &Path) -> Result<Self> {
        let url = std::fs::read_to_string(folder.join(ADDRESS)).map_err(unreadable)?;
        Ok(Self { folder: folder.to_owned(), url })
    }

    async fn client(&self, cx: &Cx) -> Result<Client> {
        Client::open(cx, Config::new(self.url.as_str())?).await
    }

    async fn outside(&self, cx: &Cx) -> Result<Client> {
        Client::open(cx, Config::new(format!("{}{IMPATIENT}", self.url))?).await
    }

    fn lines(&self) -> PathBuf {
        self.folder.join("lines")
    }

    /// Notes the servers' time, before which nothing has arrived.
    async fn begin(&self, cx: &Cx, client: &Client) -> Result<()> {
        let database = client.database(cx).await?;
        let said = |native| client.error(native, CallPurpose::Reading);
        for collection in [ORDERS, ARRIVED] {
            database.create_collection(collection).await.map_err(said)?;
        }
        let reply = database.run_command(doc! { "ping": 1 }).await.map_err(said)?;
        let Timestamp { time, increment } = reply.get_timestamp("operationTime").map_err(unreadable)?;
        std::fs::write(self.folder.join(BEGIN), format!("{time} {increment}")).map_err(unreadable)
    }

    fn begun(&self) -> Result<Timestamp> {
        let text = std::fs::read_to_string(self.folder.join(BEGIN)).map_err(unreadable)?;
        let numbers: Vec<u32> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [time, increment] => Ok(Timestamp { time, increment }),
            _ => Err(Error::internal("the beginning of a run is not known")),
        }
    }
}

#[async_trait]
impl Harness for Databases {
    async fn set_up(&self, cx: &Cx) -> Result<()> {
        std::fs::create_dir_all(self.lines()).map_err(unreadable)?;
        self.begin(cx, &self.client(cx).await?).await?;
        self.stores(cx).await.map(drop)
    }

    async fn stores(&self, cx: &Cx) -> Result<Stores> {
        let client = self.client(cx).await?;
        let leases = Leases::open(cx, client.clone()).await?;
        let records = RecordStore::open(cx, client.clone()).await?;
        let checkpoints = Checkpoints::open(cx, client).await?;
        Ok(Stores { leases: Arc::new(leases), checkpoints: Arc::new(checkpoints), records: Arc::new(records) })
    }

    async fn parts(&self, cx: &Cx, kind: Kind, hooks: &Arc<FaultHooks>) -> Result<InstanceParts> {
        let stores = self.stores(cx).await?;
        let source = Arc::new(Feed::new(self.client(cx).await?, View::collection(ORDERS)));
        Ok(match kind {
            Kind::Fenced => {
                let sink = Arc::new(Lines::into(self.lines(), event));
                InstanceParts { stores, source, sink, checkpoints: None }
            }
            Kind::Transactional => {
                let apply = TransactionalAppend { events: Events::into(ARRIVED)?, hooks: Arc::clone(hooks) };
                let sink = Transactional::open(cx, self.client(cx).await?, apply).await?;
                let checkpoints = Some(Arc::new(sink.checkpoints().clone()) as _);
                InstanceParts { stores, source, sink: Arc::new(sink), checkpoints }
            }
        })
    }

    async fn writer(&self, cx: &Cx) -> Result<Box<dyn Writer>> {
        Ok(Box::new(writer::App::new(self.outside(cx).await?, cx.clone())))
    }

    async fn bare(&self, cx: &Cx, like: BareWriteSize) -> Result<Option<Box<dyn Bare>>> {
        let collection = match like {
            BareWriteSize::Lease => "watchkeeper_leases",
            BareWriteSize::Checkpoint => "watchkeeper_checkpoints",
        };
        let bare = bare::OneDocument::like(collection, self.client(cx).await?, cx.clone()).await?;
        Ok(Some(Box::new(bare)))
    }

    async fn target(&self, cx: &Cx, kind: Kind) -> Result<Box<dyn Target>> {
        Ok(match kind {
            Kind::Fenced => Box::new(LinesRead::of(self.lines(), order)),
            Kind::Transactional => {
                let client = self.outside(cx).await?;
                Box::new(arrivals::Arrivals::since(self.begun()?, client, cx.clone(), ARRIVED, arrivals::arrival))
            }
        })
    }

    fn config(&self, copies: bool) -> harness::Config {
        let url = copy::url(&self.url);
        let sink = format!("url = \"{url}\"\nmode = \"versioned\"\ncollection = \"{}\"", copy::COLLECTION);
        harness::Config {
            store: self.url.clone(),
            // Without it updates tell only what differs, and a copy refuses such a source.
            source: format!("url = \"{}\"\ncollection = \"{ORDERS}\"\nfull_document = \"updateLookup\"", self.url),
            folder: self.lines(),
            sinks: if copies { vec![sink] } else { Vec::new() },
        }
    }

    fn plain_lines(&self) -> Box<dyn Target> {
        Box::new(LinesRead::without_epochs(self.lines(), order))
    }

    async fn make_copies(&self, cx: &Cx) -> Result<()> {
        let client = Client::open(cx, Config::new(copy::url(&self.url))?).await?;
        let made = client.database(cx).await?.create_collection(copy::COLLECTION).await;
        made.map_err(|native| client.error(native, CallPurpose::Reading))
    }

    async fn copies(&self, cx: &Cx) -> Result<Vec<(&'static str, Box<dyn Target>)>> {
        let client = Client::open(cx, Config::new(format!("{}{IMPATIENT}", copy::url(&self.url)))?).await?;
        let writes = arrivals::Arrivals::since(self.begun()?, client, cx.clone(), copy::COLLECTION, copy::write);
        Ok(vec![("versioned", Box::new(writes))])
    }
}

/// Appends to a collection, and holds the transaction open when it is told to.
struct TransactionalAppend {
    events: Events,
    hooks: Arc<FaultHooks>,
}

#[async_trait]
impl Apply for TransactionalAppend {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        self.events.prepare(cx, client).await
    }

    async fn apply(&self, open: &mut Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        self.events.apply(open, changes).await?;
        drop(self.hooks.hold(true, open.grant().epoch.0).await);
        Ok(())
    }
}

/// The event as the server tells it.
fn event(change: &Change, out: &mut Vec<u8>) -> Result<()> {
    Native.write(change, out)
}

/// Key and number of an order, from such an event.
fn order(event: &serde_json::Value) -> Option<(String, u64)> {
    Some((event["documentKey"]["_id"].as_str()?.to_owned(), event["fullDocument"]["number"].as_u64()?))
}
