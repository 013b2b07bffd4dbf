//! What harnesses stand on, and what outlives them: servers, started once for all runs of a command.

use std::path::Path;

use watchkeeper_core::{Entropy, Error, Result};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};
use watchkeeper_testkit::servers::postgres::{self, Server, Version};

use super::postgres::AdminConnection;
use crate::fault::InjectedFault;

/// How long servers do without a primary before they elect another. MongoDB's own ten seconds would be most of a run.
const ELECTION_MS: i32 = 2_000;

/// The targets are read back from the oplog, which therefore has to reach back to the beginning of a run.
const OPLOG_MB: &str = "990";

/// The file in a harness's folder that says where its servers are, and which database is its own.
pub(super) const ADDRESS: &str = "address";

/// What the harnesses of one command stand on.
pub(crate) enum Servers {
    /// Nothing but folders.
    Folders,
    /// A replica set of three.
    ReplicaSet(Box<ReplicaSet>),
    /// A single PostgreSQL server that is as durable as it is in use.
    Server(Box<Server>),
}

impl Servers {
    /// What the harness of this name stands on; servers are started.
    pub(crate) fn of(harness: &str) -> Self {
        match harness {
            "mongodb" => Self::three(Some(ELECTION_MS)),
            "postgres" | "replication" => {
                let mut settings = postgres::ServerSettings::new(Version::V15);
                // The targets are read back in the order of commits.
                settings.config.extend(["fsync = on", "track_commit_timestamp = on"].map(str::to_owned));
                Self::Server(Box::new(Server::with(&settings)))
            }
            _ => Self::Folders,
        }
    }

    /// Servers that take the usual time for their elections.
    pub(crate) fn with_usual_elections() -> Self {
        Self::three(None)
    }

    fn three(election_timeout_ms: Option<i32>) -> Self {
        let arguments = vec!["--oplogSize".to_owned(), OPLOG_MB.to_owned()];
        Self::ReplicaSet(Box::new(ReplicaSet::with(&ReplicaSetSettings { nodes: 3, arguments, election_timeout_ms })))
    }

    /// Prepares a folder for a harness: everything in it, and in its database, is new.
    pub(crate) fn lay(&self, folder: &Path) -> Result<()> {
        let database = format!("chaos_{}", Entropy::from_system().uuid().simple());
        let url = match self {
            Self::Folders => return Ok(()),
            Self::ReplicaSet(set) => set.url(&database),
            Self::Server(server) => server.url(&database),
        };
        let written = std::fs::write(folder.join(ADDRESS), url);
        written.map_err(|error| Error::unavailable("a file cannot be written").caused_by(error))
    }

    /// What can befall a group here.
    pub(crate) fn injected_faults(&self) -> Vec<InjectedFault> {
        let mut injected_faults = InjectedFault::of_processes();
        match self {
            Self::Folders => {}
            Self::ReplicaSet(_) => injected_faults.extend(InjectedFault::WITH_SERVERS),
            Self::Server(_) => injected_faults.extend(InjectedFault::WITH_A_SERVER),
        }
        injected_faults
    }

    /// Whether one that is stopped inside a transaction is killed by its successor: nothing else ends its lock.
    pub(crate) fn evicts(&self) -> bool {
        matches!(self, Self::Folders)
    }

    /// The ports of the servers.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let set = match self {
            Self::Folders => return Vec::new(),
            Self::Server(server) => return vec![server.port()],
            Self::ReplicaSet(set) => set,
        };
        set.hosts().iter().filter_map(|host| host.rsplit_once(':')?.1.parse().ok()).collect()
    }

    /// Kills the primary and waits until another one is elected; which it was.
    pub(crate) fn kill_primary(&self) -> Option<usize> {
        let Self::ReplicaSet(set) = self else { return None };
        let killed = set.kill_primary();
        set.primary();
        Some(killed)
    }

    /// Waits until all servers take part again.
    pub(crate) fn in_step(&self) {
        if let Self::ReplicaSet(set) = self {
            set.in_step();
        }
    }

    /// Lets another server lead.
    pub(crate) fn step_down(&self) {
        if let Self::ReplicaSet(set) = self {
            set.step_down();
        }
    }

    /// Starts a killed server again; a single one is killed first.
    pub(crate) fn restart(&self, node: usize) {
        match self {
            Self::Folders => {}
            Self::ReplicaSet(set) => set.restart(node),
            Self::Server(server) => {
                server.kill();
                server.restart();
            }
        }
    }

    /// Has the server end the sessions that come from these ports; how many those were.
    pub(crate) async fn end_sessions(&self, ports: &[u16]) -> Result<usize> {
        match self {
            Self::Server(server) => AdminConnection::of(server).end_sessions(ports).await,
            Self::Folders | Self::ReplicaSet(_) => Ok(0),
        }
    }
}
