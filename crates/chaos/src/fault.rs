//! What befalls a group.

use std::fmt;

use watchkeeper_drill::Fault;

/// What is done to the one on watch, or to the servers that it works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InjectedFault {
    /// Something that can befall a process wherever it works.
    Process(Fault),
    /// SIGKILL inside a transaction, which its server does not learn of.
    KillInside,
    /// All connections of the process to the servers are cut.
    Cut,
    /// The primary is killed, and started again when all goes on.
    PrimaryKilled,
    /// The primary lets another server lead.
    StepDown,
    /// The server ends all sessions of the process.
    SessionsEnded,
    /// The only server is killed and started again.
    ServerRestarted,
}

impl InjectedFault {
    /// Those that there are only with servers that elect one of them.
    pub(crate) const WITH_SERVERS: [Self; 4] = [Self::KillInside, Self::Cut, Self::PrimaryKilled, Self::StepDown];

    /// Those that there are only with a single server.
    pub(crate) const WITH_A_SERVER: [Self; 4] =
        [Self::KillInside, Self::Cut, Self::SessionsEnded, Self::ServerRestarted];

    /// Those of a process.
    pub(crate) fn of_processes() -> Vec<Self> {
        Fault::ALL.map(Self::Process).to_vec()
    }

    /// Its name in tables.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Process(fault) => fault.as_str(),
            Self::KillInside => "SIGKILL inside",
            Self::Cut => "connections cut",
            Self::PrimaryKilled => "primary killed",
            Self::StepDown => "step-down",
            Self::SessionsEnded => "sessions ended",
            Self::ServerRestarted => "server restart",
        }
    }

    /// Whether the process is stopped where it is.
    pub(crate) fn is_pause(self) -> bool {
        matches!(self, Self::Process(Fault::Pause | Fault::PauseInside))
    }

    /// Whether the process has to have a write in hand, and whether inside a transaction.
    pub(crate) fn holds(self) -> Option<bool> {
        match self {
            Self::Process(Fault::Pause) => Some(false),
            Self::Process(Fault::PauseInside) | Self::KillInside => Some(true),
            _ => None,
        }
    }

    /// Whether the one on watch may go on under the same epoch.
    pub(crate) fn may_be_outlived(self) -> bool {
        matches!(self, Self::Cut | Self::PrimaryKilled | Self::StepDown | Self::SessionsEnded | Self::ServerRestarted)
    }
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
