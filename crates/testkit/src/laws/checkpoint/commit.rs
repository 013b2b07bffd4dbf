use watchkeeper_core::{CheckpointWrite, Commit, ErrorKind, Facts, Halted, Reason, Resolution};

use super::{CheckpointBench, ObservedState, with_letters, write};
use crate::laws::lawful::{Law, ensure};

/// C5: commits are accepted only from the newest claimed epoch and tenure, not even from a later grant
/// that has not claimed.
pub async fn c5_only_the_newest_claim_commits(bench: &CheckpointBench) -> Law {
    let first = bench.grant(5);
    let second = bench.successor(&first);
    bench.claimed(&first).await?;
    bench.fenced(&write(&second, 1)).await?;
    bench.claimed(&second).await?;
    bench.fenced(&write(&first, 1)).await?;
    bench.fenced(&write(&bench.twin(&second), 1)).await?;
    let backdated = watchkeeper_core::Grant { epoch: first.epoch, ..second.clone() };
    bench.fenced(&write(&backdated, 1)).await?;
    bench.committed(&write(&second, 1)).await
}

/// C5: a fenced commit changes nothing: no position, no ledger entry, no resolution.
pub async fn c5_fenced_commit_changes_nothing(bench: &CheckpointBench) -> Law {
    let old = bench.grant(1);
    bench.claimed(&old).await?;
    bench.committed(&with_letters(write(&old, 1), &["kept"])).await?;
    let new = bench.successor(&old);
    bench.claimed(&new).await?;
    let before = bench.seen(&old.key).await?;
    let numbers = before.ledger.iter().map(|record| (record.number, Resolution::Purged)).collect();
    let stale = CheckpointWrite { resolve: numbers, ..with_letters(write(&old, 2), &["stale"]) };
    bench.fenced(&stale).await?;
    // Its number would also fit the new tenure, which begins with 1.
    bench.fenced(&CheckpointWrite { seq: 1, ..stale }).await?;
    let after = bench.seen(&old.key).await?;
    ensure!(after == before, "a fenced commit changed {before:?} to {after:?}");
    bench.committed(&write(&new, 1)).await
}

/// C6: the next number is written.
pub async fn c6_next_seq_is_written(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    for seq in 1..=5 {
        bench.committed(&write(&grant, seq)).await?;
        bench.ensure_newest(&write(&grant, seq)).await?;
    }
    Ok(())
}

/// C6: a repeated number is done already.
pub async fn c6_repeated_seq_is_already_done(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    for seq in 1..=3 {
        bench.committed(&write(&grant, seq)).await?;
        bench.already_done(&write(&grant, seq)).await?;
        bench.already_done(&write(&grant, seq)).await?;
    }
    Ok(())
}

/// C6: a repeated number changes nothing, whatever it carries.
pub async fn c6_repeated_seq_changes_nothing(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    let once = with_letters(write(&grant, 1), &["one"]);
    bench.committed(&once).await?;
    let before = bench.seen(&grant.key).await?;
    bench.already_done(&once).await?;
    let other = CheckpointWrite { seq: 1, ..with_letters(write(&grant, 7), &["two"]) };
    bench.already_done(&other).await?;
    let after = bench.seen(&grant.key).await?;
    ensure!(after == before, "a repeated commit changed {before:?} to {after:?}");
    Ok(())
}

/// C6: a skipped number is a bug of the caller, and changes nothing.
pub async fn c6_skipped_seq_is_a_bug_and_changes_nothing(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    bench.refused_as_a_bug(&with_letters(write(&grant, 2), &["skipped"])).await?;
    bench.committed(&write(&grant, 1)).await?;
    let before = bench.seen(&grant.key).await?;
    bench.refused_as_a_bug(&with_letters(write(&grant, 3), &["skipped"])).await?;
    let after = bench.seen(&grant.key).await?;
    ensure!(after == before, "a commit that skips changed {before:?} to {after:?}");
    bench.committed(&write(&grant, 2)).await
}

/// C6: a lower number is a bug of the caller, and changes nothing.
pub async fn c6_lower_seq_is_a_bug_and_changes_nothing(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    for seq in 1..=3 {
        bench.committed(&write(&grant, seq)).await?;
    }
    let before = bench.seen(&grant.key).await?;
    bench.refused_as_a_bug(&with_letters(write(&grant, 1), &["late"])).await?;
    bench.refused_as_a_bug(&with_letters(write(&grant, 2), &["late"])).await?;
    let after = bench.seen(&grant.key).await?;
    ensure!(after == before, "a commit that goes back changed {before:?} to {after:?}");
    bench.committed(&write(&grant, 4)).await
}

