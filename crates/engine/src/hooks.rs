//! Test hooks: an engine that breaks one rule on purpose, to see that the proofs notice.
//!
//! Without the feature `mutants` there is nothing here but a constant `false`.

/// A rule of the engine that a mutant breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// The deadline of a lease is counted from after the reply instead of before the request (G5).
    DeadlineFromReply,
    /// Everything read counts as safe (G2).
    SafePointAtNewest,
    /// The checkpoint is loaded and the source read before the claim (G1).
    ClaimAfterRead,
    /// The lease is released before the last commit (G6).
    ReleaseBeforeCommit,
    /// Positions are acknowledged to the source before they are committed (G2).
    AcknowledgeBeforeCommit,
    /// Changes without a key are no barrier (G3).
    NoBarrier,
    /// The newest claimed epoch is not passed on to the lease store (G1, progress).
    FloorIgnored,
    /// The holder does not end itself at its deadline. Not a flaw that fenced stores let through: with
    /// it stale writes must be tried and refused.
    NoSelfFencing,
}

/// Which rule is broken, if any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hooks {
    #[cfg(feature = "mutants")]
    broken: Option<Mutant>,
}

impl Hooks {
    /// An engine that breaks `mutant`.
    #[cfg(feature = "mutants")]
    pub fn breaking(mutant: Option<Mutant>) -> Self {
        Self { broken: mutant }
    }

    #[cfg(feature = "mutants")]
    pub(crate) fn breaks(self, mutant: Mutant) -> bool {
        self.broken == Some(mutant)
    }

    #[cfg(not(feature = "mutants"))]
    pub(crate) const fn breaks(self, _mutant: Mutant) -> bool {
        false
    }
}
