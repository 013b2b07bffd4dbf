//! A connection from outside of the group, made again when it is lost.

use std::time::Duration;

use watchkeeper_core::{Error, Result};
use watchkeeper_postgres::tokio_postgres::{self, Client, NoTls};
use watchkeeper_testkit::servers::postgres::Server;

/// How long a connection from outside may take: there is a next time.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct Link {
    url: String,
    client: Option<Client>,
}

/// What the server cannot answer now, it may answer later.
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

/// One who looks after the server.
pub(crate) struct AdminConnection(Link);

impl AdminConnection {
    pub(crate) fn of(server: &Server) -> Self {
        Self(Link::to(&server.url("postgres")))
    }

    /// Ends the sessions that come from these ports; how many those were.
    pub(crate) async fn end_sessions(mut self, ports: &[u16]) -> Result<usize> {
        let ports: Vec<i32> = ports.iter().copied().map(i32::from).collect();
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY($1)";
        Ok(self.0.client().await?.query(end, &[&ports]).await.map_err(unavailable)?.len())
    }
}
