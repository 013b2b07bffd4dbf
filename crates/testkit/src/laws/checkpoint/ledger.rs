use std::time::Duration;

use futures_util::FutureExt;
use watchkeeper_core::{CheckpointWrite, Commit, LedgerEntry, LedgerKind, LedgerQuery, LedgerRecord, Resolution};

use super::{CheckpointBench, EVERYTHING, letter, with_letters, write};
use crate::laws::lawful::{Broken, Law, ensure, insist};

fn names(records: &[LedgerRecord]) -> Vec<&str> {
    records.iter().map(|record| record.entry.change_id.as_str()).collect()
}

/// C7: ledger entries are written by the very commit that passes them.
pub async fn c7_ledger_is_written_with_its_commit(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    let seen = bench.seen(&grant.key).await?;
    ensure!(seen.ledger.is_empty(), "a new key has the ledger {:?}", seen.ledger);
    bench.committed(&with_letters(write(&grant, 1), &["one", "two"])).await?;
    let seen = bench.seen(&grant.key).await?;
    ensure!(names(&seen.ledger) == ["one", "two"], "written were one and two, read {:?}", seen.ledger);
    bench.committed(&write(&grant, 2)).await?;
    let seen = bench.seen(&grant.key).await?;
    ensure!(names(&seen.ledger) == ["one", "two"], "a commit without entries left {:?}", seen.ledger);
    Ok(())
}

/// C7: resolutions are written by the commit that carries them, and concern only their entries.
pub async fn c7_resolution_is_written_with_its_commit(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    bench.committed(&with_letters(write(&grant, 1), &["one", "two", "three"])).await?;
    let before = bench.seen(&grant.key).await?.ledger;
    let [one, _, three] = &before[..] else { return Err(Broken::new("three entries are not three")) };
    let resolve = vec![(one.number, Resolution::Replayed), (three.number, Resolution::Purged)];
    bench.committed(&CheckpointWrite { resolve, ..with_letters(write(&grant, 2), &["four"]) }).await?;
    let after = bench.seen(&grant.key).await?.ledger;
    let resolutions: Vec<_> = after.iter().map(|record| record.resolution).collect();
    let expected = [Some(Resolution::Replayed), None, Some(Resolution::Purged), None];
    ensure!(resolutions == expected, "expected {expected:?}, got {resolutions:?}");
    Ok(())
}

/// C7: a commit that was dropped on the way is written as a whole or not at all, so that repeating it
/// leaves everything written once.
pub async fn c7_dropped_commit_is_repeated_as_a_whole(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    for (seq, patience_ms) in (1..).zip([0, 1, 2, 5]) {
        let dropped = with_letters(write(&grant, seq), &[&format!("letter-{seq}")]);
        let brief = bench.cx.within(Duration::from_millis(patience_ms));
        let writes = std::slice::from_ref(&dropped);
        if patience_ms == 0 {
            drop(bench.a.commit(&bench.cx, writes).now_or_never());
        } else {
            drop(brief.run(bench.a.commit(&bench.cx, writes)).await);
        }
        let answer = insist(&bench.cx, || bench.commit(&dropped)).await?;
        ensure!(answer != Commit::Fenced, "a commit that was dropped and repeated is {answer:?}");
        bench.ensure_newest(&dropped).await?;
    }
    let ledger = bench.seen(&grant.key).await?.ledger;
    let expected = ["letter-1", "letter-2", "letter-3", "letter-4"];
    ensure!(names(&ledger) == expected, "of commits that were dropped and repeated there is {:?}", names(&ledger));
    Ok(())
}

