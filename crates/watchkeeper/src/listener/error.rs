//! What can go wrong with listeners.

use std::fmt;

use watchkeeper_core::Error;

use super::ListenerState;

/// `Result` with [`ObserverError`].
pub type Result<T, E = ObserverError> = std::result::Result<T, E>;

/// What went wrong, so that a caller can tell a failover from a failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum ObserverError {
    /// This listener has the watch no more: it was lost, or handed over. Nothing of what was not committed is lost; whoever
    /// has the watch next gets it again. Asking again stands by.
    ListenerFailover {
        /// Whose watch ended.
        listener_id: String,
        /// How many changes are committed: where the next one goes on.
        checkpoint: i64,
        /// Why it ended.
        cause: String,
    },
    /// No listener of this name is registered.
    NotRegistered {
        /// The name.
        listener_id: String,
    },
    /// The listener has no stream: there is nothing to take over from it, or to go on with.
    NoStream {
        /// The name.
        listener_id: String,
    },
    /// A listener cannot go from the one state to the other.
    InvalidTransition {
        /// Whose state it is.
        listener_id: String,
        /// Where it stands.
        from: ListenerState,
        /// Where it should have gone.
        to: ListenerState,
    },
    /// A listener has recovered so often without getting on that another one should try.
    RecoveryExhausted {
        /// Whose recoveries they were.
        listener_id: String,
        /// How many there were.
        attempts: u32,
    },
    /// Nobody is there who could do it.
    NoHealthyListener,
    /// The checkpoint that was asked for lies ahead of the one that is stored: what is between them would be skipped.
    CheckpointAhead {
        /// What was asked for.
        asked: i64,
        /// What is stored.
        stored: i64,
    },
    /// The stream is halted until a person resumes it.
    Halted {
        /// The stream.
        stream: String,
        /// Why.
        cause: String,
    },
    /// The listener was stopped.
    Stopped {
        /// Which listener.
        listener_id: String,
    },
    /// What a store, a source or the engine said.
    Failed(Error),
}

impl fmt::Display for ObserverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ListenerFailover { listener_id, checkpoint, cause } => {
                write!(f, "listener {listener_id} has the watch no more, at checkpoint {checkpoint}: {cause}")
            }
            Self::NotRegistered { listener_id } => write!(f, "listener {listener_id} is not registered"),
            Self::NoStream { listener_id } => {
                write!(f, "listener {listener_id} has no stream that could be taken over or gone on with")
            }
            Self::InvalidTransition { listener_id, from, to } => {
                write!(f, "listener {listener_id} cannot go from {from} to {to}")
            }
            Self::RecoveryExhausted { listener_id, attempts } => {
                write!(f, "listener {listener_id} has recovered {attempts} times without getting on")
            }
            Self::NoHealthyListener => f.write_str("no healthy listener is there"),
            Self::CheckpointAhead { asked, stored } => {
                write!(f, "checkpoint {asked} lies ahead of the stored one, {stored}: changes would be skipped")
            }
            Self::Halted { stream, cause } => write!(f, "stream {stream} is halted until a person resumes it: {cause}"),
            Self::Stopped { listener_id } => write!(f, "listener {listener_id} was stopped"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ObserverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for ObserverError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
