use std::collections::BTreeMap;
use std::ops::Deref;

use futures_util::{StreamExt, stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Connection};

/// How often each channel was notified of something.
pub(super) type Counts = BTreeMap<String, u64>;

/// A connection of its own, with what it is notified of. It is closed when it is dropped.
#[derive(Debug)]
pub struct Dedicated {
    client: tokio_postgres::Client,
    counts: watch::Receiver<Counts>,
    driver: JoinHandle<()>,
}

impl Dedicated {
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
