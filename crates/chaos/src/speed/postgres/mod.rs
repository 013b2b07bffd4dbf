//! PostgreSQL, with both of its sources: the write-ahead log beside the server's own program and a bare loop, and the log
//! that triggers fill beside a bare poll of it.

mod burden;
mod consumer;
mod history;
mod live;
mod peers;
mod pgoutput;
mod poll;
mod recvlogical;
mod verdict;

use std::process::Command;
use std::time::Duration;

use tokio::runtime::Handle;
use watchkeeper_core::{Error, Result};
use watchkeeper_postgres::tokio_postgres::{self, Client, NoTls};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::consumer::Consumer;
use super::task::BenchTask;
use super::turns::{self, Site};
use super::{Measured, Plan};
use crate::cluster::Trouble;

pub(super) use consumer::consume;

/// The database whose write-ahead log is read, and the one whose tables have triggers. What belongs to another database is
/// passed over in the log.
const STREAMED: &str = "streamed";
const LOGGED: &str = "logged";

/// As it is in use: durable, and with room for the history.
const CONFIG: [&str; 3] = ["fsync = on", "shared_buffers = 1GB", "max_wal_size = 8GB"];

/// How often it is looked whether a slot is free, and how often at most.
const INSPECT_EVERY: Duration = Duration::from_millis(20);
const LOOKS: usize = 500;

fn unavailable(error: tokio_postgres::Error) -> Error {
    let said = error.as_db_error().map_or_else(|| error.to_string(), |said| said.message().to_owned());
    Error::unavailable(format!("the server says: {said}")).caused_by(error)
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(unavailable)?;
    tokio::spawn(connection);
    Ok(client)
}

/// A server with the same history in both databases.
struct Logs {
    server: Server,
    runtime: Handle,
    /// Where the history ends in the write-ahead log.
    end: u64,
}

/// Whether it reads the write-ahead log, through a slot of its own.
fn is_streamed(by: Consumer) -> bool {
    matches!(by, Consumer::Replication | Consumer::RecvLogical | Consumer::Pgoutput | Consumer::PostgresDebezium)
}

/// The slot of a consumer.
fn slot(group: &str) -> String {
    group.replace('-', "_")
}

impl Logs {
    fn url(&self, by: Consumer) -> String {
        self.server.url(if is_streamed(by) { STREAMED } else { LOGGED })
    }

    fn wait<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T, Trouble> {
        self.runtime.block_on(future).map_err(|error| error.to_string())
    }
}

impl Site for Logs {
    fn prepare(&self, by: Consumer, group: &str) -> Result<(String, u64), Trouble> {
        let url = self.url(by);
        if is_streamed(by) {
            self.wait(history::copy_slot(&url, &slot(group)))?;
        }
        Ok((url, self.end))
    }

    fn clear(&self, by: Consumer, group: &str) -> Result<(), Trouble> {
        if is_streamed(by) { self.wait(drop_slot(&self.url(by), &slot(group))) } else { Ok(()) }
    }

    fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    fn peer(&self, bench_task: &BenchTask) -> Result<Command, Trouble> {
        peers::command(bench_task)
    }
}

/// Removes a slot as soon as the server has noticed that its reader is gone.
async fn drop_slot(url: &str, name: &str) -> Result<()> {
    let client = connect(url).await?;
    let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1";
    let mut looks = 0;
    loop {
        match client.execute(sql, &[&name]).await {
            Ok(_) => return Ok(()),
            Err(error) if looks == LOOKS => return Err(unavailable(error)),
            Err(_) => looks += 1,
        }
        tokio::time::sleep(INSPECT_EVERY).await;
    }
}

pub(super) fn run(plan: Plan, runtime: &Handle) -> Result<bool, Trouble> {
    recvlogical::require_installed();
    if plan.peers {
        peers::require_installed();
    }
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let mut settings = ServerSettings::new(Version::V15);
    settings.config.extend(CONFIG.map(str::to_owned));
    let server = Server::with(&settings);
    let end = runtime.block_on(history::write(&server, plan.changes)).map_err(|error| error.to_string())?;
    println!("{} changes, a quarter of them updates, in transactions of {}", plan.changes, history::TOGETHER);
    let site = Logs { server, runtime: runtime.clone(), end };
    let measured: Measured = turns::take(plan, &site, folder.path())?;
    let late = live::measure(&site, plan.live_rounds, folder.path())?;
    let burden = site.wait(burden::measure(&site.server, plan.rounds))?;
    Ok(verdict::report(&measured, &late, &burden))
}
