//! How well a stream is, in three words: for programs that watch it.

use std::process::ExitCode;

use serde::Serialize;
use watchkeeper::engine::group::report::StreamActivity;

use super::stream::{State, Stream};

/// How well a stream is, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Health {
    /// It runs, and every instance that has it could run it.
    Healthy,
    /// It runs, and something is wrong: a part does not answer, an instance cannot run it, or changes or rows are missing at its targets.
    Degraded,
    /// Nothing is delivered: it is halted, or nobody has the watch.
    Down,
}

impl Health {
    /// The health of a stream.
    pub(super) fn of(stream: &Stream) -> Self {
        match stream.state {
            State::Halted | State::Paused | State::Failing | State::Vacant | State::Unmanned => Self::Down,
            State::Recovering | State::Pausing | State::Moving => Self::Degraded,
            State::Running => {
                let fails_somewhere = stream.instances.iter().any(|on| on.doing == StreamActivity::Failing);
                let is_unknown = !stream.remarks.is_empty();
                let has_letters = stream.checkpoint.as_ref().is_some_and(|at| at.dead_letters > 0);
                match fails_somewhere || has_letters || is_unknown || !stream.unfinished_snapshots.is_empty() {
                    true => Self::Degraded,
                    false => Self::Healthy,
                }
            }
        }
    }

    /// What `status --exit-code` ends with.
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Healthy => ExitCode::SUCCESS,
            Self::Degraded => ExitCode::from(3),
            Self::Down => ExitCode::from(4),
        }
    }
}
