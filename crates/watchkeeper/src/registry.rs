//! Every system that this build knows, by its name and by the schemes of its URLs.
//!
//! A new backend adds one line here; the program finds it by itself.

/// The backends of this build, and the peers that every build has, under their own names at the root of this crate.
pub(crate) mod backends {
    #[cfg(feature = "file")]
    pub use watchkeeper_file as file;
    #[cfg(feature = "mongodb")]
    pub use watchkeeper_mongodb as mongodb;
    pub use watchkeeper_peers as peers;
    #[cfg(feature = "postgres")]
    pub use watchkeeper_postgres as postgres;
    #[cfg(feature = "sqlite")]
    pub use watchkeeper_sqlite as sqlite;
}

use std::sync::Arc;

use watchkeeper_core::{Backend, Error, Result};

/// All backends of this build.
pub fn all() -> Vec<Arc<dyn Backend>> {
    vec![
        #[cfg(feature = "file")]
        Arc::new(watchkeeper_file::Files),
        #[cfg(feature = "file")]
        Arc::new(watchkeeper_file::Stdout),
        #[cfg(feature = "mongodb")]
        Arc::new(watchkeeper_mongodb::MongoDb),
        #[cfg(feature = "postgres")]
        Arc::new(watchkeeper_postgres::Postgres),
        #[cfg(feature = "sqlite")]
        Arc::new(watchkeeper_sqlite::Sqlite),
    ]
}

/// The backend of this name.
///
/// # Errors
/// `Config`, with the names that are known.
pub fn named(name: &str) -> Result<Arc<dyn Backend>> {
    let known = || all().iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ");
    all().into_iter().find(|backend| backend.name() == name).ok_or_else(|| {
        Error::config(format!("there is no system {name:?} in this build")).remedy(format!("known are: {}", known()))
    })
}

/// The backend that understands this URL.
///
/// # Errors
/// `Config`, with the schemes that are known. The URL itself is not shown, since it may hold a password.
pub fn of_url(url: &str) -> Result<Arc<dyn Backend>> {
    let scheme = url.split(':').next().unwrap_or_default();
    let understands = |backend: &Arc<dyn Backend>| backend.schemes().contains(&scheme);
    all().into_iter().find(understands).ok_or_else(|| {
        let known: Vec<_> =
            all().iter().flat_map(|backend| backend.schemes()).map(|known| format!("{known}:")).collect();
        let cause = match url.contains(':') {
            true => format!("no system in this build understands URLs that begin with {scheme:?}"),
            false => "this is not a URL".to_owned(),
        };
        Error::config(cause).remedy(format!("begin it with {}", known.join(" or ")))
    })
}
