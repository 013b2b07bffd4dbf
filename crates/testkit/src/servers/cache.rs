//! Where the programs of real servers are kept. The developer commands install them there and include this very file.

use std::path::PathBuf;

/// The folder of MongoDB's `mongod`, below [`folder`].
pub(crate) const MONGODB: &str = "mongodb-6.0.5";

/// The folder of PostgreSQL 15, below [`folder`].
pub(crate) const POSTGRESQL_15: &str = "postgresql-15.15.0";

/// The folder of PostgreSQL 18, below [`folder`].
pub(crate) const POSTGRESQL_18: &str = "postgresql-18.1.0";

/// The folder of PgBouncer, below [`folder`].
pub(crate) const PGBOUNCER: &str = "pgbouncer";

/// The folder of Node's driver for MongoDB, which the benchmark compares with.
pub(crate) const NODE_DRIVER: &str = "node-mongodb-7.8.0";

/// The folder of Python's driver for MongoDB, which the benchmark compares with.
pub(crate) const PYMONGO: &str = "pymongo-4.19.0";

/// The folder of Debezium's libraries, which the benchmark compares with.
pub(crate) const DEBEZIUM: &str = "debezium-3.6.3";

/// The folder of Python's driver for PostgreSQL, which the benchmark compares with.
pub(crate) const PSYCOPG: &str = "psycopg-3.3.8";

/// The folder of PostgreSQL's client programs, where the machine has none of its own.
pub(crate) const POSTGRESQL_CLIENT: &str = "postgresql-client-15";

/// Where Debian keeps the programs of each version of PostgreSQL.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";

/// A program of PostgreSQL's client that the machine has already.
pub(crate) fn postgres_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten().flatten();
    let mut folders = std::env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
}

/// The folder outside of every clone that they are kept in: `WATCHKEEPER_SERVERS`, or one in the user's cache.
pub(crate) fn folder() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = named("WATCHKEEPER_SERVERS") {
        return folder;
    }
    let home = || named("HOME").unwrap_or_else(std::env::temp_dir).join(".cache");
    named("XDG_CACHE_HOME").unwrap_or_else(home).join("watchkeeper").join("servers")
}
