use rusqlite::Connection;
use tokio::sync::{oneshot, watch};
use watchkeeper_core::{Cx, Error, Result};

use super::connect::is_busy;
use super::{Client, connect, gone, launch};
use crate::config::Config;
use crate::error::Failure;

/// Follows a number in the file that grows with every event of one kind.
///
/// A thread with a connection of its own asks every tick whether anybody has committed (`data_version`,
/// which does not tell a connection of its own commits), and only then reads the number.
#[derive(Debug, Clone)]
pub(crate) struct Pulse(watch::Receiver<i64>);

impl Pulse {
    /// Follows the number that `probe` selects. It ends when the last clone is dropped.
    pub(crate) async fn start(cx: &Cx, client: &Client, probe: &'static str) -> Result<Self> {
        let (started, starting) = oneshot::channel();
        let config = client.config().clone();
        launch("watchkeeper-pulse", move || follow(&config, probe, started))?;
        cx.run(async { starting.await.unwrap_or_else(|_| Err(gone())) }).await
    }

    /// Waits until the number is another than when it was last seen.
    ///
    /// # Cancel safety
    /// Cancel safe: no change is lost.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        self.0.changed().await.map_err(|_| Error::unavailable("the file can not be followed any more"))
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

fn follow(config: &Config, probe: &str, started: oneshot::Sender<Result<Pulse>>) {
    let begun = connect(config).and_then(|connection| {
        // The version first: what is committed in between is then looked at twice, not never.
        let seen = version(&connection).and_then(|version| Ok((version, number(&connection, probe)?)));
        let (version, number) = seen.map_err(|error| Failure::from(error).into_error(&config.path))?;
        Ok((connection, version, number))
    });
    let (connection, mut version_seen, number_seen) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let (told, pulse) = watch::channel(number_seen);
    if started.send(Ok(Pulse(pulse))).is_err() {
        return;
    }
    while !told.is_closed() {
        std::thread::sleep(config.tick);
        match look(&connection, probe, &mut version_seen, &told) {
            Err(error) if !is_busy(&error) => return,
            _ => {}
        }
    }
}

fn look(connection: &Connection, probe: &str, seen: &mut i64, told: &watch::Sender<i64>) -> rusqlite::Result<()> {
    let version = version(connection)?;
    if version == *seen {
        return Ok(());
    }
    let number = number(connection, probe)?;
    *seen = version;
    told.send_if_modified(|known| std::mem::replace(known, number) != number);
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

fn number(connection: &Connection, probe: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(probe)?.query_row([], |row| row.get(0))
}
