//! Makes the connections of a pool, and watches over them.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Connect;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::config::Config;

/// Connects as a [`Config`] says. A server that denies access is asked once more if the password has changed.
pub(super) struct Connector {
    config: Arc<Config>,
    broken: Arc<Broken>,
}

impl Connector {
    pub(super) fn new(config: Arc<Config>) -> Self {
        let broken =
            Arc::new(Broken { place: config.place(), setting: config.setting().to_owned(), logged: Mutex::default() });
        Self { config, broken }
    }

    async fn connect(&self) -> Result<(Client, JoinHandle<()>), Error> {
        let (client, connection) = connect(&self.config).await?;
        let broken = Arc::clone(&self.broken);
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                broken.publish(&error, Instant::now());
            }
        });
        Ok((client, task))
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        _config: &tokio_postgres::Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(Connector::connect(self))
    }
}

type Connected = (
    Client,
    tokio_postgres::Connection<
        tokio_postgres::Socket,
        <tokio_postgres_rustls::MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream,
    >,
);

/// Connects, with the password as it is now.
pub(super) async fn connect(config: &Config) -> Result<Connected, Error> {
    let current = config.current();
    match current.connect(config.connector()).await {
        Err(error) if is_denied(&error) && config.credentials().renew(current.get_password(), &config.place()) => {
            config.current().connect(config.connector()).await
        }
        answer => answer,
    }
}

/// Whether a server refused user or password.
fn is_denied(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION))
}

/// For how long the same cause is not logged again.
const QUIET: Duration = Duration::from_secs(60);

/// Logs connections that break, each cause once a minute: a server that restarts breaks all of them at once, and whoever used one tells
/// what that means for its stream.
#[derive(Debug)]
struct Broken {
    place: String,
    setting: String,
    /// The causes that were logged: when, and how often each came again since. Bounded: causes may name ports and numbers.
    logged: Mutex<BTreeMap<String, (Instant, u64)>>,
}

/// So many causes are remembered.
const CAUSES_MAX: usize = 16;

impl Broken {
    fn publish(&self, error: &Error, now: Instant) {
        if let Some((cause, repeated)) = self.due(cause(error), now) {
            tracing::warn!(
                setting = (!self.setting.is_empty()).then_some(&*self.setting),
                place = self.place,
                cause,
                repeated,
                "a connection to PostgreSQL broke"
            );
        }
    }

    /// What to log of `cause`, and how often it came again since it was logged last.
    fn due(&self, cause: String, now: Instant) -> Option<(String, u64)> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, repeated)) = logged.get_mut(&cause)
            && now.saturating_duration_since(*at) < QUIET
        {
            *repeated += 1;
            return None;
        }
        let repeated = logged.get(&cause).map_or(0, |(_, repeated)| *repeated);
        if logged.len() >= CAUSES_MAX {
            logged.retain(|_, (at, _)| now.saturating_duration_since(*at) < QUIET);
        }
        if logged.len() < CAUSES_MAX {
            logged.insert(cause.clone(), (now, 0));
        }
        Some((cause, repeated))
    }
}

/// An error with what lies below it: the driver's own text is often no more than "db error".
fn cause(error: &Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{}: {} ({})", server.severity(), server.message(), server.code().code()),
        None => match error.source() {
            Some(below) => format!("{error}: {below}"),
            None => error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_a_minute_and_counted_meanwhile() {
        let broken = Broken { place: "db".to_owned(), setting: "store".to_owned(), logged: Mutex::default() };
        let (began, due) = (Instant::now(), |cause: &str, at| broken.due(cause.to_owned(), at));
        assert_eq!(due("reset", began), Some(("reset".to_owned(), 0)));
        for _ in 0..899 {
            assert_eq!(due("reset", began + QUIET / 2), None);
        }
        assert_eq!(
            due("shutdown", began + QUIET / 2),
            Some(("shutdown".to_owned(), 0)),
            "another cause is logged at once"
        );
        assert_eq!(due("reset", began + QUIET / 2), None, "causes that alternate are not logged each time");
        assert_eq!(due("reset", began + QUIET), Some(("reset".to_owned(), 900)));
        assert_eq!(due("shutdown", began + QUIET * 2), Some(("shutdown".to_owned(), 0)));
    }
}
