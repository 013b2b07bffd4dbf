//! SQLite: an application's database, the group's state, and a target, in three files of one folder.

mod copy;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Change, Cx, Error, ErrorKind, Grant, Result, Sink};
use watchkeeper_drill::Arrival;
use watchkeeper_engine::instance::Stores;
use watchkeeper_sqlite::rusqlite::{self, Transaction};
use watchkeeper_sqlite::{
    Apply, ChangeLog, Checkpoints, Client, Config, Events, Failure, Leases, RecordStore, Transactional,
};

use super::lines::{Lines, LinesRead};
use super::{Harness, InstanceParts, Kind, Target, Writer, Written};
use crate::fault_hooks::FaultHooks;
use crate::harness;

/// The table that is written to, and the one that changes arrive in.
const ORDERS: &str = "CREATE TABLE orders(key TEXT PRIMARY KEY, number INTEGER NOT NULL)";
const ARRIVED: &str = "arrived";

pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    async fn client(&self, cx: &Cx, file: &str, evict: bool) -> Result<Client> {
        Client::open(cx, Config { evict, ..Config::new(self.folder.join(file)) }).await
    }

    fn lines(&self) -> PathBuf {
        self.folder.join("lines")
    }
}

#[async_trait]
impl Harness for Files {
    async fn set_up(&self, cx: &Cx) -> Result<()> {
        let made = std::fs::create_dir_all(self.lines());
        made.map_err(|error| Error::unavailable("a folder cannot be made").caused_by(error))?;
        let app = self.client(cx, "app.db", false).await?;
        app.write(cx, |transaction| Ok(transaction.execute_batch(ORDERS)?)).await?;
        watchkeeper_sqlite::tools::install(cx, &app, &["orders"]).await?;
        self.stores(cx).await?;
        // The table of the target is there before anyone looks at it.
        let target = self.client(cx, "target.db", false).await?;
        Transactional::open(cx, target, Events::into(ARRIVED)?).await?.check(cx).await.map(drop)
    }

    async fn stores(&self, cx: &Cx) -> Result<Stores> {
        let leases = Leases::open(cx, self.client(cx, "state.db", true).await?).await?;
        let records = RecordStore::open(cx, self.client(cx, "state.db", false).await?).await?;
        let checkpoints = Checkpoints::open(cx, self.client(cx, "checkpoints.db", true).await?).await?;
        Ok(Stores { leases: Arc::new(leases), checkpoints: Arc::new(checkpoints), records: Arc::new(records) })
    }

    async fn parts(&self, cx: &Cx, kind: Kind, hooks: &Arc<FaultHooks>) -> Result<InstanceParts> {
        let stores = self.stores(cx).await?;
        let source = ChangeLog::open(cx, self.client(cx, "app.db", false).await?, "orders").await?;
        let source = Arc::new(source);
        Ok(match kind {
            Kind::Fenced => {
                let sink = Arc::new(Lines::into(self.lines(), body));
                InstanceParts { stores, source, sink, checkpoints: None }
            }
            Kind::Transactional => {
                let apply = TransactionalAppend { events: Events::into(ARRIVED)?, hooks: Arc::clone(hooks) };
                let sink = Transactional::open(cx, self.client(cx, "target.db", true).await?, apply).await?;
                let checkpoints = Some(Arc::new(sink.checkpoints().clone()) as _);
                InstanceParts { stores, source, sink: Arc::new(sink), checkpoints }
            }
        })
    }

    async fn writer(&self, cx: &Cx) -> Result<Box<dyn Writer>> {
        Ok(Box::new(App { client: self.client(cx, "app.db", false).await?, cx: cx.clone() }))
    }

    async fn target(&self, cx: &Cx, kind: Kind) -> Result<Box<dyn Target>> {
        Ok(match kind {
            Kind::Fenced => Box::new(LinesRead::of(self.lines(), order)),
            Kind::Transactional => {
                Box::new(TableRead { client: self.client(cx, "target.db", false).await?, cx: cx.clone(), after: 0 })
            }
        })
    }

