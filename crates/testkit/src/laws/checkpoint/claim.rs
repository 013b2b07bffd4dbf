use futures_util::future::join;
use watchkeeper_core::{Claim, Commit, Epoch, Grant};

use super::{CheckpointBench, write};
use crate::laws::lawful::{Law, ensure, insist};

/// C1: after a claim no commit of a lower epoch is accepted.
pub async fn c1_claim_shuts_out_lower_epochs(bench: &CheckpointBench) -> Law {
    let old = bench.grant(3);
    bench.claimed(&old).await?;
    bench.committed(&write(&old, 1)).await?;
    let new = bench.successor(&old);
    bench.claimed(&new).await?;
    bench.fenced(&write(&old, 2)).await?;
    bench.ensure_newest(&write(&old, 1)).await?;
    bench.committed(&write(&new, 1)).await?;
    bench.fenced(&write(&old, 2)).await?;
    bench.ensure_newest(&write(&new, 1)).await
}

/// C1: after a claim no commit of another tenure at the same epoch is accepted.
pub async fn c1_claim_shuts_out_another_tenure_of_the_same_epoch(bench: &CheckpointBench) -> Law {
    let one = bench.grant(3);
    let twin = bench.twin(&one);
    bench.claimed(&one).await?;
    bench.fenced(&write(&twin, 1)).await?;
    bench.committed(&write(&one, 1)).await?;
    bench.fenced(&write(&twin, 2)).await?;
    bench.ensure_newest(&write(&one, 1)).await
}

/// C2: an epoch below the newest claimed one is behind it.
pub async fn c2_lower_epoch_is_behind(bench: &CheckpointBench) -> Law {
    let newest = bench.grant(9);
    bench.claimed(&newest).await?;
    for epoch in [1, 8] {
        bench.behind(&Grant { epoch: Epoch(epoch), ..bench.twin(&newest) }, newest.epoch).await?;
    }
    // The tenure does not help: a new grant to it has a new epoch.
    bench.behind(&Grant { epoch: Epoch(8), ..newest.clone() }, newest.epoch).await
}

/// C2: the newest epoch claimed by another tenure is behind, too.
pub async fn c2_equal_epoch_of_another_tenure_is_behind(bench: &CheckpointBench) -> Law {
    let newest = bench.grant(9);
    bench.claimed(&newest).await?;
    bench.behind(&bench.twin(&newest), newest.epoch).await
}

/// C2: a claim that is behind changes nothing for the one that is ahead.
pub async fn c2_claim_that_is_behind_changes_nothing(bench: &CheckpointBench) -> Law {
    let newest = bench.grant(9);
    bench.claimed(&newest).await?;
    bench.committed(&write(&newest, 1)).await?;
    bench.behind(&bench.twin(&newest), newest.epoch).await?;
    bench.behind(&Grant { epoch: Epoch(2), ..bench.twin(&newest) }, newest.epoch).await?;
    bench.committed(&write(&newest, 2)).await?;
    bench.ensure_newest(&write(&newest, 2)).await
}

/// C3: a new claim begins with seq 0, so that its first commit is 1.
pub async fn c3_new_claim_begins_with_seq_zero(bench: &CheckpointBench) -> Law {
    let old = bench.grant(1);
    bench.claimed(&old).await?;
    for seq in 1..=3 {
        bench.committed(&write(&old, seq)).await?;
    }
    let new = bench.successor(&old);
    bench.claimed(&new).await?;
    bench.committed(&write(&new, 1)).await?;
    bench.ensure_newest(&write(&new, 1)).await
}

/// C3: claiming again with the same epoch and tenure changes nothing.
pub async fn c3_claiming_again_changes_nothing(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(4);
    bench.claimed(&grant).await?;
    bench.claimed(&grant).await?;
    bench.committed(&write(&grant, 1)).await?;
    bench.committed(&write(&grant, 2)).await?;
    let found = bench.claimed(&grant).await?;
    let expected = Some(write(&grant, 2).to_checkpoint());
    ensure!(found == expected, "claiming again found {found:?} instead of {expected:?}");
    bench.already_done(&write(&grant, 2)).await?;
    bench.committed(&write(&grant, 3)).await
}

/// C4: the first claim of a key finds no checkpoint, and neither does the next one before a commit.
pub async fn c4_first_claim_finds_nothing(bench: &CheckpointBench) -> Law {
    let first = bench.grant(1);
    for grant in [first.clone(), bench.successor(&first)] {
        let found = bench.claimed(&grant).await?;
        ensure!(found.is_none(), "nothing was committed, yet a claim found {found:?}");
    }
    Ok(())
}

/// C4: a claim answers the newest committed checkpoint, whoever committed it.
pub async fn c4_claim_answers_the_newest_checkpoint(bench: &CheckpointBench) -> Law {
    let first = bench.grant(1);
    bench.claimed(&first).await?;
    bench.committed(&write(&first, 1)).await?;
    bench.committed(&write(&first, 2)).await?;
    let expected = Some(write(&first, 2).to_checkpoint());
    let second = bench.successor(&first);
    let third = bench.successor(&second);
    for grant in [second, third] {
        let found = bench.claimed(&grant).await?;
        ensure!(found == expected, "a claim found {found:?} instead of {expected:?}");
    }
    Ok(())
}

/// C4: when a claim meets a commit, either the claim finds it or the commit is fenced.
pub async fn c4_claim_and_commit_at_once_agree_on_their_order(bench: &CheckpointBench) -> Law {
    for round in 0..10 {
        let old = bench.grant(1);
        let new = bench.successor(&old);
        bench.claimed(&old).await?;
        let writes = [write(&old, 1)];
        let commits = insist(&bench.cx, || bench.a.commit(&bench.cx, &writes));
        let claims = insist(&bench.cx, || bench.b.claim(&bench.cx, &new));
        // Which one is polled first changes from round to round.
        let (commit, claim) = if round % 2 == 0 {
            join(commits, claims).await
        } else {
            let (claim, commit) = join(claims, commits).await;
            (commit, claim)
        };
        let (commit, claim) = (commit?, claim?);
        let Claim::Claimed(found) = claim else { return Err(crate::laws::Broken::new("a newer claim was behind")) };
        let written = commit.first().is_some_and(|commit| *commit != Commit::Fenced);
        ensure!(written == found.is_some(), "the commit was answered with {commit:?}, the claim found {found:?}");
    }
    Ok(())
}

/// The identity of a store is kept in the store.
pub async fn identity_is_the_same_for_every_client(bench: &CheckpointBench) -> Law {
    let identity = bench.a.identity(&bench.cx).await?;
    let again = bench.a.identity(&bench.cx).await?;
    let other = bench.b.identity(&bench.cx).await?;
    ensure!(identity == again && identity == other, "one store has the identities {identity:?}, {again:?}, {other:?}");
    Ok(())
}
