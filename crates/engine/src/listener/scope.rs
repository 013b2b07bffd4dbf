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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_the_scope_that_the_design_gives_it() {
        let table = [
            (ErrorKind::Unavailable, Scope::Transient),
            (ErrorKind::Unknown, Scope::Transient),
            (ErrorKind::Denied, Scope::Instance),
            (ErrorKind::Config, Scope::Instance),
            (ErrorKind::Internal, Scope::Instance),
            (ErrorKind::PositionLost, Scope::Stream),
            (ErrorKind::Corrupt, Scope::Stream),
            (ErrorKind::Fenced, Scope::Tenure),
        ];
        for (kind, expected) in table {
            assert_eq!(scope(&Error::new(kind, "")), expected, "{kind:?}");
        }
    }
}
