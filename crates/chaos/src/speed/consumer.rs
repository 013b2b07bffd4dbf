//! Who consumes.

use std::str::FromStr;

/// What is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Mongodb,
    Postgres,
}

/// A consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// The driver's raw batches in a loop: the practical limit.
    RawBatches,
    /// The driver's change stream of raw documents.
    ChangeStream,
    /// Raw batches in a loop that also works for each change.
    BusyLoop,
    /// Ours, with a handler that counts.
    Watchkeeper,
    /// Ours, with a handler that works for each change.
    BusyWatchkeeper,
    /// Ours, writing lines to a file.
    Lines,
    /// The Node driver's loop.
    Node,
    /// PyMongo's loop.
    Python,
    /// Debezium's embedded engine.
    Debezium,
    /// Ours, on the write-ahead log.
    Replication,
    /// PostgreSQL's own program, to nowhere.
    RecvLogical,
    /// A loop that takes the columns of every change apart and does nothing else.
    Pgoutput,
    /// Debezium's embedded engine, on the write-ahead log.
    PostgresDebezium,
    /// Ours, on the log that triggers fill.
    ChangeLog,
    /// The driver's rows of that log, a thousand at a time.
    Poll,
    /// The same with Python's driver.
    Psycopg,
}

/// Whose a consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Ours, so that standbys are connected.
    Ours,
    /// The least that one can do.
    Bare,
    /// Someone else's program, that has to be installed.
    Peer,
}

/// What there is to say of a consumer: what it reads from, whose it is, its name on the command line and in the table.
type Entry = (System, Role, &'static str, &'static str);

impl Consumer {
    const ALL: [Self; 16] = [
        Self::RawBatches,
        Self::ChangeStream,
        Self::BusyLoop,
        Self::Watchkeeper,
        Self::BusyWatchkeeper,
        Self::Lines,
        Self::Node,
        Self::Python,
        Self::Debezium,
        Self::Replication,
        Self::RecvLogical,
        Self::Pgoutput,
        Self::PostgresDebezium,
        Self::ChangeLog,
        Self::Poll,
        Self::Psycopg,
    ];

    fn entry(self) -> Entry {
        use Role::{Bare, Ours, Peer};
        use System::{Mongodb, Postgres};
        match self {
            Self::RawBatches => (Mongodb, Bare, "raw-batches", "driver, raw batches"),
            Self::ChangeStream => (Mongodb, Bare, "change-stream", "driver, ChangeStream<RawDocument>"),
            Self::BusyLoop => (Mongodb, Bare, "busy-loop", "driver, raw batches, 10 µs of work each"),
            Self::Watchkeeper => (Mongodb, Ours, "watchkeeper", "Watchkeeper, counting handler"),
            Self::BusyWatchkeeper => (Mongodb, Ours, "busy-watchkeeper", "Watchkeeper, 10 µs of work each"),
            Self::Lines => (Mongodb, Ours, "lines", "Watchkeeper, NDJSON to a file"),
            Self::Node => (Mongodb, Peer, "node", "Node driver, for await"),
            Self::Python => (Mongodb, Peer, "python", "PyMongo, for"),
            Self::Debezium => (Mongodb, Peer, "debezium", "Debezium, embedded"),
            Self::Replication => (Postgres, Ours, "replication", "Watchkeeper, replication"),
            Self::RecvLogical => (Postgres, Bare, "recvlogical", "pg_recvlogical to /dev/null"),
            Self::Pgoutput => (Postgres, Bare, "pgoutput", "bare pgoutput loop"),
            Self::PostgresDebezium => (Postgres, Peer, "postgres-debezium", "Debezium, embedded"),
            Self::ChangeLog => (Postgres, Ours, "changelog", "Watchkeeper, change log"),
            Self::Poll => (Postgres, Bare, "poll", "driver, poll of 1,000"),
            Self::Psycopg => (Postgres, Peer, "psycopg", "psycopg, poll of 1,000"),
        }
    }

    /// All that read from this system.
    pub(super) fn all_of(system: System) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |by| by.system() == system)
    }

    pub(super) fn system(self) -> System {
        self.entry().0
    }

    /// On the command line.
    pub(super) fn name(self) -> &'static str {
        self.entry().2
    }

    /// In the table.
    pub(super) fn describe(self) -> &'static str {
        self.entry().3
    }

    /// Whether it is ours, so that standbys are connected.
    pub(super) fn is_ours(self) -> bool {
        self.entry().1 == Role::Ours
    }

    /// Whether it is someone else's program.
    pub(super) fn is_peer(self) -> bool {
        self.entry().1 == Role::Peer
    }
}

impl FromStr for Consumer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|by| by.name() == text).ok_or_else(|| format!("there is no consumer {text:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_consumer_is_found_by_its_name() {
        for by in Consumer::ALL {
            assert_eq!(by.name().parse(), Ok(by));
        }
        assert_eq!("nobody".parse::<Consumer>(), Err("there is no consumer \"nobody\"".to_owned()));
    }
}
