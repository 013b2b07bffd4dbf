use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{oneshot, watch};
use watchkeeper_core::{Cx, Error, Result};

use super::connect::is_busy;
use super::link::Link;
use super::schema::Maintained;
use super::{Client, gone, launch};
use crate::config::Config;
use crate::error::Failure;

/// Follows a number in the file that grows with every event of one kind.
///
/// A thread with a connection of its own asks every tick whether anybody has committed (`data_version`,
/// which does not tell a connection of its own commits), and only then reads the number.
#[derive(Debug, Clone)]
pub(crate) struct ChangeHints(watch::Receiver<i64>);

impl ChangeHints {
    /// Follows the number that `probe` selects. It ends when the last clone is dropped.
    pub(crate) async fn start(cx: &Cx, client: &Client, probe: &'static str) -> Result<Self> {
        let (started, starting) = oneshot::channel();
        let config = Config { create: false, ..client.config().clone() };
        let maintained = client.maintained.clone();
        launch("watchkeeper-pulse", move || follow(&config, &maintained, probe, started))?;
        cx.run(async { starting.await.unwrap_or_else(|_| Err(gone())) }).await
    }

    /// Waits until the number is another than when it was last seen.
    ///
    /// # Cancel safety
    /// Cancel safe: no change is lost.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        let ended =
            || Error::unavailable("the file cannot be followed any more").remedy("it is opened again by itself");
        self.0.changed().await.map_err(|_| ended())
    }

    /// Takes what there is now as seen.
    pub(crate) fn mark_seen(&mut self) {
        self.0.mark_unchanged();
    }

    /// Whether the thread behind it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_changed().is_err()
    }
}

/// How often a look is also for whether the path still means the same file.
const FILE_EVERY: Duration = Duration::from_secs(1);

fn follow(config: &Config, maintained: &Maintained, probe: &str, started: oneshot::Sender<Result<ChangeHints>>) {
    let begun = Link::open(config).and_then(|link| {
        // The version first: what is committed in between is then looked at twice, not never.
        let connection = link.connection();
        let seen = version(connection).and_then(|version| Ok((version, number(connection, probe)?)));
        let (version, number) = seen.map_err(|error| Failure::from(error).into_error(&config.path))?;
        Ok((link, version, number))
    });
    let (mut link, mut version_seen, number_seen) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let (sender, hints) = watch::channel(number_seen);
    if started.send(Ok(ChangeHints(hints))).is_err() {
        return;
    }
    let mut file_seen: Option<Instant> = None;
    while !sender.is_closed() {
        std::thread::sleep(config.tick);
        if file_seen.is_none_or(|seen| seen.elapsed() >= FILE_EVERY) {
            file_seen = Some(Instant::now());
            keep_up(&mut link, maintained, &mut version_seen, &sender);
        }
        match inspect(link.connection(), probe, &mut version_seen, &sender) {
            Err(error) if !is_busy(&error) => return,
            _ => {}
        }
    }
}

/// Goes over to the file that the path means now, if that is another one.
fn keep_up(link: &mut Link, maintained: &Maintained, version_seen: &mut i64, sender: &watch::Sender<i64>) {
    if link.current(maintained).is_err() {
        // Whoever waits is woken, asks the file, and is told what has become of it.
        sender.send_modify(|_| {});
        *version_seen = NEVER;
    }
}

/// A version that no connection has.
const NEVER: i64 = -1;

fn inspect(connection: &Connection, probe: &str, seen: &mut i64, sender: &watch::Sender<i64>) -> rusqlite::Result<()> {
    let version = version(connection)?;
    if version == *seen {
        return Ok(());
    }
    let number = number(connection, probe)?;
    *seen = version;
    sender.send_if_modified(|known| std::mem::replace(known, number) != number);
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

fn number(connection: &Connection, probe: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(probe)?.query_row([], |row| row.get(0))
}
