use std::fmt::Debug;

use async_trait::async_trait;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_core::{Claim, ErrorKind, Grant, LeaseKey, Result};

use super::{CheckpointBench, write};
use crate::laws::lawful::{Law, ensure};

/// How a stored checkpoint is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// It has the type of a checkpoint, but nothing of its content.
    Emptied,
    /// It has the worst content that the store's types allow: another type, or no text in any encoding.
    Garbled,
    /// It is garbled, and so is the claim next to it as far as the store's types allow that.
    ClaimGarbled,
}

impl Damage {
    const ALL: [Self; 3] = [Self::Emptied, Self::Garbled, Self::ClaimGarbled];
}

/// Damages the stored checkpoint of a key, as someone who edits the database would.
#[async_trait]
pub trait DamageCheckpoint: Send + Sync + Debug {
    /// Damages the checkpoint of `key`, which is stored.
    async fn damage(&self, key: &LeaseKey, how: Damage) -> Result<()>;
}

#[async_trait]
impl DamageCheckpoint for Checkpoints {
    async fn damage(&self, key: &LeaseKey, _how: Damage) -> Result<()> {
        Self::damage(self, key);
        Ok(())
    }
}

impl CheckpointBench {
    /// A grant whose checkpoint was committed, and damaged since.
    async fn damaged(&self, how: Damage) -> Result<Grant, crate::laws::Broken> {
        let grant = self.grant(1);
        self.claimed(&grant).await?;
        self.committed(&write(&grant, 1)).await?;
        self.damager.damage(&grant.key, how).await?;
        Ok(grant)
    }

    async fn ensure_claim_is_corrupt(&self, grant: &Grant) -> Law {
        let answer = self.a.claim(&self.cx, grant).await;
        let kind = answer.as_ref().map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Corrupt), "a claim of a damaged checkpoint was answered with {answer:?}");
        Ok(())
    }
}

/// C11: a stored checkpoint that cannot be read is `Corrupt`, to whoever claims or loads it.
pub async fn c11_damaged_checkpoint_is_never_an_absent_one(bench: &CheckpointBench) -> Law {
    for how in Damage::ALL {
        let old = bench.damaged(how).await?;
        let loaded = bench.b.load(&bench.cx, &old.key).await;
        let kind = loaded.as_ref().map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Corrupt), "a damaged checkpoint was loaded as {loaded:?}");
        bench.ensure_claim_is_corrupt(&bench.successor(&old)).await?;
    }
    Ok(())
}

/// C11: the claim that finds a damaged checkpoint has taken effect: older grants are shut out, and its own commit replaces the damage.
pub async fn c11_claim_of_a_damaged_checkpoint_takes_effect(bench: &CheckpointBench) -> Law {
    for how in Damage::ALL {
        let old = bench.damaged(how).await?;
        let new = bench.successor(&old);
        bench.ensure_claim_is_corrupt(&new).await?;
        // It can be repeated, as every claim.
        bench.ensure_claim_is_corrupt(&new).await?;
        bench.fenced(&write(&old, 2)).await?;
        let late = bench.b.claim(&bench.cx, &old).await?;
        ensure!(late == Claim::Behind { newest: new.epoch }, "an older claim was answered with {late:?}");
        bench.committed(&write(&new, 1)).await?;
        bench.ensure_newest(&write(&new, 1)).await?;
        let found = bench.claimed(&bench.successor(&new)).await?;
        let expected = Some(write(&new, 1).to_checkpoint());
        ensure!(found == expected, "after the damage was replaced a claim found {found:?}");
    }
    Ok(())
}
