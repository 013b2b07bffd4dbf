//! The commands of operators: look at a running group, and move it.

use std::time::Duration;

use clap::{Args as Group, Subcommand};

use crate::when::{Amount, Target, parse_length, parse_time};

/// What operators do.
#[derive(Debug, Subcommand)]
pub(crate) enum Operate {
    /// Show who has the watch of each stream, how far it is, and who stands by
    Status {
        /// Only this stream
        stream: Option<String>,
        /// End with 0 when all is healthy, 3 when something is degraded, 4 when a stream is halted or nobody has its watch
        #[arg(long)]
        exit_code: bool,
    },
    /// Tell why the watch of a stream changed hands, and why nobody has it now
    Why {
        /// The stream
        stream: String,
        /// How many changes of the watch to tell
        #[arg(long, default_value_t = 5, value_name = "N")]
        last: usize,
    },
    /// Show changes as they happen, without taking the watch; at the end count them
    Tail(Tail),
    /// Look at a stream's checkpoint, or move it
    Checkpoint {
        #[command(subcommand)]
        command: Checkpoint,
    },
    /// Resume a stream from somewhere else (as `checkpoint set`)
    Seek {
        /// The stream
        stream: String,
        /// oldest, now, snapshot, a time such as 2026-01-22T10:00:00Z, an operation time such as 1700000000:7, or a position
        #[arg(value_name = "TARGET")]
        to: Target,
        #[command(flatten)]
        decision: Decision,
    },
    /// Pass over the one change after the checkpoint; it is noted in the ledger
    Skip {
        /// The stream
        stream: String,
        /// Why, for the ledger
        #[arg(long, default_value = "an operator skipped it", value_name = "TEXT")]
        cause: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// Go on after history that is lost; the gap is noted in the ledger
    AcceptGap {
        /// The stream
        stream: String,
        /// Where to go on: oldest, now, snapshot, a time, an operation time, or a position
        #[arg(long, default_value = "oldest", value_name = "TARGET")]
        to: Target,
        /// Go on although the stream is in the middle of a snapshot: rows that it has not read yet are missing at the targets for good
        #[arg(long)]
        leave_snapshot_unfinished: bool,
        /// Why, for the ledger
        #[arg(long, default_value = "an operator accepted the gap", value_name = "TEXT")]
        cause: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// Hand the watch of a stream over to another instance, in order
    Handoff {
        /// The stream
        stream: String,
        /// The name of the instance that should take it; any other one without
        #[arg(long, value_name = "NAME")]
        to: Option<String>,
        #[command(flatten)]
        patience: Patience,
    },
    /// Let nobody run a stream
    Pause {
        /// The stream
        stream: String,
        #[command(flatten)]
        patience: Patience,
    },
    /// Let a paused or halted stream run again
    Resume {
        /// The stream
        stream: String,
        #[command(flatten)]
        patience: Patience,
    },
    /// Look at changes that a sink rejected, deliver them again, or give them up
    DeadLetters {
        #[command(subcommand)]
        command: DeadLetters,
    },
}

impl Operate {
    /// The stream that it is about, if it is about one.
    pub(crate) fn stream(&self) -> Option<&str> {
        match self {
            Self::Status { stream, .. } => stream.as_deref(),
            Self::Tail(Tail { stream, .. })
            | Self::Why { stream, .. }
            | Self::Seek { stream, .. }
            | Self::Skip { stream, .. }
            | Self::AcceptGap { stream, .. }
            | Self::Handoff { stream, .. }
            | Self::Pause { stream, .. }
            | Self::Resume { stream, .. } => Some(stream),
            Self::Checkpoint { command } => Some(command.stream()),
            Self::DeadLetters { command } => Some(command.stream()),
        }
    }

    /// Whether the command makes sense before the group has ever run, so that it may make the group's store.
    pub(crate) fn may_begin(&self) -> bool {
        matches!(self, Self::Seek { .. } | Self::Checkpoint { command: Checkpoint::Set { .. } })
    }
}

/// How long to wait for others.
#[derive(Debug, Clone, Copy, Group)]
pub(crate) struct Patience {
    /// How long to wait for the instances to act [default: the lease and the time for a shutdown, and 5 s]
    #[arg(long, value_parser = parse_length, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,
}

/// What commands take that change something for good.
#[derive(Debug, Clone, Copy, Group)]
pub(crate) struct Decision {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) patience: Patience,
}

/// What `tail` takes.
#[derive(Debug, Group)]
pub(crate) struct Tail {
    /// The stream
    pub(crate) stream: String,
    /// End after this time
    #[arg(long = "for", value_parser = parse_length, value_name = "TIME")]
    pub(crate) lasting: Option<Duration>,
    /// End after so many changes
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<u64>,
    /// Where to begin
    #[arg(long, value_enum, default_value_t, value_name = "PLACE")]
    pub(crate) from: From,
    /// Show the content of each change too; it may hold anything
    #[arg(long)]
    pub(crate) content: bool,
}

/// Where `tail` begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum From {
    /// With what happens from now on
    #[default]
    Now,
    /// With the oldest change that is still there
    Oldest,
    /// With what the stream has not passed yet
    Checkpoint,
}

