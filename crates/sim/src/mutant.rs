//! The mutants: one per guarantee, each of which must turn the simulation red.

use std::sync::Arc;

use watchkeeper_core::CheckpointStore;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_engine::hooks::{Hooks, Mutant};
use watchkeeper_testkit::known_bad::flawed_checkpoints;

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// A rule of the engine.
    Engine(Mutant),
    /// A rule of the checkpoint store, by the name of the known-bad one.
    Store(&'static str),
}

/// A mutant: its name, what it breaks, and seeds known to catch it.
#[derive(Debug, Clone, Copy)]
pub struct CatalogedMutant {
    /// The name on the command line.
    pub name: &'static str,
    /// What it breaks.
    pub breaks: Breakage,
    /// Seeds that are known to catch it.
    pub seeds: &'static [u64],
}

/// All mutants.
pub const ALL: &[CatalogedMutant] = &[
    CatalogedMutant {
        name: "commit-without-epoch",
        breaks: Breakage::Store("CommitIgnoresTheEpoch"),
        seeds: &[8, 11, 12, 14],
    },
    CatalogedMutant {
        name: "equal-epoch",
        breaks: Breakage::Store("EqualEpochOfAnotherTenureIsAccepted"),
        seeds: &[1, 16, 26, 34],
    },
    CatalogedMutant { name: "commit-without-seq", breaks: Breakage::Store("CommitIgnoresSeq"), seeds: &[0, 3, 4, 69] },
    CatalogedMutant {
        name: "deadline-from-reply",
        breaks: Breakage::Engine(Mutant::DeadlineFromReply),
        seeds: &[1, 8, 73, 92],
    },
    CatalogedMutant {
        name: "safe-point-at-newest",
        breaks: Breakage::Engine(Mutant::SafePointAtNewest),
        seeds: &[0, 1, 3, 5],
    },
    CatalogedMutant {
        name: "claim-after-read",
        breaks: Breakage::Engine(Mutant::ClaimAfterRead),
        seeds: &[19, 30, 35, 41],
    },
    CatalogedMutant {
        name: "release-before-commit",
        breaks: Breakage::Engine(Mutant::ReleaseBeforeCommit),
        seeds: &[0, 1, 3, 5],
    },
    CatalogedMutant {
        name: "acknowledge-before-commit",
        breaks: Breakage::Engine(Mutant::AcknowledgeBeforeCommit),
        seeds: &[0, 1, 3, 5],
    },
    CatalogedMutant { name: "no-barrier", breaks: Breakage::Engine(Mutant::NoBarrier), seeds: &[0, 1, 3, 5] },
    CatalogedMutant { name: "floor-ignored", breaks: Breakage::Engine(Mutant::FloorIgnored), seeds: &[1, 2, 6, 7] },
];

/// The mutant of this name.
pub fn named(name: &str) -> Option<&'static CatalogedMutant> {
    ALL.iter().find(|known| known.name == name)
}

impl Breakage {
    /// The engine's hooks.
    pub fn hooks(breakage: Option<Self>, self_fencing: bool) -> Hooks {
        match breakage {
            Some(Self::Engine(mutant)) => Hooks::breaking(Some(mutant)),
            _ if !self_fencing => Hooks::breaking(Some(Mutant::NoSelfFencing)),
            _ => Hooks::default(),
        }
    }

    /// The checkpoint store over `inner`.
    pub fn checkpoints(breakage: Option<Self>, inner: Checkpoints) -> Arc<dyn CheckpointStore> {
        let flawed = match breakage {
            Some(Self::Store(flaw)) => flawed_checkpoints(flaw, inner.clone()),
            _ => None,
        };
        flawed.unwrap_or_else(|| Arc::new(inner))
    }
}