    fn config(&self, copies: bool) -> harness::Config {
        let url = |file: &str| format!("sqlite:{}", self.folder.join(file).display());
        let sink = format!("url = \"{}\"\nmode = \"mirror\"\ntable = \"{}\"", url(copy::FILE), copy::TABLE);
        harness::Config {
            store: url("state.db"),
            source: format!("url = \"{}\"\ntables = [\"orders\"]", url("app.db")),
            folder: self.lines(),
            sinks: if copies { vec![sink] } else { Vec::new() },
        }
    }

    fn plain_lines(&self) -> Box<dyn Target> {
        Box::new(LinesRead::without_epochs(self.lines(), |event| order(&event["document"])))
    }

    async fn make_copies(&self, cx: &Cx) -> Result<()> {
        copy::make(cx, self.client(cx, copy::FILE, false).await?).await
    }

    async fn copies(&self, cx: &Cx) -> Result<Vec<(&'static str, Box<dyn Target>)>> {
        let writes = copy::Writes::new(cx, self.client(cx, copy::FILE, false).await?);
        Ok(vec![("mirror", Box::new(writes))])
    }
}

/// The application that writes.
struct App {
    client: Client,
    cx: Cx,
}

#[async_trait]
impl Writer for App {
    async fn write(&mut self, changes: &[(String, u64)]) -> Written {
        let changes = changes.to_vec();
        let upsert = move |transaction: &Transaction<'_>| {
            let sql = "INSERT INTO orders VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET number = excluded.number";
            for (key, number) in &changes {
                transaction.prepare_cached(sql)?.execute((key, number.cast_signed()))?;
            }
            Ok(())
        };
        match self.client.write(&self.cx, upsert).await {
            Ok(()) => Written::Acknowledged,
            Err(error) if error.kind() == ErrorKind::Unknown => Written::Unknown,
            Err(_) => Written::Refused,
        }
    }
}

/// Appends to a table, and holds the transaction open when it is told to.
struct TransactionalAppend {
    events: Events,
    hooks: Arc<FaultHooks>,
}

impl Apply for TransactionalAppend {
    fn prepare(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        self.events.prepare(transaction)
    }

    fn apply(&self, transaction: &Transaction<'_>, change: &Change, grant: &Grant) -> Result<(), Failure> {
        self.events.apply(transaction, change, grant)?;
        self.hooks.hold_on_thread(grant.epoch.0);
        Ok(())
    }
}

/// What has arrived in the table.
struct TableRead {
    client: Client,
    cx: Cx,
    after: i64,
}

#[async_trait]
impl Target for TableRead {
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>> {
        let after = self.after;
        let read = move |transaction: &Transaction<'_>| {
            let sql = format!("SELECT number, epoch, body FROM {ARRIVED} WHERE number > ?1 ORDER BY number");
            let mut statement = transaction.prepare_cached(&sql)?;
            let rows = statement.query_map([after], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            Ok(rows.collect::<rusqlite::Result<Vec<(i64, i64, String)>>>()?)
        };
        let rows = self.client.read(&self.cx, read).await?;
        self.after = rows.last().map_or(after, |(number, ..)| *number);
        rows.iter().map(|(_, epoch, body)| arrival(body, epoch.cast_unsigned())).collect()
    }
}

fn arrival(body: &str, epoch: u64) -> Result<Arrival> {
    let parsed: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let (key, number) =
        parsed.as_ref().and_then(order).ok_or_else(|| Error::corrupt("an order that arrived cannot be read"))?;
    Ok(Arrival { key, number, epoch })
}

/// Key and number of an order, from the body of a change.
fn order(body: &serde_json::Value) -> Option<(String, u64)> {
    let after = &body["after"];
    Some((after["key"].as_str()?.to_owned(), after["number"].as_u64()?))
}

/// The body is an object already.
fn body(change: &Change, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(change.body());
    Ok(())
}