/// Commands about a checkpoint.
#[derive(Debug, Subcommand)]
pub(crate) enum Checkpoint {
    /// Show where a stream stands
    Show {
        /// The stream
        stream: String,
    },
    /// Show where it stood before, the newest first
    History {
        /// The stream
        stream: String,
        /// At most so many
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
    },
    /// Resume from somewhere else; what is passed over is noted in the ledger
    Set {
        /// The stream
        stream: String,
        /// oldest, now, snapshot, a time such as 2026-01-22T10:00:00Z, an operation time such as 1700000000:7, or a position
        #[arg(value_name = "TARGET")]
        to: Target,
        #[command(flatten)]
        decision: Decision,
    },
    /// Go back and deliver again
    Rewind {
        /// The stream
        stream: String,
        #[command(flatten)]
        back: Back,
        #[command(flatten)]
        decision: Decision,
    },
    /// Forget the position: the stream begins anew where its settings say
    Reset {
        /// The stream
        stream: String,
        #[command(flatten)]
        decision: Decision,
    },
}

/// How far to go back.
#[derive(Debug, Clone, Copy, Group)]
#[group(required = true, multiple = false)]
pub(crate) struct Back {
    /// At least so many changes (100), or so much of the source's time (15m)
    #[arg(long, value_name = "N|TIME")]
    pub(crate) by: Option<Amount>,
    /// To the first change at or after this time of the source
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    pub(crate) to: Option<u64>,
    /// So many checkpoints of the history
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<usize>,
}

impl Checkpoint {
    fn stream(&self) -> &str {
        match self {
            Self::Show { stream, .. }
            | Self::History { stream, .. }
            | Self::Rewind { stream, .. }
            | Self::Set { stream, .. }
            | Self::Reset { stream, .. } => stream,
        }
    }
}

/// Commands about dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// List those that are open
    List {
        #[command(flatten)]
        which: LetterSelection,
        /// Also what is settled, skips and gaps
        #[arg(long)]
        all: bool,
        /// At most so many
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
        /// Show the content of each change too; it may hold anything
        #[arg(long)]
        content: bool,
    },
    /// Deliver them again, in order; what is rejected again stays
    Replay {
        #[command(flatten)]
        which: LetterSelection,
        #[command(flatten)]
        patience: Patience,
    },
    /// Give them up for good
    Purge {
        #[command(flatten)]
        which: LetterSelection,
        #[command(flatten)]
        decision: Decision,
    },
}

impl DeadLetters {
    fn stream(&self) -> &str {
        match self {
            Self::List { which, .. } | Self::Replay { which, .. } | Self::Purge { which, .. } => &which.stream,
        }
    }
}

/// Which dead letters.
#[derive(Debug, Clone, Group)]
pub(crate) struct LetterSelection {
    /// The stream
    pub(crate) stream: String,
    /// Only these numbers; all without
    #[arg(value_name = "NUMBER")]
    pub(crate) numbers: Vec<u64>,
    /// Only those of this sink
    #[arg(long, value_name = "NAME")]
    pub(crate) sink: Option<String>,
}
