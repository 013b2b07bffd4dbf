use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// What a child tells, as a line of JSON on its standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Where it stands, told whenever that changes.
    State {
        /// Of which stream.
        stream: String,
        /// The listener's state: `connecting` is standing by, `running` is on watch.
        state: String,
        /// Under which epoch it is on watch.
        #[serde(default)]
        epoch: Option<u64>,
        /// Who has the watch, as a standby sees it.
        #[serde(default)]
        holder: Option<String>,
        /// Why its last tenure ended.
        #[serde(default)]
        error: Option<String>,
        /// How many tenures it has ended itself, at their deadline.
        #[serde(default)]
        deadlines_hit: u64,
    },
    /// A write of this epoch was refused, because a newer one had begun.
    Refused {
        /// The stale epoch.
        epoch: u64,
        /// How many changes were in it.
        changes: u64,
    },
    /// It holds a write in hand and waits for [`Order::Go`].
    Holding {
        /// Under which epoch.
        epoch: u64,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        cause: String,
    },
}

impl Event {
    /// Tells it: one line, at once.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub fn emit(&self) -> io::Result<()> {
        let line = serde_json::to_string(self)?;
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }
}

/// What a child is told, as a line of JSON on its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Hold the next write in hand, say so, and wait for [`Order::Go`].
    Hold {
        /// Inside the target's transaction, so that the target is blocked too.
        inside: bool,
    },
    /// Let go of what is held.
    Go,
    /// Fail fatally at the next change.
    Fail,
    /// Leave in order, as on SIGTERM.
    Stop,
}
