use std::collections::BTreeMap;
use std::ops::Deref;

use futures_util::{FutureExt, StreamExt, stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Connection};
use watchkeeper_core::{Cx, Result};

use super::Client;
use crate::error::{CallPurpose, unchanged};

/// How often each channel was notified of something.
pub(super) type Counts = BTreeMap<String, u64>;

/// A connection of its own, with what it is notified of. It is closed when it is dropped.
#[derive(Debug)]
pub struct Dedicated {
    client: tokio_postgres::Client,
    counts: watch::Receiver<Counts>,
    driver: JoinHandle<()>,
}

/// For whoever waits for others on a connection of its own: the server is to have patience with it, and to write values as text in
/// one way. What an administrator has set for a role or a database is meant for others.
const PATIENT: &str = "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0;
    SET idle_in_transaction_session_timeout = 0; SET default_transaction_isolation = 'read committed'; SET timezone = 'UTC';
    SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET bytea_output = 'hex'; SET extra_float_digits = 1";

impl Dedicated {
    /// Asks the server to have patience. Nobody waits for the answer: it comes before that to whatever is asked next.
    pub(crate) fn raise_timeouts(&self) {
        let _ = self.client.batch_execute(PATIENT).now_or_never();
    }

    pub(super) fn start<S, T>(client: tokio_postgres::Client, mut connection: Connection<S, T>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, counts) = watch::channel(Counts::new());
        let driver = tokio::spawn(async move {
            let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
            // Dropping the sender tells those who wait that they have to look, and to begin anew.
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(note) = message {
                    // Only counted: however many come, they take no room.
                    sender.send_modify(|counts| *counts.entry(note.channel().to_owned()).or_default() += 1);
                }
            }
        });
        Self { client, counts, driver }
    }

    /// The process of the server that answers now.
    async fn process(&self) -> Result<i32, tokio_postgres::Error> {
        let rows = self.client.query_typed("SELECT pg_backend_pid()", &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// How often each channel was notified of something since the connection was made. It ends with the connection.
    pub fn notifications(&self) -> watch::Receiver<BTreeMap<String, u64>> {
        self.counts.clone()
    }
}

impl Deref for Dedicated {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// How often two sessions are compared: others who use a pooler may come in between.
const COMPARED: usize = 3;

impl Client {
    /// Whether a pooler in transaction mode is in between: then two sessions that are there at once have the same process of
    /// the server. There is no such thing without one, while addresses and ports differ behind any router.
    ///
    /// # Errors
    /// As [`dedicated`](Self::dedicated).
    pub(crate) async fn shares_sessions(&self, cx: &Cx) -> Result<bool> {
        let (first, second) = (self.dedicated(cx).await?, self.dedicated(cx).await?);
        let compare = async {
            for _ in 0..COMPARED {
                if first.process().await? == second.process().await? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let compared = async { compare.await.map_err(|native| self.error(native, CallPurpose::Reading)) };
        self.bounded(cx).run(compared).await.map_err(unchanged)
    }
}