/// C9: the ledger is read in the order of its numbers, which grow in the order of writing.
pub async fn c9_ledger_is_read_in_the_order_of_its_numbers(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    // More than nine, so that an order by text would show.
    let all: Vec<_> = (1..=12).map(|n| format!("letter-{n}")).collect();
    for (seq, pair) in (1..).zip(all.chunks(2)) {
        let pair: Vec<_> = pair.iter().map(String::as_str).collect();
        bench.committed(&with_letters(write(&grant, seq), &pair)).await?;
    }
    let ledger = bench.seen(&grant.key).await?.ledger;
    ensure!(names(&ledger) == all, "written were {all:?}, read {:?}", names(&ledger));
    let grow = ledger.windows(2).all(|pair| pair[0].number < pair[1].number);
    ensure!(grow && ledger[0].number > 0, "the numbers do not grow from 1: {ledger:?}");
    Ok(())
}

/// C9: numbers go on over resolutions and over tenures.
pub async fn c9_numbers_are_never_reused(bench: &CheckpointBench) -> Law {
    let first = bench.grant(1);
    bench.claimed(&first).await?;
    bench.committed(&with_letters(write(&first, 1), &["one"])).await?;
    let one = bench.seen(&first.key).await?.ledger.first().map(|record| record.number);
    let Some(one) = one else { return Err(Broken::new("an entry that was written is not read")) };
    let resolve = vec![(one, Resolution::Purged)];
    bench.committed(&CheckpointWrite { resolve, ..write(&first, 2) }).await?;
    let second = bench.successor(&first);
    bench.claimed(&second).await?;
    bench.committed(&with_letters(write(&second, 1), &["two"])).await?;
    let query = LedgerQuery { after: one, ..EVERYTHING };
    let later = bench.b.ledger(&bench.cx, &first.key, &query).await?;
    ensure!(names(&later) == ["two"], "after number {one} the ledger is {later:?}");
    Ok(())
}

/// C9: `after`, `limit` and `open_only` are honoured, together too.
pub async fn c9_query_is_honoured(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    bench.committed(&with_letters(write(&grant, 1), &["a", "b", "c", "d", "e"])).await?;
    let numbers: Vec<_> = bench.seen(&grant.key).await?.ledger.iter().map(|record| record.number).collect();
    ensure!(numbers.len() == 5, "five entries have the numbers {numbers:?}");
    let resolve = vec![(numbers[2], Resolution::Replayed)];
    bench.committed(&CheckpointWrite { resolve, ..write(&grant, 2) }).await?;
    let cases: [(u64, usize, bool, &[&str]); 5] = [
        (0, 2, false, &["a", "b"]),
        (numbers[1], 1000, false, &["c", "d", "e"]),
        (numbers[1], 2, true, &["d", "e"]),
        (0, 3, true, &["a", "b", "d"]),
        (numbers[4], 1000, false, &[]),
    ];
    for (after, limit, open_only, expected) in cases {
        let query = LedgerQuery { after, limit, open_only };
        let found = bench.b.ledger(&bench.cx, &grant.key, &query).await?;
        ensure!(names(&found) == expected, "{query:?} should find {expected:?}, but found {:?}", names(&found));
    }
    Ok(())
}

/// C9: an entry is read as it was written, with or without its change.
pub async fn c9_every_field_of_an_entry_survives(bench: &CheckpointBench) -> Law {
    let grant = bench.grant(1);
    bench.claimed(&grant).await?;
    let gap = LedgerEntry { kind: LedgerKind::Gap, sink: String::new(), before: None, change: None, ..letter("gap") };
    let mut unkept = letter("large");
    unkept.kind = LedgerKind::Parked;
    if let Some(change) = &mut unkept.change {
        (change.body, change.key) = (None, None);
    }
    let skipped = LedgerEntry { kind: LedgerKind::Skipped, ..letter("skipped") };
    let entries = vec![letter("letter"), gap, unkept, skipped];
    bench.committed(&CheckpointWrite { ledger: entries.clone(), ..write(&grant, 1) }).await?;
    let found: Vec<_> = bench.seen(&grant.key).await?.ledger.into_iter().map(|record| record.entry).collect();
    ensure!(found == entries, "written was {entries:?}, read {found:?}");
    Ok(())
}
