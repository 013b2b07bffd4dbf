//! PostgreSQL: an application's table, the group's state and a target, in one database of one server.

mod arrivals;
mod bare;
mod copies;
mod link;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::format::{Format, Native};
use watchkeeper_core::{Change, Cx, Error, Result, Source, StartAt};
use watchkeeper_engine::instance::Stores;
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{
    Apply, ChangeLog, Checkpoints, Client, Config, Events, Failure, Leases, Open, RecordStore, Replication,
    Transactional,
};

use super::lines::{Lines, LinesRead};
use super::servers::ADDRESS;
use super::{Bare, BareWriteSize, Harness, InstanceParts, Kind, Target, Writer};
use crate::fault_hooks::FaultHooks;
use crate::harness;
use link::{Link, unavailable};

pub(super) use link::AdminConnection;

/// The table that is written to, and the one that changes arrive in.
const ORDERS: &str = "orders";
const ARRIVED: &str = "arrived";

/// Where the changes are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// The log that triggers fill.
    ChangeLog,
    /// The write-ahead log.
    Replication,
}

pub(super) struct Database {
    folder: PathBuf,
    url: String,
    from: From,
}

fn unreadable(error: std::io::Error) -> Error {
    Error::internal("a file of the rig cannot be used").caused_by(error)
}

impl Database {
    pub(super) fn at(folder: &Path, from: From) -> Result<Self> {
        let url = std::fs::read_to_string(folder.join(ADDRESS)).map_err(unreadable)?;
        Ok(Self { folder: folder.to_owned(), url, from })
    }

    async fn client(&self, cx: &Cx) -> Result<Client> {
        Client::open(cx, Config::new(&self.url)?).await
    }

    fn lines(&self) -> PathBuf {
        self.folder.join("lines")
    }

    /// Makes the database, and in it the table that is written to.
    async fn make(&self) -> Result<()> {
        let (server, name) =
            self.url.rsplit_once('/').ok_or_else(|| Error::internal("the address names no database"))?;
        let mut outside = Link::to(&format!("{server}/postgres"));
        let create = format!("CREATE DATABASE {name}");
        outside.client().await?.batch_execute(&create).await.map_err(unavailable)?;
        let table = format!("CREATE TABLE {ORDERS} (id text PRIMARY KEY, number bigint NOT NULL)");
        Link::to(&self.url).client().await?.batch_execute(&table).await.map_err(unavailable)
    }

    /// The table of the target, which remembers the transaction of every row.
    async fn make_target(&self, cx: &Cx) -> Result<()> {
        Events::into(ARRIVED)?.prepare(cx, &self.client(cx).await?).await?;
        let remember = format!(
            "ALTER TABLE {ARRIVED} ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
             CREATE INDEX ON {ARRIVED} (xid)"
        );
        Link::to(&self.url).client().await?.batch_execute(&remember).await.map_err(unavailable)
    }

    async fn source(&self, cx: &Cx) -> Result<Arc<dyn Source>> {
        Ok(match self.from {
            From::ChangeLog => Arc::new(ChangeLog::open(cx, self.client(cx).await?, "orders").await?),
            From::Replication => {
                // A server has its slots for all databases.
                let name = self.url.rsplit('/').next().unwrap_or(ORDERS);
                let settings = Settings { tables: vec![ORDERS.to_owned()], ..Settings::new(name, name) };
                Arc::new(Replication::new(Config::new(&self.url)?, settings))
            }
        })
    }
}

#[async_trait]
impl Harness for Database {
    async fn set_up(&self, cx: &Cx) -> Result<()> {
        std::fs::create_dir_all(self.lines()).map_err(unreadable)?;
        self.make().await?;
        if self.from == From::ChangeLog {
            install(cx, &self.client(cx).await?, &[ORDERS], Wake::Notify).await?;
        }
        // A slot tells what is written after it was made.
        drop(self.source(cx).await?.open(cx, StartAt::Oldest).await?);
        self.stores(cx).await?;
        self.make_target(cx).await
    }

