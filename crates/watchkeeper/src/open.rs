//! Stores and sources by their address, for the backends that this program was built with.

/// The backends of this build, and the peers that every build has, under their own names at the root of this crate.
pub(crate) mod backends {
    #[cfg(feature = "file")]
    pub use watchkeeper_file as file;
    pub use watchkeeper_peers as peers;
    #[cfg(feature = "sqlite")]
    pub use watchkeeper_sqlite as sqlite;
}

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{BootClock, Cx, Error, Result, Source};
use watchkeeper_engine::instance::Stores;

/// How long opening may take. A file that another process writes to may be waited for.
const WITHIN: Duration = Duration::from_secs(30);

/// The context of a call that opens something.
pub fn cx() -> Cx {
    Cx::new(Arc::new(BootClock)).within(WITHIN)
}

/// What a group shares, all in one place: `sqlite:state.db`, a file that is made where it is missing. Give it a
/// file of its own, since an application's long transactions would hold up the renewal of leases.
///
/// # Errors
/// `Config` for an address that no backend here understands, and what the backend says.
pub async fn stores(address: &str) -> Result<Stores> {
    match address.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => sqlite_stores(path).await,
        _ => Err(unknown(address)),
    }
}

/// A source: `sqlite:shop.db`, the log of an application's tables, made by
/// [`sqlite::tools::install`](crate::sqlite::tools::install). It is read on behalf of `consumer`, usually the stream's
/// name: what that one has not acknowledged is kept.
///
/// # Errors
/// `Config` for an address that no backend here understands, and what the backend says.
pub async fn source(address: &str, consumer: &str) -> Result<Arc<dyn Source>> {
    match address.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => sqlite_source(path, consumer).await,
        _ => {
            let _ = consumer;
            Err(unknown(address))
        }
    }
}

fn unknown(address: &str) -> Error {
    // Only the kind of address: there may be a password in the rest.
    let kind = address.split_once(':').map_or("no kind", |(kind, _)| kind);
    let known: &[&str] = if cfg!(feature = "sqlite") { &["sqlite:FILE"] } else { &[] };
    Error::config(format!("an address of {kind:?} is not known here"))
        .remedy(format!("use one of {known:?}, or build with the feature of its backend"))
}

#[cfg(feature = "sqlite")]
async fn sqlite_stores(path: &str) -> Result<Stores> {
    use crate::sqlite::{Checkpoints, Client, Config, Leases, Notes};

    let (cx, config) = (cx(), Config::new(path));
    let client = Client::open(&cx, config).await?;
    Ok(Stores {
        leases: Arc::new(Leases::open(&cx, client.clone()).await?),
        checkpoints: Arc::new(Checkpoints::open(&cx, client.clone()).await?),
        records: Arc::new(Notes::open(&cx, client).await?),
    })
}

#[cfg(feature = "sqlite")]
async fn sqlite_source(path: &str, consumer: &str) -> Result<Arc<dyn Source>> {
    use crate::sqlite::{ChangeLog, Client, Config};

    let cx = cx();
    let client = Client::open(&cx, Config::existing(path)).await?;
    Ok(Arc::new(ChangeLog::open(&cx, client, consumer).await?))
}
