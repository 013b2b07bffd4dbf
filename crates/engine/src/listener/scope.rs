//! How far an error reaches, in one table: by its kind, and by the component whose call failed.

use watchkeeper_core::{Component, Error, ErrorKind};

/// How far an error reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Reopen with back-off inside the tenure.
    Transient,
    /// Release, and stay away for a while: another instance may do better.
    Instance,
    /// Halt the stream: nobody can do better until a person looks.
    Stream,
    /// The source's history is gone: the stream's policy decides.
    History,
    /// The tenure is over.
    Tenure,
}

/// The scope of an error. One that no component raised is the engine's own.
pub fn scope(error: &Error) -> Scope {
    match (error.kind(), error.component()) {
        (ErrorKind::Unavailable | ErrorKind::Unknown, _) => Scope::Transient,
        (ErrorKind::Config | ErrorKind::Denied | ErrorKind::Internal, _) => Scope::Instance,
        (ErrorKind::PositionLost, Some(Component::Source)) => Scope::History,
        // Only the source can lose the source's history. From any other component it is a failed call, which is repeated.
        (ErrorKind::PositionLost, _) => Scope::Transient,
        // Leases and records are the group's: what is damaged there says nothing about this stream's data.
        (
            ErrorKind::Corrupt | ErrorKind::Rejected | ErrorKind::Fenced,
            Some(Component::Leases | Component::Records),
        ) => Scope::Instance,
        (ErrorKind::Corrupt | ErrorKind::Rejected, _) => Scope::Stream,
        (ErrorKind::Fenced, _) => Scope::Tenure,
        // A kind that is not in this table yet: nothing is known of it, so this instance does not go on by itself.
        _ => Scope::Instance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ErrorKind; 9] = [
        ErrorKind::Unavailable,
        ErrorKind::Unknown,
        ErrorKind::Denied,
        ErrorKind::Config,
        ErrorKind::Internal,
        ErrorKind::PositionLost,
        ErrorKind::Corrupt,
        ErrorKind::Fenced,
        ErrorKind::Rejected,
    ];

    #[test]
    fn every_kind_has_the_scope_that_the_design_gives_it_by_component() {
        use Scope::{History, Instance, Stream, Tenure, Transient};
        let sink = Component::Sink("events".into());
        let table = [
            (Some(Component::Source), [History, Stream, Tenure]),
            (Some(sink), [Transient, Stream, Tenure]),
            (Some(Component::Checkpoints), [Transient, Stream, Tenure]),
            (Some(Component::Leases), [Transient, Instance, Instance]),
            (Some(Component::Records), [Transient, Instance, Instance]),
            (None, [Transient, Stream, Tenure]),
        ];
        assert_eq!(KINDS.len(), ErrorKind::ALL.len(), "every kind stands in the table");
        for (component, differing) in table {
            let expected = [Transient, Transient, Instance, Instance, Instance].into_iter().chain(differing);
            let expected = expected.chain([differing[1]]);
            for (kind, expected) in KINDS.into_iter().zip(expected) {
                let error = Error::new(kind, "");
                let error = component.iter().fold(error, Error::raised_by);
                assert_eq!(scope(&error), expected, "{kind:?} of {component:?}");
            }
        }
    }
}