    async fn stores(&self, cx: &Cx) -> Result<Stores> {
        let client = self.client(cx).await?;
        let leases = Leases::open(cx, client.clone()).await?;
        let records = RecordStore::open(cx, client.clone()).await?;
        let checkpoints = Checkpoints::open(cx, client).await?;
        Ok(Stores { leases: Arc::new(leases), checkpoints: Arc::new(checkpoints), records: Arc::new(records) })
    }

    async fn parts(&self, cx: &Cx, kind: Kind, hooks: &Arc<FaultHooks>) -> Result<InstanceParts> {
        let (stores, source) = (self.stores(cx).await?, self.source(cx).await?);
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

    async fn writer(&self, _cx: &Cx) -> Result<Box<dyn Writer>> {
        Ok(Box::new(writer::App::new(Link::to(&self.url))))
    }

    async fn bare(&self, _cx: &Cx, like: BareWriteSize) -> Result<Option<Box<dyn Bare>>> {
        let table = match like {
            BareWriteSize::Lease => "watchkeeper.leases",
            BareWriteSize::Checkpoint => "watchkeeper.checkpoints",
        };
        Ok(Some(Box::new(bare::OneRow::like(table, Link::to(&self.url)).await?)))
    }

    async fn target(&self, _cx: &Cx, kind: Kind) -> Result<Box<dyn Target>> {
        Ok(match kind {
            Kind::Fenced => Box::new(LinesRead::of(self.lines(), order)),
            Kind::Transactional => Box::new(arrivals::Arrivals::new(Link::to(&self.url))),
        })
    }

    fn config(&self, copies: bool) -> harness::Config {
        let mut source = format!("url = \"{}\"\ntables = [\"{ORDERS}\"]", self.url);
        if self.from == From::Replication {
            // The slot is there already: see `source`.
            let name = self.url.rsplit('/').next().unwrap_or(ORDERS);
            source += &format!("\nmode = \"replication\"\nslot = \"{name}\"\npublication = \"{name}\"");
        }
        let sink = |(mode, table): (&str, &str)| {
            format!("name = \"{mode}\"\nurl = \"{}\"\nmode = \"{mode}\"\ntable = \"{table}\"", copies::url(&self.url))
        };
        harness::Config {
            store: self.url.clone(),
            source,
            folder: self.lines(),
            sinks: if copies { copies::TABLES.map(sink).to_vec() } else { Vec::new() },
        }
    }

    fn plain_lines(&self) -> Box<dyn Target> {
        Box::new(LinesRead::without_epochs(self.lines(), order))
    }

    async fn make_copies(&self, _cx: &Cx) -> Result<()> {
        copies::make(&self.url).await
    }

    async fn copies(&self, _cx: &Cx) -> Result<Vec<(&'static str, Box<dyn Target>)>> {
        let writes = |(mode, _)| (mode, Box::new(copies::Writes::to(mode, &self.url)) as Box<dyn Target>);
        Ok(copies::TABLES.map(writes).into())
    }
}

/// Appends to a table, and holds the transaction open when it is told to.
struct TransactionalAppend {
    events: Events,
    hooks: Arc<FaultHooks>,
}

#[async_trait]
impl Apply for TransactionalAppend {
    async fn prepare(&self, cx: &Cx, client: &Client) -> Result<()> {
        self.events.prepare(cx, client).await
    }

    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        self.events.apply(open, changes).await?;
        drop(self.hooks.hold(true, open.grant().epoch.0).await);
        Ok(())
    }
}

/// The row as it was before and is now.
fn event(change: &Change, out: &mut Vec<u8>) -> Result<()> {
    Native.write(change, out)
}

/// Key and number of an order, from such an event.
fn order(event: &serde_json::Value) -> Option<(String, u64)> {
    let after = &event["document"]["after"];
    Some((after["id"].as_str()?.to_owned(), after["number"].as_u64()?))
}
