use std::fmt;
use std::time::Duration;

/// Why a run came to no end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stuck {
    /// Nothing is ready and no timer is pending. The tasks that wait, by name.
    Deadlock(Vec<String>),
    /// The limit of virtual time was reached.
    Time(Duration),
    /// The limit of polls was reached: someone turns without getting on.
    Polls(u64),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock(tasks) if tasks.is_empty() => f.write_str("deadlock: nothing is left that could go on"),
            Self::Deadlock(tasks) => write!(f, "deadlock: these wait for ever: {}", tasks.join(", ")),
            Self::Time(limit) => write!(f, "not done within {limit:?} of virtual time"),
            Self::Polls(limit) => write!(f, "not done within {limit} polls"),
        }
    }
}

impl std::error::Error for Stuck {}
