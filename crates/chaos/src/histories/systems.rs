//! The servers below all histories, started when the first one needs them.

use std::sync::OnceLock;

use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

/// Real servers.
#[derive(Default)]
pub(super) struct Systems {
    postgres: [OnceLock<Server>; Version::ALL.len()],
    mongodb: OnceLock<ReplicaSet>,
}

impl Systems {
    /// The address of a database of PostgreSQL in this version.
    pub(super) fn postgres(&self, version: Version, database: &str) -> String {
        let start = || {
            let mut settings = ServerSettings::new(version);
            settings.config.extend(["max_connections = 200", "max_replication_slots = 50"].map(str::to_owned));
            Server::with(&settings)
        };
        self.postgres[version as usize].get_or_init(start).url(database)
    }

    /// The address of a database of MongoDB.
    pub(super) fn mongodb(&self, database: &str) -> String {
        // All histories share it, and none may fall out of its oplog.
        let arguments = ["--oplogSize", "2048"].map(str::to_owned).to_vec();
        let start = || ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
        self.mongodb.get_or_init(start).url(database)
    }
}
