//! The driver's client, which is made anew when access was denied and the URL has changed since.

use std::sync::atomic::{AtomicBool, Ordering};

use mongodb::error::Error;
use tokio::sync::RwLock;

use crate::config::Config;

/// Made by the first who needs it, so that its connections live on that one's runtime: a keeper's on the keeper's.
#[derive(Debug, Default)]
pub(super) struct Driver {
    made: RwLock<Option<ConnectedDriver>>,
    /// Whether access was denied since the client was made.
    is_denied: AtomicBool,
}

#[derive(Debug)]
struct ConnectedDriver {
    client: mongodb::Client,
    url: String,
}

impl Driver {
    /// The client. After a denial the URL is read again: its password may be in a file that was replaced.
    pub(super) async fn get(&self, config: &Config) -> Result<mongodb::Client, Error> {
        if !self.is_denied.load(Ordering::Acquire)
            && let Some(made) = &*self.made.read().await
        {
            return Ok(made.client.clone());
        }
        let mut made = self.made.write().await;
        let was_denied = self.is_denied.swap(false, Ordering::AcqRel);
        let url = match &*made {
            Some(made) if !was_denied => return Ok(made.client.clone()),
            _ => config.read_url(),
        };
        if let Some(made) = made.as_ref() {
            if made.url == url {
                return Ok(made.client.clone());
            }
            let place = config.place();
            tracing::info!(place, "access was denied, and the URL has changed: connecting with the new one");
        }
        let client = mongodb::Client::with_options(config.client_options(&url).await?)?;
        *made = Some(ConnectedDriver { client: client.clone(), url });
        Ok(client)
    }

    /// The client, if there is one.
    pub(super) fn made(&self) -> Option<mongodb::Client> {
        self.made.try_read().ok()?.as_ref().map(|made| made.client.clone())
    }

    /// Takes in that access was denied: whoever asks next reads the URL again.
    pub(super) fn note_denied(&self) {
        self.is_denied.store(true, Ordering::Release);
    }
}
