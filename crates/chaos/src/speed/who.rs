//! Who consumes.

use std::str::FromStr;

/// A consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
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
}

impl By {
    pub(super) const ALL: [Self; 9] = [
        Self::RawBatches,
        Self::ChangeStream,
        Self::BusyLoop,
        Self::Watchkeeper,
        Self::BusyWatchkeeper,
        Self::Lines,
        Self::Node,
        Self::Python,
        Self::Debezium,
    ];

    /// On the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RawBatches => "raw-batches",
            Self::ChangeStream => "change-stream",
            Self::BusyLoop => "busy-loop",
            Self::Watchkeeper => "watchkeeper",
            Self::BusyWatchkeeper => "busy-watchkeeper",
            Self::Lines => "lines",
            Self::Node => "node",
            Self::Python => "python",
            Self::Debezium => "debezium",
        }
    }

    /// In the table.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::RawBatches => "driver, raw batches",
            Self::ChangeStream => "driver, ChangeStream<RawDocument>",
            Self::BusyLoop => "driver, raw batches, 10 µs of work each",
            Self::Watchkeeper => "Watchkeeper, counting handler",
            Self::BusyWatchkeeper => "Watchkeeper, 10 µs of work each",
            Self::Lines => "Watchkeeper, NDJSON to a file",
            Self::Node => "Node driver, for await",
            Self::Python => "PyMongo, for",
            Self::Debezium => "Debezium, embedded",
        }
    }

    /// Whether it is ours, so that standbys are connected.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Watchkeeper | Self::BusyWatchkeeper | Self::Lines)
    }

    /// Whether it is someone else's program.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Node | Self::Python | Self::Debezium)
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|by| by.name() == text).ok_or_else(|| format!("there is no consumer {text:?}"))
    }
}
