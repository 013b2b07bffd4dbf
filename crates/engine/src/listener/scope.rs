//! How far an error reaches, in one table.

use watchkeeper_core::{Error, ErrorKind};

/// How far an error reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Reopen with back-off inside the tenure.
    Transient,
    /// Release, and stay away for a while: another instance may do better.
    Instance,
    /// Halt the stream: nobody can do better until a person looks.
    Stream,
    /// The tenure is over.
    Tenure,
}

/// The scope of an error from a source, a sink or a store.
pub fn scope(error: &Error) -> Scope {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Unknown => Scope::Transient,
        ErrorKind::Config | ErrorKind::Denied | ErrorKind::Internal => Scope::Instance,
        ErrorKind::PositionLost | ErrorKind::Corrupt => Scope::Stream,
        ErrorKind::Fenced => Scope::Tenure,
    }
}
