//! A connection from outside of the group, made again when it is lost.

use std::time::Duration;

use watchkeeper_core::{Error, Result};
use watchkeeper_postgres::tokio_postgres::{self, Client, NoTls};

/// How long a connection from outside may take: there is a next time.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct Link {
    url: String,
    client: Option<Client>,
}

/// What the server can not answer now, it may answer later.
pub(super) fn unavailable(error: tokio_postgres::Error) -> Error {
    Error::unavailable("the server does not answer").caused_by(error)
}

impl Link {
    pub(super) fn to(url: &str) -> Self {
        Self { url: url.to_owned(), client: None }
    }

    /// A connection that is not known to be broken.
    ///
    /// # Errors
    /// `Unavailable` when there is none to be had now.
    pub(super) async fn client(&mut self) -> Result<&mut Client> {
        let broken = self.client.as_ref().is_none_or(Client::is_closed);
        if broken {
            let connecting = tokio::time::timeout(PATIENCE, tokio_postgres::connect(&self.url, NoTls));
            let late = |_| Error::unavailable("the server takes too long to let one in");
            let (client, connection) = connecting.await.map_err(late)?.map_err(unavailable)?;
            tokio::spawn(connection);
            self.client = Some(client);
        }
        self.client.as_mut().ok_or_else(|| Error::internal("there is a connection now"))
    }
}