/// C7: the writes of a slice are independent, and answered in their order.
pub async fn c7_writes_of_a_slice_are_independent(bench: &CheckpointBench) -> Law {
    let grants: Vec<_> = (1..=4).map(|epoch| bench.grant(epoch)).collect();
    for grant in &grants {
        bench.claimed(grant).await?;
    }
    bench.claimed(&bench.successor(&grants[1])).await?;
    bench.committed(&write(&grants[3], 1)).await?;
    let writes: Vec<_> = grants.iter().map(|grant| with_letters(write(grant, 1), &["letter"])).collect();
    let answers = bench.a.commit(&bench.cx, &writes).await?;
    let expected = [Commit::Committed, Commit::Fenced, Commit::Committed, Commit::AlreadyDone];
    ensure!(answers == expected, "expected {expected:?}, got {answers:?}");
    for (write, expected) in writes.iter().zip(expected) {
        let seen = bench.seen(&write.grant.key).await?;
        let letters = usize::from(expected == Commit::Committed);
        ensure!(seen.ledger.len() == letters, "{expected:?} left {} ledger entries", seen.ledger.len());
        let stored = seen.checkpoint.is_some();
        ensure!(stored == (expected != Commit::Fenced), "{expected:?}, and a checkpoint is stored: {stored}");
    }
    let none = bench.a.commit(&bench.cx, &[]).await?;
    ensure!(none.is_empty(), "nothing was committed, yet {none:?}");
    Ok(())
}

/// C7: one write that is a bug spares the others: repeated without it, they are done.
pub async fn c7_bug_in_a_slice_spares_the_others(bench: &CheckpointBench) -> Law {
    let (good, bad, last) = (bench.grant(1), bench.grant(1), bench.grant(1));
    for grant in [&good, &bad, &last] {
        bench.claimed(grant).await?;
    }
    let writes = [write(&good, 1), write(&bad, 2), write(&last, 1)];
    let kind = bench.a.commit(&bench.cx, &writes).await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Internal), "a slice with a skipped number was answered with {kind:?}");
    let seen = bench.seen(&bad.key).await?;
    ensure!(seen.checkpoint.is_none(), "the skipped number was written: {seen:?}");
    for grant in [&good, &last] {
        let answer = bench.commit(&write(grant, 1)).await?;
        ensure!(answer != Commit::Fenced, "the other write of the slice is {answer:?}");
        bench.ensure_newest(&write(grant, 1)).await?;
    }
    bench.committed(&write(&bad, 1)).await
}

/// C8: what is committed is seen by every client.
pub async fn c8_committed_write_is_seen_by_every_client(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    bench.committed(&write(&grant, 1)).await?;
    let (mine, other) = (bench.a.load(&bench.cx, &grant.key).await?, bench.b.load(&bench.cx, &grant.key).await?);
    let expected = Some(write(&grant, 1).to_checkpoint());
    ensure!(mine == expected && other == expected, "expected {expected:?}, the clients see {mine:?} and {other:?}");
    Ok(())
}

/// C8: every field of a checkpoint survives, also the absence of one.
pub async fn c8_every_field_survives(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(u64::from(u32::MAX) + 7);
    bench.claimed(&grant).await?;
    let halted = Halted::new("WK-POSITION-LOST", "a \"gap\" – 'lost'", Some("log/7.1".to_owned()));
    let bare = CheckpointWrite {
        position: None,
        pedigree: None,
        halted: Some(halted),
        facts: Facts::default(),
        ..write(&grant, 1)
    };
    bench.committed(&bare).await?;
    bench.ensure_newest(&bare).await?;
    let reasons = [Reason::Operator, Reason::Moved, Reason::Final, Reason::Progress];
    for (seq, reason) in (2..).zip(reasons) {
        let full = CheckpointWrite { reason, ..write(&grant, seq) };
        bench.committed(&full).await?;
        bench.ensure_newest(&full).await?;
    }
    Ok(())
}

/// What happens to one key is nothing to another, even to one whose name begins the same.
pub async fn keys_are_independent(bench: &CheckpointBench) -> Law {
    let one = bench.grant(5);
    let key = watchkeeper_core::LeaseKey::new(format!("{}/2", one.key));
    let other = watchkeeper_core::Grant { key, ..bench.grant(1) };
    bench.claimed(&one).await?;
    bench.committed(&with_letters(write(&one, 1), &["mine"])).await?;
    let found = bench.claimed(&other).await?;
    ensure!(found.is_none(), "a new key begins with {found:?}");
    bench.committed(&write(&other, 1)).await?;
    bench.ensure_newest(&write(&one, 1)).await?;
    let seen = bench.seen(&other.key).await?;
    ensure!(seen.ledger.is_empty(), "a new key has the ledger {:?}", seen.ledger);
    Ok(())
}

/// C10: a write for a key without a claim says that the record is missing, and changes nothing.
pub async fn c10_write_without_a_claim_is_missing_and_changes_nothing(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    for seq in [1, 2] {
        let kind = bench.commit(&with_letters(write(&grant, seq), &["stray"])).await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Corrupt), "commit {seq} without a claim was answered with {kind:?}");
    }
    let seen = bench.seen(&grant.key).await?;
    ensure!(seen == ObservedState { checkpoint: None, ledger: Vec::new() }, "a refused commit left {seen:?}");
    bench.claimed(&grant).await?;
    bench.committed(&write(&grant, 1)).await
}
